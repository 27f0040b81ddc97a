//! Damaged objects and hostile words: an error or a page, never a panic, and with a checksum never
//! wrong bytes.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use proptest::prelude::*;

use super::fault_tests::{compressible, noise};
use super::recover_tests::{config, make, recover, with_pool};
use super::*;
use crate::page::Unit;
use crate::region::Region;

/// The place and size of the object of page `index` in the arena, in bytes.
fn place(store: &Store, index: u64) -> (usize, usize) {
    let guard = store.inner.table.lock(PageIndex(index)).unwrap();
    match guard.entry() {
        Entry::Raw(handle) | Entry::Packed(handle) => (handle.offset_bytes(), handle.size_bytes()),
        other => panic!("{other:?} has no object"),
    }
}

fn damage(arena: &Region, at: usize, mask: u8) {
    let word = u64::from(mask) << (at % 8 * 8);
    arena.words()[at / 8].fetch_xor(word, Ordering::Relaxed);
}

/// Reads page `index`. On an error the buffer must hold zeroes and the error must be the right
/// one.
fn read(store: &Store, index: u64) -> Option<Vec<u8>> {
    let mut page = vec![0xee; store.unit().bytes()];
    match store.read(PageIndex(index), &mut page) {
        Ok(()) => Some(page),
        Err(error) => {
            assert_eq!((error.kind(), error.errno()), (ErrorKind::Corrupt, 5));
            assert!(page.iter().all(|byte| *byte == 0), "bytes of others leak");
            None
        }
    }
}

fn each_kind(mut test: impl FnMut(&Store, &Region)) {
    for algorithm in crate::algorithms() {
        for (unit, checksum) in [(4096, true), (4096, false), (16384, true)] {
            let config = config(16, Unit::new(unit).unwrap(), algorithm, checksum);
            let (store, files) = make(config);
            test(&store, &files.arena());
        }
    }
}

#[test]
fn every_flipped_bit_is_found_by_the_checksum_and_harmless_without() {
    each_kind(|store, arena| {
        let unit = store.unit().bytes();
        let (kept, raw) = (compressible(2, unit), noise(3, unit));
        // Mostly one byte: an object small enough to try every bit of.
        let mut page = vec![b'u'; unit];
        page[..200].copy_from_slice(&compressible(1, 200));
        store.write(PageIndex(0), &page).unwrap();
        store.write(PageIndex(1), &kept).unwrap();
        store.write(PageIndex(2), &raw).unwrap();
        for (index, content, step) in [(0, &page, 1), (1, &kept, 13), (2, &raw, 97)] {
            let (start, size) = place(store, index);
            for bit in (0..size * 8).step_by(step) {
                damage(arena, start + bit / 8, 1 << (bit % 8));
                let seen = read(store, index);
                assert!(
                    seen.is_none() || store.inner.checksums.is_none(),
                    "page {index}, bit {bit}"
                );
                damage(arena, start + bit / 8, 1 << (bit % 8));
            }
            assert!(read(store, index).as_ref() == Some(content));
        }
        assert!(read(store, 1) == Some(kept), "neighbours are whole");
    });
}

#[test]
fn a_damaged_page_refuses_parts_and_is_repaired_by_a_whole_write() {
    each_kind(|store, arena| {
        let unit = store.unit().bytes();
        if store.inner.checksums.is_none() {
            return;
        }
        store.write(PageIndex(0), &compressible(1, unit)).unwrap();
        let (start, size) = place(store, 0);
        (start..start + size)
            .step_by(7)
            .for_each(|at| damage(arena, at, 0x5a));
        let before = store.stats();
        let mut part = [0xee; 5];
        let kinds = [
            store.read_at(PageIndex(0), 3, &mut part),
            store.write_at(PageIndex(0), 3, b"part"),
            store.zero_at(PageIndex(0), 3, 9, Zeroing::NoHole),
        ]
        .map(|done| done.unwrap_err().kind());
        assert_eq!(kinds, [ErrorKind::Corrupt; 3]);
        let after = store.stats();
        assert_eq!(after.failed_reads, before.failed_reads + 1);
        assert_eq!(after.failed_writes, before.failed_writes + 2);
        assert_eq!(after.compr_data_size_bytes, before.compr_data_size_bytes);
        store.write(PageIndex(0), &compressible(5, unit)).unwrap();
        assert!(read(store, 0) == Some(compressible(5, unit)));
        store.trim(PageIndex(0)).unwrap();
        assert_eq!(store.stats().mem_used_total_bytes, 0);
    });
}

/// Words that look like slots: every kind and flag, places in and around the arena.
fn word() -> impl Strategy<Value = u64> {
    let size = prop_oneof![0..200u64, Just(4095), any::<u16>().prop_map(u64::from)];
    let place = prop_oneof![
        0..4096u64,
        (0..64u64).prop_map(|page| page * 256),
        any::<u64>().prop_map(|word| word >> 26)
    ];
    let built =
        (0..1024u64, size, place).prop_map(|(low, size, place)| low | size << 10 | place << 26);
    prop_oneof![4 => built, 1 => any::<u64>(), 1 => Just(0u64)]
}

/// A word is only glimpsed before a request's next page is read, so it may say anything.
#[test]
fn the_place_of_what_is_read_next_may_be_anywhere() {
    let (store, files) = make(config(16, Unit::DEFAULT, "lz4", false));
    store.write(PageIndex(0), &compressible(0, 4096)).unwrap();
    let table = files.table();
    let word = &table.words()[1];
    for kind in 0..8 {
        for payload in [0, 1, 1 << 20, u64::MAX] {
            word.store(payload << 10 | kind << 2, Ordering::Relaxed);
            [0, 1, 15, 16, u64::MAX]
                .into_iter()
                .for_each(|index| store.expect(PageIndex(index)));
        }
    }
    word.store(0, Ordering::Relaxed);
    assert!(read(&store, 0) == Some(compressible(0, 4096)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 250 } else { 4000 }))]

    #[test]
    fn hostile_words_are_lost_or_are_pages(
        words in prop::collection::vec(word(), 1..16),
        bytes in prop::collection::vec(any::<u64>(), 0..64),
        pool in prop::sample::select(crate::pools()),
        checksum: bool,
    ) {
        let make_config = || with_pool(pool, config(16, Unit::DEFAULT, "lz4", checksum));
        let (store, files) = make(make_config());
        drop(store);
        for (cell, word) in files.table().words().iter().zip(&words) {
            cell.store(*word, Ordering::Relaxed);
        }
        for (cell, word) in files.arena().words().iter().zip(&bytes) {
            cell.store(*word, Ordering::Relaxed);
        }
        let (store, recovery) = recover(make_config(), files.remains());
        prop_assert_eq!(store.stats().lost_pages, recovery.lost_pages);
        for index in 0..16 {
            let _ = read(&store, index);
            store.write(PageIndex(index), &compressible(index, 4096)).unwrap();
            prop_assert!(read(&store, index) == Some(compressible(index, 4096)));
        }
        (0..16).for_each(|index| store.trim(PageIndex(index)).unwrap());
        let stats = store.stats();
        prop_assert_eq!(stats.mem_used_total_bytes, 0);
        prop_assert_eq!((stats.orig_data_size_bytes, stats.lost_pages), (0, 0));
    }
}
