//! Pages in a file: those that did not shrink, and, where the store has a limit, those that were stored first.
//!
//! The pager chooses pages and never waits for the disk: other threads read and write. A fault that needs them is put aside,
//! and answered when they have something new.

use std::sync::Arc;

use rustix::io::Errno;
use uzram::PageState;

use super::order::Row;
use super::serve::{LATER, Memory, UNREADABLE, index, was_refused};
use super::{Fault, Pager, Place};
use crate::spill::{BATCH_PAGES, Batch, Read};
use crate::statistics::add;
use crate::uffd::{Done, Then};

/// The part of the store's limit that is kept free, as a divisor: what comes while pages are written.
const FREE_PART: u64 = 8;

impl Pager {
    /// Whether reading `page` from the store would wait for the disk.
    pub(super) fn is_in_file(&self, page: usize) -> bool {
        self.spilled.is_some()
            && matches!(self.store.state(index(page)), Ok(PageState::WrittenBack))
    }

    /// Notes that `page` is in the store now.
    pub(super) fn note_stored(&mut self, page: usize) {
        let state = self.store.state(index(page));
        let Some(spilled) = &mut self.spilled else {
            return;
        };
        // A page of a batch that the file did not take may have come and gone since.
        spilled.order.remove(page);
        match state {
            Ok(PageState::Raw) => spilled.order.push(Row::Raw, page),
            Ok(PageState::Compressed { .. }) => spilled.order.push(Row::Cold, page),
            // It takes no memory.
            _ => {}
        }
    }

    /// Notes that `page` leaves the store.
    pub(super) fn note_forgotten(&mut self, page: usize) {
        if let Some(spilled) = &mut self.spilled {
            spilled.order.remove(page);
            spilled.disk.reads.forget(page);
        }
    }

    /// Notes that the store takes no more pages.
    pub(super) fn note_full(&mut self) {
        if let Some(spilled) = &mut self.spilled {
            spilled.is_full = true;
        }
    }

    /// Whether the store took no page, and pages of it can go to the file.
    pub(super) fn is_store_full(&self) -> bool {
        self.spilled.as_ref().is_some_and(|spilled| spilled.is_full)
    }

    /// Whether most of what the store's limit allows is taken.
    pub(super) fn is_store_nearly_full(&self) -> bool {
        let limit = self.store.mem_limit();
        limit > 0 && self.store.mem_used_bytes() > limit - limit / FREE_PART
    }

    /// Whether memory will come when pages were written. They may have been meanwhile: there is news of it then.
    pub(super) fn awaits_a_write(&mut self) -> bool {
        let spilled = self.spilled.as_ref();
        let is_busy = spilled.is_some_and(|spilled| spilled.disk.writes.is_busy());
        let awaits = is_busy || self.hand_over(false);
        self.awaits_disk |= awaits;
        awaits
    }

    /// Gives pages to the thread that writes, if it has none. If it `tidies`, that may also make holes in the file. False:
    /// it got nothing.
    pub(super) fn hand_over(&mut self, tidies: bool) -> bool {
        let Some(spilled) = &mut self.spilled else {
            return false;
        };
        let Some(mut batch) = spilled.disk.writes.take_back() else {
            return false;
        };
        for page in batch.drain(..).map(|page| page.0 as usize) {
            // The file did not take it.
            if self.pages.place(page) == Place::Stored {
                self.note_stored(page);
            }
        }
        self.choose(&mut batch);
        let is_given = !batch.is_empty() || tidies;
        if let Some(spilled) = &self.spilled {
            match is_given {
                true => spilled.disk.writes.give(batch),
                false => spilled.disk.writes.keep(batch),
            }
        }
        is_given
    }

    fn choose(&mut self, batch: &mut Batch) {
        let is_short = self.is_store_nearly_full();
        let Some(spilled) = &mut self.spilled else {
            return;
        };
        let takes_cold = std::mem::take(&mut spilled.is_full) || is_short;
        while batch.len() < BATCH_PAGES {
            let raw = spilled.order.pop(Row::Raw);
            let page = raw.or_else(|| takes_cold.then(|| spilled.order.pop(Row::Cold)).flatten());
            match page {
                Some(page) => batch.push(index(page)),
                None => break,
            }
        }
    }

    /// Answers faults that wait for the disk, if there is news of it.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn take_news(&mut self) -> Result<(), Errno> {
        let disk = self.spilled.as_ref().map(|spilled| &spilled.disk);
        if !disk.is_some_and(|disk| disk.has_news()) {
            return Ok(());
        }
        for fault in std::mem::take(&mut self.awaited) {
            self.take_fault(fault)?;
        }
        Ok(())
    }

    /// Answers a fault on a page in the file, once it was read.
    pub(super) fn serve_spilled(&mut self, page: usize, fault: Fault) -> Result<bool, Errno> {
        let Some(spilled) = &self.spilled else {
            return Ok(false);
        };
        let disk = Arc::clone(&spilled.disk);
        match disk.reads.ask(page) {
            Read::Awaited => {
                self.awaits_disk = true;
                Ok(false)
            }
            Read::Failed => self.finish(page, UNREADABLE),
            Read::Done(bytes) => {
                let done = self.bring_bytes(page, &bytes);
                if done.pages == 0 {
                    disk.reads.put_back(page, bytes);
                    return self.finish(page, done);
                }
                disk.reads.give(bytes);
                self.forget(page);
                self.pages.put(page, Place::Present);
                self.around.brought(fault.thread, page, 1, 1);
                add(&self.shared.counters.faults_spilled, 1);
                add(&self.shared.counters.pages_in, 1);
                Ok(true)
            }
        }
    }

    fn bring_bytes(&mut self, page: usize, bytes: &[u8]) -> Done {
        let to = self.program.address(page);
        let done = match self.memory(1) {
            Memory::Slots(first, count) => {
                self.ring.bytes(first).copy_from_slice(bytes);
                self.bring_slots(first, count, page, Then::Wake)
            }
            Memory::New(_) => self.uffd.copy(bytes, to, Then::Wake),
            Memory::Awaited => return LATER,
        };
        match was_refused(done) {
            true => self.uffd.copy(bytes, to, Then::Wake),
            false => done,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "all of this is a test")]

    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use uzram::{ErrorKind, Store};
    use uzram_testkit::noise;

    use super::super::{Served, Shared};
    use super::*;
    use crate::handler::FaultHandler;
    use crate::mapping::{Mapping, PAGE_BYTES};
    use crate::spill::Disk;
    use crate::statistics::Counters;
    use crate::uffd::{Message, Uffd};

    /// A pager of 64 pages with a file whose threads are the test itself, or none where the system has no userfaultfd.
    fn pager() -> Option<(Pager, Arc<Disk>)> {
        let program = Arc::new(Mapping::reserve(65).unwrap());
        let store = Store::builder().size(64 << 12);
        let store = store.backing_file(tempfile::tempfile().unwrap());
        let store = Arc::new(store.build().unwrap());
        let shared = Arc::new(Shared {
            counters: Counters::default(),
            budget: AtomicUsize::new(64),
            is_settled: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            is_quiet: AtomicBool::new(false),
        });
        let handler = FaultHandler::OwnThread;
        let disk = Arc::new(Disk::new(&store, &program, handler));
        let of_pager = Some(Arc::clone(&disk));
        match Uffd::open(handler) {
            Ok(uffd) => {
                let pager = Pager::new(uffd.into(), handler, program, store, shared, of_pager);
                Some((pager.unwrap(), disk))
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn fault(pager: &Pager, page: usize) -> Fault {
        Fault {
            address: pager.program.address(page),
            is_write: true,
            thread: 1,
        }
    }

    fn serve(pager: &mut Pager, page: usize) -> Served {
        let fault = fault(pager, page);
        pager.serve(fault).unwrap()
    }

    /// Lets `page`, which nobody has touched, have this content and leave for the file.
    fn spill(pager: &mut Pager, disk: &Disk, page: usize, seed: u64) {
        assert_eq!(serve(pager, page), Served::Done);
        assert_eq!(pager.evict(), 1);
        let Place::Staged(slot) = pager.pages.place(page) else {
            panic!("it was evicted");
        };
        let bytes = noise(seed, PAGE_BYTES);
        pager.ring.bytes(slot).copy_from_slice(&bytes);
        assert!(pager.compress_oldest());
        pager.hand_over(false);
        assert!(disk.write_one() && pager.is_in_file(page));
    }

    /// The bytes of a page that has just come.
    fn content(pager: &mut Pager, page: usize) -> Vec<u8> {
        assert_eq!(pager.evict(), 1);
        let Place::Staged(slot) = pager.pages.place(page) else {
            panic!("page {page} is at {:?}", pager.pages.place(page));
        };
        let bytes = pager.ring.bytes(slot).to_vec();
        pager.ring.unstage(slot);
        pager.pages.put(page, Place::Fresh);
        bytes
    }

    #[test]
    fn a_fault_that_waits_for_the_disk_holds_no_other_up() {
        let Some((mut pager, disk)) = pager() else {
            return;
        };
        spill(&mut pager, &disk, 3, 33);
        let waits = fault(&pager, 3);
        pager.take_fault(waits).unwrap();
        assert_eq!(pager.awaited.len(), 1);
        // The disk has not answered. Pages in the ring, the store and nowhere come all the same.
        assert_eq!(serve(&mut pager, 5), Served::Done);
        assert_eq!(pager.evict(), 1);
        assert_eq!(serve(&mut pager, 5), Served::Done);
        assert_eq!(pager.evict(), 1);
        assert!(pager.compress_oldest());
        assert_eq!(serve(&mut pager, 5), Served::Done);
        assert_eq!(content(&mut pager, 5), [0; PAGE_BYTES]);
        pager.take_news().unwrap();
        assert_eq!(pager.pages.place(3), Place::Stored);
        assert!(disk.read_one());
        pager.take_news().unwrap();
        assert!(pager.awaited.is_empty());
        assert_eq!(pager.pages.place(3), Place::Present);
        assert_eq!(content(&mut pager, 3), noise(33, PAGE_BYTES));
        assert_eq!(
            pager.shared.counters.faults_spilled.load(Ordering::Relaxed),
            1
        );
    }

    /// The store has no limit, and memory is short elsewhere.
    #[test]
    fn a_store_that_takes_no_page_gives_its_coldest_to_the_file() {
        let Some((mut pager, disk)) = pager() else {
            return;
        };
        for page in [7, 3] {
            assert_eq!(serve(&mut pager, page), Served::Done);
            assert_eq!(pager.evict(), 1);
            let Place::Staged(slot) = pager.pages.place(page) else {
                panic!("it was evicted");
            };
            pager.ring.bytes(slot)[..8].copy_from_slice(b"it packs");
            assert!(pager.compress_oldest());
        }
        pager.hand_over(false);
        assert!(!disk.writes.is_busy(), "the store has room");
        pager.note_full();
        assert!(pager.is_store_full() && pager.awaits_a_write());
        assert!(disk.write_one() && pager.is_in_file(7) && pager.is_in_file(3));
        // A page that goes to the file between a look and the read is neither read nor lost.
        let mut bytes = [1; PAGE_BYTES];
        assert!(!pager.store.read_resident(index(7), &mut bytes).unwrap());
        assert_eq!(bytes, [1; PAGE_BYTES]);
        let fault = fault(&pager, 7);
        assert_eq!(pager.serve_stored(7, fault), Ok(false));
        assert_eq!(pager.pages.place(7), Place::Stored);
    }

    #[test]
    fn what_was_read_of_a_page_that_has_changed_is_not_used() {
        for is_read_before in [false, true] {
            let Some((mut pager, disk)) = pager() else {
                return;
            };
            spill(&mut pager, &disk, 3, 33);
            assert_eq!(serve(&mut pager, 3), Served::Awaited);
            assert!(!is_read_before || disk.read_one());
            let start = pager.program.address(3);
            let end = start + PAGE_BYTES as u64;
            pager.take_message(Message::Removed { start, end }).unwrap();
            // The next owner of the page has other bytes there.
            pager.pages.put(3, Place::Fresh);
            assert_eq!(serve(&mut pager, 3), Served::Done);
            assert_eq!(content(&mut pager, 3), [0; PAGE_BYTES]);
            spill(&mut pager, &disk, 3, 44);
            assert_eq!(serve(&mut pager, 3), Served::Awaited);
            assert!(disk.read_one());
            assert_eq!(serve(&mut pager, 3), Served::Done);
            assert_eq!(content(&mut pager, 3), noise(44, PAGE_BYTES));
        }
    }

    /// The system has no memory for a moment. The bytes that were read are not read again.
    #[test]
    fn a_page_that_was_read_and_finds_no_memory_comes_later() {
        let Some((mut pager, disk)) = pager() else {
            return;
        };
        spill(&mut pager, &disk, 3, 33);
        assert_eq!(serve(&mut pager, 3), Served::Awaited);
        assert!(disk.read_one());
        pager.uffd.refusals.store(1, Ordering::Relaxed);
        assert_eq!(serve(&mut pager, 3), Served::Later);
        assert_eq!(serve(&mut pager, 3), Served::Done);
        assert_eq!(content(&mut pager, 3), noise(33, PAGE_BYTES));
        assert_eq!(pager.store.stats().bd_reads, 1);
    }
}
