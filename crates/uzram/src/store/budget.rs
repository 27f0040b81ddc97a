//! The budget of writing back: 4 KiB units that may still be written, to spare flash, and the pages of a batch.

use crate::error::{Error, ErrorKind, Result};
use crate::page::Unit;
use crate::sync::{MappedU64, Ordering};

/// Pages written at once, if nobody says otherwise.
const BATCH_PAGES: u64 = 64;

/// Most pages written at once, and the most bytes.
const BATCH_PAGES_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 4 << 20;

/// zram's limit is in units of this many bytes.
const LIMIT_UNIT_SHIFT: u32 = 12;

/// The words of a budget, all 0 at first. In a store that outlives its process they lie in the superblock.
#[derive(Clone, Copy)]
pub(super) struct Budget<'a> {
    limit_4k: &'a MappedU64,
    /// 0 for no limit.
    is_enabled: &'a MappedU64,
    /// 0 while nobody has said.
    batch_pages: &'a MappedU64,
}

impl<'a> Budget<'a> {
    pub(super) const WORDS: usize = 3;

    /// The budget in words of memory.
    pub(super) fn over(words: &'a [MappedU64; Budget::WORDS]) -> Budget<'a> {
        let [limit_4k, is_enabled, batch_pages] = words;
        Budget {
            limit_4k,
            is_enabled,
            batch_pages,
        }
    }

    pub(super) fn limit_4k(self) -> u64 {
        self.limit_4k.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit_4k(self, limit_4k: u64) {
        self.limit_4k.store(limit_4k, Ordering::Relaxed);
    }

    pub(super) fn is_enabled(self) -> bool {
        self.is_enabled.load(Ordering::Relaxed) != 0
    }

    pub(super) fn set_enabled(self, enabled: bool) {
        self.is_enabled.store(enabled.into(), Ordering::Relaxed);
    }

    /// At most what can be set, whatever a damaged word says.
    pub(super) fn batch_pages(self) -> usize {
        match self.batch_pages.load(Ordering::Relaxed) {
            0 => BATCH_PAGES as usize,
            pages => pages.min(BATCH_PAGES_MAX as u64) as usize,
        }
    }

    pub(super) fn set_batch_pages(self, pages: usize) -> Result<()> {
        if !(1..=BATCH_PAGES_MAX).contains(&pages) {
            let text = format!("batch of {pages} pages: must be 1 to {BATCH_PAGES_MAX}");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        self.batch_pages.store(pages as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Pages of the next batch: 0 once the limit is used up.
    pub(super) fn next_batch(self, unit: Unit) -> usize {
        let pages = self.batch_pages().min(BATCH_BYTES_MAX >> unit.shift());
        self.pages_left(unit)
            .map_or(pages, |left| pages.min(left as usize))
    }

    /// Pages that the limit still allows; none without a limit.
    pub(super) fn pages_left(self, unit: Unit) -> Option<u64> {
        let left = self.limit_4k() >> (unit.shift() - LIMIT_UNIT_SHIFT);
        self.is_enabled().then_some(left)
    }

    /// Takes what is being written from the limit, which somebody may have lowered meanwhile.
    pub(super) fn charge(self, pages: usize, unit: Unit) {
        self.change(|limit| limit.saturating_sub(units_4k(pages, unit)));
    }

    /// Gives back what was taken for a write that failed.
    pub(super) fn refund(self, pages: usize, unit: Unit) {
        self.change(|limit| limit.saturating_add(units_4k(pages, unit)));
    }

    fn change(self, change: impl Fn(u64) -> u64) {
        if self.is_enabled() {
            let (relaxed, limit_4k) = (Ordering::Relaxed, self.limit_4k);
            let _ = limit_4k.fetch_update(relaxed, relaxed, |limit| Some(change(limit)));
        }
    }
}

fn units_4k(pages: usize, unit: Unit) -> u64 {
    (pages as u64) << (unit.shift() - LIMIT_UNIT_SHIFT)
}
