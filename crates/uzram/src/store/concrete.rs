//! The public store: a [`StoreWith`] of the product's slot lock, a bit with sleepers, and of the streams of its
//! compression. Each method calls the one of [`StoreWith`], in the file of that verb.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

#[cfg(not(uzram_shuttle))]
use super::body::Body;
use super::lock::SleepingBit;
use super::{BlockState, ColdPages, Recompressed, Recompression, StoreWith};
use crate::codec::streams::SharedStreams;
use crate::codec::{Compression, Parameters};
use crate::config::{StoreBuilder, StoreConfig};
use crate::error::Result;
use crate::page::{PageIndex, PageState, Unit, Zeroing};
#[cfg(not(uzram_shuttle))]
use crate::pool::PoolConfig;
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
    #[cfg(not(uzram_shuttle))]
    pub(super) fn over(
        config: StoreConfig,
        pool_config: &PoolConfig,
        body: Body<SleepingBit>,
    ) -> Result<Store> {
        let streams = SharedStreams(Arc::clone(&config.compression));
        let inner = StoreWith::over(config, streams, pool_config, body)?;
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

    /// Reads page `index` as [`Store::read`] does, but never from the backing file: false if it is there, and `page` is as it
    /// was.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub fn read_resident(&self, index: PageIndex, page: &mut [u8]) -> Result<bool> {
        self.inner.read_resident(index, page)
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

    /// Writes the objects of these pages to the backing file and frees their memory. Returns how many went: pages that
    /// have no object, or get new content meanwhile, stay as they are. It waits for the disk; reads and writes go on.
    ///
    /// Each page in the file has a checksum in memory. One that is damaged there is an error for who reads it, and never
    /// other bytes.
    ///
    /// ```
    /// use uzram::{PageIndex, PageState, Store};
    ///
    /// let file = tempfile::tempfile()?;
    /// let store = Store::builder().size(1 << 20).backing_file(file).build()?;
    /// let page: Vec<u8> = (0..4096_u32).map(|n| (n * n >> 7) as u8).collect();
    /// store.write(PageIndex(7), &page)?;
    /// assert_eq!(store.write_back(&[PageIndex(7)])?, 1);
    /// assert_eq!(store.state(PageIndex(7))?, PageState::WrittenBack);
    ///
    /// let mut back = vec![0; 4096];
    /// store.read(PageIndex(7), &mut back)?;
    /// assert_eq!(back, page);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) without a backing file;
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange);
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) if the file or the disk is full,
    /// [`ErrorKind::LimitUsedUp`](crate::ErrorKind::LimitUsedUp) at the limit and
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the disk fails, which does not end the pass: the pages that did not go
    /// stay in memory; [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub fn write_back(&self, pages: &[PageIndex]) -> Result<u64> {
        self.inner.write_back(pages)
    }

    /// As [`Store::write_back`] of all of `pages`, the largest objects first if a limit says how many may go. `goes_on` is
    /// asked before each page, and ends the pass by saying no.
    ///
    /// # Errors
    /// As [`Store::write_back`].
    pub fn write_back_cold(
        &self,
        pages: ColdPages,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64> {
        self.inner.write_back_cold(pages, goes_on)
    }

    /// As [`Store::write_back`] of the pages of `range`. `goes_on` is asked before each page, and ends the pass by saying
    /// no.
    ///
    /// # Errors
    /// As [`Store::write_back`].
    pub fn write_back_range(
        &self,
        range: Range<u64>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64> {
        self.inner.write_back_range(range, goes_on)
    }

    /// Whether pages can be written back.
    #[must_use]
    pub fn has_backing_file(&self) -> bool {
        self.inner.backing.is_some()
    }

    /// Whether compressed pages go to the backing file as they are.
    #[must_use]
    pub fn compressed_writeback(&self) -> bool {
        self.inner.compresses_back
    }

    /// Units of 4 KiB that may still be written to the backing file, where the limit is enabled.
    #[must_use]
    pub fn writeback_limit(&self) -> u64 {
        self.inner.budget().limit_4k()
    }

    /// Changes the limit, in units of 4 KiB. What is written to the file is taken from it.
    pub fn set_writeback_limit(&self, limit_4k: u64) {
        self.inner.budget().set_limit_4k(limit_4k);
    }

    /// Whether the limit counts.
    #[must_use]
    pub fn writeback_limit_enabled(&self) -> bool {
        self.inner.budget().is_enabled()
    }

    /// Enables or disables the limit.
    pub fn set_writeback_limit_enabled(&self, enabled: bool) {
        self.inner.budget().set_enabled(enabled);
    }

    /// Pages that are written to the backing file at once, and wait for the disk once; 4 MiB at most.
    #[must_use]
    pub fn writeback_batch_pages(&self) -> usize {
        self.inner.budget().batch_pages()
    }

    /// Changes the number of pages that are written at once, from the next batch on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) unless it is 1 to 1024.
    pub fn set_writeback_batch_pages(&self, pages: usize) -> Result<()> {
        self.inner.budget().set_batch_pages(pages)
    }

    /// Makes a hole of some blocks of the backing file whose pages have left. Returns whether there may be more. It may
    /// wait for the disk.
    pub fn discard_backing(&self) -> bool {
        self.inner.discard_backing()
    }

    /// Marks all pages idle that have an object in memory, which same-filled pages and those in the backing file have not.
    /// A read or write of a page takes the mark away.
    pub fn mark_idle(&self) {
        self.inner.mark_idle();
    }

    /// Marks those pages idle that nobody has read or written for `age`, to a second, and takes the mark from all others.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the store keeps no ages
    /// ([`StoreBuilder::ages`]).
    pub fn mark_idle_older_than(&self, age: Duration) -> Result<()> {
        self.inner.mark_idle_older_than(age)
    }

    /// The first page from `from` on that is no hole. Pages are seen one after another, without a lock.
    ///
    /// ```
    /// use uzram::{PageIndex, Store};
    ///
    /// let store = Store::builder().size(1 << 20).build()?;
    /// store.write(PageIndex(7), &[1; 4096])?;
    /// let state = store.block_state_from(0).expect("a page was written");
    /// assert_eq!(state.to_string(), "           7            0.000000 s.....");
    /// assert_eq!(store.block_state_from(state.index + 1), None);
    /// # Ok::<(), uzram::Error>(())
    /// ```
    #[must_use]
    pub fn block_state_from(&self, from: u64) -> Option<BlockState> {
        self.inner.block_state_from(from)
    }

    /// The secondary codec of this priority.
    #[must_use]
    pub fn secondary(&self, priority: u8) -> Option<&Arc<Compression>> {
        self.inner.secondary(priority)
    }

    /// The lowest priority whose secondary codec has this name.
    #[must_use]
    pub fn secondary_priority(&self, algorithm: &str) -> Option<u8> {
        self.inner.secondary_priority(algorithm)
    }

    /// Packs pages again by a secondary codec and keeps what became smaller, by 8 bytes at least. Only pages are tried
    /// that a codec of a lower priority packed, and none that a pass found incompressible. It takes as long as packing
    /// all of them; reads and writes go on, and a page that gets new content meanwhile keeps that. `goes_on` is asked
    /// before each page, and ends the pass by saying no. Passes that recompress or write back take turns.
    ///
    /// ```
    /// use uzram::{ColdPages, Compression, PageIndex, Recompression, Store, Unit};
    ///
    /// # #[cfg(feature = "c-codecs")] {
    /// let store = Store::builder().size(1 << 20).algorithm("lz4");
    /// let store = store.secondary(1, Compression::new("zstd", Unit::DEFAULT)?).build()?;
    /// let page: Vec<u8> = (0..4096_u32).map(|n| (n * n >> 7) as u8).collect();
    /// store.write(PageIndex(7), &page)?;
    /// store.mark_idle();
    ///
    /// let idle = Recompression { pages: ColdPages::Idle, ..Recompression::new(1) };
    /// assert_eq!(store.recompress(&idle, &mut || true)?.pages_replaced, 1);
    /// assert_eq!(store.stats().recompressed_pages, 1);
    /// # }
    /// # Ok::<(), uzram::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a priority without a codec, a threshold of which
    /// objects are kept raw, and [`ColdPages::Incompressible`];
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) and [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory) if a
    /// smaller object finds no memory beside the larger one, and the codec's own: what was replaced before stays
    /// so.
    pub fn recompress(
        &self,
        what: &Recompression,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Recompressed> {
        self.inner.recompress(what, goes_on)
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
