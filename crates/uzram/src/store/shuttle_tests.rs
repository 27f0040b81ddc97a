//! Slots, pages and the pool under every schedule that shuttle makes. A deadlock or a lost wake-up
//! fails a schedule too. Spins are one turn here, and all slots share one place to sleep.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use super::*;
use crate::codec::{Codec, Compressor, DecompressShared, Decompressor, Malformed};
use crate::pool::{Full, Handle, Room};
use crate::region::Backing;

/// Runs of each kind of schedule.
const SCHEDULES: usize = if cfg!(debug_assertions) { 2000 } else { 20000 };

/// Runs of models of compaction, which take longer, for each pool.
pub(super) const COMPACTIONS: usize = if cfg!(debug_assertions) { 200 } else { 1000 };

fn check(model: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(model, SCHEDULES);
    shuttle::check_pct(model, SCHEDULES, 3);
}

/// Runs all at once, to their ends.
pub(super) fn together(threads: Vec<Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = threads.into_iter().map(shuttle::thread::spawn).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

#[test]
fn shuttle_the_slot_lock_excludes_and_wakes() {
    check(|| {
        let table: SlotTable = SlotTable::new(8192, Unit::DEFAULT, Backing::Private).unwrap();
        let table = Arc::new(table);
        let inside = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let work = |first: usize| -> Box<dyn FnOnce() + Send> {
            let (table, inside) = (table.clone(), inside.clone());
            Box::new(move || {
                for slot in [first, 1 - first, first] {
                    let guard = table.lock(PageIndex(slot as u64)).unwrap();
                    assert_eq!(inside[slot].fetch_add(1, Ordering::SeqCst), 0, "two are in");
                    shuttle::thread::yield_now();
                    let count = match guard.entry() {
                        Entry::Same(count) => *count,
                        _ => 0,
                    };
                    inside[slot].fetch_sub(1, Ordering::SeqCst);
                    let _ = guard.publish(Entry::Same(count + 1), Flags::NONE);
                }
            })
        };
        together(vec![work(0), work(1), work(0), work(1)]);
        for slot in 0..2 {
            assert_eq!(
                *table.lock(PageIndex(slot)).unwrap().entry(),
                Entry::Same(6)
            );
        }
    });
}

/// Drops the zeroes at a page's end; a page without any is too big. Both directions can be
/// preempted.
pub(super) struct Tail;

impl Codec for Tail {
    fn name(&self) -> &str {
        "tail"
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        Ok(Box::new(Tail))
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(Tail)))
    }
}

impl Compressor for Tail {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        shuttle::thread::yield_now();
        let length = source.len() - source.iter().rev().take_while(|byte| **byte == 0).count();
        destination[..length].copy_from_slice(&source[..length]);
        shuttle::thread::yield_now();
        Some(length)
    }
}

impl DecompressShared for Tail {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        destination.fill(0);
        destination[..source.len()].copy_from_slice(source);
        shuttle::thread::yield_now();
        Ok(())
    }
}

fn store(mem_limit_bytes: u64) -> Arc<Store> {
    store_with(pool::pools()[0], mem_limit_bytes)
}

fn store_with(pool: &str, mem_limit_bytes: u64) -> Arc<Store> {
    let compression = Compression::with_codec(Box::new(Tail), Unit::DEFAULT).unwrap();
    let builder = Store::builder().size(4 << 12).compression(compression);
    Arc::new(
        builder
            .pool(pool)
            .mem_limit(mem_limit_bytes)
            .build()
            .unwrap(),
    )
}

pub(super) fn read(store: &Store, index: u64) -> Vec<u8> {
    let mut page = vec![0xee; 4096];
    store.read(PageIndex(index), &mut page).unwrap();
    page
}

/// A page with `byte` in its first 64 bytes and nothing behind.
pub(super) fn short(byte: u8) -> Vec<u8> {
    let mut page = vec![0; 4096];
    page[..64].fill(byte);
    page
}

/// A page that is kept raw.
pub(super) fn long(byte: u8) -> Vec<u8> {
    (0..4096).map(|at| byte + (at % 7) as u8).collect()
}

fn write_part(store: &Arc<Store>, start: usize, bytes: [u8; 2]) -> Box<dyn FnOnce() + Send> {
    let store = store.clone();
    Box::new(move || {
        for byte in bytes {
            store.write_at(PageIndex(0), start, &[byte; 16]).unwrap();
        }
    })
}

/// Each finds the pool without memory and starts again from the read.
#[test]
fn shuttle_two_partial_writers_keep_each_others_bytes() {
    check(|| {
        let store = store(0);
        together(vec![
            write_part(&store, 0, [1, 2]),
            write_part(&store, 32, [3, 4]),
        ]);
        let page = read(&store, 0);
        assert_eq!((&page[..16], &page[32..48]), (&[2; 16][..], &[4; 16][..]));
    });
}

#[test]
fn shuttle_two_partial_writers_and_a_full_one() {
    check(|| {
        let store = store(0);
        store.write(PageIndex(0), &short(9)).unwrap();
        let (writer, reader) = (store.clone(), store.clone());
        together(vec![
            write_part(&store, 0, [1, 2]),
            write_part(&store, 32, [3, 4]),
            Box::new(move || writer.write(PageIndex(0), &short(5)).unwrap()),
            Box::new(move || {
                let page = read(&reader, 0);
                assert!([1, 2, 5, 9].contains(&page[0]) && [3, 4, 5, 9].contains(&page[32]));
                assert!([5, 9].contains(&page[16]), "{}", page[16]);
                assert!(page[..16].iter().all(|byte| *byte == page[0]), "torn");
                assert!(page[16..32] == page[48..64] && page[64..].iter().all(|byte| *byte == 0));
            }),
        ]);
        let page = read(&store, 0);
        assert!(
            [2, 5].contains(&page[0]),
            "the first write came back: {}",
            page[0]
        );
        assert!(
            [4, 5].contains(&page[32]),
            "the first write came back: {}",
            page[32]
        );
        assert_eq!(
            (&page[16..32], &page[48..64]),
            (&[5; 16][..], &[5; 16][..]),
            "undone"
        );
        store.trim(PageIndex(0)).unwrap();
        let stats = store.stats();
        assert_eq!(
            (stats.mem_used_total_bytes, stats.orig_data_size_bytes),
            (0, 0)
        );
    });
}

/// Memory for one raw page, and two writers that want it: one gets it, the other keeps its old
/// page.
#[test]
fn shuttle_a_writer_that_gets_no_memory_keeps_the_old_page() {
    check(|| {
        let store = store(4096);
        store.zero(PageIndex(0), Zeroing::NoHole).unwrap();
        store.zero(PageIndex(1), Zeroing::NoHole).unwrap();
        let written = Arc::new(AtomicU64::new(0));
        let work = |index: u64| -> Box<dyn FnOnce() + Send> {
            let (store, written) = (store.clone(), written.clone());
            Box::new(move || match store.write(PageIndex(index), &long(2)) {
                Ok(()) => {
                    written.fetch_add(1, Ordering::SeqCst);
                    assert!(read(&store, index) == long(2));
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    assert!(read(&store, index) == vec![0; 4096]);
                }
            })
        };
        together(vec![work(0), work(1)]);
        assert_eq!(written.load(Ordering::SeqCst), 1);
        let stats = store.stats();
        assert_eq!((stats.mem_used_max_bytes, stats.huge_pages), (4096, 1));
        assert_eq!((stats.failed_writes, stats.same_pages), (1, 1));
        store.reset();
        assert_eq!(store.stats().mem_resident_bytes, 0);
    });
}

/// Parts are read while others zero and write them: each is from before or after.
#[test]
fn shuttle_parts_are_read_and_zeroed_among_writers() {
    check(|| {
        let store = store(0);
        store.write(PageIndex(0), &long(9)).unwrap();
        let (zeroing, reader) = (store.clone(), store.clone());
        together(vec![
            write_part(&store, 32, [3, 4]),
            Box::new(move || {
                let zero = |start: usize, length: usize, zeroing_kind: Zeroing| {
                    let zeroed = zeroing.zero_at(PageIndex(0), start, length, zeroing_kind);
                    zeroed.unwrap();
                };
                zero(0, 16, Zeroing::NoHole);
                zero(64, 4032, Zeroing::MayPunch);
            }),
            Box::new(move || {
                let mut part = [0xee; 64];
                reader.read_at(PageIndex(0), 0, &mut part).unwrap();
                let old = long(9);
                assert!(part[..16] == old[..16] || part[..16] == [0; 16], "torn");
                assert_eq!(part[16..32], old[16..32], "undone");
                let seen = &part[32..48];
                assert!([&old[32..48], &[3; 16], &[4; 16]].contains(&seen), "torn");
            }),
        ]);
        let mut last = long(9);
        last[..16].fill(0);
        last[32..48].fill(4);
        last[64..].fill(0);
        assert!(read(&store, 0) == last);
    });
}

/// Resets beside writers empty the pages that were there, and at most the pages written meanwhile
/// are left. Each page is one that was written or none.
#[test]
fn shuttle_reset_among_writers_and_readers() {
    check(|| {
        let store = store(0);
        for index in 0..4 {
            store.write(PageIndex(index), &short(1)).unwrap();
        }
        let (resetting, writer, reader, parts) =
            (store.clone(), store.clone(), store.clone(), store.clone());
        together(vec![
            Box::new(move || resetting.reset()),
            Box::new(move || {
                for byte in [2, 3] {
                    writer.write(PageIndex(1), &long(byte)).unwrap();
                    let seen = read(&writer, 1);
                    assert!(seen == long(byte) || seen == [0; 4096], "neither");
                }
            }),
            Box::new(move || {
                let seen = read(&reader, 1);
                let known = [short(1), long(2), long(3), vec![0; 4096]];
                assert!(known.contains(&seen), "none of them");
                reader.trim(PageIndex(2)).unwrap();
            }),
            Box::new(move || {
                parts.write_at(PageIndex(3), 16, &[5; 16]).unwrap();
                let seen = read(&parts, 3);
                assert!(
                    [0, 1].contains(&seen[0]) && [0, 5].contains(&seen[16]),
                    "none"
                );
            }),
        ]);
        for index in [0, 2] {
            assert!(read(&store, index) == [0; 4096], "page {index}");
        }
        // Written after all that: it stays.
        store.write(PageIndex(1), &long(4)).unwrap();
        assert!(read(&store, 1) == long(4));
        let page_3 = u64::from(read(&store, 3) != [0; 4096]);
        let stored_bytes = store.stats().orig_data_size_bytes;
        assert_eq!(stored_bytes >> 12, 1 + page_3);
        store.reset();
        let stats = store.stats();
        assert_eq!(
            (stats.mem_used_total_bytes, stats.mem_resident_bytes),
            (0, 0)
        );
    });
}

/// The table's words go back while others lock their slots, sleep for them and look at them without a lock:
/// nobody waits for ever, two are never in, and what is published later stays.
#[test]
fn shuttle_the_table_goes_back_among_those_who_lock() {
    check(|| {
        let table: SlotTable = SlotTable::new(4 << 12, Unit::DEFAULT, Backing::Private).unwrap();
        let table = Arc::new(table);
        let inside = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let work = |first: u64| -> Box<dyn FnOnce() + Send> {
            let (table, inside) = (table.clone(), inside.clone());
            Box::new(move || {
                for index in [first, 1 - first] {
                    let guard = table.lock(PageIndex(index)).unwrap();
                    let count = &inside[index as usize];
                    assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "two are in");
                    shuttle::thread::yield_now();
                    let old = match guard.entry() {
                        Entry::Same(old) => *old,
                        _ => 0,
                    };
                    count.fetch_sub(1, Ordering::SeqCst);
                    let entry = match index {
                        // Stays.
                        0 => Entry::Same(old + 1),
                        // Comes and goes.
                        _ => Entry::Empty,
                    };
                    let _ = guard.publish(entry, Flags::NONE);
                    if index == 0 {
                        assert!(!table.is_hole(PageIndex(0)).unwrap(), "lost");
                    }
                }
            })
        };
        let give_back = || -> Box<dyn FnOnce() + Send> {
            let (table, inside) = (table.clone(), inside.clone());
            Box::new(move || {
                for _ in 0..2 {
                    table.give_back(|chunk| {
                        for index in chunk.filter(|index| *index < 2) {
                            let count = inside[index as usize].load(Ordering::SeqCst);
                            assert_eq!(count, 0, "somebody is in");
                        }
                    });
                }
            })
        };
        together(vec![work(0), work(1), give_back(), give_back()]);
        let locked = table.lock(PageIndex(0)).unwrap();
        assert_eq!(*locked.entry(), Entry::Same(2), "a write was lost");
        drop(locked);
        assert_eq!(table.next_touched(0), 0);
        let _ = table
            .lock(PageIndex(0))
            .unwrap()
            .publish(Entry::Empty, Flags::NONE);
        for _ in 0..200 {
            // The model's system refuses at times.
            table.give_back(|_| {});
        }
        assert_eq!(table.next_touched(0), table.len(), "a chunk stays");
    });
}

/// The limit that is left is one that was set, the statistics show it, and it holds.
#[test]
fn shuttle_limits_are_set_among_writers() {
    check(|| {
        let store = store(3 << 12);
        let limit = |pages: u64| -> Box<dyn FnOnce() + Send> {
            let store = store.clone();
            Box::new(move || store.set_mem_limit(pages << 12))
        };
        let work = |index: u64| -> Box<dyn FnOnce() + Send> {
            let store = store.clone();
            Box::new(move || match store.write(PageIndex(index), &long(2)) {
                Ok(()) => assert!(read(&store, index) == long(2)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace),
            })
        };
        together(vec![limit(1), limit(2), work(0), work(1)]);
        let pages = store.mem_limit() >> 12;
        assert!([1, 2].contains(&pages));
        store.reset();
        let stored = (0..3).filter(|index| store.write(PageIndex(*index), &long(3)).is_ok());
        assert_eq!(stored.count() as u64, pages);
    });
}

/// Room for one block of two units, and two writers that want one each, of different classes.
/// Making room for one by giving back what the other has just made must not go on for ever.
#[test]
fn shuttle_writers_at_the_limit_do_not_starve_each_other() {
    check(|| {
        // Whose blocks for these sizes are of two units.
        let store = store_with("zsmalloc", 3 << 12);
        let written = Arc::new(AtomicU64::new(0));
        let work = |index: u64, length: usize| -> Box<dyn FnOnce() + Send> {
            let (store, written) = (store.clone(), written.clone());
            let mut page = vec![0; 4096];
            page[..length].fill(7);
            Box::new(move || match store.write(PageIndex(index), &page) {
                Ok(()) => drop(written.fetch_add(1, Ordering::SeqCst)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    let used_bytes = store.stats().mem_used_total_bytes;
                    assert_eq!(used_bytes, 2 << 12, "refused, and nobody had it");
                }
            })
        };
        together(vec![work(0, 2720), work(1, 1632)]);
        assert_eq!(written.load(Ordering::SeqCst), 1);
        assert_eq!(store.stats().mem_used_max_bytes, 2 << 12);
    });
}

/// Room for one object per page, and a writer that takes on its fast path what another makes,
/// again and again, because it gives its page back each time.
#[test]
fn shuttle_a_starving_writer_gets_the_memory_that_it_makes() {
    check(|| {
        let store = store_with(pool::pools()[0], 0);
        let other = store.clone();
        let mut page = [1; 4096];
        page[0] = 2;
        together(vec![
            Box::new(move || store.write(PageIndex(0), &page).unwrap()),
            Box::new(move || {
                for _ in 0..4 {
                    other.write(PageIndex(1), &page).unwrap();
                    other.trim(PageIndex(1)).unwrap();
                }
            }),
        ]);
    });
}

#[test]
fn shuttle_a_pool_gives_each_object_memory_of_its_own() {
    check(|| {
        let config = PoolConfig {
            unit: Unit::DEFAULT,
            disksize_bytes: 1 << 20,
            limit_bytes: 0,
            backing: Backing::Private,
            spare_bytes: 0,
        };
        let arena = pool::reserve(&config).unwrap();
        let pool: Arc<PoolMemory> =
            Arc::from(pool::make(pool::pools()[0], &config, arena).unwrap());
        let work = |byte: u8| -> Box<dyn FnOnce() + Send> {
            let pool = pool.clone();
            Box::new(move || {
                for size in [2000, 2000, 4096] {
                    let object = vec![byte; size];
                    let handle = insert(&*pool, &object);
                    shuttle::thread::yield_now();
                    assert!(pool.bytes(&handle) == object);
                    pool.remove(handle);
                }
            })
        };
        together(vec![work(1), work(2)]);
        let stats = pool.stats();
        assert_eq!(stats.used_bytes, 0);
        pool.trim(Parts::Stay);
        assert_eq!(pool.stats().resident_bytes, 0, "{stats:?}");
    });
}

fn insert(pool: &PoolMemory, bytes: &[u8]) -> Handle {
    loop {
        match pool.insert(bytes, Room::Any) {
            Ok(handle) => return handle,
            Err(Full::NeedsMemory) => pool.grow(bytes.len()).unwrap(),
            Err(Full::NoMemory) => panic!("bookkeeping"),
        }
    }
}

/// Twelve pages of which two in three are left: where three share a block, compaction empties one
/// of two blocks.
fn sparse(pool: &str) -> Arc<Store> {
    let compression = Compression::with_codec(Box::new(Tail), Unit::DEFAULT).unwrap();
    let builder = Store::builder().size(12 << 12).compression(compression);
    let store = Arc::new(builder.pool(pool).build().unwrap());
    for index in 0..12 {
        store
            .write(PageIndex(index), &third(index as u8 + 1))
            .unwrap();
    }
    for index in [2, 5, 8, 11] {
        store.trim(PageIndex(index)).unwrap();
    }
    store
}

/// A page that packs to a third of a unit.
fn third(byte: u8) -> Vec<u8> {
    let mut page = vec![0; 4096];
    page[..1360].fill(byte);
    page
}

fn compact(store: &Store) {
    while store.compact(Duration::ZERO).unwrap() {}
}

/// Each remaining page moves or not, and is read, written and trimmed meanwhile.
#[test]
fn shuttle_compaction_among_readers_writers_and_trims() {
    for pool in pool::pools() {
        let model = move || {
            let store = sparse(pool);
            let (reader, writer, other) = (store.clone(), store.clone(), store.clone());
            let compactor = store.clone();
            together(vec![
                Box::new(move || compact(&compactor)),
                Box::new(move || {
                    for index in [10, 9] {
                        assert!(
                            read(&reader, index) == third(index as u8 + 1),
                            "page {index}"
                        );
                    }
                }),
                Box::new(move || {
                    for byte in 94..=99 {
                        writer.write(PageIndex(6), &third(byte)).unwrap();
                        assert!(read(&writer, 6) == third(byte), "a write was undone");
                    }
                    writer.write_at(PageIndex(6), 16, &[98; 16]).unwrap();
                }),
                Box::new(move || other.trim(PageIndex(3)).unwrap()),
            ]);
            let mut written = third(99);
            written[16..32].fill(98);
            assert!(read(&store, 6) == written, "a write was undone");
            assert!(read(&store, 3) == vec![0; 4096], "a trim was undone");
            for index in [0, 1, 4, 7, 9, 10] {
                assert!(
                    read(&store, index) == third(index as u8 + 1),
                    "page {index}"
                );
            }
            compact(&store);
            store.reset();
            let stats = store.stats();
            assert_eq!(
                (stats.mem_used_total_bytes, stats.mem_resident_bytes),
                (0, 0)
            );
        };
        shuttle::check_random(model, COMPACTIONS);
        shuttle::check_pct(model, COMPACTIONS, 3);
    }
}

/// An object that was inserted before its block was closed and is published after the sweep: its
/// block stays as long as the object lives.
#[test]
fn shuttle_compaction_waits_for_objects_that_are_not_published() {
    for pool in pool::pools() {
        let model = move || {
            let store = sparse(pool);
            let (writer, first, second) = (store.clone(), store.clone(), store.clone());
            together(vec![
                Box::new(move || {
                    for index in [1, 2] {
                        writer
                            .write(PageIndex(index), &third(50 + index as u8))
                            .unwrap();
                    }
                }),
                Box::new(move || compact(&first)),
                Box::new(move || while second.maintain(Duration::ZERO) {}),
            ]);
            for index in [1, 2] {
                assert!(
                    read(&store, index) == third(50 + index as u8),
                    "page {index}"
                );
            }
            for index in [0, 3, 4, 6, 7, 9, 10] {
                assert!(
                    read(&store, index) == third(index as u8 + 1),
                    "page {index}"
                );
            }
            store.reset();
            let stats = store.stats();
            assert_eq!(
                (stats.mem_used_total_bytes, stats.mem_resident_bytes),
                (0, 0)
            );
        };
        shuttle::check_random(model, COMPACTIONS);
        shuttle::check_pct(model, COMPACTIONS, 3);
    }
}
