//! The policies that are compared, each in a store with the engine's slot lock, and the names of their cases.

use uzram::lab::{PerCpuStreams, SleepingBit};

use crate::error::Result;
use crate::job::target::{AnyStore, Make, store};
use crate::variants::streams::{IdleList, OneStream, Sleeps};

pub(super) const PER_CPU: &str = "uzram-per-cpu";
pub(super) const IDLE_8: &str = "idle-list-8";
pub(super) const IDLE_4: &str = "idle-list-4";
pub(super) const IDLE_1: &str = "idle-list-1";
pub(super) const ONE: &str = "one-stream";

/// The policies, in a store with the engine's slot lock.
pub(super) const POLICIES: [(&str, Make); 5] = [
    (PER_CPU, |algorithm, bytes| {
        store::<SleepingBit, _>(algorithm, bytes, PerCpuStreams::new()?, None)
    }),
    (IDLE_8, |algorithm, bytes| idle_list(algorithm, bytes, 8)),
    (IDLE_4, |algorithm, bytes| idle_list(algorithm, bytes, 4)),
    (IDLE_1, |algorithm, bytes| idle_list(algorithm, bytes, 1)),
    (ONE, |algorithm, bytes| {
        let sleeps = Sleeps::default();
        let streams = OneStream::new(sleeps.clone());
        store::<SleepingBit, _>(algorithm, bytes, streams, Some(sleeps))
    }),
];

fn idle_list(algorithm: &str, bytes: u64, most: usize) -> Result<Box<dyn AnyStore>> {
    let sleeps = Sleeps::default();
    let streams = IdleList::new(most, sleeps.clone());
    store::<SleepingBit, _>(algorithm, bytes, streams, Some(sleeps))
}

/// The policies but the engine's.
pub(super) fn others() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().skip(1).map(|(name, _)| *name)
}

/// The case of a test with so many threads.
pub(super) fn case(test: &str, threads: usize) -> String {
    format!("{test}/T={threads}")
}
