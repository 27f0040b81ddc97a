//! Reading: under the slot's lock, from the pool's memory into the caller's buffer, without a
//! bounce copy.

use std::ops::Range;

use crate::codec::streams::{Stream, StreamPolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::page::{self, PageIndex};
use crate::stats::Counter;
use crate::sync::Ordering;

use super::StoreWith;
use super::lock::SlotLock;
use super::slot::{Entry, Locked};

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
        self.load(&guard, page)
            .inspect_err(|_| self.counters.add(Counter::FailedReads, 1))
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
        self.load_part(&guard, start, part)
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
            Entry::Back(block) => self.load_back(slot, block, page),
        };
        // What a failed decoding left behind may be parts of other pages.
        loaded.inspect_err(|_| page.fill(0))
    }

    fn load_part(&self, slot: &Locked, start: usize, part: &mut [u8]) -> Result<()> {
        match slot.entry() {
            Entry::Empty => part.fill(0),
            Entry::Same(word) => page::fill(part, start, *word),
            Entry::Raw(_) | Entry::Packed(_) | Entry::Back(_) => {
                let mut page = self.compression.lease_page()?;
                self.load(slot, &mut page)?;
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

pub(super) fn corrupt() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "a stored page is damaged; write it again to repair it",
    )
}
