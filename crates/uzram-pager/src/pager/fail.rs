//! The end after a failure: what is lost becomes a SIGBUS before the descriptor closes.

use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::Errno;

use super::{Pager, Place, STARVED_MAX};
use crate::mapping::PAGE_BYTES;
use crate::uffd::{Done, MESSAGES_MAX, Message, Then};

impl Pager {
    /// Makes what is lost a SIGBUS. If the system refuses even that, the process must end: a touch would read zeroes.
    pub(crate) fn give_up(&mut self) {
        self.shared
            .counters
            .has_failed
            .store(true, Ordering::Release);
        self.starved = None;
        // A part that the program moves meanwhile is marked where it is then.
        loop {
            for page in 0..self.pages.count() {
                self.until_done(|pager| pager.save_or_poison(page));
            }
            for (start, end) in self.moved.ranges().to_vec() {
                for address in (start..end).step_by(PAGE_BYTES) {
                    self.until_done(|pager| pager.is_settled(pager.uffd.poison(address, 1)));
                }
            }
            // The system marks the bell, and nothing else, only if it has told all changes that were under way before.
            let bell = self.program.address(self.pages.count());
            let ranges = self.moved.ranges().to_vec();
            self.until_done(|pager| pager.is_settled(pager.uffd.poison(bell, 1)));
            if self.moved.ranges() == ranges {
                break;
            }
        }
        self.tell();
    }

    fn until_done(&mut self, mut attempt: impl FnMut(&mut Pager) -> bool) {
        let mut messages = Vec::with_capacity(MESSAGES_MAX);
        while !attempt(self) {
            // A change of mappings under way: its message must be read, and its thread run on.
            if self.uffd.read(&mut messages, false).is_err() {
                std::process::abort();
            }
            for message in messages.drain(..) {
                self.note_dropped(message);
            }
            std::thread::yield_now();
        }
    }

    /// Moves a page that waits in the ring back, and marks one that is elsewhere. False: try again.
    fn save_or_poison(&mut self, page: usize) -> bool {
        let address = self.program.address(page);
        match self.pages.place(page) {
            Place::Fresh | Place::Gone => true,
            Place::Staged(slot) => self.save(page, slot),
            Place::Present if self.pages.was_discarded(page) => true,
            // A page that is present stays: it cannot be poisoned.
            Place::Present | Place::Stored | Place::Poisoned => {
                let done = self.uffd.poison(address, 1);
                self.is_settled(done)
            }
        }
    }

    fn save(&mut self, page: usize, slot: usize) -> bool {
        let (address, from) = (self.program.address(page), self.ring.address(slot));
        let mut done = self.uffd.bring(from, address, 1, Then::Wake);
        if !matches!(done.stopped, None | Some(Errno::AGAIN | Errno::NOMEM)) {
            // Locked or write-protected memory takes a copy.
            done = self.uffd.copy(self.ring.bytes(slot), address, Then::Wake);
        }
        match done.stopped {
            // Its bytes are here, so memory is waited for.
            Some(Errno::NOMEM) if !self.is_starved() => false,
            Some(Errno::AGAIN) => false,
            None => {
                self.ring.moved_out(slot);
                self.pages.put(page, Place::Present);
                true
            }
            Some(_) => {
                let done = self.uffd.poison(address, 1);
                self.is_settled(done)
            }
        }
    }

    fn is_settled(&self, done: Done) -> bool {
        match done.stopped {
            None | Some(Errno::EXIST) => true,
            Some(Errno::AGAIN) => false,
            // No longer ours: unmapped, and the message not read yet.
            Some(Errno::NOENT) => true,
            Some(_) => std::process::abort(),
        }
    }

    /// Whether the system has had no memory for a page that is waited for, for as long as that is tried.
    pub(super) fn is_starved(&mut self) -> bool {
        let since = *self.starved.get_or_insert_with(Instant::now);
        since.elapsed() > STARVED_MAX
    }

    fn note_dropped(&mut self, message: Message) {
        self.moved.note(message);
        match message {
            Message::Removed { start, end } => self
                .pages_of(start, end)
                .for_each(|page| self.pages.discard(page)),
            Message::Unmapped { start, end } | Message::Moved { start, end, .. } => self
                .pages_of(start, end)
                .for_each(|page| self.pages.put(page, Place::Gone)),
            Message::Fault { .. } | Message::Forked { .. } => {}
        }
    }
}
