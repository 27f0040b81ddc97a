//! The figures of a job.

use crate::figures::Metric;
use crate::suite::rows::{Figure, THROUGHPUT};

const MEBIBYTE: f64 = 1_048_576.0;

pub(super) const IOPS: Metric = ("iops", "IOPS");
pub(super) const USER: Metric = ("cpu_user", "s");
pub(super) const SYSTEM: Metric = ("cpu_system", "s");
pub(super) const WORST: Metric = ("worst_latency", "us");
pub(super) const SLOW: Metric = ("slow_path_share", "% of writes");
pub(super) const COMPRESSED: Metric = ("compressed", "MiB");

pub(super) const FIGURES: [Figure; 7] = [
    (THROUGHPUT, |done| Some(done.bytes_per_second() / MEBIBYTE)),
    (IOPS, |done| Some(done.operations_per_second())),
    (USER, |done| Some(done.cpu.user.as_secs_f64())),
    (SYSTEM, |done| Some(done.cpu.system.as_secs_f64())),
    (WORST, |done| Some(done.worst_ns as f64 / 1e3)),
    (SLOW, |done| {
        done.of_written_pages(done.counts.slow_path_writes, 100.0)
    }),
    (COMPRESSED, |done| {
        let bytes = done.counts.compressed_bytes?;
        Some(bytes as f64 / MEBIBYTE)
    }),
];
