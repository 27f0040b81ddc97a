//! Making huge pages of a file's small ones, and giving single pages back meanwhile.
//!
//! Memory of a file comes in small pages. A span whose pages are all there can be copied into one huge page, while pools
//! use it. That is for the maintenance: it takes up to milliseconds, and writers never wait for it. The copy's memory
//! counts as resident meanwhile, so it keeps within a limit. Pages that went back meanwhile are holes that the copy fills: they
//! are given back again.

use super::{Arena, Bits, SPAN_PAGES, Span};
use crate::pool::span::Mode;

impl Arena {
    /// Makes one huge page, if a span can be one. True if there may be more.
    pub(super) fn collapse_one(&self) -> bool {
        let mut state = self.state.lock();
        let index = state.spans.iter().position(Span::may_collapse);
        let Some(index) = index.filter(|_| state.resident_pages + SPAN_PAGES <= state.limit_pages)
        else {
            return false;
        };
        state.spans[index].collapsed = true;
        state.resident_pages += SPAN_PAGES;
        drop(state);
        let first = index * SPAN_PAGES;
        let made = self
            .region
            .collapse(self.bytes_of(first..first + SPAN_PAGES));
        let mut state = self.state.lock();
        let span = &mut state.spans[index];
        let filled = span.vacant();
        for (start, length) in filled.runs() {
            span.populated.set(start, length);
            span.used.set(start, length);
        }
        if !filled.is_empty() {
            span.mode = Mode::Small;
        }
        // What was filled counts until it is shed.
        state.resident_pages -= SPAN_PAGES - filled.count();
        drop(state);
        self.shed(first, filled);
        made
    }

    /// Gives pages of a span back that are marked as used for it.
    pub(super) fn shed(&self, first: usize, runs: Bits) {
        self.punch(first, runs);
        let index = first / SPAN_PAGES;
        let mut state = self.state.lock();
        if state.spans[index].collapsed {
            drop(state);
            // A collapse that was under way may have filled the holes again.
            self.punch(first, runs);
            state = self.state.lock();
        }
        for (start, length) in runs.runs() {
            let span = &mut state.spans[index];
            span.populated.clear(start, length);
            span.used.clear(start, length);
            span.collapsed = false;
            state.resident_pages -= length;
        }
        state.unclaim_if_empty(index);
    }

    fn punch(&self, first: usize, runs: Bits) {
        for (start, length) in runs.runs() {
            let bytes = self.bytes_of(first + start..first + start + length);
            self.region.split_huge_page(bytes.clone());
            self.region.release(bytes);
        }
    }
}
