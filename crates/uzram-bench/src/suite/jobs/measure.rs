//! Runs of a grid, and the figures of its cells.

use super::grid::{Grid, Row};
use super::sides::Side;
use crate::error::Result;
use crate::job::{self, Job, Outcome, fio_program};
use crate::progress::Progress;
use crate::sample::Series;
use crate::suite::Options;

/// Bytes of the pages that a store compresses.
const PAGE_BYTES: u64 = 4096;
const MEBIBYTE: f64 = 1_048_576.0;

/// A figure's name and unit.
pub(super) type Metric = (&'static str, &'static str);

pub(super) const THROUGHPUT: Metric = ("throughput", "MiB/s");
pub(super) const IOPS: Metric = ("iops", "IOPS");
pub(super) const USER: Metric = ("cpu_user", "s");
pub(super) const SYSTEM: Metric = ("cpu_system", "s");
pub(super) const WORST: Metric = ("worst_latency", "us");
pub(super) const SLOW: Metric = ("slow_path_share", "% of writes");
pub(super) const COMPRESSED: Metric = ("compressed", "MiB");
pub(super) const METRICS: [Metric; 7] = [THROUGHPUT, IOPS, USER, SYSTEM, WORST, SLOW, COMPRESSED];

/// The figures of all cells: for each row and job, each side, each metric.
pub(super) struct Cells {
    rows: Vec<Vec<Vec<[Vec<f64>; METRICS.len()]>>>,
}

impl Cells {
    pub(super) fn new(grid: &Grid, sides: &[Side]) -> Cells {
        let empty = || vec![<[Vec<f64>; METRICS.len()]>::default(); sides.len()];
        let rows = grid.rows.iter();
        Cells {
            rows: rows
                .map(|row| row.jobs.iter().map(|_| empty()).collect())
                .collect(),
        }
    }

    /// What a side did of a metric, run by run; empty where there is none.
    pub(super) fn series(&self, (row, job): (usize, usize), side: usize, metric: Metric) -> Series {
        let at = METRICS.iter().position(|known| *known == metric);
        let values = at.map(|at| self.rows[row][job][side][at].clone());
        values.unwrap_or_default().into()
    }

    fn add(&mut self, (row, job): (usize, usize), side: usize, figures: Figures) {
        let series = &mut self.rows[row][job][side];
        for (series, figure) in series.iter_mut().zip(figures) {
            series.extend(figure);
        }
    }
}

/// A figure for each metric, where there is one.
type Figures = [Option<f64>; METRICS.len()];

/// A grid under way.
pub(super) struct Bench<'a> {
    pub(super) options: &'a Options,
    pub(super) grid: &'a Grid,
    pub(super) sides: &'a mut [Side],
    pub(super) progress: &'a mut Progress,
}

impl Bench<'_> {
    /// A warm-up of one row, then `runs` of all rows, the sides in turn within each.
    pub(super) fn measure(&mut self, runs: usize, cells: &mut Cells) -> Result<()> {
        let grid = self.grid;
        if let Some(row) = grid.rows.first() {
            for side in 0..self.sides.len() {
                self.row(row, side, "warm-up")?;
            }
        }
        for _ in &grid.rows {
            self.progress.step();
        }
        for run in 0..runs {
            for (at, row) in grid.rows.iter().enumerate() {
                for position in 0..self.sides.len() {
                    // Another side starts each run.
                    let side = (position + run) % self.sides.len();
                    let what = format!("{}, run {}", self.grid.front, run + 1);
                    for (job, outcome) in self.row(row, side, &what)?.into_iter().enumerate() {
                        cells.add((at, job), side, figures(&row.jobs[job], &outcome));
                    }
                }
                self.progress.step();
            }
        }
        Ok(())
    }

    /// All jobs of a row on a side, from an empty device on.
    fn row(&mut self, row: &Row, side: usize, what: &str) -> Result<Vec<Outcome>> {
        let stop = &self.options.stop;
        let side = &mut self.sides[side];
        if let Some(fill) = &row.fill {
            job::run(fill, &mut *side.target, stop)?;
        }
        let mut outcomes = Vec::new();
        for job in &row.jobs {
            stop.check()?;
            let shown = format!("{what}: {} {} on {}", job.name, row.label, side.variant);
            self.progress.at(&shown, 0.0);
            outcomes.push(match side.fio_path() {
                Some(path) => fio_program::run(job, path, stop)?,
                None => job::run(job, &mut *side.target, stop)?,
            });
        }
        Ok(outcomes)
    }
}

fn figures(job: &Job, outcome: &Outcome) -> Figures {
    let pages_written = outcome.writes_in_all * job.block_bytes.div_ceil(PAGE_BYTES);
    let slow = outcome
        .counts
        .slow_path_writes
        .filter(|_| pages_written > 0);
    [
        Some(outcome.bytes_per_second() / MEBIBYTE),
        Some(outcome.operations_per_second()),
        Some(outcome.cpu.user.as_secs_f64()),
        Some(outcome.cpu.system.as_secs_f64()),
        Some(outcome.worst_ns as f64 / 1e3),
        slow.map(|slow| 100.0 * slow as f64 / pages_written as f64),
        outcome
            .counts
            .compressed_bytes
            .map(|bytes| bytes as f64 / MEBIBYTE),
    ]
}
