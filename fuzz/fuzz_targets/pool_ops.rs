//! Sequences of operations on every pool against a model: contents, counts, the limit, and that
//! nothing stays when all is removed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uzram::lab::{BarePool, Objects};
use uzram::{ErrorKind, Unit};

const PLACES: usize = 64;
const OPS_MAX: usize = 600;
const UNITS_BYTES: [u64; 3] = [4096, 16384, 65536];

uzram_fuzz::sanitizer_options!();

/// A pool with what it should hold: each place's object by seed and size.
struct Subject {
    pool: BarePool,
    objects: Objects,
    unit_bytes: usize,
    /// 0 for none.
    limit_bytes: u64,
    model: [Option<(u64, usize)>; PLACES],
    /// Insertions so far, the refused ones included: the next seed.
    inserted: u64,
}

impl Subject {
    fn new(pool: u8, unit: u8, limit: u8) -> Subject {
        let pools = uzram::pools();
        let name = pools[usize::from(pool) % pools.len()];
        let unit = Unit::new(UNITS_BYTES[usize::from(unit) % UNITS_BYTES.len()]).unwrap();
        // Large disks live in huge spans, small ones and small limits in runs of 4 KiB pages.
        let size_bytes = if limit & 1 == 0 { 1 << 20 } else { 256 << 20 };
        let limit_bytes = u64::from(limit / 2) * 16384;
        let pool = BarePool::new(name, unit, size_bytes, limit_bytes).unwrap();
        Subject {
            objects: pool.objects(PLACES),
            pool,
            unit_bytes: unit.bytes(),
            limit_bytes,
            model: [None; PLACES],
            inserted: 0,
        }
    }

    fn insert(&mut self, place: usize, size: usize) {
        self.inserted += 1;
        let seed = self.inserted;
        let before_bytes = self.pool.stats().used_bytes;
        let done = self.objects.insert(place, &content(seed, size));
        match done.map_err(|error| error.kind()) {
            Ok(()) => {
                assert!(self.model[place].is_none() && (1..=self.unit_bytes).contains(&size));
                self.model[place] = Some((seed, size));
                // A limit below what is in use leaves the room in blocks that are there.
                let used_bytes = self.pool.stats().used_bytes;
                assert!(
                    self.limit_bytes == 0
                        || used_bytes <= self.limit_bytes
                        || used_bytes == before_bytes,
                    "an insertion past the limit"
                );
            }
            Err(ErrorKind::InvalidInput) => {
                assert!(self.model[place].is_some() || size == 0 || size > self.unit_bytes);
            }
            Err(ErrorKind::NoSpace) => assert!(self.limit_bytes > 0, "no limit was set"),
            Err(kind) => panic!("{kind:?}"),
        }
    }

    /// Objects move, and no more memory is in use than before.
    fn compact(&mut self) {
        let before_bytes = self.pool.stats().used_bytes;
        match self.objects.compact() {
            Ok(_) => {
                let used_bytes = self.pool.stats().used_bytes;
                assert!(
                    used_bytes <= before_bytes,
                    "{used_bytes} after {before_bytes}"
                );
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                assert!(self.limit_bytes > 0, "no limit was set");
            }
        }
        (0..PLACES).for_each(|place| self.check(place));
    }

    fn check(&self, place: usize) {
        let expected = self.model[place].map(|(seed, size)| content(seed, size));
        assert!(
            self.objects.bytes(place) == expected.as_deref(),
            "place {place}"
        );
    }

    fn check_stats(&self) {
        let stats = self.pool.stats();
        let live = self.model.iter().flatten();
        let stored: usize = live.clone().map(|(_, size)| size).sum();
        assert!(stats.used_bytes >= stored as u64, "{stats:?}");
        assert!(stats.resident_bytes >= stats.used_bytes, "{stats:?}");
        assert!(stats.used_max_bytes >= stats.used_bytes, "{stats:?}");
        assert_eq!(stats.used_bytes == 0, live.count() == 0, "{stats:?}");
    }
}

/// Bytes that no other object has.
fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; size];
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    let Some((&[pool, unit, limit], ops)) = data.split_first_chunk() else {
        return;
    };
    let mut subject = Subject::new(pool, unit, limit);
    // An operation: what, where, and a size or a limit.
    for &[op, place, low, high] in ops.as_chunks().0.iter().take(OPS_MAX) {
        let place = usize::from(place) % PLACES;
        let number = usize::from(u16::from_le_bytes([low, high]));
        match op % 16 {
            0..5 => subject.insert(place, number % (subject.unit_bytes + 2)),
            5 => subject.insert(place, subject.unit_bytes - number % 64),
            6..10 => {
                subject.objects.remove(place);
                subject.model[place] = None;
            }
            10 => {
                subject.objects.swap(place, number % PLACES);
                subject.model.swap(place, number % PLACES);
            }
            11 => {
                subject.limit_bytes = number as u64 * 1024;
                subject.pool.set_limit(subject.limit_bytes);
            }
            12 => drop(subject.pool.maintain()),
            13 => subject.pool.trim(),
            14 if number % 4 == 0 => subject.compact(),
            14 => (0..PLACES).for_each(|place| subject.check(place)),
            _ => subject.check(place),
        }
        subject.check_stats();
    }
    for place in 0..PLACES {
        subject.check(place);
        subject.objects.remove(place);
    }
    subject.pool.trim();
    let stats = subject.pool.stats();
    assert_eq!((stats.used_bytes, stats.resident_bytes), (0, 0));
});
