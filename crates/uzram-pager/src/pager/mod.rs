//! The pager: one thread that brings pages and evicts them.
//!
//! Because one thread does both, nothing can happen between compressing a page and serving a fault on it, and there are
//! no locks. Faults come first. Between them the thread evicts in small steps and looks for faults after each.
//!
//! A page is in the program's memory, in the ring or in the store, and leaves a place only after it is in the next. When
//! the thread fails, it makes touches of all pages that are not in the program's memory a SIGBUS before its descriptor
//! closes: afterwards the system would show zeroes in their place.

mod around;
mod evict;
mod fail;
mod follow;
mod moved;
mod pages;
mod ring;
mod serve;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use uzram::{Error, ErrorKind, Result, Store};

use crate::alone::isolate;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::plant::{Plant, is_planted};
use crate::statistics::{Counters, set};
use crate::uffd::{MESSAGES_MAX, Message, Uffd};
use around::{AROUND_MAX, Around};
use follow::Follow;
use moved::Moved;
use pages::{Pages, Place};
use ring::Ring;

/// Fewest pages of a budget: the ring's, and those that one instruction or system call needs at once.
pub(crate) const BUDGET_PAGES_MIN: usize = 64;

/// Most slots of the ring, and fewest. Their pages are part of the budget.
const SLOTS_MAX: usize = 512;
const SLOTS_MIN: usize = 32;
/// The ring's share of the budget, as a divisor.
const SLOTS_PART: usize = 8;

/// How long a thread waits for a page that the system has no memory for, and from one attempt to the next.
const STARVED_MAX: Duration = Duration::from_secs(10);
const STARVED_PAUSE: Duration = Duration::from_millis(1);

/// State that the pager shares with the program's threads.
#[derive(Debug)]
pub(crate) struct Shared {
    pub counters: Counters,
    /// In pages.
    pub budget: AtomicUsize,
    pub is_ending: AtomicBool,
}

/// The thread's state. The descriptor is closed first: unmapping the ring before would wait for this very thread.
pub(crate) struct Pager {
    uffd: Uffd,
    ring: Ring,
    program: Arc<Mapping>,
    pages: Pages,
    store: Arc<Store>,
    shared: Arc<Shared>,
    around: Around,
    follow: Follow,
    budget: Budget,
    /// Where the program has moved parts of its range.
    moved: Moved,
    /// Since when the system has no memory for a page that is waited for.
    starved: Option<Instant>,
    /// The system moves nothing at the moment, because the program changes its mappings.
    is_blocked: bool,
    /// Pages that the store took or dropped since it was maintained.
    changes: usize,
    /// Where pages are decompressed that are copied and not moved.
    scratch: Box<[u8]>,
}

/// A thread that waits for a page.
#[derive(Clone, Copy, Debug)]
struct Fault {
    address: u64,
    is_write: bool,
    thread: u32,
}

/// How many pages may be where.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// In the program's memory and the ring together.
    pages: usize,
    /// Pages that wait in the ring, so that a touch can move them back.
    staged: usize,
    /// Pages that can be brought without an eviction: below `low` it begins, at `high` it ends.
    low: usize,
    high: usize,
    is_refilling: bool,
}

impl Budget {
    fn new(pages: usize, slots: usize) -> Budget {
        let slots = slots.min(pages / SLOTS_PART).max(SLOTS_MIN);
        Budget {
            pages,
            staged: slots / 2,
            low: slots / 8,
            high: slots / 4,
            is_refilling: false,
        }
    }
}

impl Pager {
    /// Begins to serve all pages of `program` but the last, which is the bell: discarding it wakes the pager. Call it on
    /// the pager's own thread.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with what the system does not offer or permit, [`ErrorKind::NoMemory`].
    pub(crate) fn new(
        program: Arc<Mapping>,
        store: Arc<Store>,
        shared: Arc<Shared>,
    ) -> Result<Pager> {
        let refused = |errno: Errno| {
            let text = "the system does not let a thread serve memory; use Linux 6.8 or newer";
            Error::new(ErrorKind::Unsupported, text).with_source(errno)
        };
        isolate().map_err(refused)?;
        let count = program.pages() - 1;
        let slots = (count / SLOTS_PART).clamp(SLOTS_MIN, SLOTS_MAX);
        let pager = Pager {
            uffd: Uffd::open()?,
            ring: Ring::new(slots)?,
            pages: Pages::new(count)?,
            around: Around::default(),
            follow: Follow::new(),
            budget: Budget::new(shared.budget.load(Ordering::Relaxed), slots),
            moved: Moved::default(),
            starved: None,
            is_blocked: false,
            changes: 0,
            scratch: vec![0; AROUND_MAX * PAGE_BYTES].into(),
            program,
            store,
            shared,
        };
        pager.uffd.register(pager.ring.memory()).map_err(refused)?;
        pager.uffd.register(&pager.program).map_err(refused)?;
        Ok(pager)
    }

    /// Serves until told to end. After a failure no page of the program reads as zeroes that is not zero.
    pub(crate) fn run(mut self) {
        let served = std::panic::catch_unwind(AssertUnwindSafe(|| self.serve_until_the_end()));
        if !matches!(served, Ok(Ok(()))) {
            self.give_up();
        }
    }

    fn serve_until_the_end(&mut self) -> Result<(), Errno> {
        let mut messages = Vec::with_capacity(MESSAGES_MAX);
        let mut later: Vec<Fault> = Vec::new();
        let mut is_idle = true;
        loop {
            if is_idle && later.is_empty() {
                self.uffd.wait()?;
            }
            self.uffd.read(&mut messages)?;
            if self.shared.is_ending.load(Ordering::Acquire) {
                return Ok(());
            }
            self.take_over_budget();
            if !messages.is_empty() && is_planted(Plant::FaultsFirst) {
                self.evict();
            }
            for message in &messages {
                self.take_message(*message, &mut later)?;
            }
            if !later.is_empty() {
                self.try_again(&mut later)?;
            } else if messages.is_empty() {
                is_idle = !self.step()?;
            } else {
                is_idle = false;
            }
            self.tell();
        }
    }

    fn take_message(&mut self, message: Message, later: &mut Vec<Fault>) -> Result<(), Errno> {
        match message {
            Message::Fault {
                address,
                is_write,
                thread,
            } => {
                let fault = Fault {
                    address,
                    is_write,
                    thread,
                };
                if !self.serve(fault)? && !is_planted(Plant::LaterDropped) {
                    later.push(fault);
                }
            }
            Message::Removed { start, end } => {
                let stays = is_planted(Plant::DiscardedStays);
                self.drop_pages(start, end, |pages, page| {
                    if !(stays && pages.place(page) == Place::Present) {
                        pages.discard(page);
                    }
                });
            }
            Message::Unmapped { .. } | Message::Moved { .. }
                if is_planted(Plant::UnmappedStays) => {}
            Message::Unmapped { start, end } | Message::Moved { start, end, .. } => {
                self.moved.note(message);
                self.drop_pages(start, end, |pages, page| {
                    pages.put(page, Place::Gone);
                });
            }
        }
        Ok(())
    }

    /// The system answers no fault while the program changes its mappings. The thread that does so must run on first.
    fn try_again(&mut self, later: &mut Vec<Fault>) -> Result<(), Errno> {
        match self.starved {
            Some(_) => std::thread::sleep(STARVED_PAUSE),
            None => std::thread::yield_now(),
        }
        let mut failed = None;
        later.retain(|fault| match self.serve(*fault) {
            Ok(is_served) => !is_served,
            Err(errno) => {
                failed = Some(errno);
                true
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Forgets the content of the pages in a range of addresses, and lets `note` say what they are now.
    ///
    /// The system drops what is present after the message was read. So a page that is present counts as fresh from now
    /// on: evicting it would keep bytes that the program has discarded.
    fn drop_pages(&mut self, start: u64, end: u64, note: impl Fn(&mut Pages, usize)) {
        for page in self.pages_of(start, end) {
            match self.pages.place(page) {
                Place::Staged(slot) => self.ring.unstage(slot),
                Place::Stored => self.forget(page),
                Place::Gone => continue,
                Place::Fresh | Place::Present | Place::Poisoned => {}
            }
            note(&mut self.pages, page);
        }
    }

    /// The program's pages in a range of addresses.
    fn pages_of(&self, start: u64, end: u64) -> std::ops::Range<usize> {
        let base = self.program.address(0);
        let page = |address: u64| (address.saturating_sub(base) as usize) / PAGE_BYTES;
        let count = self.pages.count();
        page(start).min(count)..page(end).min(count)
    }

    fn take_over_budget(&mut self) {
        let pages = self.shared.budget.load(Ordering::Relaxed);
        if pages != self.budget.pages {
            self.budget = Budget::new(pages, self.ring.count());
        }
    }

    /// Pages that are not compressed.
    fn resident(&self) -> usize {
        self.pages.present() + self.ring.staged() + self.ring.free()
    }

    fn tell(&self) {
        let counters = &self.shared.counters;
        set(&counters.present, self.pages.present() as u64);
        set(&counters.staged, self.ring.staged() as u64);
        set(&counters.free, self.ring.free() as u64);
    }
}
