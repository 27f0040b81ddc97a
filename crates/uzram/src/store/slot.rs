//! The slot table: one 64-bit word a page, which is its content's only truth and its lock.
//!
//! ```text
//! bit  0      lock
//! bit  1      waiters: somebody sleeps for this lock
//! bits 2-4    kind: empty, same-filled, raw, packed (shared and written-back are reserved)
//! bits 5-7    flags: idle, mark, incompressible
//! bits 8-9    codec priority
//! bits 10-25  size in bytes, less one
//! bits 26-63  payload: the object's granule in the arena, or the fill word
//! ```
//!
//! Lock order of the engine: turn to grow > slot > stream or decompression context > pool class > arena.
//! 1. An entry is seen and changed only through its [`SlotGuard`].
//! 2. A writer of a whole page prepares the new content unlocked, gives its stream and the class back,
//!    and locks the slot only to publish; it frees the old content after the unlock.
//! 3. A writer of part of a page holds the lock from the read to the publish; if memory must be made it
//!    unlocks, makes it, and starts again from the read.
//! 4. No thread holds two slots.
//!
//! The lock spins [`SPINS_MAX`] turns and then sleeps: a holder that was preempted can be away for
//! milliseconds. Sleepers wait in [`PARKING_LOTS`] hashed lots. A sleeper sets the waiters bit while
//! it holds its lot's mutex, which the condition variable gives up; who unlocks a word with that
//! bit takes the same mutex before it notifies. So no wake-up is lost; those woken for another slot
//! of the lot look and sleep again.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

use crossbeam_utils::CachePadded;

use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::page::{PageIndex, PageState, Unit};
use crate::pool::{GRANULE_BITS, GRANULE_BYTES, Handle};
use crate::region::Backing;
use crate::sync::{self, Condvar, Mutex, MutexGuard, Ordering};

/// Turns of spinning before a thread sleeps: about as long as one page takes to decompress.
const SPINS_MAX: u32 = if cfg!(uzram_shuttle) { 1 } else { 200 };

/// Places to sleep, shared by all slots.
const PARKING_LOTS: usize = if cfg!(uzram_shuttle) { 1 } else { 64 };

const LOCK: u64 = 1;
const WAITERS: u64 = 1 << 1;
const KIND_SHIFT: u32 = 2;
const KIND_BITS: u32 = 3;
const FLAG_BITS: u32 = 3;
const PRIORITY_BITS: u32 = 2;
const SIZE_SHIFT: u32 = KIND_SHIFT + KIND_BITS + FLAG_BITS + PRIORITY_BITS;
const SIZE_BITS: u32 = 16;
const PAYLOAD_SHIFT: u32 = SIZE_SHIFT + SIZE_BITS;
const PAYLOAD_BITS: u32 = 38;

const _: () = {
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
    /// `word` must come from [`Entry::encode`], and no handle of an earlier decoding may be alive.
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
pub(crate) struct SlotTable {
    words: Words,
    slots: u64,
    lots: Box<[CachePadded<ParkingLot>]>,
}

#[derive(Debug, Default)]
struct ParkingLot {
    mutex: Mutex<()>,
    condvar: Condvar,
}

impl SlotTable {
    /// A table of empty slots for `disksize_bytes`, which is a multiple of the unit.
    pub(crate) fn new(disksize_bytes: u64, unit: Unit, backing: Backing) -> Result<SlotTable> {
        let slots = disksize_bytes >> unit.shift();
        SlotTable::over(Words::reserve(slots, backing)?, slots)
    }

    pub(crate) fn over(words: Words, slots: u64) -> Result<SlotTable> {
        let mut lots = Vec::new();
        for _ in 0..PARKING_LOTS {
            memory::push(&mut lots, CachePadded::new(ParkingLot::default()))?;
        }
        Ok(SlotTable {
            words,
            slots,
            lots: lots.into_boxed_slice(),
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
        self.slots * size_of::<u64>() as u64
    }

    #[cfg(all(test, not(uzram_shuttle)))]
    pub(crate) fn words(&self) -> &Words {
        &self.words
    }

    /// Locks the slot of page `index`.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub(crate) fn lock(&self, index: PageIndex) -> Result<SlotGuard<'_>> {
        self.check(index)?;
        let word = self.lock_word(index);
        // SAFETY: the word is locked now: whoever decoded it before has encoded or forgotten its
        // handle, since a guard does one of the two before it unlocks.
        let entry = ManuallyDrop::new(unsafe { Entry::decode(word) });
        Ok(SlotGuard {
            table: self,
            index,
            word,
            entry,
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
        Ok(self.words.at(index).load(Ordering::Relaxed) & !(LOCK | WAITERS) == 0)
    }

    /// How page `index` is kept, seen without the lock: a writer changes the word only to publish,
    /// so it always names what a read at that moment would return.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub(crate) fn state(&self, index: PageIndex) -> Result<PageState> {
        self.check(index)?;
        let word = self.words.at(index).load(Ordering::Relaxed);
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
        let word = self.words.at(index).load(Ordering::Relaxed);
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

    /// Unlocks every slot: for a table whose users died.
    #[cfg(all(test, not(uzram_shuttle)))]
    pub(crate) fn break_locks(&self) {
        for index in 0..self.slots {
            self.words
                .at(PageIndex(index))
                .fetch_and(!(LOCK | WAITERS), Ordering::Relaxed);
        }
    }

    fn lock_word(&self, index: PageIndex) -> u64 {
        let cell = self.words.at(index);
        for _ in 0..SPINS_MAX {
            let word = cell.load(Ordering::Relaxed);
            if word & LOCK == 0 && self.try_set(index, word, word | LOCK) {
                return word & !WAITERS;
            }
            sync::spin();
        }
        self.lock_asleep(index)
    }

    #[cold]
    fn lock_asleep(&self, index: PageIndex) -> u64 {
        let lot = self.lot(index);
        let mut sleeping = lot.mutex.lock();
        loop {
            let word = self.words.at(index).load(Ordering::Relaxed);
            if word & LOCK == 0 {
                // Others may sleep for this slot too: leave the waiters bit as it is.
                if self.try_set(index, word, word | LOCK) {
                    return word & !WAITERS;
                }
            } else if word & WAITERS != 0 || self.try_set(index, word, word | WAITERS) {
                sleeping = sync::wait(&lot.condvar, sleeping);
            }
        }
    }

    fn try_set(&self, index: PageIndex, from: u64, to: u64) -> bool {
        let cell = self.words.at(index);
        cell.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Stores `word`, unlocked, and wakes who sleeps for it.
    fn unlock(&self, index: PageIndex, word: u64) {
        let before = self.words.at(index).swap(word, Ordering::Release);
        if before & WAITERS != 0 {
            self.wake(index);
        }
    }

    #[cold]
    fn wake(&self, index: PageIndex) {
        let lot = self.lot(index);
        let sleeping: MutexGuard<'_, ()> = lot.mutex.lock();
        lot.condvar.notify_all();
        drop(sleeping);
    }

    fn lot(&self, index: PageIndex) -> &ParkingLot {
        &self.lots[index.0 as usize % PARKING_LOTS]
    }
}

/// A locked slot. Dropping it unlocks the slot with its content as it was.
#[derive(Debug)]
pub(crate) struct SlotGuard<'a> {
    table: &'a SlotTable,
    index: PageIndex,
    /// The word as found, without the lock's bits.
    word: u64,
    /// Owned by the slot, not by the guard, unless [`SlotGuard::publish`] takes it out.
    entry: ManuallyDrop<Entry>,
}

impl SlotGuard<'_> {
    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    pub(crate) fn index(&self) -> PageIndex {
        self.index
    }

    /// Unlocks the slot with its object at another place, `new`, where the same bytes lie; everything
    /// else of the word stays. Returns the old object for its memory to be freed.
    ///
    /// # Panics
    /// If the slot has no object of this size.
    #[must_use = "the old object owns memory"]
    pub(crate) fn relocate(self, new: Handle) -> Handle {
        let mut guard = ManuallyDrop::new(self);
        // SAFETY: as in `publish`: the guard is never used again, and its word is overwritten below.
        let old = match unsafe { ManuallyDrop::take(&mut guard.entry) } {
            Entry::Raw(old) | Entry::Packed(old) => old,
            Entry::Empty | Entry::Same(_) => panic!("only objects have places"),
        };
        assert_eq!(old.size_bytes(), new.size_bytes());
        let (granule, _) = new.into_parts();
        let rest = guard.word & ((1 << PAYLOAD_SHIFT) - 1);
        guard
            .table
            .unlock(guard.index, rest | granule << PAYLOAD_SHIFT);
        old
    }

    /// Replaces the content, unlocks, and returns the old content for its memory to be freed.
    #[must_use = "the old entry owns memory"]
    pub(crate) fn publish(self, entry: Entry) -> Entry {
        let mut guard = ManuallyDrop::new(self);
        guard.table.unlock(guard.index, entry.encode());
        // SAFETY: the guard is never dropped or used again, and the word that also stood for this
        // entry is overwritten: from here on the returned value is its only owner.
        unsafe { ManuallyDrop::take(&mut guard.entry) }
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        self.table.unlock(self.index, self.word);
    }
}

pub(crate) use words::Words;

/// The words in a region.
#[cfg(not(uzram_shuttle))]
mod words {
    use crate::error::{Error, ErrorKind, Result};
    use crate::page::PageIndex;
    use crate::region::{Backing, Region};
    use crate::sync::MappedU64;

    #[derive(Debug)]
    pub(crate) struct Words {
        region: Region,
    }

    impl Words {
        pub(crate) fn reserve(slots: u64, backing: Backing) -> Result<Words> {
            let bytes = slots.checked_mul(size_of::<u64>() as u64);
            let bytes = bytes
                .and_then(|bytes| usize::try_from(bytes).ok())
                .ok_or_else(|| {
                    Error::new(
                        ErrorKind::NoMemory,
                        "the slot table exceeds the address space",
                    )
                })?;
            Ok(Words {
                region: Region::reserve(bytes, backing)?,
            })
        }

        pub(super) fn populate(&self) -> Result<()> {
            self.region.populate(0..self.region.length_bytes(), false)
        }

        pub(super) fn at(&self, index: PageIndex) -> &MappedU64 {
            &self.region.words()[index.0 as usize]
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
    use crate::page::PageIndex;
    use crate::region::Backing;
    use crate::sync::AtomicU64;

    #[derive(Debug)]
    pub(crate) struct Words {
        words: Vec<AtomicU64>,
    }

    impl Words {
        pub(crate) fn reserve(slots: u64, _backing: Backing) -> Result<Words> {
            Ok(Words {
                words: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            })
        }

        pub(super) fn populate(&self) -> Result<()> {
            Ok(())
        }

        pub(super) fn at(&self, index: PageIndex) -> &AtomicU64 {
            &self.words[index.0 as usize]
        }
    }
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;
