//! zbud: at most two objects per unit, one at its start and one at its end.
//!
//! After zbud of Linux (`mm/zbud.c`, as its own head describes it): 64 chunks per page. Blocks
//! with one object are listed by free chunks, and the best fit among them takes the next object;
//! one lock for the whole pool. Its eviction in order of use is left out: zram never used it. The
//! original never compacts; here the store's compaction empties blocks of one object like any
//! other pool's.
//!
//! Differences: the 64-byte header, which takes a page's first chunk there, is an entry of a table
//! here (`table.rs`). So 64 chunks are for objects, not 63, and an object of a whole unit needs no
//! exception (zbud refuses objects larger than 62 chunks). Larger units have proportionally larger
//! chunks.
//!
//! Trade-off: nothing is ever searched, and a unit is free as soon as its two objects are gone, so
//! overwriting fragments it least. But a unit of memory holds two compressed units at most. Bound:
//! half of the memory saved, whatever the codec achieves.

use super::buddies::{self, CHUNKS, Layout, OBJECTS_MAX};
use super::{PoolConfig, PoolMemory};
use crate::error::Result;
use crate::region::Region;

pub(super) const NAME: &str = "zbud";

pub(super) fn make(config: &PoolConfig, region: Region) -> Result<Box<PoolMemory>> {
    buddies::make::<Pair>(config, region, 1)
}

/// The sizes of the two, in chunks; 0 for none.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    first: usize,
    last: usize,
}

impl Layout for Pair {
    fn to_word(self) -> u32 {
        (self.first | self.last << 8) as u32
    }

    fn from_word(word: u32) -> Pair {
        let [first, last, ..] = word.to_le_bytes().map(usize::from);
        Pair { first, last }
    }

    fn room(self) -> usize {
        match (self.first, self.last) {
            (0, other) | (other, 0) => CHUNKS - other,
            _ => 0,
        }
    }

    fn add(&mut self, chunks: usize) -> usize {
        if self.first == 0 {
            self.first = chunks;
            return 0;
        }
        self.last = chunks;
        CHUNKS - chunks
    }

    fn sizes(self) -> [usize; OBJECTS_MAX] {
        [self.first, self.last, 0]
    }

    fn objects_max() -> usize {
        2
    }

    fn holds(self, start: usize, chunks: usize) -> bool {
        match start {
            0 => self.first == chunks,
            _ => self.last == chunks && start + chunks == CHUNKS,
        }
    }

    fn take_away(&mut self, start: usize, _chunks: usize) {
        match start {
            0 => self.first = 0,
            _ => self.last = 0,
        }
    }

    fn adopt(&mut self, start: usize, chunks: usize) -> bool {
        let buddy = match start {
            0 => &mut self.first,
            _ if start + chunks == CHUNKS => &mut self.last,
            _ => return false,
        };
        if *buddy > 0 {
            return false;
        }
        *buddy = chunks;
        self.first + self.last <= CHUNKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_objects_share_a_unit_and_no_more() {
        buddies::laws::check::<Pair>(2);
    }

    #[test]
    fn the_second_object_goes_to_the_end() {
        let mut pair = Pair::default();
        assert_eq!((pair.add(10), pair.room()), (0, 54));
        assert_eq!((pair.add(20), pair.room()), (44, 0));
        pair.take_away(0, 10);
        assert_eq!((pair.room(), pair.add(44)), (44, 0));
    }
}
