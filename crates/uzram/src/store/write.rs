//! Writing: prepare, then publish.
//!
//! *Fast path*: compress on this CPU's stream, insert into populated memory, give the stream back,
//! publish. *Slow path*: if the pool must grow, give the stream back first (growing may sleep, and
//! a sleeper must not hold up other writers), grow, lease again and compress again, because
//! another writer used the buffer meanwhile. A failed write leaves the old page as it was.
//!
//! Pages that look random are kept raw without a try. The look costs other pages a hundredth of
//! lz4's time. Where every fourth page is random, writes take 3 to 7 % less time with lz4, 10 to
//! 15 % with zstd.

use std::ops::Range;
use std::time::Duration;

use crate::codec::streams::{Stream, StreamPolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::page::{self, PageIndex, Zeroing};
use crate::pool::{Full, Handle, Room};
use crate::stats::Counter;
use crate::sync::{self, AtomicBool, MutexGuard, Ordering};

use super::StoreWith;
use super::lock::SlotLock;
use super::slot::{Entry, SlotGuard};

/// Times that a write grows the pool before it gives up. Others may take the new memory, or a reset
/// give it back: once it starves, each one already under way does so at most once.
const GROWTHS_MAX: usize = if cfg!(uzram_shuttle) { 3 } else { 64 };

/// After this many a writer is starving: it gets a turn, and later writers wait.
const GROWTHS_UNTIL_STARVING: usize = if cfg!(uzram_shuttle) { 1 } else { 4 };

/// Times that a write of a part reads its page from the file. Others may have changed it each time; the last holds them
/// off.
const FETCHES_MAX: usize = if cfg!(uzram_shuttle) { 2 } else { 8 };

/// Looks of a writer for the refilled spare, and the pause between them: a second in all.
const SPARE_WAITS_MAX: usize = if cfg!(uzram_shuttle) { 2 } else { 1000 };
const SPARE_PAUSE: Duration = Duration::from_millis(1);

/// Closer to the limit than this, in bytes, the spare may not be refilled: it comes in spans of 2
/// MiB.
const NEAR_LIMIT_BYTES: u64 = 8 << 20;

/// Under a smaller limit, in bytes, pools take no huge pages, of which a spare consists.
const SPARE_LIMIT_BYTES_MIN: u64 = 64 << 20;

/// The new content of a partial write's range.
enum Patch<'a> {
    Bytes(&'a [u8]),
    Zeroes(Zeroing),
}

/// Content without a slot: it must be published or freed.
struct Prepared {
    entry: Entry,
    checksum: u32,
}

/// A locked slot, and its page if that was read from the file.
struct LockedPage<'a, L: SlotLock> {
    guard: SlotGuard<'a, L>,
    fetched: Option<Box<[u8]>>,
}

/// The turn to grow the pool, of one writer at a time.
struct Turn<'a> {
    _growing: MutexGuard<'a, ()>,
    starving: &'a AtomicBool,
}

impl<'a> Turn<'a> {
    fn new<L: SlotLock, S: StreamPolicy<Stream>>(store: &'a StoreWith<L, S>) -> Turn<'a> {
        Turn {
            _growing: store.growing.lock(),
            starving: &store.starving,
        }
    }

    /// Others took the new memory of this writer: writers that have not begun wait until the turn
    /// ends.
    fn starve(&self) {
        self.starving.store(true, Ordering::Relaxed);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.starving.store(false, Ordering::Relaxed);
    }
}

/// The reason why an attempt did not end in content.
enum Retry {
    /// Grow the pool for an object of this many bytes and start again.
    Grow(usize),
    Fail(Error),
}

impl From<Error> for Retry {
    fn from(error: Error) -> Retry {
        Retry::Fail(error)
    }
}

impl<L: SlotLock, S: StreamPolicy<Stream>> StoreWith<L, S> {
    /// As [`Store::write`](crate::Store::write).
    pub fn write(&self, index: PageIndex, page: &[u8]) -> Result<()> {
        self.check_page(page.len())?;
        self.table.check(index)?;
        self.counting_failure(|| {
            self.table.admit(index)?;
            let prepared = self.attempts(|| self.prepare(page))?;
            match self.table.lock(index) {
                Ok(guard) => self.publish(guard, prepared.entry, prepared.checksum),
                Err(_) => unreachable!("the index was checked and tables do not shrink"),
            }
            Ok(())
        })
    }

    /// As [`Store::write_at`](crate::Store::write_at).
    pub fn write_at(&self, index: PageIndex, start: usize, part: &[u8]) -> Result<()> {
        self.check_part(start, part.len())?;
        if part.len() == self.unit.bytes() {
            return self.write(index, part);
        }
        self.update(index, start..start + part.len(), &Patch::Bytes(part))
    }

    /// As [`Store::zero_at`](crate::Store::zero_at).
    pub fn zero_at(
        &self,
        index: PageIndex,
        start: usize,
        length: usize,
        zeroing: Zeroing,
    ) -> Result<()> {
        self.check_part(start, length)?;
        if length == self.unit.bytes() {
            return self.zero(index, zeroing);
        }
        if zeroing == Zeroing::MayPunch && self.table.is_hole(index)? {
            return Ok(());
        }
        self.update(index, start..start + length, &Patch::Zeroes(zeroing))
    }

    /// Reads, merges, compresses and publishes under the slot's lock, so that no other writer's
    /// bytes are undone. If memory must be made, it unlocks, makes memory, and starts again from
    /// the read.
    fn update(&self, index: PageIndex, range: Range<usize>, patch: &Patch<'_>) -> Result<()> {
        self.table.check(index)?;
        self.counting_failure(|| {
            self.table.admit(index)?;
            self.attempts(|| self.try_update(index, range.clone(), patch))
        })
    }

    fn try_update(
        &self,
        index: PageIndex,
        range: Range<usize>,
        patch: &Patch<'_>,
    ) -> Result<(), Retry> {
        let LockedPage { guard, fetched } = self.lock_fetched(index)?;
        if range.is_empty() || is_zero_already(guard.entry(), patch) {
            return Ok(());
        }
        let mut stream = self.lease()?;
        let Stream { packer, page } = &mut *stream;
        match fetched {
            Some(fetched) => page.copy_from_slice(&fetched),
            None => self.load(&guard, page)?,
        }
        match patch {
            Patch::Bytes(bytes) => page[range].copy_from_slice(bytes),
            Patch::Zeroes(_) => page[range].fill(0),
        }
        let prepared = match same_filled(page) {
            Some(prepared) => prepared,
            None if self.compression.is_in_vain(page) => self.insert_untried(page)?,
            None => self.insert(page, packer.compress(page))?,
        };
        drop(stream);
        self.publish(guard, prepared.entry, prepared.checksum);
        Ok(())
    }

    /// Locks a slot. If its page is in the file, it has been read, mostly without the lock: others need the slot, and the
    /// streams, while this waits for a disk.
    fn lock_fetched(&self, index: PageIndex) -> Result<LockedPage<'_, L>> {
        let mut guard = self.table.lock(index)?;
        for fetches in 1.. {
            let Entry::Back(block) = guard.entry() else {
                break;
            };
            let mut page = memory::boxed_slice(self.unit.bytes(), 0)?;
            let pinned = self.pin_back(&guard, block)?;
            if fetches < FETCHES_MAX {
                drop(guard);
                self.load_back(&pinned, &mut page)?;
                guard = self.table.lock(index)?;
            } else {
                self.load_back(&pinned, &mut page)?;
            }
            // Its block cannot have left and come back, as it is pinned.
            if pinned.is_of(&guard) {
                let fetched = Some(page);
                return Ok(LockedPage { guard, fetched });
            }
        }
        let fetched = None;
        Ok(LockedPage { guard, fetched })
    }

    /// Turns `page` into content.
    fn prepare(&self, page: &[u8]) -> Result<Prepared, Retry> {
        if let Some(prepared) = same_filled(page) {
            return Ok(prepared);
        }
        if self.compression.is_in_vain(page) {
            return self.insert_untried(page);
        }
        let mut stream = self.lease()?;
        self.insert(page, stream.packer.compress(page))
    }

    /// Inserts a page that looks random.
    fn insert_untried(&self, page: &[u8]) -> Result<Prepared, Retry> {
        let prepared = self.insert(page, None)?;
        self.counters.add(Counter::EarlyRejections, 1);
        Ok(prepared)
    }

    /// Inserts the packed form, or the page itself if packing saves no memory.
    fn insert(&self, page: &[u8], packed: Option<&[u8]>) -> Result<Prepared, Retry> {
        let worth = |packed: &&[u8]| (1..self.huge_bytes).contains(&packed.len());
        let (bytes, entry): (_, fn(Handle) -> Entry) = match packed.filter(worth) {
            Some(packed) => (packed, Entry::Packed),
            None => (page, Entry::Raw),
        };
        match self.pool.insert(bytes, Room::Any) {
            Ok(handle) => {
                let checksum = self.checksum_of(bytes);
                Ok(Prepared {
                    entry: entry(handle),
                    checksum,
                })
            }
            Err(Full::NeedsMemory) => Err(Retry::Grow(bytes.len())),
            Err(Full::NoMemory) => Err(Retry::Fail(no_memory())),
        }
    }

    /// Runs `attempt` until it succeeds or fails, and once more if compaction kept memory from it.
    fn attempts<T>(&self, mut attempt: impl FnMut() -> Result<T, Retry>) -> Result<T> {
        match self.attempts_growing(&mut attempt) {
            Err(error) if is_full(&error) && self.stop_compacting() => {
                self.attempts_growing(&mut attempt)
            }
            ended => ended,
        }
    }

    /// Runs `attempt` until it succeeds or fails. It grows the pool in between, when the attempt
    /// has given its stream and slot back.
    fn attempts_growing<T>(&self, mut attempt: impl FnMut() -> Result<T, Retry>) -> Result<T> {
        self.behind_the_starving();
        let mut wanted_bytes = match attempt() {
            Ok(done) => return Ok(done),
            Err(Retry::Fail(error)) => return Err(error),
            Err(Retry::Grow(size_bytes)) => size_bytes,
        };
        if self.has_spare && !self.is_near_limit() {
            return self.await_spare(attempt);
        }
        // Under a limit the pool makes room by giving free runs back, and it cannot know which of them
        // another writer has just made for itself: without turns two could do that to each other.
        let limited = self.mem_limit() > 0;
        let mut turn = limited.then(|| Turn::new(self));
        for growths in 0..GROWTHS_MAX {
            if growths == GROWTHS_UNTIL_STARVING {
                turn.get_or_insert_with(|| Turn::new(self)).starve();
            }
            self.counters.add(Counter::SlowPathWrites, 1);
            self.pool.grow(wanted_bytes)?;
            match attempt() {
                Ok(done) => return Ok(done),
                Err(Retry::Fail(error)) => return Err(error),
                Err(Retry::Grow(size_bytes)) => wanted_bytes = size_bytes,
            }
        }
        Err(if limited {
            limit_contended()
        } else {
            no_memory()
        })
    }

    /// Waits while a writer starves. Each other writer may take its new memory on the fast path,
    /// once for its current write, and a reset may give it back once. Then all of them wait here, and
    /// the memory is left to it.
    pub(super) fn behind_the_starving(&self) {
        if self.starving.load(Ordering::Relaxed) {
            drop(self.growing.lock());
        }
    }

    /// Repeats `attempt` until [`Store::maintain`] has refilled the spare. This thread must not
    /// refill it: waiting for memory here may be waiting for this very write.
    fn await_spare<T>(&self, mut attempt: impl FnMut() -> Result<T, Retry>) -> Result<T> {
        for wait in 0..SPARE_WAITS_MAX {
            self.counters.add(Counter::SlowPathWrites, 1);
            if wait == SPARE_WAITS_MAX / 2 {
                // The system may have no memory for a spare; then this is all there is.
                self.pool.make_room();
            }
            sync::sleep(SPARE_PAUSE);
            match attempt() {
                Ok(done) => return Ok(done),
                Err(Retry::Fail(error)) => return Err(error),
                Err(Retry::Grow(_)) => {}
            }
        }
        Err(no_memory())
    }

    /// Whether the limit may keep the spare from being refilled.
    fn is_near_limit(&self) -> bool {
        let limit_bytes = self.mem_limit();
        let is_small = limit_bytes < SPARE_LIMIT_BYTES_MIN;
        limit_bytes > 0 && (is_small || self.mem_used_bytes() + NEAR_LIMIT_BYTES > limit_bytes)
    }

    fn counting_failure<T>(&self, write: impl FnOnce() -> Result<T>) -> Result<T> {
        write().inspect_err(|_| self.counters.add(Counter::FailedWrites, 1))
    }
}

/// The content of a page that is filled with one word: no memory.
fn same_filled(page: &[u8]) -> Option<Prepared> {
    page::same_filled(page).map(|word| Prepared {
        entry: Entry::Same(word),
        checksum: 0,
    })
}

/// Whether zeroing part of the page changes nothing.
fn is_zero_already(entry: &Entry, patch: &Patch<'_>) -> bool {
    matches!(
        (patch, entry),
        (Patch::Zeroes(_), Entry::Same(0)) | (Patch::Zeroes(Zeroing::MayPunch), Entry::Empty)
    )
}

/// Whether memory may be missing that blocks closed to insertion have.
fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::NoMemory)
}

fn no_memory() -> Error {
    Error::new(
        ErrorKind::NoMemory,
        "no memory for a compressed page; free some or discard",
    )
}

fn limit_contended() -> Error {
    Error::new(
        ErrorKind::NoSpace,
        "at mem_limit others took all memory that became free; raise it, or discard or reset",
    )
}
