//! The choice of blocks to empty, so that the fewest objects are moved for the most memory.
//!
//! Sparse blocks come first, because their objects fit beside those of others: the emptiest first,
//! in steps of eighths. Of one step the last in the arena come first, so that the rest gathers in
//! few spans and the others go back whole.
//!
//! Then come gaps: holes too short for any object that came. Blocks that lose much in them are
//! emptied into new pages, no more than the compaction has made free so far, where objects lie
//! side by side. That moves 20 to 128 bytes for each that it gains, so it happens only when
//! compaction is asked for. Again the last in the arena come first.

use std::cmp::Reverse;

use crate::error::Result;
use crate::memory;

/// Blocks fuller than this, in eighths, are not worth moving.
const EIGHTHS_MAX: usize = 7;

/// Blocks that lose less than this part to gaps are not worth moving: new blocks lose half of it.
const GAPS_MIN_PART: usize = 128;

/// Gaps of fewer blocks than this part are not worth a sweep over all objects. Free blocks would
/// then lie among the others, in huge pages that do not go back.
const GAPPY_MIN_PART: usize = 8;

/// Blocks that lose nearly as much are ordered by place only: steps of the lost part.
const GAP_STEPS: usize = 32;

/// A block that takes no more objects, so that it is empty once its objects have moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    /// The pages of its objects.
    pub first_page: usize,
    pub pages: usize,
    /// The number of these pages that are the block's.
    pub held_pages: usize,
    /// The pool's: the lock that protects the block.
    pub owner: usize,
}

/// A block with objects, for [`Candidates::choose`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub victim: Victim,
    /// Size of its objects, in any measure that all candidates share.
    pub live: usize,
    /// Size that would fit besides, in the same measure.
    pub room: usize,
}

/// The blocks that can take each other's objects.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    blocks: Vec<Candidate>,
    /// The room of a new page, in the same measure; 0 if nothing is lost between objects.
    page_room: usize,
}

impl Candidates {
    /// Candidates that lose memory between their objects; a page has room for `page_room`.
    pub(super) fn with_gaps(page_room: usize) -> Candidates {
        Candidates {
            blocks: Vec::new(),
            page_room,
        }
    }

    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(super) fn add(&mut self, candidate: Candidate) -> Result<()> {
        memory::push(&mut self.blocks, candidate)
    }

    /// The blocks to empty, `blocks_max` at most: the others have room for all of their objects.
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

    /// The blocks with the most gaps, `blocks_max` at most, that hold no more than `room`. None if
    /// they are few of all blocks, or would give back less than one.
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

/// The blocks to empty of each group whose blocks can take each other's objects, `blocks_max` at most.
///
/// # Errors
/// Those of the groups; [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
pub(super) fn sparse(
    groups: impl Iterator<Item = Result<Candidates>>,
    blocks_max: usize,
) -> Result<Vec<Victim>> {
    let mut victims = Vec::new();
    for candidates in groups {
        for victim in candidates?.choose(blocks_max - victims.len()) {
            memory::push(&mut victims, victim)?;
        }
    }
    Ok(victims)
}

/// As [`sparse`], for the blocks with the most gaps, whose objects fit into this many new pages;
/// of the first group that has gaps.
///
/// # Errors
/// As [`sparse`].
pub(super) fn gappy(
    groups: impl Iterator<Item = Result<Candidates>>,
    blocks_max: usize,
    pages: usize,
) -> Result<Vec<Victim>> {
    let mut victims = Vec::new();
    for candidates in groups {
        let candidates = candidates?;
        if candidates.page_room > 0 {
            let room = pages * candidates.page_room;
            for victim in candidates.choose_gappy(blocks_max, room) {
                memory::push(&mut victims, victim)?;
            }
            break;
        }
    }
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
}
