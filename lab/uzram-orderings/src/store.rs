//! The slot lock.

#[allow(dead_code, clippy::modulo_one)]
#[path = "../../../crates/uzram/src/store/lock.rs"]
mod lock;

use loom::sync::Arc;
use loom::thread;

use self::lock::{SleepingBit, Slot, SlotLock, Word};
use crate::cell::Cell;
use crate::check;
use crate::sync::Ordering;

/// A bit of the slot word that belongs to the content.
const CONTENT: u64 = 1 << 10;

struct Table {
    locks: SleepingBit,
    word: Word,
    /// The slot's word describes it.
    content: Cell,
}

impl Table {
    fn new() -> Arc<Table> {
        Arc::new(Table {
            locks: SleepingBit::new().unwrap(),
            word: Word::new(0),
            content: Cell::new(0),
        })
    }

    fn slot(&self) -> Slot<'_> {
        Slot {
            index: 0,
            word: &self.word,
            lock: &self.word,
        }
    }

    /// Changes word and content together, which say the same.
    fn publish_one_more(&self, word: u64) {
        let before = self.content.get();
        self.content.set(before + 1);
        assert_eq!(word, u64::from(before) * CONTENT);
        self.locks.unlock(self.slot(), word + CONTENT);
    }
}

#[test]
fn whoever_locks_a_slot_sees_what_was_published() {
    check(|| {
        let table = Table::new();
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let table = Arc::clone(&table);
                thread::spawn(move || table.publish_one_more(table.locks.lock(table.slot())))
            })
            .collect();
        table.publish_one_more(table.locks.lock(table.slot()));
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        assert_eq!(table.locks.lock(table.slot()), 3 * CONTENT);
    });
}

#[test]
fn who_tries_a_slot_has_it_alone_or_not_at_all() {
    check(|| {
        let table = Table::new();
        let other = Arc::clone(&table);
        let other = thread::spawn(move || other.publish_one_more(other.locks.lock(other.slot())));
        if let Some(word) = table.locks.try_lock(table.slot()) {
            table.publish_one_more(word);
        }
        other.join().unwrap();
        let word = table.locks.lock(table.slot());
        assert!(word == CONTENT || word == 2 * CONTENT);
    });
}

/// The kernel zeroes words, which unlocks them, and nobody would look again.
#[test]
fn a_word_that_the_system_drops_wakes_who_waits() {
    check(|| {
        let table = Table::new();
        let dropper = Arc::clone(&table);
        let dropper = thread::spawn(move || {
            let word = dropper.locks.lock(dropper.slot());
            assert!(word == 0 || word == CONTENT);
            dropper.content.set(0);
            // Locks of the page tables order what was before. Of a plain store loom does not see that a
            // compare-exchange which read the word before it also comes before it.
            dropper.word.swap(0, Ordering::AcqRel);
            dropper.locks.words_dropped(0..1);
        });
        table.publish_one_more(table.locks.lock(table.slot()));
        dropper.join().unwrap();
        let word = table.locks.lock(table.slot());
        assert!(word == 0 || word == CONTENT);
    });
}
