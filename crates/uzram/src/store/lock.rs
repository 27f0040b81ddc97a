//! The lock of a slot: the trait, and the lock in use.
//!
//! [`SleepingBit`] is the lock of every store except in `uzram bench locks`. It is a bit of the
//! slot word, so it takes no memory. It spins [`SPINS_MAX`] turns and then sleeps, because a
//! holder that was preempted can be away for milliseconds. Sleepers wait in [`PARKING_LOTS`]
//! hashed lots. A sleeper sets the waiters bit while it holds its lot's mutex, which the condition
//! variable releases. A thread that unlocks a word with that bit takes the same mutex before it
//! notifies. So no wake-up is lost. Threads woken for another slot of the lot look and sleep
//! again.

#![allow(unsafe_code)]

use std::ops::Range;

use crossbeam_utils::CachePadded;

use crate::error::Result;
use crate::memory;
use crate::sync::{self, Condvar, Mutex, Ordering};

/// Turns of spinning before a thread sleeps: about as long as one page takes to decompress.
const SPINS_MAX: u32 = if cfg!(uzram_shuttle) { 1 } else { 200 };

/// Places to sleep, shared by all slots.
const PARKING_LOTS: usize = if cfg!(uzram_shuttle) { 1 } else { 64 };

/// Bits of the slot word for the lock: zero in every content.
pub const LOCK_BITS: u64 = LOCK | WAITERS;

const LOCK: u64 = 1;
const WAITERS: u64 = 1 << 1;

/// A word of the slot table, from mapped memory, zero at first.
#[cfg(not(uzram_shuttle))]
pub type Word = crate::sync::MappedU64;
/// A word of the slot table under the model checker: an object that it tracks.
#[cfg(uzram_shuttle)]
pub type Word = crate::sync::AtomicU64;

/// An entry of the slot table as its lock sees it.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// The entry's place in the table.
    pub index: u64,
    /// The slot word. Without its [`LOCK_BITS`] it is the slot's content, which belongs to the
    /// store.
    pub word: &'a Word,
    /// The entry's last word: the slot word itself in a table of one word per entry, else the
    /// lock's own.
    #[cfg_attr(
        not(feature = "lab"),
        expect(
            dead_code,
            reason = "the one lock of the product lives in the slot word"
        )
    )]
    pub lock: &'a Word,
}

/// A way to lock slots.
///
/// # Safety
/// Between `lock` and `unlock` of a slot no other thread is between `lock` and `unlock`, nor
/// between `lock_shared` and `unlock_shared`, of that slot. The next `lock` or `lock_shared`
/// returns the word that the last `unlock` stored, and everything done before that `unlock` is
/// visible after it.
pub unsafe trait SlotLock: Send + Sync + Sized {
    /// 64-bit words of an entry: 1 for a lock that lives in [`LOCK_BITS`], else more.
    const ENTRY_WORDS: usize;

    /// The shared state of one table's locks. Entries are not touched: all of their bits are zero.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    fn new() -> Result<Self>;

    /// Waits until the slot is free, takes it, and returns its word without [`LOCK_BITS`].
    fn lock(&self, slot: Slot<'_>) -> u64;

    /// Stores `word`, which has none of [`LOCK_BITS`], and gives the slot back.
    fn unlock(&self, slot: Slot<'_>, word: u64);

    /// As `lock`, but without waiting: nothing if somebody has the slot. A lock whose words must not be dropped
    /// to zero (see [`SlotLock::words_dropped`]) gives nothing, ever.
    fn try_lock(&self, _slot: Slot<'_>) -> Option<u64> {
        None
    }

    /// Called after the words of locked slots, [`LOCK_BITS`] and all, have become zero, which unlocked these:
    /// wakes whoever waits for slot `indices`.
    fn words_dropped(&self, _indices: Range<u64>) {}

    /// As `lock`, but others may share the slot.
    fn lock_shared(&self, slot: Slot<'_>) -> u64 {
        self.lock(slot)
    }

    /// Gives the shared slot back; `word` is the result of `lock_shared`, but the page is no longer idle. Locks that
    /// several readers share leave the slot's word as it is.
    fn unlock_shared(&self, slot: Slot<'_>, word: u64) {
        self.unlock(slot, word);
    }
}

/// A bit of the slot word; threads that wait for long sleep.
#[derive(Debug)]
pub struct SleepingBit {
    lots: Box<[CachePadded<ParkingLot>]>,
}

#[derive(Debug, Default)]
struct ParkingLot {
    /// How many sleep.
    sleepers: Mutex<usize>,
    condvar: Condvar,
}

// SAFETY: LOCK is set by a compare-exchange from a word without it, so by one thread at a time, and only
// that thread's `unlock` clears it, in the store of the word. Acquire and release order what is between.
unsafe impl SlotLock for SleepingBit {
    const ENTRY_WORDS: usize = 1;

    fn new() -> Result<SleepingBit> {
        let mut lots = Vec::new();
        for _ in 0..PARKING_LOTS {
            memory::push(&mut lots, CachePadded::new(ParkingLot::default()))?;
        }
        Ok(SleepingBit {
            lots: lots.into_boxed_slice(),
        })
    }

    #[inline]
    fn lock(&self, slot: Slot<'_>) -> u64 {
        for _ in 0..SPINS_MAX {
            let word = slot.word.load(Ordering::Relaxed);
            if word & LOCK == 0 && try_set(slot.word, word, word | LOCK) {
                return word & !WAITERS;
            }
            sync::spin();
        }
        self.lock_asleep(slot)
    }

    fn try_lock(&self, slot: Slot<'_>) -> Option<u64> {
        let word = slot.word.load(Ordering::Relaxed);
        let is_locked = word & LOCK == 0 && try_set(slot.word, word, word | LOCK);
        is_locked.then_some(word & !WAITERS)
    }

    /// A waiter that marked the word before it became zero, or marks what it still sees of it, sleeps by the
    /// time its lot can be locked; one that comes later finds the slot unlocked.
    fn words_dropped(&self, indices: Range<u64>) {
        let lots = PARKING_LOTS as u64;
        indices
            .take(PARKING_LOTS)
            .for_each(|index| self.wake(index % lots));
    }

    #[inline]
    fn unlock(&self, slot: Slot<'_>, word: u64) {
        let before = slot.word.swap(word, Ordering::Release);
        #[cfg(all(test, not(uzram_shuttle)))]
        crate::crash::point();
        if before & WAITERS != 0 {
            self.wake(slot.index);
        }
    }
}

impl SleepingBit {
    #[cold]
    fn lock_asleep(&self, slot: Slot<'_>) -> u64 {
        let lot = self.lot(slot.index);
        let mut sleeping = lot.sleepers.lock();
        loop {
            let word = slot.word.load(Ordering::Relaxed);
            if word & LOCK == 0 {
                // Others may sleep for this slot too: leave the waiters bit as it is.
                if try_set(slot.word, word, word | LOCK) {
                    return word & !WAITERS;
                }
            } else if word & WAITERS != 0 || try_set(slot.word, word, word | WAITERS) {
                *sleeping += 1;
                sleeping = sync::wait(&lot.condvar, sleeping);
                *sleeping -= 1;
            }
        }
    }

    #[cold]
    fn wake(&self, index: u64) {
        let lot = self.lot(index);
        let sleepers = lot.sleepers.lock();
        // To notify nobody is a system call too.
        if *sleepers > 0 {
            lot.condvar.notify_all();
        }
    }

    fn lot(&self, index: u64) -> &ParkingLot {
        &self.lots[index as usize % PARKING_LOTS]
    }
}

#[inline]
fn try_set(word: &Word, from: u64, to: u64) -> bool {
    let is_set = word
        .compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed)
        .is_ok();
    #[cfg(all(test, not(uzram_shuttle)))]
    crate::crash::point();
    is_set
}
