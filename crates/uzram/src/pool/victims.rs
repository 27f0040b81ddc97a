//! Which blocks to empty, so that the fewest objects are moved for the most memory.
//!
//! Sparse blocks first, for their objects fit beside those of others: emptiest first, in steps of eighths; among
//! those of a step the last in the arena, so that what is left gathers in few spans and the others go back whole.
//!
//! Then the gaps: holes too short for any object that came. Blocks that lose much in them are emptied into new
//! pages, no more than the compaction has made free so far, where objects lie side by side. That moves 20 to 128
//! bytes for each that it gains, so only who asks for compaction gets it. Again the last in the arena first.

use std::cmp::Reverse;

use super::{Full, Handle, Pool, Room};
use crate::error::Result;
use crate::memory;
use crate::region::PAGE_BYTES;

/// Blocks fuller than this, in eighths, are not worth moving.
const EIGHTHS_MAX: usize = 7;

/// Blocks that lose less than this part to gaps are not worth moving: new ones lose half of it.
const GAPS_MIN_PART: usize = 128;

/// Nor are gaps of fewer blocks than this part worth a sweep over all objects, after which free blocks lie among
/// the others, in huge pages that do not go back.
const GAPPY_MIN_PART: usize = 8;

/// Blocks that lose nearly as much are told apart by their place only: steps of the part that is lost.
const GAP_STEPS: usize = 32;

/// A round that gains less than this part of its victims is the last one: objects would only change places
/// from then on.
const GAIN_MIN_PART: usize = 128;

/// What blocks are emptied for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Aim {
    /// Their own memory: others have room for their objects.
    #[default]
    Sparse,
    /// What lies between their objects, which move into new pages.
    Gaps,
}

/// A block that takes no more objects, so that it becomes empty once those in it have moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    /// Where its objects are.
    pub first_page: usize,
    pub pages: usize,
    /// How many of these pages are the block's.
    pub held_pages: usize,
    /// The pool's: which lock the block is under.
    pub owner: usize,
}

/// Blocks that are closed, by place.
#[derive(Debug, Default)]
pub(crate) struct Victims {
    sorted: Vec<Victim>,
}

impl Victims {
    pub(crate) fn new(mut victims: Vec<Victim>) -> Victims {
        victims.sort_unstable_by_key(|victim| victim.first_page);
        Victims { sorted: victims }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Whether an object at this offset into the arena is in one of them.
    pub(crate) fn has(&self, offset_bytes: usize) -> bool {
        let page = offset_bytes / PAGE_BYTES;
        let behind = self
            .sorted
            .partition_point(|victim| victim.first_page <= page);
        let before = behind.checked_sub(1).map(|at| &self.sorted[at]);
        before.is_some_and(|victim| page < victim.first_page + victim.pages)
    }

    fn held_pages(&self) -> usize {
        self.sorted.iter().map(|victim| victim.held_pages).sum()
    }

    /// Opens those that are left.
    pub(crate) fn reopen(self, pool: &dyn Pool) {
        self.sorted.into_iter().for_each(|victim| {
            pool.reopen(victim);
        });
    }
}

/// Moves objects out of victims without more pages in use than before, at any moment.
#[derive(Debug, Default)]
pub(crate) struct Mover {
    /// Pages that became free, less those taken.
    gained_pages: usize,
    /// The most that were gained at the end of a round.
    gained_max_pages: usize,
}

/// What a round made of its victims.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gain {
    /// Pages that are free now and were not after any round before.
    pub pages: usize,
    /// Whether another round may gain something. Rounds end, for each of these gains a page at least.
    pub pays: bool,
}

impl Mover {
    /// Closes blocks for a round, `blocks_max` at most.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(crate) fn close(&self, pool: &dyn Pool, aim: Aim, blocks_max: usize) -> Result<Victims> {
        let victims = match aim {
            Aim::Sparse => pool.close_sparse(blocks_max),
            Aim::Gaps => pool.close_gappy(blocks_max, self.gained_pages),
        };
        victims.map(Victims::new)
    }

    /// Ends a round: opens the victims that are left.
    pub(crate) fn end(&mut self, pool: &dyn Pool, victims: Victims) -> Gain {
        let held_pages = victims.held_pages();
        victims.reopen(pool);
        let pages = self.gained_pages.saturating_sub(self.gained_max_pages);
        self.gained_max_pages += pages;
        Gain {
            pages,
            pays: pages > held_pages / GAIN_MIN_PART,
        }
    }

    /// A copy of the object elsewhere.
    ///
    /// # Errors
    /// [`Full::NeedsMemory`] where the pool must grow first, by what this may take;
    /// [`Full::NoMemory`] where the object stays: it fits into no block and too little has become free.
    pub(crate) fn copy(&mut self, pool: &dyn Pool, old: &Handle) -> Result<Handle, Full> {
        let bytes = pool.bytes(old);
        if let Ok(new) = pool.insert(bytes, Room::InBlocks) {
            return Ok(new);
        }
        let left_pages = self
            .gained_pages
            .checked_sub(pool.pages_taken(bytes.len()))
            .ok_or(Full::NoMemory)?;
        let new = pool.insert(bytes, Room::Any)?;
        self.gained_pages = left_pages;
        Ok(new)
    }

    /// Frees the object that was copied.
    pub(crate) fn remove(&mut self, pool: &dyn Pool, old: Handle) {
        self.gained_pages += pool.remove(old);
    }
}

/// A block with objects, for [`Candidates::choose`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub victim: Victim,
    /// In any measure that all candidates share.
    pub live: usize,
    /// What would fit besides, in the same measure.
    pub room: usize,
}

/// The blocks that can take each other's objects.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    blocks: Vec<Candidate>,
}

impl Candidates {
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(super) fn add(&mut self, candidate: Candidate) -> Result<()> {
        memory::push(&mut self.blocks, candidate)
    }

    /// Those to empty, `blocks_max` at most: the others have room for all that they hold.
    pub(super) fn choose(mut self, blocks_max: usize) -> impl Iterator<Item = Victim> {
        let eighths = |block: &Candidate| block.live * 8 / (block.live + block.room).max(1);
        let by_use = |block: &Candidate| (eighths(block), Reverse(block.victim.first_page));
        let mut room: usize = self.blocks.iter().map(|block| block.room).sum();
        self.blocks.sort_unstable_by_key(by_use);
        let mut moved = 0;
        let count = self.blocks.iter().take_while(|block| {
            moved += block.live;
            room -= block.room;
            moved <= room && eighths(block) < EIGHTHS_MAX
        });
        let count = count.count().min(blocks_max);
        self.blocks.truncate(count);
        self.blocks.into_iter().map(|block| block.victim)
    }

    /// Those with the most gaps, `blocks_max` at most, that hold no more than `room`; none if that would be
    /// few of all blocks, or give back less than one.
    pub(super) fn choose_gappy(
        mut self,
        blocks_max: usize,
        room: usize,
    ) -> impl Iterator<Item = Victim> {
        let size = |block: &Candidate| block.live + block.room;
        let least = blocks_max.min(self.blocks.len() / GAPPY_MIN_PART);
        let size_max = self.blocks.iter().map(size).max().unwrap_or(0);
        self.blocks
            .retain(|block| block.room * GAPS_MIN_PART >= size(block));
        let by_gaps = |block: &Candidate| {
            Reverse((
                block.room * GAP_STEPS / size(block),
                block.victim.first_page,
            ))
        };
        self.blocks.sort_unstable_by_key(by_gaps);
        let mut moved = 0;
        let count = self.blocks.iter().take(blocks_max).take_while(|block| {
            moved += block.live;
            moved <= room
        });
        let count = count.count();
        self.blocks.truncate(count);
        let gaps: usize = self.blocks.iter().map(|block| block.room).sum();
        if count < least || gaps < size_max {
            self.blocks.clear();
        }
        self.blocks.into_iter().map(|block| block.victim)
    }
}

/// Closes the blocks to empty of each group whose blocks can take each other's objects, `blocks_max` at
/// most; without those that `close` finds gone.
///
/// # Errors
/// Those of the groups; [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
pub(super) fn close_sparse(
    groups: impl IntoIterator<Item = Result<Candidates>>,
    blocks_max: usize,
    close: impl Fn(Victim) -> bool,
) -> Result<Vec<Victim>> {
    let mut victims = Vec::new();
    for candidates in groups {
        for victim in candidates?.choose(blocks_max - victims.len()) {
            memory::push(&mut victims, victim)?;
        }
    }
    victims.retain(|victim| close(*victim));
    Ok(victims)
}

/// As [`close_sparse`], for [`Candidates::choose_gappy`] of one group.
///
/// # Errors
/// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
pub(super) fn close_gappy(
    candidates: Candidates,
    blocks_max: usize,
    room: usize,
    close: impl Fn(Victim) -> bool,
) -> Result<Vec<Victim>> {
    let mut victims = Vec::new();
    for victim in candidates.choose_gappy(blocks_max, room) {
        memory::push(&mut victims, victim)?;
    }
    victims.retain(|victim| close(*victim));
    Ok(victims)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(blocks: &[(usize, usize)]) -> Candidates {
        let mut candidates = Candidates::default();
        for (first_page, (live, room)) in blocks.iter().enumerate() {
            let victim = Victim {
                first_page,
                pages: 1,
                held_pages: 1,
                owner: 0,
            };
            let (live, room) = (*live, *room);
            let candidate = Candidate { victim, live, room };
            candidates.add(candidate).unwrap();
        }
        candidates
    }

    fn chosen(blocks: &[(usize, usize)], blocks_max: usize) -> Vec<usize> {
        let victims = candidates(blocks).choose(blocks_max);
        victims.map(|victim| victim.first_page).collect()
    }

    fn gappy(blocks: &[(usize, usize)], blocks_max: usize, room: usize) -> Vec<usize> {
        let victims = candidates(blocks).choose_gappy(blocks_max, room);
        victims.map(|victim| victim.first_page).collect()
    }

    #[test]
    fn of_gaps_the_most_go_and_of_equals_the_last() {
        let blocks = [
            (980, 20),
            (950, 50),
            (900, 100),
            (980, 20),
            (950, 50),
            (999, 1),
        ];
        let many: Vec<_> = blocks.iter().copied().cycle().take(600).collect();
        let first = gappy(&many, 400, 1_000_000);
        assert_eq!(first.len(), 400);
        assert_eq!((first[0], first[99], first[100]), (596, 2, 598));
        assert_eq!((first[299], first[300], first[399]), (1, 597, 300));
        assert!(
            gappy(&many, 600, 1_000_000).iter().all(|at| at % 6 != 5),
            "too full"
        );
    }

    #[test]
    fn gaps_go_where_pages_are_free_and_for_blocks_that_are_worth_it() {
        let many = [(950, 50); 100];
        assert_eq!(gappy(&many, 100, 49_999).len(), 52);
        assert_eq!(gappy(&many, 20, 49_999).len(), 20);
        assert_eq!(gappy(&many, 100, 19_000).len(), 20, "one block's worth");
        assert_eq!(gappy(&many, 100, 18_999), [], "less");
        assert_eq!(gappy(&[(500, 500); 100], 100, 5_999), [], "a few of many");
        assert_eq!(gappy(&[(500, 500); 100], 100, 6_000).len(), 12);
        assert_eq!(
            gappy(&[(999, 1); 100], 100, 1 << 30),
            [],
            "none to speak of"
        );
        assert_eq!(gappy(&[], 100, 1 << 30), []);
    }

    #[test]
    fn the_emptiest_go_and_of_equals_the_last() {
        assert_eq!(chosen(&[(8, 2), (1, 9), (5, 5), (5, 5), (5, 5)], 9), [1, 4]);
        assert_eq!(chosen(&[(5, 5); 4], 9), [3, 2]);
        assert_eq!(chosen(&[(5, 5); 4], 1), [3]);
    }

    #[test]
    fn what_the_others_have_no_room_for_stays() {
        assert_eq!(chosen(&[(5, 5)], 9), []);
        assert_eq!(chosen(&[(6, 4), (6, 4)], 9), []);
        assert_eq!(chosen(&[(10, 0), (10, 0)], 9), []);
        assert_eq!(chosen(&[(95, 5); 40], 9), [], "too full to be worth it");
        assert_eq!(chosen(&[], 9), []);
    }

    #[test]
    fn a_round_pays_once_for_what_it_gains() {
        let config = super::super::PoolConfig {
            unit: crate::Unit::DEFAULT,
            disksize_bytes: 1 << 20,
            limit_bytes: 0,
            backing: crate::region::Backing::Private,
        };
        let memory = super::super::arena::Memory::reserve(&config).unwrap();
        let pool = super::super::make("bestfit", &config, memory).unwrap();
        let mut mover = Mover::default();
        let mut end = |gained_pages, held_pages| {
            let victim = Victim {
                first_page: 0,
                pages: 1,
                held_pages,
                owner: 0,
            };
            mover.gained_pages = gained_pages;
            let gain = mover.end(&*pool, Victims::new(vec![victim]));
            (gain.pages, gain.pays)
        };
        assert_eq!(end(0, 1), (0, false), "nothing is nothing");
        assert_eq!(end(10, 1279), (10, true));
        assert_eq!(end(10, 1), (0, false), "that was told");
        assert_eq!(end(4, 1), (0, false));
        assert_eq!(end(20, 1280), (10, false), "too little for so much");
    }
}
