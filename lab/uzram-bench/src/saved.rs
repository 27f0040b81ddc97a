//! A report that `--json` wrote, read back. Its bytes may be anybody's.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::report::{Block, Built, Claim, CorpusFacts, Measured, Ratio, Report};
use crate::sample::Spread;

/// Bytes of a file at most: a hundred times the largest report.
const FILE_MAX_BYTES: u64 = 64 << 20;
/// Different names of suites, metrics and units at most: they stay in memory.
const NAMES_MAX: usize = 1000;
/// The version of the form that is known.
const SCHEMA: u32 = 1;

/// The report.
#[derive(Debug, Deserialize)]
pub(crate) struct Saved {
    #[serde(skip)]
    pub path: PathBuf,
    schema: u32,
    pub suite: String,
    command: String,
    pub git: String,
    pub profile: String,
    pub machine: Machine,
    pub corpora: Vec<CorpusFacts>,
    pub results: Vec<Figure>,
    ratios: Vec<SavedRatio>,
    #[serde(default)]
    claims: Vec<Claim>,
    #[serde(default)]
    stopped: Option<String>,
}

/// A figure. One that is no number was written as null.
#[derive(Debug, Deserialize)]
pub(crate) struct Figure {
    pub case: String,
    pub variant: String,
    pub metric: String,
    pub unit: String,
    #[serde(flatten)]
    runs: Runs,
    working_set_bytes: u64,
    pinned: Option<String>,
}

#[derive(Debug, Deserialize)]
struct SavedRatio {
    case: String,
    numerator: String,
    denominator: String,
    metric: String,
    #[serde(flatten)]
    runs: Runs,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Runs {
    min: Option<f64>,
    median: Option<f64>,
    max: Option<f64>,
    runs: usize,
}

impl Runs {
    /// `None` for what is no spread of numbers.
    fn spread(self) -> Option<Spread> {
        let (min, median, max, runs) = (self.min?, self.median?, self.max?, self.runs);
        let is_ordered = min <= median && median <= max && runs > 0;
        is_ordered.then_some(Spread {
            min,
            median,
            max,
            runs,
        })
    }
}

impl Figure {
    /// `None` for what is no spread of numbers.
    pub fn spread(&self) -> Option<Spread> {
        self.runs.spread()
    }
}

impl Saved {
    /// Reads the report in `path`.
    ///
    /// # Errors
    /// [`Error::Usage`] with one line if it is none.
    pub fn load(path: &Path) -> Result<Saved> {
        let mut saved: Saved = load(path)?;
        if saved.schema != SCHEMA {
            let schema = saved.schema;
            let text = format!("schema {schema}: this uzram-bench reads {SCHEMA}");
            return Err(refused(path, &text));
        }
        saved.path = path.to_owned();
        Ok(saved)
    }

    /// The report as it was, as far as its file has it: in blocks by corpus and algorithm.
    ///
    /// # Errors
    /// [`Error::Usage`] for more names than any suite has.
    pub fn into_report(self) -> Result<Report> {
        let mut names = Names(Vec::new());
        let mut blocks: Vec<Block> = Vec::new();
        for figure in self.results {
            let Some(spread) = figure.spread() else {
                continue;
            };
            let metric = names.of(figure.metric, &self.path)?;
            let unit = names.of(figure.unit, &self.path)?;
            block_of(&mut blocks, &figure.case).results.push(Measured {
                case: figure.case,
                variant: figure.variant,
                metric,
                unit,
                spread,
                working_set_bytes: figure.working_set_bytes,
                pinned: figure.pinned,
            });
        }
        for ratio in self.ratios {
            let Some(spread) = ratio.runs.spread() else {
                continue;
            };
            let metric = names.of(ratio.metric, &self.path)?;
            block_of(&mut blocks, &ratio.case).ratios.push(Ratio {
                case: ratio.case,
                numerator: ratio.numerator,
                denominator: ratio.denominator,
                metric,
                spread,
                aim: None,
            });
        }
        if let (Some(last), false) = (blocks.last_mut(), self.claims.is_empty()) {
            last.claims = self.claims;
        }
        Ok(Report {
            suite: names.of(self.suite, &self.path)?,
            command: self.command,
            built: Built {
                git: self.git,
                profile: self.profile,
            },
            machine: self.machine,
            corpora: self.corpora,
            blocks,
            missing: Vec::new(),
            stopped: self.stopped,
            headline: None,
        })
    }
}

/// The block of `case`, which is `CORPUS/ALGORITHM/CASE`.
fn block_of<'a>(blocks: &'a mut Vec<Block>, case: &str) -> &'a mut Block {
    let title = case.rsplit_once('/').map_or(case, |(title, _)| title);
    let index = blocks.iter().rposition(|block| block.title == title);
    let index = index.unwrap_or_else(|| {
        blocks.push(Block {
            title: title.to_owned(),
            ..Block::default()
        });
        blocks.len() - 1
    });
    &mut blocks[index]
}

/// Names that a report keeps for ever, each once.
struct Names(Vec<&'static str>);

impl Names {
    fn of(&mut self, name: String, path: &Path) -> Result<&'static str> {
        if let Some(known) = self.0.iter().find(|known| **known == name) {
            return Ok(known);
        }
        if self.0.len() == NAMES_MAX {
            let text = format!("more than {NAMES_MAX} names of metrics and units");
            return Err(refused(path, &text));
        }
        self.0.push(Box::leak(name.into_boxed_str()));
        Ok(self.0[self.0.len() - 1])
    }
}

/// The JSON of a report in `path`.
///
/// # Errors
/// [`Error::Usage`] with one line if the file cannot be read, is no file, is too large or has another form.
pub(crate) fn load<T: DeserializeOwned>(path: &Path) -> Result<T> {
    // To open a FIFO would wait for a writer.
    let found = std::fs::metadata(path).map_err(|error| refused(path, &error.to_string()))?;
    if !found.is_file() {
        return Err(refused(path, "no file; name what --json wrote"));
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| refused(path, &error.to_string()))?;
    let read = file.take(FILE_MAX_BYTES + 1).read_to_end(&mut text);
    let length = read.map_err(|error| refused(path, &error.to_string()))?;
    if length as u64 > FILE_MAX_BYTES {
        return Err(refused(
            path,
            "longer than any report; name what --json wrote",
        ));
    }
    serde_json::from_slice(&text).map_err(|error| {
        // What the file says itself is quoted in it, and may have lines.
        let why = error.to_string().replace(char::is_control, " ");
        refused(path, &format!("{why}; name what --json wrote"))
    })
}

fn refused(path: &Path, why: &str) -> Error {
    Error::Usage(format!("report {}: {why}", path.display()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A report as suite store writes it, with a figure for each median.
    pub(crate) fn document(medians: &[f64]) -> Value {
        let figure = |(index, median): (usize, &f64)| {
            json!({"case": format!("text/lz4/case {index}"), "variant": "uzram", "metric": "time_per_page",
                   "unit": "ns", "min": median * 0.95, "median": median, "max": median * 1.05, "runs": 7,
                   "working_set_bytes": 1, "pinned": null})
        };
        json!({
            "schema": 1, "suite": "store", "command": "uzram-bench store", "git": "abc", "profile": "release",
            "machine": {"cpus": 2, "model": "a CPU", "kernel": "6.1", "memory_bytes": 1 << 30,
                        "wakeup_same_cpu_ns": 4000, "wakeup_cross_cpu_ns": null},
            "corpora": [{"name": "text", "pages": 1000, "same_filled_pages": 3}],
            "results": medians.iter().enumerate().map(figure).collect::<Vec<_>>(),
            "ratios": [{"case": "text/lz4/case 0", "numerator": "uzram", "denominator": "memcpy",
                        "metric": "time_per_page", "min": 1.0, "median": 2.0, "max": 3.0, "runs": 7}],
            "claims": [{"basis": "aim", "case": "c", "claim": "at most 2", "measured": "2.0", "standing": "held",
                        "why": ""}],
            "stopped": null,
        })
    }

    pub(crate) fn saved(document: &Value) -> Result<Saved> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), document.to_string()).unwrap();
        Saved::load(file.path())
    }

    #[test]
    fn a_report_comes_back_as_it_was() {
        let document = document(&[100.0, 50.0]);
        let report = saved(&document).unwrap().into_report().unwrap();
        assert_eq!((report.suite, report.blocks.len()), ("store", 1));
        let folder = tempfile::tempdir().unwrap();
        let again = folder.path().join("again.json");
        crate::report::write_json(&report, &again).unwrap();
        let again: Value = load(&again).unwrap();
        assert_eq!(again, document);
    }

    #[test]
    fn a_figure_that_is_no_number_is_left_out() {
        let mut document = document(&[100.0, 50.0]);
        document["results"][0]["max"] = Value::Null;
        document["results"][1]["min"] = json!(60.0);
        let report = saved(&document).unwrap().into_report().unwrap();
        assert!(report.blocks[0].results.is_empty());
    }

    #[test]
    fn what_is_no_report_is_refused_in_one_line() {
        let whole = document(&[100.0]);
        let mut schema = whole.clone();
        schema["schema"] = json!(2);
        let mut names = document(&vec![1.0; NAMES_MAX + 1]);
        for (index, figure) in names["results"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .enumerate()
        {
            figure["metric"] = json!(format!("m{index}"));
        }
        let mut metric = whole.clone();
        metric["results"][0]["metric"] = json!(["a\nb"]);
        let mut nothing = whole.clone();
        nothing.as_object_mut().unwrap().remove("machine");
        for (document, said) in [
            (json!([]), "invalid length 0"),
            (json!("a\nb"), "invalid type"),
            (schema, "schema 2: this uzram-bench reads 1"),
            (names, "more than 1000 names"),
            (metric, "invalid type: sequence"),
            (nothing, "missing field `machine`"),
        ] {
            let error = saved(&document).and_then(Saved::into_report).unwrap_err();
            assert_eq!(error.exit_status(), 2);
            let text = error.to_string();
            assert!(text.contains(said) && !text.contains('\n'), "{text}");
        }
        let text = load::<Value>(Path::new("/dev/zero"))
            .unwrap_err()
            .to_string();
        assert_eq!(text, "report /dev/zero: no file; name what --json wrote");
        let text = load::<Value>(Path::new("/none.json"))
            .unwrap_err()
            .to_string();
        assert!(text.starts_with("report /none.json: "), "{text}");
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(FILE_MAX_BYTES + 1).unwrap();
        let text = load::<Value>(file.path()).unwrap_err().to_string();
        assert!(text.contains("longer than any report"), "{text}");
        let deep = "[".repeat(100_000);
        std::fs::write(file.path(), deep).unwrap();
        let text = load::<Value>(file.path()).unwrap_err().to_string();
        assert!(text.contains("recursion limit"), "{text}");
    }
}
