//! What is parked, from outside: where objects go, and that no memory stays.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use super::*;
use crate::error::ErrorKind;
use crate::page::Unit;
use crate::pool::arena::Parts;

const DISK_BYTES: u64 = 256 << 20;

fn pool(limit_bytes: u64) -> Box<dyn Pool> {
    let config = PoolConfig {
        unit: Unit::DEFAULT,
        disksize_bytes: DISK_BYTES,
        limit_bytes,
        backing: Backing::Private,
    };
    make(&config, Memory::reserve(&config).unwrap()).unwrap()
}

fn store(pool: &dyn Pool, size: usize) -> Result<Handle> {
    let bytes = vec![size as u8; size];
    loop {
        match pool.insert(&bytes, Room::Any) {
            Ok(handle) => return Ok(handle),
            Err(Full::NeedsMemory) => pool.grow(size)?,
            Err(Full::NoMemory) => panic!("bookkeeping"),
        }
    }
}

fn size(place: usize) -> usize {
    1 + place.wrapping_mul(2_654_435_761) % 4096
}

#[test]
fn an_object_takes_the_place_of_one_as_long() {
    let pool = pool(0);
    let mut handles: Vec<Handle> = (0..2000)
        .map(|place| store(&*pool, size(place)).unwrap())
        .collect();
    for _ in 0..100 {
        let old = handles.swap_remove(handles.len() / 3);
        let (at, size) = (old.offset_bytes(), old.size_bytes());
        pool.remove(old);
        let new = store(&*pool, size.next_multiple_of(GRANULE_BYTES)).unwrap();
        assert_eq!(new.offset_bytes(), at);
        handles.push(new);
    }
    handles.into_iter().for_each(|handle| {
        pool.remove(handle);
    });
}

/// Objects go one by one, by another CPU than the one that stored them: what each keeps of the other's
/// blocks goes too.
#[test]
fn nothing_stays_parked_without_objects() {
    let pool = pool(0);
    let mut handles = Vec::new();
    for place in 0..20_000 {
        cpu::pretend::CPU.set(Some(place / 5000));
        handles.push(store(&*pool, size(place)).unwrap());
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
        match store(&*pool, 4096) {
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
        handles.extend(sizes.map(|size| store(&*pool, size).unwrap()));
        let gone = handles.len() - 16;
        if sizes[0] == 2048 {
            handles.drain(gone..gone + 8).for_each(|handle| {
                pool.remove(handle);
            });
        }
    }
    assert_eq!(store(&*pool, 8).unwrap_err().kind(), ErrorKind::NoSpace);
    handles.into_iter().for_each(|handle| {
        pool.remove(handle);
    });
    assert_eq!(pool.stats().used_bytes, 0);
}

/// Lengths that only large units have are not parked; nothing else differs.
#[test]
fn longer_objects_become_holes() {
    let mut parked = Parked::new().unwrap();
    let place = |length| Place {
        frame: 3,
        start: 5,
        length,
    };
    assert!(!parked.push(place(lengths::LENGTHS)));
    assert!(parked.push(place(lengths::LENGTHS - 1)));
    assert!(parked.has(place(lengths::LENGTHS - 1)) && !parked.has(place(1)));
    assert_eq!(parked.granules(), lengths::LENGTHS - 1);
    assert!(parked.pop_from(lengths::LENGTHS).is_none());
    let last = parked.pop_from(1).unwrap();
    assert_eq!((last.frame, last.start, last.length), (3, 5, 512));
    assert!(parked.pop_from(0).is_none() && parked.granules() == 0);
}
