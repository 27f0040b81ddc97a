//! Counters of pages and faults. The pager's thread counts, any thread reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The counters behind [`Statistics`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub faults_fresh: AtomicU64,
    pub faults_staged: AtomicU64,
    pub faults_stored: AtomicU64,
    pub faults_spilled: AtomicU64,
    pub faults_repeated: AtomicU64,
    pub faults_ns: AtomicU64,
    pub pages_in: AtomicU64,
    pub pages_out: AtomicU64,
    pub pages_unchanged: AtomicU64,
    pub pages_kept: AtomicU64,
    pub pages_over_budget: AtomicU64,
    pub pages_poisoned: AtomicU64,
    pub present: AtomicU64,
    pub staged: AtomicU64,
    pub free: AtomicU64,
    pub has_failed: AtomicBool,
}

impl Counters {
    /// Pages that are not compressed.
    pub(crate) fn resident(&self) -> u64 {
        let pages = [&self.present, &self.staged, &self.free];
        pages
            .map(|pages| pages.load(Ordering::Relaxed))
            .iter()
            .sum()
    }
}

/// Adds to a counter that one thread writes.
pub(crate) fn add(counter: &AtomicU64, count: usize) {
    set(counter, counter.load(Ordering::Relaxed) + count as u64);
}

/// Sets a counter that one thread writes.
pub(crate) fn set(counter: &AtomicU64, value: u64) {
    counter.store(value, Ordering::Relaxed);
}

/// The numbers of a [`CompressedMemory`](crate::CompressedMemory) at about one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Touches of pages that had no content: they became zeroes.
    pub faults_fresh: u64,
    /// Touches of pages that had left and were not compressed yet.
    pub faults_staged: u64,
    /// Touches of compressed pages.
    pub faults_stored: u64,
    /// Touches of pages that were in the file.
    pub faults_spilled: u64,
    /// Touches of a page that another thread's touch had just brought.
    pub faults_repeated: u64,
    /// Time from reading the system's message about a touch to its answer, in all, in nanoseconds.
    pub faults_ns: u64,
    /// Pages that were decompressed or came from the file, those around a touched one included.
    pub pages_in: u64,
    /// Pages that were compressed.
    pub pages_out: u64,
    /// Pages that left as they had come: the store still had them.
    pub pages_unchanged: u64,
    /// Attempts to evict a page that it resisted: pinned, locked or write-protected, or no memory to compress it.
    pub pages_kept: u64,
    /// Pages that were made present beyond the budget, because none could be evicted.
    pub pages_over_budget: u64,
    /// Pages that were lost: touching one is a SIGBUS.
    pub pages_poisoned: u64,
    /// Memory of pages that are not compressed, in bytes: what the budget bounds.
    pub resident_bytes: u64,
    /// The part of it that has left the program and waits to be compressed, in bytes.
    pub staged_bytes: u64,
    /// Content of the compressed pages before compression, and of those in the file, in bytes. Copies of pages that came
    /// back and have not been written count, too, as long as they are kept.
    pub stored_bytes: u64,
    /// The compressed pages in memory, in bytes.
    pub compressed_bytes: u64,
    /// Memory that compressed pages take, in bytes. It comes on top of `resident_bytes`.
    pub compressed_memory_bytes: u64,
    /// Pages that are in the file, in bytes.
    pub spilled_bytes: u64,
    /// Pages that were written to the file.
    pub pages_spilled: u64,
    /// Attempts to write pages to the file that failed, because the disk did or was full. The pages stayed in memory.
    pub spill_failures: u64,
    /// Whether the pager has stopped after a failure. Pages that were not present are a SIGBUS.
    pub has_failed: bool,
}
