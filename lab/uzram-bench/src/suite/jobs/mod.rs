//! Suite `jobs`: any job of iozone's or fio's, anywhere; without one, the published table of zram's compression
//! interface.
//!
//! All runs go over all rows of a plan, sides take turns within a row, and ratios are taken run by run; a row begins
//! on an empty device. Sizes are those published over `--scale`, never below what a clock can tell apart.

mod interface;
mod own;
mod plan;
mod sides;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::job::buffers::Pages;
use crate::job::{Job, fio, iozone};
use crate::peers::Peer;
use crate::progress::Progress;
use crate::report::Findings;
use crate::suite::rows::{self, Cells};
use crate::suite::turns::Runs;
use crate::suite::{Options, Suite, Work};
use interface::Sizes;
use plan::{Plan, row};
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

/// The suite.
pub(crate) const SUITE: Suite<JobsArgs> = Suite {
    name: "jobs",
    peers: &Peer::JOBS,
    algorithms: &ALGORITHMS,
    corpus: Some(CORPUS),
    work: Work::Published,
    plan: |options, args| {
        let (plans, places) = plan(options, args)?;
        Ok(Box::new(move |options, findings| {
            run(options, &plans, &places, findings)
        }))
    },
};

/// Parses and checks the arguments, and claims the places.
///
/// # Errors
/// [`Error::Usage`], before anything is written.
fn plan(options: &Options, args: &JobsArgs) -> Result<(Vec<Plan>, Vec<On>)> {
    for (what, count) in [
        ("on", args.on.len()),
        ("fio and iozone", args.fio.len() + args.iozone.len()),
    ] {
        if count > OWN_MAX {
            let text = format!("{what}: {count} times; at most {OWN_MAX}");
            return Err(Error::Usage(text));
        }
    }
    let mut plans = Vec::new();
    for algorithm in &options.algorithms {
        if args.fio.is_empty() && args.iozone.is_empty() {
            let sizes = Sizes::new(args.scale, options.quick);
            plans.push(interface::plan(algorithm, &sizes)?);
        }
        own_plans(options, args, algorithm, &mut plans)?;
    }
    let places = On::parse_all(&args.on, &args.destroy)?;
    for plan in &plans {
        for place in &places {
            place.check_size(plan.device_bytes())?;
        }
    }
    Ok((plans, places))
}

/// Somebody's own jobs, those that write pages for each corpus.
fn own_plans(
    options: &Options,
    args: &JobsArgs,
    algorithm: &str,
    plans: &mut Vec<Plan>,
) -> Result<()> {
    let plan = |words: String, front: &str, jobs: Vec<Job>| {
        let jobs = jobs.into_iter();
        let jobs = jobs.map(|job| (format!("{front}/{}", job.name), job));
        Plan {
            name: words,
            algorithm: algorithm.to_owned(),
            rows: vec![row(jobs.collect())],
            grid: None,
        }
    };
    for (words, nth) in args.iozone.iter().zip(1..) {
        for corpus in &options.corpora {
            let pages = Arc::new(Pages::of(std::slice::from_ref(corpus))?);
            let front = format!("{}/{algorithm}/iozone-{nth}", corpus.name);
            let jobs = iozone::parse(words, &pages)?;
            plans.push(plan(format!("iozone {words}"), &front, jobs));
        }
    }
    for (words, nth) in args.fio.iter().zip(1..) {
        let front = format!("fio-{nth}/{algorithm}");
        let jobs = vec![fio::parse(words)?];
        plans.push(plan(format!("fio {words}"), &front, jobs));
    }
    Ok(())
}

/// Runs the plans, each on all places.
fn run(options: &Options, plans: &[Plan], places: &[On], findings: &mut Findings) -> Result<()> {
    let runs = options.schedule.runs_min.min(RUNS_MAX);
    let mut progress = Progress::new(plans.len());
    for plan in plans {
        let mut sides = sides::open(options, places, plan, findings)?;
        let mut cells = Cells::default();
        let turns = (plan.name.as_str(), Runs::Exactly(runs), true);
        let measured = rows::measure(
            &plan.rows,
            turns,
            &mut sides,
            options,
            &mut cells,
            &mut progress,
        );
        match &plan.grid {
            Some(grid) => findings.blocks.extend(grid.blocks(&cells)),
            None => findings.blocks.push(own::block(plan, &cells)),
        }
        measured?;
    }
    Ok(())
}
