//! `uzram advise`: a sample of somebody's pages, and which compression suits them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use uzram_bench::advise::{self, Options, PAGES_MIN, Sample};

use crate::capture::Source;
use crate::failure::{Failure, Result};
use crate::output::warn;

/// Size of a page, in bytes.
const PAGE_BYTES: u64 = 4096;
/// Pages that are sampled: 16 MiB.
const PAGES_MAX: u64 = 4096;
/// The same with `--quick`.
const PAGES_MAX_QUICK: u64 = 1024;

/// Find out which codec, level, unit and pool suit the pages of a process or a file
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  uzram advise --pid 1234
  uzram advise --file disk.img --budget 100us
  uzram advise --corpus heap.pages --html advice.html

It puts a sample of the pages (16 MiB; of a process, memory of its own that it has touched, while it
goes on running; the end of a file is padded with zeroes to a page) through stores made in some 50 ways, and takes about 20 seconds. Half of the pages
is for choosing, the other half is held back; what is shown was measured on pages held back.

  saved   memory saved, pool and tables counted, same-filled pages included
  ratio   the same without same-filled pages, which any choice keeps for nothing
  in      time to write a 4 KiB page at a random place; with larger units that takes reading and
          compressing the whole unit
  out     time to read one; both are the least of five runs, as other processes only add to them

Recommended is the densest choice that brings a page in and out again within the budget, or one within
1 % of memory of that and at least 10 % cheaper; never one that loses on the pages held back to
another that costs no more.")]
#[command(group = clap::ArgGroup::new("source").required(true).args(["pid", "file", "corpus"]))]
pub struct Args {
    /// Sample memory of this process
    #[arg(long, value_name = "N")]
    pub pid: Option<u32>,
    /// Sample this file
    #[arg(long, value_name = "P")]
    pub file: Option<PathBuf>,
    /// Sample this file of whole pages, as `uzram capture` makes them
    #[arg(long, value_name = "F")]
    pub corpus: Option<PathBuf>,
    /// What a page may cost, in and out together [default: 30us, a third of an SSD's read]
    #[arg(long, value_name = "TIME", value_parser = advise::parse_budget)]
    pub budget: Option<Duration>,
    /// Fewer choices on fewer pages: a first look in a few seconds
    #[arg(long)]
    pub quick: bool,
    /// As JSON: every choice, numbers raw
    #[arg(long)]
    pub json: bool,
    /// Also write a page with a chart to FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result {
    let source = source(args)?;
    let pages_max = if args.quick {
        PAGES_MAX_QUICK
    } else {
        PAGES_MAX
    };
    let sample = sample(&source, pages_max)?;
    let options = Options {
        budget: args.budget.unwrap_or(advise::BUDGET),
        quick: args.quick,
        json: args.json,
        html: args.html.clone(),
    };
    Ok(advise::run(&sample, &options)?)
}

fn source(args: &Args) -> Result<Source> {
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
    })
}
