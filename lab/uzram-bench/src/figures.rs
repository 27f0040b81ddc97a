//! From the series of sides to the rows of a report.

use crate::report::{Block, Measured, Ratio};
use crate::sample::Series;

/// A figure's name, and its unit.
pub(crate) type Metric = (&'static str, &'static str);

/// One metric of one case; each side has a figure of it.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) case: String,
    pub(crate) metric: Metric,
    pub(crate) working_set_bytes: u64,
    /// The CPUs that the measured threads were pinned to.
    pub(crate) pinned: Option<String>,
}

impl Cell {
    pub(crate) fn new(case: impl Into<String>, metric: Metric, bytes: u64) -> Cell {
        Cell {
            case: case.into(),
            metric,
            working_set_bytes: bytes,
            pinned: None,
        }
    }

    pub(crate) fn pinned(self, cpus: &[usize]) -> Cell {
        let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        let pinned = Some(cpus.join(","));
        Cell { pinned, ..self }
    }

    /// A side's row; none for a series without runs.
    pub(crate) fn row(&self, variant: &str, series: &Series) -> Option<Measured> {
        Some(Measured {
            case: self.case.clone(),
            variant: variant.to_owned(),
            metric: self.metric.0,
            unit: self.metric.1,
            spread: series.spread()?,
            working_set_bytes: self.working_set_bytes,
            pinned: self.pinned.clone(),
        })
    }

    /// Adds a side's row.
    pub(crate) fn add(&self, variant: &str, series: &Series, block: &mut Block) {
        block.results.extend(self.row(variant, series));
    }

    /// Adds the ratio of two sides.
    pub(crate) fn compare(&self, top: (&str, &Series), bottom: (&str, &Series), block: &mut Block) {
        let ratio = Ratio::of(&self.case, self.metric.0, top, bottom);
        block.ratios.extend(ratio);
    }

    /// Adds the rows of all sides, and the ratio of each two for which `pairs` says so.
    pub(crate) fn add_all<N: AsRef<str>>(
        &self,
        names: &[N],
        series: &[Series],
        pairs: impl Fn(&str, &str) -> bool,
        block: &mut Block,
    ) {
        let sides: Vec<(&str, &Series)> = names.iter().map(AsRef::as_ref).zip(series).collect();
        for (name, series) in &sides {
            self.add(name, series, block);
        }
        for bottom in &sides {
            for top in &sides {
                if pairs(top.0, bottom.0) {
                    self.compare(*top, *bottom, block);
                }
            }
        }
    }
}
