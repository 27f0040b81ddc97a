//! The store: pages by index, compressed, in a table of slots over a pool.
//!
//! One verb per file. `write.rs` prepares content unlocked and publishes it locked. `read.rs`
//! decompresses under the lock, straight from the pool's memory into the caller's buffer.

mod ages;
mod backing_file;
mod batches;
mod blocks;
mod body;
mod budget;
mod build;
mod cold;
mod compact;
mod compactor;
mod concrete;
mod direct;
mod idle;
mod layout;
pub(crate) mod lock;
mod read;
mod recompress;
#[cfg(not(uzram_shuttle))]
mod recover;
mod ring;
mod room;
mod side_table;
mod slot;
mod superblock;
mod words;
mod write;
mod writeback;

use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::codec::streams::{Stream, StreamPolicy};
use crate::codec::{Compression, Parameters};
use crate::config::{Secondaries, StoreConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::page::{PageIndex, PageState, Unit, Zeroing};
use crate::pool::{self, Parts, PoolConfig, PoolMemory};
use crate::stats::{Counter, Counters, Stats};
use crate::sync::{Arc, AtomicBool, AtomicU64, MappedU32, MappedU64, Mutex, Ordering};

use self::ages::Ages;
use self::backing_file::BackingFile;
use self::batches::Batches;
use self::body::Body;
#[cfg(not(uzram_shuttle))]
pub use self::body::Remains;
use self::budget::Budget;
pub use self::cold::ColdPages;
use self::compactor::Compactor;
pub use self::concrete::Store;
pub use self::idle::BlockState;
use self::layout::Flags;
use self::lock::SlotLock;
pub use self::recompress::{Recompressed, Recompression};
#[cfg(not(uzram_shuttle))]
pub use self::recover::Recovery;
use self::side_table::SideTable;
use self::slot::{Entry, Locked, SlotGuard, SlotTable};
#[cfg(not(uzram_shuttle))]
pub use self::superblock::REMAINS_FORMAT;
use self::superblock::Superblock;

/// A store with any slot lock, and any way to share streams: what [`Store`] is made of, and what the laboratory
/// compares.
pub struct StoreWith<L, S> {
    unit: Unit,
    pool_name: &'static str,
    compression: Arc<Compression>,
    /// The codecs that pack pages again, by priority, less one.
    secondaries: Secondaries,
    streams: S,
    table: SlotTable<L>,
    /// If the store outlives its process.
    superblock: Option<Superblock>,
    pool: Box<PoolMemory>,
    counters: Counters,
    /// The pool's: objects from this size on are kept raw.
    huge_bytes: usize,
    mem_limit_bytes: AtomicU64,
    /// The turn to set the limit, which the pool knows too.
    limiting: Mutex<()>,
    /// The turn to grow the pool under a limit, and to use the new memory.
    growing: Mutex<()>,
    /// Set while the writer whose turn it is loses its new memory to others.
    starving: AtomicBool,
    compactor: Mutex<Compactor>,
    /// CRC-32 of each object, if asked for.
    checksums: Option<SideTable>,
    /// If asked for.
    ages: Option<Ages>,
    /// Whether writers wait for a spare instead of growing the pool.
    has_spare: bool,
    backing: Option<BackingFile>,
    /// Whether packed objects go to the file as they are.
    compresses_back: bool,
    /// The budget of writing back, if no superblock has it.
    own_budget: [MappedU64; Budget::WORDS],
    /// The turn to write back or to recompress.
    writing_back: Mutex<Batches>,
}

impl<L: SlotLock, S: StreamPolicy<Stream>> StoreWith<L, S> {
    pub(crate) fn new(config: StoreConfig, streams: S) -> Result<StoreWith<L, S>> {
        let pool_config = config.pool_config();
        let body = Body::reserve(&config, &pool_config)?;
        let mut store = StoreWith::over(config, streams, &pool_config, body)?;
        store.make_ready(&pool_config)?;
        Ok(store)
    }

    /// Makes everything that a write may need, if a spare is asked for.
    fn make_ready(&mut self, pool_config: &PoolConfig) -> Result<()> {
        if pool_config.spare_bytes == 0 {
            return Ok(());
        }
        self.table.populate()?;
        self.side_tables().try_for_each(SideTable::populate)?;
        self.compression.make_all(&self.streams)?;
        for secondary in self.secondaries.iter().flatten() {
            secondary.make_readers(&mut secondary.stream()?)?;
        }
        self.pool.make_ready()?;
        self.has_spare = self.pool.keeps_spare();
        // A span each; false also when the system gives no more, which the next turns try again.
        while self.pool.maintain() {}
        Ok(())
    }

    fn over(
        config: StoreConfig,
        streams: S,
        pool_config: &PoolConfig,
        body: Body<L>,
    ) -> Result<StoreWith<L, S>> {
        let pool = pool::make(config.pool, pool_config, body.arena)?;
        // What a ring writes may be under way when its process is gone already, and its successor writes there.
        let depth = match body.superblock {
            Some(_) => 1,
            None => config.writeback_depth,
        };
        let ring = body.backing.as_ref().and_then(|file| file.ring(depth));
        Ok(StoreWith {
            unit: config.unit,
            pool_name: config.pool,
            compression: config.compression,
            secondaries: config.secondaries,
            streams,
            huge_bytes: pool.huge_bytes(),
            pool,
            table: body.table,
            superblock: body.superblock,
            counters: body.counters,
            mem_limit_bytes: AtomicU64::new(config.mem_limit_bytes),
            limiting: Mutex::default(),
            growing: Mutex::default(),
            starving: AtomicBool::new(false),
            compactor: Mutex::default(),
            checksums: body.checksums,
            ages: body.ages.map(Ages::new),
            has_spare: false,
            backing: body.backing,
            compresses_back: config.compressed_writeback,
            own_budget: Default::default(),
            writing_back: Mutex::new(Batches::new(depth, ring)),
        })
    }

    /// As [`Store::size_bytes`](crate::Store::size_bytes).
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.table.len() << self.unit.shift()
    }

    /// As [`Store::unit`](crate::Store::unit).
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// As [`Store::algorithm`](crate::Store::algorithm).
    #[must_use]
    pub fn algorithm(&self) -> &str {
        self.compression.codec().name()
    }

    /// As [`Store::parameters`](crate::Store::parameters).
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        self.compression.parameters()
    }

    /// As [`Store::pool`](crate::Store::pool).
    #[must_use]
    pub fn pool(&self) -> &'static str {
        self.pool_name
    }

    /// As [`Store::mem_limit`](crate::Store::mem_limit).
    #[must_use]
    pub fn mem_limit(&self) -> u64 {
        self.mem_limit_bytes.load(Ordering::Relaxed)
    }

    /// As [`Store::set_mem_limit`](crate::Store::set_mem_limit).
    pub fn set_mem_limit(&self, limit_bytes: u64) {
        let _limiting = self.limiting.lock();
        self.mem_limit_bytes.store(limit_bytes, Ordering::Relaxed);
        self.pool.set_limit(limit_bytes);
        if let Some(superblock) = &self.superblock {
            superblock.set_mem_limit(limit_bytes);
        }
    }

    fn budget(&self) -> Budget<'_> {
        let kept = self.superblock.as_ref().map(Superblock::budget);
        kept.unwrap_or(Budget::over(&self.own_budget))
    }

    /// As [`Store::reset_mem_used_max`](crate::Store::reset_mem_used_max).
    pub fn reset_mem_used_max(&self) {
        self.pool.reset_used_max();
    }

    /// As [`Store::trim`](crate::Store::trim).
    pub fn trim(&self, index: PageIndex) -> Result<()> {
        self.punch(index)?;
        self.counters.add(Counter::NotifyFree, 1);
        Ok(())
    }

    /// Makes holes of the pages of `range` and frees their memory. The cost depends on the pages
    /// that were ever stored there.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`]; nothing has changed then.
    pub(crate) fn trim_range(&self, range: Range<u64>) -> Result<()> {
        self.punch_range(range.clone())?;
        let pages = range.end.saturating_sub(range.start);
        self.counters.add(Counter::NotifyFree, pages);
        Ok(())
    }

    /// As [`Store::trim_range`], without counting it as a discard.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`]; nothing has changed then.
    pub(crate) fn punch_range(&self, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.table.check(PageIndex(range.end - 1))?;
        let mut next = self.table.next_touched(range.start);
        while next < range.end {
            self.punch(PageIndex(next))?;
            next = self.table.next_touched(next + 1);
        }
        Ok(())
    }

    /// The first page from `from` on that may be no hole, or the number of pages.
    pub(crate) fn next_touched(&self, from: u64) -> u64 {
        self.table.next_touched(from)
    }

    /// As [`Store::zero`](crate::Store::zero).
    pub fn zero(&self, index: PageIndex, zeroing: Zeroing) -> Result<()> {
        match zeroing {
            Zeroing::MayPunch => self.punch(index),
            Zeroing::NoHole => {
                self.table.admit(index)?;
                self.replace(index, Entry::Same(0))
            }
        }
    }

    /// As [`Store::state`](crate::Store::state).
    pub fn state(&self, index: PageIndex) -> Result<PageState> {
        self.table.state(index)
    }

    /// As [`Store::reset`](crate::Store::reset).
    pub fn reset(&self) {
        self.behind_the_starving();
        self.stop_compacting();
        let emptied = self.punch_range(0..self.table.len());
        debug_assert!(emptied.is_ok(), "emptying slots that exist cannot fail");
        // A spare means that no write may wait for the table's memory either.
        if !self.has_spare {
            let forget = |indices: Range<u64>| {
                self.side_tables()
                    .for_each(|table| table.forget(indices.clone()));
            };
            self.table.give_back(forget);
        }
        while self.discard_backing() {}
        self.counters.forget_events();
        self.pool.trim(Parts::Stay);
        if !self.has_spare {
            self.pool.give_back_tables();
        }
        self.pool.reset_used_max();
    }

    /// As [`Store::maintain`](crate::Store::maintain).
    pub fn maintain(&self, budget: Duration) -> bool {
        let start = Instant::now();
        loop {
            let populating = self.pool.maintain();
            if !self.compact_if_sparse() && !populating {
                return false;
            }
            if start.elapsed() >= budget {
                return true;
            }
        }
    }

    /// As [`Store::mem_used_bytes`](crate::Store::mem_used_bytes).
    #[must_use]
    pub fn mem_used_bytes(&self) -> u64 {
        self.pool.used_bytes()
    }

    /// As [`Store::stats`](crate::Store::stats).
    #[must_use]
    pub fn stats(&self) -> Stats {
        let pool = self.pool.stats();
        let count = |counter| self.counters.sum(counter);
        let side_tables = self.side_tables().count() as u64;
        Stats {
            orig_data_size_bytes: count(Counter::PagesStored) << self.unit.shift(),
            compr_data_size_bytes: count(Counter::ComprDataBytes),
            mem_used_total_bytes: pool.used_bytes,
            mem_limit_bytes: self.mem_limit(),
            mem_used_max_bytes: pool.used_max_bytes,
            same_pages: count(Counter::SamePages),
            pages_compacted: count(Counter::PagesCompacted),
            huge_pages: count(Counter::HugePages),
            huge_pages_since: count(Counter::HugePagesSince),
            early_rejections: count(Counter::EarlyRejections),
            failed_reads: count(Counter::FailedReads),
            failed_writes: count(Counter::FailedWrites),
            invalid_io: count(Counter::InvalidIo),
            notify_free: count(Counter::NotifyFree),
            slow_path_writes: count(Counter::SlowPathWrites),
            mem_spare_bytes: pool.resident_bytes.saturating_sub(pool.used_bytes),
            mem_resident_bytes: pool.resident_bytes,
            table_bytes: self.table.reserved_bytes(),
            side_tables_bytes: pool.side_bytes + side_tables * self.table.len() * 4,
            bd_count: count(Counter::BdCount),
            bd_reads: count(Counter::BdReads),
            bd_writes: count(Counter::BdWrites),
            bd_failed_writes: count(Counter::BdFailedWrites),
            recompressed_pages: count(Counter::RecompressedPages),
            incompressible_pages: count(Counter::IncompressiblePages),
            lost_pages: count(Counter::LostPages),
        }
    }

    /// Leases a stream; sleeps while none may be had.
    fn lease(&self) -> Result<S::Lease<'_>> {
        self.streams.lease(|| self.compression.stream())
    }

    /// Counts a request outside the device, which never reaches a page.
    pub(crate) fn count_invalid_io(&self) {
        self.counters.add(Counter::InvalidIo, 1);
    }

    fn punch(&self, index: PageIndex) -> Result<()> {
        match self.table.is_hole(index)? {
            true => Ok(()),
            false => self.replace(index, Entry::Empty),
        }
    }

    fn replace(&self, index: PageIndex, entry: Entry) -> Result<()> {
        let guard = self.table.lock(index)?;
        self.publish(guard, entry, 0);
        Ok(())
    }

    /// Publishes what a user wrote, `entry`, as [`StoreWith::put`] does.
    fn publish(&self, guard: SlotGuard<'_, L>, entry: Entry, checksum: u32) {
        self.note_access(&guard);
        self.put(guard, entry, checksum, Flags::NONE);
    }

    /// Notes that a user reads or writes the page.
    #[inline]
    fn note_access(&self, slot: &Locked) {
        if let Some(ages) = &self.ages {
            ages.note(slot.index());
        }
    }

    /// Publishes `entry` with its object's checksum, counts it, and frees what it replaced.
    fn put(&self, guard: SlotGuard<'_, L>, entry: Entry, checksum: u32, flags: Flags) {
        if let Some(cell) = self.checksum_cell(guard.index()) {
            cell.store(checksum, Ordering::Relaxed);
            #[cfg(all(test, not(uzram_shuttle)))]
            crate::crash::point();
        }
        self.counters.add_all(counted(guard.entry(), &entry));
        self.count_flags(guard.flags(), flags);
        if matches!(entry, Entry::Raw(_)) {
            self.counters.add(Counter::HugePagesSince, 1);
        }
        match guard.publish(entry, flags) {
            Entry::Raw(handle) | Entry::Packed(handle) => {
                self.pool.remove(handle);
            }
            Entry::Back(block) => {
                if let Some(backing) = &self.backing {
                    backing.give(block);
                }
            }
            Entry::Empty | Entry::Same(_) | Entry::Lost => {}
        }
    }

    /// Counts the change of a page's flags; most have none.
    #[inline]
    fn count_flags(&self, old: Flags, new: Flags) {
        if old.are_counted() || new.are_counted() {
            let change = |is: fn(Flags) -> bool| u64::from(is(new)).wrapping_sub(is(old).into());
            self.counters.add_all([
                (
                    Counter::RecompressedPages,
                    change(|flags| flags.priority() > 0),
                ),
                (
                    Counter::IncompressiblePages,
                    change(Flags::is_incompressible),
                ),
            ]);
        }
    }

    fn checksum_cell(&self, index: PageIndex) -> Option<&MappedU32> {
        self.checksums.as_ref().map(|table| table.cell(index))
    }

    /// The checksum that goes with an object, 0 in stores without.
    fn checksum_of(&self, object: &[u8]) -> u32 {
        let hash = |_: &SideTable| crc32fast::hash(object);
        self.checksums.as_ref().map_or(0, hash)
    }

    fn side_tables(&self) -> impl Iterator<Item = &SideTable> {
        let accessed_s = self.ages.as_ref().map(|ages| &ages.accessed_s);
        self.checksums.iter().chain(accessed_s)
    }

    fn check_page(&self, length: usize) -> Result<()> {
        match length == self.unit.bytes() {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "a buffer of {length} bytes for a page of {}",
                    self.unit.bytes()
                ),
            )),
        }
    }

    fn check_part(&self, start: usize, length: usize) -> Result<()> {
        match start.checked_add(length) {
            Some(end) if end <= self.unit.bytes() => Ok(()),
            _ => Err(Error::new(
                ErrorKind::OutOfRange,
                format!(
                    "bytes {start} and {length} more of a page of {}",
                    self.unit.bytes()
                ),
            )),
        }
    }
}

impl<L: SlotLock, S: StreamPolicy<Stream>> fmt::Debug for StoreWith<L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("size_bytes", &self.size_bytes())
            .field("unit", &self.unit)
            .field("algorithm", &self.algorithm())
            .field("pool", &self.pool_name)
            .finish_non_exhaustive()
    }
}

/// The changes of the counters when an entry replaces another one: mostly in the size alone.
fn counted(old: &Entry, new: &Entry) -> [(Counter, u64); 6] {
    let amounts = |entry: &Entry| match entry {
        Entry::Empty => [0; 6],
        Entry::Same(_) => [1, 1, 0, 0, 0, 0],
        Entry::Raw(handle) => [1, 0, 1, handle.size_bytes() as u64, 0, 0],
        Entry::Packed(handle) => [1, 0, 0, handle.size_bytes() as u64, 0, 0],
        Entry::Back(_) => [1, 0, 0, 0, 1, 0],
        Entry::Lost => [0, 0, 0, 0, 0, 1],
    };
    let (old, new) = (amounts(old), amounts(new));
    let change = |counter, at: usize| (counter, new[at].wrapping_sub(old[at]));
    [
        change(Counter::PagesStored, 0),
        change(Counter::SamePages, 1),
        change(Counter::HugePages, 2),
        change(Counter::ComprDataBytes, 3),
        change(Counter::BdCount, 4),
        change(Counter::LostPages, 5),
    ]
}

#[cfg(all(test, not(uzram_shuttle)))]
mod backing_recover_tests;
#[cfg(all(test, uzram_shuttle))]
mod cold_shuttle_tests;
#[cfg(all(test, not(uzram_shuttle)))]
mod corrupt_tests;
#[cfg(all(test, not(uzram_shuttle)))]
mod crash_tests;
#[cfg(all(test, not(uzram_shuttle)))]
mod fault_tests;
#[cfg(all(test, not(uzram_shuttle)))]
mod recover_tests;
#[cfg(all(test, uzram_shuttle))]
mod shuttle_tests;
