//! The pager brings pages and evicts them.
//!
//! One thread at a time has it (`turns.rs`), so nothing can happen between compressing a page and serving a fault on it.
//! Faults come first. Between them the pager's thread evicts in small steps and looks for faults after each.
//!
//! A page is in the program's memory, in the ring or in the store, and leaves a place only after it is in the next. When
//! the thread fails, it makes touches of all pages that are not in the program's memory a SIGBUS before its descriptor
//! closes: afterwards the system would show zeroes in their place.

mod around;
mod copies;
mod disk;
mod evict;
mod fail;
mod moved;
mod order;
mod pages;
mod ring;
mod serve;
mod spilled;
mod unchanged;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use uzram::{Error, ErrorKind, Result, Store};

use crate::handler::FaultHandler;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::near::Near;
use crate::plant::{Plant, is_planted};
use crate::spill::Disk;
use crate::statistics::{Counters, set};
use crate::uffd::{MESSAGES_MAX, Message, Uffd};
use around::{AROUND_MAX, Around};
use copies::Copies;
use moved::Moved;
use pages::{Pages, Place};
use ring::Ring;
use spilled::Spilled;

/// Fewest pages of a budget: the ring's, and those that one instruction or system call needs at once.
pub(crate) const BUDGET_PAGES_MIN: usize = 64;

/// Most slots of the ring, and fewest. Their pages are part of the budget.
const SLOTS_MAX: usize = 512;
const SLOTS_MIN: usize = 32;
/// The ring's share of the budget, as a divisor.
const SLOTS_PART: usize = 8;

/// How long a thread waits for a page that the system has no memory for, and from one attempt to the next.
const STARVED_MAX: Duration = Duration::from_secs(10);
pub(crate) const STARVED_PAUSE: Duration = Duration::from_millis(1);

/// State that the pager shares with the program's threads.
#[derive(Debug)]
pub(crate) struct Shared {
    pub counters: Counters,
    /// In pages.
    pub budget: AtomicUsize,
    /// Every discard has ended, and nobody has begun another.
    pub is_settled: AtomicBool,
    pub is_ending: AtomicBool,
    /// Nobody discards or rings any more.
    pub is_quiet: AtomicBool,
}

/// The state of the service.
#[derive(Debug)]
pub(crate) struct Pager {
    uffd: Arc<Uffd>,
    handler: FaultHandler,
    ring: Ring,
    program: Arc<Mapping>,
    pages: Pages,
    store: Arc<Store>,
    shared: Arc<Shared>,
    around: Around,
    /// None where handlers answer: they are the threads that fault.
    near: Option<Near>,
    budget: Budget,
    /// Where the program has moved parts of its range.
    moved: Moved,
    /// Since when the system has no memory for a page that is waited for.
    starved: Option<Instant>,
    /// The system moves nothing at the moment, because the program changes its mappings.
    is_blocked: bool,
    /// Pages that the store took or dropped since it was maintained.
    changes: usize,
    /// A handler has called the pager's thread to maintain the store.
    is_called: bool,
    messages: Vec<Message>,
    /// Faults that could not be answered yet, and those that wait for the disk. Where handlers answer there are none.
    later: Vec<Fault>,
    awaited: Vec<Fault>,
    /// The fault that is being served waits for the disk.
    awaits_disk: bool,
    copies: Copies,
    /// Pages that go to a file.
    spilled: Option<Spilled>,
    has_ended: bool,
    /// Where pages are decompressed that are copied and not moved.
    scratch: Box<[u8]>,
}

/// A thread that waits for a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub address: u64,
    pub is_write: bool,
    pub thread: u32,
}

/// The outcome of an attempt to answer a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    Done,
    /// The system answers none at the moment.
    Later,
    /// The disk is waited for.
    Awaited,
}

/// The task of the pager's thread after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// To wait for a message.
    Idle,
    Busy,
    /// To let others run: the system moves nothing at the moment.
    Blocked,
    /// To maintain the store, which needs no turn.
    Maintain,
    End,
}

/// The task of a thread that has asked for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// To try its touch again; before, to call the pager's thread, perhaps.
    Served { calls: bool },
    /// To ask again: the system moves nothing at the moment.
    Later,
    /// To ask again when the system may have memory.
    NoMemory,
    /// To ask again when the disk may have answered.
    Disk,
    /// To let another handler see the signal: the page is lost, or the program has mapped other memory there.
    PassOn,
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
    /// Begins to serve all pages of `program` but the last, which is the bell: discarding it wakes the pager.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with what the system does not offer or permit, [`ErrorKind::NoMemory`].
    pub(crate) fn new(
        uffd: Arc<Uffd>,
        handler: FaultHandler,
        program: Arc<Mapping>,
        store: Arc<Store>,
        shared: Arc<Shared>,
        disk: Option<Arc<Disk>>,
    ) -> Result<Pager> {
        let count = program.pages() - 1;
        let slots = (count / SLOTS_PART).clamp(SLOTS_MIN, SLOTS_MAX);
        let spilled = disk.map(|disk| Spilled::new(disk, count)).transpose()?;
        let pager = Pager {
            uffd,
            handler,
            ring: Ring::new(slots)?,
            pages: Pages::new(count)?,
            around: Around::default(),
            near: (handler == FaultHandler::OwnThread).then(|| Near::new("/proc/self/task")),
            budget: Budget::new(shared.budget.load(Ordering::Relaxed), slots),
            moved: Moved::default(),
            starved: None,
            is_blocked: false,
            changes: 0,
            is_called: false,
            messages: Vec::with_capacity(MESSAGES_MAX),
            later: Vec::new(),
            awaited: Vec::new(),
            awaits_disk: false,
            copies: Copies::new(),
            spilled,
            has_ended: false,
            scratch: vec![0; AROUND_MAX * PAGE_BYTES].into(),
            program,
            store,
            shared,
        };
        let both = [pager.ring.memory(), &pager.program];
        for mapping in both {
            pager.uffd.register(mapping.address(0), mapping.address(mapping.pages())).map_err(|errno| {
                let text =
                    "the system does not let compressed memory be served; use Linux 6.8 or newer";
                Error::new(ErrorKind::Unsupported, text).with_source(errno)
            })?;
        }
        Ok(pager)
    }

    /// The turn of the pager's thread: messages that are there, else a small part of other work. If it `waits`, it waits for
    /// a message first, which it may where nobody else has turns.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn turn(&mut self, waits: bool) -> Result<Turn, Errno> {
        // Before messages are read: of what is settled here the messages came in an earlier turn.
        self.forget_discards();
        let mut messages = std::mem::take(&mut self.messages);
        self.uffd.read(&mut messages, waits)?;
        if self.shared.is_ending.load(Ordering::Acquire) {
            return Ok(Turn::End);
        }
        self.take_over_budget();
        if !messages.is_empty() && is_planted(Plant::FaultsFirst) {
            self.evict();
        }
        if let Some(near) = &mut self.near {
            near.note_waiting(messages.len());
        }
        for message in &messages {
            self.take_message(*message)?;
        }
        self.take_news()?;
        self.hand_over(false);
        let next = if !self.later.is_empty() {
            self.try_again()?;
            Turn::Busy
        } else if messages.is_empty() {
            self.step()?
        } else if self.is_at_rest() {
            Turn::Idle
        } else {
            Turn::Busy
        };
        self.messages = messages;
        self.tell();
        Ok(next)
    }

    /// The turn of a thread that has asked for a page. It evicts as much as it got: nobody else is woken for that.
    ///
    /// # Errors
    /// The system's: of a descriptor that the program has closed, and others that leave no answer.
    pub(crate) fn answer(&mut self, fault: Fault) -> Result<Answer, Errno> {
        if self.uffd.is_another() {
            return Err(Errno::BADF);
        }
        self.forget_discards();
        self.take_over_budget();
        if let Some(answer) = self.answer_of_the_lost(fault.address) {
            return Ok(answer);
        }
        let before = self.at_hand();
        match self.serve(fault)? {
            Served::Done => {}
            Served::Awaited => return Ok(Answer::Disk),
            Served::Later if self.starved.is_some() => return Ok(Answer::NoMemory),
            Served::Later => return Ok(Answer::Later),
        }
        let brought = before.saturating_sub(self.at_hand());
        // One more than came: so the stock grows while it is low.
        for _ in 0..=brought {
            if !self.reclaim()? {
                break;
            }
        }
        self.hand_over(false);
        self.tell();
        let calls = self.wants_maintenance() && !self.is_called;
        self.is_called |= calls;
        Ok(Answer::Served { calls })
    }

    /// Notes that the store has been maintained.
    pub(crate) fn maintained(&mut self) {
        self.changes = 0;
        self.is_called = false;
        self.hand_over(true);
    }

    /// Ends the service. A copy of the descriptor in a child of the program would keep the ranges registered, and unmapping
    /// them would wait for ever.
    pub(crate) fn end(&mut self) {
        let handler_answers = self.handler == FaultHandler::FaultingThread;
        if self.has_ended || handler_answers && is_planted(Plant::StaysRegistered) {
            return;
        }
        self.has_ended = true;
        let count = self.pages.count();
        let mut page = 0;
        // What is gone may be other memory, whose range the system may refuse to look at.
        while page <= count {
            let is_ours = |page: usize| page == count || self.pages.place(page) != Place::Gone;
            let ours = (page..=count).take_while(|page| is_ours(*page)).count();
            let (start, end) = (
                self.program.address(page),
                self.program.address(page + ours),
            );
            if ours > 0 {
                let _ = self.uffd.unregister(start, end);
            }
            page += ours + 1;
        }
        for (start, end) in self.moved.ranges() {
            let _ = self.uffd.unregister(*start, *end);
        }
        let ring = self.ring.memory();
        let _ = self
            .uffd
            .unregister(ring.address(0), ring.address(ring.pages()));
    }

    /// Reads the messages that came too late for the service. True: there will be no more.
    pub(crate) fn read_the_rest(&mut self) -> bool {
        let is_quiet = self.shared.is_quiet.load(Ordering::Acquire);
        is_quiet || self.uffd.read(&mut self.messages, false).is_err()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn take_message(&mut self, message: Message) -> Result<(), Errno> {
        match message {
            Message::Fault {
                address,
                is_write,
                thread,
            } => {
                self.take_fault(Fault {
                    address,
                    is_write,
                    thread,
                })?;
            }
            Message::Removed { start, end } => {
                let stays = is_planted(Plant::DiscardedStays);
                self.drop_pages(start, end, |pages, page| {
                    if !(stays && pages.place(page) == Place::Present) {
                        pages.discard(page);
                    }
                });
            }
            // This descriptor does not ask for news of children: the range is not theirs.
            Message::Forked { .. } => {}
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

    fn take_fault(&mut self, fault: Fault) -> Result<(), Errno> {
        match self.serve(fault)? {
            Served::Done => {}
            Served::Later if is_planted(Plant::LaterDropped) => {}
            Served::Later => self.later.push(fault),
            Served::Awaited => self.awaited.push(fault),
        }
        Ok(())
    }

    /// The system answers no fault while the program changes its mappings. The thread that does so must run on first.
    fn try_again(&mut self) -> Result<(), Errno> {
        match self.starved {
            Some(_) => std::thread::sleep(STARVED_PAUSE),
            None => std::thread::yield_now(),
        }
        for fault in std::mem::take(&mut self.later) {
            self.take_fault(fault)?;
        }
        Ok(())
    }

    /// Forgets the content of the pages in a range of addresses, and lets `note` say what they are now.
    ///
    /// The system drops what is present after the message was read. So a page that is present counts as fresh from now
    /// on: evicting it would keep bytes that the program has discarded.
    fn drop_pages(&mut self, start: u64, end: u64, note: impl Fn(&mut Pages, usize)) {
        for page in self.pages_of(start, end) {
            if self.pages.place(page) != Place::Gone {
                self.drop_kept(page);
                note(&mut self.pages, page);
            }
        }
    }

    /// Drops what the ring and the store have of a page.
    fn drop_kept(&mut self, page: usize) {
        self.drop_copy(page);
        match self.pages.place(page) {
            Place::Staged(slot) => self.ring.unstage(slot),
            Place::Stored => self.forget(page),
            Place::Fresh | Place::Present | Place::Poisoned | Place::Gone => {}
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

    /// Whoever has discarded says when the system has dropped all of it.
    fn forget_discards(&mut self) {
        if self.shared.is_settled.swap(false, Ordering::Acquire) {
            self.pages.forget_discards();
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

impl Drop for Pager {
    fn drop(&mut self) {
        self.end();
    }
}
