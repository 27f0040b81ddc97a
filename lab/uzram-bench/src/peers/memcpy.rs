//! The floor: pages copied into memory and out of it, nothing else.

use std::hint::black_box;
use std::ops::Range;

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::mapping::{Backing, Mapping};
use crate::side::Pages;
use crate::workload::Case;

/// One uncompressed page a place.
pub(crate) struct Memcpy(Mapping);

impl Memcpy {
    pub(crate) fn new(bytes: usize, backing: Backing) -> Result<Memcpy> {
        let memory = Mapping::new(bytes, backing);
        let failed = |error| Error::io("memory for memcpy", error);
        memory.map(Memcpy).map_err(failed)
    }
}

impl Pages for Memcpy {
    /// Only the memory of the next turn is made fresh, right before it is touched again. All of it at once
    /// would be more memory than all other sides give back, and where a host takes free memory away
    /// it would make *their* first touches dear.
    fn prepare(&mut self, case: Case, places: Range<usize>) -> Result<()> {
        if case != Case::FirstWrite {
            return Ok(());
        }
        let range = places.start * PAGE_BYTES..places.end * PAGE_BYTES;
        let fresh = self.0.make_range_fresh(range);
        fresh.map_err(|error| Error::io("memory for memcpy", error))
    }

    #[inline]
    fn write(&mut self, place: usize, pages: &[u8]) -> Result<()> {
        self.0[place * PAGE_BYTES..][..pages.len()].copy_from_slice(black_box(pages));
        Ok(())
    }

    #[inline]
    fn read(&mut self, place: usize, pages: &mut [u8]) -> Result<()> {
        let from = &self.0[place * PAGE_BYTES..][..pages.len()];
        pages.copy_from_slice(black_box(from));
        Ok(())
    }
}
