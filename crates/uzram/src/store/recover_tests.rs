//! A store whose process died between any two instructions opens again: every acknowledged page is
//! whole, any other is old or new, and nothing is leaked.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::fault_tests::{compressible, noise};
use super::recover::Remains;
use super::slot::CHUNK_SLOTS;
use super::*;
use crate::pool::Room;
use crate::region::Backing;

/// The descriptors of a store's memory.
pub(super) struct Files {
    words: OwnedFd,
    arena: OwnedFd,
}

impl Files {
    pub(super) fn remains(&self) -> Remains {
        let attach = |file: &OwnedFd| Region::attach(file.try_clone().unwrap()).unwrap();
        Remains {
            words: attach(&self.words),
            arena: attach(&self.arena),
        }
    }
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

/// A store in memory that outlives it.
pub(super) fn make(config: StoreConfig) -> (Store, Files) {
    let pool_config = config.pool_config();
    let arena = pool::reserve(&pool_config).unwrap();
    let table = SlotTable::new(config.disksize_bytes, config.unit, config.backing).unwrap();
    let files = Files {
        words: table.words().region().file(),
        arena: arena.file(),
    };
    (
        Store::over(config, &pool_config, table, arena).unwrap(),
        files,
    )
}

fn read(store: &Store, index: u64) -> Vec<u8> {
    let mut page = vec![0xee; store.unit().bytes()];
    store.read(PageIndex(index), &mut page).unwrap();
    page
}

/// The content of a store, without its history.
fn held(stats: &Stats) -> [u64; 5] {
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
            let after = Store::recover(config(), files.remains()).unwrap();
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
fn use_up(store: &Store) {
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
    let after = Store::recover(config(), files.remains()).unwrap();
    assert_eq!(held(&after.stats()), held_before);
    assert!(read(&after, 0) == noise(1, 4096));
    use_up(&after);
}

const PAGES: u64 = 512;
const THREADS: u64 = 3;
/// In each pool.
const KILLS: u64 = 15;
const CHILD: &str = "UZRAM_TEST_WRITER";

/// For each page the last operation that was begun and the last that was acknowledged; then one
/// word: running.
struct Log(Region);

impl Log {
    fn begun(&self, page: u64) -> &crate::sync::MappedU64 {
        &self.0.words()[page as usize * 2]
    }

    fn acknowledged(&self, page: u64) -> &crate::sync::MappedU64 {
        &self.0.words()[page as usize * 2 + 1]
    }

    fn running(&self) -> &crate::sync::MappedU64 {
        &self.0.words()[PAGES as usize * 2]
    }
}

fn writer_config(pool: &str) -> StoreConfig {
    with_pool(pool, config(PAGES, Unit::DEFAULT, "lz4", false))
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
    let (pool, place) = place.split_once(',').unwrap();
    let files: Vec<OwnedFd> = place
        .split(',')
        .map(|path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap()
                .into()
        })
        .collect();
    let attach = |at: usize| Region::attach(files[at].try_clone().unwrap()).unwrap();
    let remains = Remains {
        words: attach(0),
        arena: attach(1),
    };
    let (store, log) = (
        Store::recover(writer_config(pool), remains).unwrap(),
        Log(attach(2)),
    );
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, log) = (&store, &log);
            scope.spawn(move || {
                let mut turn = u64::from(std::process::id()) * 7919 + thread;
                loop {
                    turn = turn.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let page = (turn >> 33) % (PAGES / THREADS) * THREADS + thread;
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
    let unacknowledged: u64 = crate::pools().into_iter().map(kill_writers).sum();
    assert!(
        unacknowledged > 0,
        "no kill came between a beginning and its acknowledgement"
    );
}

/// The number of operations that were begun and not acknowledged when their writers died.
fn kill_writers(pool: &str) -> u64 {
    let (store, files) = make(writer_config(pool));
    drop(store);
    let log = Region::reserve((PAGES as usize * 2 + 1) * 8, Backing::Memfd).unwrap();
    let log_file = log.file();
    let log = Log(log);
    let paths = [&files.words, &files.arena, &log_file]
        .map(|file| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    let mut unacknowledged = 0;
    for kill in 0..KILLS {
        log.running().store(0, Ordering::SeqCst);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "store::recover_tests::writer"])
            .env(CHILD, format!("{pool},{}", paths.join(",")));
        command.stdout(Stdio::null());
        let mut child = Killed(command.spawn().unwrap());
        let deadline = Instant::now() + Duration::from_secs(60);
        while log.running().load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < deadline && child.0.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_micros(200));
        }
        // Any moment will do: no result depends on which.
        std::thread::sleep(Duration::from_micros(kill * 7919 % 20_000));
        drop(child);
        let store = Store::recover(writer_config(pool), files.remains()).unwrap();
        unacknowledged += judge(&store, &log);
        if kill % 10 == 4 {
            use_up(&store);
            (0..PAGES).for_each(|page| {
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
    for page in 0..PAGES {
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
    let table = Region::attach(files.words).unwrap();
    let resident = |from| table.next_data(from);
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
