//! Writing back: pages go to the backing file, and their memory is freed.
//!
//! A pass goes on in batches. It copies each object, or the page that it stands for, under its slot's lock and marks the
//! slot, writes the batch unlocked, and locks each slot again to publish the block. Any publish between the two clears the
//! mark: the block is given back then, and the newer content stays. Moving an object keeps the mark, as it keeps the
//! bytes. Two passes could take each other's marks for their own, so one goes on at a time.
//!
//! If the disk fails or is full, pages stay in memory.
//!
//! A page in the file is read under its slot's lock: who waits for it waits for the disk, and nobody else does.

use std::io;
use std::ops::{ControlFlow, Range};

use crate::codec::streams::{Stream, StreamPolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::page::PageIndex;
use crate::stats::Counter;
use crate::sync::MutexGuard;

use super::StoreWith;
use super::backing_file::{BackingFile, Batch, Block};
use super::cold::ColdPages;
use super::layout::{Flags, Seen};
use super::lock::SlotLock;
use super::slot::{Entry, Locked};

/// A pass that writes back.
struct Pass<'a> {
    backing: &'a BackingFile,
    batch: MutexGuard<'a, Batch>,
    /// Pages of the batch at most.
    batch_pages: usize,
    pages_written: u64,
    /// The last error.
    failed: Result<()>,
}

impl Pass<'_> {
    fn end(self) -> Result<u64> {
        self.failed.map(|()| self.pages_written)
    }
}

impl<L: SlotLock, S: StreamPolicy<Stream>> StoreWith<L, S> {
    /// As [`Store::write_back`](crate::Store::write_back).
    pub fn write_back(&self, pages: &[PageIndex]) -> Result<u64> {
        let mut pass = self.begin_pass()?;
        pages.iter().try_for_each(|page| self.table.check(*page))?;
        let mut named = pages.iter().copied();
        let _ = named.try_for_each(|index| self.write_back_page(&mut pass, index, ColdPages::All));
        self.end_pass(pass)
    }

    /// As [`Store::write_back_cold`](crate::Store::write_back_cold).
    pub fn write_back_cold(
        &self,
        pages: ColdPages,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64> {
        let mut pass = self.begin_pass()?;
        let pages_max = self.budget.pages_left(self.unit);
        let visit = |index| match goes_on() {
            true => self.write_back_page(&mut pass, index, pages),
            false => ControlFlow::Break(()),
        };
        self.visit_cold(pages_max, |seen| pages.has(seen), visit)?;
        self.end_pass(pass)
    }

    /// As [`Store::write_back_range`](crate::Store::write_back_range).
    pub fn write_back_range(
        &self,
        range: Range<u64>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64> {
        let mut pass = self.begin_pass()?;
        if !range.is_empty() {
            self.table.check(PageIndex(range.end - 1))?;
        }
        let mut next = range.start;
        while let Some((index, _)) = self.seen_from(next, Seen::has_object)
            && index.0 < range.end
            && goes_on()
            && self
                .write_back_page(&mut pass, index, ColdPages::All)
                .is_continue()
        {
            next = index.0 + 1;
        }
        self.end_pass(pass)
    }

    /// As [`Store::discard_backing`](crate::Store::discard_backing).
    pub fn discard_backing(&self) -> bool {
        self.backing.as_ref().is_some_and(BackingFile::discard_some)
    }

    fn begin_pass(&self) -> Result<Pass<'_>> {
        let backing = self.backing.as_ref().ok_or_else(|| {
            let text = "the store has no backing file; name one when it is made";
            Error::new(ErrorKind::InvalidInput, text)
        })?;
        let mut batch = self.writing_back.lock();
        // A pass that a codec's panic ended left them.
        for (index, block) in batch.pages.drain(..) {
            self.settle(backing, index, block, false);
        }
        Ok(Pass {
            backing,
            batch,
            batch_pages: 0,
            pages_written: 0,
            failed: Ok(()),
        })
    }

    /// Writes what is left of a batch.
    fn end_pass(&self, mut pass: Pass<'_>) -> Result<u64> {
        let _ = self.write_batch(&mut pass);
        pass.end()
    }

    /// Takes page `index` into the batch if it is among `pages`, and writes the batch once it is full. Breaks if no more
    /// can be written.
    fn write_back_page(
        &self,
        pass: &mut Pass<'_>,
        index: PageIndex,
        pages: ColdPages,
    ) -> ControlFlow<()> {
        if let Err(error) = self.collect(pass, index, pages) {
            // Those before it can go.
            let _ = self.write_batch(pass);
            if error.kind() != ErrorKind::LimitUsedUp {
                self.counters.add(Counter::BdFailedWrites, 1);
            }
            pass.failed = Err(error);
            return ControlFlow::Break(());
        }
        match pass.batch.pages.len() < pass.batch_pages {
            true => ControlFlow::Continue(()),
            false => self.write_batch(pass),
        }
    }

    /// Copies the object of page `index`, or the page, into the batch and marks its slot.
    fn collect(&self, pass: &mut Pass<'_>, index: PageIndex, pages: ColdPages) -> Result<()> {
        if self.table.is_hole(index)? {
            return Ok(());
        }
        let mut guard = self.table.lock(index)?;
        // One that is marked was named twice.
        if !pages.has(guard.seen()) || guard.flags().is_marked() {
            return Ok(());
        }
        if pass.batch.pages.is_empty() {
            pass.batch_pages = self.budget.next_batch(self.unit);
            pass.batch.make_room(pass.batch_pages, self.unit.bytes())?;
        }
        if pass.batch_pages == 0 {
            let text = "writeback_limit is used up: raise it, or disable it";
            return Err(Error::new(ErrorKind::LimitUsedUp, text));
        }
        // What an earlier try left behind the pages is overwritten.
        let start = pass.batch.pages.len() * self.unit.bytes();
        pass.batch.bytes.truncate(start);
        pass.batch.bytes.resize(start + self.unit.bytes(), 0);
        let Ok(size_bytes) = self.copy_out(&guard, &mut pass.batch.bytes[start..]) else {
            // A damaged object must not get a new checksum.
            return Ok(());
        };
        let block = pass.backing.take(size_bytes)?.ok_or_else(file_is_full)?;
        pass.batch.pages.push((index, block));
        guard.set_flags(guard.flags().with_mark(true));
        Ok(())
    }

    /// Copies the bytes that go to the file for a locked page, and returns how many.
    fn copy_out(&self, slot: &Locked, unit: &mut [u8]) -> Result<usize> {
        match slot.entry() {
            Entry::Packed(_) if !self.compresses_back => self.load(slot, unit).map(|()| unit.len()),
            Entry::Raw(handle) | Entry::Packed(handle) => {
                let bytes = self.verified(slot, self.pool.bytes(handle))?;
                let start = unit.get_mut(..bytes.len());
                start
                    .ok_or_else(super::read::corrupt)?
                    .copy_from_slice(bytes);
                Ok(bytes.len())
            }
            Entry::Empty | Entry::Same(_) | Entry::Back(_) => Err(super::read::corrupt()),
        }
    }

    /// Writes the batch and publishes its blocks. Breaks if no more can be written.
    fn write_batch(&self, pass: &mut Pass<'_>) -> ControlFlow<()> {
        let batch = &mut *pass.batch;
        if batch.pages.is_empty() {
            return ControlFlow::Continue(());
        }
        let blocks = batch.pages.iter().map(|(_, block)| block);
        let done = pass.backing.write(blocks, &batch.bytes);
        if done.is_ok() {
            self.budget.charge(batch.pages.len(), self.unit);
        }
        let mut published = 0;
        for (index, block) in batch.pages.drain(..) {
            published += u64::from(self.settle(pass.backing, index, block, done.is_ok()));
        }
        batch.bytes.clear();
        self.counters.add(Counter::BdWrites, published);
        pass.pages_written += published;
        match done.map_err(write_failed) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.counters.add(Counter::BdFailedWrites, 1);
                let is_full = error.kind() == ErrorKind::NoSpace;
                pass.failed = Err(error);
                match is_full {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            }
        }
    }

    /// Publishes a block if its page has not changed meanwhile. Else, or if the write failed, gives it back.
    fn settle(
        &self,
        backing: &BackingFile,
        index: PageIndex,
        block: Block,
        is_written: bool,
    ) -> bool {
        let Ok(mut guard) = self.table.lock(index) else {
            unreachable!("the index was checked and tables do not shrink");
        };
        if is_written && guard.flags().is_marked() {
            // A page that went as it is has no codec.
            let flags = match self.compresses_back {
                true => Flags::packed_by(guard.flags().priority()),
                false => Flags::NONE,
            };
            self.put(guard, Entry::Back(block), 0, flags);
            return true;
        }
        guard.set_flags(guard.flags().with_mark(false));
        drop(guard);
        backing.give(block);
        false
    }

    /// Reads the page that `block` has, into `page`.
    pub(super) fn load_back(&self, slot: &Locked, block: &Block, page: &mut [u8]) -> Result<()> {
        let backing = self.backing.as_ref().ok_or_else(super::read::corrupt)?;
        debug_assert!(matches!(slot.entry(), Entry::Back(_)));
        self.counters.add(Counter::BdReads, 1);
        // Packed objects are smaller than a page.
        if block.size_bytes() == page.len() {
            return backing.read(block, page);
        }
        let mut object = memory::boxed_slice(block.size_bytes(), 0)?;
        backing.read(block, &mut object)?;
        let read = self.unpacker(slot.flags())?.decompress(&object, page)?;
        read.map_err(|_malformed| super::read::corrupt())
    }
}

fn file_is_full() -> Error {
    let text = "the backing file is full: its pages stay in memory; use a larger one";
    Error::new(ErrorKind::NoSpace, text)
}

fn write_failed(error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    let text = "the backing file takes no more pages: they stay in memory";
    Error::new(kind, text).with_source(error)
}

#[cfg(all(test, not(uzram_shuttle)))]
#[path = "writeback_tests.rs"]
mod tests;
