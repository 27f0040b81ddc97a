//! The report as JSON, schema 1.
//!
//! Fields are only ever added within a schema; a reader skips those it does not know.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use super::{Claim, CorpusFacts, Measured, Ratio, Report};
use crate::error::{Error, Result};
use crate::machine::Machine;

const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    suite: &'a str,
    command: &'a str,
    git: &'a str,
    profile: &'a str,
    machine: &'a Machine,
    corpora: &'a [CorpusFacts],
    results: Vec<&'a Measured>,
    ratios: Vec<&'a Ratio>,
    claims: Vec<&'a Claim>,
    /// Null for a whole report; else why it is only a part.
    stopped: Option<&'a str>,
}

/// Writes the report to `path`.
pub fn write(report: &Report, path: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::io(format!("report {}", path.display()), error);
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    serde_json::to_writer_pretty(&mut file, &document(report))
        .map_err(|error| failed(error.into()))?;
    file.write_all(b"\n")
        .and_then(|()| file.flush())
        .map_err(failed)
}

fn document(report: &Report) -> Document<'_> {
    let blocks = &report.blocks;
    Document {
        schema: SCHEMA,
        suite: report.suite,
        command: &report.command,
        git: &report.built.git,
        profile: &report.built.profile,
        machine: &report.machine,
        corpora: &report.corpora,
        results: blocks.iter().flat_map(|block| &block.results).collect(),
        ratios: blocks.iter().flat_map(|block| &block.ratios).collect(),
        claims: blocks.iter().flat_map(|block| &block.claims).collect(),
        stopped: report.stopped.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn keys(value: &Value) -> Vec<&str> {
        value
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect()
    }

    /// Readers of the reports of a year ago rely on these names.
    #[test]
    fn the_document_has_the_fields_of_schema_1() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        write(&crate::report::tests::sample(), &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            keys(&value),
            [
                "schema", "suite", "command", "git", "profile", "machine", "corpora", "results",
                "ratios", "claims", "stopped"
            ]
        );
        assert_eq!(value["schema"], 1);
        assert_eq!(
            keys(&value["machine"]),
            [
                "cpus",
                "model",
                "kernel",
                "memory_bytes",
                "wakeup_same_cpu_ns",
                "wakeup_cross_cpu_ns"
            ]
        );
        assert_eq!(
            keys(&value["corpora"][0]),
            ["name", "pages", "same_filled_pages"]
        );
        assert_eq!(
            keys(&value["results"][0]),
            [
                "case",
                "variant",
                "metric",
                "unit",
                "min",
                "median",
                "max",
                "runs",
                "working_set_bytes",
                "pinned"
            ]
        );
        assert_eq!(
            keys(&value["ratios"][0]),
            [
                "case",
                "numerator",
                "denominator",
                "metric",
                "min",
                "median",
                "max",
                "runs"
            ]
        );
        assert_eq!(value["results"][0]["median"], 110.0);
        assert_eq!(value["ratios"][0]["min"], 1.04);
    }

    #[test]
    fn a_path_that_cannot_be_written_is_named() {
        let error = write(&crate::report::tests::sample(), Path::new("/proc/none/x")).unwrap_err();
        assert!(
            error.to_string().starts_with("report /proc/none/x: "),
            "{error}"
        );
        assert_eq!(error.exit_status(), 1);
    }
}
