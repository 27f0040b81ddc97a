//! The budget: what it bounds by the system's account, and what is refused.

use uzram::ErrorKind;
use uzram_pager::CompressedMemory;

use super::{PAGE, apart, mark, marked, memory, present, until};

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
