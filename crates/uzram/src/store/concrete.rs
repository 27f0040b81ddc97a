//! The public store: a [`StoreWith`] of the product's slot lock, a bit with sleepers, and of the streams of its
//! compression. Each method calls the one of [`StoreWith`], in the file of that verb.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use super::StoreWith;
use super::lock::SleepingBit;
#[cfg(all(test, not(uzram_shuttle)))]
use super::slot::SlotTable;
use crate::codec::Parameters;
use crate::codec::streams::SharedStreams;
use crate::config::{StoreBuilder, StoreConfig};
use crate::error::Result;
use crate::page::{PageIndex, PageState, Unit, Zeroing};
#[cfg(all(test, not(uzram_shuttle)))]
use crate::pool::PoolConfig;
#[cfg(all(test, not(uzram_shuttle)))]
use crate::region::Region;
use crate::stats::Stats;
use crate::sync::Arc;

/// Pages kept compressed in memory.
///
/// Any number of threads may read and write at once. Operations on one page take effect one after
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
pub struct Store {
    pub(super) inner: StoreWith<SleepingBit, SharedStreams>,
}

impl Store {
    /// Starts the making of a store.
    #[must_use]
    pub fn builder() -> StoreBuilder {
        StoreBuilder::default()
    }

    pub(super) fn new(config: StoreConfig) -> Result<Store> {
        let streams = SharedStreams(Arc::clone(&config.compression));
        let inner = StoreWith::new(config, streams)?;
        Ok(Store { inner })
    }

    /// A store of what a dead process left.
    #[cfg(all(test, not(uzram_shuttle)))]
    pub(super) fn over(
        config: StoreConfig,
        pool_config: &PoolConfig,
        table: SlotTable<SleepingBit>,
        arena: Region,
    ) -> Result<Store> {
        let streams = SharedStreams(Arc::clone(&config.compression));
        let inner = StoreWith::over(config, streams, pool_config, table, arena)?;
        Ok(Store { inner })
    }

    /// Writes `page`, one unit, as page `index`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a buffer of another length,
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange),
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) at the memory limit and
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory): the page keeps its old content.
    pub fn write(&self, index: PageIndex, page: &[u8]) -> Result<()> {
        self.inner.write(index, page)
    }

    /// Reads page `index` into `page`, one unit. Pages never written read as zeroes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a buffer of another length,
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange),
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if the stored object is damaged,
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory) if its codec needs state and there is no
    /// memory for it. The buffer then holds zeroes.
    pub fn read(&self, index: PageIndex, page: &mut [u8]) -> Result<()> {
        self.inner.read(index, page)
    }

    /// As [`StoreWith::expect`].
    pub(crate) fn expect(&self, index: PageIndex) {
        self.inner.expect(index);
    }

    /// Writes `part` into page `index` from byte `start` on; the rest of the page stays.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange) if the part is not within the page,
    /// else as [`Store::write`], and [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if the old
    /// page cannot be read.
    pub fn write_at(&self, index: PageIndex, start: usize, part: &[u8]) -> Result<()> {
        self.inner.write_at(index, start, part)
    }

    /// Reads the bytes of page `index` from `start` on into `part`.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange) if the part is not within the page,
    /// else as [`Store::read`], and [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory) for the
    /// buffer into which a compressed page is decompressed.
    pub fn read_at(&self, index: PageIndex, start: usize, part: &mut [u8]) -> Result<()> {
        self.inner.read_at(index, start, part)
    }

    /// Makes page `index` read as zeroes and frees its memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange);
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory) if the page must not become a hole and the
    /// table of pages cannot grow.
    pub fn zero(&self, index: PageIndex, zeroing: Zeroing) -> Result<()> {
        self.inner.zero(index, zeroing)
    }

    /// Zeroes `length` bytes of page `index` from `start` on; the rest of the page stays.
    ///
    /// # Errors
    /// As [`Store::write_at`].
    pub fn zero_at(
        &self,
        index: PageIndex,
        start: usize,
        length: usize,
        zeroing: Zeroing,
    ) -> Result<()> {
        self.inner.zero_at(index, start, length, zeroing)
    }

    /// Makes page `index` a hole and frees its memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange).
    pub fn trim(&self, index: PageIndex) -> Result<()> {
        self.inner.trim(index)
    }

    /// The state of page `index` at this moment.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange).
    pub fn state(&self, index: PageIndex) -> Result<PageState> {
        self.inner.state(index)
    }

    /// Moves objects together and gives the memory that becomes free back to the system, the spare
    /// included, for about `budget`. Returns whether more is left to do, which [`Store::maintain`]
    /// will do too. In all it may take as long as copying all objects; readers and writers go on.
    ///
    /// ```
    /// # let store = uzram::Store::builder().size(64 << 20).build()?;
    /// while store.compact(std::time::Duration::from_millis(100))? {}
    /// # Ok::<(), uzram::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory) if there is none for the list of blocks to
    /// empty.
    pub fn compact(&self, budget: Duration) -> Result<bool> {
        self.inner.compact(budget)
    }

    /// Does work that writers should not wait for, such as populating a spare or compacting sparse
    /// blocks, for about `budget`. Returns whether more is left to do. Call it now and then from a
    /// thread of your own.
    pub fn maintain(&self, budget: Duration) -> bool {
        self.inner.maintain(budget)
    }

    /// Empties the store, gives its memory back and zeroes its counters, as zram's `reset` does. A
    /// page written meanwhile by another thread may survive. Each call that is under way meanwhile may keep up to 12
    /// KiB of tables, and each 2 MiB of objects that it takes those of its blocks, until the next reset.
    pub fn reset(&self) {
        self.inner.reset();
    }

    /// The content and the history of the store.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Memory that objects take, with the pool's overhead, in bytes: `mem_used_total_bytes` of
    /// [`Store::stats`] without the locks that the rest of the statistics take.
    #[must_use]
    pub fn mem_used_bytes(&self) -> u64 {
        self.inner.mem_used_bytes()
    }

    /// The limit on memory for objects, in bytes; 0 for none.
    #[must_use]
    pub fn mem_limit(&self) -> u64 {
        self.inner.mem_limit()
    }

    /// Changes the limit, in bytes; 0 removes it. It is not retroactive: stored pages stay, and
    /// until enough is freed new objects are refused unless they fit between others.
    pub fn set_mem_limit(&self, limit_bytes: u64) {
        self.inner.set_mem_limit(limit_bytes);
    }

    /// Forgets the highest memory use, as writing 0 to zram's `mem_used_max` does.
    pub fn reset_mem_used_max(&self) {
        self.inner.reset_mem_used_max();
    }

    /// Size of the store before compression, in bytes: a multiple of the unit.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    /// The size of a page.
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.inner.unit()
    }

    /// The codec's name.
    #[must_use]
    pub fn algorithm(&self) -> &str {
        self.inner.algorithm()
    }

    /// The codec's parameters, where they differ from its defaults.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        self.inner.parameters()
    }

    /// The pool's name.
    #[must_use]
    pub fn pool(&self) -> &'static str {
        self.inner.pool()
    }

    pub(crate) fn trim_range(&self, range: Range<u64>) -> Result<()> {
        self.inner.trim_range(range)
    }

    pub(crate) fn punch_range(&self, range: Range<u64>) -> Result<()> {
        self.inner.punch_range(range)
    }

    pub(crate) fn next_touched(&self, from: u64) -> u64 {
        self.inner.next_touched(from)
    }

    pub(crate) fn count_invalid_io(&self) {
        self.inner.count_invalid_io();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
