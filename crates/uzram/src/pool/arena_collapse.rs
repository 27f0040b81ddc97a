//! Making huge pages of a file's small ones, and giving single pages back.
//!
//! Memory of a file comes in small pages. A span whose pages are all there can be copied into one huge page, while pools
//! use it. That is for the maintenance: it takes up to milliseconds, and writers never wait for it. It begins while the limit
//! has room for the copy. Writers may use that room meanwhile, as none must be refused for a copy: so the memory of one span
//! may be beyond the limit for that time.
//!
//! A copy fills holes. So no span becomes huge while pages of it are leaving, and pages that would leave meanwhile do so
//! when it has ended.

use super::{Arena, Bits, Mode, SPAN_PAGES, Span, State, Step, limit_reached};
use crate::error::Result;

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
        state.spans[index].collapsing = true;
        drop(state);
        let first = index * SPAN_PAGES;
        let made = self
            .region
            .collapse(self.bytes_of(first..first + SPAN_PAGES));
        let mut state = self.state.lock();
        state.spans[index].collapsing = false;
        let waited = state.spans[index].leaving;
        drop(state);
        self.shed(first, waited);
        made
    }

    /// Chooses a span whose free part is given back, so that other pages can be taken under the
    /// limit.
    pub(super) fn plan_shed(&self, state: &mut State) -> Result<Step> {
        let free = |span: &Span| span.whole_free(0..SPAN_PAGES, self.grain()).count();
        let most = state
            .spans
            .iter()
            .enumerate()
            .max_by_key(|(_, span)| free(span));
        let most = most.map(|(index, span)| (index, free(span)));
        let Some((index, _)) = most.filter(|(_, free_pages)| *free_pages > 0) else {
            let are_leaving = state.spans.iter().any(|span| !span.leaving.is_empty());
            return match are_leaving || state.moving_pages > 0 {
                true => Ok(Step::Wait),
                false => Err(limit_reached()),
            };
        };
        let span = &mut state.spans[index];
        let was_free = span.mode == Mode::Huge && span.used.is_empty();
        let runs = span.hold_free(self.grain());
        state.free_spans -= usize::from(was_free);
        let first = index * SPAN_PAGES;
        Ok(Step::Release {
            pages: first..first + SPAN_PAGES,
            runs,
        })
    }

    /// Gives pages of a span back that are marked as leaving.
    pub(super) fn shed(&self, first: usize, runs: Bits) {
        for (start, length) in runs.runs() {
            let bytes = self.bytes_of(first + start..first + start + length);
            self.region.split_huge_page(bytes.clone());
            self.region.release(bytes);
        }
        let index = first / SPAN_PAGES;
        let mut state = self.state.lock();
        for (start, length) in runs.runs() {
            let span = &mut state.spans[index];
            span.populated.clear(start, length);
            span.used.clear(start, length);
            span.leaving.clear(start, length);
            span.collapsed = false;
            state.resident_pages -= length;
        }
        state.unclaim_if_empty(index);
    }
}
