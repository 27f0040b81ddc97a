//! Taking over a store whose memory somebody damaged. Whatever is in its files: it is refused, or each page is right or
//! lost, and damaged content is seen only where no checksum guards it.

#![no_main]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use libfuzzer_sys::fuzz_target;
use uzram::{ErrorKind, PageIndex, PageState, Remains, Store, StoreBuilder};

const PAGES: u64 = 24;
const UNIT: usize = 4096;
const DAMAGES_MAX: usize = 16;
/// The copy of the facts that a new store has, in its superblock.
const FACTS: std::ops::Range<usize> = 512..512 + 284;

/// Bits of a slot word: the lock's, where its size begins, where its place in the arena begins, and the latter's unit.
const LOCK: u64 = 1;
const SIZE_SHIFT: u32 = 10;
const PLACE_SHIFT: u32 = 26;
const GRANULE_BYTES: u64 = 8;

/// Bytes from the input, zero after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn short(&mut self) -> u64 {
        u64::from(self.byte()) | u64::from(self.byte()) << 8
    }

    fn page(&mut self) -> u64 {
        u64::from(self.byte()) % PAGES
    }
}

/// A store's memory, as files that can be read and written at a place.
struct Files {
    superblock: File,
    table: File,
    arena: File,
    checksums: Option<File>,
    ages: Option<File>,
    blocks: Option<File>,
}

impl Files {
    fn of(store: &Store) -> Files {
        let remains = store.remains().unwrap().unwrap();
        Files {
            superblock: remains.superblock.into(),
            table: remains.table.into(),
            arena: remains.arena.into(),
            checksums: remains.checksums.map(File::from),
            ages: remains.ages.map(File::from),
            blocks: remains.blocks.map(File::from),
        }
    }

    fn remains(&self) -> Remains {
        let copy = |file: &File| OwnedFd::from(file.try_clone().unwrap());
        Remains {
            superblock: copy(&self.superblock),
            table: copy(&self.table),
            arena: copy(&self.arena),
            checksums: self.checksums.as_ref().map(copy),
            ages: self.ages.as_ref().map(copy),
            blocks: self.blocks.as_ref().map(copy),
        }
    }

    fn word(&self, page: u64) -> u64 {
        u64::from_le_bytes(read(&self.table, page * 8, 8).try_into().unwrap())
    }

    fn set_word(&self, page: u64, word: u64) {
        self.table
            .write_all_at(&word.to_le_bytes(), page * 8)
            .unwrap();
    }

    /// The object that a word of a healthy store names, if it names one: where it begins, and its size.
    fn object(word: u64) -> Option<(u64, usize)> {
        let size = (word >> SIZE_SHIFT & 0xffff) as usize + 1;
        matches!(word >> 2 & 7, 2 | 3).then_some(((word >> PLACE_SHIFT) * GRANULE_BYTES, size))
    }

    /// All that says what page `page` holds, by the word that it had.
    fn facts(&self, page: u64, word: u64) -> (Vec<u8>, Vec<u8>) {
        let object =
            Files::object(word).map_or(Vec::new(), |(start, size)| read(&self.arena, start, size));
        let checksum = self.checksums.as_ref();
        let checksum = checksum.map_or(Vec::new(), |file| read(file, page * 4, 4));
        (object, checksum)
    }
}

fn read(file: &File, at: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes
}

fn flip(file: &File, at: u64, bits: u8) {
    let old = read(file, at, 1)[0];
    file.write_all_at(&[old ^ bits], at).unwrap();
}

/// Content that no other page has, or nothing.
fn content(page: u64, kind: u8) -> Vec<u8> {
    let mut state = page << 8 | u64::from(kind) | 1 << 40;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state ^ state >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    let noisy_words = match kind % 4 {
        0 => 0,
        1 => UNIT / 8,
        _ => 1 + usize::from(kind) * 2 % 400,
    };
    let mut bytes = vec![if kind % 4 == 0 { kind } else { 0 }; UNIT];
    for word in bytes.chunks_mut(8).take(noisy_words) {
        word.copy_from_slice(&next().to_le_bytes());
    }
    bytes
}

/// A store with content, and that content.
fn fill(builder: StoreBuilder, input: &mut Input<'_>) -> (Store, Vec<Vec<u8>>) {
    let store = builder.build().unwrap();
    let pages = (0..PAGES).map(|page| {
        let kind = input.byte();
        let bytes = content(page, kind);
        if kind > 0 {
            store.write(PageIndex(page), &bytes).unwrap();
        }
        bytes
    });
    let pages = pages.collect();
    if store.has_backing_file() {
        let to_go = (0..PAGES).filter(|page| page % 3 > 0).map(PageIndex);
        store.write_back(&to_go.collect::<Vec<_>>()).unwrap();
    }
    (store, pages)
}

fn damage(files: &Files, input: &mut Input<'_>) {
    let kind = input.byte();
    let page = input.page();
    let word = files.word(page);
    match kind % 9 {
        0 => files.set_word(page, word ^ 1 << (input.byte() % 64)),
        1 => files.set_word(page, input.word()),
        2 => files.set_word(page, files.word(input.page())),
        3 => files.set_word(page, word ^ LOCK),
        4 => {
            let moved = (input.byte() as i8 as i64) << PLACE_SHIFT;
            files.set_word(page, word.wrapping_add_signed(moved));
        }
        5 => {
            let size = (input.short() & 0xfff) << SIZE_SHIFT;
            files.set_word(page, word & !(0xffff << SIZE_SHIFT) | size);
        }
        6 => {
            let object = Files::object(word);
            let is_there = |(start, _): &(u64, usize)| start + 4096 <= 1 << 20;
            if let Some((start, size)) = object.filter(is_there) {
                let at = start + input.short() % size as u64;
                flip(&files.arena, at, input.byte());
            }
        }
        7 => {
            if let Some(checksums) = &files.checksums {
                flip(
                    checksums,
                    page * 4 + u64::from(input.byte() % 4),
                    input.byte(),
                );
            }
        }
        _ => flip(&files.superblock, input.short() % 4096, input.byte()),
    }
}

/// Files in each other's places, missing, or none of a store's.
fn exchange(mut remains: Remains, how: u8) -> Remains {
    match how {
        0 => std::mem::swap(&mut remains.table, &mut remains.superblock),
        1 => std::mem::swap(&mut remains.table, &mut remains.arena),
        2 => std::mem::swap(&mut remains.arena, &mut remains.superblock),
        3 => remains.table = tempfile::tempfile().unwrap().into(),
        4 => remains.arena = File::open("/dev/null").unwrap().into(),
        5 => remains.arena = remains.superblock.try_clone().unwrap(),
        _ => remains.superblock = tempfile::tempfile().unwrap().into(),
    }
    remains
}

uzram_fuzz::sanitizer_options!();

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let flags = input.byte();
    let has_checksums = flags & 1 == 1;
    let pools = uzram::pools();
    let pool = pools[usize::from(input.byte()) % pools.len()];
    let algorithms = uzram::algorithms();
    let algorithm = algorithms[usize::from(input.byte()) % algorithms.len()];
    let mut builder = Store::builder()
        .size(PAGES * UNIT as u64)
        .algorithm(algorithm)
        .pool(pool)
        .checksum(has_checksums)
        .ages(flags & 2 == 2)
        .outliving(true);
    if flags & 4 == 4 {
        builder = builder.backing_file(tempfile::tempfile().unwrap());
    }
    let (store, pages) = fill(builder.clone(), &mut input);
    let files = Files::of(&store);
    drop(store);
    let how = input.byte();
    if how > 248 {
        let refused = builder.recover(exchange(files.remains(), how - 249));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
        return;
    }
    let words: Vec<u64> = (0..PAGES).map(|page| files.word(page)).collect();
    let facts = |page: u64| files.facts(page, words[page as usize]);
    let facts_before: Vec<_> = (0..PAGES).map(facts).collect();
    let superblock_before = read(&files.superblock, 0, 4096);
    for _ in 0..DAMAGES_MAX {
        if input.0.is_empty() {
            break;
        }
        damage(&files, &mut input);
    }
    let words_after: Vec<u64> = (0..PAGES).map(|page| files.word(page)).collect();
    let facts_after: Vec<_> = (0..PAGES).map(facts).collect();
    let superblock_after = read(&files.superblock, 0, 4096);

    let (store, recovery) = match builder.clone().recover(files.remains()) {
        Ok(opened) => opened,
        Err(error) => {
            let kinds = [ErrorKind::InvalidInput, ErrorKind::Corrupt];
            assert!(kinds.contains(&error.kind()), "{error}");
            assert_ne!(superblock_before[FACTS], superblock_after[FACTS], "{error}");
            return;
        }
    };
    let are_words_whole = words == words_after;
    let mut lost = 0;
    let mut seen = Vec::new();
    let mut page = vec![0xee; UNIT];
    for index in 0..PAGES {
        let at = index as usize;
        let done = store.read(PageIndex(index), &mut page);
        let is_lost = store.state(PageIndex(index)).unwrap() == PageState::Lost;
        lost += u64::from(is_lost);
        let is_right = match &done {
            Ok(()) => page == pages[at],
            Err(error) => {
                // A damaged word may name a block behind the file's end.
                let kinds = [ErrorKind::Corrupt, ErrorKind::Io];
                assert!(kinds.contains(&error.kind()), "{error}");
                false
            }
        };
        assert!(!(is_lost && done.is_ok()));
        seen.push(done.is_ok().then(|| page.clone()));
        let (before, after) = (&facts_before[at], &facts_after[at]);
        let is_guarded = has_checksums && before.1 == after.1;
        if words[at] != words_after[at] {
            continue;
        }
        if before == after && are_words_whole {
            assert!(is_right, "page {index} is not damaged: {done:?}");
        }
        if before.0 == after.0 || is_guarded {
            assert!(is_right || done.is_err(), "page {index} has other bytes");
        }
        if before.0 != after.0 && is_guarded {
            assert!(done.is_err(), "page {index} hides damage");
        }
        if is_lost {
            assert!(!are_words_whole, "page {index} is lost for nothing");
        }
    }
    let stats = store.stats();
    assert_eq!((lost, lost), (recovery.lost_pages, stats.lost_pages));
    assert_eq!(stats.orig_data_size_bytes, recovery.pages * UNIT as u64);

    // The next one finds the same.
    drop(store);
    let (store, again) = builder.recover(files.remains()).unwrap();
    assert_eq!(again.generation, recovery.generation.wrapping_add(1));
    assert_eq!(
        (again.pages, again.lost_pages, again.resealed_pages),
        (recovery.pages, recovery.lost_pages, 0)
    );
    for (index, seen) in (0..PAGES).zip(seen) {
        let done = store.read(PageIndex(index), &mut page);
        assert_eq!(done.is_ok(), seen.is_some());
        assert!(seen.is_none_or(|seen| seen == page));
    }
    // Nothing is in the way, and nothing is left.
    for index in 0..PAGES {
        store
            .write(PageIndex(index), &content(index, 1 + index as u8))
            .unwrap();
    }
    for index in 0..PAGES {
        store.read(PageIndex(index), &mut page).unwrap();
        assert!(page == content(index, 1 + index as u8));
        store.trim(PageIndex(index)).unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.mem_used_total_bytes, stats.lost_pages), (0, 0));
    assert_eq!(stats.bd_count, 0);
});
