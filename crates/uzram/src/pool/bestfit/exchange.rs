//! What goes from CPU to CPU: parked places, blocks, and room in a block that stays.
//!
//! Threads move, and one CPU may remove what another one stores: then the first keeps more and more places of
//! a length, and the second looks for them in blocks. So who has none of a length takes a line of another's, one
//! of those below its top. Where this CPU's own blocks have no hole either, another's only place will do, then a
//! block of another's with a hole, which comes along. The block that another CPU is filling stays, for it would go
//! back and forth; it has room for others before the pool must grow.
//!
//! Two shards are locked at once, the lower first. A place in a block that is being closed is not kept by another
//! CPU: who closes blocks looks through the shards one by one, and it would be passed over. Nor is any, for the
//! same reason, while more is used than the limit lets.

use super::shard::Shard;
use super::{BestFit, Owner, Place};
use crate::pool::{Full, Room};
use crate::sync::{MutexGuard, Ordering};

impl BestFit {
    /// Another shard that keeps more places of a length than its top has.
    pub(super) fn shard_with_more(&self, own: usize, length: usize) -> Option<usize> {
        let has_more = |other: &usize| {
            let shown = self.shown.get(*other);
            shown.is_some_and(|shown| shown.sunken.has(length))
        };
        self.others(own).find(has_more)
    }

    /// As [`BestFit::take`], where this CPU's shard has nothing or the shard `more` has an exact place; a longer one
    /// that is parked becomes a hole before there is no room.
    #[cold]
    #[inline(never)]
    pub(super) fn take_slowly(
        &self,
        own: usize,
        more: Option<usize>,
        length: usize,
        room: Room,
    ) -> Result<Place, Full> {
        if let Some(from) = more {
            let place = self.unpark_of(from, own, length);
            if let Some(place) = place.or_else(|| self.shards[own].lock().take(length)) {
                return Ok(place);
            }
        }
        loop {
            match self.take_elsewhere(own, length, room) {
                Err(Full::NeedsMemory) if self.unpark_for(length) => {}
                taken => return taken,
            }
        }
    }

    /// A place that is parked in the shard `from`, which keeps more of them; others come along.
    fn unpark_of(&self, from: usize, own: usize, length: usize) -> Option<Place> {
        let [mut theirs, mut ours] = self.lock_two(from, own);
        if self.over_limit.load(Ordering::Relaxed) {
            return None;
        }
        // Somebody may have parked one since.
        if let Some(place) = ours.unpark(length) {
            return Some(place);
        }
        ours.unpark_of(&mut theirs, length, |frame| !self.is_closed(frame))
    }

    /// Takes what another shard keeps or a block of it, else granules in new memory or in a block that stays.
    fn take_elsewhere(&self, own: usize, length: usize, room: Room) -> Result<Place, Full> {
        let stolen = self
            .others(own)
            .find_map(|from| self.steal(from, own, length));
        if let Some(place) = stolen {
            return Ok(place);
        }
        if let Some(place) = self.take_new(own, length, room)? {
            return Ok(place);
        }
        let lent = self
            .others(own)
            .find_map(|from| self.shards[from].lock().take(length));
        lent.ok_or(Full::NeedsMemory)
    }

    /// Takes a place that another shard keeps, else granules of its block, which becomes this CPU's if there is
    /// memory for its entry.
    fn steal(&self, from: usize, own: usize, length: usize) -> Option<Place> {
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
        self.settle(1 << from, length);
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
