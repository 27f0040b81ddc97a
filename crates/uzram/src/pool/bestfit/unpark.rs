//! Parked places become holes: where too many are kept, at the limit, and before blocks are
//! closed.

use crossbeam_utils::CachePadded;

use super::BestFit;
use super::shard::Shard;
use crate::pool::arena::Arena;
use crate::sync::Mutex;

impl BestFit {
    /// Makes a hole of a parked place of at least this length; false if there was none.
    pub(super) fn unpark_for(&self, arena: &Arena, length: usize) -> bool {
        let unpark = |shard: &CachePadded<Mutex<Shard>>| shard.lock().unpark_from(length);
        let place = self.shards.iter().find_map(unpark);
        place.map(|place| self.free(arena, place)).is_some()
    }

    /// Makes holes of all parked places; false if there were none.
    pub(super) fn unpark_all(&self, arena: &Arena) -> bool {
        let mut was_parked = false;
        for shard in &self.shards {
            loop {
                let Some(place) = shard.lock().unpark_from(0) else {
                    break;
                };
                self.free(arena, place);
                was_parked = true;
            }
        }
        was_parked
    }

    /// Makes holes of places parked beyond the bound, in the shards that `shrunk` names by bits.
    /// At the end nothing is parked where there is no object. Returns the number of pages that go
    /// to the arena.
    pub(super) fn settle(&self, arena: &Arena, mut shrunk: u32, length: usize) -> usize {
        let mut pages = 0;
        while shrunk != 0 {
            let index = shrunk.trailing_zeros() as usize;
            let excess = self.shards[index].lock().unpark_excess(length);
            match excess {
                // Its block may be of another shard, which shrinks.
                Some(place) => {
                    let owner = self.lock_owner(place.frame());
                    let (owner, shard) = owner.expect("the frame of an object has a block");
                    pages += self.free_in(arena, shard, owner, place, &mut shrunk);
                }
                None => shrunk &= shrunk - 1,
            }
        }
        pages
    }
}
