//! Sets of lengths, searched for the least from a given one on.

use crate::sync::{AtomicU64, Ordering};

/// Lengths are 0 to 512: a unit of 4 KiB in granules, or parts of a larger one.
pub(super) const LENGTHS: usize = 513;

#[derive(Debug, Default)]
pub(super) struct Lengths {
    words: [u64; LENGTHS.div_ceil(64)],
}

impl Lengths {
    pub(super) fn insert(&mut self, length: usize) {
        self.words[length / 64] |= 1 << (length % 64);
    }

    pub(super) fn remove(&mut self, length: usize) {
        self.words[length / 64] &= !(1 << (length % 64));
    }

    /// The least that is not below `from`.
    pub(super) fn first_from(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = *self.words.get(word)? & u64::MAX << (from % 64);
        while bits == 0 {
            word += 1;
            bits = *self.words.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

/// A set that one thread changes at a time, and all may read.
#[derive(Debug, Default)]
pub(super) struct SharedLengths {
    words: [AtomicU64; LENGTHS.div_ceil(64)],
}

impl SharedLengths {
    pub(super) fn insert(&self, length: usize) {
        let word = &self.words[length / 64];
        word.store(
            word.load(Ordering::Relaxed) | 1 << (length % 64),
            Ordering::Relaxed,
        );
    }

    pub(super) fn remove(&self, length: usize) {
        let word = &self.words[length / 64];
        word.store(
            word.load(Ordering::Relaxed) & !(1 << (length % 64)),
            Ordering::Relaxed,
        );
    }

    /// False for lengths beyond every set.
    pub(super) fn has(&self, length: usize) -> bool {
        let word = self.words.get(length / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (length % 64) != 0)
    }
}
