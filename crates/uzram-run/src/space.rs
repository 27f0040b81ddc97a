//! The address space of one program, as far as it is managed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rustix::io::Errno;
use uzram_pager::uffd::{Then, Uffd};

use crate::agent::{Agent, Mark};
use crate::process::{self, Area};
use crate::table::{Place, Table};
use crate::units::{PAGE_BYTES, Range};

/// Mappings below are left alone. V8 has its heap in mappings of 256 KiB.
const MAPPING_BYTES_MIN: u64 = 64 << 10;
/// Looking at mappings takes at most one part in so many of the time.
const LOOK_PART: u32 = 20;
/// Mappings up to here in which a thread has its own data are stacks, and left alone.
const STACK_BYTES_MAX: u64 = 64 << 20;

/// A thread that waits for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub address: u64,
    pub is_write: bool,
    pub thread: u32,
}

/// An address space.
#[derive(Debug)]
pub(crate) struct Space {
    pub uffd: Uffd,
    pub mark: Mark,
    /// A process that has it, if one is known.
    pub owner: Option<i32>,
    pub agent: Option<Agent>,
    pub table: Table,
    /// Mappings that are served, as far as they are still there.
    managed: BTreeMap<u64, u64>,
    next_look: Instant,
    /// Mappings that may be taken from, by the last look.
    pub areas: Vec<Range>,
    /// Pages where threads have what the kernel needs when they end.
    thread_pages: BTreeSet<u64>,
    /// The same for each thread; none for one that has not said where.
    threads: BTreeMap<i32, Option<u64>>,
    /// The next chunk to take from.
    pub hand: u64,
    /// Chunks that were looked through since pages could last be taken.
    pub fruitless: u64,
    /// It was gone through as often as pages can be spared.
    pub is_exhausted: bool,
    pub has_forked: bool,
    /// Places of pages that are not there any more, to be released.
    pub dropped: Vec<Place>,
    pub waiting: Vec<Fault>,
    /// The address behind the last pages that came, and how many those were.
    pub ahead: (u64, usize),
}

impl Space {
    /// A space of which nothing is managed yet.
    pub(crate) fn new(uffd: Uffd, mark: Mark) -> Space {
        Space {
            uffd,
            mark,
            owner: None,
            agent: None,
            table: Table::default(),
            managed: BTreeMap::new(),
            next_look: Instant::now(),
            areas: Vec::new(),
            thread_pages: BTreeSet::new(),
            threads: BTreeMap::new(),
            hand: 0,
            fruitless: 0,
            is_exhausted: false,
            has_forked: false,
            dropped: Vec::new(),
            waiting: Vec::new(),
            ahead: (0, 0),
        }
    }

    /// Looks anew which mappings may be taken from, unless it has just looked.
    pub(crate) fn look(&mut self) {
        let begin = Instant::now();
        let Some(owner) = self.owner.filter(|_| begin >= self.next_look) else {
            return;
        };
        self.look_at_threads();
        let found = process::areas(owner);
        let may_take = |area: &Area| self.may_take(area);
        let eligible: Vec<Area> = found.into_iter().filter(may_take).collect();
        for area in eligible.iter().filter(|area| !area.is_registered) {
            // A parent's mapping that a child has not got, and another one of its own there.
            self.uncover(&area.range);
            let dropped = &mut self.dropped;
            self.table.forget(&area.range, |place| dropped.push(place));
        }
        self.areas = eligible.into_iter().map(|area| area.range).collect();
        self.next_look = Instant::now() + begin.elapsed() * LOOK_PART;
    }

    fn may_take(&self, area: &Area) -> bool {
        let bytes = area.range.end - area.range.start;
        let is_own = self
            .agent
            .as_ref()
            .is_some_and(|agent| agent.owns(&area.range));
        let has_mark = area.range.contains(&self.mark.address);
        let mut threads = self.thread_pages.range(area.range.clone());
        let has_thread = threads.next().is_some();
        let is_stack = has_thread && bytes <= STACK_BYTES_MAX;
        area.is_eligible && bytes >= MAPPING_BYTES_MIN && !is_own && !has_mark && !is_stack
    }

    /// Notes where threads that are new have what the kernel writes at their end, and forgets those that have ended: their numbers
    /// and their stacks are used again.
    pub(crate) fn look_at_threads(&mut self) {
        let Some(owner) = self.owner else { return };
        let now: BTreeSet<i32> = process::threads(owner).into_iter().collect();
        let before = self.threads.len();
        // Others may be of a process that has the same space.
        self.threads
            .retain(|thread, _| now.contains(thread) || !process::has_ended(*thread));
        let some_ended = self.threads.len() < before;
        for thread in now {
            self.threads.entry(thread).or_insert_with(|| {
                let list = process::robust_list(thread)?;
                let page = list - list % PAGE_BYTES as u64;
                self.thread_pages.insert(page);
                Some(page)
            });
        }
        if some_ended {
            self.thread_pages = self.threads.values().copied().flatten().collect();
        }
    }

    /// Whether the page at `address` must stay: what the kernel needs may reach into the pages around.
    pub(crate) fn is_kept(&self, address: u64) -> bool {
        let page = PAGE_BYTES as u64;
        let around = address.saturating_sub(page)..=address + page;
        self.thread_pages.range(around).next().is_some()
    }

    /// Whether the page at `address` is served.
    pub(crate) fn is_managed(&self, address: u64) -> bool {
        let before = self.managed.range(..=address).next_back();
        before.is_some_and(|(_, end)| address < *end)
    }

    /// The parts of `range` that are served.
    pub(crate) fn managed_in(&self, range: &Range) -> Vec<Range> {
        let parts = self.managed.range(..range.end).rev();
        parts
            .take_while(|(_, end)| **end > range.start)
            .map(|(start, end)| range.start.max(*start)..range.end.min(*end))
            .collect()
    }

    /// How many mappings are served.
    pub(crate) fn mappings(&self) -> usize {
        self.managed.len()
    }

    /// Has the mapping `range` served from now on.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn manage(&mut self, range: &Range) -> Result<(), Errno> {
        if self.managed.get(&range.start) == Some(&range.end) {
            return Ok(());
        }
        self.uffd.register(range.start, range.end)?;
        self.note_managed(range.clone());
        Ok(())
    }

    /// The kernel has these pages served.
    pub(crate) fn note_managed(&mut self, range: Range) {
        self.uncover(&range);
        self.managed.insert(range.start, range.end);
    }

    fn uncover(&mut self, gone: &Range) {
        for part in self.managed_in(gone) {
            let whole = self.managed.range(..=part.start).next_back();
            let Some((start, end)) = whole.map(|(start, end)| (*start, *end)) else {
                continue;
            };
            self.managed.remove(&start);
            for rest in [start..part.start, part.end..end] {
                if rest.start < rest.end {
                    self.managed.insert(rest.start, rest.end);
                }
            }
        }
    }

    /// The same mappings are served for a child.
    pub(crate) fn manage_as(&mut self, parent: &Space) {
        self.managed.clone_from(&parent.managed);
    }

    /// Notes that these pages are no longer there.
    pub(crate) fn cut(&mut self, gone: &Range) {
        self.uncover(gone);
        self.areas
            .retain(|area| area.end <= gone.start || gone.end <= area.start);
        self.thread_pages.retain(|page| !gone.contains(page));
    }

    /// Whether no process has the space any more.
    pub(crate) fn is_dead(&self) -> bool {
        // The mark's page is there: the kernel says so, unless it has nobody to say it of.
        let done = self
            .uffd
            .copy(&self.mark.page(), self.mark.address, Then::Wake);
        done.stopped == Some(Errno::SRCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unmapped_is_not_managed() {
        let uffd = match Uffd::open(uzram_pager::FaultHandler::FaultingThread) {
            Ok(uffd) => uffd,
            Err(error) => return eprintln!("left out: {error}"),
        };
        let mark = Mark {
            address: 0,
            word: 0,
        };
        let mut space = Space::new(uffd, mark);
        space.note_managed(0x10_000..0x20_000);
        space.note_managed(0x30_000..0x40_000);
        space.cut(&(0x14_000..0x34_000));
        let parts = |space: &Space, range: Range| {
            let mut parts = space.managed_in(&range);
            parts.sort_by_key(|part| part.start);
            parts
        };
        assert_eq!(
            parts(&space, 0..0x50_000),
            [0x10_000..0x14_000, 0x34_000..0x40_000]
        );
        assert!(space.is_managed(0x13_000) && !space.is_managed(0x14_000));
        space.note_managed(0x12_000..0x38_000);
        let all = [0x10_000..0x12_000, 0x12_000..0x38_000, 0x38_000..0x40_000];
        assert_eq!(parts(&space, 0..0x50_000), all);
        space.cut(&(0x11_000..0x12_000));
        assert_eq!(
            parts(&space, 0x10_000..0x13_000),
            [0x10_000..0x11_000, 0x12_000..0x13_000]
        );
    }
}
