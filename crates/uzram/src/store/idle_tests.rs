//! Marks and ages of pages.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use super::*;
use crate::store::fault_tests::{compressible, noise};
use crate::{Store, Zeroing};

const PAGES: u64 = 8;

/// Page 0 is same-filled, 1 is raw, 7 a hole, the others are packed.
fn make(ages: bool) -> Store {
    let builder = Store::builder().size(PAGES * 4096).algorithm("lz4");
    let store = builder.ages(ages).build().unwrap();
    store.write(PageIndex(0), &[3; 4096]).unwrap();
    store.write(PageIndex(1), &noise(1, 4096)).unwrap();
    for index in 2..PAGES - 1 {
        let page = compressible(index, 4096);
        store.write(PageIndex(index), &page).unwrap();
    }
    store
}

fn idle(store: &Store) -> Vec<u64> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(state) = store.block_state_from(from) {
        found.extend(state.is_idle.then_some(state.index));
        from = state.index + 1;
    }
    found
}

fn pass(store: &Store, seconds: u32) {
    let ages = store.inner.ages.as_ref().unwrap();
    let ahead_s = &ages.ahead_s;
    ahead_s.fetch_add(seconds, std::sync::atomic::Ordering::Relaxed);
}

#[test]
fn any_access_takes_the_mark_of_its_page_alone() {
    let store = make(false);
    assert_eq!(idle(&store), []);
    store.mark_idle();
    assert_eq!(idle(&store), [1, 2, 3, 4, 5, 6], "pages with an object");
    let (mut page, mut part) = ([0; 4096], [0; 9]);
    store.read(PageIndex(1), &mut page).unwrap();
    assert_eq!(idle(&store), [2, 3, 4, 5, 6]);
    assert_eq!(page[..], noise(1, 4096)[..]);
    store.read_at(PageIndex(2), 100, &mut part).unwrap();
    assert_eq!(idle(&store), [3, 4, 5, 6]);
    assert!(store.read_resident(PageIndex(3), &mut page).unwrap());
    assert_eq!(idle(&store), [4, 5, 6]);
    store.write_at(PageIndex(4), 100, &[1]).unwrap();
    assert_eq!(idle(&store), [5, 6]);
    store.write(PageIndex(5), &page).unwrap();
    assert_eq!(idle(&store), [6]);
    let zeroing = Zeroing::MayPunch;
    store.zero_at(PageIndex(6), 5, 5, zeroing).unwrap();
    assert_eq!(idle(&store), []);
    store.mark_idle();
    store.trim(PageIndex(6)).unwrap();
    store.write(PageIndex(6), &page).unwrap();
    assert_eq!(idle(&store), [1, 2, 3, 4, 5]);
}

/// Compaction moves an idle page and is no access.
#[test]
fn compaction_leaves_marks() {
    let pages = 4096;
    let store = Store::builder().size(pages * 4096).algorithm("lz4");
    let store = store.build().unwrap();
    for index in 0..pages {
        let page = compressible(index, 4096);
        store.write(PageIndex(index), &page).unwrap();
    }
    let kept = || (0..pages).filter(|index| index % 8 == 0);
    for index in (0..pages).filter(|index| index % 8 != 0) {
        store.trim(PageIndex(index)).unwrap();
    }
    store.mark_idle();
    while store.compact(Duration::from_secs(1)).unwrap() {}
    assert!(store.stats().pages_compacted > 0);
    assert!(idle(&store).into_iter().eq(kept()));
}

#[test]
fn pages_are_idle_that_were_not_used_for_so_long_and_no_others() {
    let store = make(true);
    let written_s = store.block_state_from(1).unwrap().accessed_s;
    pass(&store, 1000);
    let mut page = [0; 4096];
    store.read(PageIndex(1), &mut page).unwrap();
    store.write(PageIndex(2), &page).unwrap();
    store.write_at(PageIndex(3), 0, &[1]).unwrap();
    store.read_at(PageIndex(4), 0, &mut page[..5]).unwrap();
    let read_s = store.block_state_from(1).unwrap().accessed_s;
    assert!(read_s >= written_s + 1000, "{read_s} after {written_s}");
    store
        .mark_idle_older_than(Duration::from_secs(900))
        .unwrap();
    assert_eq!(idle(&store), [5, 6]);
    // A larger age takes the mark from those that are younger.
    store
        .mark_idle_older_than(Duration::from_secs(1 << 30))
        .unwrap();
    assert_eq!(idle(&store), []);
    store.mark_idle_older_than(Duration::ZERO).unwrap();
    assert_eq!(idle(&store), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn ages_take_four_bytes_a_page_and_only_where_they_were_asked_for() {
    let (without, with) = (make(false), make(true));
    let side_bytes = |store: &Store| store.stats().side_tables_bytes;
    assert_eq!(side_bytes(&with), side_bytes(&without) + 4 * PAGES);
    let refused = without.mark_idle_older_than(Duration::ZERO).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert_eq!(without.block_state_from(1).unwrap().accessed_s, 0);
}

#[test]
fn a_line_of_block_state_is_the_kernels() {
    let store = make(false);
    store.mark_idle();
    let line = |index| store.block_state_from(index).unwrap().to_string();
    assert_eq!(line(0), "           0            0.000000 s.....");
    assert_eq!(line(1), "           1            0.000000 ..hi..");
    assert_eq!(line(2), "           2            0.000000 ...i..");
    assert_eq!(store.block_state_from(7), None);
    assert_eq!(store.block_state_from(u64::MAX), None);
}
