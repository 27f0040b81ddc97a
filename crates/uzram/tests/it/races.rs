//! Eight threads on the same pages: parts, whole pages, trims and zeroes, and every byte that was
//! acknowledged stays until somebody overwrites it.
//!
//! Fails when the slot's lock is dropped between the read and the publish of a partial write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uzram::{
    Codec, Compression, Compressor, DecompressShared, Decompressor, Malformed, PageIndex, Store,
    Unit, Zram,
};

use crate::history::{self, SECTOR_BYTES};
use crate::pages::noise;
use crate::race::{Disk, PAGES, THREADS, TURNS, race};

/// The race on a store of the default unit; also what other modules disturb in their way.
pub fn race_on_store(store: &Store, turns: u64, prepare: &(dyn Fn() + Sync)) {
    race(store, turns, prepare);
    let limit = store.mem_limit();
    assert!(limit == 0 || store.stats().mem_used_max_bytes <= limit);
    for page in 0..PAGES {
        store.trim(PageIndex(page)).unwrap();
    }
    let stats = store.stats();
    assert_eq!(
        (stats.mem_used_total_bytes, stats.orig_data_size_bytes),
        (0, 0),
        "{stats:?}"
    );
    assert_eq!(
        (
            stats.huge_pages,
            stats.same_pages,
            stats.compr_data_size_bytes
        ),
        (0, 0, 0)
    );
    assert_eq!(stats.failed_reads, 0);
    store.reset();
    assert_eq!(store.stats().mem_resident_bytes, 0);
}

fn builder() -> uzram::StoreBuilder {
    Store::builder().size(PAGES << 12)
}

#[test]
fn parts_of_a_page_survive_each_other_and_whole_pages() {
    for algorithm in uzram::algorithms() {
        let store = builder()
            .algorithm(algorithm)
            .checksum(algorithm == "lz4")
            .build()
            .unwrap();
        race_on_store(&store, TURNS, &|| {});
    }
}

/// Every write finds the pool short of memory now and then, and starts again from the read.
#[test]
fn parts_survive_when_memory_must_be_made_in_between() {
    let store = builder().mem_limit((PAGES << 12) * 3 / 5).build().unwrap();
    race_on_store(&store, TURNS, &|| {});
}

#[test]
fn parts_survive_in_every_pool() {
    for pool in uzram::pools().into_iter().skip(1) {
        let store = builder().pool(pool).build().unwrap();
        race_on_store(&store, TURNS / 3, &|| {});
    }
}

#[test]
fn requests_of_a_device_survive_each_other() {
    race(&Disk(&Zram::new(builder().build().unwrap())), TURNS, &|| {});
}

/// Two sectors of 512 bytes are apart in time too when a page is large.
#[test]
fn large_units_keep_parts_apart() {
    let unit = Unit::new(16384).unwrap();
    let disk = Zram::new(builder().unit(unit).build().unwrap());
    race(&Disk(&disk), TURNS / 4, &|| {});
}

/// Two threads on the two halves of one page, nothing else: the smallest form of the race.
#[test]
fn two_halves_of_one_page_are_never_undone() {
    let store = builder().build().unwrap();
    let deadline = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for half in 0..2usize {
            let store = &store;
            scope.spawn(move || {
                let mut seen = [0; 2048];
                for turn in 0..20_000u64 {
                    let mut mine = [0; 2048];
                    for (at, sector) in (0u64..).zip(mine.chunks_exact_mut(SECTOR_BYTES)) {
                        history::fill(turn * 2 + 1, at, sector);
                    }
                    store.write_at(PageIndex(0), half * 2048, &mine).unwrap();
                    store.read_at(PageIndex(0), half * 2048, &mut seen).unwrap();
                    assert!(seen == mine, "half {half}, turn {turn}");
                    if Instant::now() > deadline {
                        break;
                    }
                }
            });
        }
    });
}

/// A codec that finds nothing to compress, and takes its time for pages that begin with 1.
struct Hesitant;

impl Codec for Hesitant {
    fn name(&self) -> &str {
        "hesitant"
    }

    fn compressor(&self, _unit: Unit) -> uzram::Result<Box<dyn Compressor>> {
        Ok(Box::new(Hesitant))
    }

    fn decompressor(&self, _unit: Unit) -> uzram::Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(Hesitant)))
    }
}

impl Compressor for Hesitant {
    fn compress(&mut self, source: &[u8], _destination: &mut [u8]) -> Option<usize> {
        if source[0] == 1 {
            std::thread::sleep(Duration::from_micros(300));
        }
        None
    }
}

impl DecompressShared for Hesitant {
    fn decompress(&self, _source: &[u8], _destination: &mut [u8]) -> Result<(), Malformed> {
        Err(Malformed)
    }
}

/// On a small disk each write makes memory and gives memory back. A slow writer gets at what he made in
/// the end, however many others find it first.
#[test]
fn nobody_starves_while_others_take_the_memory_that_he_makes() {
    let codec = Compression::with_codec(Box::new(Hesitant), Unit::DEFAULT).unwrap();
    let builder = Store::builder().size(THREADS << 12).compression(codec);
    let store = &builder.build().unwrap();
    let write = |place: u64, first: u8| {
        let mut page = noise(place, 4096);
        page[0] = first;
        store.write(PageIndex(place), &page).unwrap();
    };
    let is_done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for place in 1..THREADS {
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    write(place, 2);
                }
            });
        }
        let done = scope
            .spawn(move || (0..20).for_each(|_| write(0, 1)))
            .join();
        is_done.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    assert_eq!(store.stats().failed_writes, 0);
}

/// The table's pages go back to the system and come again while others lock slots in them, spin and sleep for
/// them, and look at them without a lock.
#[test]
fn resets_beside_writers_lose_nothing_that_is_written_later() {
    const PAGES: u64 = 3000;
    const ROUNDS: u64 = if cfg!(debug_assertions) {
        2_000
    } else {
        20_000
    };
    let store = Store::builder()
        .size(PAGES << 12)
        .checksum(true)
        .build()
        .unwrap();
    let is_over = AtomicBool::new(false);
    let page_of = |round: u64, index: u64| {
        let mut page = vec![0; 4096];
        page[..8].copy_from_slice(&(round + 1).to_le_bytes());
        page[8..16].copy_from_slice(&index.to_le_bytes());
        page
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|thread| {
                let store = &store;
                scope.spawn(move || {
                    let mut seen = vec![0; 4096];
                    for round in 0..ROUNDS {
                        // One page that all want, and one's own.
                        store.write(PageIndex(0), &page_of(round, 0)).unwrap();
                        let index = 1 + thread + round * 31 % (PAGES / 4) * 4;
                        let page = page_of(round, index);
                        store.write(PageIndex(index), &page).unwrap();
                        store.read(PageIndex(index), &mut seen).unwrap();
                        let is_empty = seen.iter().all(|byte| *byte == 0);
                        assert!(seen == page || is_empty, "neither");
                        store.trim(PageIndex(index)).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                store.reset();
            }
        });
        let ends: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok), "a writer failed");
    });
    store.reset();
    let stats = store.stats();
    assert_eq!(
        (stats.orig_data_size_bytes, stats.mem_used_total_bytes),
        (0, 0)
    );
    for index in 0..PAGES {
        store.write(PageIndex(index), &page_of(0, index)).unwrap();
    }
    let mut seen = vec![0; 4096];
    for index in 0..PAGES {
        store.read(PageIndex(index), &mut seen).unwrap();
        assert_eq!(seen, page_of(0, index));
    }
}
