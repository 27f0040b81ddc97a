//! A number of 32 bits for each page, which some stores keep beside the slot table. It is written and read under the
//! slot's lock.

use std::ops::Range;
#[cfg(not(uzram_shuttle))]
use std::os::fd::OwnedFd;

use crate::error::{Error, ErrorKind, Result};
use crate::page::PageIndex;
use crate::region::{Backing, Region};
use crate::sync::MappedU32;

/// One number for each page.
#[derive(Debug)]
pub(super) struct SideTable {
    region: Region,
}

impl SideTable {
    /// Zeroes for this many pages. Memory is taken as they are written.
    pub(super) fn reserve(pages: u64, backing: Backing) -> Result<SideTable> {
        let region = Region::reserve(length_bytes(pages)?, backing)?;
        Ok(SideTable { region })
    }

    /// The numbers of a process that died, as [`Region::attach`].
    #[cfg(not(uzram_shuttle))]
    pub(super) fn attach(pages: u64, file: OwnedFd, what: &str) -> Result<SideTable> {
        let region = Region::attach(file, length_bytes(pages)?, what)?;
        Ok(SideTable { region })
    }

    /// As [`Region::file`].
    #[cfg(not(uzram_shuttle))]
    pub(super) fn file(&self) -> Result<Option<OwnedFd>> {
        self.region.file()
    }

    /// Makes all of it resident.
    pub(super) fn populate(&self) -> Result<()> {
        self.region.populate(0..self.region.length_bytes())
    }

    #[inline]
    pub(super) fn cell(&self, index: PageIndex) -> &MappedU32 {
        &self.region.half_words()[index.0 as usize]
    }

    /// Gives the memory of these slots' numbers back, while the slots are locked.
    pub(super) fn forget(&self, indices: Range<u64>) {
        let bytes = |index: u64| index as usize * size_of::<MappedU32>();
        let end = bytes(indices.end).next_multiple_of(self.region.page_bytes());
        self.region.release(bytes(indices.start)..end);
    }
}

fn length_bytes(pages: u64) -> Result<usize> {
    let bytes = usize::try_from(pages)
        .ok()
        .and_then(|n| n.checked_mul(size_of::<MappedU32>()));
    bytes.ok_or_else(|| {
        let text = "checksums or ages exceed the address space; choose a smaller size";
        Error::new(ErrorKind::NoMemory, text)
    })
}
