//! Every pool under every schedule that shuttle makes: objects keep their memory, blocks that empty
//! while others fill go to one of them, and a limit has room once.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use super::*;
use crate::sync::{Arc, Mutex};

/// Of each kind of schedule, for each pool.
const SCHEDULES: usize = if cfg!(debug_assertions) { 300 } else { 2000 };

fn check(model: impl Fn(&'static str) + Send + Sync + Copy + 'static) {
    for name in pools() {
        shuttle::check_random(move || model(name), SCHEDULES);
        shuttle::check_pct(move || model(name), SCHEDULES, 3);
    }
}

fn pool(name: &str, limit_bytes: u64) -> Arc<dyn Pool> {
    let config = PoolConfig {
        unit: Unit::DEFAULT,
        disksize_bytes: 1 << 20,
        limit_bytes,
        backing: Backing::Private,
    };
    Arc::from(make(name, &config, arena::Memory::reserve(&config).unwrap()).unwrap())
}

/// Runs all at once, to their ends.
fn together(threads: Vec<Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = threads.into_iter().map(shuttle::thread::spawn).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

fn store(pool: &dyn Pool, byte: u8, size: usize) -> Result<Handle> {
    let bytes = vec![byte; size];
    loop {
        match pool.insert(&bytes, Room::Any) {
            Ok(handle) => return Ok(handle),
            Err(Full::NeedsMemory) => pool.grow(size)?,
            Err(Full::NoMemory) => panic!("bookkeeping"),
        }
    }
}

fn remove(pool: &dyn Pool, handle: Handle, byte: u8) {
    assert!(pool.bytes(&handle).iter().all(|seen| *seen == byte));
    pool.remove(handle);
}

fn check_empty(pool: &dyn Pool) {
    assert_eq!(pool.stats().used_bytes, 0);
    pool.trim(arena::Parts::Stay);
    assert_eq!(pool.stats().resident_bytes, 0);
}

#[test]
fn shuttle_pools_give_each_object_memory_of_its_own() {
    check(|name| {
        let pool = pool(name, 0);
        let work = |byte: u8, sizes: [usize; 3]| -> Box<dyn FnOnce() + Send> {
            let pool = pool.clone();
            Box::new(move || {
                let [a, b, c] = sizes.map(|size| store(&*pool, byte, size).unwrap());
                shuttle::thread::yield_now();
                remove(&*pool, b, byte);
                let d = store(&*pool, byte, sizes[1]).unwrap();
                for handle in [a, c, d] {
                    remove(&*pool, handle, byte);
                }
            })
        };
        together(vec![
            work(1, [1000, 1000, 2000]),
            work(2, [2000, 1000, 300]),
            work(3, [1000, 300, 4096]),
        ]);
        check_empty(&*pool);
    });
}

/// The last object of a block goes while others come: the block either stays or leaves, with all.
#[test]
fn shuttle_pools_lose_no_object_in_a_block_that_empties() {
    check(|name| {
        let pool = pool(name, 0);
        let last = store(&*pool, 7, 1000).unwrap();
        let (freer, filler, other) = (pool.clone(), pool.clone(), pool.clone());
        together(vec![
            Box::new(move || remove(&*freer, last, 7)),
            Box::new(move || {
                let handle = store(&*filler, 1, 1000).unwrap();
                shuttle::thread::yield_now();
                remove(&*filler, handle, 1);
            }),
            Box::new(move || {
                let handle = store(&*other, 2, 1000).unwrap();
                shuttle::thread::yield_now();
                remove(&*other, handle, 2);
            }),
        ]);
        check_empty(&*pool);
    });
}

/// Each frees what the other stored: the blocks of another CPU.
#[test]
fn shuttle_pools_take_back_what_others_stored() {
    check(|name| {
        let pool = pool(name, 0);
        let pot: Arc<Mutex<Vec<(Handle, u8)>>> = Arc::default();
        let work = |byte: u8| -> Box<dyn FnOnce() + Send> {
            let (pool, pot) = (pool.clone(), pot.clone());
            Box::new(move || {
                for size in [1200, 2500] {
                    let handle = store(&*pool, byte, size).unwrap();
                    let mut shared = pot.lock();
                    let other = shared.pop();
                    shared.push((handle, byte));
                    drop(shared);
                    if let Some((handle, byte)) = other {
                        remove(&*pool, handle, byte);
                    }
                }
            })
        };
        together(vec![work(1), work(2), work(3)]);
        let left = std::mem::take(&mut *pot.lock());
        for (handle, byte) in left {
            remove(&*pool, handle, byte);
        }
        check_empty(&*pool);
    });
}

/// Room for two units, and three who want one each.
#[test]
fn shuttle_pools_stay_within_the_limit() {
    check(|name| {
        let pool = pool(name, 2 << 12);
        let stored: Arc<Mutex<Vec<Handle>>> = Arc::default();
        let work = |byte: u8| -> Box<dyn FnOnce() + Send> {
            let (pool, stored) = (pool.clone(), stored.clone());
            Box::new(move || match store(&*pool, byte, 4096) {
                Ok(handle) => stored.lock().push(handle),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace),
            })
        };
        together(vec![work(1), work(2), work(3)]);
        let stored = std::mem::take(&mut *stored.lock());
        assert_eq!(stored.len(), 2);
        assert_eq!(pool.stats().used_max_bytes, 2 << 12);
        stored.into_iter().for_each(|handle| {
            pool.remove(handle);
        });
        check_empty(&*pool);
    });
}

/// Removes and stores while a block is closed, emptied and opened: nothing lands in what is given
/// back, and nothing is lost.
#[test]
fn shuttle_pools_empty_closed_blocks_while_others_use_them() {
    check(|name| {
        let pool = pool(name, 0);
        // Two blocks and more, with room in each.
        let mut handles: Vec<Option<Handle>> = (0..12)
            .map(|_| Some(store(&*pool, 7, 1360).unwrap()))
            .collect();
        for at in [1, 2, 4, 5, 7, 8, 10] {
            remove(&*pool, handles[at].take().unwrap(), 7);
        }
        let handles: Arc<Mutex<Vec<Handle>>> =
            Arc::new(Mutex::new(handles.into_iter().flatten().collect()));
        let (compacting, freeing, filling) = (pool.clone(), pool.clone(), pool.clone());
        let (moved, freed) = (handles.clone(), handles.clone());
        together(vec![
            Box::new(move || {
                let victims = Victims::new(compacting.close_sparse(4).unwrap());
                // As the store does under the slot's lock: who has the handle moves the object.
                for _ in 0..5 {
                    let handle = moved.lock().pop();
                    let Some(handle) = handle else { break };
                    let new = match victims.has(handle.offset_bytes()) {
                        true => {
                            // Not always elsewhere: a victim that is empty by now went back to the
                            // arena, and its pages are taken anew.
                            let new = store(&*compacting, 7, 1360).unwrap();
                            remove(&*compacting, handle, 7);
                            new
                        }
                        false => handle,
                    };
                    moved.lock().insert(0, new);
                }
                victims.reopen(&*compacting);
            }),
            Box::new(move || {
                for _ in 0..2 {
                    let handle = freed.lock().pop();
                    handle
                        .into_iter()
                        .for_each(|handle| remove(&*freeing, handle, 7));
                    shuttle::thread::yield_now();
                }
            }),
            Box::new(move || {
                let new = [1360, 300].map(|size| store(&*filling, 1, size).unwrap());
                shuttle::thread::yield_now();
                new.into_iter()
                    .for_each(|handle| remove(&*filling, handle, 1));
            }),
        ]);
        let left = std::mem::take(&mut *handles.lock());
        left.into_iter()
            .for_each(|handle| remove(&*pool, handle, 7));
        check_empty(&*pool);
    });
}
