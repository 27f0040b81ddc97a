//! Idle pages: those that nobody has read or written since they were marked.
//!
//! The mark is a flag of the slot word. A write publishes a word without it, and a read unlocks its slot with a word
//! without it, so neither does more than it did. Marking takes each slot's lock for a moment.
//!
//! A store that keeps ages (`store/ages.rs`) also knows which pages nobody has used for how long.

use std::fmt;
use std::time::Duration;

use super::StoreWith;
use super::layout::Seen;
use super::lock::SlotLock;
use super::slot::{Entry, SlotGuard};
use crate::codec::streams::{Stream, StreamPolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::page::{PageIndex, PageState};

/// A page as zram's `block_state` shows it. Its text is a line of that file, without the end of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockState {
    /// The page's index.
    pub index: u64,
    /// The second of its last access, since the system was started; 0 in a store without ages.
    pub accessed_s: u32,
    /// Filled with one repeated word.
    pub is_same: bool,
    /// In the backing file.
    pub is_written_back: bool,
    /// Kept raw, because compressing it did not pay.
    pub is_huge: bool,
    /// Marked idle and not accessed since.
    pub is_idle: bool,
    /// Packed by a secondary codec.
    pub is_recompressed: bool,
    /// Recompression did not make it smaller.
    pub is_incompressible: bool,
}

impl fmt::Display for BlockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12} {:>12}.000000 ", self.index, self.accessed_s)?;
        let flags = [
            ('s', self.is_same),
            ('w', self.is_written_back),
            ('h', self.is_huge),
            ('i', self.is_idle),
            ('r', self.is_recompressed),
            ('n', self.is_incompressible),
        ];
        let shown = flags.map(|(letter, is_set)| if is_set { letter } else { '.' });
        shown.iter().try_for_each(|letter| write!(f, "{letter}"))
    }
}

impl<L: SlotLock, S: StreamPolicy<Stream>> StoreWith<L, S> {
    /// As [`Store::mark_idle`](crate::Store::mark_idle).
    pub fn mark_idle(&self) {
        self.for_each_object(|guard| set_idle(guard, true));
    }

    /// As [`Store::mark_idle_older_than`](crate::Store::mark_idle_older_than).
    pub fn mark_idle_older_than(&self, age: Duration) -> Result<()> {
        let ages = self.ages.as_ref().ok_or_else(|| {
            let text = "the store keeps no ages; ask for them when it is made, or mark all pages";
            Error::new(ErrorKind::InvalidInput, text)
        })?;
        let now_s = ages.now_s();
        self.for_each_object(|guard| {
            let unused_s = now_s.saturating_sub(ages.last_s(guard.index()));
            set_idle(guard, Duration::from_secs(unused_s.into()) >= age);
        });
        Ok(())
    }

    /// As [`Store::block_state_from`](crate::Store::block_state_from).
    #[must_use]
    pub fn block_state_from(&self, from: u64) -> Option<BlockState> {
        let (index, seen) = self.seen_from(from, |seen| seen.state() != PageState::Hole)?;
        let (state, flags) = (seen.state(), seen.flags());
        let is_back = state == PageState::WrittenBack;
        // What was decompressed for the file may have been small.
        let is_back_huge = self.compresses_back && seen.size_bytes() == self.unit.bytes();
        Some(BlockState {
            index: index.0,
            accessed_s: self.ages.as_ref().map_or(0, |ages| ages.last_s(index)),
            is_same: matches!(state, PageState::Same(_)),
            is_written_back: is_back,
            is_huge: state == PageState::Raw || is_back && is_back_huge,
            is_idle: flags.is_idle(),
            is_recompressed: flags.priority() > 0,
            is_incompressible: flags.is_incompressible(),
        })
    }

    /// The first page from `from` on whose word is as `is_wanted` says.
    pub(super) fn seen_from(
        &self,
        from: u64,
        is_wanted: impl Fn(Seen) -> bool,
    ) -> Option<(PageIndex, Seen)> {
        let mut next = self.table.next_touched(from);
        while next < self.table.len() {
            let seen = self.table.seen(PageIndex(next));
            if is_wanted(seen) {
                return Some((PageIndex(next), seen));
            }
            next = self.table.next_touched(next + 1);
        }
        None
    }

    /// Calls `change` for the slot of each page that has an object in memory.
    fn for_each_object(&self, change: impl Fn(&mut SlotGuard<'_, L>)) {
        let mut next = 0;
        while let Some((index, _)) = self.seen_from(next, Seen::has_object) {
            if let Ok(mut guard) = self.table.lock(index) {
                change(&mut guard);
            }
            next = index.0 + 1;
        }
    }
}

fn set_idle<L: SlotLock>(guard: &mut SlotGuard<'_, L>, idle: bool) {
    if matches!(guard.entry(), Entry::Raw(_) | Entry::Packed(_)) {
        guard.set_flags(guard.flags().with_idle(idle));
    }
}

#[cfg(all(test, not(uzram_shuttle)))]
#[path = "idle_tests.rs"]
mod tests;
