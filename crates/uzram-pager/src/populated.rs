//! Pages that have content, in memory or in swap, by the system's own account.
//!
//! Nothing here touches the pages, takes memory or a lock.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::mapping::{PAGE_BYTES, is_in_memory};

/// Most pages of a question.
pub(crate) const PAGES_MAX: usize = 64;
/// A word of the table for each page: bit 63 is of a page in memory, 62 of one in swap. The kernel's `pagemap.rst`.
const PAGEMAP: &str = "/proc/thread-self/pagemap";
const WORD_BYTES: usize = 8;
const IS_POPULATED: u64 = 0b11 << 62;

/// How many pages from `address` on have content, or have none, up to the first that is otherwise, and `pages` at most.
/// Without `/proc` a page in swap counts as having none.
pub(crate) fn run(address: u64, pages: usize, is_populated: bool) -> usize {
    let pages = pages.min(PAGES_MAX);
    let mut words = [[0; WORD_BYTES]; PAGES_MAX];
    let read = File::open(PAGEMAP).and_then(|file| {
        let at = address / PAGE_BYTES as u64 * WORD_BYTES as u64;
        file.read_exact_at(words[..pages].as_flattened_mut(), at)
    });
    let has_content = |page: &usize| match read {
        Ok(()) => u64::from_ne_bytes(words[*page]) & IS_POPULATED != 0,
        Err(_) => is_in_memory(address + (page * PAGE_BYTES) as u64),
    };
    (0..pages)
        .take_while(|page| has_content(page) == is_populated)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    #[test]
    fn pages_have_content_once_they_were_written() {
        let mut memory = Mapping::reserve(80).unwrap();
        (3..8).for_each(|page| memory.page_mut(page).fill(1));
        (9..80).for_each(|page| memory.page_mut(page).fill(1));
        for (first, pages, is_populated, run_pages) in [
            (0, 8, false, 3),
            (0, 8, true, 0),
            (3, 2, true, 2),
            (3, 64, true, 5),
            (8, 64, false, 1),
            (9, 71, true, PAGES_MAX),
        ] {
            assert_eq!(run(memory.address(first), pages, is_populated), run_pages);
        }
        assert!(is_in_memory(memory.address(3)) && !is_in_memory(memory.address(8)));
    }
}
