//! `mem_limit`: never exceeded, not for a moment; what is stored stays readable.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use uzram::{Bio, BlockDevice, ErrorKind, PageIndex, Store, Unit, Zeroing, Zram};

use crate::pages::{Rng, compressible, noise, same_filled};

/// Writes noise until the store is full; returns the pages that were stored.
fn fill(store: &Store) -> Vec<u64> {
    let unit = store.unit().bytes();
    let mut stored = Vec::new();
    for index in 0.. {
        match store.write(PageIndex(index), &noise(index, unit)) {
            Ok(()) => stored.push(index),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return stored;
            }
        }
    }
    unreachable!("the limit is far below the size");
}

#[test]
fn a_full_store_refuses_and_keeps_what_it_has() {
    let units = [4096, 16384, 65536];
    let kinds = uzram::pools()
        .into_iter()
        .flat_map(|pool| units.map(|unit| (pool, unit)));
    for (pool, unit) in kinds {
        let builder = Store::builder()
            .size(1 << 30)
            .unit(Unit::new(unit).unwrap());
        let store = builder.pool(pool).mem_limit(1 << 20).build().unwrap();
        let stored = fill(&store);
        assert_eq!(
            stored.len() as u64,
            (1 << 20) / unit,
            "{pool}: raw pages use the limit to the last byte"
        );
        let stats = store.stats();
        assert_eq!(
            (stats.mem_used_total_bytes, stats.failed_writes),
            (1 << 20, 1)
        );

        let unit = unit as usize;
        let (mut page, next) = (vec![0; unit], stored.len() as u64);
        let error = store
            .write(PageIndex(next), &compressible(1, unit))
            .unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::NoSpace, 28));
        store.write_at(PageIndex(next), 5, b"part").unwrap_err();
        assert_eq!(store.stats().failed_writes, 3);
        store.read(PageIndex(next), &mut page).unwrap();
        assert_eq!(page, vec![0; unit], "a refused write leaves a hole a hole");

        store.write(PageIndex(next), &same_filled(7, unit)).unwrap();
        store.zero(PageIndex(next + 1), Zeroing::NoHole).unwrap();
        for index in &stored {
            store.read(PageIndex(*index), &mut page).unwrap();
            assert!(page == noise(*index, unit), "page {index}");
        }
        store.trim(PageIndex(0)).unwrap();
        store.write(PageIndex(next), &noise(99, unit)).unwrap();
        assert_eq!(store.stats().mem_used_max_bytes, 1 << 20);
    }
}

/// As in a test suite of the kernel's zram: a huge device, a tiny limit, written to the end.
#[test]
fn a_device_of_100_gib_fills_to_its_limit_of_1_mib() {
    for pool in uzram::pools() {
        let builder = Store::builder().size(100 << 30).mem_limit(1 << 20);
        let disk = Zram::new(builder.pool(pool).build().unwrap());
        let mut written = 0;
        let error = loop {
            let data = noise(written, 65536);
            match disk.submit(Bio::Write {
                offset: written,
                data: &data,
            }) {
                Ok(()) => written += 65536,
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), 28, "ENOSPC");
        assert_eq!(written, 1 << 20, "{pool}");
        let stats = disk.store().stats();
        assert!(
            stats.mem_used_max_bytes <= 1 << 20 && stats.mem_resident_bytes <= 1 << 20,
            "{stats:?}"
        );
        let mut back = vec![0; 65536];
        for offset in (0..written).step_by(65536) {
            disk.submit(Bio::Read {
                offset,
                buffer: &mut back,
            })
            .unwrap();
            assert!(back == noise(offset, 65536), "offset {offset}");
        }
        disk.submit(Bio::Trim {
            offset: 0,
            length: 1 << 30,
        })
        .unwrap();
        let stats = disk.store().stats();
        assert_eq!(stats.mem_used_total_bytes, 0);
        assert!(stats.mem_resident_bytes <= (1 << 20) / 16, "{stats:?}");
    }
}

#[test]
fn a_limit_set_later_holds_from_then_on() {
    let store = Store::builder().size(1 << 30).build().unwrap();
    for index in 0..512 {
        store.write(PageIndex(index), &noise(index, 4096)).unwrap();
    }
    store.set_mem_limit(1 << 20);
    assert_eq!(store.mem_limit(), 1 << 20);
    let refused = store.write(PageIndex(600), &noise(1, 4096)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let mut page = vec![0; 4096];
    for index in 0..512 {
        store.read(PageIndex(index), &mut page).unwrap();
        assert!(page == noise(index, 4096), "stored pages stay");
    }
    for index in 0..=256 {
        store.trim(PageIndex(index)).unwrap();
    }
    store.write(PageIndex(600), &noise(1, 4096)).unwrap();
    store.write(PageIndex(601), &noise(1, 4096)).unwrap_err();
    store.set_mem_limit(0);
    store.write(PageIndex(601), &noise(1, 4096)).unwrap();
}

/// Rounded down to 4 KiB, to nothing if need be: never exceeded means never.
#[test]
fn a_limit_below_4_kib_leaves_room_for_same_filled_pages_only() {
    for limit in [1, 4095] {
        let unit = Unit::new(65536).unwrap();
        let store = Store::builder()
            .size(1 << 30)
            .unit(unit)
            .mem_limit(limit)
            .build()
            .unwrap();
        let refused = store
            .write(PageIndex(0), &compressible(1, 65536))
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        store.write(PageIndex(0), &same_filled(1, 65536)).unwrap();
        assert_eq!(store.stats().mem_used_max_bytes, 0);
        store.set_mem_limit(1 << 20);
        store.write(PageIndex(0), &compressible(1, 65536)).unwrap();
    }
}

/// Writers at the limit, with a watcher that looks all the time. At 96 MiB huge spans serve, at
/// 6 MiB small ones; near the limit the one gives way to the other.
#[test]
fn the_limit_holds_at_every_moment() {
    let default = uzram::pools()[0];
    let mut kinds = vec![
        (default, 6u64 << 20, 4096, 12_000),
        (default, 66 << 20, 40_000, 30_000),
    ];
    let others = uzram::pools().into_iter().skip(1);
    kinds.extend(others.map(|pool| (pool, 6 << 20, 4096, 2_000)));
    for (pool, limit, page_count, turns) in kinds {
        let turns = if cfg!(debug_assertions) {
            turns
        } else {
            10 * turns
        };
        let store = Store::builder()
            .size(1 << 30)
            .pool(pool)
            .mem_limit(limit)
            .build()
            .unwrap();
        let (done, refused) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4u64)
                .map(|thread| {
                    let (store, refused) = (&store, &refused);
                    scope.spawn(move || hammer(store, thread, page_count, turns, refused))
                })
                .collect();
            let watcher = scope.spawn(|| {
                let mut looks = 0;
                while !done.load(Ordering::Relaxed) {
                    let stats = store.stats();
                    assert!(stats.mem_used_total_bytes <= limit, "{stats:?}");
                    assert!(stats.mem_used_max_bytes <= limit, "{stats:?}");
                    assert!(stats.mem_resident_bytes <= limit, "{stats:?}");
                    looks += 1;
                }
                looks
            });
            let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            done.store(true, Ordering::Relaxed);
            assert!(watcher.join().unwrap() > 100);
            outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        });
        let stats = store.stats();
        assert!(
            stats.failed_writes > 0,
            "the limit was never met: {stats:?}"
        );
        assert_eq!(stats.failed_writes, refused.load(Ordering::Relaxed));
        assert!(stats.mem_used_max_bytes > limit * 9 / 10, "{stats:?}");
        store.reset();
        assert_eq!(store.stats().mem_resident_bytes, 0, "{pool}, limit {limit}");
    }
}

/// Writes and trims pages of this thread, and reads back what it last wrote there.
fn hammer(store: &Store, thread: u64, page_count: u64, turns: u64, refused: &AtomicU64) {
    let mut rng = Rng::new(thread + 1);
    let mut model = vec![None; page_count as usize];
    let mut page = vec![0; 4096];
    let content = |seed: u64| match seed % 4 {
        0 => compressible(seed, 4096),
        1 => same_filled(seed as u32, 4096),
        _ => noise(seed, 4096),
    };
    // First everything once, which is more than fits; then here and there.
    for turn in 0..page_count / 4 + turns / 4 {
        let own = if turn < page_count / 4 {
            turn
        } else {
            rng.below_u64(page_count / 4)
        };
        let index = PageIndex(own * 4 + thread);
        let at = own as usize;
        match rng.below_u64(10) {
            0 => {
                store.trim(index).unwrap();
                model[at] = None;
            }
            1..=2 => {
                store.read(index, &mut page).unwrap();
                let expected = model[at].map_or_else(|| vec![0; 4096], content);
                assert!(page == expected, "page {index}");
            }
            _ => {
                let seed = rng.next();
                match store.write(index, &content(seed)) {
                    Ok(()) => model[at] = Some(seed),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                        assert_ne!(seed % 4, 1, "same-filled pages need no memory");
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

/// Pages that become free where they come and go singly serve the writes that follow.
#[test]
fn overwrites_of_a_small_disk_seldom_make_memory() {
    const PAGES: u64 = 2560;
    const OVERWRITES: u64 = 8 * PAGES;
    for pool in uzram::pools() {
        let store = Store::builder().size(PAGES << 12).pool(pool);
        let store = store.build().unwrap();
        let mut rng = Rng::new(1);
        let mut write = |index: u64, seed: u64| {
            let length = 200 + rng.below(3000);
            let mut page = noise(seed, length);
            page.resize(4096, 0);
            store.write(PageIndex(index), &page).unwrap();
        };
        (0..PAGES).for_each(|index| write(index, index));
        let filled = store.stats().slow_path_writes;
        let mut places = Rng::new(2);
        (0..OVERWRITES).for_each(|turn| write(places.below_u64(PAGES), turn));
        let overwritten = store.stats().slow_path_writes - filled;
        assert!(filled <= PAGES / 8, "{pool}: {filled} while it was filled");
        assert!(overwritten <= OVERWRITES / 50, "{pool}: {overwritten}");
    }
}
