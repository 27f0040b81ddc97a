//! The suite at the size of a test: every lock in every case, claims that are right about figures that are known,
//! and a report that is cut off.

use std::time::Duration;

use super::*;
use crate::error::Error;
use crate::job::Outcome;
use crate::report::{Block, Standing};
use crate::suite::rows::{Cells, THROUGHPUT};
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
    let iozone = iozone::TESTS.iter().map(|(_, test)| test);
    let iozone = iozone.filter(|test| test.calls != Calls::Buffered);
    let cases = iozone.map(|test| (test.name, vec!["T=4"]));
    let jobs = FIO_TESTS.iter();
    let cases = cases.chain(jobs.map(|test| (test.name, vec!["jobs=1", "jobs=2", "jobs=4"])));
    let mut count = 0;
    for (test, places) in cases {
        let title = format!("{test}: ");
        let block = blocks.iter().find(|block| block.title.starts_with(&title));
        let block = block.unwrap_or_else(|| panic!("no {test}"));
        assert_eq!(block.claims.len(), 1, "{test}");
        assert_eq!(block.ratios.len(), places.len() * 6, "{test}");
        for (place, (lock, _)) in places
            .iter()
            .flat_map(|place| LOCKS.map(|lock| (place, lock)))
        {
            let found = block.results.iter().find(|row| {
                row.case == format!("{test}/{place}")
                    && row.variant == lock
                    && row.metric == THROUGHPUT.0
            });
            let spread = found.unwrap_or_else(|| panic!("{test} {lock}")).spread;
            assert!(spread.runs == 2 && spread.min > 0.0);
        }
        count += 1;
    }
    assert_eq!(blocks.len(), count + 2, "and all tests of either program");
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
    let measured = |row: &&crate::report::Measured| !row.case.contains("/published-");
    let rows = findings.blocks.iter().flat_map(|block| &block.results);
    assert_eq!(rows.filter(measured).count(), 0);
}

#[test]
fn claims_are_right_about_known_figures() {
    let mut known = Cells::default();
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
            known.add("seq-write/jobs=4", variant, 0, outcome.clone());
            known.add("seq-rw/jobs=4", variant, 0, outcome);
        }
    }
    let options = options(4);
    let (grid, _) = fio(&options, 512, Arc::new(Pages::random().unwrap()));
    let mut blocks: [Block; 2] = grid.blocks(&known).try_into().unwrap();
    crate::aims::apply("locks", true, &mut blocks);
    // Published: table 933789, rwlock 995961, cas 999357, bit 1001958, spinlock 1003298.
    let [published] = &blocks[0].claims[..] else {
        panic!("{:?}", blocks[0].claims);
    };
    let order = "published table-rwlock < rwlock < cas < bit-spinlock < spinlock at jobs=4";
    assert!(published.claim.ends_with(order), "{published:?}");
    assert_eq!(published.standing, Standing::WithinSpread, "{published:?}");
    let said = "as published: table-rwlock < spinlock at jobs=4, rwlock < spinlock at jobs=4, \
        cas < spinlock at jobs=4, bit-spinlock < spinlock at jobs=4; within the spread: table-rwlock ~ rwlock";
    assert!(published.measured.starts_with(said), "{published:?}");
    let [_, mixed] = &blocks[1].claims[..] else {
        panic!("{:?}", blocks[1].claims);
    };
    assert_eq!(mixed.standing, Standing::Held, "{mixed:?}");
    assert!(mixed.measured.starts_with("5 of 5 held"), "{mixed:?}");
}

#[test]
fn the_tables_have_every_test() {
    for (published, tests) in [(IOZONE, 11), (FIO, 4)] {
        for (field, _) in published.columns {
            let table = published.table;
            let found = table.find(&[("threads", "4")], [*field]);
            assert_eq!(found.len(), tests, "{field}");
        }
    }
}

#[test]
fn entries_grow_where_the_lock_is_not_a_bit_of_the_word() {
    assert_eq!(ENTRY_BYTES, [8, 8, 16, 16, 16, 8]);
    for ((lock, _), bytes) in LOCKS.iter().zip(ENTRY_BYTES) {
        assert_eq!(lock.contains("bit") || *lock == TABLE, bytes == 8);
    }
}
