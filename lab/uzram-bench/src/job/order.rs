//! The orders in which a worker visits its blocks: each block once a pass, whatever the order.

use uzram_testkit::Rng;

/// Records that a strided pass steps over: iozone's default.
const STRIDE: u64 = 17;
/// Rounds of the shuffle's network; four make it as good as random for a benchmark.
const ROUNDS: usize = 4;

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Forward,
    Backward,
    /// Every 17th block to the end, then from the next block on, until all are done.
    Strided,
    /// In a random order, which the job's seed decides.
    Random,
}

impl Order {
    /// The blocks of one pass over `count` of them.
    pub(super) fn pass(self, count: u64, seed: u64) -> Pass {
        Pass {
            order: self,
            count,
            shuffle: Shuffle::new(count, seed),
        }
    }
}

/// One pass.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    order: Order,
    count: u64,
    shuffle: Shuffle,
}

impl Pass {
    /// The block that comes at place `nth`, below the count.
    #[inline]
    pub(super) fn block(&self, nth: u64) -> u64 {
        match self.order {
            Order::Forward => nth,
            Order::Backward => self.count - 1 - nth,
            Order::Strided => strided(nth, self.count),
            Order::Random => self.shuffle.at(nth),
        }
    }
}

/// The first `count % STRIDE` of the strided rows are one block longer than the others.
fn strided(nth: u64, count: u64) -> u64 {
    let (short, longer) = (count / STRIDE, count % STRIDE);
    let in_longer = longer * (short + 1);
    if nth < in_longer {
        nth / (short + 1) + nth % (short + 1) * STRIDE
    } else {
        // No short row has no block: `short` is 0 only where all blocks are in the longer ones.
        let left = nth - in_longer;
        longer + left / short + left % short * STRIDE
    }
}

/// A permutation without a table, so that a terabyte needs no more memory than a megabyte: a Feistel
/// network over the next power of four, walked until it falls below the count.
#[derive(Clone, Debug)]
struct Shuffle {
    count: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Shuffle {
    fn new(count: u64, seed: u64) -> Shuffle {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        let mut rng = Rng::new(seed);
        Shuffle {
            count,
            half_bits: bits.div_ceil(2).max(1),
            keys: std::array::from_fn(|_| rng.next()),
        }
    }

    #[inline]
    fn at(&self, nth: u64) -> u64 {
        let mut place = nth;
        // The domain is below four times the count, and a permutation comes back to where it began,
        // so this ends; after four steps on average at most.
        loop {
            place = self.step(place);
            if place < self.count {
                return place;
            }
        }
    }

    #[inline]
    fn step(&self, place: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (place >> self.half_bits, place & mask);
        for key in self.keys {
            let mixed = (right ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (left, right) = (right, left ^ (mixed >> 32 & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(order: Order, count: u64, seed: u64) -> Vec<u64> {
        let pass = order.pass(count, seed);
        (0..count).map(|nth| pass.block(nth)).collect()
    }

    #[test]
    fn every_order_visits_each_block_once() {
        for order in [
            Order::Forward,
            Order::Backward,
            Order::Strided,
            Order::Random,
        ] {
            for count in [1, 2, 3, 16, 17, 18, 33, 34, 35, 100, 4096, 5000] {
                let mut visited = blocks(order, count, 7);
                visited.sort_unstable();
                assert!(visited.into_iter().eq(0..count), "{order:?} {count}");
            }
        }
    }

    #[test]
    fn strides_are_of_17_records() {
        let visited = blocks(Order::Strided, 40, 0);
        assert_eq!(visited[..5], [0, 17, 34, 1, 18]);
        assert_eq!(visited[9], 3);
        assert_eq!(visited[39], 33, "the last row has two records: 16 and 33");
        assert_eq!(blocks(Order::Backward, 3, 0), [2, 1, 0]);
    }

    #[test]
    fn a_seed_decides_the_random_order_and_it_looks_random() {
        let one = blocks(Order::Random, 4096, 1);
        assert_eq!(one, blocks(Order::Random, 4096, 1));
        assert_ne!(one, blocks(Order::Random, 4096, 2));
        let neighbours = one.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        let forward = one.windows(2).filter(|pair| pair[1] > pair[0]).count();
        let in_place = one.iter().zip(0..).filter(|(block, nth)| *block == nth);
        assert!(neighbours < 12, "{neighbours}");
        assert!((1800..2300).contains(&forward), "{forward}");
        assert!(in_place.count() < 12);
    }
}
