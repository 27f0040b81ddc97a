//! Requests and bytes of a device's clients, counted once for everything that shows them.
//!
//! They are counted where all ways to a device meet, so a protocol's request that is carried out
//! in pieces counts as its pieces. Failed requests count too, as in the kernel's `stat`. A zeroing
//! that may leave holes is a discard, because discards arrive in that form through a file. Any
//! other zeroing is a write. A request costs two additions to its CPU's own cache line.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use uzram::{
    AllocatedBio, Bio, BlockDevice, Extent, Geometry, PageIndex, PageTransfer, Result, Zeroing,
};

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
}

#[derive(Clone, Copy)]
#[repr(usize)]
enum Kind {
    Read = 0,
    Write = 2,
    Discard = 4,
    Flush = 6,
}

/// Count and bytes of each kind.
type Shard = CachePadded<[AtomicU64; 8]>;

/// A device that counts its requests.
pub(crate) struct Counted {
    device: Arc<dyn BlockDevice>,
    shards: Box<[Shard]>,
}

impl Counted {
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Counted {
        let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let shards = (0..cpus.min(SHARDS_MAX)).map(|_| Shard::default());
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
                sum.wrapping_add(shard[index].load(Ordering::Relaxed))
            })
        };
        let of = |kind: Kind| (sum(kind as usize), sum(kind as usize + 1));
        let (reads, read_bytes) = of(Kind::Read);
        let (writes, write_bytes) = of(Kind::Write);
        let (discards, discard_bytes) = of(Kind::Discard);
        Requests {
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
        for counter in self.shards.iter().flat_map(|shard| shard.iter()) {
            counter.store(0, Ordering::Relaxed);
        }
    }

    fn count(&self, kind: Kind, bytes: u64) {
        let shard = &self.shards[rustix::thread::sched_getcpu() % self.shards.len()];
        shard[kind as usize].fetch_add(1, Ordering::Relaxed);
        shard[kind as usize + 1].fetch_add(bytes, Ordering::Relaxed);
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
        self.count(kind, bytes);
        self.device.submit(bio)
    }

    fn rw_page(&self, page: PageIndex, transfer: PageTransfer<'_>) -> Result<()> {
        let (kind, bytes) = kind_and_bytes(&transfer);
        self.count(kind, bytes);
        self.device.rw_page(page, transfer)
    }

    fn queue(&self, mut bio: AllocatedBio) {
        let (kind, bytes) = kind_and_bytes(&bio.transfer());
        self.count(kind, bytes);
        self.device.queue(bio);
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
        };
        assert_eq!(counted.requests(), all);
        counted.reset();
        assert_eq!(counted.requests(), Requests::default());
    }
}
