//! The sample in two halves, by runs: one to choose on, one held back.

use super::Sample;
use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};

/// Neighbouring pages that stay together: 64 KiB, the largest unit.
pub const RUN_PAGES: usize = 16;
/// Fewer pages say nothing about others.
pub const PAGES_MIN: usize = 4 * RUN_PAGES;
const RUN_BYTES: usize = RUN_PAGES * PAGE_BYTES;

/// A sample, parted.
#[derive(Clone, Debug)]
pub(super) struct Split {
    /// The even runs.
    pub(super) choosing: Vec<u8>,
    /// The odd ones.
    pub(super) held_back: Vec<u8>,
    /// Pages of both that repeat one 32-bit word: a store keeps them for nothing, whatever is chosen.
    pub(super) same_filled_pages: usize,
}

impl Split {
    pub(super) fn of(sample: &Sample) -> Result<Split> {
        let pages = sample.pages.len() / PAGE_BYTES;
        if pages < PAGES_MIN {
            return Err(Error::Failed(format!(
                "{}: too little to advise on: {pages} of at least {PAGES_MIN} pages of 4 KiB",
                sample.name
            )));
        }
        let runs = sample.pages.chunks_exact(RUN_BYTES);
        let of = |odd: usize| -> Vec<u8> {
            let half = runs.clone().skip(odd).step_by(2);
            half.flatten().copied().collect()
        };
        let (choosing, held_back) = (of(0), of(1));
        let all = pages_of(&choosing).chain(pages_of(&held_back));
        let same_filled_pages = all.filter(|page| is_same_filled(page)).count();
        let split = Split {
            choosing,
            held_back,
            same_filled_pages,
        };
        if split.same_filled_pages == split.pages() {
            return Err(Error::Failed(format!(
                "{}: every page repeats one word; any choice keeps them for nothing",
                sample.name
            )));
        }
        Ok(split)
    }

    /// Pages of both halves.
    pub(super) fn pages(&self) -> usize {
        (self.choosing.len() + self.held_back.len()) / PAGE_BYTES
    }
}

pub(super) fn pages_of(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact(PAGE_BYTES)
}

/// Whether one 32-bit word fills it: what a store keeps without memory.
pub(super) fn is_same_filled(page: &[u8]) -> bool {
    page[4..] == page[..page.len() - 4]
}
