//! How much is measured, and of what.

use super::heap::Variant;
use super::published;
use crate::corpus::Corpus;
use crate::suite::Options;

/// How much is measured.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// Objects of the cases, in rising order.
    pub(super) objects: Vec<usize>,
    /// Objects where the variants take turns.
    pub(super) alternated_objects: usize,
    /// Pages of the published disks.
    pub(super) disk_pages: Vec<usize>,
    /// The published disks are so many times smaller.
    pub(super) disk_divisor: usize,
    /// Runs of the published comparison.
    pub(super) runs: usize,
    /// Runs with several threads.
    pub(super) thread_runs: usize,
    /// Overwrites of a thread in one turn: some tens of milliseconds.
    pub(super) thread_overwrites: usize,
    /// Memory for the copy alone, in bytes.
    pub(super) copy_bytes: usize,
}

impl Scale {
    pub(super) fn full() -> Scale {
        Scale {
            objects: vec![16_384, 65_536, 1_048_576],
            alternated_objects: 65_536,
            disk_pages: disks(1),
            disk_divisor: 1,
            runs: 3,
            thread_runs: 7,
            thread_overwrites: 1 << 15,
            copy_bytes: 512 << 20,
        }
    }

    /// Seconds, and caches may hold some of it.
    pub(super) fn quick() -> Scale {
        Scale {
            objects: vec![16_384, 65_536],
            alternated_objects: 16_384,
            disk_pages: disks(16),
            disk_divisor: 16,
            thread_runs: 3,
            copy_bytes: 64 << 20,
            ..Scale::full()
        }
    }
}

/// Pages of the published disks, `divisor` times smaller.
fn disks(divisor: usize) -> Vec<usize> {
    let pages = published::DISKS_MIB.map(|mebibytes| (mebibytes << 20) / 4096 / divisor);
    pages.to_vec()
}

/// A corpus by a codec.
pub(super) struct Cells<'a> {
    pub(super) options: &'a Options,
    pub(super) scale: &'a Scale,
    pub(super) variants: &'a [Variant],
    pub(super) cpus: &'a [usize],
    pub(super) corpus: &'a Corpus,
    pub(super) algorithm: &'a str,
}

impl Cells<'_> {
    pub(super) fn prefix(&self) -> String {
        format!("{}/{}", self.corpus.name, self.algorithm)
    }
}
