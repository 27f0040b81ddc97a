//! Spans: 2 MiB of an arena, with the state of their pages.

use std::ops::Range;

use super::bits::Bits;
use crate::region::{HUGE_PAGE_BYTES, PAGE_BYTES};

/// Longest run that can be taken, in pages.
pub(crate) const RUN_PAGES_MAX: usize = 64;

pub(super) const SPAN_PAGES: usize = HUGE_PAGE_BYTES / PAGE_BYTES;

/// A huge page is broken up if at least this part of it is free.
const BREAK_FROM_PART: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Unclaimed,
    Huge,
    Small,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub mode: Mode,
    /// No free run that may be taken is longer than this; exact after a failed search.
    pub longest: u8,
    /// Held by a pool, or by a thread that is populating or releasing them.
    pub used: Bits,
    /// Pages of ours in one page of the system come and go together.
    pub populated: Bits,
    /// Used because they are on their way back to the system.
    pub leaving: Bits,
    /// One huge page was made of its pages, or tried, since any of them went back.
    pub collapsed: bool,
    /// One huge page is being made of its pages.
    pub collapsing: bool,
}

impl Span {
    pub(super) const UNCLAIMED: Span = Span {
        mode: Mode::Unclaimed,
        longest: 0,
        used: Bits::EMPTY,
        populated: Bits::EMPTY,
        leaving: Bits::EMPTY,
        collapsed: false,
        collapsing: false,
    };

    pub(super) fn free(&self) -> Bits {
        self.populated.and_not(self.used)
    }

    pub(super) fn vacant(&self) -> Bits {
        let pages = Bits::below(SPAN_PAGES);
        pages.and_not(self.used).and_not(self.populated)
    }

    /// The free pages of `pages` and around them that can be given back: those of which `grain` side by side, which
    /// are one page of the system, are all free.
    pub(super) fn whole_free(&self, pages: Range<usize>, grain: usize) -> Bits {
        let free = self.free();
        if grain == 1 {
            let mut elsewhere = Bits::below(SPAN_PAGES);
            elsewhere.clear(pages.start, pages.len());
            return free.and_not(elsewhere);
        }
        let mut whole = Bits::EMPTY;
        for start in (pages.start / grain * grain..pages.end).step_by(grain) {
            if free.contains_all(start, grain) {
                whole.set(start, grain);
            }
        }
        whole
    }

    /// Marks them as leaving. Returns those that the caller gives back: none of a span that becomes huge, because the
    /// copy would fill their holes.
    pub(super) fn hold(&mut self, pages: Range<usize>, grain: usize) -> Bits {
        let runs = self.whole_free(pages, grain);
        for (start, length) in runs.runs() {
            self.used.set(start, length);
            self.leaving.set(start, length);
        }
        match self.collapsing {
            true => Bits::EMPTY,
            false => runs,
        }
    }

    /// The same of the whole span, which becomes one of small pages.
    pub(super) fn hold_free(&mut self, grain: usize) -> Bits {
        self.mode = Mode::Small;
        self.hold(0..SPAN_PAGES, grain)
    }

    /// Whether its pages may be copied into a huge one, which then takes no more memory than they do.
    pub(super) fn may_collapse(&self) -> bool {
        self.mode == Mode::Small
            && !self.collapsed
            && self.leaving.is_empty()
            && self.populated.count() == SPAN_PAGES
    }

    /// Whether giving back the free pages gains more than small pages cost.
    pub(super) fn is_worth_breaking(&self, parts: Parts) -> bool {
        parts == Parts::Too && self.free().count() >= SPAN_PAGES / BREAK_FROM_PART
    }
}

/// The free pages that go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// Those of whole huge pages, and small ones.
    Stay,
    /// Parts of huge pages too.
    Too,
}

/// The places where runs may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    Anywhere,
    /// All runs are powers of two long and start at multiples of their length.
    Aligned,
}

impl Runs {
    pub(super) fn find(self, free: Bits, length: usize) -> Option<usize> {
        match self {
            Runs::Anywhere => free.find_run(length),
            Runs::Aligned => free.find_aligned_run(length),
        }
    }
}
