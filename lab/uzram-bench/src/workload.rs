//! The working set of a suite: a corpus repeated in a shuffled order until it leaves the caches.
//!
//! # What is fair
//!
//! - **Cold input.** Pages lie in one buffer of at least 512 MiB. The sides of a comparison take
//!   turns of one chunk (8 MiB); each walks the whole buffer, but a side starts its walk a fraction
//!   of the buffer after the side before it. So no side finds in the cache what another has just
//!   read, and over a whole run every side has handled the same pages in the same cyclic order.
//! - **No learning.** A corpus is shuffled anew for each repetition, with a fixed seed. Neighbours
//!   differ from repetition to repetition: neither a codec context nor a branch predictor meets the
//!   same sequence twice.
//! - **Overwrites change sizes.** An overwrite puts at each place the page that a quarter of the
//!   buffer away was written before, so the store frees and allocates objects of other sizes.
//! - **Random order** is one fixed permutation, the same for every side.
//! - **Same-filled pages** are not in here; they are a case of their own.

use crate::corpus::{Corpus, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::mapping::{Backing, Mapping};
use uzram_testkit::Rng;

/// Pages that a side handles before the next side has its turn: 8 MiB, some ten milliseconds.
///
/// Short enough that noise of this machine hits all sides alike, long enough that the first pages
/// after a turn (caches full of another side's data) are a per mille of it.
pub(crate) const CHUNK_PAGES: usize = 2048;
/// Working set, in bytes: several times the largest cache.
const FULL_BYTES: usize = 512 << 20;
/// Working set with `--quick`, in bytes.
const QUICK_BYTES: usize = 64 << 20;

/// The operation on each page of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// Each page is written where nothing was, into memory not touched before.
    FirstWrite,
    /// Each page is written where another page was.
    Overwrite,
    /// Pages are read in the order in which they lie.
    SequentialRead,
    /// Pages are read in the order of a permutation.
    RandomRead,
}

impl Case {
    pub(crate) const ALL: [Case; 4] = [
        Case::FirstWrite,
        Case::Overwrite,
        Case::SequentialRead,
        Case::RandomRead,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Case::FirstWrite => "first-write",
            Case::Overwrite => "overwrite",
            Case::SequentialRead => "sequential-read",
            Case::RandomRead => "random-read",
        }
    }

    pub(crate) fn is_write(self) -> bool {
        matches!(self, Case::FirstWrite | Case::Overwrite)
    }
}

/// Pages, and the orders in which they are handled.
#[derive(Debug)]
pub(crate) struct Workload {
    input: Mapping,
    /// A permutation of all places.
    random: Vec<u32>,
}

impl Workload {
    /// The working set of `corpus`, smaller with `quick`.
    pub(crate) fn new(corpus: &Corpus, quick: bool) -> Result<Workload> {
        Workload::with_bytes(corpus.pages(), if quick { QUICK_BYTES } else { FULL_BYTES })
    }

    /// `bytes` (whole chunks) of `pages`, repeated and shuffled.
    pub(crate) fn with_bytes(pages: &[u8], bytes: usize) -> Result<Workload> {
        debug_assert!(bytes > 0 && bytes.is_multiple_of(CHUNK_PAGES * PAGE_BYTES));
        let failed = |error| Error::io("memory for the working set", error);
        let mut input = Mapping::new(bytes, Backing::Huge).map_err(failed)?;
        let mut rng = Rng::new(0x5eed);
        let mut order: Vec<u32> = (0..(pages.len() / PAGE_BYTES) as u32).collect();
        for repetition in input.chunks_mut(pages.len()) {
            rng.shuffle(&mut order);
            for (to, &from) in repetition.chunks_exact_mut(PAGE_BYTES).zip(&order) {
                to.copy_from_slice(&pages[from as usize * PAGE_BYTES..][..PAGE_BYTES]);
            }
        }
        let mut random: Vec<u32> = (0..(bytes / PAGE_BYTES) as u32).collect();
        rng.shuffle(&mut random);
        Ok(Workload { input, random })
    }

    /// All pages, one after another.
    pub(crate) fn input(&self) -> &[u8] {
        &self.input
    }

    pub(crate) fn bytes(&self) -> usize {
        self.input.len()
    }

    pub(crate) fn pages(&self) -> usize {
        self.random.len()
    }

    pub(crate) fn chunks(&self) -> usize {
        self.pages() / CHUNK_PAGES
    }

    /// The first place of a chunk.
    pub(crate) fn first_place(&self, chunk: usize) -> usize {
        chunk * CHUNK_PAGES
    }

    /// The content for the places of `chunk`, in one piece.
    pub(crate) fn content(&self, chunk: usize, generation: Generation) -> &[u8] {
        let from = match generation {
            Generation::First => chunk,
            Generation::Second => (chunk + self.chunks().div_ceil(4)) % self.chunks(),
        };
        &self.input[self.first_place(from) * PAGE_BYTES..][..CHUNK_PAGES * PAGE_BYTES]
    }

    /// The content of `place`.
    pub(crate) fn page(&self, place: usize, generation: Generation) -> &[u8] {
        let chunk = self.content(place / CHUNK_PAGES, generation);
        &chunk[place % CHUNK_PAGES * PAGE_BYTES..][..PAGE_BYTES]
    }

    /// The places that a random read of `chunk` visits, in their order.
    pub(crate) fn random_places(&self, chunk: usize) -> &[u32] {
        &self.random[self.first_place(chunk)..][..CHUNK_PAGES]
    }
}

/// One of the two contents of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// After the first write.
    First,
    /// After the overwrite.
    Second,
}

impl Generation {
    /// The content of places that had this one, after so many passes of `case`.
    pub(crate) fn after(self, case: Case, passes: usize) -> Generation {
        match (case, self) {
            (Case::FirstWrite, _) => Generation::First,
            (Case::Overwrite, Generation::First) if passes % 2 == 1 => Generation::Second,
            (Case::Overwrite, Generation::Second) if passes % 2 == 1 => Generation::First,
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Workload {
        let corpus = &crate::synthetic::corpora()[0];
        Workload::with_bytes(corpus.pages(), 4 * CHUNK_PAGES * PAGE_BYTES).unwrap()
    }

    #[test]
    fn repetitions_hold_the_same_pages_in_another_order() {
        let corpus = &crate::synthetic::corpora()[0];
        let workload = small();
        let sorted = |bytes: &[u8]| {
            let mut pages: Vec<Vec<u8>> =
                bytes.chunks_exact(PAGE_BYTES).map(<[u8]>::to_vec).collect();
            pages.sort();
            pages
        };
        let first = workload.content(0, Generation::First);
        let second = workload.content(1, Generation::First);
        assert_eq!(sorted(first), sorted(corpus.pages()));
        assert_eq!(sorted(first), sorted(second));
        assert_ne!(first, second);
    }

    #[test]
    fn the_random_order_visits_every_place_once() {
        let workload = small();
        let mut places: Vec<u32> = (0..workload.chunks())
            .flat_map(|chunk| workload.random_places(chunk))
            .copied()
            .collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..workload.pages() as u32));
    }

    #[test]
    fn an_overwrite_brings_other_content_and_page_agrees_with_content() {
        let workload = small();
        for generation in [Generation::First, Generation::Second] {
            let chunk = workload.content(3, generation);
            let place = workload.first_place(3) + 17;
            assert_eq!(
                workload.page(place, generation),
                &chunk[17 * PAGE_BYTES..][..PAGE_BYTES]
            );
        }
        assert_eq!(
            workload.content(3, Generation::Second),
            workload.content(0, Generation::First)
        );
    }
}
