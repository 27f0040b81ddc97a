//! Reading: under the slot's lock, from the pool's memory into the caller's buffer, without a
//! bounce copy. A page in the backing file is read without the lock.

use std::ops::Range;

use crate::codec::streams::{Stream, StreamPolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::page::{self, PageIndex};
use crate::stats::Counter;
use crate::sync::Ordering;

use super::StoreWith;
use super::backing_file::{Block, Pin};
use super::layout::Flags;
use super::lock::SlotLock;
use super::slot::{Entry, Locked, SharedGuard};

/// The part of the next object that the caches are asked for, in bytes. The rest follows by itself, as bytes are
/// decoded in their order. To ask for all of it gains less, as a CPU awaits some twenty lines at a time.
const PREFETCH_BYTES_MAX: usize = 1024;

impl<L: SlotLock, S: StreamPolicy<Stream>> StoreWith<L, S> {
    /// As [`Store::read`](crate::Store::read).
    pub fn read(&self, index: PageIndex, page: &mut [u8]) -> Result<()> {
        self.check_page(page.len())?;
        if self.table.is_hole(index)? {
            page.fill(0);
            return Ok(());
        }
        let guard = self.table.lock_shared(index)?;
        self.note_access(&guard);
        let read = match guard.entry() {
            Entry::Back(block) => self
                .pin_back(&guard, block)
                .and_then(|pinned| self.load_unlocked(guard, &pinned, page))
                // As in `load`.
                .inspect_err(|_| page.fill(0)),
            _ => self.load(&guard, page),
        };
        read.inspect_err(|_| self.counters.add(Counter::FailedReads, 1))
    }

    /// As [`Store::read_resident`](crate::Store::read_resident).
    pub fn read_resident(&self, index: PageIndex, page: &mut [u8]) -> Result<bool> {
        self.check_page(page.len())?;
        let guard = self.table.lock_shared(index)?;
        if matches!(guard.entry(), Entry::Back(_)) {
            return Ok(false);
        }
        self.note_access(&guard);
        self.load(&guard, page)
            .inspect_err(|_| self.counters.add(Counter::FailedReads, 1))?;
        Ok(true)
    }

    /// As [`Store::read_at`](crate::Store::read_at).
    pub fn read_at(&self, index: PageIndex, start: usize, part: &mut [u8]) -> Result<()> {
        self.check_part(start, part.len())?;
        if part.len() == self.unit.bytes() {
            return self.read(index, part);
        }
        if self.table.is_hole(index)? {
            part.fill(0);
            return Ok(());
        }
        let guard = self.table.lock_shared(index)?;
        self.note_access(&guard);
        self.load_part(guard, start, part)
            .inspect_err(|_| self.counters.add(Counter::FailedReads, 1))
    }

    /// Asks the caches for the object of page `index`, which is read next: it comes while another page is
    /// decoded. A hint: the object is seen without the lock, so it may be gone by now.
    #[inline]
    pub(crate) fn expect(&self, index: PageIndex) {
        if self.table.check(index).is_ok()
            && let Some(Range { start, end }) = self.table.glimpse(index)
        {
            self.pool
                .prefetch(start..end.min(start + PREFETCH_BYTES_MAX));
        }
    }

    /// Decompresses the locked entry into `page`.
    pub(super) fn load(&self, slot: &Locked, page: &mut [u8]) -> Result<()> {
        let loaded = match slot.entry() {
            Entry::Empty => {
                page.fill(0);
                Ok(())
            }
            Entry::Same(word) => {
                page::fill(page, 0, *word);
                Ok(())
            }
            Entry::Raw(handle) => {
                let bytes = self.verified(slot, self.pool.bytes(handle));
                bytes.and_then(|bytes| match bytes.len() == page.len() {
                    true => {
                        page.copy_from_slice(bytes);
                        Ok(())
                    }
                    false => Err(corrupt()),
                })
            }
            Entry::Packed(handle) => {
                self.verified(slot, self.pool.bytes(handle))
                    .and_then(|bytes| {
                        self.unpacker(slot.flags())?
                            .decompress(bytes, page)?
                            .map_err(|_malformed| corrupt())
                    })
            }
            Entry::Back(block) => {
                let pinned = self.pin_back(slot, block);
                pinned.and_then(|pinned| self.load_back(&pinned, page))
            }
            Entry::Lost => Err(lost()),
        };
        // What a failed decoding left behind may be parts of other pages.
        loaded.inspect_err(|_| page.fill(0))
    }

    /// Unlocks the slot and reads its page, which is in the file, into `page`.
    fn load_unlocked(
        &self,
        slot: SharedGuard<'_, L>,
        pinned: &PinnedPage<'_>,
        page: &mut [u8],
    ) -> Result<()> {
        drop(slot);
        self.load_back(pinned, page)
    }

    /// Keeps the page that `block` has readable when its slot is unlocked.
    pub(super) fn pin_back(&self, slot: &Locked, block: &Block) -> Result<PinnedPage<'_>> {
        let backing = self.backing.as_ref().ok_or_else(corrupt)?;
        debug_assert!(matches!(slot.entry(), Entry::Back(_)));
        Ok(PinnedPage {
            object: backing.pin(block)?,
            flags: slot.flags(),
        })
    }

    /// Reads a page in the file into `page`. It waits for the disk.
    pub(super) fn load_back(&self, pinned: &PinnedPage<'_>, page: &mut [u8]) -> Result<()> {
        self.counters.add(Counter::BdReads, 1);
        pinned.object.read(|object| {
            // Packed objects are smaller than a page.
            if object.len() == page.len() {
                page.copy_from_slice(object);
                return Ok(());
            }
            let read = self.unpacker(pinned.flags)?.decompress(object, page)?;
            read.map_err(|_malformed| corrupt())
        })
    }

    fn load_part(&self, slot: SharedGuard<'_, L>, start: usize, part: &mut [u8]) -> Result<()> {
        match slot.entry() {
            Entry::Empty => part.fill(0),
            Entry::Same(word) => page::fill(part, start, *word),
            Entry::Lost => return Err(lost()),
            Entry::Raw(_) | Entry::Packed(_) => {
                let mut page = self.compression.lease_page()?;
                self.load(&slot, &mut page)?;
                part.copy_from_slice(&page[start..start + part.len()]);
            }
            Entry::Back(block) => {
                let pinned = self.pin_back(&slot, block)?;
                // Others need those that are leased while this waits for a disk.
                let mut page = memory::boxed_slice(self.unit.bytes(), 0)?;
                self.load_unlocked(slot, &pinned, &mut page)?;
                part.copy_from_slice(&page[start..start + part.len()]);
            }
        }
        Ok(())
    }

    /// The object's bytes if they have the checksum that was stored with them.
    pub(super) fn verified<'a>(&self, slot: &Locked, bytes: &'a [u8]) -> Result<&'a [u8]> {
        match self.checksum_cell(slot.index()) {
            Some(cell) if cell.load(Ordering::Relaxed) != crc32fast::hash(bytes) => Err(corrupt()),
            _ => Ok(bytes),
        }
    }
}

/// A page in the file, as it was when its slot was locked.
pub(super) struct PinnedPage<'a> {
    object: Pin<'a>,
    flags: Flags,
}

impl PinnedPage<'_> {
    /// Whether a locked slot still has it.
    pub fn is_of(&self, slot: &Locked) -> bool {
        matches!(slot.entry(), Entry::Back(block) if self.object.is_of(block))
    }
}

fn lost() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "a page was lost when its store was taken over; write it again to repair it",
    )
}

pub(super) fn corrupt() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "a stored page is damaged; write it again to repair it",
    )
}
