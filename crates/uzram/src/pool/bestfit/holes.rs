//! The holes of one block, sorted by place. Places and lengths are in rows of their own, so that a
//! search through the lengths reads nothing else, and several at once.

use smallvec::SmallVec;

use super::place::PAGE_GRANULES;
use crate::memory;
use crate::pool::arena::RUN_PAGES_MAX;

/// Holes within the block's own words, without other memory. Most blocks have no more.
pub(super) const HOLES_INLINE: usize = 48;

/// Longest hole, in granules.
const LENGTH_MAX: usize = RUN_PAGES_MAX * PAGE_GRANULES;

// What is left of a hole that is too short for an object wraps around to more than this.
const _: () = assert!(2 * LENGTH_MAX <= u16::MAX as usize + 1);

/// Free granules of a block. Both in granules, from the frame's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hole {
    start: u16,
    length: u16,
}

impl Hole {
    pub(super) fn new(start: usize, length: usize) -> Hole {
        Hole {
            start: start as u16,
            length: length as u16,
        }
    }

    pub(super) fn start(self) -> usize {
        usize::from(self.start)
    }

    pub(super) fn length(self) -> usize {
        usize::from(self.length)
    }

    pub(super) fn end(self) -> usize {
        self.start() + self.length()
    }
}

#[derive(Debug, Default)]
pub(super) struct Holes {
    starts: SmallVec<[u16; HOLES_INLINE]>,
    lengths: SmallVec<[u16; HOLES_INLINE]>,
}

impl Holes {
    pub(super) fn at(&self, at: usize) -> Hole {
        Hole {
            start: self.starts[at],
            length: self.lengths[at],
        }
    }

    pub(super) fn get(&self, at: usize) -> Option<Hole> {
        (at < self.starts.len()).then(|| self.at(at))
    }

    pub(super) fn set(&mut self, at: usize, hole: Hole) {
        self.starts[at] = hole.start;
        self.lengths[at] = hole.length;
    }

    /// Makes room for `count` more entries; false if there is no memory for them.
    pub(super) fn make_room(&mut self, count: usize) -> bool {
        make_room(&mut self.starts, count) && make_room(&mut self.lengths, count)
    }

    /// False if there is no memory for the entry. Nothing has changed then.
    pub(super) fn insert(&mut self, at: usize, hole: Hole) -> bool {
        let has_room = self.make_room(1);
        if has_room {
            self.starts.insert(at, hole.start);
            self.lengths.insert(at, hole.length);
        }
        has_room
    }

    pub(super) fn remove(&mut self, at: usize) -> Hole {
        Hole {
            start: self.starts.remove(at),
            length: self.lengths.remove(at),
        }
    }

    /// The number of holes that begin before `granule`.
    pub(super) fn before(&self, granule: usize) -> usize {
        self.starts
            .partition_point(|start| usize::from(*start) < granule)
    }

    /// The shortest hole of at least `length` granules, the first of several.
    pub(super) fn best_fit(&self, length: usize) -> Option<usize> {
        // What would be left of a hole; too short ones wrap around. No branches: the compiler takes
        // several at once.
        let left = |hole: &u16| hole.wrapping_sub(length as u16);
        let least = self.lengths.iter().map(left).fold(u16::MAX, u16::min);
        let fits = usize::from(least) < LENGTH_MAX;
        fits.then(|| self.lengths.iter().position(|hole| left(hole) == least))?
    }

    /// Length of the longest.
    pub(super) fn longest(&self) -> u16 {
        self.lengths.iter().copied().fold(0, u16::max)
    }

    /// Memory besides the block's own words, in bytes.
    pub(super) fn side_bytes(&self) -> usize {
        let spilled = |row: &SmallVec<[u16; HOLES_INLINE]>| match row.spilled() {
            true => row.capacity() * size_of::<u16>(),
            false => 0,
        };
        spilled(&self.starts) + spilled(&self.lengths)
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<Hole> {
        (0..self.starts.len()).map(|at| self.at(at)).collect()
    }
}

fn make_room(row: &mut SmallVec<[u16; HOLES_INLINE]>, count: usize) -> bool {
    let more = row.len().max(count);
    row.len() + count <= row.capacity()
        || memory::gate().is_ok() && row.try_reserve_exact(more).is_ok()
}
