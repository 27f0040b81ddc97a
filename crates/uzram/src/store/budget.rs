//! The budget of writing back: 4 KiB units that may still be written, to spare flash, and the pages of a batch.

use crate::error::{Error, ErrorKind, Result};
use crate::page::Unit;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Pages written at once, if nobody says otherwise.
const BATCH_PAGES: u64 = 64;

/// Most pages written at once, and the most bytes.
const BATCH_PAGES_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 4 << 20;

/// zram's limit is in units of this many bytes.
const LIMIT_UNIT_SHIFT: u32 = 12;

#[derive(Debug)]
pub(super) struct Budget {
    limit_4k: AtomicU64,
    is_enabled: AtomicBool,
    batch_pages: AtomicU64,
}

impl Budget {
    pub(super) fn new() -> Budget {
        Budget {
            limit_4k: AtomicU64::new(0),
            is_enabled: AtomicBool::new(false),
            batch_pages: AtomicU64::new(BATCH_PAGES),
        }
    }

    pub(super) fn limit_4k(&self) -> u64 {
        self.limit_4k.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit_4k(&self, limit_4k: u64) {
        self.limit_4k.store(limit_4k, Ordering::Relaxed);
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Relaxed)
    }

    pub(super) fn set_enabled(&self, enabled: bool) {
        self.is_enabled.store(enabled, Ordering::Relaxed);
    }

    pub(super) fn batch_pages(&self) -> usize {
        self.batch_pages.load(Ordering::Relaxed) as usize
    }

    pub(super) fn set_batch_pages(&self, pages: usize) -> Result<()> {
        if !(1..=BATCH_PAGES_MAX).contains(&pages) {
            let text = format!("batch of {pages} pages: must be 1 to {BATCH_PAGES_MAX}");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        self.batch_pages.store(pages as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Pages of the next batch: 0 once the limit is used up.
    pub(super) fn next_batch(&self, unit: Unit) -> usize {
        let pages = self.batch_pages().min(BATCH_BYTES_MAX >> unit.shift());
        self.pages_left(unit)
            .map_or(pages, |left| pages.min(left as usize))
    }

    /// Pages that the limit still allows; none without a limit.
    pub(super) fn pages_left(&self, unit: Unit) -> Option<u64> {
        let left = self.limit_4k() >> (unit.shift() - LIMIT_UNIT_SHIFT);
        self.is_enabled().then_some(left)
    }

    /// Takes what is being written from the limit, which somebody may have lowered meanwhile.
    pub(super) fn charge(&self, pages: usize, unit: Unit) {
        self.change(|limit| limit.saturating_sub(units_4k(pages, unit)));
    }

    /// Gives back what was taken for a write that failed.
    pub(super) fn refund(&self, pages: usize, unit: Unit) {
        self.change(|limit| limit.saturating_add(units_4k(pages, unit)));
    }

    fn change(&self, change: impl Fn(u64) -> u64) {
        if self.is_enabled() {
            let _ = self
                .limit_4k
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |limit| {
                    Some(change(limit))
                });
        }
    }
}

fn units_4k(pages: usize, unit: Unit) -> u64 {
    (pages as u64) << (unit.shift() - LIMIT_UNIT_SHIFT)
}
