//! Giving back the parts of pools' tables that tell of spans of which nothing is claimed.
//!
//! Pools write an entry of such a table only while they hold the pages that it tells of. So nobody writes to
//! a part whose spans cannot be claimed, and they cannot while they are held here. Spans are held in small
//! groups, one group at a time, and one that is held is as good as used: a writer who grows then claims
//! another one.

use std::ops::Range;

use super::{Arena, Bits, Mode, SPAN_PAGES, Span, State};
use crate::memory;
use crate::region::Region;

/// The arena has this many groups at least, so that writers find other spans: a disk is a quarter of its arena.
const GROUPS_MIN: usize = 4;

impl Arena {
    /// Gives parts of `table` back to the system, which become zero, the last one first. `table` has an entry of
    /// `entry_bytes` for each `entry_pages` pages, both powers of two, written only while one of these pages is taken. Calls
    /// `forgotten` for each part with the pages that it tells of, while they cannot be taken.
    pub(crate) fn give_back_entries(
        &self,
        table: &Region,
        entry_bytes: usize,
        entry_pages: usize,
        mut forgotten: impl FnMut(Range<usize>),
    ) {
        let span_bytes = SPAN_PAGES / entry_pages * entry_bytes;
        let page_bytes = table.page_bytes();
        let group = (page_bytes / span_bytes).max(1);
        if group * GROUPS_MIN * SPAN_PAGES > self.pages() {
            return;
        }
        let claimed = self.state.lock().spans.len();
        for first in (0..claimed).step_by(group).rev() {
            let end = (first + group).min(self.pages() / SPAN_PAGES);
            if !self.state.lock().hold_unclaimed(first..end) {
                continue;
            }
            let part_end = (end * span_bytes).next_multiple_of(page_bytes);
            table.release(first * span_bytes..part_end);
            forgotten(first * SPAN_PAGES..end * SPAN_PAGES);
            self.state.lock().unclaim(first..end);
        }
    }
}

impl State {
    /// Marks spans as used if nothing of them is claimed; false if something is.
    fn hold_unclaimed(&mut self, spans: Range<usize>) -> bool {
        while self.spans.len() < spans.end {
            if memory::push(&mut self.spans, Span::UNCLAIMED).is_err() {
                return false;
            }
        }
        let spans = &mut self.spans[spans];
        if spans.iter().any(|span| span.mode != Mode::Unclaimed) {
            return false;
        }
        for span in spans {
            span.mode = Mode::Small;
            span.used = Bits::below(SPAN_PAGES);
        }
        true
    }

    fn unclaim(&mut self, spans: Range<usize>) {
        self.first_unclaimed = self.first_unclaimed.min(spans.start);
        self.spans[spans].fill(Span::UNCLAIMED);
    }
}
