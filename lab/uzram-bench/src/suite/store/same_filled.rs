//! Pages that repeat one word, measured apart: they need no codec and would flatter every figure.

use crate::corpus::{Corpus, PAGE_BYTES};
use crate::error::Result;
use crate::suite::Options;
use crate::workload::{CHUNK_PAGES, Case, Workload};

/// Working set, in bytes.
const BYTES: usize = 64 << 20;

/// The cases, with their names in reports.
pub(crate) const CASES: [(Case, &str); 2] = [
    (Case::FirstWrite, "same-filled-write"),
    (Case::SequentialRead, "same-filled-read"),
];

/// The algorithm makes no difference, so only the first one's block has these cases.
pub(crate) fn applies(corpus: &Corpus, algorithm: &str, options: &Options) -> bool {
    corpus.same_filled_pages() > 0
        && options
            .algorithms
            .first()
            .is_some_and(|first| first == algorithm)
}

/// The same-filled pages of `corpus`, repeated.
pub(crate) fn workload(corpus: &Corpus) -> Result<Workload> {
    const { assert!(BYTES.is_multiple_of(CHUNK_PAGES * PAGE_BYTES)) };
    Workload::with_bytes(corpus.same_filled(), BYTES)
}
