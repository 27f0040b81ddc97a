//! Pages in a backing file: against a map of pages, beside other threads, and with disks that fail.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::store::blocks::Blocks;
use crate::store::fault_tests::{compressible, noise};
use crate::store::recover_tests::{config, make as make_apart};
use crate::{PageState, Store, Unit, Zeroing};
use uzram_testkit::Rng;

const PAGES: u64 = 64;
const ENOSPC: i32 = 28;
const EIO: i32 = 5;

/// Ways to the file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Through the page cache.
    Cached,
    /// One batch at a time.
    Direct,
    /// Three batches in a ring.
    Ring,
}

const WAYS: [Way; 3] = [Way::Cached, Way::Direct, Way::Ring];

/// A file opened twice. The second descriptor goes through the page cache.
fn file() -> (File, File) {
    let named = tempfile::NamedTempFile::new().unwrap();
    (named.reopen().unwrap(), named.into_file())
}

/// A store with a backing file and a second codec, and the file.
fn make(unit: u64, algorithm: &str, way: Way) -> (Store, File) {
    let (file, other) = file();
    let secondary = crate::Compression::new("842", Unit::new(unit).unwrap()).unwrap();
    let builder = Store::builder().size(PAGES * unit).secondary(1, secondary);
    let builder = builder.unit(Unit::new(unit).unwrap());
    let store = builder.algorithm(algorithm).checksum(unit > 4096);
    let store = store.writeback_depth(if way == Way::Ring { 3 } else { 1 });
    let mut store = store.backing_file(file).build().unwrap();
    if way == Way::Cached {
        store.inner.backing.as_mut().unwrap().use_page_cache();
    }
    if way == Way::Ring && !store.inner.writing_back.lock().has_ring() {
        println!("without a ring: no io_uring or no O_DIRECT here");
    }
    (store, other)
}

fn read(store: &Store, index: u64) -> Result<Vec<u8>> {
    let mut page = vec![0xee; store.unit().bytes()];
    store.read(PageIndex(index), &mut page).map(|()| page)
}

fn all() -> Vec<PageIndex> {
    (0..PAGES).map(PageIndex).collect()
}

/// Fills the pages with what packs and what does not, in turn, and returns them.
fn fill(store: &Store) -> Vec<Vec<u8>> {
    let unit = store.unit().bytes();
    let pages = (0..PAGES).map(|index| match index % 2 {
        0 => compressible(index, unit),
        _ => noise(index, unit),
    });
    let pages: Vec<_> = pages.collect();
    for (index, page) in (0..).zip(&pages) {
        store.write(PageIndex(index), page).unwrap();
    }
    pages
}

fn is_back(store: &Store, index: u64) -> bool {
    store.state(PageIndex(index)).unwrap() == PageState::WrittenBack
}

/// Where the block of page `index` begins in the file, and the size of its object.
fn place(store: &Store, index: u64) -> (u64, usize) {
    let guard = store.inner.table.lock(PageIndex(index)).unwrap();
    let Entry::Back(block) = guard.entry() else {
        panic!("page {index} is not in the file");
    };
    (
        block.number() * store.unit().bytes() as u64,
        block.size_bytes(),
    )
}

#[test]
fn a_store_with_a_backing_file_is_a_map_of_pages() {
    for (unit, algorithm, seed, way) in [
        (4096, "lz4", 1, Way::Direct),
        (4096, "lz4", 4, Way::Ring),
        (4096, "lzo", 2, Way::Cached),
        (16384, "lz4", 3, Way::Ring),
    ] {
        let (store, file) = make(unit, algorithm, way);
        store.set_writeback_batch_pages(3).unwrap();
        let (mut pages, mut rng) = (HashMap::new(), Rng::new(seed));
        let length = unit as usize;
        for step in 0..2500 {
            let index = rng.below(PAGES as usize) as u64;
            let at = PageIndex(index);
            let page = pages.entry(index).or_insert_with(|| vec![0; length]);
            match rng.below(14) {
                0..=3 => {
                    *page = match rng.below(4) {
                        0 => noise(step, length),
                        1 => vec![step as u8; length],
                        _ => compressible(step, length),
                    };
                    store.write(at, page).unwrap();
                }
                4..=5 => {
                    let start = rng.below(length - 100);
                    page[start..start + 100].fill(step as u8);
                    let part = &page[start..start + 100];
                    store.write_at(at, start, part).unwrap();
                }
                6 => {
                    page.fill(0);
                    store.trim(at).unwrap();
                }
                7 => {
                    page[..200].fill(0);
                    store.zero_at(at, 0, 200, Zeroing::MayPunch).unwrap();
                }
                8..=9 => {
                    let some: Vec<_> = (0..8).map(|n| PageIndex((index + 3 * n) % PAGES)).collect();
                    store.write_back(&some).unwrap();
                }
                10 => while store.discard_backing() {},
                11 => {
                    let what = crate::Recompression::new(1);
                    store.recompress(&what, &mut || rng.below(9) > 0).unwrap();
                }
                12 => {
                    store.mark_idle();
                    let kind = [ColdPages::HugeIdle, ColdPages::Incompressible][rng.below(2)];
                    let mut goes_on = || rng.below(5) > 0;
                    store.write_back_cold(kind, &mut goes_on).unwrap();
                }
                _ => drop(store.compact(Duration::ZERO).unwrap()),
            }
            if matches!(store.state(at).unwrap(), PageState::WrittenBack) && step % 2 == 0 {
                let mut part = [0xee; 50];
                store.read_at(at, 70, &mut part).unwrap();
                assert_eq!(part, page[70..120]);
            }
            assert!(read(&store, index).unwrap() == *page, "step {step}");
        }
        for (index, page) in &pages {
            assert!(read(&store, *index).unwrap() == *page, "page {index}");
        }
        let back = (0..PAGES).filter(|index| is_back(&store, *index)).count();
        let stats = store.stats();
        assert_eq!(stats.bd_count, back as u64);
        assert!(stats.bd_writes > 200 && stats.bd_reads > 200, "{stats:?}");
        store.reset();
        let stats = store.stats();
        assert_eq!((stats.bd_count, stats.mem_used_total_bytes), (0, 0));
        // The mark stays.
        assert!(file.metadata().unwrap().blocks() * 512 <= 2 * unit);
    }
}

#[test]
fn memory_goes_with_the_pages_and_room_in_the_file_comes_back() {
    [Way::Cached, Way::Direct]
        .into_iter()
        .for_each(room_comes_back);
}

fn room_comes_back(way: Way) {
    let (store, file) = make(4096, "lz4", way);
    let pages = fill(&store);
    let before = store.stats();
    let mut named = all();
    named.extend(all());
    assert_eq!(store.write_back(&named).unwrap(), PAGES);
    let stats = store.stats();
    assert_eq!((stats.bd_count, stats.bd_writes), (PAGES, PAGES));
    assert_eq!(stats.orig_data_size_bytes, before.orig_data_size_bytes);
    assert_eq!((stats.compr_data_size_bytes, stats.huge_pages), (0, 0));
    assert_eq!(stats.mem_used_total_bytes, 0);
    assert_eq!(store.write_back(&all()).unwrap(), 0, "they are there");
    let taken = file.metadata().unwrap().blocks();
    assert!(taken * 512 >= PAGES * 4096);
    for index in 0..PAGES {
        assert!(read(&store, index).unwrap() == pages[index as usize]);
        store.trim(PageIndex(index)).unwrap();
    }
    while store.discard_backing() {}
    assert!(file.metadata().unwrap().blocks() * 512 <= 2 * 4096, "holes");
    assert_eq!(store.stats().bd_count, 0);
}

#[test]
fn a_disk_that_fails_or_is_full_leaves_pages_in_memory() {
    for (errno, way) in [ENOSPC, EIO]
        .into_iter()
        .flat_map(|errno| WAYS.map(|way| (errno, way)))
    {
        let (store, _) = make(4096, "lz4", way);
        let pages = fill(&store);
        let before = store.stats();
        let backing = store.inner.backing.as_ref().unwrap();
        backing.fault.set(Some(errno));
        let error = store.write_back(&all()).unwrap_err();
        let kind = [ErrorKind::NoSpace, ErrorKind::Io][usize::from(errno == EIO)];
        assert_eq!(error.kind(), kind, "{error}");
        let stats = store.stats();
        assert_eq!((stats.bd_count, stats.bd_failed_writes), (0, 1));
        assert_eq!(stats.compr_data_size_bytes, before.compr_data_size_bytes);
        for index in 0..PAGES {
            assert!(!is_back(&store, index));
            assert!(read(&store, index).unwrap() == pages[index as usize]);
        }
        // It works again, in all of its blocks.
        backing.fault.set(None);
        assert_eq!(store.write_back(&all()).unwrap(), PAGES);
        assert!((0..PAGES).all(|index| read(&store, index).unwrap() == pages[index as usize]));
    }
}

#[test]
fn a_file_without_free_blocks_takes_what_it_has_room_for() {
    let (store, _) = make(4096, "lz4", Way::Direct);
    let pages = fill(&store);
    let backing = store.inner.backing.as_ref().unwrap();
    *backing.blocks.lock() = Blocks::new(11);
    let error = store.write_back(&all()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("larger one"), "{error}");
    let stats = store.stats();
    assert_eq!((stats.bd_count, stats.bd_failed_writes), (10, 1));
    assert!((0..PAGES).all(|index| read(&store, index).unwrap() == pages[index as usize]));
    // The room of one page that leaves is the next one's.
    store.trim(PageIndex(3)).unwrap();
    assert_eq!(store.write_back(&[PageIndex(40)]).unwrap(), 1);
    assert!(read(&store, 40).unwrap() == pages[40]);
}

/// Damages the block of each page in some way; the page is refused and the others are whole.
#[test]
fn a_block_with_other_bytes_is_an_error_of_its_page_alone() {
    let (store, file) = make(4096, "lz4", Way::Direct);
    let pages = fill(&store);
    // What the file holds of an earlier content.
    store.write(PageIndex(0), &noise(1000, 4096)).unwrap();
    store.write_back(&[PageIndex(0)]).unwrap();
    let mut old = vec![0; 4096];
    file.read_exact_at(&mut old, place(&store, 0).0).unwrap();
    store.write(PageIndex(0), &pages[0]).unwrap();
    assert_eq!(store.write_back(&all()).unwrap(), PAGES);
    for index in [0, 1, 30, 31, 63] {
        let (at, size) = place(&store, index);
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, at).unwrap();
        for bit in (0..size * 8).step_by(41) {
            let byte = block[bit / 8] ^ 1 << (bit % 8);
            file.write_all_at(&[byte], at + bit as u64 / 8).unwrap();
            let error = read(&store, index).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "page {index}, bit {bit}");
            file.write_all_at(&block, at).unwrap();
        }
        // A write that never reached the disk, and one that went to another place.
        let other = place(&store, (index + 2) % PAGES).0;
        let mut elsewhere = vec![0; 4096];
        file.read_exact_at(&mut elsewhere, other).unwrap();
        for wrong in [&old, &elsewhere, &vec![0; 4096]] {
            file.write_all_at(wrong, at).unwrap();
            assert_eq!(read(&store, index).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        assert!(read(&store, (index + 1) % PAGES).unwrap() == pages[(index as usize + 1) % 64]);
        file.write_all_at(&block, at).unwrap();
        assert!(read(&store, index).unwrap() == pages[index as usize]);
    }
    assert!(store.stats().failed_reads > 100);
}

#[test]
fn a_file_that_was_cut_off_is_an_error_of_what_it_lost() {
    let (store, file) = make(4096, "lz4", Way::Direct);
    let pages = fill(&store);
    store.write_back(&all()).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length / 2).unwrap();
    let mut lost = 0;
    for index in 0..PAGES {
        match read(&store, index) {
            Ok(page) => assert!(page == pages[index as usize]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                assert!(store.write_at(PageIndex(index), 10, b"part").is_err());
                lost += 1;
                // A whole page repairs it.
                store
                    .write(PageIndex(index), &pages[index as usize])
                    .unwrap();
            }
        }
    }
    assert!((20..40).contains(&lost), "{lost}");
    assert!((0..PAGES).all(|index| read(&store, index).unwrap() == pages[index as usize]));
}

#[test]
fn only_files_that_nobody_needs_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let options = || {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options
    };
    let build = |file: File| Store::builder().size(1 << 20).backing_file(file).build();
    let refused = |file: File, text: &str| {
        let error = build(file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(text), "{error}");
    };
    std::fs::write(&path, b"somebody's letter").unwrap();
    refused(options().open(&path).unwrap(), "other content");
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody's letter");
    refused(File::open(&path).unwrap(), "reading and writing");
    refused(options().append(true).open(&path).unwrap(), "O_APPEND");
    let null = options().create(false).open("/dev/null").unwrap();
    refused(null, "neither a regular file");
    std::fs::write(&path, b"").unwrap();
    // An earlier store's content is not read: the next one has its own.
    let file = options().open(&path).unwrap();
    let copy = file.try_clone().unwrap();
    let first = build(file).unwrap();
    first.write(PageIndex(3), &noise(1, 4096)).unwrap();
    first.write_back(&[PageIndex(3)]).unwrap();
    // A copy of the descriptor shares its lock.
    for again in [options().open(&path).unwrap(), copy] {
        let second = build(again).unwrap_err();
        assert_eq!(second.kind(), ErrorKind::Busy);
        assert!(second.to_string().contains("another file"), "{second}");
    }
    drop(first);
    let second = build(options().open(&path).unwrap()).unwrap();
    assert!(read(&second, 3).unwrap().iter().all(|byte| *byte == 0));
    let error = Store::builder().size(1 << 20).build().unwrap();
    let error = error.write_back(&[PageIndex(0)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// The object is damaged in memory. In the file it would have a checksum that is right.
#[test]
fn a_damaged_object_does_not_go_to_the_file() {
    let mut config = config(16, Unit::DEFAULT, "lz4", true);
    config.backing_file = Some(tempfile::tempfile().unwrap().into());
    let (store, files) = make_apart(config);
    store.write(PageIndex(3), &compressible(1, 4096)).unwrap();
    store.write(PageIndex(4), &compressible(2, 4096)).unwrap();
    let guard = store.inner.table.lock(PageIndex(3)).unwrap();
    let Entry::Packed(handle) = guard.entry() else {
        panic!("it packs");
    };
    let at = handle.offset_bytes();
    drop(guard);
    files.arena().words()[at / 8].fetch_xor(1 << 9, Ordering::Relaxed);
    assert_eq!(store.write_back(&all()[..16]).unwrap(), 1);
    assert!(is_back(&store, 4) && !is_back(&store, 3));
    assert_eq!(read(&store, 3).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(read(&store, 4).unwrap() == compressible(2, 4096));
}

fn builder(file: &File) -> crate::StoreBuilder {
    let builder = Store::builder().size(PAGES * 4096).algorithm("lz4");
    builder.backing_file(file.try_clone().unwrap())
}

/// The pages that are in the file.
fn back(store: &Store) -> Vec<u64> {
    (0..PAGES).filter(|index| is_back(store, *index)).collect()
}

/// While a pass goes on the file may be longer.
#[test]
fn a_file_is_as_long_as_what_was_written() {
    const BATCH: u64 = 8;
    for way in WAYS {
        let (store, file) = make(4096, "lz4", way);
        store.set_writeback_batch_pages(BATCH as usize).unwrap();
        let written = fill(&store);
        let direct = store.inner.backing.as_ref().unwrap().is_direct();
        let lengths = std::cell::RefCell::new(Vec::new());
        let mut look = || {
            lengths.borrow_mut().push(file.metadata().unwrap().len());
            true
        };
        store.write_back_cold(ColdPages::All, &mut look).unwrap();
        let end = (1 + PAGES) * 4096;
        let longest = lengths.into_inner().into_iter().max().unwrap();
        assert_eq!(longest > end, direct, "{way:?}: {longest}, room is made");
        let found = file.metadata().unwrap();
        assert_eq!(found.len(), end, "{way:?}");
        assert!(
            found.blocks() * 512 <= end + 4096,
            "{way:?}: {}",
            found.blocks()
        );
        for (index, page) in (0..).zip(&written) {
            assert!(read(&store, index).unwrap() == *page, "{way:?} {index}");
        }
    }
}

#[test]
fn only_pages_that_are_named_go() {
    type Goes = fn(u64) -> bool;
    let cases: [(ColdPages, Goes); 5] = [
        (ColdPages::All, |_| true),
        (ColdPages::Idle, |index| index % 5 != 0),
        (ColdPages::Huge, |index| index % 2 == 1),
        (ColdPages::HugeIdle, |index| {
            index % 5 != 0 && index % 2 == 1
        }),
        (ColdPages::Incompressible, |index| index % 2 == 1),
    ];
    for (named, goes) in cases {
        let file = tempfile::tempfile().unwrap();
        let secondary = crate::Compression::new("lz4", Unit::DEFAULT).unwrap();
        let store = builder(&file).secondary(1, secondary).build().unwrap();
        let mut pages = fill(&store);
        let all = crate::Recompression {
            pages: ColdPages::Huge,
            ..crate::Recompression::new(1)
        };
        store.recompress(&all, &mut || true).unwrap();
        store.mark_idle();
        for index in (0..PAGES).filter(|index| index % 5 == 0) {
            read(&store, index).unwrap();
        }
        // A hole and a same-filled page stay.
        store.trim(PageIndex(6)).unwrap();
        store.write(PageIndex(7), &[1; 4096]).unwrap();
        (pages[6], pages[7]) = (vec![0; 4096], vec![1; 4096]);
        let wanted: Vec<_> = (0..PAGES)
            .filter(|n| goes(*n) && ![6, 7].contains(n))
            .collect();
        let written = store.write_back_cold(named, &mut || true).unwrap();
        assert_eq!(written, wanted.len() as u64, "{named:?}");
        assert_eq!(back(&store), wanted, "{named:?}");
        assert_eq!(
            store.stats().incompressible_pages,
            (0..PAGES)
                .filter(|n| n % 2 == 1 && *n != 7 && !wanted.contains(n))
                .count() as u64
        );
        for (index, page) in (0..).zip(&pages) {
            assert!(
                read(&store, index).unwrap() == *page,
                "{named:?}, page {index}"
            );
        }
    }
}

#[test]
fn a_range_goes_and_one_beyond_the_end_is_refused() {
    let (store, _) = make(4096, "lz4", Way::Direct);
    fill(&store);
    let go = |range| store.write_back_range(range, &mut || true);
    for range in [0..PAGES + 1, PAGES..PAGES + 1, 5..u64::MAX] {
        assert_eq!(go(range).unwrap_err().kind(), ErrorKind::OutOfRange);
    }
    assert_eq!(back(&store), []);
    assert_eq!(go(5..8).unwrap(), 3);
    assert_eq!(go(6..10).unwrap(), 2);
    assert_eq!((go(3..3).unwrap(), go(5..10).unwrap()), (0, 0));
    assert_eq!(back(&store), [5, 6, 7, 8, 9]);
    let mut asked = 0;
    let mut twice = || {
        asked += 1;
        asked <= 2
    };
    let written = store.write_back_range(20..40, &mut twice).unwrap();
    assert_eq!((written, back(&store).len()), (2, 7));
}

#[test]
fn the_limit_lets_the_largest_go_and_is_used_up_by_what_is_written() {
    for unit in [4096, 16384] {
        let (store, _) = make(unit, "lz4", Way::Direct);
        let pages = fill(&store);
        let per_page = unit / 4096;
        store.set_writeback_limit(10 * per_page);
        let go = || store.write_back_cold(ColdPages::All, &mut || true);
        store.set_writeback_limit_enabled(true);
        let backing = store.inner.backing.as_ref().unwrap();
        backing.fault.set(Some(EIO));
        assert_eq!(go().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(
            store.writeback_limit(),
            10 * per_page,
            "nothing was written"
        );
        backing.fault.set(None);
        let failed = store.stats().bd_failed_writes;
        let error = go().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitUsedUp, "{error}");
        assert_eq!((error.errno(), store.writeback_limit()), (EIO, 0));
        let huge: Vec<_> = (0..10).map(|nth| 2 * nth + 1).collect();
        assert_eq!(back(&store), huge);
        assert_eq!(go().unwrap_err().kind(), ErrorKind::LimitUsedUp);
        assert_eq!(
            store.write_back(&[PageIndex(0)]).unwrap_err().kind(),
            ErrorKind::LimitUsedUp
        );
        assert_eq!(store.stats().bd_failed_writes, failed);
        store.set_writeback_limit_enabled(false);
        assert_eq!(go().unwrap(), PAGES - 10);
        assert_eq!(store.writeback_limit(), 0);
        assert!((0..PAGES).all(|n| read(&store, n).unwrap() == pages[n as usize]));
    }
}

/// As in the kernel: EIO if a page is left that would go, whatever its size, and only then.
#[test]
fn a_limit_that_is_used_up_is_told_if_pages_are_left() {
    for way in WAYS {
        let (store, _) = make(4096, "lz4", way);
        fill(&store);
        store.set_writeback_limit_enabled(true);
        let go = |limit| {
            store.set_writeback_limit(limit);
            let done = store.write_back_cold(ColdPages::All, &mut || true);
            done.map_err(|error| error.kind())
        };
        assert_eq!(go(0), Err(ErrorKind::LimitUsedUp));
        // All that are raw, and nothing of what is smaller.
        assert_eq!(go(PAGES / 2), Err(ErrorKind::LimitUsedUp));
        assert_eq!(back(&store).len() as u64, PAGES / 2);
        assert_eq!(go(PAGES / 2), Ok(PAGES / 2));
        assert_eq!(go(0), Ok(0));
    }
}

#[test]
fn batches_have_any_size_and_one_that_fails_does_not_keep_others() {
    let (store, _) = make(4096, "lz4", Way::Direct);
    for pages in [0, 1025, usize::MAX] {
        let error = store.set_writeback_batch_pages(pages).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(store.writeback_batch_pages(), 64);
    for batch in [1, 3, 1024] {
        let pages = fill(&store);
        store.set_writeback_batch_pages(batch).unwrap();
        let backing = store.inner.backing.as_ref().unwrap();
        let mut calls = 0;
        // The disk fails while the first pages are taken.
        backing.fault.set(Some(EIO));
        let mut goes_on = || {
            calls += 1;
            if calls == 8 {
                backing.fault.set(None);
            }
            true
        };
        let done = store.write_back_cold(ColdPages::All, &mut goes_on);
        let kept = 7 / batch as u64 * batch as u64;
        match kept {
            0 => assert_eq!(done.unwrap(), PAGES),
            _ => assert_eq!(done.unwrap_err().kind(), ErrorKind::Io),
        }
        let expected: Vec<_> = (kept..PAGES).collect();
        assert_eq!(back(&store), expected, "batch {batch}");
        assert!((0..PAGES).all(|n| read(&store, n).unwrap() == pages[n as usize]));
    }
}

/// Each page takes a unit of the file, whatever codec packed it; it needs none to be read.
#[test]
fn decompressed_pages_are_pages_in_the_file() {
    let (own, file) = file();
    let store = builder(&own).compressed_writeback(false).checksum(true);
    let secondary = crate::Compression::new("lzo", Unit::DEFAULT).unwrap();
    let store = store.secondary(1, secondary).build().unwrap();
    let pages = fill(&store);
    store
        .recompress(&crate::Recompression::new(1), &mut || true)
        .unwrap();
    assert_eq!(store.write_back(&all()).unwrap(), PAGES);
    for index in 0..PAGES {
        let (at, size) = place(&store, index);
        assert_eq!(size, 4096);
        let mut unit = vec![0; 4096];
        file.read_exact_at(&mut unit, at).unwrap();
        assert!(unit == pages[index as usize], "page {index}");
        assert!(read(&store, index).unwrap() == unit);
        let state = store.block_state_from(index).unwrap().to_string();
        assert!(state.ends_with(" .w...."), "{state}");
    }
}

/// As they are, pages of a secondary codec are read by that.
#[test]
fn compressed_pages_of_any_codec_are_read_from_the_file() {
    let (store, _) = {
        let file = tempfile::tempfile().unwrap();
        let tail = crate::store::recompress::tests::Tail;
        let tail = crate::Compression::with_codec(Box::new(tail), Unit::DEFAULT).unwrap();
        let lz4 = crate::Compression::new("lz4", Unit::DEFAULT).unwrap();
        let store = Store::builder().size(PAGES * 4096).compression(tail);
        let store = store.backing_file(file.try_clone().unwrap());
        (store.secondary(2, lz4).build().unwrap(), file)
    };
    let pages = fill(&store);
    let done = store.recompress(&crate::Recompression::new(2), &mut || true);
    assert_eq!(done.unwrap().pages_replaced, PAGES / 2);
    assert_eq!(store.write_back(&all()).unwrap(), PAGES);
    for index in 0..PAGES {
        assert!(read(&store, index).unwrap() == pages[index as usize]);
        let state = store.block_state_from(index).unwrap().to_string();
        let shown = [" .w..r.", " .wh..."][(index % 2) as usize];
        assert!(state.ends_with(shown), "{state}");
        assert!(place(&store, index).1 < 2000 || index % 2 == 1);
    }
    assert_eq!(store.stats().recompressed_pages, PAGES / 2);
}

/// Runs `body` in a thread of its own. Panics if it waits for a lock of its own.
fn within_a_minute(body: impl FnOnce() + Send + 'static) {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        body();
        tell.send(())
    });
    match told.recv_timeout(Duration::from_secs(60)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("a read holds the slot"),
        _ => drop(thread.join().unwrap()),
    }
}

/// While a page is read from the file, its slot is free, and its block is nobody else's.
#[test]
fn a_page_may_change_while_it_is_read_from_the_file() {
    within_a_minute(|| {
        let (store, _) = make(4096, "lz4", Way::Direct);
        let pages = fill(&store);
        store.write_back(&all()).unwrap();
        let store = std::sync::Arc::new(store);
        let (own, (at, _)) = (std::sync::Arc::downgrade(&store), place(&store, 9));
        let fault = &store.inner.backing.as_ref().unwrap().fault;
        // The page leaves its block, and all others want one.
        let change = move || {
            let store = own.upgrade().unwrap();
            store.write(PageIndex(9), &noise(77, 4096)).unwrap();
            (20..30).for_each(|n| store.write(PageIndex(n), &noise(n, 4096)).unwrap());
            store.write_back(&all()).unwrap();
            assert!((0..PAGES).all(|index| place(&store, index).0 != at));
        };
        fault.before_read(1, change.clone());
        assert!(
            read(&store, 9).unwrap() == pages[9],
            "as it was when the read began"
        );
        assert!(read(&store, 9).unwrap() == noise(77, 4096));
        store.write(PageIndex(10), &pages[10]).unwrap();
        store.write_back(&all()).unwrap();
        assert_eq!(place(&store, 10).0, at, "the block is free again");

        // A write of a part goes on from what the page is by then.
        let own = std::sync::Arc::downgrade(&store);
        let other = move || {
            let store = own.upgrade().unwrap();
            store.write(PageIndex(9), &noise(78, 4096)).unwrap();
            store.write_back(&[PageIndex(9)]).unwrap();
        };
        fault.before_read(3, other);
        store.write_at(PageIndex(9), 100, &[5; 50]).unwrap();
        let mut wanted = noise(78, 4096);
        wanted[100..150].fill(5);
        assert!(read(&store, 9).unwrap() == wanted);
    });
}

/// Threads write, read and trim pages of their own, while others write all back, and compact.
#[test]
fn no_write_is_lost_beside_a_write_back() {
    WAYS.into_iter().for_each(race);
}

fn race(way: Way) {
    const THREADS: u64 = 2;
    let (store, _) = make(4096, "lz4", way);
    store.set_writeback_batch_pages(5).unwrap();
    let (end, over) = (
        Instant::now() + Duration::from_secs(2),
        AtomicBool::new(false),
    );
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let mut own = vec![vec![0; 4096]; (PAGES / THREADS) as usize];
                while Instant::now() < end {
                    let nth = rng.below(own.len());
                    let index = PageIndex(nth as u64 * THREADS + thread);
                    match rng.below(4) {
                        0 => {
                            own[nth] = compressible(rng.next(), 4096);
                            store.write(index, &own[nth]).unwrap();
                        }
                        1 => {
                            let start = rng.below(4000);
                            own[nth][start..start + 90].fill(rng.next() as u8);
                            store
                                .write_at(index, start, &own[nth][start..start + 90])
                                .unwrap();
                        }
                        2 => {
                            own[nth] = noise(rng.next(), 4096);
                            store.write(index, &own[nth]).unwrap();
                        }
                        _ => {
                            store.trim(index).unwrap();
                            own[nth].fill(0);
                        }
                    }
                    let look = rng.below(own.len());
                    let page = read(store, look as u64 * THREADS + thread).unwrap();
                    assert!(page == own[look], "page {look} of thread {thread}");
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    store.write_back(&all()).unwrap();
                    store.discard_backing();
                }
            });
        }
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                store.compact(Duration::from_millis(1)).unwrap();
            }
        });
        std::thread::sleep(end - Instant::now());
        over.store(true, Ordering::Relaxed);
    });
    let stats = store.stats();
    assert!(stats.bd_writes > 200 && stats.bd_reads > 50, "{stats:?}");
}
