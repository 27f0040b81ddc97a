//! Compaction: memory that is lost between objects comes back, and nobody's page is the worse for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uzram::{ErrorKind, PageIndex, Store, Unit};

use crate::pages::{Rng, compressible, noise};

/// Pages of many sizes, told apart by index and version: of each eight, one is raw.
pub fn mixed(index: u64, version: u64, unit: usize) -> Vec<u8> {
    let seed = index << 32 | version;
    if index % 8 == 7 {
        return noise(seed, unit);
    }
    let mut page = vec![0; unit];
    let length = unit / 8 + Rng::new(seed).below(unit / 2);
    page[..length].copy_from_slice(&compressible(seed, length));
    page
}

fn read(store: &Store, index: u64) -> Vec<u8> {
    let mut page = vec![0xee; store.unit().bytes()];
    store.read(PageIndex(index), &mut page).unwrap();
    page
}

/// Fills the store and trims a random half; the pages that are left.
pub fn make_sparse(store: &Store, pages: u64) -> Vec<u64> {
    let unit = store.unit().bytes();
    for index in 0..pages {
        store
            .write(PageIndex(index), &mixed(index, 0, unit))
            .unwrap();
    }
    let mut rng = Rng::new(pages);
    let (trimmed, left): (Vec<u64>, _) = (0..pages).partition(|_| rng.below_u64(2) == 0);
    for index in trimmed {
        store.trim(PageIndex(index)).unwrap();
    }
    left
}

/// Compacts to the end, in steps.
pub fn compact(store: &Store) {
    while store.compact(Duration::from_micros(100)).unwrap() {}
}

fn check_and_empty(store: &Store, left: &[u64]) {
    for index in left {
        let page = mixed(*index, 0, store.unit().bytes());
        assert!(read(store, *index) == page, "{store:?}: page {index}");
    }
    for index in left {
        store.trim(PageIndex(*index)).unwrap();
    }
    let stats = store.stats();
    assert_eq!(
        (stats.mem_used_total_bytes, stats.compr_data_size_bytes),
        (0, 0)
    );
}

#[test]
fn a_sparse_store_shrinks_in_every_pool() {
    for pool in uzram::pools() {
        for (unit, size) in [(4096, 256 << 20), (4096, 32 << 20), (16384, 256 << 20)] {
            let unit = Unit::new(unit).unwrap();
            let builder = Store::builder().size(size).unit(unit).pool(pool);
            let store = builder.build().unwrap();
            let pages = (24 << 20) / unit.bytes() as u64;
            let left = make_sparse(&store, pages);
            let before = store.stats();
            compact(&store);
            let after = store.stats();
            let given_back = before.mem_resident_bytes - after.mem_resident_bytes;
            println!(
                "{pool} {unit} {} MiB: used {:.3} to {:.3} of what is stored, {} KiB back",
                size >> 20,
                before.mem_used_total_bytes as f64 / before.compr_data_size_bytes as f64,
                after.mem_used_total_bytes as f64 / after.compr_data_size_bytes as f64,
                given_back >> 10
            );
            assert_eq!(after.compr_data_size_bytes, before.compr_data_size_bytes);
            assert_eq!(after.orig_data_size_bytes, before.orig_data_size_bytes);
            assert_eq!(after.huge_pages, before.huge_pages);
            let gained = before.mem_used_total_bytes - after.mem_used_total_bytes;
            assert!(
                gained > before.mem_used_total_bytes / 10,
                "{store:?}: {after:?}"
            );
            assert!(
                after.pages_compacted * 4096 >= gained,
                "{store:?}: {after:?}"
            );
            // Small blocks are emptied singly, and a larger page of the system goes back whole.
            let goes_back = uzram::system_page::size_bytes() == 4096 || pool == "bestfit";
            assert!(given_back >= gained || !goes_back, "the system has it too");
            assert_eq!(store.stats().mem_spare_bytes, after.mem_spare_bytes);
            check_and_empty(&store, &left);
        }
    }
}

/// Gaps are closed for who asks; maintenance would move all objects for a few percent, and a spare is for
/// writers.
#[test]
fn gaps_between_objects_go_when_that_is_asked_for() {
    let make = |spare| {
        let builder = Store::builder().size(256 << 20).pool("bestfit");
        let store = builder.spare(spare).build().unwrap();
        let left = make_sparse(&store, 40_000);
        (store, left)
    };
    let used_part = |store: &Store| {
        let stats = store.stats();
        stats.mem_used_total_bytes as f64 / stats.compr_data_size_bytes as f64
    };
    let (asked, left) = make(0);
    compact(&asked);
    let (unasked, _) = make(0);
    while unasked.maintain(Duration::ZERO) {}
    let (spared, _) = make(192 << 20);
    compact(&spared);
    let parts = [&asked, &unasked, &spared].map(used_part);
    assert!(parts[0] < 1.02, "{parts:?}");
    assert!(parts[1] > parts[0] + 0.005, "{parts:?}");
    assert!(parts[2] > parts[0] + 0.005, "{parts:?}");
    check_and_empty(&asked, &left);
}

#[test]
fn a_second_compaction_finds_little_and_an_empty_store_nothing() {
    for pool in uzram::pools() {
        let store = Store::builder().size(256 << 20).pool(pool).build().unwrap();
        compact(&store);
        assert_eq!(store.stats().pages_compacted, 0);
        let left = make_sparse(&store, 4000);
        compact(&store);
        let used = store.stats().mem_used_total_bytes;
        compact(&store);
        let stats = store.stats();
        assert!(
            stats.mem_used_total_bytes * 10 > used * 9,
            "{store:?}: {stats:?}"
        );
        check_and_empty(&store, &left);
    }
}

/// Readers, writers and trims of pages of their own, while the blocks below are emptied.
#[test]
fn pages_stay_what_they_are_while_they_move() {
    const THREADS: u64 = 3;
    const PAGES: u64 = 3000;
    let turns = if cfg!(debug_assertions) { 4 } else { 30 };
    for pool in uzram::pools() {
        for checksum in [false, true] {
            let builder = Store::builder().size(PAGES << 12).pool(pool);
            let store = builder.checksum(checksum).build().unwrap();
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let workers: Vec<_> = (0..THREADS)
                    .map(|thread| {
                        let store = &store;
                        scope.spawn(move || {
                            for turn in 0..turns {
                                churn(store, (thread..PAGES).step_by(THREADS as usize), turn);
                            }
                        })
                    })
                    .collect();
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        compact(&store);
                    }
                });
                let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
                // Also when one has failed, or this would never end.
                done.store(true, Ordering::Relaxed);
                ends.into_iter().for_each(|end| end.unwrap());
            });
            let stats = store.stats();
            assert!(stats.pages_compacted > 0, "{store:?}: nothing was moved");
            store.reset();
            let stats = store.stats();
            assert_eq!(
                (stats.mem_used_total_bytes, stats.mem_resident_bytes),
                (0, 0)
            );
            assert_eq!((stats.compr_data_size_bytes, stats.failed_reads), (0, 0));
        }
    }
}

/// Writes all pages, trims half of them, and looks at the rest.
fn churn(store: &Store, pages: impl Iterator<Item = u64> + Clone, turn: u64) {
    for index in pages.clone() {
        store
            .write(PageIndex(index), &mixed(index, turn, 4096))
            .unwrap();
    }
    let is_kept = |index: u64| (index / 3 + turn).is_multiple_of(2);
    for index in pages.clone().filter(|index| !is_kept(*index)) {
        store.trim(PageIndex(index)).unwrap();
    }
    for index in pages {
        let expected = match is_kept(index) {
            true => mixed(index, turn, 4096),
            false => vec![0; 4096],
        };
        assert!(
            read(store, index) == expected,
            "{store:?}: page {index}, turn {turn}"
        );
    }
}

#[test]
fn maintenance_compacts_what_has_become_sparse_and_then_rests() {
    for pool in uzram::pools() {
        let store = Store::builder().size(256 << 20).pool(pool).build().unwrap();
        let left = make_sparse(&store, 10_000);
        let before = store.stats();
        let mut calls = 0;
        while store.maintain(Duration::ZERO) {
            calls += 1;
            assert!(calls < 100_000, "{pool}: maintenance never ends");
        }
        let after = store.stats();
        assert!(after.pages_compacted > 0, "{pool}: {after:?}");
        let gained = before.mem_used_total_bytes - after.mem_used_total_bytes;
        assert!(
            gained > before.mem_used_total_bytes / 10,
            "{pool}: {after:?}"
        );
        assert!(calls > 1, "bounded work a step");
        for _ in 0..100 {
            assert!(
                !store.maintain(Duration::ZERO),
                "{pool}: there is nothing to do"
            );
        }
        assert_eq!(store.stats().pages_compacted, after.pages_compacted);
        check_and_empty(&store, &left);
    }
}

/// Half of the raw pages that filled the limit are gone. What maintenance has closed to empty it is
/// there for writers who find no other memory.
#[test]
fn closed_blocks_are_no_reason_to_refuse_a_write() {
    for pool in uzram::pools() {
        let limit = 24 << 20;
        let builder = Store::builder().size(256 << 20).pool(pool);
        let store = builder.algorithm("lz4").mem_limit(limit).build().unwrap();
        let pages = limit >> 12;
        let page = |index| mixed(index * 8, 0, 4096);
        let fits = (0..pages * 8)
            .take_while(|index| store.write(PageIndex(*index), &page(*index)).is_ok())
            .count() as u64;
        for index in (0..fits).step_by(2) {
            store.trim(PageIndex(index)).unwrap();
        }
        for _ in 0..3 {
            store.maintain(Duration::ZERO);
        }
        for index in (0..fits).step_by(2) {
            let written = store.write(PageIndex(index), &page(index));
            let stats = store.stats();
            assert!(stats.mem_resident_bytes <= limit, "{pool}: {stats:?}");
            if let Err(error) = written {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                // Objects come back in another order, so the last few may not fit.
                assert!(
                    index > fits * 9 / 10,
                    "{pool}: {index} of {fits}: {stats:?}"
                );
                break;
            }
        }
        store.reset();
        assert_eq!(store.stats().mem_resident_bytes, 0);
    }
}

#[test]
fn compaction_stays_within_the_limit() {
    // Where huge spans serve, what counts is the arena's; where small ones do, also the pool's.
    let small = uzram::pools().into_iter().map(|pool| (pool, 6 << 20));
    for (pool, limit) in small.chain([(uzram::pools()[0], 66 << 20)]) {
        let builder = Store::builder().size(1 << 30).pool(pool);
        let store = builder.mem_limit(limit).build().unwrap();
        let fits = (0..1 << 17)
            .take_while(|index| {
                let page = mixed(*index, 0, 4096);
                store.write(PageIndex(*index), &page).is_ok()
            })
            .count() as u64;
        let mut rng = Rng::new(limit);
        let (trimmed, left): (Vec<u64>, Vec<u64>) = (0..fits).partition(|_| rng.below_u64(2) == 0);
        for index in &trimmed {
            store.trim(PageIndex(*index)).unwrap();
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let stats = store.stats();
                    assert!(stats.mem_used_total_bytes <= limit, "{pool}: {stats:?}");
                    assert!(stats.mem_resident_bytes <= limit, "{pool}: {stats:?}");
                }
            });
            compact(&store);
            for index in &trimmed {
                drop(store.write(PageIndex(*index), &mixed(*index, 1, 4096)));
            }
            compact(&store);
            done.store(true, Ordering::Relaxed);
        });
        assert!(store.stats().pages_compacted > 0, "{pool}, limit {limit}");
        for index in left {
            assert!(
                read(&store, index) == mixed(index, 0, 4096),
                "{pool}: page {index}"
            );
        }
    }
}
