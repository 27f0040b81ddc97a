//! What is written: whole records out of a pool of pages, so that no time goes into making them, and a record
//! can be told from its place and generation when it is read back.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::corpus::{Corpus, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::mapping::{Backing, Mapping};
use crate::rng::Rng;

/// Pages of a pool.
const PAGES: usize = 4096;

/// Pages that records are cut from, aligned for O_DIRECT.
pub(crate) struct Content {
    pages: Mapping,
}

impl Content {
    /// The corpora's pages, mixed, without same-filled ones.
    pub(crate) fn mixed(corpora: &[Corpus]) -> Result<Content> {
        let pages: Vec<&[u8]> = corpora
            .iter()
            .flat_map(|corpus| corpus.pages().chunks_exact(PAGE_BYTES))
            .collect();
        let mut content = Content::empty()?;
        let mut rng = Rng::new(1);
        for page in content.pages.chunks_exact_mut(PAGE_BYTES) {
            page.copy_from_slice(pages[rng.below(pages.len())]);
        }
        Ok(content)
    }

    /// Random pages, as fio's `refill_buffers` makes them: nothing compresses them.
    pub(crate) fn random() -> Result<Content> {
        let mut content = Content::empty()?;
        Rng::new(2).fill(&mut content.pages);
        Ok(content)
    }

    fn empty() -> Result<Content> {
        let pages = Mapping::new(PAGES * PAGE_BYTES, Backing::Default)
            .map_err(|error| Error::io("memory for pages", error))?;
        Ok(Content { pages })
    }

    /// The record of `bytes` that thread `thread` writes at its place `record` the `generation`th time.
    pub(crate) fn record(
        &self,
        thread: usize,
        record: u32,
        generation: u32,
        bytes: usize,
    ) -> &[u8] {
        let name = (thread as u64) << 48 ^ u64::from(generation) << 32 ^ u64::from(record);
        let places = PAGES - bytes / PAGE_BYTES + 1;
        let start = Rng::new(name).below(places) * PAGE_BYTES;
        &self.pages[start..start + bytes]
    }

    /// A look-up by content.
    pub(crate) fn known(&self) -> Known {
        let pages = self.pages.chunks_exact(PAGE_BYTES);
        Known(pages.map(fingerprint).collect())
    }
}

/// The fingerprints of a pool's pages.
pub(crate) struct Known(HashSet<u64>);

impl Known {
    pub(crate) fn has(&self, page: &[u8]) -> bool {
        self.0.contains(&fingerprint(page))
    }
}

fn fingerprint(page: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    page.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_differ_by_thread_place_and_generation_and_are_made_of_known_pages() {
        let content = Content::mixed(&Corpus::synthetic()).unwrap();
        let bytes = 8 * PAGE_BYTES;
        let one = content.record(0, 0, 0, bytes);
        assert_eq!(one, content.record(0, 0, 0, bytes));
        for (thread, record, generation) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
            assert_ne!(one, content.record(thread, record, generation, bytes));
        }
        let known = content.known();
        assert!(one.chunks_exact(PAGE_BYTES).all(|page| known.has(page)));
        let mut torn = one[..PAGE_BYTES].to_vec();
        torn[PAGE_BYTES - 1] ^= 1;
        assert!(!known.has(&torn));
    }
}
