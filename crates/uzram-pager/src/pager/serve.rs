//! Answers to faults.
//!
//! Every answer leaves the page present, or its touch a SIGBUS, and wakes those that wait. Where the system moves no
//! page into a range (locked or write-protected memory) the page is copied.

use std::time::Instant;

use rustix::io::Errno;
use uzram::{PageIndex, Store};

use super::{AROUND_MAX, Answer, Fault, Pager, Place, Served};
use crate::handler::FaultHandler;
use crate::mapping::PAGE_BYTES;
use crate::near::Way;
use crate::plant::{Plant, is_planted};
use crate::statistics::add;
use crate::uffd::{Done, Then};

/// The content of fresh pages.
static ZEROES: [u8; AROUND_MAX * PAGE_BYTES] = [0; AROUND_MAX * PAGE_BYTES];

/// Memory for pages that come.
pub(super) enum Memory {
    /// Slots of the ring in a row, populated: the first, and how many.
    Slots(usize, usize),
    /// This many pages of new memory.
    New(usize),
    /// It comes when pages were written to the file.
    Awaited,
}

impl Pager {
    /// Answers a fault, if that is possible now.
    ///
    /// # Errors
    /// The system's, where it contradicts what this thread knows of the page.
    pub(super) fn serve(&mut self, fault: Fault) -> Result<Served, Errno> {
        let began = Instant::now();
        self.awaits_disk = false;
        let page = self.program.page_at(fault.address);
        let is_served = match page.filter(|page| *page < self.pages.count()) {
            Some(page) => self.serve_page(page, fault),
            // Moved by the program to where nobody knows what it was.
            None => self.mark(fault.address),
        }?;
        if !is_served {
            return Ok(match self.awaits_disk {
                true => Served::Awaited,
                false => Served::Later,
            });
        }
        self.starved = None;
        let passed = began.elapsed().as_nanos() as usize;
        add(&self.shared.counters.faults_ns, passed);
        if let Some(near) = &mut self.near {
            near.answered(fault.thread);
        }
        Ok(Served::Done)
    }

    /// The answer to a handler's question about a page that cannot be brought. Kernels that know of no failing memory give
    /// the touch of a marked page the same code as others.
    pub(super) fn answer_of_the_lost(&self, address: u64) -> Option<Answer> {
        let page = self.program.page_at(address)?;
        match self.pages.place(page) {
            // The range is plain memory now.
            Place::Fresh | Place::Present if self.has_ended => {
                Some(Answer::Served { calls: false })
            }
            Place::Fresh | Place::Present => None,
            _ if self.has_ended => Some(Answer::PassOn),
            Place::Staged(_) | Place::Stored => None,
            Place::Poisoned | Place::Gone => {
                let done = self.uffd.poison(self.program.address(page), 1);
                let is_blocked = done.stopped == Some(Errno::AGAIN);
                Some(if is_blocked {
                    Answer::Later
                } else {
                    Answer::PassOn
                })
            }
        }
    }

    fn serve_page(&mut self, page: usize, fault: Fault) -> Result<bool, Errno> {
        match self.pages.place(page) {
            Place::Fresh => self.serve_fresh(page, fault),
            Place::Staged(slot) => self.serve_staged(page, slot),
            Place::Stored if self.is_in_file(page) => self.serve_spilled(page, fault),
            Place::Stored => self.serve_stored(page, fault),
            Place::Present => self.serve_present(page),
            // Gone, and a fault there: the program has moved it away and back, or maps other memory there now. That one
            // is not ours, and the system refuses the mark.
            Place::Poisoned | Place::Gone => self.mark(self.program.address(page)),
        }
    }

    fn serve_fresh(&mut self, page: usize, fault: Fault) -> Result<bool, Errno> {
        let window = self.around.want(fault.thread, page);
        let count = match window.stride {
            1 => self.pages.alike(page, window),
            // Memory that nobody has asked for yet.
            _ => 1,
        };
        let to = self.program.address(page);
        let mut done = match self.memory(count) {
            Memory::Slots(first, count) => {
                (first..first + count).for_each(|slot| self.ring.bytes(slot).fill(0));
                self.bring_slots(first, count, page, Then::Wake)
            }
            Memory::New(count) => self.new_zeroes(to, count, fault.is_write),
            Memory::Awaited => LATER,
        };
        if was_refused(done) {
            done = self.new_zeroes(to, 1, fault.is_write);
        }
        self.arrived(page, done.pages);
        add(&self.shared.counters.faults_fresh, done.pages.min(1));
        let stride = window.stride;
        self.around.brought(fault.thread, page, stride, done.pages);
        match done.stopped {
            // The program has discarded the page, and the system has not dropped it yet. It must not count as present
            // before: an eviction would save the old bytes from being dropped.
            Some(Errno::EXIST) if done.pages == 0 => self.repeat(page),
            _ => self.finish(page, done),
        }
    }

    fn new_zeroes(&self, to: u64, count: usize, is_write: bool) -> Done {
        let _way = self.give_way(Then::Wake, count);
        match is_write {
            true => {
                let zeroes = &ZEROES[..count * PAGE_BYTES];
                self.uffd.copy(zeroes, to, Then::Wake)
            }
            false => self.uffd.zero(to, count),
        }
    }

    fn serve_staged(&mut self, page: usize, slot: usize) -> Result<bool, Errno> {
        let to = self.program.address(page);
        let from = self.ring.address(slot);
        let way = self.give_way(Then::Wake, 1);
        let mut done = self.uffd.bring(from, to, 1, Then::Wake);
        drop(way);
        if done.stopped.is_none() {
            self.ring.moved_out(slot);
        } else if was_refused(done) {
            done = self.uffd.copy(self.ring.bytes(slot), to, Then::Wake);
            if done.stopped.is_none() {
                self.ring.unstage(slot);
            }
        }
        if done.pages == 1 {
            self.pages.put(page, Place::Present);
            add(&self.shared.counters.faults_staged, 1);
            return Ok(true);
        }
        self.finish(page, done)
    }

    pub(super) fn serve_stored(&mut self, page: usize, fault: Fault) -> Result<bool, Errno> {
        let window = self.around.want(fault.thread, page);
        let count = self.pages.alike(page, window);
        // Who waits runs on when all have come: woken before, the thread would wait for the next at once.
        let then = match count {
            1 => Then::Wake,
            _ => Then::Wait,
        };
        let written = fault.is_write.then_some(page);
        let mut brought = 0;
        let mut last = Done {
            pages: 0,
            stopped: None,
        };
        while brought < count && last.stopped.is_none() {
            // Only the page that is waited for may cost an eviction.
            if brought > 0 && self.at_hand() == 0 {
                break;
            }
            let Some(next) = window.page(page, brought) else {
                break;
            };
            let in_a_row = match window.stride {
                1 => count - brought,
                _ => 1,
            };
            last = self.bring_stored(next, in_a_row, then, written);
            if last.pages == 0 {
                break;
            }
            brought += last.pages;
        }
        let stride = window.stride;
        self.around.brought(fault.thread, page, stride, brought);
        if brought > 0 {
            add(&self.shared.counters.faults_stored, 1);
            add(&self.shared.counters.pages_in, brought);
            return match then {
                Then::Wake => Ok(true),
                Then::Wait => self.wake(page),
            };
        }
        self.finish(page, last)
    }

    /// Brings pages from the store, from `page` on and `most` at most, as far as there is memory in a row.
    /// `written` is the page that a write has touched.
    fn bring_stored(
        &mut self,
        page: usize,
        most: usize,
        then: Then,
        written: Option<usize>,
    ) -> Done {
        let to = self.program.address(page);
        let mut done = match self.memory(most) {
            Memory::Slots(first, count) => {
                let (mut read, mut stopped) = (0, None);
                while read < count && stopped.is_none() {
                    stopped = read_stored(&self.store, page + read, self.ring.bytes(first + read));
                    read += usize::from(stopped.is_none());
                }
                (first + read..first + count).for_each(|slot| self.ring.give(slot));
                if is_planted(Plant::ForgetFirst) {
                    (page..page + read).for_each(|page| self.forget(page));
                }
                match stopped.filter(|_| read == 0) {
                    Some(none) => none,
                    None => self.bring_slots(first, read, page, then),
                }
            }
            Memory::New(count) => self.copy_stored(page, count, to, then),
            Memory::Awaited => LATER,
        };
        if was_refused(done) {
            done = self.copy_stored(page, 1, to, then);
        }
        self.arrived(page, done.pages);
        for page in page..page + done.pages {
            self.keep_copy_or_forget(page, written == Some(page));
        }
        done
    }

    fn copy_stored(&mut self, page: usize, count: usize, to: u64, then: Then) -> Done {
        let (mut read, mut stopped) = (0, None);
        while read < count && stopped.is_none() {
            let bytes = &mut self.scratch[read * PAGE_BYTES..][..PAGE_BYTES];
            stopped = read_stored(&self.store, page + read, bytes);
            read += usize::from(stopped.is_none());
        }
        match stopped.filter(|_| read == 0) {
            Some(none) => none,
            None => {
                let bytes = &self.scratch[..read * PAGE_BYTES];
                let _way = self.give_way(then, read);
                self.uffd.copy(bytes, to, then)
            }
        }
    }

    /// Moves slots that were taken to `page` and the pages behind it. Slots that stay behind are free again.
    pub(super) fn bring_slots(
        &mut self,
        first: usize,
        count: usize,
        page: usize,
        then: Then,
    ) -> Done {
        let to = self.program.address(page);
        let way = self.give_way(then, count);
        let done = self.uffd.bring(self.ring.address(first), to, count, then);
        drop(way);
        for slot in first..first + count {
            match slot < first + done.pages {
                true => self.ring.moved_out(slot),
                false => self.ring.give(slot),
            }
        }
        done
    }

    /// A thread that is woken for one page runs on at once. One with pages ahead takes its time, in which the pager gets memory for more.
    fn give_way(&self, then: Then, pages: usize) -> Option<Way> {
        match (then, pages) {
            (Then::Wake, 1) => self.near.as_ref()?.give_way(),
            _ => None,
        }
    }

    /// A second touch of a page that was just brought, or one of a page that is gone without a message.
    fn serve_present(&mut self, page: usize) -> Result<bool, Errno> {
        if self.pages.was_discarded(page) {
            let done = self.uffd.zero(self.program.address(page), 1);
            return match done.stopped {
                None => Ok(true),
                Some(Errno::EXIST) => self.repeat(page),
                Some(Errno::AGAIN) => Ok(false),
                Some(errno) => Err(errno),
            };
        }
        let done = self.uffd.poison(self.program.address(page), 1);
        match done.stopped {
            Some(Errno::EXIST) => self.repeat(page),
            Some(Errno::AGAIN) => Ok(false),
            None => {
                self.lose(page);
                Ok(true)
            }
            Some(errno) => Err(errno),
        }
    }

    /// Notes that a page is marked. What is left of it is of no use.
    pub(super) fn lose(&mut self, page: usize) {
        self.drop_kept(page);
        self.pages.put(page, Place::Poisoned);
        add(&self.shared.counters.pages_poisoned, 1);
    }

    /// Handles the outcome of an attempt to bring `page` and some behind it.
    pub(super) fn finish(&mut self, page: usize, done: Done) -> Result<bool, Errno> {
        match done.stopped {
            _ if done.pages > 0 => Ok(true),
            None => Ok(true),
            Some(Errno::AGAIN) => Ok(false),
            // Its bytes are where they were, so memory is waited for.
            Some(Errno::NOMEM) if !self.is_starved() => Ok(false),
            // The stored object is damaged, or there was no memory for the page all that time.
            Some(Errno::IO | Errno::NOMEM) => {
                let is_marked = self.mark(self.program.address(page))?;
                if is_marked {
                    self.lose(page);
                }
                Ok(is_marked)
            }
            Some(errno) => Err(errno),
        }
    }

    /// Makes the touch of an address a SIGBUS.
    fn mark(&mut self, address: u64) -> Result<bool, Errno> {
        let address = address & !(PAGE_BYTES as u64 - 1);
        match self.uffd.poison(address, 1).stopped {
            None => Ok(true),
            Some(Errno::AGAIN) => Ok(false),
            Some(Errno::EXIST | Errno::NOENT) => self.uffd.wake(address, 1).map(|()| true),
            Some(errno) => Err(errno),
        }
    }

    /// The page is there already.
    fn repeat(&mut self, page: usize) -> Result<bool, Errno> {
        add(&self.shared.counters.faults_repeated, 1);
        self.wake(page)
    }

    /// Lets those that wait for `page` try again.
    fn wake(&self, page: usize) -> Result<bool, Errno> {
        if self.handler == FaultHandler::FaultingThread {
            // Nobody waits.
            return Ok(true);
        }
        match self.uffd.wake(self.program.address(page), 1) {
            // Unmapped: nobody waits there.
            Ok(()) | Err(Errno::NOENT | Errno::INVAL) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// Memory for 1 to `most` pages: what is at hand, else new within the budget, else by eviction, else beyond it.
    pub(super) fn memory(&mut self, most: usize) -> Memory {
        if let Some((first, count)) = self.ring.take_free(most) {
            return Memory::Slots(first, count);
        }
        let room = self.budget.pages.saturating_sub(self.resident());
        if room > 0 {
            return Memory::New(room.min(most));
        }
        self.is_blocked = false;
        self.make_free();
        match self.ring.take_free(most) {
            Some((first, count)) => Memory::Slots(first, count),
            None if !self.is_blocked && self.awaits_a_write() => Memory::Awaited,
            None => {
                // If the system moves nothing at the moment, it will not take a new page either.
                let over = usize::from(!self.is_blocked);
                add(&self.shared.counters.pages_over_budget, over);
                Memory::New(1)
            }
        }
    }

    fn arrived(&mut self, page: usize, count: usize) {
        for page in page..page + count {
            self.pages.put(page, Place::Present);
        }
    }

    /// Drops the compressed form of a page.
    pub(super) fn forget(&mut self, page: usize) {
        // It fails for pages outside of the store only.
        let _ = self.store.trim(index(page));
        self.note_forgotten(page);
        self.changes += 1;
    }
}

/// Whether the system takes no moved pages there (locked or write-protected memory), or not as many at once: the
/// program has made the range several mappings. A copy of one page may do.
pub(super) fn was_refused(done: Done) -> bool {
    done.pages == 0
        && matches!(
            done.stopped,
            Some(Errno::INVAL | Errno::NOENT | Errno::BUSY)
        )
}

/// The answer where the fault is tried again.
pub(super) const LATER: Done = Done {
    pages: 0,
    stopped: Some(Errno::AGAIN),
};

/// The answer for a page that the store cannot read.
pub(super) const UNREADABLE: Done = Done {
    pages: 0,
    stopped: Some(Errno::IO),
};

/// Reads a stored page. The answer if that is not possible.
fn read_stored(store: &Store, page: usize, bytes: &mut [u8]) -> Option<Done> {
    match store.read_resident(index(page), bytes) {
        Ok(true) => None,
        // It has just gone to the file.
        Ok(false) => Some(LATER),
        Err(_) => Some(UNREADABLE),
    }
}

pub(super) fn index(page: usize) -> PageIndex {
    PageIndex(page as u64)
}
