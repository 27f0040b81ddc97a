//! How slots are locked: the trait, and the lock in use.
//!
//! [`SleepingBit`] is the lock of every store but those that `uzram bench locks` makes: a bit of the slot
//! word, so that it takes no memory. It spins [`SPINS_MAX`] turns and then sleeps: a holder that was
//! preempted can be away for milliseconds. Sleepers wait in [`PARKING_LOTS`] hashed lots. A sleeper sets
//! the waiters bit while it holds its lot's mutex, which the condition variable gives up; who unlocks a
//! word with that bit takes the same mutex before it notifies. So no wake-up is lost; those woken for
//! another slot of the lot look and sleep again.

#![allow(unsafe_code)]

use crossbeam_utils::CachePadded;

use crate::error::Result;
use crate::memory;
use crate::sync::{self, Condvar, Mutex, MutexGuard, Ordering};

/// Turns of spinning before a thread sleeps: about as long as one page takes to decompress.
const SPINS_MAX: u32 = if cfg!(uzram_shuttle) { 1 } else { 200 };

/// Places to sleep, shared by all slots.
const PARKING_LOTS: usize = if cfg!(uzram_shuttle) { 1 } else { 64 };

/// Bits of the slot word that are the lock's: zero in every content.
pub const LOCK_BITS: u64 = LOCK | WAITERS;

const LOCK: u64 = 1;
const WAITERS: u64 = 1 << 1;

/// A word of the slot table, from mapped memory, zero at first.
#[cfg(not(uzram_shuttle))]
pub type Word = crate::sync::MappedU64;
/// A word of the slot table as the model checker wants it: an object that it tracks.
#[cfg(uzram_shuttle)]
pub type Word = crate::sync::AtomicU64;

/// An entry of the slot table as its lock sees it.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// The entry's place in the table.
    pub index: u64,
    /// The slot word. Without its [`LOCK_BITS`] it is the slot's content, which is the store's.
    pub word: &'a Word,
    /// The entry's last word: the slot word itself in a table of one word an entry, else the lock's own.
    pub lock: &'a Word,
}

/// How slots are locked.
///
/// # Safety
/// Between `lock` and `unlock` of a slot no other thread is between `lock` and `unlock`, nor between
/// `lock_shared` and `unlock_shared`, of that slot. What the last `unlock` stored is what the
/// next `lock` or `lock_shared` returns, and all that was done before the one is seen after the other.
pub unsafe trait SlotLock: Send + Sync + Sized {
    /// 64-bit words of an entry: 1 for a lock that lives in [`LOCK_BITS`], else more.
    const ENTRY_WORDS: usize;

    /// What the locks of one table share. Entries are not touched: all of their bits are zero.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    fn new() -> Result<Self>;

    /// Waits until nobody has the slot, takes it, and returns its word without [`LOCK_BITS`].
    fn lock(&self, slot: Slot<'_>) -> u64;

    /// Stores `word`, which has none of [`LOCK_BITS`], and gives the slot back.
    fn unlock(&self, slot: Slot<'_>, word: u64);

    /// As `lock`, but others may share the slot.
    fn lock_shared(&self, slot: Slot<'_>) -> u64 {
        self.lock(slot)
    }

    /// Gives back what `lock_shared` took; `word` is what that returned.
    fn unlock_shared(&self, slot: Slot<'_>, word: u64) {
        self.unlock(slot, word);
    }
}

/// A bit of the slot word; who waits for long sleeps.
#[derive(Debug)]
pub struct SleepingBit {
    lots: Box<[CachePadded<ParkingLot>]>,
}

#[derive(Debug, Default)]
struct ParkingLot {
    mutex: Mutex<()>,
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

    #[inline]
    fn unlock(&self, slot: Slot<'_>, word: u64) {
        let before = slot.word.swap(word, Ordering::Release);
        if before & WAITERS != 0 {
            self.wake(slot.index);
        }
    }
}

impl SleepingBit {
    #[cold]
    fn lock_asleep(&self, slot: Slot<'_>) -> u64 {
        let lot = self.lot(slot.index);
        let mut sleeping = lot.mutex.lock();
        loop {
            let word = slot.word.load(Ordering::Relaxed);
            if word & LOCK == 0 {
                // Others may sleep for this slot too: leave the waiters bit as it is.
                if try_set(slot.word, word, word | LOCK) {
                    return word & !WAITERS;
                }
            } else if word & WAITERS != 0 || try_set(slot.word, word, word | WAITERS) {
                sleeping = sync::wait(&lot.condvar, sleeping);
            }
        }
    }

    #[cold]
    fn wake(&self, index: u64) {
        let lot = self.lot(index);
        let sleeping: MutexGuard<'_, ()> = lot.mutex.lock();
        lot.condvar.notify_all();
        drop(sleeping);
    }

    fn lot(&self, index: u64) -> &ParkingLot {
        &self.lots[index as usize % PARKING_LOTS]
    }
}

#[inline]
fn try_set(word: &Word, from: u64, to: u64) -> bool {
    word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}
