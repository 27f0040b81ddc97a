//! Exchange between CPUs: parked places, blocks, and room in a block that stays.
//!
//! Threads move, and one CPU may remove objects that another one stores. Then the first keeps more
//! and more places of a length, and the second looks for them in blocks. So a CPU without places
//! of a length takes a line of them from another that has lines below its top. If this CPU's own
//! blocks have no hole either, it takes another's only place, then another's block with a hole,
//! which becomes this CPU's. The block that another CPU is filling stays, because it would go back
//! and forth. It has room for others before the pool must grow.
//!
//! Two shards are locked at once, the lower first. A place in a block that is being closed is not
//! kept by another CPU: closing looks through the shards one by one, and would miss it. For the
//! same reason no place is taken over while more is used than the limit allows.

use super::shard::Shard;
use super::{BestFit, Owner, Place};
use crate::pool::arena::Arena;
use crate::pool::{Full, Room};
use crate::sync::MutexGuard;

impl BestFit {
    /// Another shard with more places of a length than its top has.
    pub(super) fn shard_with_more(&self, own: usize, length: usize) -> Option<usize> {
        let has_more = |other: &usize| {
            let shown = self.shown.get(*other);
            shown.is_some_and(|shown| shown.sunken.has(length))
        };
        self.others(own).find(has_more)
    }

    /// As [`BestFit::take`], where this CPU's shard has nothing or the shard `more` has an exact
    /// place. A longer parked place becomes a hole before the pool says that there is no room.
    #[cold]
    #[inline(never)]
    pub(super) fn take_slowly(
        &self,
        arena: &Arena,
        own: usize,
        more: Option<usize>,
        length: usize,
        room: Room,
    ) -> Result<Place, Full> {
        if let Some(from) = more {
            let place = self.unpark_of(arena, from, own, length);
            if let Some(place) = place.or_else(|| self.shards[own].lock().take(length)) {
                return Ok(place);
            }
        }
        loop {
            match self.take_elsewhere(arena, own, length, room) {
                Err(Full::NeedsMemory) if self.unpark_for(arena, length) => {}
                taken => return taken,
            }
        }
    }

    /// A place that is parked in the shard `from`, which has lines of them; the rest of a line
    /// comes along.
    fn unpark_of(&self, arena: &Arena, from: usize, own: usize, length: usize) -> Option<Place> {
        let [mut theirs, mut ours] = self.lock_two(from, own);
        if arena.is_over_limit() {
            return None;
        }
        // Somebody may have parked one since.
        if let Some(place) = ours.unpark(length) {
            return Some(place);
        }
        ours.unpark_of(&mut theirs, length, |frame| !self.is_closed(frame))
    }

    /// Takes a parked place or a block of another shard, else granules in new memory or in a block
    /// that stays.
    fn take_elsewhere(
        &self,
        arena: &Arena,
        own: usize,
        length: usize,
        room: Room,
    ) -> Result<Place, Full> {
        let stolen = self
            .others(own)
            .find_map(|from| self.steal(arena, from, own, length));
        if let Some(place) = stolen {
            return Ok(place);
        }
        if let Some(place) = self.take_new(arena, own, length, room)? {
            return Ok(place);
        }
        let lent = self
            .others(own)
            .find_map(|from| self.shards[from].lock().take(length));
        lent.ok_or(Full::NeedsMemory)
    }

    /// Takes a place that another shard keeps, or granules of its block. The block becomes this
    /// CPU's if there is memory for its entry.
    fn steal(&self, arena: &Arena, from: usize, own: usize, length: usize) -> Option<Place> {
        let mut shard = self.shards[from].lock();
        if let Some(place) = shard.unpark(length) {
            return Some(place);
        }
        if !shard.has_short_hole(length) {
            return None;
        }
        drop(shard);
        let [mut theirs, mut ours] = self.lock_two(from, own);
        let place = theirs.take(length)?;
        let owner = self
            .owner(place.frame())
            .filter(|owner| owner.shard == from)?;
        if ours.reserve().is_ok() {
            let id = ours.add(place.frame(), theirs.remove(owner.id));
            self.set_owner(place.frame(), Owner { shard: own, id });
        }
        drop([theirs, ours]);
        self.settle(arena, 1 << from, length);
        Some(place)
    }

    /// The other shards, the next first.
    fn others(&self, own: usize) -> impl Iterator<Item = usize> {
        let count = self.shards.len();
        (1..count).map(move |step| (own + step) % count)
    }

    /// Locks two shards, the lower first.
    fn lock_two(&self, one: usize, other: usize) -> [MutexGuard<'_, Shard>; 2] {
        let lower = self.shards[one.min(other)].lock();
        let higher = self.shards[one.max(other)].lock();
        match one < other {
            true => [lower, higher],
            false => [higher, lower],
        }
    }
}
