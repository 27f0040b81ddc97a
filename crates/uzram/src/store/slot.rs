//! The slot table: one 64-bit word per page. The word is the only record of the page's content,
//! and its lock.
//!
//! ```text
//! bits 0-1    the lock's
//! bits 2-4    kind: empty, same-filled, raw, packed, written-back, lost (shared is reserved)
//! bits 5-7    flags: idle, mark, incompressible
//! bits 8-9    codec priority
//! bits 10-25  size in bytes, less one
//! bits 26-63  payload: the object's granule in the arena, its block in the backing file, or the fill word
//! ```
//!
//! Lock order of the engine: compactor > turn to grow, turn to set the limit > slot > stream or
//! decompression context > pool class or shard > arena.
//! 1. An entry is seen and changed only through its [`SlotGuard`].
//! 2. A writer of a whole page prepares the new content unlocked, gives its stream and the pool's
//!    lock back, and locks the slot only to publish. It frees the old content after the unlock.
//! 3. A writer of part of a page holds the lock from the read to the publish. If memory must be
//!    made, it unlocks, makes memory, and starts again from the read.
//! 4. No thread waits for a slot while it holds one. Only [`SlotTable::give_back`] holds several: it
//!    tries those of a chunk, and never waits.
//!
//! The lock itself is in `store/lock.rs`.
//!
//! One bit per chunk of [`CHUNK_SLOTS`] slots says whether any of them was locked. Slots of other chunks are holes, which
//! is known without touching them. Looking at a page of the table can make it resident, so a sweep over the slots costs
//! what the disk holds and not what it could hold. A thread that has locked a slot sets its chunk's bit before it
//! publishes, so what has content has its bit.
//!
//! The memory of an empty chunk can be given back ([`SlotTable::give_back`]), or of a few chunks where the system's pages
//! are larger. All of their slots are locked, the bits are cleared, and the pages are dropped. Dropped words are zero:
//! empty and unlocked. Locked words keep others out until they are gone. A thread that locks a slot later comes after the
//! clearing, so the bit that it sets stays. Threads that wait for such a slot are woken. (If somebody looks at a memfd's
//! page without a lock just then, the page is back without a bit. It reads as holes too.)

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::{Deref, Range};
#[cfg(not(uzram_shuttle))]
use std::os::fd::OwnedFd;

use crate::error::{Error, ErrorKind, Result};
use crate::headroom;
use crate::memory;
use crate::page::{PageIndex, PageState, Unit};
use crate::pool::Handle;
use crate::region::Backing;
use crate::sync::{AtomicU64, Ordering};

use super::backing_file::Block;
use super::layout::{
    Flags, KIND_BACK, KIND_EMPTY, KIND_LOST, KIND_PACKED, KIND_RAW, KIND_SAME, KIND_SHIFT,
    PAYLOAD_SHIFT, SIZE_SHIFT, Seen, kind, size_bytes, without_idle,
};
#[cfg(not(uzram_shuttle))]
use super::layout::{is_sound, without_mark};
use super::lock::{LOCK_BITS, SleepingBit, Slot, SlotLock};
use super::words::{Words, too_many};

/// Slots that share a bit: two pages of the table, and one page of the checksums, where pages are of 4 KiB.
pub(crate) const CHUNK_SLOTS: u64 = if cfg!(uzram_shuttle) { 2 } else { 1024 };

/// The cost of a chunk's first slot, with its checksums, ages and page tables, in bytes.
const CHUNK_BYTES: usize = 20 << 10;

/// The content of a slot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A hole: reads as zeroes, takes no memory.
    Empty,
    /// Filled with one repeated word; no memory.
    Same(u32),
    /// The page itself.
    Raw(Handle),
    /// The page, compressed.
    Packed(Handle),
    /// In the backing file: the page, or what it was compressed to if that is smaller.
    Back(Block),
    /// Its word was damaged when the store was taken over.
    Lost,
}

impl Entry {
    fn encode(self) -> u64 {
        let object = |kind: u64, handle: Handle| {
            let (granule, size) = handle.into_parts();
            kind << KIND_SHIFT | u64::from(size - 1) << SIZE_SHIFT | granule << PAYLOAD_SHIFT
        };
        match self {
            Entry::Empty => KIND_EMPTY << KIND_SHIFT,
            Entry::Same(word) => KIND_SAME << KIND_SHIFT | u64::from(word) << PAYLOAD_SHIFT,
            Entry::Raw(handle) => object(KIND_RAW, handle),
            Entry::Packed(handle) => object(KIND_PACKED, handle),
            Entry::Back(block) => {
                let (number, size) = block.into_parts();
                KIND_BACK << KIND_SHIFT
                    | u64::from(size - 1) << SIZE_SHIFT
                    | number << PAYLOAD_SHIFT
            }
            Entry::Lost => KIND_LOST << KIND_SHIFT,
        }
    }

    /// # Safety
    /// `word` must come from [`Entry::encode`]. No handle of an earlier decoding may be alive,
    /// except those that shared guards lend; beside them this one is only lent too.
    unsafe fn decode(word: u64) -> Entry {
        let payload = word >> PAYLOAD_SHIFT;
        let size = size_bytes(word);
        // SAFETY: the word took over the object from the handle that was encoded, and the caller
        // vouches that nobody else made a handle of it since.
        let handle = || unsafe { Handle::from_parts(payload, size) };
        match kind(word) {
            KIND_SAME => Entry::Same(payload as u32),
            KIND_RAW => Entry::Raw(handle()),
            KIND_PACKED => Entry::Packed(handle()),
            KIND_BACK => Entry::Back(Block::from_parts(payload, size)),
            KIND_LOST => Entry::Lost,
            _ => Entry::Empty,
        }
    }
}

/// All slots of a store.
#[derive(Debug)]
pub(crate) struct SlotTable<L = SleepingBit> {
    words: Words,
    slots: u64,
    /// One bit per chunk.
    touched: Box<[AtomicU64]>,
    /// All of it, and of the tables beside it, has memory for good.
    is_populated: bool,
    lock: L,
}

impl<L: SlotLock> SlotTable<L> {
    /// A table of empty slots for `disksize_bytes`, which is a multiple of the unit.
    pub(crate) fn new(disksize_bytes: u64, unit: Unit, backing: Backing) -> Result<SlotTable<L>> {
        const { assert!(L::ENTRY_WORDS > 0) };
        let slots = disksize_bytes >> unit.shift();
        let words = slots
            .checked_mul(L::ENTRY_WORDS as u64)
            .ok_or_else(too_many);
        SlotTable::over(Words::reserve(words?, backing)?, slots)
    }

    /// The table that a process which died left: to be [settled](SlotTable::inherit) before any other use.
    ///
    /// # Errors
    /// As [`Region::attach`](crate::region::Region::attach).
    #[cfg(not(uzram_shuttle))]
    pub(crate) fn attach(file: OwnedFd, slots: u64) -> Result<SlotTable<L>> {
        let words = slots
            .checked_mul(L::ENTRY_WORDS as u64)
            .ok_or_else(too_many);
        SlotTable::over(Words::attach(file, words?)?, slots)
    }

    fn over(words: Words, slots: u64) -> Result<SlotTable<L>> {
        let chunks = slots.div_ceil(CHUNK_SLOTS);
        let mut touched = Vec::new();
        memory::reserve(&mut touched, chunks.div_ceil(64) as usize)?;
        touched.resize_with(touched.capacity(), AtomicU64::default);
        Ok(SlotTable {
            words,
            slots,
            touched: touched.into_boxed_slice(),
            is_populated: false,
            lock: L::new()?,
        })
    }

    /// Makes all of it resident, so that no write waits for memory for it, as its caller does with the tables beside it.
    pub(crate) fn populate(&mut self) -> Result<()> {
        self.words.populate()?;
        self.is_populated = true;
        Ok(())
    }

    pub(crate) fn len(&self) -> u64 {
        self.slots
    }

    /// Bytes of address space that the words take.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.slots * (L::ENTRY_WORDS * size_of::<u64>()) as u64
    }

    /// The words, in their memory.
    #[cfg(not(uzram_shuttle))]
    pub(crate) fn words(&self) -> &Words {
        &self.words
    }

    /// Locks the slot of page `index`.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub(crate) fn lock(&self, index: PageIndex) -> Result<SlotGuard<'_, L>> {
        self.check(index)?;
        let word = self.lock.lock(self.slot(index));
        self.touch(index);
        // SAFETY: the slot is locked now: whoever decoded its word before has encoded or forgotten
        // its handle, since a guard does one of the two before it unlocks.
        let entry = unsafe { Entry::decode(word) };
        Ok(SlotGuard {
            table: self,
            locked: Locked::new(index, word, entry),
        })
    }

    /// Locks the slot of page `index` only to look at it. Other readers may do so at the same
    /// time.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub(crate) fn lock_shared(&self, index: PageIndex) -> Result<SharedGuard<'_, L>> {
        self.check(index)?;
        let word = self.lock.lock_shared(self.slot(index));
        self.touch(index);
        // SAFETY: as in `lock`, except that others may have decoded the same word and share the lock:
        // a shared guard lends its handle only, to readers, and forgets it before it unlocks.
        let entry = unsafe { Entry::decode(word) };
        Ok(SharedGuard {
            table: self,
            locked: Locked::new(index, word, entry),
        })
    }

    /// Whether page `index` is a hole, seen without the lock, and without touching a page of the
    /// table that has no memory. Touching it would make it resident, and `mkfs` discards and reads
    /// whole devices that hold nothing. An acknowledged write is seen; one under way may or may
    /// not be.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub(crate) fn is_hole(&self, index: PageIndex) -> Result<bool> {
        self.check(index)?;
        Ok(self.peek(index) & !LOCK_BITS == 0)
    }

    /// The state of page `index`, seen without the lock. A writer changes the word only to
    /// publish, so the word always names the content that a read at that moment would return.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub(crate) fn state(&self, index: PageIndex) -> Result<PageState> {
        self.check(index)?;
        Ok(self.seen(index).state())
    }

    /// The word of page `index`, which exists, seen without the lock.
    #[inline]
    pub(crate) fn seen(&self, index: PageIndex) -> Seen {
        Seen(self.peek(index))
    }

    /// Where the object of page `index` lies in the arena, if it has one, in bytes. It is seen
    /// without the lock, so it was true a moment ago.
    #[inline]
    pub(crate) fn glimpse(&self, index: PageIndex) -> Option<Range<usize>> {
        self.seen(index).place()
    }

    /// Gives the memory of chunks without content back to the system, and calls `forget` for each run of them with
    /// the indices of its slots, while all of these are locked.
    pub(crate) fn give_back(&self, mut forget: impl FnMut(Range<u64>)) {
        let run_slots = CHUNK_SLOTS.max(2 * self.page_slots());
        let mut next = self.next_touched(0);
        while next < self.slots {
            let first = next - next % run_slots;
            let end = (first + run_slots).min(self.slots);
            self.give_back_run(first..end, &mut forget);
            next = self.next_touched(first + run_slots);
        }
    }

    /// Slots whose memory goes back at once. So many checksums take half a page.
    fn page_slots(&self) -> u64 {
        (self.words.page_words() / L::ENTRY_WORDS) as u64
    }

    /// See the file head. Chunks with content stay, and so do those of whose slots somebody has one: 8 KiB, with
    /// checksums 12 KiB, or two and three of the system's larger pages, for each request that is under way during a
    /// reset, until the next reset.
    fn give_back_run(&self, run: Range<u64>, forget: &mut impl FnMut(Range<u64>)) {
        let mut locked = run.start..run.start;
        while locked.end < run.end {
            let slot = self.slot(PageIndex(locked.end));
            match self.lock.try_lock(slot) {
                Some(0) => locked.end += 1,
                Some(word) => {
                    self.lock.unlock(slot, word);
                    return self.unlock_empty(locked);
                }
                None => return self.unlock_empty(locked),
            }
        }
        forget(run.clone());
        for first in run.clone().step_by(CHUNK_SLOTS as usize) {
            let (bits, bit) = self.touched_bit(PageIndex(first));
            bits.fetch_and(!bit, Ordering::Release);
        }
        // Page by page, each of which goes whole or stays whole.
        for first in run.clone().step_by(self.page_slots() as usize) {
            let end = (first + self.page_slots()).min(run.end);
            if !self.words.release(first as usize * L::ENTRY_WORDS) {
                self.touch(PageIndex(first));
                self.unlock_empty(first..end);
            }
        }
        self.lock.words_dropped(run);
    }

    /// Unlocks slots without content.
    fn unlock_empty(&self, locked: Range<u64>) {
        for index in locked.map(PageIndex) {
            self.lock.unlock(self.slot(index), 0);
        }
    }

    /// The first page from `from` on that may be no hole, or the number of slots.
    pub(crate) fn next_touched(&self, from: u64) -> u64 {
        let first_chunk = from / CHUNK_SLOTS;
        let mut at = (first_chunk / 64) as usize;
        let mut mask = u64::MAX << (first_chunk % 64);
        while let Some(word) = self.touched.get(at) {
            let bits = word.load(Ordering::Relaxed) & mask;
            if bits != 0 {
                let chunk = at as u64 * 64 + u64::from(bits.trailing_zeros());
                return (chunk * CHUNK_SLOTS).clamp(from.min(self.slots), self.slots);
            }
            mask = u64::MAX;
            at += 1;
        }
        self.slots
    }

    /// The word of page `index`, seen without the lock; that of a hole if no slot of its chunk was
    /// ever locked.
    fn peek(&self, index: PageIndex) -> u64 {
        let (word, bit) = self.touched_bit(index);
        match word.load(Ordering::Relaxed) & bit {
            0 => 0,
            _ => self.slot(index).word.load(Ordering::Relaxed),
        }
    }

    /// Notes that page `index` may be no hole from now on.
    #[inline]
    fn touch(&self, index: PageIndex) {
        let (word, bit) = self.touched_bit(index);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    #[inline]
    fn touched_bit(&self, index: PageIndex) -> (&AtomicU64, u64) {
        let chunk = index.0 / CHUNK_SLOTS;
        (&self.touched[(chunk / 64) as usize], 1 << (chunk % 64))
    }

    /// Asks for the memory that the slot of page `index` needs if it is the first one of its chunk that is locked. Its words are
    /// populated when they are first touched, and then nothing can be refused any more.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`], [`ErrorKind::NoMemory`].
    #[inline]
    pub(crate) fn admit(&self, index: PageIndex) -> Result<()> {
        self.check(index)?;
        let (word, bit) = self.touched_bit(index);
        if word.load(Ordering::Relaxed) & bit == 0 && !self.is_populated {
            drop(headroom::admit(CHUNK_BYTES * L::ENTRY_WORDS)?);
        }
        Ok(())
    }

    /// Refuses an index past the end.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub(crate) fn check(&self, index: PageIndex) -> Result<()> {
        let text = "page index past the end of the store";
        match index.0 < self.slots {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::OutOfRange, text)),
        }
    }

    #[inline]
    fn slot(&self, index: PageIndex) -> Slot<'_> {
        let at = index.0 as usize * L::ENTRY_WORDS;
        Slot {
            index: index.0,
            word: self.words.at(at),
            lock: self.words.at(at + L::ENTRY_WORDS - 1),
        }
    }
}

/// The future of a slot whose users died.
#[cfg(not(uzram_shuttle))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Kept,
    Lost,
}

#[cfg(not(uzram_shuttle))]
impl SlotTable {
    /// Settles each slot of a table whose users died, in their order: `settle` is told what the slot holds and whether it
    /// was locked, and says what becomes of it. Then it is unlocked, and a mark of a pass that died is gone, in one store:
    /// who dies within the sweep leaves a table for another. Pages of the table that are not there are holes, and are not
    /// looked at.
    ///
    /// Nobody else may use the table meanwhile.
    ///
    /// # Errors
    /// That of `settle`: the slot and those behind it are as they were.
    pub(crate) fn inherit(
        &self,
        unit: Unit,
        mut settle: impl FnMut(&Locked, bool) -> Result<Verdict>,
    ) -> Result<()> {
        let mut next = 0;
        while let Some(run) = self.words.next_resident(next..self.slots) {
            next = run.end;
            for chunk in run.start / CHUNK_SLOTS..run.end.div_ceil(CHUNK_SLOTS) {
                self.touch(PageIndex(chunk * CHUNK_SLOTS));
            }
            for index in run.map(PageIndex) {
                self.settle(index, unit, &mut settle)?;
            }
        }
        Ok(())
    }

    fn settle(
        &self,
        index: PageIndex,
        unit: Unit,
        settle: &mut impl FnMut(&Locked, bool) -> Result<Verdict>,
    ) -> Result<()> {
        let cell = self.slot(index).word;
        let found = cell.load(Ordering::Relaxed);
        if found == 0 {
            return Ok(());
        }
        let word = match is_sound(found, unit.bytes()) {
            true => without_mark(found & !LOCK_BITS),
            false => KIND_LOST << KIND_SHIFT,
        };
        // SAFETY: nobody uses the table, so no handle of an earlier decoding is alive in this process, and what other
        // words say of the same bytes is `settle`'s to find out before it touches any. `Locked` drops no entry.
        let entry = unsafe { Entry::decode(word) };
        let locked = Locked::new(index, word, entry);
        let settled = match settle(&locked, found & LOCK_BITS != 0)? {
            Verdict::Kept => word,
            Verdict::Lost => KIND_LOST << KIND_SHIFT,
        };
        // A store would dirty each line of the table.
        if settled != found {
            cell.store(settled, Ordering::Relaxed);
            #[cfg(test)]
            crate::crash::point();
        }
        Ok(())
    }
}

/// A locked slot. Dropping it unlocks the slot with its content as it was.
#[derive(Debug)]
pub(crate) struct SlotGuard<'a, L: SlotLock> {
    table: &'a SlotTable<L>,
    locked: Locked,
}

/// A slot that is locked for readers.
#[derive(Debug)]
pub(crate) struct SharedGuard<'a, L: SlotLock> {
    table: &'a SlotTable<L>,
    locked: Locked,
}

/// The state that a guard shows.
#[derive(Debug)]
pub(crate) struct Locked {
    index: PageIndex,
    /// The word as found, without the lock's bits.
    word: u64,
    /// Belongs to the slot, not to the guard, unless [`SlotGuard::publish`] takes it out.
    entry: ManuallyDrop<Entry>,
}

impl Locked {
    fn new(index: PageIndex, word: u64, entry: Entry) -> Locked {
        Locked {
            index,
            word,
            entry: ManuallyDrop::new(entry),
        }
    }

    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    pub(crate) fn index(&self) -> PageIndex {
        self.index
    }

    pub(crate) fn seen(&self) -> Seen {
        Seen(self.word)
    }

    #[inline]
    pub(crate) fn flags(&self) -> Flags {
        Flags::of(self.word)
    }
}

impl<L: SlotLock> SlotGuard<'_, L> {
    /// Changes what the word says of the object. A slot without one has no flags.
    pub(crate) fn set_flags(&mut self, flags: Flags) {
        if matches!(*self.locked.entry, Entry::Raw(_) | Entry::Packed(_)) {
            self.locked.word = flags.put_into(self.locked.word);
        }
    }

    /// Unlocks the slot with its object at another place, `new`, which has the same bytes. The
    /// rest of the word stays. Returns the old object, whose memory must be freed.
    ///
    /// # Panics
    /// If the slot has no object of this size.
    #[must_use = "the old object owns memory"]
    pub(crate) fn relocate(self, new: Handle) -> Handle {
        let mut guard = ManuallyDrop::new(self);
        // SAFETY: as in `publish`: the guard is never used again, and its word is overwritten below.
        let old = match unsafe { ManuallyDrop::take(&mut guard.locked.entry) } {
            Entry::Raw(old) | Entry::Packed(old) => old,
            Entry::Empty | Entry::Same(_) | Entry::Back(_) | Entry::Lost => {
                panic!("only objects have places")
            }
        };
        assert_eq!(old.size_bytes(), new.size_bytes());
        let (granule, _) = new.into_parts();
        let rest = guard.locked.word & ((1 << PAYLOAD_SHIFT) - 1);
        guard.unlock(rest | granule << PAYLOAD_SHIFT);
        old
    }

    /// Replaces the content, unlocks, and returns the old content, whose memory must be freed. Only objects have
    /// `flags`.
    #[must_use = "the old entry owns memory"]
    pub(crate) fn publish(self, entry: Entry, flags: Flags) -> Entry {
        let mut guard = ManuallyDrop::new(self);
        guard.unlock(flags.put_into(entry.encode()));
        // SAFETY: the guard is never dropped or used again, and the word that also stood for this
        // entry is overwritten: from here on the returned value is its only owner.
        unsafe { ManuallyDrop::take(&mut guard.locked.entry) }
    }

    fn unlock(&self, word: u64) {
        let slot = self.table.slot(self.locked.index);
        self.table.lock.unlock(slot, word);
    }
}

impl<L: SlotLock> Drop for SlotGuard<'_, L> {
    fn drop(&mut self) {
        self.unlock(self.locked.word);
    }
}

impl<L: SlotLock> Drop for SharedGuard<'_, L> {
    fn drop(&mut self) {
        let slot = self.table.slot(self.locked.index);
        let word = without_idle(self.locked.word);
        self.table.lock.unlock_shared(slot, word);
    }
}

impl<L: SlotLock> Deref for SlotGuard<'_, L> {
    type Target = Locked;

    fn deref(&self) -> &Locked {
        &self.locked
    }
}

impl<L: SlotLock> Deref for SharedGuard<'_, L> {
    type Target = Locked;

    fn deref(&self) -> &Locked {
        &self.locked
    }
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;
