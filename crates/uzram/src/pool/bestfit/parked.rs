//! Places of removed objects, kept as they are for new objects of as many granules.
//!
//! To its block a parked place is an object still: nothing of the block is looked at when it comes here,
//! nor when it goes to an object again. What a store overwrites has the sizes of what it writes, so most
//! removals and insertions end here, without the block's words, which lie cold in a large store.

use crate::cpu;
use crate::error::Result;
use crate::memory;
use crate::pool::bestfit::Place;
use crate::pool::bestfit::lengths::{LENGTHS, Lengths};

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
