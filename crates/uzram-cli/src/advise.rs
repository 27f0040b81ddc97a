//! `uzram advise`: a sample of somebody's pages, and which compression suits them.

use std::path::Path;

use crate::args::AdviseArgs;
use uzram_bench::advise::{self, Options, PAGES_MIN, Sample};
use uzram_bench::cli::quoted;

use crate::capture::Source;
use crate::failure::{Failure, Result};
use crate::output::warn;

/// Size of a page, in bytes.
const PAGE_BYTES: u64 = 4096;
/// Pages that are sampled: 16 MiB.
const PAGES_MAX: u64 = 4096;
/// The same with `--quick`.
const PAGES_MAX_QUICK: u64 = 1024;

/// Runs the command.
pub fn run(args: &AdviseArgs) -> Result {
    let source = source(args)?;
    let pages_max = if args.quick {
        PAGES_MAX_QUICK
    } else {
        PAGES_MAX
    };
    let mut sample = sample(&source, pages_max)?;
    sample.training = training(args);
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
        (Some(pid), _, _) => Source::of_process(pid),
        (None, Some(path), _) => Source::of_file(path),
        (None, None, Some(path)) => whole_pages(path).and_then(|()| Source::of_file(path)),
        (None, None, None) => Err(Failure::Usage(
            "name a source: --pid N, --file P or --corpus F".into(),
        )),
    }
}

/// A corpus has no half pages; a file that has may be meant as `--file`.
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
        training: Vec::new(),
    })
}

/// What to type for a dictionary from the same source.
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
