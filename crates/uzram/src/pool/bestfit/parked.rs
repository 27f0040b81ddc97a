//! Places of removed objects, kept as they are for new objects of as many granules.
//!
//! To its block a parked place is an object still: nothing of the block is looked at when it comes here,
//! nor when it goes to an object again. What a store overwrites has the sizes of what it writes, so most
//! removals and insertions end here, without the block's words, which lie cold in a large store.

use crossbeam_utils::CachePadded;

use super::lengths::{LENGTHS, Lengths};
use super::shard::Shard;
use super::{BestFit, Place};
use crate::cpu;
use crate::error::Result;
use crate::memory;
use crate::sync::{Mutex, Ordering};

/// Places of a length: what one cache line has room for. The count of a length goes up and down
/// at random, so it is at an end, where a block must be looked at, about once in so many times.
const PLACES: usize = 10;

/// Places of one length.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bin {
    frames: [u32; PLACES],
    starts: [u16; PLACES],
    count: u16,
}

const _: () = assert!(size_of::<Bin>() == 64);

/// Has the bin of a length brought closer, of the bins at an address.
pub(super) fn bring_closer(bins_address: usize, length: usize) {
    cpu::prefetch(bins_address + length * size_of::<Bin>());
}

#[derive(Debug, Default)]
pub(super) struct Parked {
    /// One a length, or none: then nothing is kept.
    bins: Box<[Bin]>,
    nonempty: Lengths,
    granules: usize,
}

impl Bin {
    const EMPTY: Bin = Bin {
        frames: [0; PLACES],
        starts: [0; PLACES],
        count: 0,
    };
}

impl Parked {
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(super) fn new() -> Result<Parked> {
        Ok(Parked {
            bins: memory::boxed_slice(LENGTHS, Bin::EMPTY)?,
            ..Parked::default()
        })
    }

    /// Where the bins lie, for [`bring_closer`].
    pub(super) fn address(&self) -> usize {
        self.bins.as_ptr().addr()
    }

    /// Granules of all places.
    pub(super) fn granules(&self) -> usize {
        self.granules
    }

    /// Keeps a place; false if there is no room for one so long.
    pub(super) fn push(&mut self, place: Place) -> bool {
        let Some(bin) = self.bins.get_mut(place.length) else {
            return false;
        };
        let at = usize::from(bin.count);
        if at == PLACES {
            return false;
        }
        bin.frames[at] = place.frame;
        bin.starts[at] = place.start as u16;
        bin.count += 1;
        self.nonempty.insert(place.length);
        self.granules += place.length;
        true
    }

    /// A place of this very length, the last that came.
    pub(super) fn pop(&mut self, length: usize) -> Option<Place> {
        let bin = self.bins.get_mut(length)?;
        let at = usize::from(bin.count.checked_sub(1)?);
        bin.count -= 1;
        if at == 0 {
            self.nonempty.remove(length);
        }
        self.granules -= length;
        Some(Place {
            frame: bin.frames[at],
            start: usize::from(bin.starts[at]),
            length,
        })
    }

    /// A place of at least this length.
    pub(super) fn pop_from(&mut self, length: usize) -> Option<Place> {
        self.pop(self.nonempty.first_from(length)?)
    }

    /// Whether this place is here.
    pub(super) fn has(&self, place: Place) -> bool {
        self.bins.get(place.length).is_some_and(|bin| {
            let places = bin.frames.iter().zip(&bin.starts);
            let mut places = places.take(usize::from(bin.count));
            places.any(|(frame, start)| (*frame, usize::from(*start)) == (place.frame, place.start))
        })
    }

    /// Bookkeeping memory, in bytes.
    pub(super) fn side_bytes(&self) -> usize {
        size_of_val(&*self.bins)
    }
}

/// What makes parked places holes.
impl BestFit {
    /// Makes a hole of a parked place that is so long, else holes of all; false if nothing was parked.
    pub(super) fn unpark_for(&self, length: usize) -> bool {
        let unpark = |shard: &CachePadded<Mutex<Shard>>| shard.lock().unpark_from(length);
        match self.shards.iter().find_map(unpark) {
            Some(place) => {
                self.free(place);
                true
            }
            None => self.unpark_all(),
        }
    }

    pub(super) fn unpark_all(&self) -> bool {
        let mut was_parked = false;
        for shard in &self.shards {
            loop {
                let Some(place) = shard.lock().unpark_from(0) else {
                    break;
                };
                self.free(place);
                was_parked = true;
            }
        }
        was_parked
    }

    /// Lets removed objects be parked again once what is used is within the limit.
    pub(super) fn look_at_limit(&self) {
        if self.over_limit.load(Ordering::Relaxed) {
            let is_over = self.arena.is_over_limit();
            self.over_limit.store(is_over, Ordering::Relaxed);
        }
    }

    /// Makes holes of what is parked beyond what may be, in the shards that `shrunk` names by bits: at the
    /// end nothing is parked where there is no object. How many pages became the arena's.
    pub(super) fn settle(&self, mut shrunk: u32, length: usize) -> usize {
        let mut pages = 0;
        while shrunk != 0 {
            let index = shrunk.trailing_zeros() as usize;
            let excess = self.shards[index].lock().unpark_excess(length);
            match excess {
                // Its block may be of another shard, which shrinks.
                Some(place) => {
                    let owner = self.lock_owner(place.frame);
                    let (owner, shard) = owner.expect("the frame of an object has a block");
                    pages += self.free_in(shard, owner, place, &mut shrunk);
                }
                None => shrunk &= shrunk - 1,
            }
        }
        pages
    }
}
