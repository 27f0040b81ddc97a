//! Laws that every pool obeys, instantiated for each entry of the table at 4 and 16 KiB units.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::region::Backing;

const UNITS_BYTES: [u64; 3] = [4096, 16384, 65536];

fn config(unit_bytes: u64, disksize_bytes: u64, limit_bytes: u64) -> PoolConfig {
    let unit = Unit::new(unit_bytes).unwrap();
    PoolConfig {
        unit,
        disksize_bytes,
        limit_bytes,
        backing: Backing::Private,
    }
}

fn pool(name: &str, config: &PoolConfig) -> Box<dyn Pool> {
    make(name, config, arena::Memory::reserve(config).unwrap()).unwrap()
}

fn each(mut law: impl FnMut(&str, u64)) {
    for name in pools() {
        for unit in UNITS_BYTES {
            law(name, unit);
        }
    }
}

fn store(pool: &dyn Pool, bytes: &[u8]) -> Result<Handle> {
    loop {
        match pool.insert(bytes) {
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
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..size).map(|_| next()).collect()
}

#[test]
fn every_size_comes_back_as_it_was() {
    each(|name, unit| {
        let pool = pool(name, &config(unit, 1 << 28, 0));
        let sizes: Vec<usize> = (1..=unit as usize)
            .step_by(if unit > 4096 { 37 } else { 1 })
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
        handles.into_iter().for_each(|handle| pool.remove(handle));
        assert_eq!(
            pool.stats().used_bytes,
            0,
            "{name}: an empty pool holds no blocks"
        );
        pool.trim();
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
        let run = TestRunner::new(ProptestConfig::with_cases(24)).run(&ops, |ops| {
            let pool = pool(name, &config(unit, 1 << 26, 0));
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
        handles.into_iter().for_each(|handle| pool.remove(handle));
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
                Ok(handle) => pool.remove(handle),
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

#[test]
fn a_pool_rebuilt_from_its_handles_is_the_same_pool() {
    for name in pools() {
        let config = PoolConfig {
            backing: Backing::Memfd,
            ..config(4096, 1 << 26, 0)
        };
        let memory = arena::Memory::reserve(&config).unwrap();
        let file = memory.region.file();
        let before = make(name, &config, memory).unwrap();
        let mut handles = Vec::new();
        for seed in 0..2000u64 {
            let size = 1 + (seed as usize * 577) % 4096;
            handles.push((store(&*before, &content(seed, size)).unwrap(), seed, size));
        }
        for at in (0..1000).rev() {
            before.remove(handles.swap_remove(at * 2).0);
        }
        let region = crate::region::Region::attach(file).unwrap();
        let after = make(name, &config, arena::Memory { region }).unwrap();
        handles
            .iter()
            .for_each(|(handle, ..)| after.adopt(handle).unwrap());
        let twice = after.adopt(&handles[0].0).unwrap_err();
        assert_eq!(
            twice.kind(),
            ErrorKind::Corrupt,
            "{name}: an object has one owner"
        );
        after.adopted();
        assert_eq!(
            after.stats().used_bytes,
            before.stats().used_bytes,
            "{name}"
        );
        let new: Vec<Handle> = (0..2000)
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
        new.into_iter().for_each(|handle| after.remove(handle));
        assert_eq!(after.stats().used_bytes, 0, "{name}");
    }
}

#[test]
fn objects_that_cannot_be_there_are_not_adopted() {
    for name in pools() {
        let pool = pool(name, &config(4096, 1 << 26, 0));
        for (granule, size) in [(1u64 << 37, 100), (1, 4096), (3, 2000), (0, 65536)] {
            // SAFETY: the pool is empty, and the handle is taken apart below without being used.
            let handle = unsafe { Handle::from_parts(granule, size) };
            let adopted = pool.adopt(&handle).map_err(|error| error.kind());
            assert_eq!(
                adopted,
                Err(ErrorKind::Corrupt),
                "{name}: {size} bytes at {granule}"
            );
            handle.into_parts();
        }
    }
}

#[test]
#[cfg(debug_assertions)]
fn a_double_free_is_caught() {
    for name in pools() {
        let pool = pool(name, &config(4096, 1 << 26, 0));
        let _other = store(&*pool, b"keeps the block alive")
            .unwrap()
            .into_parts();
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
fn threads_never_share_an_object() {
    each(|name, unit| {
        let pool = pool(name, &config(unit, 1 << 28, 0));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let pool = &pool;
                scope.spawn(move || {
                    let mut held: Vec<(Handle, u64, usize)> = Vec::new();
                    for turn in 0..3000u64 {
                        let seed = thread << 32 | turn;
                        let size =
                            1 + (seed.wrapping_mul(2_654_435_761) >> 7) as usize % unit as usize;
                        held.push((store(&**pool, &content(seed, size)).unwrap(), seed, size));
                        if turn % 3 == 2 || held.len() > 200 {
                            let at = seed as usize % held.len();
                            let (handle, seed, size) = held.swap_remove(at);
                            assert_eq!(pool.bytes(&handle), content(seed, size));
                            pool.remove(handle);
                        }
                    }
                    held.into_iter()
                        .for_each(|(handle, ..)| pool.remove(handle));
                });
            }
        });
        assert_eq!(pool.stats().used_bytes, 0, "{name}");
    });
}
