//! Answers to threads that wait for pages.

use std::time::Instant;

use rustix::io::Errno;
use uzram_pager::uffd::{Done, Then};

use crate::process;
use crate::space::Fault;
use crate::state::{AHEAD_MAX, Fatal, Server};
use crate::table::Place;
use crate::units::PAGE_BYTES;

/// The outcome of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    /// The kernel cannot, while the program changes its mappings, or for want of memory.
    Later,
}

impl Server {
    /// Answers all threads that wait.
    ///
    /// # Errors
    /// [`Fatal`]: a page is lost.
    pub(crate) fn answer_all(&mut self) -> Result<(), Fatal> {
        let waiting = self.spaces.values().map(|space| space.waiting.len());
        self.near.note_waiting(waiting.sum());
        let ids: Vec<u32> = self.spaces.keys().copied().collect();
        for id in ids {
            let Some(space) = self.spaces.get_mut(&id) else {
                continue;
            };
            if space.waiting.is_empty() {
                continue;
            }
            let begin = Instant::now();
            for fault in std::mem::take(&mut space.waiting) {
                self.make_room()?;
                let answer = self.answer(id, fault)?;
                if let (Answer::Later, Some(space)) = (answer, self.spaces.get_mut(&id)) {
                    space.waiting.push(fault);
                }
                self.near.answered(fault.thread);
            }
            self.statistics.waited_us += begin.elapsed().as_micros() as u64;
        }
        Ok(())
    }

    fn answer(&mut self, id: u32, fault: Fault) -> Result<Answer, Fatal> {
        let Some(space) = self.spaces.get_mut(&id) else {
            return Ok(Answer::Done);
        };
        let place = space.table.place(fault.address);
        let (expected, before) = space.ahead;
        let wanted = match (expected == fault.address, space.owner) {
            // A copy would replace a guard.
            (true, Some(owner)) => {
                process::pages_before_guard(owner, fault.address, (before * 2).min(AHEAD_MAX))
            }
            _ => 1,
        };
        match place {
            Place::Memory { .. } | Place::Zero | Place::Discarded => {
                self.give_zeroes(id, fault, wanted)
            }
            Place::Taken(_) | Place::Stored(_) => self.give_back(id, fault, wanted),
        }
    }

    fn give_zeroes(&mut self, id: u32, fault: Fault, wanted: usize) -> Result<Answer, Fatal> {
        static ZEROES: [u8; AHEAD_MAX * PAGE_BYTES] = [0; AHEAD_MAX * PAGE_BYTES];
        let Some(space) = self.spaces.get_mut(&id) else {
            return Ok(Answer::Done);
        };
        let address = |page: usize| fault.address + (page * PAGE_BYTES) as u64;
        let is_empty = |page: &usize| {
            let place = space.table.place(address(*page));
            let is_fresh = matches!(place, Place::Memory { .. } | Place::Zero | Place::Discarded);
            *page == 0 || (is_fresh && space.is_managed(address(*page)))
        };
        let pages = (0..wanted).take_while(is_empty).count();
        let way = self.near.give_way();
        let done = if fault.is_write {
            space
                .uffd
                .copy(&ZEROES[..pages * PAGE_BYTES], fault.address, Then::Wake)
        } else {
            space.uffd.zero(fault.address, pages)
        };
        drop(way);
        for page in 0..done.pages {
            space.table.came(address(page), 0);
        }
        space.ahead = (address(done.pages), done.pages.max(1));
        self.statistics.pages_fresh += done.pages as u64;
        if fault.is_write {
            self.grow(done.pages);
        }
        self.settle(id, fault, pages, done)
    }

    fn give_back(&mut self, id: u32, fault: Fault, wanted: usize) -> Result<Answer, Fatal> {
        let mut pages = 0;
        for page in self.ahead.chunks_exact_mut(PAGE_BYTES).take(wanted) {
            let address = fault.address + (pages * PAGE_BYTES) as u64;
            match self.spaces.get(&id).map(|space| space.table.place(address)) {
                Some(Place::Taken(slot)) => page.copy_from_slice(self.taken.page(slot)),
                Some(Place::Stored(object)) => {
                    let read = self.objects.get(object, page);
                    if let (Err(error), true) = (&read, pages == 0) {
                        return Err(Fatal(format!("a stored page is lost: {error}")));
                    }
                    if read.is_err() {
                        break;
                    }
                }
                _ => break,
            }
            pages += 1;
        }
        let Some(space) = self.spaces.get_mut(&id) else {
            return Ok(Answer::Done);
        };
        let way = self.near.give_way();
        let done = space
            .uffd
            .copy(&self.ahead[..pages * PAGE_BYTES], fault.address, Then::Wake);
        drop(way);
        let mut was = Vec::new();
        for page in 0..done.pages {
            let address = fault.address + (page * PAGE_BYTES) as u64;
            // Only the page that was touched has shown that it is worth sparing.
            was.push(space.table.came(address, u8::from(page == 0)));
        }
        let end = fault.address + (done.pages * PAGE_BYTES) as u64;
        space.ahead = (end, done.pages.max(1));
        was.into_iter().for_each(|place| self.release(place));
        self.statistics.pages_back += done.pages as u64;
        self.grow(done.pages);
        self.settle(id, fault, pages, done)
    }

    fn settle(&mut self, id: u32, fault: Fault, pages: usize, done: Done) -> Result<Answer, Fatal> {
        if done.pages > 0 {
            return Ok(Answer::Done);
        }
        match done.stopped {
            None => Ok(Answer::Done),
            Some(Errno::EXIST) => {
                // It came with another fault, or the program has not discarded it yet.
                if let Some(space) = self.spaces.get(&id) {
                    let _ = space.uffd.wake(fault.address, 1);
                }
                Ok(Answer::Done)
            }
            // The pages are of two mappings. The first alone is of one.
            Some(Errno::NOENT | Errno::INVAL) if pages > 1 => {
                if let Some(space) = self.spaces.get_mut(&id) {
                    space.ahead = (0, 0);
                }
                Ok(Answer::Later)
            }
            // Unmapped meanwhile, or the process has ended.
            Some(Errno::NOENT | Errno::SRCH) => {
                if let Some(space) = self.spaces.get(&id) {
                    let _ = space.uffd.wake(fault.address, 1);
                }
                Ok(Answer::Done)
            }
            Some(Errno::AGAIN | Errno::NOMEM) => {
                // The next turn reads the message that the program waits to see read.
                std::thread::yield_now();
                Ok(Answer::Later)
            }
            Some(errno) => Err(Fatal(format!(
                "the system does not let a page of {} come back: {errno}",
                self.name_of(id)
            ))),
        }
    }

    /// The name of the program that has space `id`, for messages.
    pub(crate) fn name_of(&self, id: u32) -> String {
        let owner = self.spaces.get(&id).and_then(|space| space.owner);
        match owner {
            Some(pid) => format!("{} ({pid})", process::name(pid)),
            None => "a process".into(),
        }
    }

    /// So many pages more are in memory.
    fn grow(&mut self, pages: usize) {
        self.statistics.used_bytes += (pages * PAGE_BYTES) as u64;
        self.statistics.peak_bytes = self.statistics.peak_bytes.max(self.statistics.used_bytes);
    }
}
