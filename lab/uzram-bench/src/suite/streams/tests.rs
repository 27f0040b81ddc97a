//! The suite at the size of a test: every policy in every case, claims that are right about figures that are known,
//! and a report that is cut off.

use std::time::Duration;

use super::policies::{IDLE_1, IDLE_4, IDLE_8, ONE};
use super::*;
use crate::error::Error;
use crate::job::Outcome;
use crate::job::target::{Counts, Variant};
use crate::report::Standing;
use crate::stop::Stop;
use crate::suite::contention::FIGURES;
use crate::suite::two_runs;

#[test]
fn every_policy_has_figures_in_every_test_at_every_number_of_threads() {
    let mut findings = Findings::default();
    run(&two_runs(3), 512, &mut findings).unwrap();
    assert_eq!(findings.blocks.len(), 1 + iozone_tests().count());
    let names = [ALL_TESTS]
        .into_iter()
        .chain(iozone_tests().map(|test| test.name));
    for (block, name) in findings.blocks.iter().zip(names) {
        for threads in 1..=3 {
            for (variant, _) in POLICIES {
                let of = |metric: &str| {
                    let found = block.results.iter().find(|row| {
                        row.case == case(name, threads)
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
fn cells(
    times_ms: &[(&'static str, [u64; 2], u64)],
    test: &str,
    threads: usize,
    cells: &mut Cells,
) {
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
            cells.add(&case(test, threads), variant, 0, outcome);
        }
    }
}

#[test]
fn claims_are_right_about_known_figures() {
    let mut known = Cells::new(&FIGURES);
    for threads in [1, 2, 3] {
        let slower = if threads == 3 { 20 } else { 10 };
        let figures = [
            (PER_CPU, [10, 10], 0),
            // As published at 3 threads alone.
            (IDLE_4, [slower, slower], 0),
            (IDLE_8, [9, 11], 0),
            (IDLE_1, [20, 21], 400),
            (ONE, [9, 9], 400),
        ];
        cells(&figures, "rewrite", threads, &mut known);
    }
    let published = Table::streams();
    let claims = claims::of_a_test("rewrite", "Rewrite", &[1, 2, 3], &published, &known);
    let [aim, four, eight, many] = &claims[..] else {
        panic!("{claims:?}");
    };
    // 9/10 of the one stream's.
    assert_eq!(aim.standing, Standing::NotHeld, "{aim:?}");
    assert!(aim.measured.contains("of one-stream at T=1"), "{aim:?}");
    assert_eq!(four.standing, Standing::WithinSpread, "{four:?}");
    assert!(
        four.claim.contains("more than 4 streams at T=1-3"),
        "{four:?}"
    );
    assert_eq!(four.measured, "as published: T=3; within the spread: T=1-2");
    assert_eq!(eight.standing, Standing::WithinSpread, "{eight:?}");
    assert_eq!(many.standing, Standing::Held, "{many:?}");
    let all = claims::of_all_tests(&[1, 2, 3], &published, &known);
    let queues = all
        .iter()
        .find(|claim| claim.claim.contains("queues"))
        .unwrap();
    assert_eq!(queues.standing, Standing::Held, "{queues:?}");
    assert!(
        queues
            .measured
            .starts_with("T=2 400 of 1000 writes slept, 0.49"),
        "{queues:?}"
    );
}

/// Two threads that write at once, and a stream for one of them.
#[test]
fn the_idle_list_of_one_sleeps_and_that_of_eight_does_not() {
    let pages = Arc::new(Pages::of(&crate::synthetic::corpora()).unwrap());
    let row = layout(4, 256, &pages).row(iozone_tests().take(1), str::to_owned, None);
    let sleeps = |policy: usize| {
        let mut disk = Variant::new(POLICIES[policy], "lz4", row.device_bytes());
        let done = crate::job::run(&row.jobs[0].1, &mut disk, &Stop::default());
        done.unwrap().counts.sleeps
    };
    assert_eq!(sleeps(1), Some(0));
    assert!(sleeps(3) > Some(0));
    assert!(sleeps(4) > Some(0));
}
