//! The budget: what it bounds by the system's account, and what is refused.

use uzram::ErrorKind;
use uzram_pager::CompressedMemory;

use super::{PAGE, apart, discard, mark, marked, memory, present, until, with_store};

#[test]
fn memory_stays_within_the_budget_by_the_systems_account() {
    apart(
        "budget::memory_stays_within_the_budget_by_the_systems_account",
        || {
            const PAGES: usize = 12_000;
            const BUDGET: usize = 1000;
            let Some(mut memory) = memory(PAGES, BUDGET) else {
                return;
            };
            let before = resident_bytes();
            for (seed, page) in memory.chunks_exact_mut(PAGE).enumerate() {
                mark(page, seed as u64);
            }
            let count = |memory: &[u8]| present(memory).iter().filter(|is| **is).count();
            assert!(count(&memory) <= BUDGET, "{} pages", count(&memory));
            let statistics = memory.statistics();
            assert_eq!(statistics.pages_over_budget, 0, "{statistics:?}");
            assert!(
                statistics.resident_bytes <= (BUDGET * PAGE) as u64,
                "{statistics:?}"
            );
            // All of the process: the ring, the tables and the store too.
            let grown = resident_bytes() - before;
            let accounted = statistics.resident_bytes + statistics.compressed_memory_bytes;
            assert!(
                grown < accounted + (8 << 20),
                "{grown} bytes more: {statistics:?}"
            );
            assert!(
                statistics.stored_bytes >= ((PAGES - BUDGET) * PAGE) as u64,
                "{statistics:?}"
            );

            // Upwards, and in steps that go over all pages.
            for page in (0..PAGES).chain((0..PAGES).map(|page| page * 7 % PAGES)) {
                assert!(
                    memory[page * PAGE..][..PAGE] == marked(page as u64),
                    "page {page}"
                );
            }
            assert!(count(&memory) <= BUDGET, "{} pages", count(&memory));
            assert_eq!(memory.statistics().pages_over_budget, 0);
        },
    );
}

/// A scan in equal steps costs few faults: more pages come with each, and the thread runs on when all are there.
#[test]
fn scans_in_equal_steps_get_pages_ahead() {
    apart("budget::scans_in_equal_steps_get_pages_ahead", || {
        const PAGES: usize = 4096;
        for (step, budget) in [(1, PAGES), (4, PAGES), (-3, PAGES), (1, 1000), (5, 1000)] {
            let Some(mut memory) = memory(PAGES, 2 * PAGES) else {
                return;
            };
            for (seed, page) in memory.chunks_exact_mut(PAGE).enumerate() {
                mark(page, seed as u64);
            }
            memory.set_budget(64 * PAGE).unwrap();
            until(&memory, "all pages have left", |memory| {
                memory.statistics().resident_bytes <= (64 * PAGE) as u64
            });
            memory.set_budget(2 * budget * PAGE).unwrap();
            let before = memory.statistics();
            let mut places: Vec<usize> = (0..PAGES).step_by(isize::unsigned_abs(step)).collect();
            if step < 0 {
                places.reverse();
            }
            for page in &places {
                let bytes = &memory[page * PAGE..][..PAGE];
                assert!(bytes == marked(*page as u64), "page {page}");
            }
            let after = memory.statistics();
            let faults = after.faults_stored + after.faults_repeated
                - before.faults_stored
                - before.faults_repeated;
            let pages = places.len() as u64;
            assert!(
                faults < pages / 8,
                "step {step}, budget {budget}: {faults} faults of {pages} pages: {after:?}"
            );
        }
    });
}

/// This process's memory, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    kib << 10
}

#[test]
fn a_budget_can_shrink_and_grow() {
    apart("budget::a_budget_can_shrink_and_grow", || {
        const PAGES: usize = 4000;
        let Some(mut memory) = memory(PAGES, 2 * PAGES) else {
            return;
        };
        for (seed, page) in memory.chunks_exact_mut(PAGE).enumerate() {
            mark(page, seed as u64);
        }
        assert_eq!(memory.statistics().pages_out, 0, "all of it fits");
        for budget in [500, 64, 1000, 100] {
            memory.set_budget(budget * PAGE).unwrap();
            until(&memory, "a smaller budget holds", |memory| {
                memory.statistics().resident_bytes <= (budget * PAGE) as u64
            });
            let present = present(&memory).iter().filter(|is| **is).count();
            assert!(present <= budget, "{present} pages of {budget}");
            for (seed, page) in memory.chunks_exact(PAGE).enumerate() {
                assert!(page == marked(seed as u64), "budget {budget}: page {seed}");
            }
        }
        assert!(memory.set_budget(0).is_err());
    });
}

#[test]
fn lengths_and_budgets_that_make_no_sense_are_refused() {
    for (length, budget, word) in [
        (0, 1 << 20, "length 0"),
        (usize::MAX, 1 << 20, "length 18446744073709551615"),
        (1 << 20, 0, "budget 0: must be 262144 to "),
        (1 << 20, usize::MAX, "budget 18446744073709551615"),
    ] {
        let error = CompressedMemory::new(length, budget).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let unit = uzram::Unit::new(16384).unwrap();
    let store = uzram::Store::builder().unit(unit);
    let error = CompressedMemory::with_store(1 << 20, 1 << 20, store).unwrap_err();
    assert!(error.to_string().contains("unit 16384"), "{error}");
}

#[test]
fn a_store_that_is_full_keeps_pages_beyond_the_budget() {
    apart(
        "budget::a_store_that_is_full_keeps_pages_beyond_the_budget",
        || {
            const PAGES: usize = 1000;
            let store = uzram::Store::builder().mem_limit(1 << 20);
            let Some(mut memory) = super::with_store(PAGES, 64, store) else {
                return;
            };
            for (seed, page) in memory.chunks_exact_mut(PAGE).enumerate() {
                mark(page, seed as u64);
            }
            for (seed, page) in memory.chunks_exact(PAGE).enumerate() {
                assert!(page == marked(seed as u64), "page {seed}");
            }
            let statistics = memory.statistics();
            assert!(
                statistics.pages_kept > 0 && statistics.pages_over_budget > 0,
                "{statistics:?}"
            );
            assert!(
                statistics.compressed_memory_bytes <= 1 << 20,
                "{statistics:?}"
            );
        },
    );
}

/// Memory of 800 marked pages under a budget of 200, with a store of this limit in bytes.
fn marked_pages(limit_bytes: u64) -> Option<CompressedMemory> {
    let store = uzram::Store::builder().mem_limit(limit_bytes);
    let mut memory = with_store(800, 200, store)?;
    for (page, bytes) in memory.chunks_exact_mut(PAGE).enumerate() {
        mark(bytes, page as u64);
    }
    Some(memory)
}

/// Reads all pages in an order that no window foresees.
fn read_all(memory: &[u8]) {
    for nth in 0..800 {
        let page = nth * 367 % 800;
        assert!(
            memory[page * PAGE..][..PAGE] == marked(page as u64)[..],
            "page {page}"
        );
    }
}

#[test]
fn pages_that_are_only_read_are_compressed_once() {
    apart(
        "budget::pages_that_are_only_read_are_compressed_once",
        || {
            let Some(mut memory) = marked_pages(0) else {
                return;
            };
            read_all(&memory);
            let before = memory.statistics();
            (0..5).for_each(|_| read_all(&memory));
            let after = memory.statistics();
            let compressed = after.pages_out - before.pages_out;
            let unchanged = after.pages_unchanged - before.pages_unchanged;
            assert!(compressed < 300 && unchanged > 2000, "{before:?} {after:?}");
            // One byte changes, and the copy is not taken for the page.
            for page in 0..800 {
                assert_eq!(memory[page * PAGE + 5], marked(page as u64)[5]);
                memory[page * PAGE + 5] ^= 1;
            }
            for page in memory.chunks_exact_mut(PAGE) {
                page[5] ^= 1;
            }
            read_all(&memory);
            // What was discarded does not come back from a copy.
            discard(&mut memory[..400 * PAGE], libc::MADV_DONTNEED);
            assert!(memory[..400 * PAGE].iter().all(|byte| *byte == 0));
        },
    );
}

#[test]
fn where_pages_change_few_copies_are_kept() {
    apart("budget::where_pages_change_few_copies_are_kept", || {
        let Some(mut memory) = marked_pages(0) else {
            return;
        };
        for round in 0..5_u8 {
            for nth in 0..800 {
                let at = nth * 367 % 800 * PAGE + 7;
                // The touch is a read.
                let byte = std::hint::black_box(memory[at]);
                memory[at] = byte.wrapping_add(round);
            }
        }
        let pages = memory.statistics().compressed_memory_bytes / PAGE as u64;
        // 600 pages have left, each shrinks to about half.
        assert!(pages < 360, "{:?}", memory.statistics());
    });
}

/// A full store takes what leaves: copies go for it.
#[test]
fn copies_go_where_the_store_is_full() {
    apart("budget::copies_go_where_the_store_is_full", || {
        // 600 pages that shrink to some 2200 bytes fit with 200 of noise among them, and with copies they do not.
        let Some(mut memory) = marked_pages(2_000_000) else {
            return;
        };
        (0..3).for_each(|_| read_all(&memory));
        assert!(memory.statistics().pages_unchanged > 0);
        let noise = |page: usize| uzram_testkit::noise(page as u64, PAGE);
        for page in 0..200 {
            memory[page * PAGE..][..PAGE].copy_from_slice(&noise(page));
        }
        for page in 200..800 {
            assert!(memory[page * PAGE..][..PAGE] == marked(page as u64)[..]);
        }
        let statistics = memory.statistics();
        // What they leave is in parts, which a full store may not bring together at once.
        assert!(statistics.pages_over_budget < 10, "{statistics:?}");
        for page in 0..200 {
            assert!(
                memory[page * PAGE..][..PAGE] == noise(page)[..],
                "page {page}"
            );
        }
    });
}
