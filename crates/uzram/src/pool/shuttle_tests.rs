//! Every pool under every schedule that shuttle makes: objects keep their memory, blocks that
//! empty while others fill are used by one side only, and a limit has room once.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use super::*;
use crate::page::Unit;
use crate::region::Backing;
use crate::sync::{self, Arc, AtomicBool, Mutex, Ordering};

/// Runs of each kind of schedule, for each pool.
const SCHEDULES: usize = if cfg!(debug_assertions) { 300 } else { 2000 };

/// More than it takes to close a block.
const ACCESSES: usize = 16;

/// Of a thread for another that may be waiting for it. Removing and storing an object take some hundred steps.
const WAITS_MAX: usize = 2000;

fn check(model: impl Fn(&'static str) + Send + Sync + Copy + 'static) {
    for name in pools() {
        shuttle::check_random(move || model(name), SCHEDULES);
        shuttle::check_pct(move || model(name), SCHEDULES, 3);
    }
}

fn pool(name: &str, limit_bytes: u64) -> Arc<PoolMemory> {
    pool_for(name, 1 << 20, limit_bytes)
}

fn pool_for(name: &str, disksize_bytes: u64, limit_bytes: u64) -> Arc<PoolMemory> {
    let config = PoolConfig {
        unit: Unit::DEFAULT,
        disksize_bytes,
        limit_bytes,
        backing: Backing::Private,
        spare_bytes: 0,
    };
    Arc::from(make(name, &config, reserve(&config).unwrap()).unwrap())
}

/// Runs all at once, to their ends.
fn together(threads: Vec<Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = threads.into_iter().map(shuttle::thread::spawn).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

fn store(pool: &PoolMemory, byte: u8, size: usize) -> Result<Handle> {
    let bytes = vec![byte; size];
    loop {
        match pool.insert(&bytes, Room::Any) {
            Ok(handle) => return Ok(handle),
            Err(Full::NeedsMemory) => pool.grow(size)?,
            Err(Full::NoMemory) => panic!("bookkeeping"),
        }
    }
}

fn remove(pool: &PoolMemory, handle: Handle, byte: u8) {
    assert!(pool.bytes(&handle).iter().all(|seen| *seen == byte));
    pool.remove(handle);
}

fn check_empty(pool: &PoolMemory) {
    assert_eq!(pool.stats().used_bytes, 0);
    pool.trim(Parts::Stay);
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

/// The last object of a block goes while others come: the block either stays or leaves with all
/// its pages.
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

/// Each thread frees the other's objects: the blocks of another CPU.
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

/// Room for two units, and three threads that want one each.
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

/// Removes and stores while a block is closed, emptied and opened: no object lands in memory that
/// is given back, and none is lost.
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

/// Tables of blocks go back while the first blocks come: what tells of a block stays.
#[test]
fn shuttle_pools_give_no_table_back_that_tells_of_a_block() {
    check(|name| {
        let pool = pool(name, 0);
        let first = store(&*pool, 7, 1000).unwrap();
        remove(&*pool, first, 7);
        let resetting = pool.clone();
        let work = |byte: u8| -> Box<dyn FnOnce() + Send> {
            let pool = pool.clone();
            Box::new(move || {
                let handle = store(&*pool, byte, 1000).unwrap();
                shuttle::thread::yield_now();
                remove(&*pool, handle, byte);
            })
        };
        let reset = move || {
            for _ in 0..2 {
                resetting.trim(Parts::Stay);
                resetting.give_back_tables();
            }
        };
        together(vec![work(1), Box::new(reset), work(2)]);
        check_empty(&*pool);
    });
}

/// A block is chosen to be closed. Before it is, its last object goes, and one of another size and of another
/// CPU gets its memory, at each point.
#[test]
fn shuttle_pools_close_no_block_that_is_another_owners_by_now() {
    check_each_point(|name, accesses| close_beside_a_change(name, accesses, Leaves::Before));
}

/// The same, and the last object goes at that point too.
#[test]
fn shuttle_pools_close_a_block_while_its_last_object_goes() {
    check_each_point(|name, accesses| close_beside_a_change(name, accesses, Leaves::Meanwhile));
}

/// When a block's last object leaves it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaves {
    Before,
    Meanwhile,
}

fn check_each_point(model: impl Fn(&'static str, usize) + Send + Sync + Copy + 'static) {
    for name in pools() {
        for accesses in 0..ACCESSES {
            shuttle::check_random(move || model(name, accesses), SCHEDULES / 20);
        }
    }
}

fn close_beside_a_change(name: &str, accesses: usize, leaves: Leaves) {
    let pool = pool(name, 0);
    // Two blocks of one object each: both fit into either.
    let mut left = vec![store(&*pool, 7, 1000).unwrap()];
    let used_bytes = pool.stats().used_bytes;
    let mut last = loop {
        let handle = store(&*pool, 7, 1000).unwrap();
        if pool.stats().used_bytes > used_bytes {
            break Some(handle);
        }
        left.push(handle);
    };
    for handle in left.drain(1..) {
        remove(&*pool, handle, 7);
    }
    let victims = pool.close_sparse(4).unwrap();
    let victim = *victims.first().unwrap();
    assert!(pool.reopen(victim));
    if leaves == Leaves::Before {
        remove(&*pool, last.take().unwrap(), 7);
    }
    let changing = pool.clone();
    let other = at_the_point(accesses, move || {
        last.into_iter()
            .for_each(|handle| remove(&*changing, handle, 7));
        store(&*changing, 7, 3500).unwrap()
    });
    let is_closed = pool.pool.set_closed(victim, true);
    sync::interpose_now();
    // The one lock of zbud has the new block too, and bestfit may have kept the place for another object.
    let may_be_closed = leaves == Leaves::Meanwhile || ["zbud", "bestfit"].contains(&name);
    assert!(may_be_closed || !is_closed, "it is gone");
    left.push(other.join().unwrap());
    if is_closed {
        pool.reopen(victim);
    }
    // What was linked or unlinked wrongly shows when blocks are filled and emptied again.
    for _ in 0..2 {
        for size in [300, 300, 4096, 1000, 1000] {
            left.push(store(&*pool, 7, size).unwrap());
        }
        for handle in left.drain(..) {
            remove(&*pool, handle, 7);
        }
    }
    check_empty(&*pool);
}

/// Another thread that does `change` after this thread has accessed this many mapped words and locks. This thread waits
/// there until it is done, or for long: it may hold a lock that the other one needs.
fn at_the_point<T: Send + 'static>(
    accesses: usize,
    change: impl FnOnce() -> T + Send + 'static,
) -> shuttle::thread::JoinHandle<T> {
    let [may_begin, is_done] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (begins, ends) = (may_begin.clone(), is_done.clone());
    let other = shuttle::thread::spawn(move || {
        while !begins.load(Ordering::SeqCst) {
            shuttle::thread::yield_now();
        }
        let changed = change();
        ends.store(true, Ordering::SeqCst);
        changed
    });
    let wait = move || {
        may_begin.store(true, Ordering::SeqCst);
        let waits = |_: &usize| !is_done.load(Ordering::SeqCst);
        (0..WAITS_MAX)
            .take_while(waits)
            .for_each(|_| shuttle::thread::yield_now());
    };
    sync::interpose(accesses, Box::new(wait));
    other
}

/// Limits are set while pages go: in the end the pool knows whether it is over the last one. A stale "no" would
/// let it keep places for objects beyond the limit, a stale "yes" would keep it from that for ever.
#[test]
fn shuttle_pools_know_whether_they_are_over_the_limit() {
    check(|name| {
        let pool = pool(name, 0);
        let handles: Vec<_> = (0..3).map(|_| store(&*pool, 7, 4096).unwrap()).collect();
        let set = |pages: u64| -> Box<dyn FnOnce() + Send> {
            let pool = pool.clone();
            Box::new(move || pool.set_limit(pages << 12))
        };
        let mut handles = handles.into_iter();
        let (first, second) = (handles.next().unwrap(), handles.next().unwrap());
        let take_back = |handle: Handle| -> Box<dyn FnOnce() + Send> {
            let pool = pool.clone();
            Box::new(move || remove(&*pool, handle, 7))
        };
        pool.set_limit(2 << 12);
        together(vec![set(1), set(2), take_back(first), take_back(second)]);
        let arena = &pool.arena;
        assert!(arena.knows_whether_it_is_over_the_limit());
        pool.set_limit(0);
        handles.for_each(|handle| remove(&*pool, handle, 7));
        check_empty(&*pool);
    });
}

/// Threads populate, use, break up and give back huge spans, under a limit that is too low for
/// all, and that is raised and lowered meanwhile.
#[test]
fn shuttle_pools_share_huge_spans() {
    check(|name| {
        let pool = pool_for(name, 8 << 20, 4 << 20);
        let (limiting, trimming) = (pool.clone(), pool.clone());
        let work = |byte: u8, size: usize| -> Box<dyn FnOnce() + Send> {
            let pool = pool.clone();
            Box::new(move || {
                let handles = [size, 4096, size].map(|size| store(&*pool, byte, size));
                shuttle::thread::yield_now();
                for handle in handles {
                    match handle {
                        Ok(handle) => remove(&*pool, handle, byte),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace),
                    }
                }
            })
        };
        together(vec![
            work(1, 1000),
            work(2, 2000),
            Box::new(move || {
                limiting.set_limit(2 << 12);
                limiting.maintain();
                limiting.set_limit(0);
                limiting.maintain();
            }),
            Box::new(move || {
                trimming.trim(Parts::Too);
                trimming.trim(Parts::Stay);
            }),
        ]);
        check_empty(&*pool);
    });
}
