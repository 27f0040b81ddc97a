//! Memory that is not the store which was asked for is refused, with the reason, before anything else is looked at.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::fs::{MemfdFlags, SealFlags};

use super::super::Remains;
use super::super::fault_tests::compressible;
use super::super::recover_tests::{Files, make, map, read, recover};
use super::*;
use crate::config::StoreBuilder;
use crate::{PageIndex, Store, Unit};

fn options() -> StoreBuilder {
    Store::builder()
        .size(1 << 20)
        .outliving(true)
        .checksum(true)
}

/// The remains of a store with one page.
fn left() -> Files {
    let store = options().build().unwrap();
    store.write(PageIndex(3), &compressible(3, 4096)).unwrap();
    Files::of(&store)
}

fn refusal(options: StoreBuilder, remains: Remains) -> (ErrorKind, String) {
    let error = options.recover(remains).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn other_options_are_refused_by_name_and_the_right_ones_open_it() {
    let files = left();
    let lz4 = || Compression::new("lz4", Unit::DEFAULT).unwrap();
    let large = Unit::new(16384).unwrap();
    let others: Vec<(StoreBuilder, &str)> = vec![
        (
            options().size(2 << 20),
            "has 1048576 bytes, not 2097152 bytes",
        ),
        (
            options().unit(large),
            "has units of 4096 bytes, not units of 16384 bytes",
        ),
        (options().checksum(false), "has checksums, not no checksums"),
        (options().ages(true), "has no ages, not ages"),
        (options().pool("zbud"), "has pool bestfit, not pool zbud"),
        (
            options().algorithm("lz4"),
            "has codec auto of priority 0, not codec lz4",
        ),
        (
            options().secondary(2, lz4()),
            "has no codec of priority 2, not codec lz4",
        ),
    ];
    for (options, expected) in others {
        let (kind, text) = refusal(options, files.remains());
        assert_eq!(kind, ErrorKind::InvalidInput);
        assert!(text.contains(expected), "{text}");
    }
    let (store, recovery) = options()
        .mem_limit(77 << 20)
        .recover(files.remains())
        .unwrap();
    assert!(read(&store, 3) == compressible(3, 4096));
    assert_eq!(
        (recovery.generation, store.mem_limit()),
        (2, 0),
        "the limit is the store's"
    );
}

#[test]
#[cfg(feature = "c-codecs")]
fn another_dictionary_is_refused_and_another_level_is_not() {
    let with = |dictionary: &[u8], level| {
        let parameters = crate::Parameters::default()
            .dictionary(dictionary)
            .level(level);
        options().algorithm("zstd").parameters(parameters)
    };
    let store = with(b"uzram keeps pages", 3).build().unwrap();
    store.write(PageIndex(3), &compressible(3, 4096)).unwrap();
    let files = Files::of(&store);
    drop(store);
    let (kind, text) = refusal(with(b"uzram keeps pagez", 3), files.remains());
    assert_eq!(kind, ErrorKind::InvalidInput);
    assert!(text.contains("with a dictionary of 17 bytes"), "{text}");
    let none = options().algorithm("zstd");
    assert_eq!(refusal(none, files.remains()).0, ErrorKind::InvalidInput);
    let (store, _) = with(b"uzram keeps pages", 1)
        .recover(files.remains())
        .unwrap();
    assert!(read(&store, 3) == compressible(3, 4096));
}

#[test]
fn one_process_at_a_time_has_a_store() {
    let store = options().build().unwrap();
    let files = Files::of(&store);
    // All of these descriptors are of one open file description.
    assert_eq!(refusal(options(), files.remains()).0, ErrorKind::Busy);
    drop(store);
    let (first, recovery) = options().recover(files.remains()).unwrap();
    assert_eq!(recovery.generation, 2);
    let (kind, text) = refusal(options(), files.remains());
    assert!(
        kind == ErrorKind::Busy && text.contains("another process"),
        "{text}"
    );
    first.write(PageIndex(1), &compressible(1, 4096)).unwrap();
    drop(first);
    let (second, recovery) = options().recover(files.remains()).unwrap();
    assert_eq!(recovery.generation, 3);
    assert!(read(&second, 1) == compressible(1, 4096));
}

/// Any byte of the copy in use may be anything; the other copy has never been written.
#[test]
fn a_damaged_superblock_is_refused_and_its_store_left_as_it_is() {
    let files = left();
    for at in (COPIES_AT[0]..COPIES_AT[0] + COPY_BYTES).step_by(3) {
        let remains = files.copied();
        let words = map(&remains.superblock);
        words.words()[at / 8].fetch_xor(1 << (at % 8 * 8), Relaxed);
        let table = remains.table.try_clone().unwrap();
        let before = map(&table).words()[3].load(Relaxed);
        let (kind, text) = refusal(options(), remains);
        let kinds = [ErrorKind::InvalidInput, ErrorKind::Corrupt];
        assert!(kinds.contains(&kind), "{at}: {text}");
        assert_eq!(map(&table).words()[3].load(Relaxed), before);
    }
}

#[test]
fn other_formats_are_refused_by_their_number() {
    let files = left();
    for version in [0, VERSION - 1, VERSION + 1, 900].map(u64::from) {
        let remains = files.copied();
        let word = &map(&remains.superblock);
        let word = &word.words()[(COPIES_AT[0] + VERSION_AT) / 8];
        word.store(word.load(Relaxed) & !0xffff_ffff | version, Relaxed);
        let (kind, text) = refusal(options(), remains);
        assert_eq!(kind, ErrorKind::InvalidInput);
        assert!(text.contains(&format!("has format {version}")), "{text}");
    }
    let mut remains = files.copied();
    remains.superblock = Region::reserve(BYTES, Backing::Memfd)
        .unwrap()
        .file()
        .unwrap()
        .unwrap();
    let (kind, text) = refusal(options(), remains);
    assert!(
        kind == ErrorKind::InvalidInput && text.contains("none of uzram's"),
        "{text}"
    );
}

#[test]
fn a_limit_that_was_being_changed_is_the_old_or_the_new_one() {
    let store = options().mem_limit(16 << 20).build().unwrap();
    let files = Arc::new(Files::of(&store));
    let points = Arc::new(AtomicUsize::new(0));
    for (old, new) in [(16 << 20, 20 << 20), (20 << 20, 24 << 20), (24 << 20, 0)] {
        let (files, points) = (Arc::clone(&files), Arc::clone(&points));
        let hook = move || {
            let (store, _) = options().recover(files.copied()).unwrap();
            assert!(
                [old, new].contains(&store.mem_limit()),
                "{}",
                store.mem_limit()
            );
            points.fetch_add(1, Relaxed);
        };
        crate::crash::trace(Box::new(hook), || store.set_mem_limit(new));
    }
    assert!(points.load(Relaxed) >= 3 * COPY_BYTES / 8);
    drop(store);
    assert_eq!(options().recover(files.remains()).unwrap().0.mem_limit(), 0);
}

/// A memfd of this length, sealed so.
fn memfd(bytes: usize, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("other", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn files_that_are_not_a_stores_are_refused() {
    let files = left();
    let lengths = |remains: &Remains| {
        let bytes = |file| map(file).length_bytes();
        let checksums = remains.checksums.as_ref().unwrap();
        [
            bytes(&remains.superblock),
            bytes(&remains.table),
            bytes(&remains.arena),
            bytes(checksums),
        ]
    };
    let lengths = lengths(&files.remains());
    let (shrink, write) = (SealFlags::SHRINK, SealFlags::WRITE);
    for (at, bytes) in lengths.into_iter().enumerate() {
        let regular = || OwnedFd::from(tempfile::tempfile().unwrap());
        let wrong = [
            (memfd(bytes - 4096, shrink), "bytes instead of"),
            (memfd(0, shrink), "bytes instead of"),
            (memfd(bytes + 4096, shrink), "bytes instead of"),
            (memfd(bytes, SealFlags::GROW), "can shrink"),
            (memfd(bytes, shrink | write), "is sealed against writing"),
            (regular(), "is no memfd"),
        ];
        for (file, expected) in wrong {
            let mut remains = files.copied();
            match at {
                0 => remains.superblock = file,
                1 => remains.table = file,
                2 => remains.arena = file,
                _ => remains.checksums = Some(file),
            }
            let (kind, text) = refusal(options(), remains);
            assert!(
                kind == ErrorKind::InvalidInput && text.contains(expected),
                "{at}: {text}"
            );
        }
    }
    let mut remains = files.copied();
    remains.checksums = None;
    let (kind, text) = refusal(options(), remains);
    assert!(
        kind == ErrorKind::InvalidInput && text.contains("without its checksums"),
        "{text}"
    );
}

#[test]
fn a_store_in_private_memory_leaves_nothing() {
    let private = Store::builder().size(1 << 20).build().unwrap();
    assert!(private.remains().unwrap().is_none());
}

/// Every allocation and mapping of a take-over fails once. What is left opens the next time.
#[test]
fn a_take_over_without_memory_can_be_tried_again() {
    let config = || super::super::recover_tests::config(64, Unit::DEFAULT, "lz4", true);
    let (store, files) = make(config());
    for index in 0..64 {
        store
            .write(PageIndex(index), &compressible(index, 4096))
            .unwrap();
    }
    drop(store);
    for allowed in 0.. {
        let remains = files.remains();
        let config = config();
        crate::memory::fault::fail_after(allowed);
        let failed = Store::recover(config, remains).err();
        let is_untouched = crate::memory::fault::disarm();
        if let Some(error) = failed {
            assert_eq!(error.kind(), ErrorKind::NoMemory, "{error}");
        }
        if is_untouched {
            break;
        }
    }
    let (store, recovery) = recover(config(), files.remains());
    assert_eq!((recovery.pages, recovery.lost_pages), (64, 0));
    for index in 0..64 {
        assert!(read(&store, index) == compressible(index, 4096));
    }
}
