//! Runs never overlap, the limit holds, and memory comes and goes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::page::Unit;
use crate::region::Backing;

fn config(disksize_bytes: u64, limit_bytes: u64, backing: Backing) -> PoolConfig {
    PoolConfig {
        unit: Unit::DEFAULT,
        disksize_bytes,
        limit_bytes,
        backing,
        spare_bytes: 0,
    }
}

fn arena(config: PoolConfig) -> Arena {
    Arena::new(&config, reserve(&config).unwrap(), Runs::Anywhere)
}

fn grow_and_take(arena: &Arena, length: usize) -> Result<usize> {
    loop {
        if let Some(first) = arena.take(length) {
            return Ok(first);
        }
        arena.grow(length)?;
    }
}

/// The number of mappings that the system keeps for the arena's addresses.
fn mappings(arena: &Arena) -> usize {
    let start = arena.region.pointer(&(0..1)).addr().get();
    let end = start + arena.region.length_bytes();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let address = |hex: &str| usize::from_str_radix(hex, 16).unwrap();
    let is_in = |line: &&str| {
        let (first, rest) = line.split_once('-').unwrap();
        address(first) < end && address(rest.split_once(' ').unwrap().0) > start
    };
    maps.lines().filter(is_in).count()
}

/// Changing a mapping waits for every thread that is populating, and makes later ones wait.
#[test]
fn an_arena_of_small_pages_grows_without_changing_the_mapping() {
    let arena = arena(config(1 << 20, 0, Backing::Private));
    let before = mappings(&arena);
    for _ in 0..100 {
        grow_and_take(&arena, 3).unwrap();
        assert_eq!(mappings(&arena), before);
    }
}

/// On a system with pages of 16 or 64 KiB the counts are still what the system has given, and a limit holds.
#[test]
fn counts_are_the_systems_where_its_pages_are_larger() {
    for (page_bytes, limit_bytes) in [(16 << 10, 0), (16 << 10, 1 << 20), (64 << 10, 1 << 20)] {
        let config = config(16 << 20, limit_bytes, Backing::Private);
        let region = reserve(&config).unwrap().with_system_pages(page_bytes);
        let arena = Arena::new(&config, region, Runs::Anywhere);
        let mut random = uzram_testkit::Rng::new(7);
        let mut runs = Vec::new();
        for _ in 0..3000 {
            let length = 1 + random.below(5);
            if random.below(100) < 52 {
                runs.extend(
                    grow_and_take(&arena, length)
                        .ok()
                        .map(|first| (first, length)),
                );
            } else if !runs.is_empty() {
                let (first, length) = runs.swap_remove(random.below(runs.len()));
                arena.give_back(first, length);
            }
            let stats = arena.stats();
            assert!(limit_bytes == 0 || stats.resident_bytes <= limit_bytes);
        }
        assert_eq!(
            arena.stats().resident_bytes,
            arena.region.resident_bytes() as u64
        );
        for (first, length) in runs {
            arena.give_back(first, length);
        }
        arena.trim(Parts::Too);
        assert_eq!(arena.stats().resident_bytes, 0);
        assert_eq!(arena.region.resident_bytes(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn runs_never_overlap_and_counts_add_up(
        small: bool,
        limit_pages in prop_oneof![Just(0u64), 1..200u64, 16384..20000u64],
        ops in prop::collection::vec((0..3u8, 1..=RUN_PAGES_MAX, any::<u16>()), 0..300),
    ) {
        let disksize = if small { 1 << 20 } else { 1 << 30 };
        let arena = arena(config(disksize, limit_pages * 4096, Backing::Private));
        let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
        for (op, length, pick) in ops {
            if op > 0 {
                match grow_and_take(&arena, length) {
                    Ok(first) => {
                        let below = taken.range(..first + length).next_back();
                        prop_assert!(below.is_none_or(|(f, l)| f + l <= first), "{first} overlaps");
                        taken.insert(first, length);
                    }
                    Err(error) => {
                        prop_assert_eq!(error.kind(), ErrorKind::NoSpace);
                        // Pages of the system count whole: each run may lie in two that it does not fill.
                        let beside = (taken.len() + 1) * 2 * (arena.grain() - 1);
                        let used: usize = taken.values().sum();
                        prop_assert!((used + length + beside) as u64 > limit_pages);
                    }
                }
            } else if !taken.is_empty() {
                let first = *taken.keys().nth(usize::from(pick) % taken.len()).unwrap();
                arena.give_back(first, taken.remove(&first).unwrap());
            }
            let stats = arena.stats();
            let used: usize = taken.values().sum();
            prop_assert_eq!(stats.used_bytes, used as u64 * 4096);
            prop_assert!(stats.resident_bytes >= stats.used_bytes);
            if limit_pages > 0 {
                prop_assert!(stats.used_max_bytes <= limit_pages * 4096);
                prop_assert!(stats.resident_bytes <= limit_pages * 4096);
            }
        }
        for (first, length) in taken {
            arena.give_back(first, length);
        }
        let spare = arena.stats().resident_bytes;
        prop_assert!(spare <= (SPARE_SPANS_MAX * HUGE_PAGE_BYTES) as u64);
        arena.trim(Parts::Stay);
        prop_assert_eq!(arena.stats().used_bytes, 0);
        prop_assert_eq!(arena.stats().resident_bytes, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn runs_of_whole_units_start_where_units_do(
        shift in 0..5u32,
        small: bool,
        limit_pages in prop_oneof![Just(0u64), 16..200u64, 16384..20000u64],
        ops in prop::collection::vec((0..8u8, 1..=8usize, any::<u16>()), 0..300),
    ) {
        let disksize = if small { 1 << 20 } else { 1 << 30 };
        let arena = arena(config(disksize, limit_pages * 4096, Backing::Private));
        let mut taken: Vec<(usize, usize)> = Vec::new();
        for (op, units, pick) in ops {
            let length = (units << shift).min(RUN_PAGES_MAX);
            match op {
                0 => arena.trim(Parts::Stay),
                1 => drop(arena.maintain()),
                2..5 if !taken.is_empty() => {
                    let (first, length) = taken.swap_remove(usize::from(pick) % taken.len());
                    arena.give_back(first, length);
                }
                _ => if let Ok(first) = grow_and_take(&arena, length) {
                    prop_assert_eq!(first % (1 << shift), 0);
                    taken.push((first, length));
                }
            }
        }
    }
}

#[test]
fn a_few_single_pages_stay_populated() {
    let arena = arena(config(1 << 20, 0, Backing::Private));
    let spare_bytes = || {
        let stats = arena.stats();
        stats.resident_bytes - stats.used_bytes
    };
    let taken: Vec<usize> = (0..200)
        .map(|_| grow_and_take(&arena, 1).unwrap())
        .collect();
    assert!(spare_bytes() < (SMALL_PAGES_A_GROWTH * PAGE_BYTES) as u64);
    let least = (SPARE_SMALL_PAGES * PAGE_BYTES) as u64;
    // A page of the system goes back whole.
    let most = ((SPARE_SMALL_PAGES + arena.grain() - 1) * PAGE_BYTES) as u64;
    for first in taken {
        arena.give_back(first, 1);
        assert!(spare_bytes() <= most);
    }
    assert!((least..=most).contains(&spare_bytes()));
    assert!((0..SPARE_SMALL_PAGES).all(|_| arena.take(1).is_some()));
}

#[test]
fn single_pages_that_are_scattered_are_taken_before_a_new_span() {
    let arena = arena(config(1 << 20, 0, Backing::Private));
    let span: Vec<usize> = (0..SPAN_PAGES)
        .map(|_| grow_and_take(&arena, 1).unwrap())
        .collect();
    span.iter()
        .filter(|first| **first % 2 == 0)
        .for_each(|first| arena.give_back(*first, 1));
    arena.trim(Parts::Stay);
    for _ in 0..SPAN_PAGES / 2 {
        assert!(grow_and_take(&arena, 1).unwrap() < SPAN_PAGES);
    }
}

#[test]
fn a_limit_of_a_few_pages_is_used_to_the_last() {
    let arena = arena(config(100 << 30, 1 << 20, Backing::Private));
    for _ in 0..256 {
        grow_and_take(&arena, 1).unwrap();
    }
    assert_eq!(
        grow_and_take(&arena, 1).unwrap_err().kind(),
        ErrorKind::NoSpace
    );
    assert_eq!(arena.stats().used_max_bytes, 1 << 20);
    assert_eq!(arena.stats().resident_bytes, 1 << 20);
}

#[test]
fn the_free_part_of_a_huge_span_makes_room_under_the_limit() {
    let limit = 64 << 20;
    let arena = arena(config(1 << 30, limit, Backing::Private));
    let pages = (limit / 4096) as usize;
    let taken: Vec<usize> = (0..pages)
        .map(|_| grow_and_take(&arena, 1).unwrap())
        .collect();
    // Every second page of the system goes: no longer run is left in the spans, yet half of the limit is free.
    taken
        .iter()
        .filter(|first| (**first / arena.grain()).is_multiple_of(2))
        .for_each(|first| arena.give_back(*first, 1));
    for _ in 0..pages / 2 / 16 {
        grow_and_take(&arena, 16).unwrap();
        assert!(arena.stats().resident_bytes <= limit);
    }
    assert_eq!(arena.stats().used_bytes, limit);
}

#[test]
fn failed_allocations_leave_the_counts_as_they_were() {
    let arena = arena(config(1 << 30, 0, Backing::Private));
    for allowed in 0.. {
        let before = arena.stats();
        memory::fault::fail_after(allowed);
        let grown = arena.grow(16);
        if memory::fault::disarm() {
            grown.unwrap();
            assert!(allowed >= 2, "the span table and the memory are both tried");
            break;
        }
        assert_eq!(grown.unwrap_err().kind(), ErrorKind::NoMemory);
        let after = arena.stats();
        assert_eq!(before.used_bytes, after.used_bytes);
        assert_eq!(before.resident_bytes, after.resident_bytes);
    }
    assert!(arena.take(16).is_some());
}

#[test]
fn a_limit_below_what_is_used_shows_until_enough_is_gone() {
    for disksize_bytes in [1 << 20, 1 << 30] {
        let arena = arena(config(disksize_bytes, 0, Backing::Private));
        let taken: Vec<usize> = (0..300)
            .map(|_| grow_and_take(&arena, 1).unwrap())
            .collect();
        arena.set_limit(100 * PAGE_BYTES as u64);
        for (gone, first) in taken.into_iter().enumerate() {
            assert_eq!(arena.is_over_limit(), gone < 200, "{gone} of 300");
            arena.give_back(first, 1);
        }
        assert!(grow_and_take(&arena, 1).is_ok() && !arena.is_over_limit());
        arena.set_limit(1);
        assert!(arena.is_over_limit());
        arena.set_limit(0);
        assert!(!arena.is_over_limit());
    }
}

/// An arena of a file with one full span, and the bytes that the file takes.
#[cfg(not(uzram_shuttle))]
fn full_span() -> (crate::sync::Arc<Arena>, impl Fn() -> u64) {
    let arena = arena(config(128 << 20, 0, Backing::Memfd));
    for _ in 0..SPAN_PAGES / 64 {
        grow_and_take(&arena, 64).unwrap();
    }
    let file = arena.file().unwrap().unwrap();
    let held_bytes = move || rustix::fs::fstat(&file).unwrap().st_blocks as u64 * 512;
    (crate::sync::Arc::new(arena), held_bytes)
}

/// More than a giving back has.
#[cfg(not(uzram_shuttle))]
const PUNCHES_MAX: usize = 6;

/// The copy fills holes, of whose pages nobody would know.
#[cfg(not(uzram_shuttle))]
#[test]
fn pages_that_leave_a_span_that_is_about_to_be_copied_are_gone_afterwards() {
    use std::sync::mpsc::channel;
    for pause_at in 1..=PUNCHES_MAX {
        let (arena, held_bytes) = full_span();
        let (decided, is_decided) = channel();
        let (punched, is_punched) = channel();
        let (copied, is_copied) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut is_copying = false;
                let hook = Box::new(move || {
                    if !std::mem::replace(&mut is_copying, true) {
                        decided.send(()).unwrap();
                        is_punched.recv().unwrap();
                    }
                });
                crate::crash::trace(hook, || arena.collapse_one());
                drop(copied);
            });
            let paused = punched.clone();
            let mut punches = 0;
            let hook = Box::new(move || {
                punches += 1;
                if punches == pause_at {
                    paused.send(()).unwrap();
                    is_copied.recv().unwrap_err();
                }
            });
            is_decided.recv().unwrap();
            crate::crash::trace(hook, || arena.give_back(0, 64));
            // Nobody listens any more if it paused.
            let _ = punched.send(());
        });
        arena.trim(Parts::Too);
        assert_eq!(held_bytes(), arena.stats().resident_bytes, "{pause_at}");
        assert_eq!(held_bytes(), (SPAN_PAGES - 64) as u64 * PAGE_BYTES as u64);
    }
}

#[cfg(not(uzram_shuttle))]
#[test]
fn no_span_is_copied_while_pages_of_it_leave() {
    for copy_at in 1..=PUNCHES_MAX {
        let (arena, held_bytes) = full_span();
        let other = crate::sync::Arc::clone(&arena);
        let mut punches = 0;
        let hook = Box::new(move || {
            punches += 1;
            if punches == copy_at {
                other.collapse_one();
            }
        });
        crate::crash::trace(hook, || arena.give_back(0, 64));
        arena.trim(Parts::Too);
        assert_eq!(held_bytes(), arena.stats().resident_bytes, "{copy_at}");
        assert_eq!(held_bytes(), (SPAN_PAGES - 64) as u64 * PAGE_BYTES as u64);
    }
}

/// Memory of one span is leaving, and all other memory below the limit is used.
#[cfg(not(uzram_shuttle))]
#[test]
fn a_writer_at_the_limit_waits_for_memory_that_leaves() {
    let single_pages = full_span().0;
    waits_while(&single_pages, |arena| arena.give_back(0, 64));
    let huge = arena(PoolConfig {
        spare_bytes: HUGE_PAGE_BYTES as u64,
        ..config(128 << 20, 0, Backing::Memfd)
    });
    for _ in 0..2 * SPAN_PAGES / 64 {
        grow_and_take(&huge, 64).unwrap();
    }
    for first in (SPAN_PAGES..2 * SPAN_PAGES).step_by(64) {
        huge.give_back(first, 64);
    }
    waits_while(&crate::sync::Arc::new(huge), |arena| {
        arena.trim(Parts::Stay);
    });
}

/// Grows at the limit while `leave` is in the middle of giving memory back.
#[cfg(not(uzram_shuttle))]
fn waits_while(arena: &crate::sync::Arc<Arena>, leave: impl FnOnce(&Arena)) {
    arena.set_limit(arena.stats().resident_bytes);
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (other, mut is_first) = (crate::sync::Arc::clone(arena), true);
    let hook = move || {
        if std::mem::take(&mut is_first) {
            let other = crate::sync::Arc::clone(&other);
            let writer = std::thread::spawn(move || other.grow(64));
            // Where it takes longer than that to begin, nothing is seen.
            std::thread::sleep(WAIT_TIME * 10);
            begun.send((writer.is_finished(), writer)).unwrap();
        }
    };
    crate::crash::trace(Box::new(hook), || leave(arena));
    let (was_early, writer) = has_begun.recv().unwrap();
    let grown = writer.join().unwrap();
    assert!(!was_early, "{grown:?} before there was room");
    // A machine may stop a thread for longer than a writer waits.
    grown.or_else(|_| arena.grow(64)).unwrap();
}
