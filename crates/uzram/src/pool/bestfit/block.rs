//! One block: the holes among the granules of a frame.
//!
//! Only holes are kept, sorted by place, 4 bytes each, and never two side by side. Everything else
//! belongs to an object, except pages that the block lacks. So a full block costs a fixed few
//! words. A hole whose entry cannot be had (no memory) is forgotten until the block is empty,
//! which its count of live granules tells.

use super::holes::{Hole, Holes};
use super::place::PAGE_GRANULES;
use crate::pool::arena::RUN_PAGES_MAX;

const _: () = assert!(RUN_PAGES_MAX <= u64::BITS as usize);
const _: () = assert!(RUN_PAGES_MAX * PAGE_GRANULES <= u16::MAX as usize);

/// The part of a frame that holds objects. Places and lengths are in granules from the frame's
/// start.
#[derive(Debug, Default)]
pub(super) struct Block {
    holes: Holes,
    /// Bit `n`: page `n` of the frame is the block's.
    pages: u64,
    live_granules: u32,
    /// Length of the longest hole.
    longest: u16,
    #[cfg(debug_assertions)]
    starts: debug::Starts,
}

impl Block {
    pub(super) fn live_granules(&self) -> usize {
        self.live_granules as usize
    }

    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    pub(super) fn has_page(&self, page: usize) -> bool {
        self.pages & 1 << page != 0
    }

    /// Length of the longest hole.
    pub(super) fn longest(&self) -> usize {
        usize::from(self.longest)
    }

    /// Adds `count` free pages from `first` on. They are lost if there is no entry for their hole;
    /// a new block always has one.
    pub(super) fn add_pages(&mut self, first: usize, count: usize) {
        self.pages |= mask(first, count);
        self.add_hole(first * PAGE_GRANULES, count * PAGE_GRANULES);
    }

    /// Takes `length` granules from the shortest hole that suffices. Returns the place.
    pub(super) fn take(&mut self, length: usize) -> Option<usize> {
        let at = self.holes.best_fit(length)?;
        let start = self.holes.at(at).start();
        self.carve(at, start, length);
        Some(start)
    }

    /// Makes room for the holes that pages which come, and then an object among them, may add; false if there is no memory.
    pub(super) fn make_room(&mut self) -> bool {
        self.holes.make_room(2)
    }

    /// Takes these very granules; false unless all of them are in a hole.
    pub(super) fn take_at(&mut self, start: usize, length: usize) -> bool {
        let at = self.hole_around(start, length);
        at.inspect(|at| self.carve(*at, start, length)).is_some()
    }

    /// Whether no object has any of these granules. Pages that the block lacks have no objects.
    pub(super) fn is_vacant(&self, start: usize, length: usize) -> bool {
        let pages = start / PAGE_GRANULES..(start + length).div_ceil(PAGE_GRANULES);
        pages.into_iter().all(|page| {
            let from = start.max(page * PAGE_GRANULES);
            let end = (start + length).min((page + 1) * PAGE_GRANULES);
            !self.has_page(page) || self.hole_around(from, end - from).is_some()
        })
    }

    /// Frees an object's granules.
    pub(super) fn free(&mut self, start: usize, length: usize) {
        debug_assert!(self.holds(start, length), "double free or stale handle");
        #[cfg(debug_assertions)]
        self.starts.clear(start);
        self.live_granules -= length as u32;
        self.add_hole(start, length);
    }

    /// Gives up the groups of `group` pages around `start` that are now within a hole, and returns
    /// them as bits.
    pub(super) fn shed(&mut self, start: usize, group: usize) -> u64 {
        let Some(at) = self.hole_around(start, 1) else {
            return 0;
        };
        let hole = self.holes.at(at);
        let group_granules = group * PAGE_GRANULES;
        let first = hole.start().next_multiple_of(group_granules);
        let end = hole.end() / group_granules * group_granules;
        if first >= end {
            return 0;
        }
        let (before, after) = (first - hole.start(), hole.end() - end);
        match (before, after) {
            (0, 0) => drop(self.holes.remove(at)),
            (0, _) => self.holes.set(at, Hole::new(end, after)),
            (_, 0) => self.holes.set(at, Hole::new(hole.start(), before)),
            (_, _) => {
                if !self.holes.insert(at + 1, Hole::new(end, after)) {
                    return 0;
                }
                self.holes.set(at, Hole::new(hole.start(), before));
            }
        }
        self.look_for_longest();
        let gone = mask(first / PAGE_GRANULES, (end - first) / PAGE_GRANULES);
        self.pages &= !gone;
        gone
    }

    /// Whether an object of this length begins there. Without debug assertions, whether that is
    /// possible.
    pub(super) fn holds(&self, start: usize, length: usize) -> bool {
        let end = start + length;
        let behind = self.holes.before(end);
        let in_hole = behind > 0 && self.holes.at(behind - 1).end() > start;
        let pages = start / PAGE_GRANULES..end.div_ceil(PAGE_GRANULES);
        let on_pages = pages.clone().all(|page| self.has_page(page));
        #[cfg(debug_assertions)]
        let is_one = {
            let hole_behind = self
                .holes
                .get(behind)
                .is_some_and(|hole| hole.start() == end);
            let page_behind = end.is_multiple_of(PAGE_GRANULES)
                && (end / PAGE_GRANULES >= RUN_PAGES_MAX || !self.has_page(end / PAGE_GRANULES));
            self.starts.is_one(start, end, hole_behind || page_behind)
        };
        #[cfg(not(debug_assertions))]
        let is_one = true;
        !in_hole && on_pages && is_one
    }

    /// Bookkeeping besides the block's own words, in bytes.
    pub(super) fn side_bytes(&self) -> usize {
        #[cfg(debug_assertions)]
        let starts = self.starts.side_bytes();
        #[cfg(not(debug_assertions))]
        let starts = 0;
        self.holes.side_bytes() + starts
    }

    /// The hole that has all of these granules.
    fn hole_around(&self, start: usize, length: usize) -> Option<usize> {
        let behind = self.holes.before(start + 1);
        let at = behind.checked_sub(1)?;
        (self.holes.at(at).end() >= start + length).then_some(at)
    }

    /// Takes granules of hole `at`.
    fn carve(&mut self, at: usize, start: usize, length: usize) {
        let hole = self.holes.at(at);
        let (before, after) = (start - hole.start(), hole.end() - start - length);
        match (before, after) {
            (0, 0) => drop(self.holes.remove(at)),
            (0, _) => self.holes.set(at, Hole::new(start + length, after)),
            (_, 0) => self.holes.set(at, Hole::new(hole.start(), before)),
            (_, _) => {
                self.holes.set(at, Hole::new(hole.start(), before));
                self.insert_or_lose(at + 1, Hole::new(start + length, after));
            }
        }
        self.live_granules += length as u32;
        if hole.length() == self.longest() {
            self.look_for_longest();
        }
        #[cfg(debug_assertions)]
        self.starts.set(start);
    }

    /// Joins free granules to the holes beside them.
    fn add_hole(&mut self, start: usize, length: usize) {
        let at = self.holes.before(start);
        let joins_before = at > 0 && self.holes.at(at - 1).end() == start;
        let behind = self.holes.get(at);
        let joins_behind = behind.is_some_and(|hole| start + length == hole.start());
        let hole = match (joins_before, joins_behind) {
            (true, true) => {
                let behind = self.holes.remove(at);
                self.widen(at - 1, length + behind.length())
            }
            (true, false) => self.widen(at - 1, length),
            (false, true) => {
                let hole = Hole::new(start, length + self.holes.at(at).length());
                self.holes.set(at, hole);
                hole
            }
            (false, false) => {
                let hole = Hole::new(start, length);
                if !self.insert_or_lose(at, hole) {
                    return;
                }
                hole
            }
        };
        self.longest = self.longest.max(hole.length() as u16);
    }

    /// Moves the end of hole `at` further by this much.
    fn widen(&mut self, at: usize, granules: usize) -> Hole {
        let hole = self.holes.at(at);
        let hole = Hole::new(hole.start(), hole.length() + granules);
        self.holes.set(at, hole);
        hole
    }

    /// Adds the hole, or forgets it if there is no memory for its entry.
    fn insert_or_lose(&mut self, at: usize, hole: Hole) -> bool {
        let is_inserted = self.holes.insert(at, hole);
        #[cfg(debug_assertions)]
        if !is_inserted {
            // Something begins there, and it is no hole.
            self.starts.set(hole.start());
        }
        is_inserted
    }

    fn look_for_longest(&mut self) {
        self.longest = self.holes.longest();
    }
}

fn mask(first: usize, count: usize) -> u64 {
    u64::MAX >> (u64::BITS as usize - count) << first
}

/// Starts of objects, so that a wrong handle is caught.
#[cfg(debug_assertions)]
mod debug {
    #[derive(Debug, Default)]
    pub(super) struct Starts {
        sorted: Vec<u16>,
    }

    impl Starts {
        pub(super) fn set(&mut self, granule: usize) {
            if let Err(at) = self.place(granule) {
                self.sorted.insert(at, granule as u16);
            }
        }

        pub(super) fn clear(&mut self, granule: usize) {
            if let Ok(at) = self.place(granule) {
                self.sorted.remove(at);
            }
        }

        /// Whether the object at `start` ends at `end`: its end is there, or another object begins
        /// there.
        pub(super) fn is_one(&self, start: usize, end: usize, is_end: bool) -> bool {
            self.place(start).is_ok_and(|at| {
                let next = self.sorted.get(at + 1).map(|next| usize::from(*next));
                next == Some(end) || is_end && next.is_none_or(|next| next > end)
            })
        }

        pub(super) fn side_bytes(&self) -> usize {
            self.sorted.capacity() * size_of::<u16>()
        }

        fn place(&self, granule: usize) -> Result<usize, usize> {
            self.sorted.binary_search(&(granule as u16))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::holes::HOLES_INLINE;
    use super::*;

    const PAGES: usize = 4;
    const GRANULES: usize = PAGES * PAGE_GRANULES;

    /// The use of each granule.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Granule {
        Lacking,
        Free,
        Object(usize),
    }

    #[derive(Default)]
    struct Model {
        granules: Vec<Granule>,
        objects: Vec<(usize, usize)>,
    }

    impl Model {
        fn holes(&self) -> Vec<Hole> {
            let mut holes = Vec::new();
            let mut at = 0;
            for run in self.granules.chunk_by(|a, b| a == b) {
                if run[0] == Granule::Free {
                    holes.push(Hole::new(at, run.len()));
                }
                at += run.len();
            }
            holes
        }

        fn set(&mut self, start: usize, length: usize, granule: Granule) {
            self.granules[start..start + length].fill(granule);
        }
    }

    fn check(block: &Block, model: &Model) -> Result<(), TestCaseError> {
        prop_assert_eq!(block.holes.all(), model.holes());
        let longest = model.holes().iter().map(|hole| hole.length()).max();
        prop_assert_eq!(block.longest(), longest.unwrap_or(0));
        let live: usize = model.objects.iter().map(|(_, length)| length).sum();
        prop_assert_eq!(block.live_granules(), live);
        for page in 0..PAGES {
            let lacks = model.granules[page * PAGE_GRANULES] == Granule::Lacking;
            prop_assert_eq!(block.has_page(page), !lacks);
        }
        for (start, length) in &model.objects {
            prop_assert!(block.holds(*start, *length));
            if cfg!(debug_assertions) {
                prop_assert!(!block.holds(*start, length + 1));
                // Unless another as long begins there: both have one granule.
                let is_another = model.objects.contains(&(start + 1, *length));
                prop_assert_eq!(block.holds(start + 1, *length), is_another);
                prop_assert!(*length == 1 || !block.holds(*start, length - 1));
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn a_block_is_what_a_map_of_granules_says(
            ops in prop::collection::vec((0..6u8, any::<usize>(), 1..=PAGE_GRANULES), 1..80)
        ) {
            let mut block = Block::default();
            let mut model = Model { granules: vec![Granule::Lacking; GRANULES], ..Model::default() };
            for (op, pick, length) in ops {
                let page = pick % PAGES;
                match op {
                    0 if !block.has_page(page) => {
                        block.add_pages(page, 1);
                        model.set(page * PAGE_GRANULES, PAGE_GRANULES, Granule::Free);
                    }
                    1 | 2 => {
                        let fits = |hole: &Hole| hole.length() >= length;
                        let holes = model.holes().into_iter().filter(fits);
                        let best = holes.min_by_key(|hole| hole.length()).map(|hole| hole.start());
                        prop_assert_eq!(block.take(length), best);
                        if let Some(start) = best {
                            model.set(start, length, Granule::Object(start));
                            model.objects.push((start, length));
                        }
                    }
                    3 => {
                        let start = pick % (GRANULES - length);
                        let part = &model.granules[start..start + length];
                        let is_vacant = part.iter().all(|at| !matches!(at, Granule::Object(_)));
                        prop_assert_eq!(block.is_vacant(start, length), is_vacant);
                        let is_free = part.iter().all(|at| *at == Granule::Free);
                        prop_assert_eq!(block.take_at(start, length), is_free);
                        if is_free {
                            model.set(start, length, Granule::Object(start));
                            model.objects.push((start, length));
                        }
                    }
                    _ if !model.objects.is_empty() => {
                        let (start, length) = model.objects.swap_remove(pick % model.objects.len());
                        block.free(start, length);
                        model.set(start, length, Granule::Free);
                        if op == 5 {
                            let gone = block.shed(start, 1);
                            let hole = model.holes().into_iter().find(|hole| hole.end() > start);
                            let hole = hole.unwrap();
                            for page in 0..PAGES {
                                let from = page * PAGE_GRANULES;
                                let is_in = hole.start() <= from && from + PAGE_GRANULES <= hole.end();
                                prop_assert_eq!(gone & 1 << page != 0, is_in);
                                if is_in {
                                    model.set(from, PAGE_GRANULES, Granule::Lacking);
                                }
                            }
                        }
                    }
                    _ => {}
                }
                check(&block, &model)?;
            }
        }
    }

    #[test]
    fn a_hole_without_an_entry_is_lost_until_the_block_is_empty() {
        let mut block = Block::default();
        block.add_pages(0, 4);
        let starts: Vec<usize> = (0..4 * HOLES_INLINE)
            .map(|_| block.take(4).unwrap())
            .collect();
        crate::memory::fault::fail_after(0);
        starts
            .iter()
            .step_by(2)
            .for_each(|start| block.free(*start, 4));
        assert!(!crate::memory::fault::disarm());
        assert_eq!(block.live_granules(), 2 * HOLES_INLINE * 4);
        let listed: usize = block.holes.all().iter().map(|hole| hole.length()).sum();
        assert_eq!(listed, GRANULES - 2 * HOLES_INLINE * 4 - 4, "one is lost");
        starts
            .iter()
            .skip(1)
            .step_by(2)
            .for_each(|start| block.free(*start, 4));
        assert_eq!(block.live_granules(), 0);
    }
}
