//! The locks that are compared, each in a store with the engine's streams, and the names of their cases.

use uzram::lab::{PerCpuStreams, SleepingBit, SlotLock};

use crate::error::Result;
use crate::job::target::{AnyStore, Make, store};
use crate::variants::locks::{EntryCas, EntryRwLock, EntrySpinlock, SpinningBit, TableRwLock};

pub(super) const ENGINE: &str = "uzram-sleeping-bit";
pub(super) const TABLE: &str = "table-rwlock";

/// The locks, in a store with the engine's streams.
pub(super) const LOCKS: [(&str, Make); 6] = [
    (ENGINE, with::<SleepingBit>),
    ("bit-spinlock", with::<SpinningBit>),
    ("rwlock", with::<EntryRwLock>),
    ("spinlock", with::<EntrySpinlock>),
    ("cas", with::<EntryCas>),
    (TABLE, with::<TableRwLock>),
];

/// Bytes of an entry of the slot table with each of the locks.
pub(super) const ENTRY_BYTES: [usize; 6] = [
    8 * SleepingBit::ENTRY_WORDS,
    8 * SpinningBit::ENTRY_WORDS,
    8 * EntryRwLock::ENTRY_WORDS,
    8 * EntrySpinlock::ENTRY_WORDS,
    8 * EntryCas::ENTRY_WORDS,
    8 * TableRwLock::ENTRY_WORDS,
];

fn with<L: SlotLock + 'static>(algorithm: &str, bytes: u64) -> Result<Box<dyn AnyStore>> {
    store::<L, _>(algorithm, bytes, PerCpuStreams::new()?, None)
}

/// The locks but the table's.
pub(super) fn entry_locks() -> impl Iterator<Item = &'static str> {
    LOCKS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| *name != TABLE)
}

/// The case of a test with so many threads.
pub(super) fn case(test: &str, threads: usize) -> String {
    format!("{test}/jobs={threads}")
}
