//! Writing back: pages go to the backing file, and their memory is freed.
//!
//! A pass goes on in batches, several of which may be under way (`batches.rs`). It copies each object, or the page that it
//! stands for, under its slot's lock and marks the slot, writes the batch unlocked, and locks each slot again to publish the
//! block. Any publish between the two clears the mark: the block is given back then, and the newer content stays. Moving
//! an object keeps the mark, as it keeps the bytes. Two passes could take each other's marks for their own, so one goes on
//! at a time.
//!
//! If the disk fails or is full, pages stay in memory.

use std::io;
use std::ops::{ControlFlow, Range};

use crate::codec::streams::{Stream, StreamPolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::page::PageIndex;
use crate::stats::Counter;
use crate::sync::MutexGuard;

use super::StoreWith;
use super::backing_file::{BackingFile, Block};
use super::batches::{Batches, Finished};
use super::cold::ColdPages;
use super::layout::{Flags, Seen};
use super::lock::SlotLock;
use super::slot::{Entry, Locked};

/// A pass that writes back.
struct Pass<'a> {
    backing: &'a BackingFile,
    batches: MutexGuard<'a, Batches>,
    /// Pages of the batch that is being filled, at most.
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
        // One more, if there is one, finds the limit used up.
        let pages_left = self.budget().pages_left(self.unit);
        let pages_max = pages_left.map(|left| left.saturating_add(1));
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
        let mut batches = self.writing_back.lock();
        // A pass that a codec's panic ended left them.
        while self.start(&mut batches, backing) {
            while let Some(finished) = batches.finish(backing) {
                for (index, block) in finished.pages {
                    self.settle(backing, index, block, false);
                }
            }
        }
        Ok(Pass {
            backing,
            batches,
            batch_pages: 0,
            pages_written: 0,
            failed: Ok(()),
        })
    }

    /// Writes what is left of a batch, and waits for all.
    fn end_pass(&self, mut pass: Pass<'_>) -> Result<u64> {
        self.flush(&mut pass);
        pass.batches.give_back(pass.backing);
        pass.end()
    }

    fn flush(&self, pass: &mut Pass<'_>) {
        self.start(&mut pass.batches, pass.backing);
        while self.finish_oldest(pass).is_some() {}
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
            self.flush(pass);
            if error.kind() != ErrorKind::LimitUsedUp {
                self.counters.add(Counter::BdFailedWrites, 1);
            }
            pass.failed = Err(error);
            return ControlFlow::Break(());
        }
        if pass.batches.filling().len() == pass.batch_pages {
            self.start(&mut pass.batches, pass.backing);
        }
        match pass.batches.has_room() {
            true => ControlFlow::Continue(()),
            false => self
                .finish_oldest(pass)
                .unwrap_or(ControlFlow::Continue(())),
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
        let batch = pass.batches.filling();
        if batch.is_empty() {
            pass.batch_pages = self.budget().next_batch(self.unit);
            batch.make_room(pass.batch_pages, self.unit)?;
        }
        if pass.batch_pages == 0 {
            let text = "writeback_limit is used up: raise it, or disable it";
            return Err(Error::new(ErrorKind::LimitUsedUp, text));
        }
        let unit = batch
            .next_unit(self.unit)
            .ok_or_else(super::read::corrupt)?;
        let Ok(size_bytes) = self.copy_out(&guard, unit) else {
            // A damaged object must not get a new checksum.
            return Ok(());
        };
        unit[size_bytes..].fill(0);
        let block = pass.backing.take(size_bytes)?.ok_or_else(file_is_full)?;
        batch.push(index, block);
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
            Entry::Empty | Entry::Same(_) | Entry::Back(_) | Entry::Lost => {
                Err(super::read::corrupt())
            }
        }
    }

    /// Begins to write the batch that is being filled, and takes it from the limit. False: it is empty.
    fn start(&self, batches: &mut Batches, backing: &BackingFile) -> bool {
        if !batches.has_room() || batches.filling().is_empty() {
            return batches.is_writing();
        }
        self.budget().charge(batches.filling().len(), self.unit);
        batches.start(backing);
        true
    }

    /// Waits for the oldest batch that is being written and publishes its blocks. Breaks if no more can be written. None:
    /// no batch is being written.
    fn finish_oldest(&self, pass: &mut Pass<'_>) -> Option<ControlFlow<()>> {
        let Finished { pages, done } = pass.batches.finish(pass.backing)?;
        if done.is_err() {
            self.budget().refund(pages.len(), self.unit);
        }
        let mut published = 0;
        for (index, block) in pages {
            published += u64::from(self.settle(pass.backing, index, block, done.is_ok()));
        }
        self.counters.add(Counter::BdWrites, published);
        pass.pages_written += published;
        let Err(error) = done.map_err(write_failed) else {
            return Some(ControlFlow::Continue(()));
        };
        self.counters.add(Counter::BdFailedWrites, 1);
        let is_full = error.kind() == ErrorKind::NoSpace;
        pass.failed = Err(error);
        Some(match is_full {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
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
