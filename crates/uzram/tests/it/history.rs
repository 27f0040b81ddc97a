//! A history: the writes and reads of concurrent threads, and a check that one order of them explains it.
//!
//! Each 512-byte sector is a register. Every write puts a value there that no other write does, save
//! for zero; every operation notes when it began and when it had returned, in ticks of one counter. A
//! value that was read is wrong if no write of it had begun, or if all of them had surely been
//! overwritten: by a write that began after they had returned, and had returned before the read
//! began. This finds every lost and every resurrected acknowledged write, and accuses nothing that
//! some order explains.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pages::Rng;

pub const SECTOR_BYTES: usize = 512;

/// Zeroes, or what a write of this number put there.
pub type Value = u64;
pub const ZERO: Value = 0;

/// Set in the values of writes that covered their page whole.
pub const WHOLE: Value = 1 << 63;

/// The bytes of a value in one sector. Odd values shrink, even ones do not.
pub fn fill(value: Value, sector: u64, bytes: &mut [u8]) {
    if value == ZERO {
        bytes.fill(0);
        return;
    }
    let mut rng = Rng::new(value ^ sector << 40);
    let repeated = rng.next();
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        let noise = if value & 1 == 1 { repeated } else { rng.next() };
        word.copy_from_slice(&if at == 0 { value } else { noise }.to_le_bytes());
    }
}

/// The value whose bytes these are.
///
/// # Panics
/// If they are nobody's, or parts of several.
pub fn value(sector: u64, bytes: &[u8]) -> Value {
    let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let mut expected = [0; SECTOR_BYTES];
    fill(value, sector, &mut expected);
    assert!(
        bytes == expected,
        "sector {sector} holds parts of several writes, or of none"
    );
    value
}

#[derive(Default)]
pub struct Clock(AtomicU64);

impl Clock {
    pub fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub sector: u64,
    pub value: Value,
    pub is_read: bool,
    pub begin: u64,
    pub end: u64,
}

/// Panics unless some order explains all events; returns how many reads it judged.
pub fn check(events: &[Event]) -> usize {
    let mut sectors: HashMap<u64, (Vec<Event>, Vec<Event>)> = HashMap::new();
    for event in events {
        let (reads, writes) = sectors.entry(event.sector).or_default();
        if event.is_read {
            reads.push(*event);
        } else {
            writes.push(*event);
        }
    }
    let mut judged = 0;
    for (reads, mut writes) in sectors.into_values() {
        writes.sort_by_key(|write| write.begin);
        // Of the writes from here on, the earliest end.
        let mut end_min = vec![u64::MAX; writes.len() + 1];
        for at in (0..writes.len()).rev() {
            end_min[at] = end_min[at + 1].min(writes[at].end);
        }
        let overwritten = |end: u64, before: u64| {
            let later = writes.partition_point(|write| write.begin <= end);
            end_min[later] < before
        };
        for read in &reads {
            let made = |write: &&Event| write.value == read.value && write.begin < read.end;
            let initial = read.value == ZERO && end_min[0] >= read.begin;
            let explained = initial
                || writes
                    .iter()
                    .filter(made)
                    .any(|w| !overwritten(w.end, read.begin));
            assert!(
                explained,
                "{read:?} was lost or came back; writes: {writes:#?}"
            );
            judged += 1;
        }
    }
    judged
}

#[test]
fn lost_and_resurrected_writes_are_found_and_races_are_not_accused() {
    let event = |is_read, value, begin, end| Event {
        sector: 0,
        value,
        is_read,
        begin,
        end,
    };
    let judge = |events: &[Event]| std::panic::catch_unwind(|| check(events)).is_ok();
    let (read, write) = (true, false);
    assert!(judge(&[event(write, 1, 0, 1), event(read, 1, 2, 3)]));
    assert!(
        judge(&[event(write, 1, 0, 9), event(read, ZERO, 2, 3)]),
        "not yet"
    );
    assert!(
        judge(&[event(write, 1, 0, 9), event(read, 1, 2, 3)]),
        "already"
    );
    let overlapping = [event(write, 1, 0, 5), event(write, 2, 3, 7)];
    assert!(judge(&[
        overlapping[0],
        overlapping[1],
        event(read, 1, 8, 9)
    ]));
    assert!(judge(&[
        overlapping[0],
        overlapping[1],
        event(read, 2, 8, 9)
    ]));
    assert!(!judge(&[
        overlapping[0],
        overlapping[1],
        event(read, ZERO, 8, 9)
    ]));
    let ordered = [event(write, 1, 0, 1), event(write, 2, 2, 3)];
    assert!(
        !judge(&[ordered[0], ordered[1], event(read, 1, 4, 5)]),
        "lost"
    );
    assert!(!judge(&[ordered[0], event(read, 3, 4, 5)]), "from nowhere");
    assert!(
        !judge(&[event(write, 1, 4, 5), event(read, 1, 2, 3)]),
        "from the future"
    );
}
