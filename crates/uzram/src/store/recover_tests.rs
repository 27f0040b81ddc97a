//! A store whose process died between any two instructions opens again: every acknowledged page is
//! whole, any other is old or new, and nothing is leaked.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::fault_tests::{compressible, noise};
use super::slot::CHUNK_SLOTS;
use super::*;
use crate::codec::Compression;
use crate::pool::Room;
use crate::region::{Backing, Region};

/// A store's memory, beside the store.
pub(super) struct Files(Remains);

impl Files {
    pub(super) fn of(store: &Store) -> Files {
        Files(store.remains().unwrap().unwrap())
    }

    pub(super) fn holding(remains: Remains) -> Files {
        Files(remains)
    }

    /// All of it, for a successor.
    pub(super) fn remains(&self) -> Remains {
        self.each(|file| file.try_clone().unwrap())
    }

    /// All of it as it is now: what a successor would find if the process died at this moment.
    pub(super) fn copied(&self) -> Remains {
        self.each(copy)
    }

    pub(super) fn table(&self) -> Region {
        map(&self.0.table)
    }

    pub(super) fn arena(&self) -> Region {
        map(&self.0.arena)
    }

    fn each(&self, make: impl Fn(&OwnedFd) -> OwnedFd) -> Remains {
        Remains {
            superblock: make(&self.0.superblock),
            table: make(&self.0.table),
            arena: make(&self.0.arena),
            checksums: self.0.checksums.as_ref().map(&make),
            ages: self.0.ages.as_ref().map(&make),
            blocks: self.0.blocks.as_ref().map(&make),
        }
    }
}

/// The same file for another user, whose flags and locks are its own.
pub(super) fn reopened(file: &File) -> File {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

fn size_bytes(file: &OwnedFd) -> usize {
    rustix::fs::fstat(file).unwrap().st_size as usize
}

/// Bytes of memory that a file takes.
fn held_bytes(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512
}

pub(super) fn map(file: &OwnedFd) -> Region {
    Region::attach(file.try_clone().unwrap(), size_bytes(file), "file").unwrap()
}

fn copy(file: &OwnedFd) -> OwnedFd {
    let from = map(file);
    let to = Region::reserve(size_bytes(file), Backing::Memfd).unwrap();
    let mut next = 0;
    while let Some(data) = from.next_data(next) {
        let words = data.start / 8..data.end / 8;
        for (to, from) in to.words()[words.clone()].iter().zip(&from.words()[words]) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        next = data.end;
    }
    to.file().unwrap().unwrap()
}

pub(super) fn config(pages: u64, unit: Unit, algorithm: &str, checksum: bool) -> StoreConfig {
    let builder = Store::builder()
        .size(pages * unit.bytes() as u64)
        .unit(unit);
    let mut config = builder
        .algorithm(algorithm)
        .checksum(checksum)
        .parse()
        .unwrap();
    config.backing = Backing::Memfd;
    config
}

pub(super) fn with_pool(pool: &str, mut config: StoreConfig) -> StoreConfig {
    config.pool = crate::pool::find(pool).unwrap();
    config
}

/// A codec that makes some of these tests' pages smaller than lz4 does.
pub(super) const DENSER: &str = if cfg!(feature = "c-codecs") {
    "deflate"
} else {
    "lzo-rle"
};

/// A store in memory that outlives it.
pub(super) fn make(config: StoreConfig) -> (Store, Files) {
    let store = Store::new(config).unwrap();
    let files = Files::of(&store);
    (store, files)
}

/// The store that a process would open with these remains.
pub(super) fn recover(config: StoreConfig, remains: Remains) -> (Store, Recovery) {
    Store::recover(config, remains).unwrap()
}

pub(super) fn read(store: &Store, index: u64) -> Vec<u8> {
    let mut page = vec![0xee; store.unit().bytes()];
    store.read(PageIndex(index), &mut page).unwrap();
    page
}

/// The content of a store, without its history.
pub(super) fn held(stats: &Stats) -> [u64; 5] {
    [
        stats.orig_data_size_bytes,
        stats.compr_data_size_bytes,
        stats.mem_used_total_bytes,
        stats.same_pages,
        stats.huge_pages,
    ]
}

#[test]
fn a_rebuilt_store_is_the_same_store() {
    let default = crate::pools()[0];
    let mut kinds: Vec<_> = crate::algorithms()
        .into_iter()
        .map(|algorithm| (algorithm, default))
        .collect();
    let others = crate::pools().into_iter().skip(1);
    kinds.extend(others.map(|pool| (crate::algorithms()[0], pool)));
    for (algorithm, pool) in kinds {
        let units = [4096, 16384, 65536];
        for unit in &units[..if pool == default { 3 } else { 2 }] {
            let unit = Unit::new(*unit).unwrap();
            let config = || with_pool(pool, config(300, unit, algorithm, true));
            let (before, files) = make(config());
            let bytes = unit.bytes();
            for index in 0..300u64 {
                let page = match index % 5 {
                    0 => vec![index as u8; bytes],
                    1 => noise(index, bytes),
                    _ => compressible(index, (index as usize + 1) * bytes / 300),
                };
                before.write_at(PageIndex(index), 0, &page).unwrap();
            }
            (0..300)
                .step_by(3)
                .for_each(|index| before.trim(PageIndex(index)).unwrap());
            let (after, recovery) = recover(config(), files.copied());
            assert_eq!((recovery.generation, recovery.lost_pages), (2, 0));
            assert_eq!(
                held(&after.stats()),
                held(&before.stats()),
                "{algorithm} {pool} {unit}"
            );
            let resident = after.stats().mem_resident_bytes;
            assert_eq!(
                resident,
                after.stats().mem_used_total_bytes,
                "the rest went back"
            );
            for index in 0..300 {
                assert!(read(&after, index) == read(&before, index), "page {index}");
            }
            use_up(&after);
        }
    }
}

/// Overwrites and frees all: nothing may be in the way, and nothing may be left.
pub(super) fn use_up(store: &Store) {
    let unit = store.unit().bytes();
    let pages = store.size_bytes() / unit as u64;
    for index in 0..pages {
        store
            .write(PageIndex(index), &compressible(index + 77, unit))
            .unwrap();
    }
    for index in 0..pages {
        assert!(
            read(store, index) == compressible(index + 77, unit),
            "page {index}"
        );
        store.trim(PageIndex(index)).unwrap();
    }
    store.inner.pool.trim(Parts::Stay);
    let stats = store.stats();
    assert_eq!(held(&stats), [0; 5]);
    assert_eq!(stats.mem_resident_bytes, 0, "{stats:?}");
}

#[test]
fn locks_of_the_dead_are_broken_and_unpublished_objects_dropped() {
    let config = || config(8, Unit::DEFAULT, "lz4", false);
    let (before, files) = make(config());
    before.write(PageIndex(0), &noise(1, 4096)).unwrap();
    let held_before = held(&before.stats());
    // Dies with a slot locked, and with an object that no slot names yet.
    std::mem::forget(before.inner.table.lock(PageIndex(0)).unwrap());
    std::mem::forget(
        before
            .inner
            .pool
            .insert(&[1; 4096], Room::Any)
            .or_else(|_| {
                before.inner.pool.grow(4096).unwrap();
                before.inner.pool.insert(&[1; 4096], Room::Any)
            }),
    );
    assert!(before.stats().mem_used_total_bytes > held_before[2]);
    let (after, _) = recover(config(), files.copied());
    assert_eq!(held(&after.stats()), held_before);
    assert!(read(&after, 0) == noise(1, 4096));
    use_up(&after);
}

const THREADS: u64 = 3;
const CHILD: &str = "UZRAM_TEST_WRITER";

/// A store whose writers are killed.
#[derive(Clone, Copy)]
struct Victim {
    pool: &'static str,
    pages: u64,
    checksum: bool,
    spare_bytes: u64,
    /// With a backing file, to which pages go all the time.
    backs: bool,
    kills: u64,
}

/// For each page the last operation that was begun and the last that was acknowledged; then one
/// word: running.
struct Log {
    words: Region,
    pages: u64,
}

impl Log {
    fn begun(&self, page: u64) -> &crate::sync::MappedU64 {
        &self.words.words()[page as usize * 2]
    }

    fn acknowledged(&self, page: u64) -> &crate::sync::MappedU64 {
        &self.words.words()[page as usize * 2 + 1]
    }

    fn running(&self) -> &crate::sync::MappedU64 {
        &self.words.words()[self.pages as usize * 2]
    }
}

impl Victim {
    /// With few places for the pages of those that are packed again, so that passes find some.
    fn config(self, backing: Option<&File>) -> StoreConfig {
        let mut config = config(self.pages, Unit::DEFAULT, "lz4", self.checksum);
        config.secondaries[0] = Some(Compression::new(DENSER, Unit::DEFAULT).unwrap());
        config.spare_bytes = self.spare_bytes;
        config.backing_file = backing.map(|file| Arc::new(reopened(file)));
        with_pool(self.pool, config)
    }
}

/// The content of a page after its operation number `version`.
fn content(page: u64, version: u64) -> Vec<u8> {
    let seed = page << 32 | version;
    match version % 8 {
        0 => vec![0; 4096],
        1 | 5 => noise(seed, 4096),
        2 => vec![seed as u8; 4096],
        // A part, over what was there before.
        4 | 6 => {
            let mut bytes = content(page, version - 1);
            bytes[part(version)].copy_from_slice(&noise(seed, part(version).len()));
            bytes
        }
        _ => compressible(
            seed,
            300 + (seed.wrapping_mul(2_654_435_761) % 3700) as usize,
        )
        .into_iter()
        .chain(std::iter::repeat(0))
        .take(4096)
        .collect(),
    }
}

fn part(version: u64) -> std::ops::Range<usize> {
    let start = (version * 523) as usize % 3000;
    start..start + 700
}

fn act(store: &Store, page: u64, version: u64) {
    let (index, bytes) = (PageIndex(page), content(page, version));
    let done = match version % 8 {
        0 => store.trim(index),
        4 | 6 => store.write_at(index, part(version).start, &bytes[part(version)]),
        _ => store.write(index, &bytes),
    };
    done.unwrap();
}

/// The process that is killed. It does nothing unless it was started to.
#[test]
fn writer() {
    let Ok(place) = std::env::var(CHILD) else {
        return;
    };
    let mut words = place.split(',');
    let mut word = || words.next().unwrap();
    let victim = Victim {
        pool: crate::pool::find(word()).unwrap(),
        pages: word().parse().unwrap(),
        checksum: word().parse().unwrap(),
        spare_bytes: word().parse().unwrap(),
        backs: word().parse().unwrap(),
        kills: 0,
    };
    let mut file = || {
        let mut options = OpenOptions::new();
        OwnedFd::from(options.read(true).write(true).open(word()).unwrap())
    };
    let log = Log {
        words: map(&file()),
        pages: victim.pages,
    };
    let remains = Remains {
        superblock: file(),
        table: file(),
        arena: file(),
        checksums: victim.checksum.then(&mut file),
        ages: None,
        blocks: victim.backs.then(&mut file),
    };
    let backing = victim.backs.then(&mut file).map(File::from);
    let (store, recovery) = recover(victim.config(backing.as_ref()), remains);
    assert_eq!(recovery.lost_pages, 0);
    std::thread::scope(|scope| {
        let (store, log) = (&store, &log);
        scope.spawn(move || {
            let mut start = 0;
            loop {
                store.compact(Duration::from_millis(5)).unwrap();
                store.maintain(Duration::from_millis(1));
                let mut looks = 0;
                let mut goes_on = || {
                    looks += 1;
                    looks < 50
                };
                store.mark_idle();
                let idle = Recompression {
                    pages: ColdPages::Idle,
                    ..Recompression::new(1)
                };
                store.recompress(&idle, &mut goes_on).unwrap();
                if victim.backs {
                    let mut looks = 0;
                    let mut goes_on = || {
                        looks += 1;
                        looks < 200
                    };
                    let range = start..victim.pages;
                    store.write_back_range(range, &mut goes_on).unwrap();
                    start = (start + 211) % victim.pages;
                    store.discard_backing();
                }
            }
        });
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut turn = u64::from(std::process::id()) * 7919 + thread;
                loop {
                    turn = turn.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let page = (turn >> 33) % (log.pages / THREADS) * THREADS + thread;
                    let version = log.acknowledged(page).load(Ordering::SeqCst) + 1;
                    log.begun(page).store(version, Ordering::SeqCst);
                    act(store, page, version);
                    log.acknowledged(page).store(version, Ordering::SeqCst);
                    log.running().store(1, Ordering::SeqCst);
                }
            });
        }
    });
}

/// Kills it also when the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_killed_writer_loses_nothing_that_it_acknowledged() {
    let small = |pool, checksum| Victim {
        pool,
        pages: 512,
        checksum,
        spare_bytes: 0,
        backs: false,
        kills: 8,
    };
    let kinds = crate::pools().into_iter();
    let kinds = kinds.flat_map(|pool| {
        let backs = Victim {
            backs: true,
            ..small(pool, true)
        };
        [small(pool, false), small(pool, true), backs]
    });
    let unacknowledged: u64 = kinds.map(kill_writers).sum();
    assert!(
        unacknowledged > 0,
        "no kill came between a beginning and its acknowledgement"
    );
}

/// Large enough for a shard for each CPU, kept places, whole frames and huge pages.
#[test]
fn a_killed_writer_of_a_large_store_loses_nothing_that_it_acknowledged() {
    for (pool, checksum) in crate::pools().into_iter().zip([true, false].repeat(3)) {
        for (spare_bytes, backs) in [(0, true), (8 << 20, false)] {
            kill_writers(Victim {
                pool,
                pages: (96 << 20) / 4096,
                checksum,
                spare_bytes,
                backs,
                kills: 3,
            });
        }
    }
}

/// A disk for swap must have its memory at once, and all of it in the process's own mapping, whose pages are locked.
#[test]
fn a_spare_is_there_again_and_all_memory_is_mapped() {
    const SPARE_BYTES: u64 = 16 << 20;
    let config = || StoreConfig {
        spare_bytes: SPARE_BYTES,
        ..config((96 << 20) / 4096, Unit::DEFAULT, "lz4", true)
    };
    let (before, files) = make(config());
    for index in 0..3000 {
        before
            .write(PageIndex(index), &compressible(index, 4096))
            .unwrap();
    }
    while before.maintain(Duration::from_secs(1)) {}
    let stats = before.stats();
    assert!(stats.mem_spare_bytes >= SPARE_BYTES, "{stats:?}");
    assert_eq!(
        held_bytes(&files.0.arena),
        stats.mem_resident_bytes,
        "the files hold what is counted"
    );
    drop(before);
    let (after, recovery) = recover(config(), files.remains());
    assert_eq!((recovery.pages, recovery.lost_pages), (3000, 0));
    assert_eq!(after.stats().mem_resident_bytes, stats.mem_resident_bytes);
    assert_eq!(held_bytes(&files.0.arena), stats.mem_resident_bytes);
    assert!(after.inner.has_spare, "its writers wait for the spare too");
    let mapped = after.inner.pool.mapped_bytes() as u64;
    assert_eq!(mapped, stats.mem_resident_bytes);
    let table = after.inner.table.words().region();
    assert_eq!(table.resident_bytes(), table.length_bytes());
    for index in 0..3000 {
        assert!(
            read(&after, index) == compressible(index, 4096),
            "page {index}"
        );
        after
            .write(PageIndex(index + 3000), &compressible(index, 4096))
            .unwrap();
    }
    after.reset();
    while after.maintain(Duration::from_secs(1)) {}
    let stats = after.stats();
    assert_eq!(
        (stats.mem_used_total_bytes, stats.mem_spare_bytes),
        (0, SPARE_BYTES)
    );
    assert_eq!(held_bytes(&files.0.arena), SPARE_BYTES);
}

/// A disk too small for a spare is swapped to as well.
#[test]
fn memory_of_a_small_disk_for_swap_is_mapped_too() {
    let config = || StoreConfig {
        spare_bytes: 16 << 20,
        ..config((8 << 20) / 4096, Unit::DEFAULT, "lz4", true)
    };
    let (before, files) = make(config());
    for index in 0..1000 {
        before.write(PageIndex(index), &noise(index, 4096)).unwrap();
    }
    drop(before);
    let (after, recovery) = recover(config(), files.remains());
    assert_eq!(recovery.pages, 1000);
    let resident = after.stats().mem_resident_bytes;
    assert!(resident >= 1000 * 4096);
    assert_eq!(after.inner.pool.mapped_bytes() as u64, resident);
}

/// Writers are not refused for memory that the maintenance populates, releases or copies beside them.
#[test]
fn maintenance_at_the_limit_refuses_nobody() {
    const LIMIT_BYTES: u64 = 96 << 20;
    if !collapses() {
        return;
    }
    let config = |backing| StoreConfig {
        mem_limit_bytes: LIMIT_BYTES,
        backing,
        ..config((256 << 20) / 4096, Unit::DEFAULT, "lz4", false)
    };
    for _ in 0..3 {
        for backing in [Backing::Memfd, Backing::Private] {
            fill_beside_maintenance(&Store::new(config(backing)).unwrap(), LIMIT_BYTES);
        }
    }
}

/// Writes pages up to the last blocks below the limit.
fn fill_beside_maintenance(store: &Store, limit_bytes: u64) {
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                store.maintain(Duration::from_millis(5));
            }
        });
        let mut page = noise(1, 4096);
        let pages = (limit_bytes - (512 << 10)) / 4096;
        for index in 0..pages {
            page[..8].copy_from_slice(&index.to_le_bytes());
            let written = store.write(PageIndex(index), &page);
            written.unwrap_or_else(|error| {
                is_done.store(true, Ordering::Relaxed);
                panic!("page {index} of {pages}: {error}")
            });
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

/// The number of operations that were begun and not acknowledged when their writers died.
fn kill_writers(victim: Victim) -> u64 {
    let Victim {
        pool,
        pages,
        checksum,
        spare_bytes,
        backs,
        kills,
    } = victim;
    let backing = backs.then(|| tempfile::tempfile().unwrap());
    let (store, files) = make(victim.config(backing.as_ref()));
    drop(store);
    let log = Region::reserve((pages as usize * 2 + 1) * 8, Backing::Memfd).unwrap();
    let log_file = log.file().unwrap().unwrap();
    let log = Log { words: log, pages };
    let Remains {
        superblock,
        table,
        arena,
        checksums,
        blocks,
        ..
    } = files.remains();
    let mut paths = vec![log_file, superblock, table, arena];
    paths.extend(checksums.into_iter().chain(blocks));
    let copy = |file: &File| OwnedFd::from(file.try_clone().unwrap());
    paths.extend(backing.as_ref().map(copy));
    let paths: Vec<String> = paths
        .iter()
        .map(|file| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
        .collect();
    let mut unacknowledged = 0;
    for kill in 0..kills {
        log.running().store(0, Ordering::SeqCst);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "store::recover_tests::writer"])
            .env(
                CHILD,
                format!(
                    "{pool},{pages},{checksum},{spare_bytes},{backs},{}",
                    paths.join(",")
                ),
            );
        command.stdout(Stdio::null());
        let mut child = Killed(command.spawn().unwrap());
        let deadline = Instant::now() + Duration::from_secs(60);
        while log.running().load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < deadline && child.0.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_micros(200));
        }
        // Any moment will do: no result depends on which.
        let pause_us = match pages {
            ..1000 => kill * 7919 % 20_000,
            _ => 300_000 + kill * 7919 % 200_000,
        };
        std::thread::sleep(Duration::from_micros(pause_us));
        drop(child);
        let (store, recovery) = recover(victim.config(backing.as_ref()), files.remains());
        assert_eq!(
            (recovery.lost_pages, recovery.generation),
            (0, 3 + 2 * kill)
        );
        assert!(recovery.resealed_pages <= THREADS + 1, "{recovery:?}");
        unacknowledged += judge(&store, &log);
        if kill % 10 == 3 {
            use_up(&store);
            (0..pages).for_each(|page| {
                // What comes next must start from a page of zeroes.
                let next = log.begun(page).load(Ordering::SeqCst).next_multiple_of(8);
                log.begun(page).store(next, Ordering::SeqCst);
                log.acknowledged(page).store(next, Ordering::SeqCst);
            });
        }
    }
    unacknowledged
}

/// Compares every page with the log, and settles the log where the writer died in between.
fn judge(store: &Store, log: &Log) -> u64 {
    let mut unacknowledged = 0;
    for page in 0..log.pages {
        let begun = log.begun(page).load(Ordering::SeqCst);
        let acknowledged = log.acknowledged(page).load(Ordering::SeqCst);
        let seen = read(store, page);
        if seen == content(page, acknowledged) {
            log.begun(page).store(acknowledged, Ordering::SeqCst);
        } else {
            assert!(
                begun == acknowledged + 1,
                "page {page}: version {acknowledged} was lost"
            );
            assert!(
                seen == content(page, begun),
                "page {page}: neither old nor new"
            );
            log.acknowledged(page).store(begun, Ordering::SeqCst);
        }
        unacknowledged += begun - acknowledged;
    }
    unacknowledged
}

/// Looking at a page of a file makes it resident, zeroes or not. So nothing looks at the table's pages of holes,
/// and a reset punches the rest.
#[test]
fn the_tables_file_holds_no_page_for_holes() {
    const PAGES: u64 = 64 << 10;
    let (store, files) = make(config(PAGES, Unit::DEFAULT, "lz4", false));
    let table = files.table();
    let resident = |from| table.next_data(from).map(|data| data.start);
    let mut page = vec![1; 4096];
    for index in (0..PAGES).map(PageIndex) {
        store.read(index, &mut page).unwrap();
        store.read_at(index, 7, &mut page[..100]).unwrap();
        store.expect(index);
        assert_eq!(store.state(index).unwrap(), PageState::Hole);
        store.trim(index).unwrap();
        store.zero(index, Zeroing::MayPunch).unwrap();
        store.zero_at(index, 7, 100, Zeroing::MayPunch).unwrap();
        assert_eq!(resident(0), None, "{index:?}");
    }
    let sweep = || {
        store.trim_range(1..PAGES - 1).unwrap();
        store.maintain(Duration::ZERO);
        store.compact(Duration::MAX).unwrap();
    };
    sweep();
    assert_eq!(resident(0), None, "swept");
    store.write(PageIndex(PAGES - 1), &noise(1, 4096)).unwrap();
    sweep();
    let last = (PAGES - CHUNK_SLOTS) as usize * 8;
    assert!(resident(0) >= Some(last), "only the chunk of the last page");
    store.reset();
    assert_eq!(resident(0), None, "reset");
}

#[test]
fn a_take_over_makes_no_page_of_holes_resident() {
    const PAGES: u64 = 1 << 20;
    let (store, files) = make(config(PAGES, Unit::DEFAULT, "lz4", true));
    // Two pages of the table share a bit, of which one has content.
    for index in [0, 700, 512 << 10] {
        store
            .write(PageIndex(index), &compressible(index, 4096))
            .unwrap();
    }
    store.trim(PageIndex(700)).unwrap();
    let held = |files: &Remains| {
        let checksums = files.checksums.as_ref().unwrap();
        [&files.table, &files.arena, checksums].map(held_bytes)
    };
    let remains = files.copied();
    let before = held(&remains);
    let kept = Files(remains);
    let (store, recovery) = recover(config(PAGES, Unit::DEFAULT, "lz4", true), kept.remains());
    assert_eq!(recovery.pages, 2);
    for index in (0..PAGES).step_by(1021) {
        read(&store, index);
        store.trim(PageIndex(index / 2 * 2 + 1)).unwrap();
    }
    let after = held(&kept.0);
    assert!(
        after[0] <= before[0] && after[2] <= before[2],
        "{before:?}, {after:?}"
    );
    assert_eq!(after[1], store.stats().mem_resident_bytes);
}

/// Whether a page reads as an error.
fn is_lost(store: &Store, index: u64) -> bool {
    let mut page = vec![0xee; store.unit().bytes()];
    let read = store.read(PageIndex(index), &mut page);
    read.is_err_and(|error| error.kind() == ErrorKind::Corrupt)
}

#[test]
fn a_damaged_word_costs_its_page_alone() {
    for pool in crate::pools() {
        let make_config = || with_pool(pool, config(64, Unit::DEFAULT, "lz4", false));
        let (before, files) = make(make_config());
        for index in 0..60 {
            before
                .write(PageIndex(index), &compressible(index, 4096))
                .unwrap();
        }
        before.write(PageIndex(1), &[7; 4096]).unwrap();
        let table = files.table();
        let word = |index: u64| table.words()[index as usize].load(Ordering::Relaxed);
        let far = 1 << 63;
        let damaged = [
            (2, word(2) | far),
            (3, word(3) & !(7 << 2) | 7 << 2),
            (4, word(4) & !(7 << 2)),
            (5, word(5) | 1 << 8),
            (6, word(6) | 0xffff << 10),
            (7, word(7) & !(7 << 2) | 5 << 2),
            (1, word(1) | 1 << 12),
            // Two have the same object, and neither is believed.
            (8, word(9)),
            // A hole of the dead.
            (63, 1 << 40),
        ];
        for (index, word) in damaged {
            table.words()[index].store(word, Ordering::Relaxed);
        }
        drop(before);
        let (store, recovery) = recover(make_config(), files.remains());
        let lost = [1, 2, 3, 4, 5, 6, 7, 8, 9, 63];
        assert_eq!(
            recovery.lost_pages,
            lost.len() as u64,
            "{pool}: {recovery:?}"
        );
        assert_eq!(
            (recovery.pages, store.stats().lost_pages),
            (60 - 9, 10),
            "{pool}"
        );
        for index in 0..64 {
            if lost.contains(&index) {
                assert!(is_lost(&store, index), "{pool}: {index}");
                assert_eq!(store.state(PageIndex(index)).unwrap(), PageState::Lost);
            } else if index < 60 {
                assert!(
                    read(&store, index) == compressible(index, 4096),
                    "{pool}: {index}"
                );
            }
        }
        assert_eq!(store.stats().failed_reads, lost.len() as u64);
        let part = store.write_at(PageIndex(2), 5, b"part").unwrap_err();
        assert_eq!(part.kind(), ErrorKind::Corrupt);
        store.write(PageIndex(2), &compressible(77, 4096)).unwrap();
        store.trim(PageIndex(3)).unwrap();
        store.zero(PageIndex(4), Zeroing::NoHole).unwrap();
        assert!(read(&store, 2) == compressible(77, 4096));
        assert!(read(&store, 3) == [0; 4096] && read(&store, 4) == [0; 4096]);
        assert_eq!(store.stats().lost_pages, 7);
        // It is known to the next one too.
        drop(store);
        let (store, recovery) = recover(make_config(), files.remains());
        assert_eq!((recovery.lost_pages, recovery.generation), (7, 3));
        use_up(&store);
        assert_eq!(store.stats().lost_pages, 0);
    }
}

/// A page whose word names the object of another one, before or behind it, does not cost that one.
#[test]
fn of_objects_on_each_other_the_only_one_with_a_right_checksum_is_kept() {
    for pool in crate::pools() {
        let make_config = || with_pool(pool, config(64, Unit::DEFAULT, "lz4", true));
        let (before, files) = make(make_config());
        for index in 0..60 {
            before
                .write(PageIndex(index), &compressible(index, 4096))
                .unwrap();
        }
        for (index, seed) in [(20, 21), (21, 21), (30, 31), (31, 31)] {
            before
                .write(PageIndex(index), &compressible(seed, 4096))
                .unwrap();
        }
        let table = files.table();
        let word = |index: usize| table.words()[index].load(Ordering::Relaxed);
        // Locked by the dead: that its checksum is made anew proves nothing.
        let damaged = [
            (8, word(9)),
            (13, word(12)),
            (20, word(21)),
            (40, word(41) | 1),
        ];
        for (index, word) in damaged {
            table.words()[index].store(word, Ordering::Relaxed);
        }
        // Nobody's checksum is right.
        table.words()[31].store(word(30), Ordering::Relaxed);
        let damaged_place = before.inner.table.glimpse(PageIndex(30)).unwrap();
        let arena = files.arena();
        arena.words()[damaged_place.start / 8].fetch_xor(1, Ordering::Relaxed);
        drop(before);
        let (store, recovery) = recover(make_config(), files.remains());
        let lost = [8, 13, 20, 21, 30, 31, 40];
        assert_eq!((recovery.generation, recovery.pages), (2, 60 - 7), "{pool}");
        assert_eq!(
            (recovery.lost_pages, store.stats().lost_pages),
            (7, 7),
            "{pool}"
        );
        for index in 0..60 {
            if lost.contains(&index) {
                assert!(is_lost(&store, index), "{pool}: {index}");
            } else {
                assert!(
                    read(&store, index) == compressible(index, 4096),
                    "{pool}: {index}"
                );
            }
        }
        drop(store);
        let (store, recovery) = recover(make_config(), files.remains());
        assert_eq!((recovery.generation, recovery.lost_pages), (3, 7));
        use_up(&store);
    }
}

#[test]
fn damage_while_nobody_has_the_store_is_found() {
    let make_config = || config(8, Unit::DEFAULT, "lz4", true);
    let (before, files) = make(make_config());
    for index in 0..8 {
        before.write(PageIndex(index), &noise(index, 4096)).unwrap();
    }
    let place = |index| before.inner.table.glimpse(PageIndex(index)).unwrap();
    let damaged = [place(3), place(5)];
    // Page 5 is being written when its process dies: its checksum may be the new content's.
    std::mem::forget(before.inner.table.lock(PageIndex(5)).unwrap());
    let arena = files.arena();
    for place in damaged {
        arena.words()[place.start / 8].fetch_xor(1 << 9, Ordering::Relaxed);
    }
    let (store, recovery) = recover(make_config(), files.copied());
    assert_eq!((recovery.resealed_pages, recovery.lost_pages), (1, 0));
    assert!(is_lost(&store, 3), "the checksum was made anew");
    for index in [0, 1, 2, 4, 6, 7] {
        assert!(read(&store, index) == noise(index, 4096));
    }
    assert!(!is_lost(&store, 5));
}

#[test]
fn marks_of_passes_that_died_are_gone() {
    let make_config = || {
        let mut config = config(8, Unit::DEFAULT, "lz4", false);
        config.secondaries[0] = Some(Compression::new(DENSER, Unit::DEFAULT).unwrap());
        config
    };
    let (before, files) = make(make_config());
    before.write(PageIndex(2), &compressible(2, 4096)).unwrap();
    let mut guard = before.inner.table.lock(PageIndex(2)).unwrap();
    guard.set_flags(guard.flags().with_mark(true));
    drop(guard);
    let (store, _) = recover(make_config(), files.copied());
    assert!(!store.inner.table.seen(PageIndex(2)).flags().is_marked());
}

/// Bytes of a file that this process maps as huge pages.
fn huge_bytes(file: &OwnedFd) -> u64 {
    let inode = rustix::fs::fstat(file).unwrap().st_ino.to_string();
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_its = false;
    let mut kib = 0;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["ShmemPmdMapped:", number, _] if is_its => kib += number.parse::<u64>().unwrap(),
            [range, _, _, _, number, ..] if range.contains('-') => is_its = number == inode,
            _ => {}
        }
    }
    kib << 10
}

/// Whether the system makes huge pages of a file's small ones, which it does from Linux 6.1 on.
fn collapses() -> bool {
    const BYTES: usize = crate::region::HUGE_PAGE_BYTES;
    let region = Region::reserve(BYTES, Backing::Memfd).unwrap();
    region.populate(0..BYTES).unwrap();
    region.collapse(0..BYTES)
}

#[test]
fn full_spans_become_huge_by_maintenance_and_stay_what_they_are() {
    let make_config = |limit| {
        let mut config = config((128 << 20) / 4096, Unit::DEFAULT, "lz4", true);
        config.mem_limit_bytes = limit;
        config
    };
    for limit in [0, 96 << 20] {
        let (store, files) = make(make_config(limit));
        for index in 0..(40 << 20) / 4096 {
            store.write(PageIndex(index), &noise(index, 4096)).unwrap();
        }
        let held = held_bytes(&files.0.arena);
        let before = (huge_bytes(&files.0.arena), store.stats());
        while store.maintain(Duration::ZERO) {}
        let after = (huge_bytes(&files.0.arena), store.stats());
        assert_eq!(before.1, after.1);
        assert!(held_bytes(&files.0.arena) <= held + (4 << 20));
        let wanted_bytes = if collapses() { 32 << 20 } else { 0 };
        assert!(after.0 >= before.0 + wanted_bytes, "{before:?}, {after:?}");
        for index in 0..(40 << 20) / 4096 {
            assert!(read(&store, index) == noise(index, 4096), "{index}");
        }
        drop(store);
        let (store, recovery) = recover(make_config(limit), files.remains());
        assert_eq!(recovery.pages, (40 << 20) / 4096);
        assert_eq!(held_bytes(&files.0.arena), store.stats().mem_resident_bytes);
        // What is given back in parts is given back.
        for index in (0..(40 << 20) / 4096).filter(|index| index % 128 > 5) {
            store.trim(PageIndex(index)).unwrap();
        }
        store.compact(Duration::MAX).unwrap();
        let resident = store.stats().mem_resident_bytes;
        assert_eq!(held_bytes(&files.0.arena), resident, "of {held}");
        assert!(resident < held / 4);
    }
}

/// Pages that go back while they are being copied into a huge page would be there again, without anybody's knowing.
#[test]
fn what_goes_back_while_spans_become_huge_is_gone() {
    const PAGES: u64 = (64 << 20) / 4096;
    let (store, files) = make(config(PAGES, Unit::DEFAULT, "lz4", false));
    let fill = |pages: std::ops::Range<u64>| {
        pages.for_each(|index| store.write(PageIndex(index), &noise(index, 4096)).unwrap());
    };
    for _ in 0..6 {
        fill(0..PAGES);
        std::thread::scope(|scope| {
            let trimmer = scope.spawn(|| {
                for index in (0..PAGES).rev() {
                    store.trim(PageIndex(index)).unwrap();
                }
            });
            while !trimmer.is_finished() {
                store.maintain(Duration::ZERO);
            }
        });
        store.inner.pool.trim(Parts::Too);
        let resident = store.stats().mem_resident_bytes;
        assert_eq!((held_bytes(&files.0.arena), resident), (0, 0));
    }
}
