//! `uzram advise`: takes a sample of pages and says which compression suits them.

use std::path::Path;

use uzram_advise::advise::{self, Options, PAGES_MIN, Sample};
use uzram_advise::capture::Source;
use uzram_advise::command::quoted;

use crate::args::AdviseArgs;
use crate::capture::warn_of_doubts;
use crate::failure::{Failure, Result};
use crate::output::warn;

/// Size of a page, in bytes.
const PAGE_BYTES: u64 = 4096;
/// Pages that are sampled: 16 MiB.
const PAGES_MAX: u64 = 4096;
/// The same with `--quick`.
const PAGES_MAX_QUICK: u64 = 1024;

/// A corpus is a sample of something larger: the smallest disk that is proposed for it, in bytes.
const DISK_OF_A_CORPUS_BYTES: u64 = 1 << 30;
/// A disk is proposed in multiples of this many bytes.
const DISK_STEP_BYTES: u64 = 1 << 20;

/// Runs the command.
pub fn run(args: &AdviseArgs) -> Result {
    let source = source(args)?;
    warn_of_doubts(&source);
    let pages_max = if args.quick {
        PAGES_MAX_QUICK
    } else {
        PAGES_MAX
    };
    let mut sample = sample(&source, pages_max)?;
    sample.training = training(args);
    if args.corpus.is_some() {
        sample.disk_bytes = sample.disk_bytes.max(DISK_OF_A_CORPUS_BYTES);
    }
    let options = Options {
        budget: args.budget.unwrap_or(advise::BUDGET),
        quick: args.quick,
        json: args.json,
        html: args.html.clone(),
    };
    Ok(advise::run(&sample, &options)?)
}

fn source(args: &AdviseArgs) -> Result<Source> {
    match (args.pid, &args.file, &args.corpus) {
        (Some(pid), _, _) => Ok(Source::of_process(pid)?),
        (None, Some(path), _) => Ok(Source::of_file(path)?),
        (None, None, Some(path)) => {
            whole_pages(path)?;
            Ok(Source::of_file(path)?)
        }
        (None, None, None) => Err(Failure::Usage(
            "name a source: --pid N, --file P or --corpus F".into(),
        )),
    }
}

/// A corpus is in whole pages. A file that is not may be meant as `--file`.
fn whole_pages(path: &Path) -> Result {
    let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    match bytes % PAGE_BYTES {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!(
            "corpus {}: {bytes} bytes; must be a multiple of {PAGE_BYTES}; --file takes any file",
            path.display()
        ))),
    }
}

fn sample(source: &Source, pages_max: u64) -> Result<Sample> {
    let runs = source.plan(pages_max)?;
    let pages_total = source.pages();
    if pages_total < PAGES_MIN as u64 {
        return Err(Failure::Failed(format!(
            "{}: too little to advise on: {pages_total} of at least {PAGES_MIN} pages of 4 KiB",
            source.name
        )));
    }
    let mut pages = Vec::new();
    let counts = source.copy(&runs, |run| {
        pages.extend_from_slice(run);
        Ok(())
    })?;
    if counts.unreadable > 0 {
        warn(&format!(
            "note: {} pages could not be read and were left out",
            counts.unreadable
        ));
    }
    Ok(Sample {
        name: source.name.clone(),
        pages,
        pages_total,
        disk_bytes: disk_bytes(pages_total),
        training: Vec::new(),
    })
}

/// A disk that holds as many pages.
fn disk_bytes(pages: u64) -> u64 {
    let bytes = pages.saturating_mul(PAGE_BYTES);
    bytes.div_ceil(DISK_STEP_BYTES) * DISK_STEP_BYTES
}

/// The command that makes a dictionary from the same source.
fn training(args: &AdviseArgs) -> Vec<String> {
    let train = |corpus: &str| format!("uzram train --out {} {corpus}", advise::DICTIONARY);
    let path = |path: &Path| quoted(&path.to_string_lossy());
    let source = match (args.pid, &args.file, &args.corpus) {
        (_, _, Some(corpus)) => return vec![train(&path(corpus))],
        (Some(pid), _, _) => format!("--pid {pid}"),
        (None, Some(file), _) => format!("--file {}", path(file)),
        (None, None, None) => return Vec::new(),
    };
    vec![
        format!("uzram capture {source} --out pages.pages"),
        train("pages.pages"),
    ]
}
