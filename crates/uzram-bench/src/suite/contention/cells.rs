//! Figures by case and variant, from whole rounds.

use super::crew::Slice;
use crate::report::{Measured, Ratio};
use crate::sample::{Series, Spread};

/// A metric's name and its unit.
pub(crate) type Metric = (&'static str, &'static str);

/// MiB a second of all threads.
pub(crate) const THROUGHPUT: Metric = ("throughput", "MiB/s");
pub(crate) const USER: Metric = ("cpu_user", "ms");
pub(crate) const SYSTEM: Metric = ("cpu_system", "ms");
pub(crate) const WORST: Metric = ("worst_record", "ms");
pub(crate) const SLOW_PATH: Metric = ("slow_path", "of 1000 writes");
pub(crate) const SLEEPS: Metric = ("sleeps_for_a_stream", "of 1000 writes");

/// A kind of figure, and where it comes from.
type Figure = (Metric, fn(&Slice) -> Option<f64>);

const FIGURES: [Figure; 6] = [
    (THROUGHPUT, |slice| {
        Some(slice.bytes as f64 / f64::from(1 << 20) / slice.elapsed.as_secs_f64())
    }),
    (USER, |slice| Some(slice.user.as_secs_f64() * 1e3)),
    (SYSTEM, |slice| Some(slice.system.as_secs_f64() * 1e3)),
    (WORST, |slice| Some(slice.worst.as_secs_f64() * 1e3)),
    (SLOW_PATH, |slice| {
        per_1000_writes(slice, slice.slow_path_writes)
    }),
    (SLEEPS, |slice| per_1000_writes(slice, slice.sleeps)),
];

fn per_1000_writes(slice: &Slice, count: Option<u64>) -> Option<f64> {
    let count = count.filter(|_| slice.written_pages > 0)?;
    Some(count as f64 * 1e3 / slice.written_pages as f64)
}

/// All figures of a suite so far.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    cells: Vec<Cell>,
}

/// One variant in one case, a slice a round.
#[derive(Debug)]
struct Cell {
    case: String,
    variant: &'static str,
    working_set_bytes: u64,
    slices: Vec<Slice>,
}

impl Cells {
    pub(crate) fn add(
        &mut self,
        case: &str,
        variant: &'static str,
        working_set_bytes: u64,
        slice: Slice,
    ) {
        let is_it = |cell: &&mut Cell| cell.case == case && cell.variant == variant;
        match self.cells.iter_mut().find(is_it) {
            Some(cell) => cell.slices.push(slice),
            None => self.cells.push(Cell {
                case: case.to_owned(),
                variant,
                working_set_bytes,
                slices: vec![slice],
            }),
        }
    }

    /// Every figure of the cases that are `wanted`.
    pub(crate) fn results(&self, wanted: impl Fn(&str) -> bool) -> Vec<Measured> {
        let ours = self.cells.iter().filter(|cell| wanted(&cell.case));
        let figures = ours.flat_map(|cell| FIGURES.iter().map(move |figure| (cell, figure)));
        let rows = figures.filter_map(|(cell, (metric, of))| {
            Some(Measured {
                case: cell.case.clone(),
                variant: cell.variant.to_owned(),
                metric: metric.0,
                unit: metric.1,
                spread: cell.series(*of)?.spread()?,
                working_set_bytes: cell.working_set_bytes,
                pinned: None,
            })
        });
        rows.collect()
    }

    /// The figures of a metric, a round each; `None` where there are none.
    pub(crate) fn series(&self, case: &str, variant: &str, metric: Metric) -> Option<Series> {
        let is_it = |cell: &&Cell| cell.case == case && cell.variant == variant;
        let cell = self.cells.iter().find(is_it)?;
        let (_, of) = FIGURES.iter().find(|(known, _)| *known == metric)?;
        cell.series(*of)
    }

    pub(crate) fn spread(&self, case: &str, variant: &str, metric: Metric) -> Option<Spread> {
        self.series(case, variant, metric)?.spread()
    }

    /// One variant's throughput over another's, round by round.
    pub(crate) fn ratio(&self, case: &str, numerator: &str, denominator: &str) -> Option<Ratio> {
        let top = self.series(case, numerator, THROUGHPUT)?;
        let bottom = self.series(case, denominator, THROUGHPUT)?;
        let sides = ((numerator, &top), (denominator, &bottom));
        Ratio::of(case, THROUGHPUT.0, sides.0, sides.1, None)
    }
}

impl Cell {
    fn series(&self, of: fn(&Slice) -> Option<f64>) -> Option<Series> {
        let values: Option<Vec<f64>> = self.slices.iter().map(of).collect();
        values.map(Series::from)
    }
}
