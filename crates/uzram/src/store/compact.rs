//! Compaction: empties sparse blocks, so that their memory goes back.
//!
//! The pool closes *victims* to insertion; one sweep over the slot table finds the objects of all of
//! them; each is moved under its own slot's lock: inserted anew, published, removed where it was. A victim
//! goes back when its last object does, and not before: one that is inserted and not yet published keeps
//! its block, which is opened again then, and may be a victim the next time. Readers and writers go on
//! meanwhile; each waits for one move at most.
//!
//! Asked for, it goes on with blocks that lose much between their objects (`pool/victims.rs`): these move into
//! memory that the compaction made free, which the pool takes from the system again if it must. Not
//! unasked, for it moves many bytes for each that it gains, and not where writers live on the spare.
//!
//! Work comes in steps of [`LOOKS_A_STEP`] slots and [`MOVES_A_STEP`] moves, with the place kept in
//! between. Moving takes no more pages than it made free: what finds no room stays, and its victim takes
//! objects again. When a writer finds no memory under the limit, all victims do.
//!
//! Locks: the compactor's, above all others; then a step locks one slot at a time, or takes the turn to grow.

use std::time::{Duration, Instant};

use crate::codec::streams::{Stream, StreamPolicy};
use crate::error::Result;
use crate::page::PageIndex;
use crate::pool::{Aim, Full, Mover, Victims, arena};
use crate::stats::Counter;

use super::Store;
use super::lock::SlotLock;
use super::slot::Entry;

/// Blocks that are closed at once.
const VICTIMS_MAX: usize = 4096;

/// Looks into slots and moves of objects in a step: together some 100 us.
const LOOKS_A_STEP: u64 = 4096;
const MOVES_A_STEP: usize = 64;

/// Times that victims are chosen at most for either aim when compaction is asked for.
const ROUNDS_MAX: usize = 256;

/// Waste below this is left alone unless compaction is asked for, in bytes: a huge page.
const WASTE_MIN_BYTES: u64 = 2 << 20;

/// And waste below this part of the memory in use.
const WASTE_MIN_PART: u64 = 4;

/// The pool must grow before an object of so many bytes can move.
struct Wanted(usize);

/// What a compaction is at, between steps.
#[derive(Debug, Default)]
pub(super) struct Compactor {
    victims: Victims,
    mover: Mover,
    aim: Aim,
    /// The slot to look at next.
    next: u64,
    /// Times that victims may still be chosen; 0 if nobody asked for compaction.
    rounds_left: usize,
    /// The last sweep gained next to nothing.
    is_fruitless: bool,
    /// The waste that compaction found nothing to do about.
    hopeless_bytes: u64,
}

impl Compactor {
    fn is_running(&self) -> bool {
        !self.victims.is_empty()
    }

    fn begin(&mut self, aim: Aim) {
        self.aim = aim;
        self.rounds_left = ROUNDS_MAX;
        self.is_fruitless = false;
    }
}

impl<L: SlotLock, S: StreamPolicy<Stream>> Store<L, S> {
    /// Moves objects together and gives the memory that becomes free back to the system, the spare
    /// included, for about `budget`; returns whether more is left to do, which [`Store::maintain`] will
    /// do too. In all it may take as long as copying all objects does; readers and writers go on.
    ///
    /// ```
    /// # let store = uzram::Store::builder().size(64 << 20).build()?;
    /// while store.compact(std::time::Duration::from_millis(100))? {}
    /// # Ok::<(), uzram::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory) if there is none for the list of blocks to empty.
    pub fn compact(&self, budget: Duration) -> Result<bool> {
        let start = Instant::now();
        // Others get at the compactor between steps.
        while self.compact_as_asked(&mut self.compactor.lock())? {
            if start.elapsed() >= budget {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A step of a compaction that was asked for; whether there is more to do.
    fn compact_as_asked(&self, compactor: &mut Compactor) -> Result<bool> {
        if compactor.rounds_left == 0 {
            compactor.begin(Aim::Sparse);
            compactor.mover = Mover::default();
        }
        if compactor.is_running() {
            self.step(compactor);
            return Ok(true);
        }
        compactor.rounds_left -= 1;
        let is_done = compactor.is_fruitless || compactor.rounds_left == 0;
        if !is_done && self.begin_compacting(compactor)? {
            return Ok(true);
        }
        // What is free already is for writers who must not wait for more.
        if compactor.aim == Aim::Sparse && !self.has_spare {
            compactor.begin(Aim::Gaps);
            return Ok(true);
        }
        compactor.aim = Aim::Sparse;
        compactor.rounds_left = 0;
        compactor.hopeless_bytes = self.waste_bytes();
        // In a turn: a writer may have just made the memory that it is about to use.
        let _turn = self.growing.lock();
        self.pool.trim(arena::Parts::Too);
        Ok(false)
    }

    /// A step of compaction if the store is sparse; whether there is more to do.
    pub(super) fn compact_if_sparse(&self) -> bool {
        let Some(mut compactor) = self.compactor.try_lock() else {
            return false;
        };
        if compactor.rounds_left > 0 {
            return self.compact_as_asked(&mut compactor).unwrap_or(false);
        }
        if compactor.is_running() {
            return self.step(&mut compactor) || self.is_sparse(&mut compactor);
        }
        if !self.is_sparse(&mut compactor) {
            return false;
        }
        compactor.mover = Mover::default();
        let has_begun = self.begin_compacting(&mut compactor).unwrap_or(false);
        if !has_begun {
            compactor.hopeless_bytes = self.waste_bytes();
        }
        has_begun
    }

    /// Lets closed blocks take objects again, for a writer that found no memory; false if none was
    /// closed.
    pub(super) fn stop_compacting(&self) -> bool {
        let mut compactor = self.compactor.lock();
        let was_running = compactor.is_running();
        self.finish(&mut compactor);
        // New pages are the writer's now.
        compactor.is_fruitless |= compactor.aim == Aim::Gaps;
        was_running
    }

    /// Whether much is wasted, and much of that since compaction last found nothing to do.
    fn is_sparse(&self, compactor: &mut Compactor) -> bool {
        let waste_bytes = self.waste_bytes();
        let least_bytes = (self.mem_used_bytes() / WASTE_MIN_PART).max(WASTE_MIN_BYTES);
        compactor.hopeless_bytes = compactor.hopeless_bytes.min(waste_bytes);
        waste_bytes >= least_bytes && waste_bytes - compactor.hopeless_bytes >= least_bytes / 2
    }

    fn waste_bytes(&self) -> u64 {
        let stored_bytes = self.counters.sum(Counter::ComprDataBytes);
        self.mem_used_bytes().saturating_sub(stored_bytes)
    }

    /// Chooses victims; false if there are none.
    fn begin_compacting(&self, compactor: &mut Compactor) -> Result<bool> {
        let (mover, aim) = (&compactor.mover, compactor.aim);
        compactor.victims = mover.close(&*self.pool, aim, VICTIMS_MAX)?;
        compactor.next = 0;
        Ok(compactor.is_running())
    }

    /// Looks at some slots; false once all have been looked at.
    fn step(&self, compactor: &mut Compactor) -> bool {
        let end = (compactor.next + LOOKS_A_STEP).min(self.table.len());
        let mut moves = 0;
        while compactor.next < end && moves < MOVES_A_STEP {
            let index = PageIndex(compactor.next);
            let place = self.table.glimpse(index);
            if place.is_some_and(|offset_bytes| compactor.victims.has(offset_bytes)) {
                moves += 1;
                if !self.relocate_growing(compactor, index) {
                    compactor.next = self.table.len();
                    break;
                }
            }
            compactor.next += 1;
        }
        if compactor.next >= self.table.len() {
            compactor.is_fruitless = !self.finish(compactor);
            if compactor.is_fruitless {
                compactor.hopeless_bytes = self.waste_bytes();
            }
        }
        compactor.is_running()
    }

    /// As [`Store::relocate`], after growing the pool if it must, by what became free and went back to the
    /// system; false if it cannot.
    fn relocate_growing(&self, compactor: &mut Compactor, index: PageIndex) -> bool {
        match self.relocate(compactor, index) {
            Err(Wanted(size_bytes)) if compactor.aim == Aim::Gaps => {
                // In a turn, or under a limit it might be with what a writer has just made for itself.
                let turn = self.growing.lock();
                let has_grown = self.pool.grow(size_bytes).is_ok();
                drop(turn);
                if has_grown {
                    // Another may have taken it: then the object stays.
                    let _ = self.relocate(compactor, index);
                }
                has_grown
            }
            _ => true,
        }
    }

    /// Moves the object of page `index` if it is in a victim and fits elsewhere.
    fn relocate(&self, compactor: &mut Compactor, index: PageIndex) -> Result<(), Wanted> {
        let Ok(guard) = self.table.lock(index) else {
            return Ok(());
        };
        let (Entry::Raw(old) | Entry::Packed(old)) = guard.entry() else {
            return Ok(());
        };
        if !compactor.victims.has(old.offset_bytes()) {
            return Ok(());
        }
        match compactor.mover.copy(&*self.pool, old) {
            Ok(new) => compactor.mover.remove(&*self.pool, guard.relocate(new)),
            Err(Full::NeedsMemory) => return Err(Wanted(old.size_bytes())),
            Err(Full::NoMemory) => {}
        }
        Ok(())
    }

    /// Opens the victims that are left and counts what was gained; whether another round pays.
    fn finish(&self, compactor: &mut Compactor) -> bool {
        let victims = std::mem::take(&mut compactor.victims);
        let gain = compactor.mover.end(&*self.pool, victims);
        self.counters
            .add(Counter::PagesCompacted, gain.pages as u64);
        gain.pays
    }
}
