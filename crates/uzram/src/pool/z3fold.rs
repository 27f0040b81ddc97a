//! z3fold: at most three objects per unit, at its start, at its end, and one between.
//!
//! After z3fold of Linux (`Documentation/mm/z3fold.rst`): 64 chunks per page. Blocks with room are
//! listed by free chunks, in a set of lists for each CPU, and the best fit takes the next object:
//! at the start if it fits there, else at the end, else right behind the first. The third object
//! can outlive its neighbours, and then splits the free part: the larger piece counts.
//!
//! Differences: the header, which takes a page's first chunk there, is an entry of a table here
//! (`table.rs`). So 64 chunks are for objects, not 63, and an object of a whole unit is a first
//! one like any other instead of a page without header ("headless"). A handle is a place, not a
//! cell that names one in a group of four, so objects carry no such groups and need no lookup. For
//! the same reason only an object's owner can have it moved. The original's background work joins
//! the free parts beside a lone middle object and merges blocks of one object; here the store's
//! compaction does, for all pools. A block stays with the CPU's lists in which it began, instead
//! of going to those of the CPU that freed from it last. Eviction is left out: zram never used it.
//! Larger units have proportionally larger chunks.
//!
//! Trade-off: as simple as zbud and up to half denser, but a lone middle object divides its unit.
//! Bound: a unit holds three compressed units at most.

use super::buddies::{self, CHUNKS, Layout, OBJECTS_MAX};
use super::{PoolConfig, PoolMemory};
use crate::cpu;
use crate::error::Result;
use crate::region::Region;

pub(super) const NAME: &str = "z3fold";

pub(super) fn make(config: &PoolConfig, region: Region) -> Result<Box<PoolMemory>> {
    buddies::make::<Triple>(config, region, cpu::possible())
}

/// The sizes of the three, in chunks; 0 for none. Only the middle one's place must be recorded.
#[derive(Clone, Copy, Debug, Default)]
struct Triple {
    first: usize,
    middle: usize,
    last: usize,
    middle_start: usize,
}

impl Layout for Triple {
    fn to_word(self) -> u32 {
        (self.first | self.middle << 8 | self.last << 16 | self.middle_start << 24) as u32
    }

    fn from_word(word: u32) -> Triple {
        let [first, middle, last, middle_start] = word.to_le_bytes().map(usize::from);
        Triple {
            first,
            middle,
            last,
            middle_start,
        }
    }

    fn room(self) -> usize {
        if self.middle == 0 {
            return CHUNKS - self.first - self.last;
        }
        self.room_before().max(self.room_behind())
    }

    fn add(&mut self, chunks: usize) -> usize {
        if self.middle == 0 && self.first > 0 && self.last > 0 {
            self.middle = chunks;
            self.middle_start = self.first;
            return self.middle_start;
        }
        let fits_before = self.middle == 0 || chunks <= self.room_before();
        if self.first == 0 && fits_before {
            self.first = chunks;
            return 0;
        }
        self.last = chunks;
        CHUNKS - chunks
    }

    fn sizes(self) -> [usize; OBJECTS_MAX] {
        [self.first, self.middle, self.last]
    }

    fn objects_max() -> usize {
        OBJECTS_MAX
    }

    fn holds(self, start: usize, chunks: usize) -> bool {
        match start {
            0 => self.first == chunks,
            _ if start + chunks == CHUNKS => self.last == chunks,
            _ => self.middle == chunks && self.middle_start == start,
        }
    }

    fn take_away(&mut self, start: usize, chunks: usize) {
        match start {
            0 => self.first = 0,
            _ if start + chunks == CHUNKS => self.last = 0,
            _ => (self.middle, self.middle_start) = (0, 0),
        }
    }

    fn adopt(&mut self, start: usize, chunks: usize) -> bool {
        let end = start + chunks;
        // A middle object never touches an end of its unit, for it came when both were taken.
        let buddy = match start {
            0 => &mut self.first,
            _ if end == CHUNKS => &mut self.last,
            _ if end < CHUNKS && self.middle == 0 => {
                self.middle_start = start;
                &mut self.middle
            }
            _ => return false,
        };
        if *buddy > 0 {
            return false;
        }
        *buddy = chunks;
        match self.middle {
            0 => self.first + self.last <= CHUNKS,
            _ => {
                self.first <= self.middle_start
                    && self.middle_start + self.middle + self.last <= CHUNKS
            }
        }
    }
}

impl Triple {
    /// Between the unit's start and the middle object.
    fn room_before(self) -> usize {
        match self.first {
            0 => self.middle_start,
            _ => 0,
        }
    }

    /// Between the middle object and the unit's end.
    fn room_behind(self) -> usize {
        match self.last {
            0 => CHUNKS - self.middle_start - self.middle,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_objects_share_a_unit_and_no_more() {
        buddies::laws::check::<Triple>(3);
    }

    #[test]
    fn a_middle_object_that_is_left_divides_the_unit() {
        let mut triple = Triple::default();
        assert_eq!((triple.add(20), triple.add(24), triple.add(4)), (0, 40, 20));
        assert_eq!(triple.room(), 0);
        triple.take_away(0, 20);
        triple.take_away(40, 24);
        assert_eq!(triple.room(), 40, "behind it");
        assert_eq!(triple.add(30), 34, "too large for the start");
        assert_eq!((triple.room(), triple.add(20)), (20, 0));
    }
}
