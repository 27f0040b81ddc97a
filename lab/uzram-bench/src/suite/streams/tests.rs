//! The suite at the size of a test: every policy in every case, claims that are right about figures that are known,
//! and a report that is cut off.

use std::time::Duration;

use super::*;
use crate::error::Error;
use crate::job::Outcome;
use crate::job::target::{Counts, Variant};
use crate::report::{Basis, Block, Standing};
use crate::stop::Stop;
use crate::suite::grid::ALL_TESTS;
use crate::suite::rows::{Cells, SLOW_PATH, THROUGHPUT, USER, WORST};
use crate::suite::two_runs;

#[test]
fn every_policy_has_figures_in_every_test_at_every_number_of_threads() {
    let mut findings = Findings::default();
    run(&two_runs(3), 512, &mut findings).unwrap();
    let names = [ALL_TESTS].into_iter().chain(tests().map(|test| test.name));
    let names: Vec<&str> = names.collect();
    assert_eq!(findings.blocks.len(), names.len());
    let grid = grid("lz4", 512, vec![1, 2, 3]);
    for (block, name) in findings.blocks.iter().zip(names) {
        for threads in 1..=3 {
            for (variant, _) in POLICIES {
                let of = |metric: &str| {
                    let found = block.results.iter().find(|row| {
                        row.case == grid.case(name, threads)
                            && row.variant == variant
                            && row.metric == metric
                    });
                    found.map(|row| row.spread)
                };
                let throughput = of(THROUGHPUT.0).unwrap();
                assert!(
                    throughput.runs == 2 && throughput.min > 0.0,
                    "{name} {variant}"
                );
                assert!(of(USER.0).is_some() && of(WORST.0).unwrap().min > 0.0);
                let has_slow_path = of(SLOW_PATH.0).is_some();
                assert_eq!(
                    has_slow_path,
                    !(name.ends_with("read") || name == "mixed-workload" && threads == 1)
                );
            }
        }
        assert_eq!(block.ratios.len(), 3 * 4);
        assert!(!block.claims.is_empty() && !block.matrices.is_empty());
    }
    let first = &findings.blocks[1].results;
    let slow = first.iter().find(|row| row.metric == SLOW_PATH.0).unwrap();
    assert!(slow.spread.min > 0.0, "a fresh disk has no memory yet");
}

#[test]
fn an_interrupted_run_reports_nothing_that_is_not_whole() {
    let options = two_runs(2);
    options.stop.raise();
    let mut findings = Findings::default();
    let ended = run(&options, 512, &mut findings);
    assert!(matches!(ended, Err(Error::Interrupted)));
    assert!(findings.blocks.iter().all(|block| block.results.is_empty()));
}

/// Rounds in which a variant took so many milliseconds for a mebibyte, and slept so often in 1000 writes.
fn add(grid: &Grid, times_ms: &[(&'static str, [u64; 2], u64)], threads: usize, cells: &mut Cells) {
    for (variant, times_ms, sleeps) in times_ms {
        for time_ms in times_ms {
            let outcome = Outcome {
                bytes: 1 << 20,
                written_pages: 1000,
                elapsed: Duration::from_millis(*time_ms),
                worst_ns: 1_000_000,
                counts: Counts {
                    compressed_bytes: None,
                    slow_path_writes: Some(0),
                    sleeps: Some(*sleeps),
                },
                ..Outcome::default()
            };
            cells.add(&grid.case("rewrite", threads), variant, 0, outcome);
        }
    }
}

#[test]
fn claims_are_right_about_known_figures() {
    let grid = grid("lzo", 64, vec![1, 2, 3]);
    let mut known = Cells::default();
    for threads in [1, 2, 3] {
        let slower = if threads == 3 { 20 } else { 10 };
        let figures = [
            (PER_CPU, [10, 10], 0),
            // As published at 3 threads alone.
            ("idle-list-4", [slower, slower], 0),
            ("idle-list-8", [9, 11], 0),
            ("idle-list-1", [20, 21], 400),
            ("one-stream", [9, 9], 400),
        ];
        add(&grid, &figures, threads, &mut known);
    }
    let mut blocks: [Block; 1] = grid.blocks(&known).try_into().unwrap();
    crate::aims::apply("streams", true, &mut blocks);
    let [published, aims @ ..] = &blocks[0].claims[..] else {
        panic!("{blocks:?}");
    };
    assert_eq!(published.basis, Basis::Published);
    // Published at T=1: 8 streams more than 4, per-CPU most.
    let order = "rewrite, published idle-list-4 < idle-list-8 < uzram-per-cpu at T=1-3";
    assert_eq!(published.claim, order);
    let found = "as published: idle-list-4 < idle-list-8 at T=3, idle-list-4 < uzram-per-cpu at T=3; \
        within the spread: idle-list-4 ~ idle-list-8 at T=1-2, idle-list-4 ~ uzram-per-cpu at T=1-2, \
        idle-list-8 ~ uzram-per-cpu at T=1-3";
    assert_eq!(published.measured, found);
    assert_eq!(published.standing, Standing::WithinSpread);
    let standing = |said: &str| {
        let found = aims.iter().find(|claim| claim.claim.contains(said));
        found
            .unwrap_or_else(|| panic!("{said}: {aims:#?}"))
            .standing
    };
    assert_eq!(
        standing("of uzram-per-cpu / one-stream in *"),
        Standing::NotHeld
    );
    assert_eq!(standing("/ idle-list-* in *"), Standing::WithinSpread);
    assert_eq!(
        standing("/ idle-list-1 in rewrite/T=* more than 1"),
        Standing::Held
    );
    assert_eq!(
        standing("sleeps for a stream of idle-list-1 in rewrite/T=* more"),
        Standing::Held
    );
    assert_eq!(
        standing("throughput over two threads of uzram-*"),
        Standing::Held
    );
}

#[test]
fn the_table_has_every_test_for_1_to_10_threads() {
    let table = Table::STREAMS;
    for threads in 1..=10 {
        let threads = threads.to_string();
        let names = tests().map(|test| test.name);
        for test in names.chain(["time_user", "time_sys"]) {
            let keys = [("threads", threads.as_str()), ("test", test)];
            for (field, _) in PUBLISHED.columns {
                assert_eq!(table.find(&keys, [*field]).len(), 1, "{test} {field}");
            }
        }
    }
}

/// Two threads that write at once, and a stream for one of them.
#[test]
fn the_idle_list_of_one_sleeps_and_that_of_eight_does_not() {
    let pages = Arc::new(Pages::of(&crate::synthetic::corpora()).unwrap());
    let row = row(&grid("lz4", 256, vec![4]), 4, 256, &pages);
    let sleeps = |policy: usize| {
        let mut disk = Variant::new(POLICIES[policy], "lz4", row.device_bytes());
        let done = crate::job::run(&row.jobs[0].1, &mut disk, &Stop::default());
        done.unwrap().counts.sleeps
    };
    assert_eq!(sleeps(1), Some(0));
    assert!(sleeps(3) > Some(0));
    assert!(sleeps(4) > Some(0));
}
