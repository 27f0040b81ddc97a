//! A small deterministic generator (splitmix64): the same seed gives the same numbers anywhere.

/// A stream of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// From `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// The next number, of 64 random bits.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number in `0..bound`; the bias of the multiplication is below 2^-32 for the sizes here.
    pub fn below(&mut self, bound: usize) -> usize {
        self.below_u64(bound as u64) as usize
    }

    /// The same of 64 bits.
    pub fn below_u64(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Fills `bytes` with numbers.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        // Whole words apart: their length is known, so they are plain stores.
        let mut words = bytes.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
        let rest = words.into_remainder();
        if !rest.is_empty() {
            let word = self.next().to_le_bytes();
            rest.copy_from_slice(&word[..rest.len()]);
        }
    }

    /// Puts `items` in a random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// `length` bytes that no codec shrinks, the same for the same `seed`.
#[must_use]
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_is_a_permutation_and_the_seed_decides_it() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..1000).collect();
            Rng::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(shuffled(7), shuffled(7));
        assert_ne!(shuffled(7), shuffled(8));
        let mut sorted = shuffled(7);
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..1000));
    }

    #[test]
    fn below_stays_below_and_reaches_both_ends() {
        let mut rng = Rng::new(1);
        let drawn: Vec<usize> = (0..10_000).map(|_| rng.below(3)).collect();
        assert!(drawn.iter().all(|&n| n < 3));
        assert!((0..3).all(|n| drawn.contains(&n)));
    }
}
