//! Parked places, from outside: the places that objects get, and that no memory stays.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;
use crate::memory::fault;
use crate::page::Unit;
use crate::pool::{Parts, reserve};

const DISK_BYTES: u64 = 256 << 20;

fn pool(limit_bytes: u64) -> PoolMemory<BestFit> {
    let config = PoolConfig {
        unit: Unit::DEFAULT,
        disksize_bytes: DISK_BYTES,
        limit_bytes,
        backing: Backing::Private,
        spare_bytes: 0,
    };
    new(&config, reserve(&config).unwrap()).unwrap()
}

fn store(pool: &PoolMemory<BestFit>, size: usize) -> Result<Handle> {
    let bytes = vec![size as u8; size];
    loop {
        match pool.insert(&bytes, Room::Any) {
            Ok(handle) => return Ok(handle),
            Err(Full::NeedsMemory) => pool.grow(size)?,
            Err(Full::NoMemory) => panic!("bookkeeping"),
        }
    }
}

fn remove_all(pool: &PoolMemory<BestFit>, handles: impl IntoIterator<Item = Handle>) {
    for handle in handles {
        pool.remove(handle);
    }
}

/// A pool with objects of 1,024 bytes that CPU 0 stored, and the places of those that it then
/// removed.
fn pool_with_many_parked(parked: usize) -> (PoolMemory<BestFit>, Vec<Handle>, Vec<usize>) {
    cpu::pretend::CPU.set(Some(0));
    let pool = pool(0);
    let stored = (0..200 * parked).map(|_| store(&pool, 1024).unwrap());
    let mut handles: Vec<Handle> = stored.collect();
    let gone: Vec<Handle> = (0..parked)
        .map(|at| handles.swap_remove(at * 150))
        .collect();
    let mut places: Vec<usize> = gone.iter().map(Handle::offset_bytes).collect();
    places.sort_unstable();
    remove_all(&pool, gone);
    (pool, handles, places)
}

fn size(place: usize) -> usize {
    1 + place.wrapping_mul(2_654_435_761) % 4096
}

#[test]
fn an_object_takes_the_place_of_one_as_long() {
    let pool = pool(0);
    let mut handles: Vec<Handle> = (0..2000)
        .map(|place| store(&pool, size(place)).unwrap())
        .collect();
    for _ in 0..100 {
        let old = handles.swap_remove(handles.len() / 3);
        let (at, size) = (old.offset_bytes(), old.size_bytes());
        pool.remove(old);
        let new = store(&pool, size.next_multiple_of(GRANULE_BYTES)).unwrap();
        assert_eq!(new.offset_bytes(), at);
        handles.push(new);
    }
    remove_all(&pool, handles);
}

/// Objects go one by one, removed by another CPU than the one that stored them. Each CPU's kept
/// places in the other's blocks go too.
#[test]
fn nothing_stays_parked_without_objects() {
    let pool = pool(0);
    let mut handles = Vec::new();
    for place in 0..20_000 {
        cpu::pretend::CPU.set(Some(place / 5000));
        handles.push(store(&pool, size(place)).unwrap());
    }
    for (place, handle) in handles.into_iter().enumerate() {
        cpu::pretend::CPU.set(Some(place / 37));
        pool.remove(handle);
    }
    cpu::pretend::CPU.set(None);
    assert_eq!(pool.stats().used_bytes, 0);
    pool.trim(Parts::Stay);
    assert_eq!(pool.stats().resident_bytes, 0);
}

#[test]
fn what_is_parked_is_room_under_a_limit() {
    let pool = pool(WHOLE_FRAMES_FROM_BYTES);
    let mut handles = Vec::new();
    let full = loop {
        match store(&pool, 4096) {
            Ok(handle) => handles.push(handle),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    assert_eq!(handles.len() as u64, WHOLE_FRAMES_FROM_BYTES / 4096);
    for at in 0..8 {
        pool.remove(handles.swap_remove(at * 1000));
    }
    // Two in the place of each, then as many again where two went.
    for sizes in [[2048; 16], [1024; 16]] {
        handles.extend(sizes.map(|size| store(&pool, size).unwrap()));
        let gone = handles.len() - 16;
        if sizes[0] == 2048 {
            remove_all(&pool, handles.drain(gone..gone + 8));
        }
    }
    assert_eq!(store(&pool, 8).unwrap_err().kind(), ErrorKind::NoSpace);
    remove_all(&pool, handles);
    assert_eq!(pool.stats().used_bytes, 0);
}

/// Lengths that only large units have are not parked; nothing else differs.
#[test]
fn longer_objects_become_holes() {
    let mut parked = Parked::new().unwrap();
    let place = |length| Place::new(3, 5, length).unwrap();
    assert!(!parked.push(place(lengths::LENGTHS), true));
    assert!(parked.push(place(lengths::LENGTHS - 1), true));
    assert!(parked.has(place(lengths::LENGTHS - 1)) && !parked.has(place(1)));
    assert_eq!(parked.granules(), lengths::LENGTHS - 1);
    assert!(parked.pop_from(lengths::LENGTHS).is_none());
    let last = parked.pop_from(1).unwrap();
    assert_eq!((last.frame(), last.start(), last.length()), (3, 5, 512));
    assert!(parked.pop_from(0).is_none() && parked.granules() == 0);
}

#[test]
fn many_places_of_a_length_are_kept() {
    let (pool, mut handles, places) = pool_with_many_parked(95);
    let used_bytes = pool.stats().used_bytes;
    let new: Vec<Handle> = (0..95).map(|_| store(&pool, 1024).unwrap()).collect();
    let mut taken: Vec<usize> = new.iter().map(Handle::offset_bytes).collect();
    taken.sort_unstable();
    assert_eq!(taken, places);
    assert_eq!(pool.stats().used_bytes, used_bytes);
    handles.extend(new);
    remove_all(&pool, handles);
    assert_eq!(pool.stats().used_bytes, 0);
}

#[test]
fn cpus_that_fill_have_a_block_each() {
    let pool = pool(0);
    let stored = (0..60).map(|at| {
        cpu::pretend::CPU.set(Some(at % 2));
        store(&pool, [2000, 1000][at % 2]).unwrap()
    });
    let handles: Vec<Handle> = stored.collect();
    for (at, handle) in handles.iter().enumerate() {
        let frame = pool.pool.place(handle).unwrap().frame();
        assert_eq!(pool.pool.owner(frame).unwrap().shard, at % 2);
    }
    remove_all(&pool, handles);
}

/// One CPU removes, another stores: the places go along, the blocks stay.
#[test]
fn places_go_to_the_cpu_that_has_none() {
    let (pool, mut handles, places) = pool_with_many_parked(95);
    cpu::pretend::CPU.set(Some(1));
    let frames: Vec<u32> = handles
        .iter()
        .map(|handle| pool.pool.place(handle).unwrap().frame())
        .collect();
    let kept = |_| {
        let handle = store(&pool, 1024).unwrap();
        // Without blocks of its own it may keep none.
        assert_eq!(pool.pool.shards[1].lock().parked_granules(), 0);
        handle
    };
    let new: Vec<Handle> = (0..95).map(kept).collect();
    let mut taken: Vec<usize> = new.iter().map(Handle::offset_bytes).collect();
    taken.sort_unstable();
    assert_eq!(taken, places);
    assert!(
        frames
            .iter()
            .all(|frame| pool.pool.owner(*frame).unwrap().shard == 0)
    );
    handles.extend(new);
    remove_all(&pool, handles);
    assert_eq!(pool.stats().used_bytes, 0);
}

/// A CPU with blocks of its own takes a line at a time, and so need not look at the other each
/// time.
#[test]
fn places_go_by_lines() {
    let (pool, handles, _) = pool_with_many_parked(95);
    let parked = |shard: usize| pool.pool.shards[shard].lock().parked_granules() / 128;
    cpu::pretend::CPU.set(Some(1));
    // More than blocks lent to it have room for, and enough for a line to be 1/32 of it.
    let mut own: Vec<Handle> = (0..400).map(|_| store(&pool, 4000).unwrap()).collect();
    assert_eq!((parked(0), parked(1)), (95, 0));
    own.push(store(&pool, 1024).unwrap());
    assert_eq!((parked(0), parked(1)), (85, 9));
    own.extend((0..9).map(|_| store(&pool, 1024).unwrap()));
    assert_eq!((parked(0), parked(1)), (85, 0));
    remove_all(&pool, handles.into_iter().chain(own));
    assert_eq!(pool.stats().used_bytes, 0);
}

/// Closing blocks, and looking at a limit, empties one shard after the other: nothing may move
/// meanwhile.
#[test]
fn places_of_closing_blocks_go_to_nobody() {
    for is_limit in [false, true] {
        let (pool, handles, places) = pool_with_many_parked(95);
        cpu::pretend::CPU.set(Some(1));
        let mut own: Vec<Handle> = (0..400).map(|_| store(&pool, 4000).unwrap()).collect();
        match is_limit {
            true => pool.arena.set_limit(4096),
            false => places.iter().for_each(|at| {
                let first_page = at / (pool.pool.frame_pages * PAGE_BYTES) * pool.pool.frame_pages;
                let victim = Victim {
                    first_page,
                    pages: pool.pool.frame_pages,
                    held_pages: pool.pool.frame_pages,
                    owner: 0,
                };
                pool.pool.set_closed(victim, true);
            }),
        }
        own.push(store(&pool, 1024).unwrap());
        assert_eq!(pool.pool.shards[1].lock().parked_granules(), 0);
        pool.make_room();
        remove_all(&pool, handles.into_iter().chain(own));
        assert_eq!(pool.stats().used_bytes, 0);
    }
}

/// Places too short for an object are left alone until there is no memory, and then make room.
#[test]
fn no_insertion_empties_what_is_kept_unless_at_the_limit() {
    let limit_bytes = WHOLE_FRAMES_FROM_BYTES;
    let pool = pool(limit_bytes);
    let count = limit_bytes as usize / 2048;
    let stored = (0..count).map(|_| store(&pool, 2048).unwrap());
    let mut handles: Vec<Handle> = stored.collect();
    handles.sort_unstable_by_key(Handle::offset_bytes);
    // Two side by side, of the same unit or not.
    remove_all(&pool, handles.drain(101..103));
    let parked = || {
        pool.pool
            .shards
            .iter()
            .map(|shard| shard.lock().parked_granules())
    };
    assert_eq!(parked().sum::<usize>(), 512);
    let refused = pool.insert(&[7; 4096], Room::Any);
    assert!(matches!(refused, Err(Full::NeedsMemory)));
    assert_eq!(parked().sum::<usize>(), 512);
    handles.push(store(&pool, 4096).unwrap());
    assert_eq!(store(&pool, 8).unwrap_err().kind(), ErrorKind::NoSpace);
    remove_all(&pool, handles);
    assert_eq!(pool.stats().used_bytes, 0);
}

/// As swap needs it: kept places allocate nothing.
#[test]
fn a_pool_that_was_made_ready_keeps_places_without_memory() {
    let keep = |pool: &PoolMemory<BestFit>| {
        cpu::pretend::CPU.set(Some(0));
        let mut handles: Vec<Handle> = (0..10_000).map(|_| store(pool, 512).unwrap()).collect();
        fault::fail_after(0);
        remove_all(pool, (0..60).map(|at| handles.swap_remove(at * 100)));
        let took_none = fault::disarm();
        let kept = pool.pool.shards[0].lock().parked_granules() / 64;
        remove_all(pool, handles);
        (took_none, kept)
    };
    let ready = pool(0);
    ready.make_ready().unwrap();
    assert_eq!(keep(&ready), (true, 60));
    // Without memory for more, places become holes.
    assert_eq!(keep(&pool(0)), (false, 59));
}

#[test]
fn lines_that_go_leave_room() {
    let [mut from, mut to] = [Parked::new().unwrap(), Parked::new().unwrap()];
    for frame in 0..20_000 {
        let place = Place::new(frame, 0, 9).unwrap();
        assert!(from.push(place, true));
        if let Some(line) = from.pop_line(9, |_| true) {
            to.push_line(9, line);
            (0..10).for_each(|_| assert!(to.pop(9).is_some()));
        }
    }
    assert_eq!(
        from.side_bytes() - to.side_bytes(),
        64 * 64,
        "one chunk of lines"
    );
}

#[test]
fn lines_are_so_many_at_most() {
    let mut parked = Parked::new().unwrap();
    let kept = (0..50_000).take_while(|frame| {
        let place = Place::new(*frame, 0, 1).unwrap();
        parked.push(place, true)
    });
    assert_eq!(kept.count(), (4096 + 1) * 10);
}

/// Frames of the places that each CPU has parked, by length, the newest at the end.
type Stacks = BTreeMap<usize, Vec<u32>>;

fn check_parked(parked: &Parked, stacks: &Stacks) -> Result<(), TestCaseError> {
    let granules = stacks.iter().map(|(length, stack)| length * stack.len());
    prop_assert_eq!(parked.granules(), granules.sum::<usize>());
    for (&length, stack) in stacks {
        let has = |frame: &u32| {
            let place = Place::new(*frame, 3, length).unwrap();
            parked.has(place)
        };
        prop_assert!(stack.iter().all(has));
        let has_more = parked.shown().sunken.has(length);
        prop_assert!(has_more || stack.len() <= 10);
        prop_assert!(!has_more || stack.len() >= 10);
    }
    Ok(())
}

proptest! {
    #[test]
    fn parked_places_of_two_cpus_are_what_stacks_say(
        ops in prop::collection::vec((0..10u8, 0..2usize, 1..4usize), 1..800)
    ) {
        let mut both = [Parked::new().unwrap(), Parked::new().unwrap()];
        let mut stacks = [Stacks::new(), Stacks::new()];
        for (frame, (op, side, length)) in (0..).zip(ops) {
            let other_has_none = stacks[1 - side].get(&length).is_none_or(Vec::is_empty);
            let parked = &mut both[side];
            let stack = stacks[side].entry(length).or_default();
            match op {
                0..6 => {
                    let is_kept = parked.push(Place::new(frame, 3, length).unwrap(), op > 0);
                    prop_assert!(is_kept || op == 0 && stack.len() >= 10 && stack.len().is_multiple_of(10));
                    stack.extend(is_kept.then_some(frame));
                }
                6 | 7 => prop_assert_eq!(parked.pop(length).map(|place| place.frame()), stack.pop()),
                8 => {
                    let expected = stacks[side].range_mut(length..).find_map(|(_, stack)| stack.pop());
                    prop_assert_eq!(parked.pop_from(length).map(|place| place.frame()), expected);
                }
                _ if other_has_none => {
                    prop_assert!(parked.pop_line(length, |_| false).is_none());
                    let has_more = parked.shown().sunken.has(length);
                    let line = parked.pop_line(length, |_| true);
                    prop_assert_eq!(line.is_some(), has_more);
                    if let Some(line) = line {
                        let moved: Vec<u32> = line.places().map(|(frame, _)| frame).collect();
                        prop_assert_eq!(moved.len(), 10);
                        stack.retain(|frame| !moved.contains(frame));
                        both[1 - side].push_line(length, line);
                        stacks[1 - side].insert(length, moved);
                    }
                }
                _ => {}
            }
            check_parked(&both[0], &stacks[0])?;
            check_parked(&both[1], &stacks[1])?;
        }
    }
}
