//! Pages that leave as they came: they are compared with their copies, and not compressed.

use std::time::Duration;

use super::Pager;
use super::serve::index;
use crate::mapping::PAGE_BYTES;
use crate::plant::{Plant, is_planted};

/// Copies that go at once where the store is full.
const DROPPED: usize = 64;
/// The longest time to bring together what they leave.
const COMPACT_MAX: Duration = Duration::from_millis(10);

impl Pager {
    /// Keeps the stored form of a page that has come as a copy, or drops it. A page that was touched by a write changes.
    pub(super) fn keep_copy_or_forget(&mut self, page: usize, is_write: bool) {
        let may_keep = !is_write && self.spilled.is_none() && !self.is_store_nearly_full();
        if may_keep && self.copies.keeps() {
            self.pages.keep_copy(page);
        } else {
            self.forget(page);
        }
    }

    /// Whether a page that leaves in `slot` of the ring is as its copy is.
    pub(super) fn is_as_its_copy(&mut self, page: usize, slot: usize) -> bool {
        if !self.pages.has_copy(page) {
            return false;
        }
        let copy = &mut self.scratch[..PAGE_BYTES];
        let is_read = matches!(self.store.read_resident(index(page), copy), Ok(true));
        let is_unchanged =
            is_read && (copy == self.ring.bytes(slot) || is_planted(Plant::CopyStays));
        self.copies.note(is_unchanged);
        is_unchanged
    }

    /// Drops the copy of a page, if it has one.
    pub(super) fn drop_copy(&mut self, page: usize) {
        if self.pages.drop_copy(page) {
            self.forget(page);
        }
    }

    /// Drops some copies, for the store is full. False: there are none.
    pub(super) fn drop_some_copies(&mut self) -> bool {
        let goal = self.pages.copies().min(DROPPED);
        if goal == 0 {
            return false;
        }
        let mut dropped = 0;
        while dropped < goal {
            let page = self.copies.next;
            self.copies.next = (page + 1) % self.pages.count();
            dropped += usize::from(self.pages.has_copy(page));
            self.drop_copy(page);
        }
        // Other objects lie between them. What is left of it is done with the next ones.
        let _ = self.store.compact(COMPACT_MAX);
        true
    }
}
