//! Slot locks that the engine does not use: those that zram's were chosen from in 2014.
//!
//! One rwlock for the whole table was what zram had; a lock an entry was to replace it, as a word to compare and
//! exchange, a spinlock (with tickets, as x86 had then), a rwlock, or a bit of the word that is there
//! anyway. The bit was chosen because it takes no memory; the others need a second word an entry.
//!
//! All of them spin, as the kernel's do; none can forbid preemption, as the kernel's do, so after some turns
//! a waiter gives its CPU away at every further one.

use crossbeam_utils::CachePadded;
use uzram::lab::{LOCK_BITS, Slot, SlotLock, Word};

use crate::sync::{Ordering, Patience};

/// The bit of the slot word that [`SpinningBit`] sets.
const BIT: u64 = LOCK_BITS & LOCK_BITS.wrapping_neg();

/// One rwlock for all entries.
pub struct TableRwLock {
    lock: CachePadded<Word>,
}

// SAFETY: the rwlock of the table excludes writers from everybody, whatever their slots; see `rw`.
unsafe impl SlotLock for TableRwLock {
    const ENTRY_WORDS: usize = 1;

    fn new() -> uzram::Result<TableRwLock> {
        let lock = CachePadded::new(Word::new(0));
        Ok(TableRwLock { lock })
    }

    fn lock(&self, slot: Slot<'_>) -> u64 {
        rw::lock(&self.lock);
        slot.word.load(Ordering::Relaxed)
    }

    fn unlock(&self, slot: Slot<'_>, word: u64) {
        slot.word.store(word, Ordering::Relaxed);
        rw::unlock(&self.lock);
    }

    fn lock_shared(&self, slot: Slot<'_>) -> u64 {
        rw::lock_shared(&self.lock);
        slot.word.load(Ordering::Relaxed)
    }

    fn unlock_shared(&self, _slot: Slot<'_>, _word: u64) {
        rw::unlock_shared(&self.lock);
    }
}

/// A word an entry that is exchanged until it was free.
pub struct EntryCas;

// SAFETY: the exchange from 0 to 1 succeeds for one thread until that stores 0; it acquires what the store
// releases.
unsafe impl SlotLock for EntryCas {
    const ENTRY_WORDS: usize = 2;

    fn new() -> uzram::Result<EntryCas> {
        Ok(EntryCas)
    }

    fn lock(&self, slot: Slot<'_>) -> u64 {
        let mut patience = Patience::default();
        while !exchange(slot.lock, 0, 1) {
            patience.turn();
        }
        slot.word.load(Ordering::Relaxed)
    }

    fn unlock(&self, slot: Slot<'_>, word: u64) {
        slot.word.store(word, Ordering::Relaxed);
        slot.lock.store(0, Ordering::Release);
    }
}

/// A spinlock an entry, first come, first served: the ticket served in the low half of its word, the
/// next one to be had in the high half.
pub struct EntrySpinlock;

impl EntrySpinlock {
    const SERVED: u64 = (1 << 32) - 1;
    const NEXT: u64 = 1 << 32;
}

// SAFETY: each ticket is had by one thread, and served after the one before was given back (2^32 threads
// do not wait at once); `unlock` releases, and who sees its ticket served acquires.
unsafe impl SlotLock for EntrySpinlock {
    const ENTRY_WORDS: usize = 2;

    fn new() -> uzram::Result<EntrySpinlock> {
        Ok(EntrySpinlock)
    }

    fn lock(&self, slot: Slot<'_>) -> u64 {
        let mut seen = slot.lock.fetch_add(Self::NEXT, Ordering::Acquire);
        let ticket = seen >> 32;
        let mut patience = Patience::default();
        while seen & Self::SERVED != ticket {
            patience.turn();
            seen = slot.lock.load(Ordering::Acquire);
        }
        slot.word.load(Ordering::Relaxed)
    }

    fn unlock(&self, slot: Slot<'_>, word: u64) {
        slot.word.store(word, Ordering::Relaxed);
        // Only the holder changes the low half, whose overflow must not reach the high one.
        match slot.lock.load(Ordering::Relaxed) & Self::SERVED {
            Self::SERVED => slot.lock.fetch_sub(Self::SERVED, Ordering::Release),
            _ => slot.lock.fetch_add(1, Ordering::Release),
        };
    }
}

/// A rwlock an entry.
pub struct EntryRwLock;

// SAFETY: the entry's rwlock excludes writers from everybody; see `rw`.
unsafe impl SlotLock for EntryRwLock {
    const ENTRY_WORDS: usize = 2;

    fn new() -> uzram::Result<EntryRwLock> {
        Ok(EntryRwLock)
    }

    fn lock(&self, slot: Slot<'_>) -> u64 {
        rw::lock(slot.lock);
        slot.word.load(Ordering::Relaxed)
    }

    fn unlock(&self, slot: Slot<'_>, word: u64) {
        slot.word.store(word, Ordering::Relaxed);
        rw::unlock(slot.lock);
    }

    fn lock_shared(&self, slot: Slot<'_>) -> u64 {
        rw::lock_shared(slot.lock);
        slot.word.load(Ordering::Relaxed)
    }

    fn unlock_shared(&self, slot: Slot<'_>, _word: u64) {
        rw::unlock_shared(slot.lock);
    }
}

/// A bit of the slot word, as the engine's, but nobody sleeps.
pub struct SpinningBit;

// SAFETY: the bit is set by an exchange from a word without it, so by one thread at a time, and cleared by
// the store of the word, which releases what the exchange acquires.
unsafe impl SlotLock for SpinningBit {
    const ENTRY_WORDS: usize = 1;

    fn new() -> uzram::Result<SpinningBit> {
        Ok(SpinningBit)
    }

    fn lock(&self, slot: Slot<'_>) -> u64 {
        let mut patience = Patience::default();
        loop {
            let word = slot.word.load(Ordering::Relaxed);
            if word & BIT == 0 && exchange(slot.word, word, word | BIT) {
                return word;
            }
            patience.turn();
        }
    }

    fn unlock(&self, slot: Slot<'_>, word: u64) {
        slot.word.store(word, Ordering::Release);
    }
}

fn exchange(word: &Word, from: u64, to: u64) -> bool {
    word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// A spinning rwlock in a word. A writer that waits keeps new readers out, so neither starves.
mod rw {
    use super::{Ordering, Patience, Word, exchange};

    const WRITER: u64 = 1;
    /// Some writer waits; who sets it takes the lock some time and clears it then.
    const WRITER_WAITS: u64 = 1 << 1;
    /// One reader; their count is in the bits from here on.
    const READER: u64 = 1 << 2;

    pub(super) fn lock(word: &Word) {
        let mut patience = Patience::default();
        loop {
            let seen = word.load(Ordering::Relaxed);
            if seen & !WRITER_WAITS == 0 {
                // Clears the bit of others too, who set it again.
                if exchange(word, seen, WRITER) {
                    return;
                }
            } else if seen & WRITER_WAITS == 0 {
                word.fetch_or(WRITER_WAITS, Ordering::Relaxed);
            }
            patience.turn();
        }
    }

    pub(super) fn unlock(word: &Word) {
        word.fetch_and(!WRITER, Ordering::Release);
    }

    pub(super) fn lock_shared(word: &Word) {
        let mut patience = Patience::default();
        loop {
            let seen = word.load(Ordering::Relaxed);
            if seen & (WRITER | WRITER_WAITS) == 0 && exchange(word, seen, seen + READER) {
                return;
            }
            patience.turn();
        }
    }

    pub(super) fn unlock_shared(word: &Word) {
        word.fetch_sub(READER, Ordering::Release);
    }
}

#[cfg(all(test, not(uzram_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn tickets_go_on_after_the_last_number() {
        let (word, lock) = (Word::new(0), Word::new(u64::MAX));
        let slot = Slot {
            index: 0,
            word: &word,
            lock: &lock,
        };
        for turn in 0..3 {
            assert_eq!(EntrySpinlock.lock(slot), turn * 4);
            EntrySpinlock.unlock(slot, (turn + 1) * 4);
        }
        assert_eq!(lock.load(Ordering::Relaxed), 2 << 32 | 2);
    }
}
