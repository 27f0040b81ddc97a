//! The slot table: one 64-bit word a page, which is its content's only truth and its lock.
//!
//! ```text
//! bits 0-1    the lock's
//! bits 2-4    kind: empty, same-filled, raw, packed (shared and written-back are reserved)
//! bits 5-7    flags: idle, mark, incompressible
//! bits 8-9    codec priority
//! bits 10-25  size in bytes, less one
//! bits 26-63  payload: the object's granule in the arena, or the fill word
//! ```
//!
//! Lock order of the engine: compactor > turn to grow > slot > stream or decompression context > pool class > arena.
//! 1. An entry is seen and changed only through its [`SlotGuard`].
//! 2. A writer of a whole page prepares the new content unlocked, gives its stream and the class back,
//!    and locks the slot only to publish; it frees the old content after the unlock.
//! 3. A writer of part of a page holds the lock from the read to the publish; if memory must be made it
//!    unlocks, makes it, and starts again from the read.
//! 4. No thread holds two slots.
//!
//! The lock itself is in `store/lock.rs`.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::error::{Error, ErrorKind, Result};
use crate::page::{PageIndex, PageState, Unit};
use crate::pool::{GRANULE_BITS, GRANULE_BYTES, Handle};
use crate::region::Backing;
use crate::sync::Ordering;

use super::lock::{LOCK_BITS, SleepingBit, Slot, SlotLock};

const KIND_SHIFT: u32 = 2;
const KIND_BITS: u32 = 3;
const FLAG_BITS: u32 = 3;
const PRIORITY_BITS: u32 = 2;
const SIZE_SHIFT: u32 = KIND_SHIFT + KIND_BITS + FLAG_BITS + PRIORITY_BITS;
const SIZE_BITS: u32 = 16;
const PAYLOAD_SHIFT: u32 = SIZE_SHIFT + SIZE_BITS;
const PAYLOAD_BITS: u32 = 38;

const _: () = {
    assert!(LOCK_BITS == (1 << KIND_SHIFT) - 1);
    assert!(PAYLOAD_SHIFT + PAYLOAD_BITS == u64::BITS);
    assert!(PAYLOAD_BITS >= GRANULE_BITS && PAYLOAD_BITS >= u32::BITS);
    assert!(1 << SIZE_BITS == crate::page::UNIT_MAX_BYTES);
};

const KIND_EMPTY: u64 = 0;
const KIND_SAME: u64 = 1;
const KIND_RAW: u64 = 2;
const KIND_PACKED: u64 = 3;

/// What a slot holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A hole: reads as zeroes, allocated by nobody.
    Empty,
    /// Filled with one repeated word; no memory.
    Same(u32),
    /// The page itself.
    Raw(Handle),
    /// The page, compressed.
    Packed(Handle),
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
        }
    }

    /// # Safety
    /// `word` must come from [`Entry::encode`], and no handle of an earlier decoding may be alive but
    /// those that shared guards lend, beside which this one is only lent too.
    unsafe fn decode(word: u64) -> Entry {
        let payload = word >> PAYLOAD_SHIFT;
        let size = (word >> SIZE_SHIFT) as u16;
        // SAFETY: the word took over the object from the handle that was encoded, and the caller
        // vouches that nobody else made a handle of it since.
        let handle = || unsafe { Handle::from_parts(payload, u32::from(size) + 1) };
        match word >> KIND_SHIFT & ((1 << KIND_BITS) - 1) {
            KIND_SAME => Entry::Same(payload as u32),
            KIND_RAW => Entry::Raw(handle()),
            KIND_PACKED => Entry::Packed(handle()),
            _ => Entry::Empty,
        }
    }
}

/// All slots of a store.
#[derive(Debug)]
pub(crate) struct SlotTable<L = SleepingBit> {
    words: Words,
    slots: u64,
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

    pub(crate) fn over(words: Words, slots: u64) -> Result<SlotTable<L>> {
        Ok(SlotTable {
            words,
            slots,
            lock: L::new()?,
        })
    }

    /// Makes all of it resident, so that no write waits for memory for it.
    pub(crate) fn populate(&self) -> Result<()> {
        self.words.populate()
    }

    pub(crate) fn len(&self) -> u64 {
        self.slots
    }

    /// Bytes of address space that the words take.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.slots * (L::ENTRY_WORDS * size_of::<u64>()) as u64
    }

    #[cfg(all(test, not(uzram_shuttle)))]
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
        // SAFETY: the slot is locked now: whoever decoded its word before has encoded or forgotten
        // its handle, since a guard does one of the two before it unlocks.
        let entry = unsafe { Entry::decode(word) };
        Ok(SlotGuard {
            table: self,
            locked: Locked::new(index, word, entry),
        })
    }

    /// Locks the slot of page `index` to look at it only; others may at the same time.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub(crate) fn lock_shared(&self, index: PageIndex) -> Result<SharedGuard<'_, L>> {
        self.check(index)?;
        let word = self.lock.lock_shared(self.slot(index));
        // SAFETY: as in `lock`, except that others may have decoded the same word and share the lock:
        // a shared guard lends its handle only, to readers, and forgets it before it unlocks.
        let entry = unsafe { Entry::decode(word) };
        Ok(SharedGuard {
            table: self,
            locked: Locked::new(index, word, entry),
        })
    }

    /// Whether page `index` is a hole, seen without the lock, whose taking would make a page of the
    /// table resident: `mkfs` discards and reads whole devices that hold nothing. A write that has
    /// been acknowledged is seen; one under way may or may not be.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub(crate) fn is_hole(&self, index: PageIndex) -> Result<bool> {
        self.check(index)?;
        Ok(self.slot(index).word.load(Ordering::Relaxed) & !LOCK_BITS == 0)
    }

    /// How page `index` is kept, seen without the lock: a writer changes the word only to publish,
    /// so it always names what a read at that moment would return.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub(crate) fn state(&self, index: PageIndex) -> Result<PageState> {
        self.check(index)?;
        let word = self.slot(index).word.load(Ordering::Relaxed);
        Ok(match word >> KIND_SHIFT & ((1 << KIND_BITS) - 1) {
            KIND_SAME => PageState::Same((word >> PAYLOAD_SHIFT) as u32),
            KIND_RAW => PageState::Raw,
            KIND_PACKED => PageState::Compressed {
                size_bytes: u32::from((word >> SIZE_SHIFT) as u16) + 1,
            },
            _ => PageState::Hole,
        })
    }

    /// Where the object of page `index` lies, if it has one, as the offset into the arena in bytes; seen
    /// without the lock, so it was true a moment ago.
    pub(crate) fn glimpse(&self, index: PageIndex) -> Option<usize> {
        let word = self.slot(index).word.load(Ordering::Relaxed);
        let kind = word >> KIND_SHIFT & ((1 << KIND_BITS) - 1);
        matches!(kind, KIND_RAW | KIND_PACKED)
            .then_some((word >> PAYLOAD_SHIFT) as usize * GRANULE_BYTES)
    }

    /// Refuses an index past the end.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub(crate) fn check(&self, index: PageIndex) -> Result<()> {
        match index.0 < self.slots {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::OutOfRange,
                "page index past the end of the store",
            )),
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

#[cfg(all(test, not(uzram_shuttle)))]
impl SlotTable {
    /// Unlocks every slot: for a table whose users died.
    pub(crate) fn break_locks(&self) {
        for index in 0..self.slots {
            let slot = self.slot(PageIndex(index));
            slot.word.fetch_and(!LOCK_BITS, Ordering::Relaxed);
        }
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

/// What a guard shows.
#[derive(Debug)]
pub(crate) struct Locked {
    index: PageIndex,
    /// The word as found, without the lock's bits.
    word: u64,
    /// Owned by the slot, not by the guard, unless [`SlotGuard::publish`] takes it out.
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
}

impl<L: SlotLock> SlotGuard<'_, L> {
    /// Unlocks the slot with its object at another place, `new`, where the same bytes lie; everything
    /// else of the word stays. Returns the old object for its memory to be freed.
    ///
    /// # Panics
    /// If the slot has no object of this size.
    #[must_use = "the old object owns memory"]
    pub(crate) fn relocate(self, new: Handle) -> Handle {
        let mut guard = ManuallyDrop::new(self);
        // SAFETY: as in `publish`: the guard is never used again, and its word is overwritten below.
        let old = match unsafe { ManuallyDrop::take(&mut guard.locked.entry) } {
            Entry::Raw(old) | Entry::Packed(old) => old,
            Entry::Empty | Entry::Same(_) => panic!("only objects have places"),
        };
        assert_eq!(old.size_bytes(), new.size_bytes());
        let (granule, _) = new.into_parts();
        let rest = guard.locked.word & ((1 << PAYLOAD_SHIFT) - 1);
        guard.unlock(rest | granule << PAYLOAD_SHIFT);
        old
    }

    /// Replaces the content, unlocks, and returns the old content for its memory to be freed.
    #[must_use = "the old entry owns memory"]
    pub(crate) fn publish(self, entry: Entry) -> Entry {
        let mut guard = ManuallyDrop::new(self);
        guard.unlock(entry.encode());
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
        self.table.lock.unlock_shared(slot, self.locked.word);
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

fn too_many() -> Error {
    Error::new(
        ErrorKind::NoMemory,
        "the slot table exceeds the address space",
    )
}

pub(crate) use words::Words;

/// The words in a region.
#[cfg(not(uzram_shuttle))]
mod words {
    use crate::error::Result;
    use crate::region::{Backing, Region};
    use crate::store::lock::Word;

    #[derive(Debug)]
    pub(crate) struct Words {
        region: Region,
    }

    impl Words {
        pub(crate) fn reserve(words: u64, backing: Backing) -> Result<Words> {
            let bytes = words.checked_mul(size_of::<Word>() as u64);
            let bytes = bytes
                .and_then(|bytes| usize::try_from(bytes).ok())
                .ok_or_else(super::too_many)?;
            Ok(Words {
                region: Region::reserve(bytes, backing)?,
            })
        }

        pub(super) fn populate(&self) -> Result<()> {
            self.region.populate(0..self.region.length_bytes(), false)
        }

        #[inline]
        pub(super) fn at(&self, place: usize) -> &Word {
            &self.region.words()[place]
        }

        #[cfg(test)]
        pub(crate) fn over(region: Region) -> Words {
            Words { region }
        }

        #[cfg(test)]
        pub(crate) fn region(&self) -> &Region {
            &self.region
        }
    }
}

/// The words as the model checker wants them: each one an object that it tracks.
#[cfg(uzram_shuttle)]
mod words {
    use crate::error::Result;
    use crate::region::Backing;
    use crate::store::lock::Word;

    #[derive(Debug)]
    pub(crate) struct Words {
        words: Vec<Word>,
    }

    impl Words {
        pub(crate) fn reserve(words: u64, _backing: Backing) -> Result<Words> {
            Ok(Words {
                words: (0..words).map(|_| Word::new(0)).collect(),
            })
        }

        pub(super) fn populate(&self) -> Result<()> {
            Ok(())
        }

        pub(super) fn at(&self, place: usize) -> &Word {
            &self.words[place]
        }
    }
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;
