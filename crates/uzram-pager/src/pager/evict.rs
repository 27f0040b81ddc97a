//! Evictions: from the program into the ring, and from there into the store.
//!
//! The oldest pages leave first. A touch of a page that waits in the ring moves it back and makes it the youngest: no
//! interface of the system tells which pages are read.

use rustix::io::Errno;

use super::serve::index;
use super::{Budget, Pager, Place, Turn};
use crate::statistics::add;
use crate::uffd::Then;

/// Most pages that one request moves.
const BATCH_MAX: usize = 64;
/// Most pages that are tried one after another where pages resist.
const TRIES_MAX: usize = 16;
/// Pages that the store takes or drops from one maintenance to the next.
const CHANGES_MIN: usize = 1024;

impl Pager {
    /// A small part of the work between faults. Returns what is next.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn step(&mut self) -> Result<Turn, Errno> {
        self.is_blocked = false;
        let has_more = self.reclaim()?;
        Ok(if self.is_blocked {
            Turn::Blocked
        } else if has_more {
            Turn::Busy
        } else if self.wants_maintenance() {
            Turn::Maintain
        } else {
            Turn::Idle
        })
    }

    /// Whether a step has nothing to do.
    pub(super) fn is_at_rest(&self) -> bool {
        let Budget {
            pages,
            low,
            is_refilling,
            ..
        } = self.budget;
        self.resident() <= pages
            && !is_refilling
            && self.at_hand() >= low
            && !self.wants_maintenance()
    }

    /// Whether the store should give sparse memory back.
    pub(super) fn wants_maintenance(&self) -> bool {
        self.changes >= CHANGES_MIN
    }

    /// Makes room, if there is too little of it. Returns whether there may be more to do.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn reclaim(&mut self) -> Result<bool, Errno> {
        let resident = self.resident();
        let excess = resident.saturating_sub(self.budget.pages);
        if excess > 0 {
            return self.shrink(excess);
        }
        let at_hand = self.at_hand();
        if at_hand >= self.budget.high {
            self.budget.is_refilling = false;
        } else if at_hand < self.budget.low {
            self.budget.is_refilling = true;
        }
        Ok(self.budget.is_refilling && self.refill())
    }

    /// Pages that can be brought without an eviction.
    pub(super) fn at_hand(&self) -> usize {
        self.ring.free() + self.budget.pages.saturating_sub(self.resident())
    }

    /// One page less in the ring, or some more. Returns whether anything happened.
    fn refill(&mut self) -> bool {
        (self.ring.staged() < self.budget.staged && self.evict() > 0) || self.compress_oldest()
    }

    /// Gives memory back to the system.
    fn shrink(&mut self, excess: usize) -> Result<bool, Errno> {
        let goal = excess.min(BATCH_MAX).min(self.budget.high);
        if self.ring.free() < goal && self.refill() {
            return Ok(true);
        }
        if self.ring.free() == 0 {
            return Ok(false);
        }
        // Discarding memory that is registered would wait for this very thread.
        let ring = self.ring.memory();
        let (start, end) = (ring.address(0), ring.address(ring.pages()));
        self.uffd.unregister(start, end)?;
        let kept = self.ring.free().saturating_sub(excess);
        let released = self.ring.release(kept);
        self.uffd.register(start, end)?;
        released.map(|()| true)
    }

    /// Makes a slot of the ring free, if any page gives way.
    pub(super) fn make_free(&mut self) {
        for _ in 0..TRIES_MAX {
            if self.ring.staged() == 0 && self.evict() == 0 {
                return;
            }
            if self.compress_oldest() || self.is_store_full() {
                return;
            }
        }
    }

    /// Moves the oldest pages into the ring and returns how many.
    pub(super) fn evict(&mut self) -> usize {
        for _ in 0..TRIES_MAX {
            let Some((slot, holes)) = self.ring.holes(BATCH_MAX) else {
                return 0;
            };
            let Some((page, count)) = self.pages.take_oldest(holes) else {
                return 0;
            };
            let (from, to) = (self.program.address(page), self.ring.address(slot));
            let mut done = self.uffd.take(from, to, count);
            if done.pages == 0 && done.stopped == Some(Errno::INVAL) && count > 1 {
                // Parts of several mappings do not go at once.
                done = self.uffd.take(from, to, 1);
            }
            for at in 0..done.pages {
                self.ring.stage(slot + at, page + at);
                self.pages.put(page + at, Place::Staged(slot + at));
            }
            let (kept, kept_count) = (page + done.pages, count - done.pages);
            match done.stopped {
                Some(errno) if done.pages == 0 && errno != Errno::AGAIN => {
                    self.pages.put_back(kept + 1, kept_count - 1);
                    self.keep(page, errno);
                }
                _ => self.pages.put_back(kept, kept_count),
            }
            self.is_blocked = done.pages == 0 && done.stopped == Some(Errno::AGAIN);
            if done.pages > 0 || self.is_blocked {
                return done.pages;
            }
        }
        0
    }

    /// A page that did not go is the youngest now, unless it was not there.
    fn keep(&mut self, page: usize, errno: Errno) {
        add(&self.shared.counters.pages_kept, 1);
        if errno != Errno::NOENT {
            self.pages.put(page, Place::Present);
        } else if self.pages.was_discarded(page) {
            self.drop_copy(page);
            self.pages.put(page, Place::Fresh);
        } else if self.uffd.poison(self.program.address(page), 1).pages == 1 {
            // Gone without a message. The system would show zeroes.
            self.lose(page);
        }
    }

    /// Compresses the page that has waited longest. False: none waits, or it could not be stored and went back.
    pub(super) fn compress_oldest(&mut self) -> bool {
        let Some((slot, page)) = self.ring.oldest_staged() else {
            return false;
        };
        if self.is_as_its_copy(page, slot) {
            self.pages.put(page, Place::Stored);
            self.ring.unstage(slot);
            add(&self.shared.counters.pages_unchanged, 1);
            return true;
        }
        // What is written takes the copy's place.
        let mut written = self.store.write(index(page), self.ring.bytes(slot));
        while written.is_err() && self.drop_some_copies() {
            written = self.store.write(index(page), self.ring.bytes(slot));
        }
        if written.is_ok() {
            self.pages.put(page, Place::Stored);
            self.ring.unstage(slot);
            self.note_stored(page);
            self.changes += 1;
            add(&self.shared.counters.pages_out, 1);
            return true;
        }
        self.note_full();
        let to = self.program.address(page);
        let from = self.ring.address(slot);
        if self.uffd.bring(from, to, 1, Then::Wake).pages == 1 {
            self.ring.moved_out(slot);
            self.pages.put(page, Place::Present);
        }
        add(&self.shared.counters.pages_kept, 1);
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use uzram::{ErrorKind, PageState, Store};
    use uzram_testkit::noise;

    use super::super::{Answer, Fault, Served, Shared};
    use super::*;
    use crate::handler::FaultHandler;
    use crate::mapping::Mapping;
    use crate::statistics::Counters;
    use crate::uffd::{Message, Then, Uffd};

    /// A pager of 64 pages, or none where the system has no userfaultfd.
    fn pager() -> Option<Pager> {
        let program = Arc::new(Mapping::reserve(65).unwrap());
        let store = Arc::new(Store::builder().size(64 << 12).build().unwrap());
        let shared = Arc::new(Shared {
            counters: Counters::default(),
            budget: AtomicUsize::new(64),
            is_settled: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            is_quiet: AtomicBool::new(false),
        });
        let handler = FaultHandler::OwnThread;
        match Uffd::open(handler) {
            Ok(uffd) => {
                Some(Pager::new(uffd.into(), handler, program, store, shared, None).unwrap())
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Makes a page present by a fault, and returns the fault.
    fn touch(pager: &mut Pager, page: usize) -> Fault {
        let fault = Fault {
            address: pager.program.address(page),
            is_write: true,
            thread: 1,
        };
        assert_eq!(pager.serve(fault), Ok(Served::Done));
        assert_eq!(pager.pages.place(page), Place::Present);
        fault
    }

    /// The thread that discards was told, and has not dropped the page yet. A fault that was read before comes late.
    #[test]
    fn a_page_whose_discard_is_under_way_does_not_leave() {
        let Some(mut pager) = pager() else {
            return;
        };
        let fault = touch(&mut pager, 3);
        let address = fault.address;
        let removed = Message::Removed {
            start: address,
            end: address + 4096,
        };
        pager.take_message(removed).unwrap();
        assert_eq!(pager.serve(fault), Ok(Served::Done));
        assert_eq!(pager.evict(), 0, "its old bytes would come back");
        assert_eq!(pager.pages.place(3), Place::Fresh);
    }

    /// The system has no memory for a moment. The bytes stay where they are, and the touch is answered later.
    #[test]
    fn a_page_that_finds_no_memory_comes_later() {
        for is_stored in [false, true] {
            let Some(mut pager) = pager() else {
                return;
            };
            let fault = touch(&mut pager, 3);
            assert_eq!(pager.evict(), 1);
            assert!(!is_stored || pager.compress_oldest());
            // More than one answer to one fault tries.
            pager.uffd.refusals.store(2, Ordering::Relaxed);
            pager.later = vec![fault];
            while !pager.later.is_empty() {
                pager.try_again().unwrap();
            }
            assert_eq!(pager.pages.place(3), Place::Present);
            assert_eq!(pager.uffd.refusals.load(Ordering::Relaxed), 0);
            // A handler gives the lock back meanwhile.
            assert_eq!(pager.evict(), 1);
            pager.uffd.refusals.store(1, Ordering::Relaxed);
            assert_eq!(pager.answer(fault), Ok(Answer::NoMemory));
            assert!(matches!(pager.pages.place(3), Place::Staged(_)));
            assert!(matches!(pager.answer(fault), Ok(Answer::Served { .. })));
        }
    }

    /// Lets a page with these bytes leave, and come back by a read.
    fn leave_and_come(pager: &mut Pager, page: usize, bytes: &[u8]) {
        let fault = touch(pager, page);
        assert_eq!(pager.evict(), 1);
        let Place::Staged(slot) = pager.pages.place(page) else {
            panic!("it has left")
        };
        pager.ring.bytes(slot).copy_from_slice(bytes);
        assert!(pager.compress_oldest());
        let is_write = false;
        assert_eq!(pager.serve(Fault { is_write, ..fault }), Ok(Served::Done));
        assert!(pager.pages.has_copy(page));
    }

    #[test]
    fn a_full_store_takes_a_page_in_place_of_copies() {
        let Some(mut pager) = pager() else {
            return;
        };
        leave_and_come(&mut pager, 3, &noise(3, 4096));
        let fault = Fault {
            address: pager.program.address(3),
            is_write: false,
            thread: 1,
        };
        touch(&mut pager, 5);
        assert_eq!((pager.evict(), pager.evict()), (1, 1));
        let Place::Staged(slot) = pager.pages.place(5) else {
            panic!("it has left")
        };
        pager.ring.bytes(slot).copy_from_slice(&noise(5, 4096));
        assert_eq!(
            pager.serve(fault),
            Ok(Served::Done),
            "page 3 came from the ring"
        );
        pager.store.set_mem_limit(pager.store.mem_used_bytes());
        assert!(pager.compress_oldest(), "the copy went for it");
        assert_eq!(pager.pages.place(5), Place::Stored);
        assert!(!pager.pages.has_copy(3) && !pager.drop_some_copies());
        assert!(matches!(pager.store.state(index(3)), Ok(PageState::Hole)));
    }

    /// Linux 6.18 tells of fewer pages than it has moved.
    #[test]
    fn pages_that_the_system_forgets_to_count_are_found() {
        let Some(mut pager) = pager() else {
            return;
        };
        for counted in 0..3 {
            let pages = [10, 11, 12];
            let faults = pages.map(|page| touch(&mut pager, page));
            pager.uffd.miscounts.store(3 - counted, Ordering::Relaxed);
            assert_eq!(pager.evict(), 3);
            for page in pages {
                assert!(
                    matches!(pager.pages.place(page), Place::Staged(_)),
                    "{counted}"
                );
            }
            // Back from the ring, and once they are stored.
            pager.uffd.miscounts.store(1, Ordering::Relaxed);
            assert_eq!(pager.serve(faults[0]), Ok(Served::Done));
            assert_eq!(pager.uffd.miscounts.load(Ordering::Relaxed), 0);
            assert_eq!(pager.pages.place(10), Place::Present);
            assert_eq!(pager.evict(), 1);
            assert!((0..3).all(|_| pager.compress_oldest()));
            for fault in faults {
                pager.uffd.miscounts.store(1, Ordering::Relaxed);
                assert_eq!(pager.serve(fault), Ok(Served::Done));
            }
            assert_eq!(pager.pages.present(), 3);
            assert_eq!(pager.ring.staged(), 0);
            // What is really there is no move.
            let (from, to) = (pager.program.address(10), pager.program.address(11));
            let done = pager.uffd.take(from, to, 1);
            assert_eq!(
                (done.pages, done.stopped),
                (1, None),
                "asked about a full slot"
            );
            let done = pager.uffd.bring(from, to, 1, Then::Wake);
            assert_eq!((done.pages, done.stopped), (0, Some(Errno::EXIST)));
        }
    }
}
