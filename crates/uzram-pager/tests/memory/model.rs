//! Compressed memory against a copy of it in plain memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use uzram_pager::CompressedMemory;
use uzram_testkit::Rng;

use super::{PAGE, apart, discard, mark, memory, serves_the_system};

/// Touches of a test's thread.
const STEPS: usize = 12_000;

#[test]
fn random_touches_by_threads_find_what_was_written() {
    apart(
        "model::random_touches_by_threads_find_what_was_written",
        || {
            let Some(mut memory) = memory(3 * 700, 80) else {
                return;
            };
            std::thread::scope(|scope| {
                for (seed, part) in memory.chunks_exact_mut(700 * PAGE).enumerate() {
                    scope.spawn(move || compare(seed as u64, part));
                }
            });
            let statistics = memory.statistics();
            assert!(statistics.pages_out > 1000, "{statistics:?}");
            assert!(statistics.faults_staged > 0, "{statistics:?}");
            assert!(
                !statistics.has_failed && statistics.pages_poisoned == 0,
                "{statistics:?}"
            );
        },
    );
}

/// Does to `part` and to a copy of it the same random things.
fn compare(seed: u64, part: &mut [u8]) {
    let mut rng = Rng::new(seed);
    let mut copy = vec![0; part.len()];
    let file = tempfile::tempfile().unwrap();
    let pages = part.len() / PAGE;
    for step in 0..STEPS {
        let page = rng.below(pages);
        let count = (1 + rng.below(40)).min(pages - page);
        let range = page * PAGE..(page + count) * PAGE;
        let one = page * PAGE..(page + 1) * PAGE;
        match rng.below(100) {
            0..=39 => assert!(part[one.clone()] == copy[one], "step {step}: page {page}"),
            40..=44 => assert!(
                part[range.clone()] == copy[range],
                "step {step}: {count} at {page}"
            ),
            45..=64 => {
                mark(&mut part[one.clone()], step as u64);
                mark(&mut copy[one], step as u64);
            }
            65..=89 => {
                let at = one.start + rng.below(PAGE);
                assert_eq!(part[at], copy[at], "step {step}: byte {at}");
                part[at] = step as u8;
                copy[at] = step as u8;
            }
            90 => {
                part[range.clone()].fill(step as u8);
                copy[range].fill(step as u8);
            }
            91 => {
                // What is written after this advice stays, whenever the system takes the rest.
                discard(&mut part[one.clone()], libc::MADV_FREE);
                mark(&mut part[one.clone()], step as u64);
                mark(&mut copy[one], step as u64);
            }
            92..=93 => {
                discard(&mut part[range.clone()], libc::MADV_DONTNEED);
                copy[range].fill(0);
            }
            94..=95 if serves_the_system() => {
                // The system touches the pages.
                use std::os::unix::fs::FileExt;
                file.write_all_at(&part[range.clone()], 0).unwrap();
                let other = rng.below(pages - count + 1) * PAGE;
                let other = other..other + count * PAGE;
                file.read_exact_at(&mut part[other.clone()], 0).unwrap();
                copy.copy_within(range, other.start);
                assert!(
                    part[other.clone()] == copy[other],
                    "step {step}: read into {count}"
                );
            }
            94..=98 => {
                part.copy_within(range.clone(), 0);
                copy.copy_within(range, 0);
            }
            _ => fork_and_wait(),
        }
    }
    assert!(part == copy, "at the end");
}

/// A child that ends at once.
fn fork_and_wait() {
    // SAFETY: the child makes one system call that is allowed there.
    match unsafe { libc::fork() } {
        // SAFETY: as above.
        0 => unsafe { libc::_exit(0) },
        child => {
            assert!(child > 0);
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
}

/// The words of the memory, which threads may change at once.
fn words(memory: &mut CompressedMemory) -> &[AtomicU64] {
    let (at, count) = (memory.as_mut_ptr().cast(), memory.len() / 8);
    // SAFETY: aligned to a page, borrowed for writing, and any bytes are valid.
    unsafe { std::slice::from_raw_parts(at, count) }
}

#[test]
fn no_write_is_lost_while_pages_leave_and_come() {
    apart("model::no_write_is_lost_while_pages_leave_and_come", || {
        const PAGES: usize = 160;
        const ADDS: usize = 400_000;
        let Some(mut memory) = memory(PAGES, 64) else {
            return;
        };
        let words = words(&mut memory);
        std::thread::scope(|scope| {
            for seed in 0..3 {
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    for add in 0..ADDS {
                        // Most adds go to few pages, which are written while they leave.
                        let bound = if add % 8 == 0 { PAGES } else { 40 };
                        let page = rng.below(bound);
                        words[page * (PAGE / 8) + add % (PAGE / 8)].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let sum: u64 = words.iter().map(|word| word.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 3 * ADDS as u64);
        assert!(
            memory.statistics().pages_out > 1000,
            "{:?}",
            memory.statistics()
        );
    });
}

#[test]
fn discarded_bytes_never_come_back() {
    apart("model::discarded_bytes_never_come_back", || {
        const PAGES: usize = 400;
        let Some(mut memory) = memory(PAGES, 64) else {
            return;
        };
        let (ours, theirs) = memory.split_at_mut(PAGES / 2 * PAGE);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Another thread makes our pages leave at any moment.
            scope.spawn(|| {
                let mut rng = Rng::new(1);
                while !is_over.load(Ordering::Relaxed) {
                    theirs[rng.below(PAGES / 2) * PAGE] = 1;
                }
            });
            let mut rng = Rng::new(2);
            for round in 1..2000 {
                let page = rng.below(PAGES / 2);
                let count = 1 + rng.below(8).min(PAGES / 2 - page - 1);
                let range = page * PAGE..(page + count) * PAGE;
                for page in ours[range.clone()].chunks_exact_mut(PAGE) {
                    mark(page, round);
                }
                if rng.below(2) == 0 {
                    std::thread::yield_now();
                }
                discard(&mut ours[range.clone()], libc::MADV_DONTNEED);
                for (at, page) in ours[range].chunks_exact_mut(PAGE).enumerate() {
                    assert!(
                        page.iter().all(|byte| *byte == 0),
                        "round {round}: page {at} of {count}"
                    );
                    page[9] = 1;
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}
