//! The sample in parts, by runs: a quarter to train a dictionary on, and the rest to judge the choices
//! by.

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};

/// Neighbouring pages that stay together: 64 KiB, the largest unit.
pub const RUN_PAGES: usize = 16;
/// Fewer pages tell nothing about others.
pub const PAGES_MIN: usize = 4 * RUN_PAGES;
const RUN_BYTES: usize = RUN_PAGES * PAGE_BYTES;

/// Pages to advise on.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The source, for people: `process 1234`.
    pub name: String,
    /// Whole pages of 4 KiB in runs of [`RUN_PAGES`], at least [`PAGES_MIN`] of them.
    pub pages: Vec<u8>,
    /// Pages of the source, sampled or not.
    pub pages_total: u64,
    /// Size of the disk that is proposed, in bytes.
    pub disk_bytes: u64,
    /// The command that makes [`DICTIONARY`](super::DICTIONARY) from them.
    pub training: Vec<String>,
}

/// A sample, parted.
#[derive(Clone, Debug)]
pub(super) struct Split {
    /// The first of four runs: only the training sees it.
    pub(super) training: Vec<u8>,
    /// The other three: what is decided and what is shown is measured on them alone.
    pub(super) judged: Vec<u8>,
    /// Pages of all that repeat one 32-bit word: a store keeps them without memory, with any
    /// choice.
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
        let mut split = Split {
            training: Vec::new(),
            judged: Vec::new(),
            same_filled_pages: 0,
        };
        for (number, run) in sample.pages.chunks_exact(RUN_BYTES).enumerate() {
            match number % 4 {
                0 => split.training.extend_from_slice(run),
                _ => split.judged.extend_from_slice(run),
            }
        }
        let all = [&split.training, &split.judged];
        let all = all.into_iter().flat_map(|part| pages_of(part));
        split.same_filled_pages = all.filter(|page| is_same_filled(page)).count();
        if split.same_filled_pages == split.pages() {
            return Err(Error::Failed(format!(
                "{}: every page repeats one word; any choice keeps them for nothing",
                sample.name
            )));
        }
        Ok(split)
    }

    /// Pages of all parts.
    pub(super) fn pages(&self) -> usize {
        (self.training.len() + self.judged.len()) / PAGE_BYTES
    }

    /// Pages to train a dictionary on.
    pub(super) fn samples(&self) -> Vec<&[u8]> {
        let samples = pages_of(&self.training);
        samples.filter(|page| !is_same_filled(page)).collect()
    }
}

pub(super) fn pages_of(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact(PAGE_BYTES)
}

/// Whether one 32-bit word fills it: a store keeps it without memory.
pub(super) fn is_same_filled(page: &[u8]) -> bool {
    page[4..] == page[..page.len() - 4]
}
