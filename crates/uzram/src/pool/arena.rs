//! The arena: runs of pages for pools, out of one [`Region`], in spans of 2 MiB.
//!
//! The first touch of a page is expensive (0.2 us each in huge pages, over 1 us otherwise, several
//! when a host must back it). So memory is taken a span at a time, ahead of use where possible,
//! and [`Arena::take`] never takes it. Dropping part of a huge page frees nothing, so a *huge*
//! span goes back whole, when its last page is free. Arenas with a small limit use *small* spans.
//! Their runs come and go singly in 4 KiB pages, of which a few stay populated. Where the system's pages are larger,
//! all of ours in one of them come and go together.
//!
//! There are two counts: `used` (runs that pools hold; the limit bounds it) and `resident` (memory
//! from the system). Their difference is the spare. Under a limit `resident` stays within it too:
//! if no free run is long enough, free pages are given back before more is taken.
//!
//! Locking: one mutex for all state, below every lock of the pools. System calls run outside of
//! it, on pages marked as used meanwhile.

#![allow(unsafe_code)]

use std::ops::Range;
use std::time::Duration;

use super::bits::Bits;
use super::span::{Mode, SPAN_PAGES, Span};
use super::{Handle, PoolConfig};
use crate::cpu;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::region::{HUGE_PAGE_BYTES, PAGE_BYTES, Region};
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, sleep};

pub(crate) use super::span::{Parts, RUN_PAGES_MAX, Runs};

/// Below this limit or disk size huge pages would waste too large a share. Models have arenas of
/// both kinds.
const HUGE_FROM_BYTES: u64 = if cfg!(uzram_shuttle) {
    4 << 20
} else {
    64 << 20
};

/// Bounds on the wholly free huge spans that stay populated: the spare.
const SPARE_SPANS_MIN: usize = 1;
const SPARE_SPANS_MAX: usize = 8;
/// Free pages that stay populated where they come and go singly. Without them every write that
/// empties a page would send another one down the slow path, which compresses twice.
const SPARE_SMALL_PAGES: usize = if cfg!(uzram_shuttle) { 0 } else { 64 };

/// The same under a limit, as a share of it.
const LIMIT_A_SPARE_SMALL: usize = 16;

/// Single pages populated at once.
const SMALL_PAGES_A_GROWTH: usize = if cfg!(uzram_shuttle) { 1 } else { 16 };

/// One spare span for this many used ones, within the bounds.
const USED_SPANS_A_SPARE: usize = 32;

/// Time between two looks of a writer at the limit whose last pages somebody populates or releases, and looks at most.
const WAIT_TIME: Duration = Duration::from_micros(200);
const WAITS_MAX: usize = 250;

/// Reserves address space for an arena.
///
/// # Errors
/// [`ErrorKind::NoMemory`] where the address space is too small.
pub(crate) fn reserve(config: &PoolConfig) -> Result<Region> {
    Region::reserve(config.arena_bytes(), config.backing)
}

/// Hands out runs of 1 to [`RUN_PAGES_MAX`] pages, named by their first page's index.
#[derive(Debug)]
pub(crate) struct Arena {
    region: Region,
    huge: bool,
    /// Whether full spans are made huge afterwards.
    collapses: bool,
    runs: Runs,
    /// Set while more is used than a new limit allows. Written under the state's lock.
    over_limit: AtomicBool,
    state: Mutex<State>,
}

/// In bytes; see the file head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArenaStats {
    pub used_bytes: u64,
    pub used_max_bytes: u64,
    pub resident_bytes: u64,
    pub side_bytes: u64,
}

#[derive(Debug)]
struct State {
    /// From the region's start up to the highest span ever claimed.
    spans: Vec<Span>,
    /// For each power of two: no span below has a run as long free.
    first_fit: [usize; RUN_PAGES_MAX.ilog2() as usize + 1],
    /// No span below is unclaimed.
    first_unclaimed: usize,
    used_pages: usize,
    used_max_pages: usize,
    resident_pages: usize,
    /// Those of them that are being populated, or released with their span, outside of the lock.
    moving_pages: usize,
    /// Huge spans that are populated and wholly free: the spare.
    free_spans: usize,
    /// The least size of the spare.
    spare_spans_min: usize,
    /// `usize::MAX` for none.
    limit_pages: usize,
}

/// A decision of [`Arena::grow`] under the lock, carried out outside of it.
enum Step {
    Done,
    Populate {
        pages: Range<usize>,
        mode: Mode,
    },
    Release {
        pages: Range<usize>,
        runs: Bits,
    },
    /// Somebody else's pages will be there or gone in a moment.
    Wait,
}

impl Arena {
    pub(crate) fn new(config: &PoolConfig, region: Region, runs: Runs) -> Arena {
        let is_large = config.disksize_bytes >= HUGE_FROM_BYTES;
        let spare_spans = config.spare_bytes.div_ceil(HUGE_PAGE_BYTES as u64);
        let spare_spans = usize::try_from(spare_spans).unwrap_or(usize::MAX);
        let spare_spans_min = spare_spans.min(region.length_bytes() / HUGE_PAGE_BYTES);
        let arena = Arena {
            runs,
            huge: is_large && (region.takes_huge_pages() || config.spare_bytes > 0),
            collapses: is_large && !region.takes_huge_pages(),
            region,
            over_limit: AtomicBool::new(false),
            state: Mutex::new(State {
                spans: Vec::new(),
                first_fit: [0; RUN_PAGES_MAX.ilog2() as usize + 1],
                first_unclaimed: 0,
                used_pages: 0,
                used_max_pages: 0,
                resident_pages: 0,
                moving_pages: 0,
                free_spans: 0,
                spare_spans_min,
                limit_pages: usize::MAX,
            }),
        };
        arena.set_limit(config.limit_bytes);
        arena
    }

    /// The number of pages that the arena spans.
    pub(crate) fn pages(&self) -> usize {
        self.region.length_bytes() / PAGE_BYTES
    }

    /// Takes a run of `length` populated pages; `None` if there is none or the limit is reached.
    ///
    /// If all runs are multiples of a power of two long, they start at multiples of it: spans do,
    /// so do the free ranges between such runs, and the lowest place in a range is taken.
    pub(crate) fn take(&self, length: usize) -> Option<usize> {
        let mut state = self.state.lock();
        if state.over_limit(length) {
            return None;
        }
        let (index, start) = state.find_free(length, self.runs)?;
        let span = &mut state.spans[index];
        let was_free = span.used.is_empty() && span.mode == Mode::Huge;
        span.used.set(start, length);
        state.free_spans -= usize::from(was_free);
        state.used_pages += length;
        state.used_max_pages = state.used_max_pages.max(state.used_pages);
        Some(index * SPAN_PAGES + start)
    }

    /// Gives back a run that was taken. Its memory may not be touched any more.
    pub(crate) fn give_back(&self, first: usize, length: usize) {
        let (index, start) = (first / SPAN_PAGES, first % SPAN_PAGES);
        let mut state = self.state.lock();
        match state.spans[index].mode {
            Mode::Huge => {
                self.count_out(&mut state, length);
                state.free_in(index, start, length);
                if state.spans[index].used.is_empty() {
                    state.free_spans += 1;
                    if state.free_spans > state.spare_spans() {
                        self.release_span(state, index);
                    }
                }
            }
            Mode::Small if state.free_pages() + length <= state.spare_small_pages() => {
                self.count_out(&mut state, length);
                state.free_in(index, start, length);
            }
            Mode::Small => {
                self.count_out(&mut state, length);
                state.free_in(index, start, length);
                let runs = state.spans[index].hold(start..start + length, self.grain());
                drop(state);
                self.shed(index * SPAN_PAGES, runs);
            }
            Mode::Unclaimed => unreachable!("a taken run lies in a claimed span"),
        }
    }

    /// Pages of ours in one page of the system, which are populated and given back together.
    fn grain(&self) -> usize {
        self.region.page_bytes() / PAGE_BYTES
    }

    /// Counts pages that are no longer used.
    fn count_out(&self, state: &mut State, pages: usize) {
        state.used_pages -= pages;
        if self.over_limit.load(Ordering::Relaxed) {
            self.over_limit
                .store(state.over_limit(0), Ordering::Relaxed);
        }
    }

    /// Makes a run of `length` pages free and populated, unless one is.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] at the limit or at the end of the reserved addresses,
    /// [`ErrorKind::NoMemory`].
    pub(crate) fn grow(&self, length: usize) -> Result<()> {
        let mut waits = 0;
        loop {
            let mut state = self.state.lock();
            if state.over_limit(length) {
                return Err(limit_reached());
            }
            // Each turn ends, populates, waits, or releases a span's free part, of which there are finitely many.
            match self.plan(&mut state, length)? {
                Step::Done => return Ok(()),
                Step::Populate { pages, mode } => {
                    drop(state);
                    return self.populate(pages, mode);
                }
                Step::Release { pages, runs } => {
                    drop(state);
                    self.shed(pages.start, runs);
                }
                Step::Wait if waits == WAITS_MAX => return Err(limit_reached()),
                Step::Wait => {
                    drop(state);
                    waits += 1;
                    sleep(WAIT_TIME);
                }
            }
        }
    }

    /// Moves the spare one span towards its size, up or down, or makes a huge page of a file's small ones. True if more is
    /// left to do.
    pub(crate) fn maintain(&self) -> bool {
        (self.huge && self.move_spare()) || (self.collapses && self.collapse_one())
    }

    fn move_spare(&self) -> bool {
        let mut state = self.state.lock();
        let wanted = state.spare_spans();
        if state.free_spans > wanted {
            let more = state.free_spans > wanted + 1;
            let free = |span: &Span| span.mode == Mode::Huge && span.used.is_empty();
            // The highest, so that what is left gathers at the arena's start.
            if let Some(index) = state.spans.iter().rposition(free) {
                self.release_span(state, index);
            }
            return more;
        }
        let is_idle = state.used_pages == 0 && state.spare_spans_min == 0;
        if is_idle || state.free_spans >= wanted || !self.may_claim_huge(&state) {
            return false;
        }
        let more = state.free_spans + 1 < wanted;
        match self.claim_span(&mut state, Mode::Huge, SPAN_PAGES) {
            Ok(pages) => {
                drop(state);
                self.populate(pages, Mode::Huge).is_ok() && more
            }
            Err(_) => false,
        }
    }

    /// Whether the spare has a least size, whatever is used, as far as a limit allows. An arena that takes no huge pages
    /// has none.
    pub(crate) fn keeps_spare(&self) -> bool {
        self.huge && self.state.lock().spare_spans_min > 0
    }

    /// Gives everything outside of runs back to the system, the spare included.
    pub(crate) fn trim(&self, parts: Parts) {
        let spans = self.state.lock().spans.len();
        for index in 0..spans {
            let mut state = self.state.lock();
            let span = &mut state.spans[index];
            match span.mode {
                Mode::Huge if span.used.is_empty() => self.release_span(state, index),
                Mode::Huge if !span.is_worth_breaking(parts) => {}
                Mode::Huge | Mode::Small => {
                    let runs = span.hold_free(self.grain());
                    drop(state);
                    self.shed(index * SPAN_PAGES, runs);
                }
                Mode::Unclaimed => {}
            }
        }
    }

    pub(crate) fn set_limit(&self, limit_bytes: u64) {
        // Downwards, to nothing if need be: a limit is never exceeded.
        let pages = match limit_bytes {
            0 => usize::MAX,
            bytes => usize::try_from(bytes / PAGE_BYTES as u64).unwrap_or(usize::MAX),
        };
        let mut state = self.state.lock();
        state.limit_pages = pages;
        self.over_limit
            .store(state.over_limit(0), Ordering::Relaxed);
    }

    /// Whether the limit was set below what is used.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.over_limit.load(Ordering::Relaxed)
    }

    #[cfg(all(test, uzram_shuttle))]
    pub(crate) fn knows_whether_it_is_over_the_limit(&self) -> bool {
        let state = self.state.lock();
        self.over_limit.load(Ordering::Relaxed) == state.over_limit(0)
    }

    pub(crate) fn reset_used_max(&self) {
        let mut state = self.state.lock();
        state.used_max_pages = state.used_pages;
    }

    pub(crate) fn stats(&self) -> ArenaStats {
        let state = self.state.lock();
        let bytes = |pages: usize| (pages * PAGE_BYTES) as u64;
        ArenaStats {
            used_bytes: bytes(state.used_pages),
            used_max_bytes: bytes(state.used_max_pages),
            resident_bytes: bytes(state.resident_pages),
            side_bytes: (state.spans.capacity() * size_of::<Span>()) as u64,
        }
    }

    /// The object's bytes.
    pub(crate) fn object<'a>(&'a self, handle: &'a Handle) -> &'a [u8] {
        let at = self.region.pointer(&object_range(handle));
        // SAFETY: the range was checked against the region; the handle is the only one to these
        // bytes and borrowed, so nothing writes or frees them meanwhile.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), handle.size_bytes()) }
    }

    /// Prefetches `bytes`, which may lie anywhere.
    #[inline]
    pub(crate) fn prefetch(&self, bytes: Range<usize>) {
        cpu::prefetch_lines(self.region.address(bytes.start)..self.region.address(bytes.end));
    }

    /// Copies `bytes`, as many as the object has, into the object.
    pub(crate) fn fill(&self, handle: &mut Handle, bytes: &[u8]) {
        assert_eq!(handle.size_bytes(), bytes.len());
        let at = self.region.pointer(&object_range(handle));
        // SAFETY: the range was checked against the region; the handle is the only one to these
        // bytes and borrowed mutably, and `bytes` cannot overlap memory that only it covers.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) }
        #[cfg(all(test, not(uzram_shuttle)))]
        crate::crash::point();
    }

    fn bytes_of(&self, pages: Range<usize>) -> Range<usize> {
        pages.start * PAGE_BYTES..pages.end * PAGE_BYTES
    }

    fn may_claim_huge(&self, state: &State) -> bool {
        let limit_bytes = state.limit_pages.saturating_mul(PAGE_BYTES) as u64;
        // A file's huge page is a copy.
        let copied_pages = if self.collapses { SPAN_PAGES } else { 0 };
        self.huge
            && limit_bytes >= HUGE_FROM_BYTES
            && state.resident_pages + SPAN_PAGES + copied_pages <= state.limit_pages
    }

    fn plan(&self, state: &mut State, length: usize) -> Result<Step> {
        if state.find_free(length, self.runs).is_some() {
            return Ok(Step::Done);
        }
        if self.may_claim_huge(state) {
            let pages = self.claim_span(state, Mode::Huge, SPAN_PAGES)?;
            return Ok(Step::Populate {
                pages,
                mode: Mode::Huge,
            });
        }
        let length = length.next_multiple_of(self.grain());
        if state.resident_pages + length > state.limit_pages {
            return self.plan_shed(state);
        }
        let pages = self.claim_small(state, length)?;
        Ok(Step::Populate {
            pages,
            mode: Mode::Small,
        })
    }

    /// Claims a run of `length` single pages, which are whole pages of the system, or as many side by side as are
    /// worth populating at once. It begins with a page of the system, because what is vacant does.
    fn claim_small(&self, state: &mut State, length: usize) -> Result<Range<usize>> {
        // A multiple of the system's page, as `length` is.
        let many = length * (SMALL_PAGES_A_GROWTH / length).max(1);
        let fits = state.resident_pages + many <= state.limit_pages;
        let lengths = [if fits { many } else { length }, length];
        let vacant = |length: usize| Some((state.find_vacant(length, self.runs)?, length));
        match lengths.into_iter().find_map(vacant) {
            Some(((index, start), length)) => {
                Ok(state.claim(index, Mode::Small, start..start + length))
            }
            None => self.claim_span(state, Mode::Small, lengths[0]),
        }
    }

    /// Claims the first pages of an unclaimed span.
    fn claim_span(&self, state: &mut State, mode: Mode, length: usize) -> Result<Range<usize>> {
        let from = state.first_unclaimed;
        let unclaimed = state.spans[from.min(state.spans.len())..]
            .iter()
            .position(|span| span.mode == Mode::Unclaimed);
        let index = unclaimed.map_or(state.spans.len(), |position| from + position);
        if (index + 1) * SPAN_PAGES > self.pages() {
            return Err(Error::new(
                ErrorKind::NoSpace,
                "the pool's address space is used up; compact or discard",
            ));
        }
        if index == state.spans.len() {
            memory::push(&mut state.spans, Span::UNCLAIMED)?;
        }
        state.first_unclaimed = index + 1;
        Ok(state.claim(index, mode, 0..length))
    }

    /// Makes claimed pages resident and free.
    fn populate(&self, pages: Range<usize>, mode: Mode) -> Result<()> {
        let (index, start) = (pages.start / SPAN_PAGES, pages.start % SPAN_PAGES);
        let length = pages.len();
        let bytes = self.bytes_of(pages.clone());
        let populated = match mode {
            Mode::Huge => self.region.populate_huge(bytes),
            Mode::Small | Mode::Unclaimed => self.region.populate(bytes),
        };
        if populated.is_err() {
            self.region.release(self.bytes_of(pages));
        }
        let mut state = self.state.lock();
        state.moving_pages -= length;
        match &populated {
            Ok(()) => {
                state.spans[index].populated.set(start, length);
                state.free_spans += usize::from(mode == Mode::Huge);
            }
            Err(_) => state.resident_pages -= length,
        }
        state.free_in(index, start, length);
        state.unclaim_if_empty(index);
        populated
    }

    /// Gives a wholly free huge span back to the system.
    fn release_span(&self, mut state: MutexGuard<'_, State>, index: usize) {
        state.spans[index].used = Bits::below(SPAN_PAGES);
        state.free_spans -= 1;
        state.moving_pages += SPAN_PAGES;
        drop(state);
        let first = index * SPAN_PAGES;
        self.region
            .release(self.bytes_of(first..first + SPAN_PAGES));
        let mut state = self.state.lock();
        state.spans[index] = Span::UNCLAIMED;
        state.moving_pages -= SPAN_PAGES;
        state.resident_pages -= SPAN_PAGES;
        state.first_unclaimed = state.first_unclaimed.min(index);
    }
}

impl State {
    fn over_limit(&self, length: usize) -> bool {
        self.used_pages + length > self.limit_pages
    }

    /// The lowest span with a free run, and the run's start in it.
    fn find_free(&mut self, length: usize, runs: Runs) -> Option<(usize, usize)> {
        let at_least = 1 << length.ilog2();
        let hint = length.ilog2() as usize;
        let mut first = self.spans.len();
        for (index, span) in self.spans.iter_mut().enumerate().skip(self.first_fit[hint]) {
            if usize::from(span.longest) >= at_least {
                first = first.min(index);
            }
            if usize::from(span.longest) < length {
                continue;
            }
            if let Some(start) = runs.find(span.free(), length) {
                self.first_fit[hint] = first;
                return Some((index, start));
            }
            span.longest = length as u8 - 1;
        }
        self.first_fit[hint] = first;
        None
    }

    /// The first place in spans of single pages where `length` pages are not populated.
    fn find_vacant(&self, length: usize, runs: Runs) -> Option<(usize, usize)> {
        let small = |(_, span): &(usize, &Span)| span.mode == Mode::Small;
        let mut spans = self.spans.iter().enumerate().filter(small);
        spans.find_map(|(index, span)| Some((index, runs.find(span.vacant(), length)?)))
    }

    /// Marks a span's pages, which are not populated, as used, and counts them as resident.
    fn claim(&mut self, index: usize, mode: Mode, pages: Range<usize>) -> Range<usize> {
        let span = &mut self.spans[index];
        span.mode = mode;
        span.used.set(pages.start, pages.len());
        self.resident_pages += pages.len();
        self.moving_pages += pages.len();
        let first = index * SPAN_PAGES;
        first + pages.start..first + pages.end
    }

    /// Unmarks pages, so that searches find them.
    fn free_in(&mut self, index: usize, start: usize, length: usize) {
        let span = &mut self.spans[index];
        span.used.clear(start, length);
        span.longest = RUN_PAGES_MAX as u8;
        for first in &mut self.first_fit {
            *first = index.min(*first);
        }
    }

    fn unclaim_if_empty(&mut self, index: usize) {
        let span = &mut self.spans[index];
        if span.used.is_empty() && span.populated.is_empty() {
            *span = Span::UNCLAIMED;
            self.first_unclaimed = self.first_unclaimed.min(index);
        }
    }

    /// Populated, or being populated or released, and not used by a pool.
    fn free_pages(&self) -> usize {
        self.resident_pages - self.used_pages
    }

    fn spare_small_pages(&self) -> usize {
        SPARE_SMALL_PAGES.min(self.limit_pages / LIMIT_A_SPARE_SMALL)
    }

    fn spare_spans(&self) -> usize {
        let used_spans = self.used_pages / SPAN_PAGES;
        let usual = (used_spans / USED_SPANS_A_SPARE).clamp(SPARE_SPANS_MIN, SPARE_SPANS_MAX);
        usual.max(self.spare_spans_min)
    }
}

fn object_range(handle: &Handle) -> Range<usize> {
    let start = handle.offset_bytes();
    start..start + handle.size_bytes()
}

fn limit_reached() -> Error {
    Error::new(
        ErrorKind::NoSpace,
        "mem_limit reached; raise it, or discard or reset",
    )
}

#[path = "arena_adopt.rs"]
mod adopt;
#[path = "arena_collapse.rs"]
mod collapse;
#[cfg(test)]
#[path = "arena_tests.rs"]
mod tests;
#[path = "arena_unclaimed.rs"]
mod unclaimed;
