//! The store: pages by index, compressed, in a table of slots over a pool.
//!
//! One verb a file. `write.rs` prepares content unlocked and publishes it locked; `read.rs`
//! decompresses under the lock, straight from the pool's memory into the caller's buffer.

mod compact;
pub(crate) mod lock;
mod read;
#[cfg(all(test, not(uzram_shuttle)))]
mod recover;
mod slot;
mod write;

use std::fmt;
use std::time::{Duration, Instant};

use crate::codec::streams::{PerCpuStreams, Stream, StreamPolicy};
use crate::codec::{Compression, Parameters};
use crate::config::{StoreBuilder, StoreConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::page::{PageIndex, PageState, Unit, Zeroing};
use crate::pool::{self, Pool, PoolConfig, arena};
use crate::region::Region;
use crate::stats::{Counter, Counters, Stats};
use crate::sync::{Arc, AtomicBool, AtomicU64, MappedU32, Mutex, Ordering};

use self::compact::Compactor;
use self::lock::{SleepingBit, SlotLock};
use self::slot::{Entry, SlotGuard, SlotTable};

/// Pages kept compressed in memory.
///
/// Any number of threads may read and write at once; operations on one page take effect one after
/// another, and a failed one leaves the page as it was.
///
/// ```
/// use uzram::{PageIndex, Store};
///
/// let store = Store::builder().size(64 << 20).algorithm("lz4").build()?;
/// let page = b"uzram ".repeat(683)[..4096].to_vec();
/// store.write(PageIndex(7), &page)?;
///
/// let mut back = vec![0; 4096];
/// store.read(PageIndex(7), &mut back)?;
/// assert_eq!(back, page);
/// assert!(store.stats().compr_data_size_bytes < 100);
/// # Ok::<(), uzram::Error>(())
/// ```
///
/// The type's parameters are for our benchmarks, which compare other slot locks and other ways to
/// share the streams; everybody else writes `Store`.
pub struct Store<L = SleepingBit, S = PerCpuStreams<Stream>> {
    unit: Unit,
    pool_name: &'static str,
    compression: Arc<Compression<S>>,
    table: SlotTable<L>,
    pool: Box<dyn Pool>,
    counters: Counters,
    /// The pool's: objects from this size on are kept raw.
    huge_bytes: usize,
    mem_limit_bytes: AtomicU64,
    /// Whose turn it is to grow the pool under a limit, and to use what that made.
    growing: Mutex<()>,
    /// The writer whose turn it is has lost what it made to others.
    starving: AtomicBool,
    compactor: Mutex<Compactor>,
    /// CRC-32 of each object, where asked for; written and read under the slot's lock.
    checksums: Option<Region>,
    /// Whether writers wait for a spare instead of growing the pool.
    has_spare: bool,
}

impl Store {
    /// Starts the making of a store.
    #[must_use]
    pub fn builder() -> StoreBuilder {
        StoreBuilder::default()
    }
}

impl<L: SlotLock, S: StreamPolicy<Stream>> Store<L, S> {
    pub(crate) fn new(config: StoreConfig<S>) -> Result<Store<L, S>> {
        let pool_config = config.pool_config();
        let memory = arena::Memory::reserve(&pool_config)?;
        let table = SlotTable::new(config.disksize_bytes, config.unit, config.backing)?;
        let spare_bytes = config.spare_bytes;
        let mut store = Store::over(config, &pool_config, table, memory)?;
        if spare_bytes > 0 {
            store.make_ready(spare_bytes)?;
        }
        Ok(store)
    }

    /// Makes everything that a write may need.
    fn make_ready(&mut self, spare_bytes: u64) -> Result<()> {
        self.table.populate()?;
        if let Some(checksums) = &self.checksums {
            checksums.populate(0..checksums.length_bytes(), false)?;
        }
        self.compression.make_all()?;
        self.pool.make_ready()?;
        self.has_spare = self.pool.set_spare(spare_bytes);
        // A span each; false also when the system gives no more, which the next turns try again.
        while self.pool.maintain() {}
        Ok(())
    }

    fn over(
        config: StoreConfig<S>,
        pool_config: &PoolConfig,
        table: SlotTable<L>,
        memory: arena::Memory,
    ) -> Result<Store<L, S>> {
        let checksums = match config.checksum {
            true => {
                let bytes = usize::try_from(table.len())
                    .ok()
                    .and_then(|n| n.checked_mul(4));
                let bytes = bytes.ok_or_else(|| {
                    Error::new(
                        ErrorKind::NoMemory,
                        "the checksums exceed the address space",
                    )
                })?;
                Some(Region::reserve(bytes, config.backing)?)
            }
            false => None,
        };
        let pool = pool::make(config.pool, pool_config, memory)?;
        Ok(Store {
            unit: config.unit,
            pool_name: config.pool,
            compression: config.compression,
            huge_bytes: pool.huge_bytes(),
            pool,
            table,
            counters: Counters::new()?,
            mem_limit_bytes: AtomicU64::new(config.mem_limit_bytes),
            growing: Mutex::default(),
            starving: AtomicBool::new(false),
            compactor: Mutex::default(),
            checksums,
            has_spare: false,
        })
    }

    /// Size of the store before compression, in bytes: a multiple of the unit.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.table.len() << self.unit.shift()
    }

    /// The size of a page.
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The codec's name.
    #[must_use]
    pub fn algorithm(&self) -> &str {
        self.compression.codec().name()
    }

    /// The codec's parameters, where they differ from its defaults.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        self.compression.parameters()
    }

    /// The pool's name.
    #[must_use]
    pub fn pool(&self) -> &'static str {
        self.pool_name
    }

    /// The limit on memory for objects, in bytes; 0 for none.
    #[must_use]
    pub fn mem_limit(&self) -> u64 {
        self.mem_limit_bytes.load(Ordering::Relaxed)
    }

    /// Changes the limit, in bytes; 0 removes it. Not retroactive: what is stored stays, and
    /// new objects are refused until enough is gone.
    pub fn set_mem_limit(&self, limit_bytes: u64) {
        self.mem_limit_bytes.store(limit_bytes, Ordering::Relaxed);
        self.pool.set_limit(limit_bytes);
    }

    /// Forgets the highest memory use, as writing 0 to zram's `mem_used_max` does.
    pub fn reset_mem_used_max(&self) {
        self.pool.reset_used_max();
    }

    /// Makes page `index` a hole and frees its memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub fn trim(&self, index: PageIndex) -> Result<()> {
        self.punch(index)?;
        self.counters.add(Counter::NotifyFree, 1);
        Ok(())
    }

    /// Makes page `index` read as zeroes and frees its memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub fn zero(&self, index: PageIndex, zeroing: Zeroing) -> Result<()> {
        match zeroing {
            Zeroing::MayPunch => self.punch(index),
            Zeroing::NoHole => self.replace(index, Entry::Same(0)),
        }
    }

    /// How page `index` is kept at this moment.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub fn state(&self, index: PageIndex) -> Result<PageState> {
        self.table.state(index)
    }

    /// Empties the store, gives its memory back and zeroes its counters, as zram's `reset` does. A
    /// page written meanwhile by another thread may survive.
    pub fn reset(&self) {
        self.stop_compacting();
        for index in (0..self.table.len()).map(PageIndex) {
            let emptied = self.punch(index);
            debug_assert!(emptied.is_ok(), "emptying a slot that exists cannot fail");
        }
        self.counters.forget_events();
        self.pool.trim(arena::Parts::Stay);
        self.pool.reset_used_max();
    }

    /// Does work that writers should not wait for, such as populating a spare or compacting what has
    /// become sparse, for about `budget`; returns whether more is left to do. Call it now and then
    /// from a thread of your own.
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

    /// Memory that objects take, with the pool's overhead, in bytes: `mem_used_total_bytes` of
    /// [`Store::stats`] without the locks that the rest of the statistics take.
    #[must_use]
    pub fn mem_used_bytes(&self) -> u64 {
        self.pool.arena().stats().used_bytes
    }

    /// What the store holds and has done.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let pool = self.pool.stats();
        let count = |counter| self.counters.sum(counter);
        let checksum_bytes = self.checksums.as_ref().map_or(0, |_| self.table.len() * 4);
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
            side_tables_bytes: pool.side_bytes + checksum_bytes,
        }
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

    /// Publishes `entry` with its object's checksum, counts it, and frees what it replaced.
    fn publish(&self, guard: SlotGuard<'_, L>, entry: Entry, checksum: u32) {
        if let Some(cell) = self.checksum_cell(guard.index()) {
            cell.store(checksum, Ordering::Relaxed);
        }
        self.counters.add_all(counted(guard.entry(), &entry));
        if matches!(entry, Entry::Raw(_)) {
            self.counters.add(Counter::HugePagesSince, 1);
        }
        match guard.publish(entry) {
            Entry::Raw(handle) | Entry::Packed(handle) => {
                self.pool.remove(handle);
            }
            Entry::Empty | Entry::Same(_) => {}
        }
    }

    fn checksum_cell(&self, index: PageIndex) -> Option<&MappedU32> {
        self.checksums
            .as_ref()
            .map(|region| &region.half_words()[index.0 as usize])
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

impl<L: SlotLock, S: StreamPolicy<Stream>> fmt::Debug for Store<L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("size_bytes", &self.size_bytes())
            .field("unit", &self.unit)
            .field("algorithm", &self.algorithm())
            .field("pool", &self.pool_name)
            .finish_non_exhaustive()
    }
}

/// How the counts of what is stored change when an entry replaces another one: mostly in the size alone.
fn counted(old: &Entry, new: &Entry) -> [(Counter, u64); 4] {
    let amounts = |entry: &Entry| match entry {
        Entry::Empty => [0; 4],
        Entry::Same(_) => [1, 1, 0, 0],
        Entry::Raw(handle) => [1, 0, 1, handle.size_bytes() as u64],
        Entry::Packed(handle) => [1, 0, 0, handle.size_bytes() as u64],
    };
    let (old, new) = (amounts(old), amounts(new));
    let change = |counter, at: usize| (counter, new[at].wrapping_sub(old[at]));
    [
        change(Counter::PagesStored, 0),
        change(Counter::SamePages, 1),
        change(Counter::HugePages, 2),
        change(Counter::ComprDataBytes, 3),
    ]
}

#[cfg(all(test, not(uzram_shuttle)))]
mod corrupt_tests;
#[cfg(all(test, not(uzram_shuttle)))]
mod fault_tests;
#[cfg(all(test, not(uzram_shuttle)))]
mod recover_tests;
#[cfg(all(test, uzram_shuttle))]
mod shuttle_tests;
