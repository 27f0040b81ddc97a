//! Counters with the names and meanings of zram's documentation (`mm_stat`, `io_stat`), and with
//! units.
//!
//! They are kept per CPU and summed on demand, so that writers on different CPUs share no cache
//! line. A sum taken while others write is not of one instant.

use std::ops::Range;

use crate::cpu;
use crate::error::Result;
use crate::region::{Backing, Region};
use crate::sync::{MappedU64, Ordering};

/// The content and the history of a store. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Stored pages times the unit, same-filled ones included.
    pub orig_data_size_bytes: u64,
    /// Bytes of compressed and raw objects, without the pool's overhead; same-filled pages have none.
    pub compr_data_size_bytes: u64,
    /// Memory of the blocks that hold objects. `mem_limit` bounds it.
    pub mem_used_total_bytes: u64,
    /// The limit; 0 for none.
    pub mem_limit_bytes: u64,
    /// The highest `mem_used_total_bytes` so far.
    pub mem_used_max_bytes: u64,
    /// Pages stored as one repeated 32-bit word.
    pub same_pages: u64,
    /// Pages of 4 KiB that compaction has freed, less those taken for the moved objects.
    pub pages_compacted: u64,
    /// Pages stored raw because compressing them did not pay.
    pub huge_pages: u64,
    /// The same, counted since the start or the last reset.
    pub huge_pages_since: u64,
    /// Writes whose page looked random and was kept raw without trying the codec.
    pub early_rejections: u64,
    /// Page reads that failed.
    pub failed_reads: u64,
    /// Page writes that failed.
    pub failed_writes: u64,
    /// Requests outside the device.
    pub invalid_io: u64,
    /// Pages freed by trim.
    pub notify_free: u64,
    /// Writes that found no populated memory and compressed a second time.
    pub slow_path_writes: u64,
    /// Memory taken from the system and not used by objects' blocks: bounded, reused first.
    pub mem_spare_bytes: u64,
    /// Memory taken from the system for objects: `mem_used_total_bytes` and the spare.
    pub mem_resident_bytes: u64,
    /// Address space of the slot table: 8 bytes per page. Memory is used where pages were written.
    pub table_bytes: u64,
    /// Bookkeeping of the pool and optional side tables.
    pub side_tables_bytes: u64,
    /// Pages that are in the backing file.
    pub bd_count: u64,
    /// Pages read from the backing file.
    pub bd_reads: u64,
    /// Pages written to the backing file.
    pub bd_writes: u64,
    /// Attempts to write pages back that failed, because the disk did or the file was full. The pages stayed in memory.
    pub bd_failed_writes: u64,
    /// Pages packed by a secondary codec.
    pub recompressed_pages: u64,
    /// Pages in memory that recompression did not make smaller.
    pub incompressible_pages: u64,
    /// Pages whose record was damaged when the store was taken over, and that were not written or trimmed since.
    pub lost_pages: u64,
}

/// The store's own counters. Deltas wrap, because a CPU may free what another one stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Counter {
    PagesStored,
    ComprDataBytes,
    SamePages,
    HugePages,
    HugePagesSince,
    EarlyRejections,
    FailedReads,
    FailedWrites,
    InvalidIo,
    NotifyFree,
    SlowPathWrites,
    PagesCompacted,
    BdCount,
    BdReads,
    BdWrites,
    BdFailedWrites,
    RecompressedPages,
    IncompressiblePages,
    LostPages,
}

const COUNTERS: usize = Counter::LostPages as usize + 1;

/// Words of a lane: whole cache lines.
const LANE_WORDS: usize = COUNTERS.next_multiple_of(16);

/// A lane of counters for each CPU. CPUs beyond the lanes share some.
#[derive(Debug)]
pub(crate) struct Counters {
    region: Region,
    /// The words of the region that are counters.
    words: Range<usize>,
}

impl Counters {
    /// Bytes that so many lanes take.
    pub(crate) const fn bytes(lanes: usize) -> usize {
        lanes * LANE_WORDS * size_of::<u64>()
    }

    /// Zeroes, in memory of this process.
    pub(crate) fn new() -> Result<Counters> {
        let bytes = Counters::bytes(cpu::possible());
        let region = Region::reserve(bytes, Backing::Private)?;
        Ok(Counters::over(region, 0..bytes))
    }

    /// Those that lie at these bytes of a region.
    pub(crate) fn over(region: Region, bytes: Range<usize>) -> Counters {
        let words = bytes.start / size_of::<u64>()..bytes.end / size_of::<u64>();
        Counters { region, words }
    }

    fn lanes(&self) -> impl Iterator<Item = &[MappedU64]> {
        self.region.words()[self.words.clone()].chunks_exact(LANE_WORDS)
    }

    /// That of the current CPU.
    #[inline]
    fn lane(&self) -> &[MappedU64; COUNTERS] {
        let lane = cpu::current() % (self.words.len() / LANE_WORDS);
        let at = self.words.start + lane * LANE_WORDS;
        let lane = self.region.words()[at..].first_chunk();
        lane.expect("a lane has all counters")
    }

    #[inline]
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        self.lane()[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds to several at once; wraps around, so that less can be added too.
    #[inline]
    pub(crate) fn add_all<const N: usize>(&self, amounts: [(Counter, u64); N]) {
        let lane = self.lane();
        for (counter, amount) in amounts {
            if amount != 0 {
                lane[counter as usize].fetch_add(amount, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    pub(crate) fn subtract(&self, counter: Counter, amount: u64) {
        self.add(counter, amount.wrapping_neg());
    }

    /// The sum over all CPUs; a near-zero value caught between two deltas reads as zero.
    pub(crate) fn sum(&self, counter: Counter) -> u64 {
        let values = self
            .lanes()
            .map(|lane| lane[counter as usize].load(Ordering::Relaxed));
        let sum = values.fold(0, u64::wrapping_add);
        if sum > i64::MAX as u64 { 0 } else { sum }
    }

    /// Zeroes the history; the content stays counted.
    pub(crate) fn forget_events(&self) {
        use Counter::*;
        for counter in [
            HugePagesSince,
            EarlyRejections,
            FailedReads,
            FailedWrites,
            InvalidIo,
            NotifyFree,
            SlowPathWrites,
            PagesCompacted,
            BdReads,
            BdWrites,
            BdFailedWrites,
        ] {
            self.subtract(counter, self.sum(counter));
        }
    }

    /// Zeroes what a dead process has counted of the content, which its successor counts anew.
    #[cfg(not(uzram_shuttle))]
    pub(crate) fn forget_content(&self) {
        use Counter::*;
        for counter in [
            PagesStored,
            ComprDataBytes,
            SamePages,
            HugePages,
            BdCount,
            RecompressedPages,
            IncompressiblePages,
            LostPages,
        ] {
            for lane in self.lanes() {
                lane[counter as usize].store(0, Ordering::Relaxed);
            }
        }
    }
}
