//! The suite at the size of a test: every lock in every case, claims that are right about figures that are known,
//! and a report that is cut off.

use std::time::Duration;

use super::*;
use crate::error::Error;
use crate::job::Outcome;
use crate::report::Standing;
use crate::suite::contention::FIGURES;
use crate::suite::two_runs;

fn options(threads: usize) -> Options {
    Options {
        quick: true,
        ..two_runs(threads)
    }
}

#[test]
fn every_lock_has_figures_in_every_test() {
    let mut findings = Findings::default();
    run(&options(4), 512, &mut findings).unwrap();
    let blocks = &findings.blocks;
    assert_eq!(blocks.len(), 2 + FIO.len());
    let has = |block: &Block, case: &str| {
        for (lock, _) in LOCKS {
            let found = block
                .results
                .iter()
                .find(|row| row.case == case && row.variant == lock && row.metric == THROUGHPUT.0);
            let spread = found.unwrap_or_else(|| panic!("{case} {lock}")).spread;
            assert!(spread.runs == 2 && spread.min > 0.0);
        }
    };
    iozone_tests().for_each(|test| has(&blocks[0], &format!("iozone/{}", test.name)));
    for (at, test) in FIO.iter().enumerate() {
        has(&blocks[1], &format!("fio/{}", test.name));
        [1, 2, 4]
            .into_iter()
            .for_each(|threads| has(&blocks[2 + at], &case(test.name, threads)));
        assert_eq!(blocks[2 + at].claims.len(), 1);
    }
    assert_eq!(blocks[0].claims.len(), 2 * iozone_tests().count());
    assert_eq!(blocks[1].claims.len(), 2 * FIO.len() + 2);
    let mut keys: Vec<_> = blocks
        .iter()
        .flat_map(|block| &block.results)
        .map(|row| (row.case.clone(), row.variant.clone(), row.metric))
        .collect();
    let count = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), count, "a figure stands twice");
}

#[test]
fn an_interrupted_run_reports_nothing_that_is_not_whole() {
    let options = options(2);
    options.stop.raise();
    let mut findings = Findings::default();
    let ended = run(&options, 512, &mut findings);
    assert!(matches!(ended, Err(Error::Interrupted)));
    let measured = |row: &&crate::report::Measured| !row.case.starts_with("published/");
    let rows = findings.blocks.iter().flat_map(|block| &block.results);
    assert_eq!(rows.filter(measured).count(), 0);
}

#[test]
fn claims_are_right_about_known_figures() {
    let mut known = Cells::new(&FIGURES);
    let times_ms = [
        (ENGINE, [10, 10]),
        ("bit-spinlock", [10, 11]),
        ("rwlock", [10, 10]),
        ("spinlock", [9, 9]),
        ("cas", [10, 10]),
        (TABLE, [10, 12]),
    ];
    for (variant, times_ms) in times_ms {
        for time_ms in times_ms {
            let outcome = Outcome {
                bytes: 1 << 20,
                elapsed: Duration::from_millis(time_ms),
                ..Outcome::default()
            };
            known.add("c", variant, 0, outcome);
        }
    }
    let case = |_: &Test| "c".to_owned();
    let claims = claims::of_a_table(Table::Fio, &FIO[..1], &case, &known);
    // Published: table 933789, rwlock 995961, cas 999357, bit 1001958, spinlock 1003298.
    let [base, among] = &claims[..] else {
        panic!("{claims:?}");
    };
    let order = "published table-rwlock < rwlock, cas, bit-spinlock, spinlock";
    assert!(base.claim.ends_with(order), "{base:?}");
    assert_eq!(base.standing, Standing::WithinSpread, "{base:?}");
    let said = "as published: table-rwlock < spinlock; within the spread: table-rwlock ~ rwlock";
    assert!(base.measured.starts_with(said), "{base:?}");
    assert!(
        among
            .claim
            .ends_with("rwlock < cas < bit-spinlock < spinlock"),
        "{among:?}"
    );
    let held = "as published: rwlock < spinlock, cas < spinlock, bit-spinlock < spinlock";
    assert!(among.measured.starts_with(held), "{among:?}");
    let mixed = claims::of_mixed_rows(&case, &known);
    assert_eq!(mixed.len(), 2);
    assert_eq!(mixed[0].standing, Standing::Held, "{:?}", mixed[0]);
}

#[test]
fn entries_grow_where_the_lock_is_not_a_bit_of_the_word() {
    assert_eq!(ENTRY_BYTES, [8, 8, 16, 16, 16, 8]);
    for ((lock, _), bytes) in LOCKS.iter().zip(ENTRY_BYTES) {
        assert_eq!(lock.contains("bit") || *lock == TABLE, bytes == 8);
    }
}
