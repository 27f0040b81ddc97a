//! Moves objects out of the blocks that `victims.rs` chose.
//!
//! Sparse blocks are emptied into others that have room. Gaps close in new pages, no more than the
//! compaction has made free so far. So no more pages are in use than before, at any moment.

use super::handle::Handle;
use super::interface::{Full, Room};
use super::memory::PoolMemory;
use super::victims::Victim;
use crate::error::Result;
use crate::region::PAGE_BYTES;

/// A round that gains less than this part of its victims is the last one: further rounds would
/// only swap places.
const GAIN_MIN_PART: usize = 128;

/// The aim of emptying blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Aim {
    /// Their own memory: other blocks have room for their objects.
    #[default]
    Sparse,
    /// The gaps between their objects, which move into new pages.
    Gaps,
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

    /// Opens the remaining ones.
    pub(crate) fn reopen(self, pool: &PoolMemory) {
        self.sorted.into_iter().for_each(|victim| {
            pool.reopen(victim);
        });
    }
}

/// Moves objects out of victims. At no moment are more pages in use than before.
#[derive(Debug, Default)]
pub(crate) struct Mover {
    /// Pages that became free, less those taken.
    gained_pages: usize,
    /// The most that were gained at the end of a round.
    gained_max_pages: usize,
}

/// The result of a round.
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
    pub(crate) fn close(&self, pool: &PoolMemory, aim: Aim, blocks_max: usize) -> Result<Victims> {
        let victims = match aim {
            Aim::Sparse => pool.close_sparse(blocks_max),
            Aim::Gaps => pool.close_gappy(blocks_max, self.gained_pages),
        };
        victims.map(Victims::new)
    }

    /// Ends a round: opens the victims that are left.
    pub(crate) fn end(&mut self, pool: &PoolMemory, victims: Victims) -> Gain {
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
    pub(crate) fn copy(&mut self, pool: &PoolMemory, old: &Handle) -> Result<Handle, Full> {
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
    pub(crate) fn remove(&mut self, pool: &PoolMemory, old: Handle) {
        self.gained_pages += pool.remove(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_pays_once_for_what_it_gains() {
        let config = crate::pool::PoolConfig {
            unit: crate::Unit::DEFAULT,
            disksize_bytes: 1 << 20,
            limit_bytes: 0,
            backing: crate::region::Backing::Private,
            spare_bytes: 0,
        };
        let memory = crate::pool::reserve(&config).unwrap();
        let pool = crate::pool::make("bestfit", &config, memory).unwrap();
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
