//! Requests and bytes of a device's clients, counted once for everything that shows them.
//!
//! They are counted where all ways to a device meet, so a protocol's request that is carried out
//! in pieces counts as its pieces. Failed requests count too, as in the kernel's `stat`. A zeroing
//! that may leave holes is a discard, because discards arrive in that form through a file. Any
//! other zeroing is a write. A request costs three additions to the cache line of the CPU that it begins
//! on, and a read or a write two looks at the clock and two additions more. It counts when it has ended,
//! and before its client is told.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_utils::CachePadded;
use uzram::{
    AllocatedBio, Bio, BlockDevice, Extent, Geometry, PageIndex, PageTransfer, Result, Zeroing,
};

use crate::latencies::{self, Latencies};

/// With more CPUs than this, some share counters.
const SHARDS_MAX: usize = 64;

/// The requests to a device since it was made or reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Reads.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes, and zeroings that leave no hole.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Discards, and zeroings that may leave holes.
    pub discards: u64,
    /// Their bytes.
    pub discard_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Reads under way now.
    pub reads_under_way: u64,
    /// Writes and discards under way now.
    pub writes_under_way: u64,
}

#[derive(Clone, Copy)]
#[repr(usize)]
enum Kind {
    Read = 0,
    Write = 2,
    Discard = 4,
    Flush = 6,
}

/// The counters of a CPU.
#[derive(Default)]
struct Shard {
    /// Count and bytes of each kind.
    counts: [AtomicU64; 8],
    /// Reads, and requests that change content, that have begun.
    begun: [AtomicU64; 2],
    reads: latencies::Shard,
    writes: latencies::Shard,
}

/// A device that counts its requests.
pub(crate) struct Counted {
    device: Arc<dyn BlockDevice>,
    shards: Box<[CachePadded<Shard>]>,
}

impl Counted {
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Counted {
        let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let shards = (0..cpus.min(SHARDS_MAX)).map(|_| CachePadded::default());
        Counted {
            device,
            shards: shards.collect(),
        }
    }

    /// All counters. They are read one by one, while requests go on.
    pub(crate) fn requests(&self) -> Requests {
        let sum = |index: usize| {
            let values = self.shards.iter();
            values.fold(0u64, |sum, shard| {
                sum.wrapping_add(shard.counts[index].load(Ordering::Relaxed))
            })
        };
        let of = |kind: Kind| (sum(kind as usize), sum(kind as usize + 1));
        let (reads, read_bytes) = of(Kind::Read);
        let (writes, write_bytes) = of(Kind::Write);
        let (discards, discard_bytes) = of(Kind::Discard);
        // Read after those that have ended, so none is missing.
        let begun = |index: usize| {
            let values = self.shards.iter();
            values.fold(0u64, |sum, shard| {
                sum.wrapping_add(shard.begun[index].load(Ordering::Acquire))
            })
        };
        Requests {
            reads_under_way: begun(0).saturating_sub(reads),
            writes_under_way: begun(1).saturating_sub(writes + discards),
            reads,
            read_bytes,
            writes,
            write_bytes,
            discards,
            discard_bytes,
            flushes: sum(Kind::Flush as usize),
        }
    }

    /// Sets them to 0.
    pub(crate) fn reset(&self) {
        for shard in &self.shards {
            for counter in shard.counts.iter().chain(&shard.begun) {
                counter.store(0, Ordering::Relaxed);
            }
            shard.reads.reset();
            shard.writes.reset();
        }
    }

    /// The times of reads and of writes.
    pub(crate) fn latencies(&self) -> [Latencies; 2] {
        let shards = || self.shards.iter();
        [
            Latencies::of(shards().map(|shard| &shard.reads)),
            Latencies::of(shards().map(|shard| &shard.writes)),
        ]
    }

    /// Has a request carried out, and counts it.
    fn counted<T>(&self, kind: Kind, bytes: u64, request: impl FnOnce() -> T) -> T {
        let start = matches!(kind, Kind::Read | Kind::Write).then(Instant::now);
        let begun = match kind {
            Kind::Read => Some(0),
            Kind::Write | Kind::Discard => Some(1),
            Kind::Flush => None,
        };
        let shard = &self.shards[rustix::thread::sched_getcpu() % self.shards.len()];
        if let Some(begun) = begun {
            shard.begun[begun].fetch_add(1, Ordering::Relaxed);
        }
        let outcome = request();
        shard.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
        shard.counts[kind as usize + 1].fetch_add(bytes, Ordering::Relaxed);
        if let Some(start) = start {
            let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            match kind {
                Kind::Read => shard.reads.count(ns),
                _ => shard.writes.count(ns),
            }
        }
        outcome
    }
}

fn kind_and_bytes(transfer: &PageTransfer<'_>) -> (Kind, u64) {
    match transfer {
        PageTransfer::Read(buffer) => (Kind::Read, buffer.len() as u64),
        PageTransfer::Write(data) => (Kind::Write, data.len() as u64),
    }
}

impl BlockDevice for Counted {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn submit(&self, bio: Bio<'_>) -> Result<()> {
        let bytes = bio.range().map_or(0, |(_, length)| length);
        let kind = match bio {
            Bio::Read { .. } => Kind::Read,
            Bio::Trim { .. } => Kind::Discard,
            Bio::Zero {
                zeroing: Zeroing::MayPunch,
                ..
            } => Kind::Discard,
            Bio::Write { .. } | Bio::Zero { .. } => Kind::Write,
            Bio::Flush => Kind::Flush,
        };
        self.counted(kind, bytes, || self.device.submit(bio))
    }

    fn rw_page(&self, page: PageIndex, transfer: PageTransfer<'_>) -> Result<()> {
        let (kind, bytes) = kind_and_bytes(&transfer);
        self.counted(kind, bytes, || self.device.rw_page(page, transfer))
    }

    fn queue(&self, mut bio: AllocatedBio) {
        let (kind, bytes) = kind_and_bytes(&bio.transfer());
        // No frontend queues; where one does, its time would be that of taking the request.
        self.counted(kind, bytes, || self.device.queue(bio));
    }

    fn is_synchronous(&self) -> bool {
        self.device.is_synchronous()
    }

    fn extent(&self, offset: u64, length: u64) -> Result<Extent> {
        self.device.extent(offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_a_device_is_counted_once() {
        let store = uzram::Store::builder().size(1 << 20).build().unwrap();
        let counted = Counted::new(Arc::new(uzram::Zram::new(store)));
        let mut page = [1; 4096];
        let offset = 4096;
        let data = &[2; 10_000][..];
        counted.submit(Bio::Write { offset, data }).unwrap();
        let buffer = &mut [0; 100][..];
        counted.submit(Bio::Read { offset, buffer }).unwrap();
        let length = 8192;
        for zeroing in [Zeroing::MayPunch, Zeroing::NoHole] {
            let zero = Bio::Zero {
                offset,
                length,
                zeroing,
            };
            counted.submit(zero).unwrap();
        }
        counted.submit(Bio::Trim { offset, length }).unwrap();
        counted.submit(Bio::Flush).unwrap();
        let write = PageTransfer::Write(&page);
        counted.rw_page(PageIndex(3), write).unwrap();
        let read = PageTransfer::Read(&mut page);
        counted.rw_page(PageIndex(3), read).unwrap();
        let past_the_end = Bio::Read {
            offset: 1 << 20,
            buffer: &mut page,
        };
        assert!(counted.submit(past_the_end).is_err());
        let all = Requests {
            reads: 3,
            read_bytes: 100 + 4096 + 4096,
            writes: 3,
            write_bytes: 10_000 + 8192 + 4096,
            discards: 2,
            discard_bytes: 2 * 8192,
            flushes: 1,
            ..Requests::default()
        };
        assert_eq!(counted.requests(), all);
        let [reads, writes] = counted.latencies();
        assert_eq!((reads.count(), writes.count()), (3, 3));
        assert!(reads.sum_ns() > 0 && writes.sum_ns() > 0);
        counted.reset();
        let [reads, writes] = counted.latencies();
        assert_eq!((reads.count(), writes.sum_ns()), (0, 0));
        assert_eq!(counted.requests(), Requests::default());
    }

    /// A device that does nothing.
    struct Nothing;

    impl BlockDevice for Nothing {
        fn geometry(&self) -> Geometry {
            Geometry {
                size_bytes: 1 << 20,
                preferred_block_bytes: 4096,
            }
        }

        fn submit(&self, _: Bio<'_>) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    #[ignore = "a measurement, quoted in docs/design/server.md"]
    fn cost_of_counting() {
        const ROUNDS: u32 = 1_000_000;
        let bare: Arc<dyn BlockDevice> = Arc::new(Nothing);
        let counted: Arc<dyn BlockDevice> = Arc::new(Counted::new(Arc::clone(&bare)));
        let ns_per_request = |device: &Arc<dyn BlockDevice>| {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                let (offset, data) = (0, &[0; 4096][..]);
                std::hint::black_box(device.submit(Bio::Write { offset, data })).unwrap();
            }
            start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
        };
        let mut added: Vec<f64> = (0..21)
            .map(|_| ns_per_request(&counted) - ns_per_request(&bare))
            .collect();
        added.sort_by(f64::total_cmp);
        println!("{:.0} ns ({:.0} to {:.0})", added[10], added[0], added[20]);
    }
}
