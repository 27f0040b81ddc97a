//! The figures of the published comparison: what they are called, and where they come from.

use super::clock::Clock;
use super::published::Outcome;
use crate::published::Table;
use crate::sample::Series;

const MICROSECOND_NS: f64 = 1e3;

/// The allocators of the published comparison.
pub(super) const ALLOCATORS: [&str; 4] = ["ztree", "zsmalloc", "z3fold", "zbud"];

/// A figure of the comparison: its metric, its unit, its column's head, and where it comes from.
#[derive(Clone, Copy)]
pub(super) struct Figure {
    pub(super) metric: &'static str,
    pub(super) unit: &'static str,
    pub(super) head: &'static str,
    pub(super) measured: fn(&Outcome, Clock) -> f64,
    /// Fields of [`Table::ALLOCATORS`], to be added up; none for what was not published.
    pub(super) published: &'static [&'static str],
}

impl Figure {
    /// The published figure of an allocator.
    pub(super) fn published_of(&self, allocator: &str) -> Option<f64> {
        let table = Table::ALLOCATORS;
        let of = |field| table.find(&[("allocator", allocator)], [field]).pop();
        let figures: Option<Vec<[f64; 1]>> =
            self.published.iter().map(|field| of(*field)).collect();
        let sum = figures?.into_iter().map(|[figure]| figure).sum();
        (!self.published.is_empty()).then_some(sum)
    }
}

/// Where the density stands in [`FIGURES`].
pub(super) const DENSITY_FIGURE: usize = 7;

pub(super) const FIGURES: [Figure; 8] = [
    Figure {
        metric: "insert_mean",
        unit: "us",
        head: "insert us",
        measured: |outcome, clock| clock.costs(&outcome.done.insert).mean / MICROSECOND_NS,
        published: &["malloc_us"],
    },
    Figure {
        metric: "remove_mean",
        unit: "us",
        head: "remove us",
        measured: |outcome, clock| clock.costs(&outcome.done.remove).mean / MICROSECOND_NS,
        published: &["free_us"],
    },
    Figure {
        metric: "access_mean",
        unit: "us",
        head: "access us",
        measured: |outcome, clock| clock.costs(&outcome.done.access).mean / MICROSECOND_NS,
        published: &["map_us", "unmap_us"],
    },
    Figure {
        metric: "worst",
        unit: "us",
        head: "worst us",
        measured: |outcome, _| outcome.done.operations().worst_ns as f64 / MICROSECOND_NS,
        published: &["worst_us"],
    },
    Figure {
        metric: "over_1ms",
        unit: "operations",
        head: "> 1 ms",
        measured: |outcome, _| outcome.done.operations().over_1ms as f64,
        published: &["over_1ms"],
    },
    Figure {
        metric: "empty_loop_over_1ms",
        unit: "operations",
        head: "empty",
        measured: |outcome, _| outcome.done.idle.over_1ms as f64 * outcome.longer_than_idle(),
        published: &[],
    },
    Figure {
        metric: "over_100us",
        unit: "operations",
        head: "> 100 us",
        measured: |outcome, _| outcome.done.operations().over_100us as f64,
        published: &[],
    },
    Figure {
        metric: "pool_bytes_per_stored_byte",
        unit: "bytes/byte",
        head: "pool/stored",
        measured: |outcome, _| outcome.density,
        published: &[],
    },
];

/// A variant, and what was found of each figure.
pub(super) type Found = (&'static str, [Series; FIGURES.len()]);
