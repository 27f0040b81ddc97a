//! The metrics of a variant with their units, and the names of cases and sides.

use crate::figures::Metric;

pub(super) const DENSITY: Metric = ("pool_bytes_per_stored_byte", "bytes/byte");
pub(super) const COMPACTION: Metric = ("compaction", "ms");
pub(super) const SPARE: Metric = ("spare", "MiB");
pub(super) const LEFT: Metric = ("pool_bytes_left", "MiB");
pub(super) const BACK: Metric = ("system_got_back", "%");
pub(super) const INSERT_MEAN: Metric = ("insert_beyond_copy_mean", "ns");
pub(super) const INSERT_P999: Metric = ("insert_beyond_copy_p999", "ns");
pub(super) const REMOVE_MEAN: Metric = ("remove_mean", "ns");
pub(super) const REMOVE_P999: Metric = ("remove_p999", "ns");
pub(super) const OVER_1MS: Metric = ("over_1ms", "operations");
pub(super) const IDLE_OVER_1MS: Metric = ("empty_loop_over_1ms", "operations");
/// The surplus of the operations over those, in the square root of both, by which counts scatter.
pub(super) const BEYOND_IDLE: Metric = ("over_1ms_beyond_empty_loop", "deviations");
pub(super) const OVER_100US: Metric = ("over_100us", "operations");
pub(super) const IDLE_OVER_100US: Metric = ("empty_loop_over_100us", "operations");
pub(super) const WORST: Metric = ("worst", "us");
/// An insertion and a removal, the copy and the pool's maintenance included.
pub(super) const OVERWRITE_MEAN: Metric = ("overwrite_mean", "ns");
/// The same beyond the copy, over all rounds.
pub(super) const OVERWRITES_MEAN: Metric = ("overwrites_beyond_copy_mean", "ns");
/// The case in which all variants take turns.
pub(super) const IN_TURNS: &str = "in-turns";

pub(super) const SPEEDUP: Metric = ("speedup", "x");
/// The variant name of the copy alone.
pub(super) const COPY: &str = "memcpy";
/// The end of a pool's name where each thread has a pool of its own.
const APART: &str = "-apart";
/// The variant name of `pool` where each thread has one of its own.
pub(super) fn apart(pool: &str) -> String {
    format!("{pool}{APART}")
}
