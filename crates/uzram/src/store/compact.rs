//! Compaction: empties sparse blocks, so that their memory goes back to the system.
//!
//! The pool closes *victims* to insertion. One sweep over the slot table finds the objects of all
//! victims. Each is moved under its own slot's lock: inserted anew, published, removed at its old
//! place. A victim goes back with its last object. An object that is inserted and not yet
//! published keeps its block, which is opened again then, and may be a victim the next time.
//! Readers and writers go on meanwhile; each waits for one move at most.
//!
//! A compaction that was asked for goes on with blocks that lose much between their objects
//! (`pool/victims.rs`). These move into memory that the compaction made free; the pool may have to
//! take that from the system again. Maintenance does not do this, because it moves many bytes for
//! each that it gains; nor is it done where writers live on the spare.
//!
//! Work comes in steps of [`LOOKS_A_STEP`] slots and [`MOVES_A_STEP`] moves; the place is kept in
//! between. Moving takes no more pages than it made free: an object that finds no room stays, and
//! its victim takes objects again. When a writer finds no memory under the limit, all victims do.
//!
//! Locks: the compactor's, above all others; then a step locks one slot at a time, or takes the turn to grow.

use std::time::{Duration, Instant};

use crate::codec::streams::{Stream, StreamPolicy};
use crate::error::Result;
use crate::page::PageIndex;
use crate::pool::{Aim, Full, Mover, Parts};
use crate::stats::Counter;

use super::StoreWith;
use super::compactor::Compactor;
use super::lock::SlotLock;
use super::slot::Entry;

/// Blocks that are closed at once.
const VICTIMS_MAX: usize = 4096;

/// Slots looked at and objects moved per step: together some 100 us.
const LOOKS_A_STEP: u64 = 4096;
const MOVES_A_STEP: usize = 64;

/// Waste below this is left alone unless compaction is asked for, in bytes: a huge page.
const WASTE_MIN_BYTES: u64 = 2 << 20;

/// The same as a share of the memory in use, as a divisor.
const WASTE_MIN_PART: u64 = 4;

/// The pool must grow before an object of this many bytes can move.
struct Wanted(usize);

impl<L: SlotLock, S: StreamPolicy<Stream>> StoreWith<L, S> {
    /// As [`Store::compact`](crate::Store::compact).
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

    /// A step of a compaction that was asked for. Returns whether there is more to do.
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
        self.pool.trim(Parts::Too);
        Ok(false)
    }

    /// A step of compaction if the store is sparse. Returns whether there is more to do.
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

    /// Looks at some slots; false once the sweep is done.
    fn step(&self, compactor: &mut Compactor) -> bool {
        let (mut looks, mut moves) = (0, 0);
        compactor.next = self.table.next_touched(compactor.next);
        while compactor.next < self.table.len() && looks < LOOKS_A_STEP && moves < MOVES_A_STEP {
            looks += 1;
            let index = PageIndex(compactor.next);
            let place = self.table.glimpse(index);
            if place.is_some_and(|bytes| compactor.victims.has(bytes.start)) {
                moves += 1;
                if !self.relocate_growing(compactor, index) {
                    compactor.next = self.table.len();
                    break;
                }
            }
            compactor.next = self.table.next_touched(compactor.next + 1);
        }
        if compactor.next >= self.table.len() {
            compactor.is_fruitless = !self.finish(compactor);
            if compactor.is_fruitless {
                compactor.hopeless_bytes = self.waste_bytes();
            }
        }
        compactor.is_running()
    }

    /// As [`Store::relocate`]. If the pool must grow, it grows by memory that the compaction gave
    /// back to the system; false if it cannot.
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

    /// Opens the remaining victims and counts the gain. Returns whether another round is
    /// worthwhile.
    fn finish(&self, compactor: &mut Compactor) -> bool {
        let victims = std::mem::take(&mut compactor.victims);
        let gain = compactor.mover.end(&*self.pool, victims);
        self.counters
            .add(Counter::PagesCompacted, gain.pages as u64);
        gain.pays
    }
}

#[cfg(all(test, not(uzram_shuttle)))]
mod tests {
    use super::*;
    use crate::Store;
    use crate::store::slot::CHUNK_SLOTS;
    use uzram_testkit::noise;

    /// A sweep looks at the chunks of slots that were ever used, however far apart they are.
    #[test]
    fn a_sweep_looks_at_what_was_used_and_not_at_the_whole_disk() {
        const PAGES: u64 = 4096;
        const PAGES_APART: u64 = 1 << 16;
        let store = Store::builder().size(1 << 40).build().unwrap();
        let index = |nth: u64| PageIndex(nth * PAGES_APART);
        for nth in 0..PAGES {
            let mut page = noise(nth, 4096);
            page[2000..].fill(0);
            store.write(index(nth), &page).unwrap();
        }
        for nth in (0..PAGES).filter(|nth| nth % 8 != 0) {
            store.trim(index(nth)).unwrap();
        }
        let (mut steps, mut sweeps) = (0, 0);
        let mut compactor = store.inner.compactor.lock();
        while store.inner.compact_as_asked(&mut compactor).unwrap() {
            steps += 1;
            sweeps += u64::from(compactor.next == 0);
        }
        assert!(store.stats().pages_compacted > 0);
        let looks_max = sweeps * PAGES * CHUNK_SLOTS;
        let moves_max = sweeps * PAGES;
        let steps_max = looks_max / LOOKS_A_STEP + moves_max / MOVES_A_STEP as u64 + 2 * sweeps + 2;
        assert!(
            steps <= steps_max,
            "{steps} steps of {sweeps} sweeps, at most {steps_max}"
        );
    }
}
