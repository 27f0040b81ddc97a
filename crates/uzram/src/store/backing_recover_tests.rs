//! A store with a backing file outlives its process: what it has there, the room that is free, and files that are not its own.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::rc::Rc;

use super::crash_tests::copied;
use super::fault_tests::{compressible, noise};
use super::recover_tests::{Files, config, make, read, recover, reopened, use_up};
use super::*;

const PAGES: u64 = 64;

fn with_file(mut config: StoreConfig, file: &File) -> StoreConfig {
    config.backing_file = Some(Arc::new(reopened(file)));
    config
}

fn lz4(file: &File) -> StoreConfig {
    with_file(config(PAGES, Unit::DEFAULT, "lz4", true), file)
}

fn content(index: u64, unit: usize) -> Vec<u8> {
    match index % 2 {
        0 => compressible(index, unit),
        _ => noise(index, unit),
    }
}

fn indices(range: Range<u64>) -> Vec<PageIndex> {
    range.map(PageIndex).collect()
}

/// A store with content in all pages, those up to `back` in the file.
fn filled(config: StoreConfig, back: u64) -> (Store, Files) {
    let (store, files) = make(config);
    for index in 0..PAGES {
        let page = content(index, store.unit().bytes());
        store.write(PageIndex(index), &page).unwrap();
    }
    assert_eq!(store.write_back(&indices(0..back)).unwrap(), back);
    (store, files)
}

fn is_lost(store: &Store, index: u64) -> bool {
    let mut page = vec![0xee; store.unit().bytes()];
    let read = store.read(PageIndex(index), &mut page);
    read.is_err_and(|error| error.kind() == ErrorKind::Corrupt)
}

fn states(store: &Store) -> Vec<PageState> {
    let state = |index| store.state(PageIndex(index)).unwrap();
    (0..PAGES).map(state).collect()
}

#[test]
fn pages_in_the_file_are_there_and_blocks_of_others_are_free() {
    for (unit_bytes, compresses_back, checksum, is_cached) in [
        (4096, true, true, false),
        (4096, false, false, true),
        (16384, true, false, false),
        (65536, false, true, true),
    ] {
        let file = tempfile::tempfile().unwrap();
        let unit = Unit::new(unit_bytes).unwrap();
        let make_config = || StoreConfig {
            compressed_writeback: compresses_back,
            ..with_file(config(PAGES, unit, "lz4", checksum), &file)
        };
        let (mut before, files) = make(make_config());
        if is_cached {
            before.inner.backing.as_mut().unwrap().use_page_cache();
        }
        let page = |index| content(index, unit.bytes());
        for index in 0..PAGES {
            before.write(PageIndex(index), &page(index)).unwrap();
        }
        assert_eq!(before.write_back(&indices(0..40)).unwrap(), 40);
        // Blocks that nobody has, and that are no holes yet.
        for index in 0..8 {
            before.write(PageIndex(index), &page(index)).unwrap();
        }
        let (stats, seen) = (before.stats(), states(&before));
        drop(before);
        let (mut after, recovery) = recover(make_config(), files.remains());
        if is_cached {
            after.inner.backing.as_mut().unwrap().use_page_cache();
        }
        assert_eq!((recovery.pages, recovery.lost_pages), (PAGES, 0));
        assert_eq!(states(&after), seen);
        let found = after.stats();
        assert_eq!(found.bd_count, 32);
        assert_eq!(found.compr_data_size_bytes, stats.compr_data_size_bytes);
        assert_eq!(found.orig_data_size_bytes, stats.orig_data_size_bytes);
        for index in 0..PAGES {
            assert!(read(&after, index) == page(index), "page {index}");
        }
        let blocks = || file.metadata().unwrap().blocks() * 512;
        let with_stale = blocks();
        while after.discard_backing() {}
        assert!(blocks() <= with_stale - 8 * unit_bytes, "holes");
        // Others take the free blocks, and nobody's is overwritten.
        assert_eq!(after.write_back(&indices(0..PAGES)).unwrap(), 32);
        assert!(file.metadata().unwrap().len() <= (PAGES + 1) * unit_bytes);
        for index in 0..PAGES {
            assert!(read(&after, index) == page(index), "page {index}");
        }
        use_up(&after);
        while after.discard_backing() {}
        assert!(blocks() <= 2 * unit_bytes);
    }
}

/// A pass of a store without pages there must leave the mark, by which the next successor knows the file.
#[test]
fn a_file_without_blocks_keeps_its_mark() {
    let file = tempfile::tempfile().unwrap();
    let (before, files) = filled(lz4(&file), 0);
    drop(before);
    for _ in 0..2 {
        let (after, _) = recover(lz4(&file), files.remains());
        after.write_back(&[]).unwrap();
        assert!(file.metadata().unwrap().len() >= 4096);
    }
}

/// The pass that died had made room, or the file ends in blocks that are free: the next pass gives that back, and no more.
#[test]
fn room_that_a_dead_pass_made_goes_back_and_no_block_with_it() {
    for is_cached in [false, true] {
        let file = tempfile::tempfile().unwrap();
        let (before, files) = filled(lz4(&file), 40);
        drop(before);
        file.set_len(8 << 20).unwrap();
        let (mut after, _) = recover(lz4(&file), files.remains());
        if is_cached {
            after.inner.backing.as_mut().unwrap().use_page_cache();
        }
        // Beyond the blocks that are known to be written.
        after.write_back(&indices(0..PAGES)).unwrap();
        assert!(file.metadata().unwrap().len() <= (PAGES + 1) * 4096);
        for index in 0..PAGES {
            assert!(read(&after, index) == content(index, 4096), "page {index}");
        }
    }
}

#[test]
fn the_budget_is_what_it_was() {
    let file = tempfile::tempfile().unwrap();
    let (before, files) = make(lz4(&file));
    for index in 0..PAGES {
        before
            .write(PageIndex(index), &content(index, 4096))
            .unwrap();
    }
    before.set_writeback_limit(20);
    before.set_writeback_limit_enabled(true);
    before.set_writeback_batch_pages(7).unwrap();
    before.write_back(&indices(0..12)).unwrap();
    drop(before);
    let (after, _) = recover(lz4(&file), files.remains());
    assert_eq!(after.writeback_limit(), 8);
    assert!(after.writeback_limit_enabled());
    assert_eq!(after.writeback_batch_pages(), 7);
    let refused = after.write_back(&indices(12..PAGES)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitUsedUp);
    assert_eq!(after.stats().bd_count, 20);
}

/// Events go on from where they were, and what the store holds is counted once.
#[test]
fn what_happened_before_is_still_counted() {
    let file = tempfile::tempfile().unwrap();
    let (before, files) = filled(lz4(&file), 10);
    let mut page = [0; 4096];
    before.read(PageIndex(3), &mut page).unwrap();
    before.trim(PageIndex(60)).unwrap();
    before.inner.count_invalid_io();
    before.set_mem_limit(1);
    before.write(PageIndex(3), &noise(77, 4096)).unwrap_err();
    before.set_mem_limit(0);
    before.write(PageIndex(5), &[8; 4096]).unwrap();
    let counted = |stats: Stats| Stats {
        mem_used_max_bytes: 0,
        mem_spare_bytes: 0,
        mem_resident_bytes: 0,
        side_tables_bytes: 0,
        ..stats
    };
    let stats = counted(before.stats());
    let events = [stats.bd_reads, stats.bd_writes, stats.notify_free];
    assert_eq!(events, [1, 10, 1]);
    assert_eq!((stats.failed_writes, stats.invalid_io), (1, 1));
    assert!(stats.huge_pages_since > 0 && stats.same_pages == 1);
    drop(before);
    for _ in 0..3 {
        let (after, _) = recover(lz4(&file), files.remains());
        assert_eq!(counted(after.stats()), stats);
    }
    let (after, _) = recover(lz4(&file), files.remains());
    after.reset();
    let zeroes = Stats {
        table_bytes: stats.table_bytes,
        ..Stats::default()
    };
    assert_eq!(counted(after.stats()), zeroes);
}

/// Nobody's file is touched, and the store opens with the right one afterwards.
#[test]
fn another_file_or_none_is_refused_and_changes_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (before, files) = filled(lz4(file.as_file()), 40);
    drop(before);
    let refusal = |config: StoreConfig, remains: Remains| {
        let error = Store::recover(config, remains).err().unwrap();
        (error.kind(), error.to_string())
    };
    let refused = |(kind, text): (ErrorKind, String), expected: &str| {
        assert_eq!(kind, ErrorKind::InvalidInput);
        assert!(text.contains(expected), "{text}");
    };
    let other = tempfile::tempfile().unwrap();
    drop(filled(lz4(&other), 1));
    let told = refusal(lz4(&other), files.remains());
    refused(told, "is not the one that the store wrote to");
    let told = refusal(config(PAGES, Unit::DEFAULT, "lz4", true), files.remains());
    refused(told, "has backing file, not no backing file");
    let told = refusal(
        lz4(file.as_file()),
        Remains {
            blocks: None,
            ..files.remains()
        },
    );
    refused(told, "without its checksums of the backing file's blocks");
    // Somebody else has it meanwhile.
    let theirs = file.reopen().unwrap();
    rustix::fs::flock(&theirs, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let (kind, _) = refusal(lz4(file.as_file()), files.remains());
    assert_eq!(kind, ErrorKind::Busy);
    drop(theirs);
    let (_, plain) = make(config(PAGES, Unit::DEFAULT, "lz4", true));
    let told = refusal(lz4(&tempfile::tempfile().unwrap()), plain.remains());
    refused(told, "has no backing file, not backing file");
    let (after, _) = recover(lz4(file.as_file()), files.remains());
    for index in 0..PAGES {
        assert!(read(&after, index) == content(index, 4096), "page {index}");
    }
}

#[test]
fn a_file_that_was_cut_off_meanwhile_costs_what_it_lost() {
    let file = tempfile::tempfile().unwrap();
    let (before, files) = filled(lz4(&file), 40);
    drop(before);
    file.set_len(0).unwrap();
    let (after, recovery) = recover(lz4(&file), files.remains());
    assert_eq!((recovery.pages, recovery.lost_pages), (PAGES, 0));
    for index in 0..40 {
        let mut page = [0; 4096];
        after.read(PageIndex(index), &mut page).unwrap_err();
        after
            .write(PageIndex(index), &content(index, 4096))
            .unwrap();
    }
    for index in 0..PAGES {
        assert!(read(&after, index) == content(index, 4096), "page {index}");
    }
}

#[test]
fn damaged_words_of_pages_in_the_file_cost_these_alone() {
    let file = tempfile::tempfile().unwrap();
    let (before, files) = filled(lz4(&file), 40);
    let table = files.table();
    let word = |index: u64| table.words()[index as usize].load(Ordering::Relaxed);
    let block = |number: u64| number << 26;
    let damaged = [
        // Block 0, and blocks that the file has not.
        (0, word(0) & (block(1) - 1)),
        (1, word(1) & (block(1) - 1) | block(PAGES + 257)),
        (2, word(2) | 1 << 63),
        // Flags that no page there has, a codec that the store has not, and a size beyond the page's.
        (3, word(3) | 1 << 5),
        (4, word(4) | 2 << 8),
        (5, word(5) | 0xffff << 10),
        // Two have the same block, and nobody knows whose it is.
        (6, word(9)),
        // An object in memory that is none.
        (7, word(7) & !(7 << 2) | 3 << 2),
    ];
    for (index, word) in damaged {
        table.words()[index].store(word, Ordering::Relaxed);
    }
    drop(before);
    let (store, recovery) = recover(lz4(&file), files.remains());
    let lost = [0, 1, 2, 3, 4, 5, 6, 7, 9];
    assert_eq!(recovery.lost_pages, lost.len() as u64, "{recovery:?}");
    assert_eq!(store.stats().bd_count, 40 - lost.len() as u64);
    for index in 0..PAGES {
        match lost.contains(&index) {
            true => assert!(is_lost(&store, index), "page {index}"),
            false => assert!(read(&store, index) == content(index, 4096), "page {index}"),
        }
    }
    assert_eq!(store.write_back(&indices(0..PAGES)).unwrap(), PAGES - 40);
    for index in (0..PAGES).filter(|index| !lost.contains(index)) {
        assert!(read(&store, index) == content(index, 4096), "page {index}");
    }
    use_up(&store);
}

/// A successor that dies while it settles two pages of one block leaves none of them to be read as the other one.
#[test]
fn a_block_of_two_pages_is_never_read_as_the_wrong_one() {
    // The first of them is lost first.
    dies_between_two_pages(9, 6);
    dies_between_two_pages(6, 9);
}

/// The word of page `wrong` names the block of page `right`.
fn dies_between_two_pages(right: usize, wrong: usize) {
    let file = tempfile::tempfile().unwrap();
    let (before, files) = filled(lz4(&file), 40);
    let table = files.table();
    let word = table.words()[right].load(Ordering::Relaxed);
    table.words()[wrong].store(word, Ordering::Relaxed);
    drop(before);
    let dead = Files::holding(files.copied());
    let (points, dead_file) = (Rc::new(Cell::new(0)), copied(&file));
    let (counted, remains) = (Rc::clone(&points), dead.remains());
    let hook = move || {
        counted.set(counted.get() + 1);
        // The one after that may find the same again.
        let (left, left_file) = (Files::holding(dead.copied()), copied(&dead_file));
        let word = |index: usize| left.table().words()[index].load(Ordering::Relaxed);
        let words = [word(right), word(wrong)];
        drop(recover(lz4(&left_file), left.remains()));
        for (index, word) in [right, wrong].into_iter().zip(words) {
            left.table().words()[index].store(word, Ordering::Relaxed);
        }
        let (store, _) = recover(lz4(&left_file), left.remains());
        assert!(is_lost(&store, wrong as u64), "point {}", counted.get());
    };
    let (store, recovery) = crate::crash::trace(Box::new(hook), || recover(lz4(&file), remains));
    assert_eq!(recovery.lost_pages, 2);
    let are_lost = [right, wrong]
        .iter()
        .all(|index| is_lost(&store, *index as u64));
    assert!(points.get() >= 2 && are_lost);
}

/// Somebody made something else of the file. The disk's other pages are there, and nothing is written over it.
#[test]
fn a_file_that_was_overwritten_is_only_read() {
    let file = tempfile::tempfile().unwrap();
    let (before, files) = filled(lz4(&file), 40);
    drop(before);
    file.write_all_at(&[7; 3 * 4096], 0).unwrap();
    let length = file.metadata().unwrap().len();
    let (after, recovery) = recover(lz4(&file), files.remains());
    assert_eq!((recovery.pages, recovery.lost_pages), (PAGES, 0));
    let refused = after.write_back(&indices(0..PAGES)).unwrap_err();
    assert!(refused.to_string().contains("other content"), "{refused}");
    after.write(PageIndex(20), &content(20, 4096)).unwrap();
    assert!(!after.discard_backing());
    let gone = (0..PAGES).filter(|index| is_lost(&after, *index));
    assert_eq!(gone.count(), 2);
    let mut start = [0; 3 * 4096];
    file.read_exact_at(&mut start, 0).unwrap();
    assert!(start == [7; 3 * 4096] && file.metadata().unwrap().len() == length);
}

/// Bytes in the file are checked as ever, also by a successor.
#[test]
fn damage_in_the_file_while_nobody_has_the_store_is_found() {
    let file = tempfile::tempfile().unwrap();
    let (before, files) = filled(lz4(&file), 40);
    drop(before);
    file.write_all_at(b"damage", 3 * 4096).unwrap();
    let (store, _) = recover(lz4(&file), files.remains());
    let damaged: Vec<u64> = (0..PAGES).filter(|index| is_lost(&store, *index)).collect();
    assert_eq!(damaged.len(), 1, "{damaged:?}");
}
