//! A memory cgroup's limit: writes fail before the system has to kill somebody.
//!
//! Each scenario runs in a process of its own, in a cgroup with a limit, where this user may make one.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use uzram::{ErrorKind, PageIndex, Store, Zeroing};

use crate::cgroup::{self, Cgroup};
use crate::pages::noise;

const SCENARIO: &str = "UZRAM_TEST_HEADROOM";

const LIMIT_BYTES: u64 = 64 << 20;

/// For as long the engine goes by what it read of its groups.
const READING_AGE_MAX: Duration = Duration::from_millis(100);

/// Pages that would take four times as much.
const PAGES: u64 = LIMIT_BYTES / 1024;

#[test]
fn a_full_cgroup_fails_writes_and_kills_nobody() {
    within_limits("fill", Limited::Own);
}

#[test]
fn the_limit_of_a_group_above_counts_too() {
    within_limits("fill", Limited::Above);
}

#[test]
fn small_spans_stay_within_the_cgroup_too() {
    within_limits("small", Limited::Own);
}

#[test]
fn several_writers_stay_within_the_cgroup_together() {
    within_limits("threads", Limited::Own);
}

/// A page that takes no memory of the pool still has a slot.
#[test]
fn the_table_of_pages_stays_within_the_cgroup_too() {
    within_limits("table", Limited::Own);
}

#[test]
fn a_process_that_is_moved_lives_by_its_new_limit() {
    within_limits("moved", Limited::Own);
}

/// The group that has the limit.
#[derive(Clone, Copy, PartialEq)]
enum Limited {
    Own,
    Above,
}

/// The other process: does nothing unless it was started to.
#[test]
fn child() {
    let Ok(scenario) = std::env::var(SCENARIO) else {
        return;
    };
    if scenario == "moved" {
        moved();
        return;
    }
    cgroup::enter();
    assert_eq!(uzram::cgroup_limit().unwrap().bytes, LIMIT_BYTES);
    match scenario.as_str() {
        "fill" => fill(&Store::builder().size(1 << 30).build().unwrap()),
        "small" => fill(&Store::builder().size(60 << 20).build().unwrap()),
        "threads" => threads(),
        "table" => table(),
        other => panic!("scenario {other}"),
    }
}

fn within_limits(scenario: &str, limited: Limited) {
    let Some(outer) = Cgroup::make(&format!("headroom-{scenario}-{}", limited as u8)) else {
        println!("skipped: it needs a memory cgroup, which this user may not make");
        return;
    };
    let inner = outer.within("inner");
    let (true, Some(inner)) = (
        outer.limit(if limited == Limited::Above {
            LIMIT_BYTES
        } else {
            4 * LIMIT_BYTES
        }),
        inner,
    ) else {
        println!("skipped: it needs a memory cgroup with a limit, and one within");
        return;
    };
    if limited == Limited::Own {
        assert!(inner.limit(LIMIT_BYTES));
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "headroom::child", "--nocapture"])
        .env(SCENARIO, scenario);
    inner.hold(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), None, "killed: {text}{errors}");
    assert!(output.status.success(), "{text}{errors}");
    text.lines()
        .filter(|line| line.contains(" KiB"))
        .for_each(|line| println!("{line}"));
}

/// Pages that do not compress, from page `first` on, until there is no more room; how many.
fn fill_up(store: &Store, first: u64) -> u64 {
    let write = |index: &u64| match store.write(PageIndex(*index), &noise(*index, 4096)) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoMemory, "{error}");
            false
        }
    };
    let end = (store.size_bytes() >> 12).min(first + PAGES);
    (first..end).take_while(write).count() as u64
}

#[track_caller]
fn check(store: &Store, index: u64, seed: u64) {
    let mut page = vec![0; 4096];
    store.read(PageIndex(index), &mut page).unwrap();
    assert_eq!(page, noise(seed, 4096), "page {index}");
}

fn fill(store: &Store) {
    // A store that fits is not what this is about.
    let eaten = vec![1u8; 24 << 20];
    let pages = fill_up(store, 0);
    let used = cgroup::usage_bytes().unwrap_or(LIMIT_BYTES);
    println!("{pages} pages fit, {} KiB are used", used >> 10);
    assert!(pages >= 4096, "most of what is left is for pages");
    assert!(pages < store.size_bytes() >> 12);
    // Overwritten in vain.
    let lacks = store.write(PageIndex(7), &noise(u64::MAX, 4096));
    if let Err(error) = lacks {
        assert_eq!(error.kind(), ErrorKind::NoMemory, "{error}");
        check(store, 7, 7);
    }
    for index in (0..pages).filter(|index| *index != 7) {
        check(store, index, index);
    }
    for index in 0..pages {
        store.trim(PageIndex(index)).unwrap();
    }
    let again = fill_up(store, 0);
    assert!(again * 10 >= pages * 9, "{again} of {pages} fit again");
    drop(eaten);
}

fn threads() {
    let store = Store::builder().size(4 << 30).build().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..8 {
                    let first = (thread * 8 + round) * PAGES / 2;
                    let pages = fill_up(store, first);
                    for index in first..first + pages {
                        check(store, index, index);
                        store.trim(PageIndex(index)).unwrap();
                    }
                }
            });
        }
    });
}

fn table() {
    let store = Store::builder().size(1 << 40).build().unwrap();
    let indices = (0..store.size_bytes() >> 12).step_by(512).map(PageIndex);
    let outcome = { indices }.try_for_each(|index| store.zero(index, Zeroing::NoHole));
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::NoMemory);
    let mut page = vec![1; 4096];
    let last = PageIndex((store.size_bytes() >> 12) - 1);
    store.read(last, &mut page).unwrap();
    assert!(page.iter().all(|byte| *byte == 0));
    let part = store.write_at(last, 7, &[1]).unwrap_err();
    assert_eq!(part.kind(), ErrorKind::NoMemory);
    // What takes nothing is refused nothing.
    store.trim(last).unwrap();
    store.zero(last, Zeroing::MayPunch).unwrap();
}

fn moved() {
    let store = Store::builder().size(1 << 30).build().unwrap();
    store.write(PageIndex(0), &noise(0, 4096)).unwrap();
    cgroup::enter();
    // The reading of before serves for as long.
    std::thread::sleep(READING_AGE_MAX + READING_AGE_MAX / 2);
    fill(&store);
    cgroup::leave();
    assert_eq!(uzram::cgroup_limit().unwrap().bytes, 4 * LIMIT_BYTES);
    let first = PAGES;
    assert!(fill_up(&store, first) > PAGES / 2, "there is more room now");
}
