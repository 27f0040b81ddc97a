//! Rows of jobs on sides that take turns, and the figures of their cells: what the suites `jobs`, `streams`
//! and `locks` share.
//!
//! A row is a list of iozone's or fio's tests that run one after another on what the first began with. A side
//! has its turn with all of them; what a side did counts once all sides had their turn.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::figures::{Cell, Metric};
use crate::job::target::Target;
use crate::job::{self, Job, Outcome, fio_program};
use crate::progress::Progress;
use crate::report::{Block, Measured, Ratio};
use crate::sample::Series;
use crate::side::Side;
use crate::suite::Options;
use crate::suite::turns::{Runs, Turns};

/// Jobs that run one after another.
#[derive(Debug)]
pub(crate) struct Row {
    /// Writes what the jobs read, unmeasured, on an empty device.
    pub(crate) fill: Option<Job>,
    /// The jobs, each with the name of its case.
    pub(crate) jobs: Vec<(String, Job)>,
    /// The case of all jobs together, if they are one.
    pub(crate) all: Option<String>,
}

impl Row {
    /// How large a device must be, in bytes.
    pub(crate) fn device_bytes(&self) -> u64 {
        let jobs = self.jobs.iter();
        jobs.map(|(_, job)| job.device_bytes()).max().unwrap_or(0)
    }
}

/// A target of jobs.
pub(crate) struct Place {
    pub(crate) target: Box<dyn Target>,
    /// The path at which fio itself can reach it.
    pub(crate) path: Option<PathBuf>,
    /// Whether fio itself does the jobs.
    pub(crate) is_fio: bool,
}

impl Side<Place> {
    /// A side that we drive.
    pub(crate) fn on(target: impl Target + 'static, path: Option<PathBuf>) -> Side<Place> {
        let name = target.name().to_owned();
        let target = Box::new(target);
        let place = Place {
            target,
            path,
            is_fio: false,
        };
        Side::new(name, place)
    }

    /// Where fio itself reaches it, if fio is the driver.
    fn fio_path(&self) -> Option<&Path> {
        let place = &self.driven;
        place.path.as_deref().filter(|_| place.is_fio)
    }
}

/// The figures of all cells so far.
#[derive(Default)]
pub(crate) struct Cells(Vec<Found>);

/// One side in one case, an outcome a run.
struct Found {
    case: String,
    variant: String,
    working_set_bytes: u64,
    outcomes: Vec<Outcome>,
}

/// Measures `rows`, all of them in each run.
pub(crate) fn measure(
    rows: &[Row],
    (what, runs, warms_up): (&str, Runs, bool),
    sides: &mut [Side<Place>],
    options: &Options,
    cells: &mut Cells,
    progress: &mut Progress,
) -> Result<()> {
    let turns = Turns {
        what,
        sides: sides.len(),
        parts: rows.len(),
        runs,
        warms_up,
    };
    let mut pending = Vec::new();
    let done = turns.take(options, progress, |turn| {
        // One row is enough to warm up.
        if turn.is_warm_up && turn.part > 0 {
            return Ok([]);
        }
        let outcomes = run(&rows[turn.part], &mut sides[turn.side], options)?;
        if !turn.is_warm_up {
            pending.push((turn.side, outcomes));
        }
        if pending.len() == turns.sides {
            // In the report they stand in the sides' order, not in that of their turns.
            pending.sort_by_key(|(side, _)| *side);
            for (side, outcomes) in pending.drain(..) {
                cells.add_row(&rows[turn.part], &sides[side].name, outcomes);
            }
        }
        Ok([])
    });
    done.map(drop)
}

/// All jobs of a row on a side, from an empty device on.
fn run(row: &Row, side: &mut Side<Place>, options: &Options) -> Result<Vec<Outcome>> {
    let stop = &options.stop;
    if let Some(fill) = &row.fill {
        job::run(fill, &mut *side.driven.target, stop)?;
    }
    let mut outcomes = Vec::new();
    for (_, job) in &row.jobs {
        stop.check()?;
        outcomes.push(match side.fio_path() {
            Some(path) => fio_program::run(job, path, stop)?,
            None => job::run(job, &mut *side.driven.target, stop)?,
        });
    }
    side.driven.target.end()?;
    Ok(outcomes)
}

impl Cells {
    fn add_row(&mut self, row: &Row, variant: &str, outcomes: Vec<Outcome>) {
        if let Some(case) = &row.all {
            let mut all = Outcome::default();
            outcomes.iter().for_each(|outcome| all.then(outcome));
            self.add(case, variant, row.device_bytes(), all);
        }
        for ((case, job), outcome) in row.jobs.iter().zip(outcomes) {
            self.add(case, variant, job.device_bytes(), outcome);
        }
    }

    pub(crate) fn add(&mut self, case: &str, variant: &str, bytes: u64, outcome: Outcome) {
        let is_it = |found: &&mut Found| found.case == case && found.variant == variant;
        match self.0.iter_mut().find(is_it) {
            Some(found) => found.outcomes.push(outcome),
            None => self.0.push(Found {
                case: case.to_owned(),
                variant: variant.to_owned(),
                working_set_bytes: bytes,
                outcomes: vec![outcome],
            }),
        }
    }

    /// Every figure of the cases that are `wanted`.
    pub(crate) fn results(&self, wanted: impl Fn(&str) -> bool) -> Vec<Measured> {
        let ours = self.0.iter().filter(|found| wanted(&found.case));
        let figures = ours.flat_map(|found| FIGURES.iter().map(move |figure| (found, figure)));
        let rows = figures.filter_map(|(found, (metric, of))| {
            let cell = Cell::new(found.case.as_str(), *metric, found.working_set_bytes);
            cell.row(&found.variant, &found.series(*of)?)
        });
        rows.collect()
    }

    /// The figures of a metric, a run each; `None` where there are none.
    pub(crate) fn series(&self, case: &str, variant: &str, metric: Metric) -> Option<Series> {
        let is_it = |found: &&Found| found.case == case && found.variant == variant;
        let found = self.0.iter().find(is_it)?;
        let (_, of) = FIGURES.iter().find(|(known, _)| *known == metric)?;
        found.series(*of)
    }

    /// The variants that have figures of a case.
    pub(crate) fn variants(&self, case: &str) -> Vec<&str> {
        let found = self.0.iter().filter(|found| found.case == case);
        found.map(|found| found.variant.as_str()).collect()
    }

    /// Adds the ratios of throughput, run by run, of those two variants for which `pairs` says so.
    pub(crate) fn compare_all(
        &self,
        case: &str,
        pairs: impl Fn(&str, &str) -> bool,
        block: &mut Block,
    ) {
        let of = |variant: &str| self.series(case, variant, THROUGHPUT);
        let variants = self.variants(case);
        for top in &variants {
            for bottom in variants.iter().filter(|bottom| pairs(top, bottom)) {
                let ratio = of(top).zip(of(bottom)).and_then(|(ours, theirs)| {
                    Ratio::of(case, THROUGHPUT.0, (top, &ours), (bottom, &theirs))
                });
                block.ratios.extend(ratio);
            }
        }
    }
}

impl Found {
    fn series(&self, of: fn(&Outcome) -> Option<f64>) -> Option<Series> {
        let values: Option<Vec<f64>> = self.outcomes.iter().map(of).collect();
        values.map(Series::from)
    }
}

/// MiB a second of all workers.
pub(crate) const THROUGHPUT: Metric = ("throughput", "MiB/s");
pub(crate) const IOPS: Metric = ("iops", "IOPS");
pub(crate) const USER: Metric = ("cpu_user", "ms");
pub(crate) const SYSTEM: Metric = ("cpu_system", "ms");
pub(crate) const CPU: Metric = ("cpu_time", "ms");
pub(crate) const WORST: Metric = ("worst_record", "ms");
pub(crate) const SLOW_PATH: Metric = ("slow_path", "of 1000 writes");
pub(crate) const SLEEPS: Metric = ("sleeps_for_a_stream", "of 1000 writes");
pub(crate) const COMPRESSED: Metric = ("compressed", "MiB");

const MEBIBYTE: f64 = 1_048_576.0;

/// A kind of figure, and where it comes from.
type Figure = (Metric, fn(&Outcome) -> Option<f64>);

const FIGURES: [Figure; 9] = [
    (THROUGHPUT, |done| Some(done.bytes_per_second() / MEBIBYTE)),
    (IOPS, |done| Some(done.operations_per_second())),
    (USER, |done| Some(done.cpu.user.as_secs_f64() * 1e3)),
    (SYSTEM, |done| Some(done.cpu.system.as_secs_f64() * 1e3)),
    (CPU, |done| {
        Some((done.cpu.user + done.cpu.system).as_secs_f64() * 1e3)
    }),
    (WORST, |done| Some(done.worst_ns as f64 / 1e6)),
    (SLOW_PATH, |done| {
        done.of_1000_written_pages(done.counts.slow_path_writes)
    }),
    (SLEEPS, |done| {
        done.of_1000_written_pages(done.counts.sleeps)
    }),
    (COMPRESSED, |done| {
        let bytes = done.counts.compressed_bytes?;
        Some(bytes as f64 / MEBIBYTE)
    }),
];
