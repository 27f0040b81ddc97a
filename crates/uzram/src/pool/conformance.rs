//! Laws that every pool obeys, instantiated for each entry of the table at 4 and 16 KiB units.

#![allow(unsafe_code)]

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::victims::Victim;
use super::*;
use crate::page::Unit;
use crate::region::Backing;
use crate::sync::Mutex;

const UNITS_BYTES: [u64; 3] = [4096, 16384, 65536];

const HUGE_PAGE_GRANULES: u64 = (crate::region::HUGE_PAGE_BYTES / GRANULE_BYTES) as u64;

fn config(unit_bytes: u64, disksize_bytes: u64, limit_bytes: u64) -> PoolConfig {
    let unit = Unit::new(unit_bytes).unwrap();
    PoolConfig {
        unit,
        disksize_bytes,
        limit_bytes,
        backing: Backing::Private,
        spare_bytes: 0,
    }
}

fn pool(name: &str, config: &PoolConfig) -> Box<PoolMemory> {
    make(name, config, reserve(config).unwrap()).unwrap()
}

fn each(mut law: impl FnMut(&str, u64)) {
    for name in pools() {
        for unit in UNITS_BYTES {
            law(name, unit);
        }
    }
}

fn store(pool: &PoolMemory, bytes: &[u8]) -> Result<Handle> {
    loop {
        match pool.insert(bytes, Room::Any) {
            Ok(handle) => return Ok(handle),
            Err(Full::NeedsMemory) => pool.grow(bytes.len())?,
            Err(Full::NoMemory) => {
                return Err(Error::new(ErrorKind::NoMemory, "bookkeeping"));
            }
        }
    }
}

/// Content that tells objects apart, and their first bytes from their last.
fn content(seed: u64, size: usize) -> Vec<u8> {
    uzram_testkit::noise(seed, size)
}

#[test]
fn every_size_comes_back_as_it_was() {
    each(|name, unit| {
        let pool = pool(name, &config(unit, 1 << 28, 0));
        let sizes: Vec<usize> = (1..=unit as usize)
            .step_by(if unit > 4096 {
                (unit as usize / 110) | 1
            } else {
                1
            })
            .collect();
        let handles: Vec<Handle> = sizes
            .iter()
            .map(|size| store(&*pool, &content(*size as u64, *size)).unwrap())
            .collect();
        for (size, handle) in sizes.iter().zip(&handles) {
            assert_eq!(
                pool.bytes(handle),
                content(*size as u64, *size),
                "{name}: size {size}"
            );
        }
        let stored: u64 = sizes.iter().map(|size| *size as u64).sum();
        assert!(pool.stats().used_bytes >= stored, "{name}");
        handles.into_iter().for_each(|handle| {
            pool.remove(handle);
        });
        assert_eq!(
            pool.stats().used_bytes,
            0,
            "{name}: an empty pool holds no blocks"
        );
        pool.trim(Parts::Stay);
        assert_eq!(
            pool.stats().resident_bytes,
            0,
            "{name}: and after a trim no memory"
        );
    });
}

#[derive(Clone, Debug)]
enum Op {
    Insert(usize),
    Remove(usize),
}

fn op(unit: usize) -> impl Strategy<Value = Op> {
    let size = prop_oneof![1..=unit, Just(unit), 1..200usize, unit / 3..unit / 2];
    prop_oneof![3 => size.prop_map(Op::Insert), 2 => any::<usize>().prop_map(Op::Remove)]
}

#[test]
fn agrees_with_a_model() {
    each(|name, unit| {
        let ops = prop::collection::vec(op(unit as usize), 0..400);
        let run = TestRunner::new(ProptestConfig::with_cases((24 * 4096 / unit as u32).max(6)))
            .run(&(ops, 25..=26u32), |(ops, size_bits)| {
                let pool = pool(name, &config(unit, 1 << size_bits, 0));
                let mut model: Vec<(Handle, u64, usize)> = Vec::new();
                for (seed, op) in (1u64..).zip(ops) {
                    match op {
                        Op::Insert(size) => {
                            let handle = store(&*pool, &content(seed, size)).unwrap();
                            model.push((handle, seed, size));
                        }
                        Op::Remove(at) if !model.is_empty() => {
                            let (handle, seed, size) = model.swap_remove(at % model.len());
                            prop_assert_eq!(pool.bytes(&handle), content(seed, size));
                            pool.remove(handle);
                        }
                        Op::Remove(_) => {}
                    }
                }
                let places: HashMap<usize, usize> = model
                    .iter()
                    .map(|(h, _, size)| (h.offset_bytes(), *size))
                    .collect();
                prop_assert_eq!(places.len(), model.len());
                for (handle, seed, size) in model {
                    prop_assert_eq!(pool.bytes(&handle), content(seed, size));
                    pool.remove(handle);
                }
                prop_assert_eq!(pool.stats().used_bytes, 0);
                Ok(())
            });
        run.unwrap();
    });
}

#[test]
fn the_limit_is_never_exceeded_and_frees_make_room() {
    each(|name, unit| {
        let limit = 64 * unit;
        let pool = pool(name, &config(unit, 1 << 28, limit));
        let page = content(9, unit as usize);
        let mut handles = Vec::new();
        let error = loop {
            match store(&*pool, &page) {
                Ok(handle) => handles.push(handle),
                Err(error) => break error,
            }
            assert!(pool.stats().used_max_bytes <= limit);
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(
            handles.len(),
            64,
            "{name}: raw pages fill the limit to the last byte"
        );
        pool.remove(handles.pop().unwrap());
        handles.push(store(&*pool, &page).unwrap());
        pool.set_limit(0);
        handles.push(store(&*pool, &page).unwrap());
        handles.into_iter().for_each(|handle| {
            pool.remove(handle);
        });
    });
}

#[test]
fn any_failed_allocation_is_an_error_and_loses_nothing() {
    each(|name, unit| {
        for allowed in 0.. {
            let pool = pool(name, &config(unit, 1 << 28, 0));
            let kept = store(&*pool, b"kept").unwrap();
            crate::memory::fault::fail_after(allowed);
            let stored = store(&*pool, &content(1, unit as usize / 2));
            let untouched = crate::memory::fault::disarm();
            assert_eq!(pool.bytes(&kept), b"kept");
            match stored {
                Ok(handle) => {
                    pool.remove(handle);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::NoMemory),
            }
            pool.remove(kept);
            assert_eq!(pool.stats().used_bytes, 0);
            if untouched {
                break;
            }
        }
    });
}

/// The number of objects of `size` bytes that find room in the existing blocks.
fn room_for(pool: &PoolMemory, size: usize) -> usize {
    // What a pool keeps for the next object as long is free memory then, as it is in one rebuilt.
    assert_eq!(pool.close_sparse(0).unwrap(), []);
    pool.set_limit(pool.stats().used_bytes);
    let handles: Vec<Handle> =
        std::iter::from_fn(|| pool.insert(&content(1, size), Room::Any).ok()).collect();
    let count = handles.len();
    handles.into_iter().for_each(|handle| {
        pool.remove(handle);
    });
    pool.set_limit(0);
    count
}

#[test]
fn a_pool_rebuilt_from_its_handles_is_the_same_pool() {
    each(|name, unit| {
        rebuild(name, unit, 1 << 26);
        rebuild(name, unit, 1 << 25);
    });
}

/// Large pools may take memory in other pieces than small ones.
fn rebuild(name: &str, unit: u64, disksize_bytes: u64) {
    let config = PoolConfig {
        backing: Backing::Memfd,
        ..config(unit, disksize_bytes, 0)
    };
    let count = 2000 * 4096 / unit;
    let memory = reserve(&config).unwrap();
    let file = memory.file().unwrap().unwrap();
    let before = make(name, &config, memory).unwrap();
    let mut handles = Vec::new();
    for seed in 0..count {
        let size = 1 + (seed as usize * 577) % unit as usize;
        handles.push((store(&*before, &content(seed, size)).unwrap(), seed, size));
    }
    // Leaves them in no order.
    for at in (0..count as usize / 2).rev() {
        before.remove(handles.swap_remove(at * 2).0);
    }
    let parts = [1, 5, 16, 30, 50, 64].map(|part| unit as usize * part / 64);
    let room = parts.map(|size| room_for(&*before, size));
    let region = crate::region::Region::attach(file, config.arena_bytes(), "arena").unwrap();
    let after = make(name, &config, region).unwrap();
    handles
        .iter()
        .for_each(|(handle, ..)| after.adopt(handle).unwrap());
    let twice = after.adopt(&handles[0].0).unwrap_err();
    assert_eq!(
        twice.kind(),
        ErrorKind::Corrupt,
        "{name}: an object has one owner"
    );
    after.adopted().unwrap();
    assert_eq!(
        after.stats().used_bytes,
        before.stats().used_bytes,
        "{name}"
    );
    assert_eq!(
        parts.map(|size| room_for(&*after, size)),
        room,
        "{name}: the same room for objects of {parts:?} bytes"
    );
    assert!(
        room.iter().any(|count| *count > 0),
        "{name}: part-filled blocks are what is tested"
    );
    let new: Vec<Handle> = (0..count)
        .map(|seed| store(&*after, &content(seed + 5000, 700)).unwrap())
        .collect();
    for (handle, seed, size) in handles {
        assert_eq!(
            after.bytes(&handle),
            content(seed, size),
            "{name}: seed {seed}"
        );
        after.remove(handle);
    }
    new.into_iter().for_each(|handle| {
        after.remove(handle);
    });
    assert_eq!(after.stats().used_bytes, 0, "{name}");
}

/// An allocation that fails while a pool is rebuilt costs a second try, and no room for objects.
#[test]
fn a_failed_adoption_can_be_tried_again_and_loses_no_room() {
    for name in pools() {
        let config = PoolConfig {
            backing: Backing::Memfd,
            ..config(4096, 1 << 26, 0)
        };
        let memory = reserve(&config).unwrap();
        let file = memory.file().unwrap().unwrap();
        let before = make(name, &config, memory).unwrap();
        let mut handles: Vec<Handle> = (0..3000)
            .map(|seed| store(&*before, &content(seed, 8 + seed as usize % 90)).unwrap())
            .collect();
        // Many holes in one block, so that their list grows.
        for at in (0..handles.len() / 2).rev() {
            before.remove(handles.swap_remove(at * 2));
        }
        let room = room_for(&*before, 20);
        for allowed in 0.. {
            let region = crate::region::Region::attach(
                file.try_clone().unwrap(),
                config.arena_bytes(),
                "arena",
            );
            let after = make(name, &config, region.unwrap()).unwrap();
            crate::memory::fault::fail_after(allowed);
            for handle in &handles {
                if let Err(error) = after.adopt(handle) {
                    assert_eq!(error.kind(), ErrorKind::NoMemory, "{name}: {allowed}");
                    after.adopt(handle).unwrap();
                }
            }
            let untouched = crate::memory::fault::disarm();
            after.adopted().unwrap();
            assert_eq!(
                after.stats().used_bytes,
                before.stats().used_bytes,
                "{name}"
            );
            assert_eq!(room_for(&*after, 20), room, "{name}: {allowed}");
            if untouched {
                break;
            }
        }
        handles.into_iter().for_each(|handle| {
            before.remove(handle);
        });
    }
}

/// A pool from which a random half of its objects was removed.
fn sparse(name: &str, config: &PoolConfig) -> (Box<PoolMemory>, Vec<Handle>) {
    let pool = pool(name, config);
    let half = config.unit.bytes() / 2;
    let sizes = (0..(16 << 20) / half as u64).map(|seed| (seed, 1 + seed as usize * 577 % half));
    let handles: Vec<Handle> = sizes
        .map(|(seed, size)| store(&*pool, &content(seed, size)).unwrap())
        .collect();
    let mut state = 1u64;
    let (removed, kept): (Vec<Handle>, Vec<Handle>) = handles.into_iter().partition(|_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        state >> 63 == 0
    });
    removed.into_iter().for_each(|handle| {
        pool.remove(handle);
    });
    (pool, kept)
}

fn is_in(victims: &[Victim], handle: &Handle) -> bool {
    let page = handle.offset_bytes() / crate::region::PAGE_BYTES;
    let has =
        |victim: &Victim| (victim.first_page..victim.first_page + victim.pages).contains(&page);
    victims.iter().any(has)
}

#[test]
fn closed_blocks_take_nothing_and_go_with_their_last_object() {
    each(|name, unit| {
        for disksize_bytes in [1 << 25, 1 << 28] {
            let (pool, handles) = sparse(name, &config(unit, disksize_bytes, 0));
            let victims = pool.close_sparse(64).unwrap();
            assert!((1..=64).contains(&victims.len()), "{name}");
            let new: Vec<Handle> = (0..200)
                .map(|seed| store(&*pool, &content(seed, unit as usize / 9)).unwrap())
                .collect();
            assert!(new.iter().all(|handle| !is_in(&victims, handle)), "{name}");
            let used_bytes = pool.stats().used_bytes;
            let (inside, outside): (Vec<_>, Vec<_>) = handles
                .into_iter()
                .partition(|handle| is_in(&victims, handle));
            assert!(!inside.is_empty());
            inside.into_iter().for_each(|handle| {
                pool.remove(handle);
            });
            let pages: usize = victims.iter().map(|victim| victim.held_pages).sum();
            let gone_bytes = (pages * crate::region::PAGE_BYTES) as u64;
            assert_eq!(pool.stats().used_bytes, used_bytes - gone_bytes, "{name}");
            assert!(victims.iter().all(|victim| !pool.reopen(*victim)), "{name}");
            new.into_iter().chain(outside).for_each(|handle| {
                pool.remove(handle);
            });
            assert_eq!(pool.stats().used_bytes, 0, "{name}");
        }
    });
}

#[test]
fn reopened_blocks_are_as_they_were() {
    each(|name, unit| {
        let (pool, mut handles) = sparse(name, &config(unit, 1 << 28, 0));
        let parts = [1, 5, 16, 30, 50].map(|part| unit as usize * part / 64);
        let room = parts.map(|size| room_for(&*pool, size));
        let victims = pool.close_sparse(1000).unwrap();
        let less = parts.map(|size| room_for(&*pool, size));
        let sum = |room: &[usize]| room.iter().sum::<usize>();
        assert!(sum(&less) < sum(&room), "{name}: {less:?} of {room:?}");
        // Some change while they are closed.
        let at = handles.iter().position(|handle| is_in(&victims, handle));
        let (size, handle) = (
            handles[at.unwrap()].size_bytes(),
            handles.swap_remove(at.unwrap()),
        );
        pool.remove(handle);
        let opened = victims
            .iter()
            .filter(|victim| pool.reopen(**victim))
            .count();
        assert!(opened + 1 >= victims.len(), "{name}");
        assert!(
            victims.iter().all(|victim| !pool.reopen(*victim)),
            "{name}: twice"
        );
        handles.push(store(&*pool, &content(1, size)).unwrap());
        let after = parts.map(|size| room_for(&*pool, size));
        for (after, before) in after.iter().zip(room) {
            assert!(
                after.abs_diff(before) <= 40,
                "{name}: {after:?}, not {room:?}"
            );
        }
        handles.into_iter().for_each(|handle| {
            pool.remove(handle);
        });
        assert_eq!(pool.stats().used_bytes, 0, "{name}");
    });
}

#[test]
fn objects_that_overlap_are_not_adopted() {
    each(|name, unit| {
        let pool = pool(name, &config(unit, 1 << 26, 0));
        let (unit, page_granules) = (unit as usize, unit / GRANULE_BYTES as u64);
        // SAFETY: as below: nothing is read or written through them.
        let handle = |granule, size: usize| unsafe { Handle::from_parts(granule, size as u32) };
        let kept = handle(2 * page_granules, unit);
        pool.adopt(&kept).unwrap();
        let used_bytes = pool.stats().used_bytes;
        for size in [1, 100, unit / 3, unit / 2, unit] {
            for granule in 0..3 * page_granules {
                let adopted = handle(granule, size);
                let start_bytes = adopted.offset_bytes();
                if start_bytes + size > 2 * unit && start_bytes < 3 * unit {
                    let refused = pool.adopt(&adopted).unwrap_err().kind();
                    let kinds = [ErrorKind::Corrupt, ErrorKind::OutOfRange];
                    assert!(kinds.contains(&refused), "{name}: {adopted:?}, {refused:?}");
                }
                adopted.into_parts();
            }
        }
        assert_eq!(pool.stats().used_bytes, used_bytes, "{name}: nothing was");
        kept.into_parts();
    });
}

#[test]
fn objects_that_cannot_be_there_are_not_adopted() {
    for name in pools() {
        let pool = pool(name, &config(4096, 1 << 26, 0));
        let behind_all = (1 << GRANULE_BITS) - 1;
        let mut nowhere = vec![
            (behind_all, 100),
            (0, 65536),
            (HUGE_PAGE_GRANULES - 1, 4096),
        ];
        if name != "bestfit" {
            nowhere.extend([(1, 4096), (3, 2000)]);
        }
        for (granule, size) in nowhere {
            // SAFETY: the pool is empty, and the handle is taken apart below without being used.
            let handle = unsafe { Handle::from_parts(granule, size) };
            let adopted = pool.adopt(&handle).map_err(|error| error.kind());
            assert_eq!(
                adopted,
                Err(ErrorKind::OutOfRange),
                "{name}: {size} bytes at {granule}"
            );
            handle.into_parts();
        }
    }
}

#[test]
#[cfg(debug_assertions)]
fn a_double_free_is_caught() {
    // Beside many others what is freed may be kept for the next of its size.
    for (name, others) in pools()
        .into_iter()
        .flat_map(|name| [(name, 1), (name, 500)])
    {
        let pool = pool(name, &config(4096, 1 << 26, 0));
        for seed in 0..others {
            store(&*pool, &content(seed, 1000)).unwrap().into_parts();
        }
        let (granule, size) = store(&*pool, b"freed twice, oh dear!")
            .unwrap()
            .into_parts();
        let free = || {
            // SAFETY: wrong on purpose the second time; the pool must notice and touch no memory.
            pool.remove(unsafe { Handle::from_parts(granule, size) });
        };
        free();
        assert!(
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(free)).is_err(),
            "{name}"
        );
    }
}

#[test]
#[cfg(debug_assertions)]
fn a_stale_handle_is_caught() {
    for name in pools() {
        let pool = pool(name, &config(4096, 1 << 26, 0));
        let caught = |act: &dyn Fn()| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_err()
        };
        let other = store(&*pool, b"keeps the block alive").unwrap();
        let (granule, size) = store(&*pool, &content(1, 100)).unwrap().into_parts();
        // SAFETY: wrong on purpose once the object is removed; the pool must notice.
        let stale = || unsafe { Handle::from_parts(granule, size) };
        pool.remove(stale());
        let message = caught(&|| drop(pool.bytes(&std::mem::ManuallyDrop::new(stale())).to_vec()));
        assert_eq!(
            message.downcast_ref::<&str>(),
            Some(&"stale handle"),
            "{name}"
        );
        // Objects of other sizes get what was its place.
        let others: Vec<Handle> = [900, 2000, 3000]
            .map(|size| store(&*pool, &content(2, size)).unwrap())
            .into();
        caught(&|| {
            pool.remove(stale());
        });
        for handle in others {
            assert_eq!(pool.bytes(&handle), content(2, handle.size_bytes()));
            pool.remove(handle);
        }
        pool.remove(other);
        assert_eq!(pool.stats().used_bytes, 0, "{name}");
    }
}

#[test]
fn threads_never_share_an_object() {
    each(|name, unit| {
        let pool = pool(name, &config(unit, 1 << 28, 0));
        // Objects that one thread stored and another will free.
        let pot: Mutex<Vec<(Handle, u64, usize)>> = Mutex::default();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (pool, pot) = (&pool, &pot);
                scope.spawn(move || {
                    let mut held: Vec<(Handle, u64, usize)> = Vec::new();
                    for turn in 0..(3000 * 4096 / unit).max(400) {
                        let seed = thread << 32 | turn;
                        let size =
                            1 + (seed.wrapping_mul(2_654_435_761) >> 7) as usize % unit as usize;
                        held.push((store(&**pool, &content(seed, size)).unwrap(), seed, size));
                        if turn % 3 == 2 || held.len() > 200 {
                            let at = seed as usize % held.len();
                            let mut pot = pot.lock();
                            pot.push(held.swap_remove(at));
                            let any = at % pot.len();
                            let (handle, seed, size) = pot.swap_remove(any);
                            drop(pot);
                            assert_eq!(pool.bytes(&handle), content(seed, size));
                            pool.remove(handle);
                        }
                        if turn % 64 == 1 {
                            // Keeps some in the pot, else everybody would free what is their own.
                            pot.lock().extend(held.pop());
                        }
                    }
                    held.into_iter().for_each(|(handle, ..)| {
                        pool.remove(handle);
                    });
                });
            }
        });
        for (handle, seed, size) in std::mem::take(&mut *pot.lock()) {
            assert_eq!(pool.bytes(&handle), content(seed, size));
            pool.remove(handle);
        }
        assert_eq!(pool.stats().used_bytes, 0, "{name}");
    });
}
