//! A fixed set of up to 512 numbers: the pages of a span.

/// Numbers 0 to 511.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits {
    words: [u64; 8],
}

impl Bits {
    pub(super) const CAPACITY: usize = 512;
    pub(super) const EMPTY: Bits = Bits { words: [0; 8] };

    /// All numbers below `end`.
    pub(super) fn below(end: usize) -> Bits {
        let mut bits = Bits::default();
        bits.set(0, end);
        bits
    }

    /// Adds `length` numbers from `start` on.
    pub(super) fn set(&mut self, start: usize, length: usize) {
        self.each_word(start, length, |word, mask| *word |= mask);
    }

    /// Removes `length` numbers from `start` on.
    pub(super) fn clear(&mut self, start: usize, length: usize) {
        self.each_word(start, length, |word, mask| *word &= !mask);
    }

    pub(super) fn and_not(self, other: Bits) -> Bits {
        self.zip(other, |a, b| a & !b)
    }

    pub(super) fn count(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    pub(super) fn contains_any(&self, start: usize, length: usize) -> bool {
        let mut range = Bits::default();
        range.set(start, length);
        !self.zip(range, |a, b| a & b).is_empty()
    }

    pub(super) fn contains_all(&self, start: usize, length: usize) -> bool {
        let mut range = Bits::default();
        range.set(start, length);
        range.and_not(*self).is_empty()
    }

    /// The lowest `start` of `length` consecutive numbers, 1 or more.
    pub(super) fn find_run(self, length: usize) -> Option<usize> {
        self.run_starts(length).first()
    }

    /// The lowest multiple of `length`, a power of two up to 64, that begins as many numbers.
    pub(super) fn find_aligned_run(self, length: usize) -> Option<usize> {
        debug_assert!(length.is_power_of_two() && length <= 64);
        let multiples = u64::MAX / (u64::MAX >> (64 - length));
        let multiples = Bits {
            words: [multiples; 8],
        };
        self.run_starts(length).zip(multiples, |a, b| a & b).first()
    }

    fn run_starts(self, length: usize) -> Bits {
        // After each step a member of `runs` begins a run of `covered` numbers; doubling reaches
        // any length in log2 steps.
        let mut runs = self;
        let mut covered = 1;
        while covered < length {
            let step = covered.min(length - covered);
            runs = runs.zip(runs.shifted_down(step), |a, b| a & b);
            covered += step;
        }
        runs
    }

    /// The maximal runs of consecutive numbers, as start and length.
    pub(super) fn runs(self) -> impl Iterator<Item = (usize, usize)> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let start = rest.first()?;
            let mut length = 1;
            while start + length < Bits::CAPACITY && rest.contains_any(start + length, 1) {
                length += 1;
            }
            rest.clear(start, length);
            Some((start, length))
        })
    }

    fn first(&self) -> Option<usize> {
        let (index, word) = self
            .words
            .iter()
            .enumerate()
            .find(|(_, word)| **word != 0)?;
        Some(index * 64 + word.trailing_zeros() as usize)
    }

    /// Each number `step` lower, 1 to 511; those below `step` drop out.
    fn shifted_down(self, step: usize) -> Bits {
        let (skip, shift) = (step / 64, step % 64);
        let word = |index: usize| self.words.get(index).copied().unwrap_or(0);
        let mut words = [0; 8];
        for (index, out) in words.iter_mut().enumerate() {
            let high = word(index + skip + 1)
                .checked_shl(64 - shift as u32)
                .unwrap_or(0);
            *out = word(index + skip) >> shift | high;
        }
        Bits { words }
    }

    fn zip(self, other: Bits, combine: impl Fn(u64, u64) -> u64) -> Bits {
        Bits {
            words: std::array::from_fn(|i| combine(self.words[i], other.words[i])),
        }
    }

    fn each_word(&mut self, start: usize, length: usize, change: impl Fn(&mut u64, u64)) {
        let end = start + length;
        assert!(end <= Bits::CAPACITY, "numbers {start}..{end} of 512");
        let mut at = start;
        while at < end {
            let in_word = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - in_word)) << (at % 64);
            change(&mut self.words[at / 64], mask);
            at += in_word;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_set(ops in prop::collection::vec((any::<bool>(), 0..512usize, 0..80usize), 0..40)) {
            let (mut bits, mut set) = (Bits::default(), BTreeSet::new());
            for (add, start, length) in ops {
                let length = length.min(512 - start);
                if add {
                    bits.set(start, length);
                    set.extend(start..start + length);
                } else {
                    bits.clear(start, length);
                    set.retain(|n| !(start..start + length).contains(n));
                }
            }
            prop_assert_eq!(bits.count(), set.len());
            prop_assert_eq!(bits.is_empty(), set.is_empty());
            for length in [1, 2, 3, 5, 8, 13, 16, 64, 65, 200, 512] {
                let run = (0..=512 - length).find(|s| (*s..s + length).all(|n| set.contains(&n)));
                prop_assert_eq!(bits.find_run(length), run, "length {}", length);
                if length.is_power_of_two() && length <= 64 {
                    let aligned = (0..512).step_by(length);
                    let run = { aligned }.find(|s| (*s..s + length).all(|n| set.contains(&n)));
                    prop_assert_eq!(bits.find_aligned_run(length), run, "length {}", length);
                }
            }
            let runs: Vec<usize> = bits.runs().flat_map(|(s, l)| s..s + l).collect();
            prop_assert_eq!(runs, set.iter().copied().collect::<Vec<_>>());
        }
    }
}
