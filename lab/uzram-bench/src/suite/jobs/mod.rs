//! Suite `jobs`: the published tables of iozone and fio over zram, and any other job of theirs.
//!
//! A grid is a published table: rows of jobs, a case each, on every side. All runs go over all rows,
//! sides take turns within a row, and ratios are taken run by run; a row begins on an empty device.
//! Sizes are those published over `--scale`, never below what a clock can tell apart.

mod grid;
mod layout;
mod measure;
mod sides;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::job::buffers::Pages;
use crate::job::{fio, iozone};
use crate::peers::Peer;
use crate::progress::Progress;
use crate::report::Findings;
use crate::suite::rows::{self, Cells};
use crate::suite::turns::Runs;
use crate::suite::{Options, Suite, Work};
use grid::{Grid, Sizes};
use sides::On;

/// The algorithm where none is named: the published one.
pub(crate) const ALGORITHMS: [&str; 1] = ["lzo"];
/// The synthetic corpus where none is named: a mix of data.
pub(crate) const CORPUS: &str = "synthetic-mixed";
/// Runs of a table, which has some hundred cases.
const RUNS_MAX: usize = 5;
/// Jobs of somebody's own, and places to run them, at most.
const OWN_MAX: usize = 16;

/// The further options of suite `jobs`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct JobsArgs {
    /// The published sizes are divided by N, 1 to 1024
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub scale: u32,
    /// Instead of the tables: jobs in iozone's words, as '-t 4 -r 16K -s 200M -I -+Z'; repeatable
    #[arg(long = "iozone", value_name = "WORDS", allow_hyphen_values = true)]
    pub iozone: Vec<String>,
    /// Instead of the tables: a job in fio's words, as 'rw=randrw bs=32k size=10m numjobs=4'; repeatable
    #[arg(long = "fio", value_name = "WORDS", allow_hyphen_values = true)]
    pub fio: Vec<String>,
    /// Where: engine (in this process), nbd (a server of its own), a block device, a file, or
    /// nbd+unix:///EXPORT?socket=PATH; repeatable. fio itself does fio's jobs too, where it can
    /// [default: engine]
    #[arg(long = "on", value_name = "PLACE")]
    pub on: Vec<String>,
    /// A place of --on whose data may be lost; without it nothing that holds data is touched
    #[arg(long, value_name = "PLACE")]
    pub destroy: Vec<PathBuf>,
}

/// The jobs and the places to run them on, all of them checked.
struct Plan {
    grids: Vec<Grid>,
    places: Vec<On>,
}

/// The suite.
pub(crate) const SUITE: Suite<JobsArgs> = Suite {
    name: "jobs",
    peers: &Peer::JOBS,
    algorithms: &ALGORITHMS,
    corpus: Some(CORPUS),
    work: Work::Published,
    plan: |options, args| {
        let plan = plan(options, args)?;
        Ok(Box::new(move |options, findings| {
            run(options, &plan, findings)
        }))
    },
};

/// Parses and checks the arguments, and claims the places.
///
/// # Errors
/// [`Error::Usage`], before anything is written.
fn plan(options: &Options, args: &JobsArgs) -> Result<Plan> {
    for (what, count) in [
        ("on", args.on.len()),
        ("fio and iozone", args.fio.len() + args.iozone.len()),
    ] {
        if count > OWN_MAX {
            let text = format!("{what}: {count} times; at most {OWN_MAX}");
            return Err(Error::Usage(text));
        }
    }
    let grids = if args.fio.is_empty() && args.iozone.is_empty() {
        published_grids(options, args.scale)?
    } else {
        own_grids(options, args)?
    };
    let places = On::parse_all(&args.on, &args.destroy)?;
    for grid in &grids {
        for place in &places {
            place.check_size(grid)?;
        }
    }
    Ok(Plan { grids, places })
}

/// Runs the plan: a block for each grid.
fn run(options: &Options, plan: &Plan, findings: &mut Findings) -> Result<()> {
    let runs = options.schedule.runs_min.min(RUNS_MAX);
    let mut progress = Progress::new(plan.grids.len());
    for grid in &plan.grids {
        let mut sides = sides::open(options, &plan.places, grid, findings)?;
        let mut cells = Cells::new(&measure::FIGURES);
        let turns = (grid.front.as_str(), Runs::Exactly(runs), true);
        let measured = rows::measure(
            &grid.rows,
            turns,
            &mut sides,
            options,
            &mut cells,
            &mut progress,
        );
        findings.blocks.push(layout::block(grid, &sides, &cells));
        measured?;
    }
    Ok(())
}

/// The published tables, for each algorithm and, where pages are written, for each corpus.
fn published_grids(options: &Options, scale: u32) -> Result<Vec<Grid>> {
    let sizes = Sizes::new(scale, options.quick);
    let mut grids = Vec::new();
    for algorithm in &options.algorithms {
        for corpus in &options.corpora {
            let pages = Arc::new(Pages::of(std::slice::from_ref(corpus))?);
            grids.push(grid::streams(&corpus.name, algorithm, &pages, &sizes)?);
            grids.push(grid::locks_iozone(&corpus.name, algorithm, &pages, &sizes)?);
        }
        grids.push(grid::locks_fio(algorithm, &sizes)?);
        grids.push(grid::api_fio(algorithm, &sizes)?);
    }
    Ok(grids)
}

/// Somebody's own jobs, for each algorithm and, where pages are written, for each corpus.
fn own_grids(options: &Options, args: &JobsArgs) -> Result<Vec<Grid>> {
    let mut grids = Vec::new();
    for algorithm in &options.algorithms {
        for (nth, words) in args.iozone.iter().enumerate() {
            for corpus in &options.corpora {
                let pages = Arc::new(Pages::of(std::slice::from_ref(corpus))?);
                let jobs = iozone::parse(words, &pages)?;
                let front = format!("{}/{algorithm}/iozone-{}", corpus.name, nth + 1);
                grids.push(grid::own(
                    &format!("iozone {words}"),
                    &front,
                    algorithm,
                    jobs,
                ));
            }
        }
        for (nth, words) in args.fio.iter().enumerate() {
            let front = format!("fio-{}/{algorithm}", nth + 1);
            let jobs = vec![fio::parse(words)?];
            grids.push(grid::own(&format!("fio {words}"), &front, algorithm, jobs));
        }
    }
    Ok(grids)
}
