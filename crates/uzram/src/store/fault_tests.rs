//! Every allocation of every operation fails once: the result is an error and the old page, without a leak.
//! Also CPU numbers that the machine does not have.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use super::*;
use crate::cpu::pretend;
use crate::memory::fault;
use crate::page::Unit;

pub(super) use uzram_testkit::noise;

/// Bytes that every codec shrinks to about a third.
pub(super) fn compressible(seed: u64, length: usize) -> Vec<u8> {
    let words = noise(seed, length);
    let pieces = words
        .chunks(8)
        .flat_map(|word| [word, b"uzram keeps pages "]);
    pieces.flatten().copied().take(length).collect()
}

fn read(store: &Store, index: u64) -> Vec<u8> {
    let mut page = vec![0xee; store.unit().bytes()];
    store.read(PageIndex(index), &mut page).unwrap();
    page
}

/// Fresh stores of every kind, before anything is made at first use.
fn each_store(mut test: impl FnMut(&dyn Fn() -> Store)) {
    for algorithm in crate::algorithms() {
        for (unit, checksum) in [(4096, false), (16384, true)] {
            test(&|| {
                let unit = Unit::new(unit).unwrap();
                // Small enough for memory to come in single units, as another page's would.
                let builder = Store::builder().size(32 << 20).algorithm(algorithm);
                builder.unit(unit).checksum(checksum).build().unwrap()
            });
        }
    }
}

/// Allocations of a page that replaces another, at least. In a larger page of the system there is room beside the old.
fn replacing() -> u64 {
    u64::from(crate::system_page::size_bytes() == 4096)
}

/// Runs `act` on stores that `arrange` prepared, with its first, second, ... allocation failing,
/// until none is left to fail. `act` works on page 0.
fn fail_each(
    make: &dyn Fn() -> Store,
    arrange: &dyn Fn(&Store),
    act: &dyn Fn(&Store) -> Result<()>,
) -> u64 {
    for allowed in 0.. {
        let store = make();
        arrange(&store);
        // A spare would serve what is to fail.
        store.inner.pool.trim(Parts::Stay);
        let (old, before) = (read(&store, 0), store.stats());
        fault::fail_after(allowed);
        let done = act(&store);
        let untouched = fault::disarm();
        if untouched {
            done.unwrap();
            return allowed;
        }
        assert_eq!(
            done.unwrap_err().kind(),
            ErrorKind::NoMemory,
            "allocation {allowed}"
        );
        assert!(read(&store, 0) == old, "allocation {allowed}: the old page");
        let after = store.stats();
        let held = |stats: &Stats| {
            (
                stats.orig_data_size_bytes,
                stats.compr_data_size_bytes,
                stats.mem_used_total_bytes,
                (stats.same_pages, stats.huge_pages),
            )
        };
        assert_eq!(held(&after), held(&before), "allocation {allowed}: a leak");
        let failures = |stats: &Stats| stats.failed_reads + stats.failed_writes;
        assert_eq!(
            failures(&after),
            failures(&before) + 1,
            "allocation {allowed}"
        );
        act(&store).expect("the next attempt has memory");
        store.reset();
        let stats = store.stats();
        assert_eq!(
            (stats.mem_used_total_bytes, stats.mem_resident_bytes),
            (0, 0)
        );
    }
    unreachable!("some attempt allocates nothing more");
}

#[test]
fn any_failed_allocation_of_a_write_leaves_the_old_page() {
    each_store(|make| {
        let unit = make().unit().bytes();
        let write = |page: Vec<u8>| move |store: &Store| store.write(PageIndex(0), &page);
        // On a store where nothing was made yet: a stream, a span, bookkeeping, its memory.
        let failures = fail_each(make, &|_| {}, &write(compressible(1, unit)));
        assert!(
            failures >= 5,
            "only {failures} allocations were made to fail"
        );
        fail_each(make, &|_| {}, &write(noise(1, unit)));
        // Over a page that is there, by one of another size class; and by a same-filled one.
        let old = |store: &Store| store.write(PageIndex(0), &compressible(2, unit)).unwrap();
        assert!(fail_each(make, &old, &write(noise(1, unit))) >= replacing());
        assert_eq!(
            fail_each(make, &old, &write(vec![7; unit])),
            0,
            "needs no memory"
        );
    });
}

#[test]
fn any_failed_allocation_of_a_write_in_any_pool_leaves_the_old_page() {
    for pool in crate::pools() {
        let make = || Store::builder().size(1 << 20).pool(pool).build().unwrap();
        let raw = |store: &Store| store.write(PageIndex(0), &noise(2, 4096));
        let packed = |store: &Store| store.write(PageIndex(0), &compressible(1, 4096));
        fail_each(&make, &|_| {}, &packed);
        fail_each(&make, &|store| raw(store).unwrap(), &packed);
        let failures = fail_each(&make, &|store| packed(store).unwrap(), &raw);
        assert!(
            failures >= replacing(),
            "{pool}: a page needs memory of its own"
        );
    }
}

#[test]
fn any_failed_allocation_of_a_partial_write_leaves_the_old_page() {
    each_store(|make| {
        let unit = make().unit().bytes();
        let part = |length| move |store: &Store| store.write_at(PageIndex(0), 9, &noise(3, length));
        assert!(fail_each(make, &|_| {}, &part(100)) >= 5);
        let old = |store: &Store| store.write(PageIndex(0), &compressible(2, unit)).unwrap();
        assert!(
            fail_each(make, &old, &part(unit - 10)) >= replacing(),
            "packed becomes raw"
        );
        let raw = |store: &Store| store.write(PageIndex(0), &noise(2, unit)).unwrap();
        let zero = |store: &Store| store.zero_at(PageIndex(0), 9, unit - 100, Zeroing::MayPunch);
        assert!(
            fail_each(make, &raw, &zero) >= replacing(),
            "raw becomes packed"
        );
        // On another CPU nothing is made: neither a stream nor a context to decompress with.
        let elsewhere = |store: &Store| {
            pretend::CPU.set(Some(1));
            let done = store.write_at(PageIndex(0), 9, &noise(3, 100));
            pretend::CPU.set(None);
            done
        };
        let here = |store: &Store| {
            pretend::CPU.set(Some(0));
            old(store);
            pretend::CPU.set(None);
        };
        let failures = fail_each(make, &here, &elsewhere);
        assert!(failures >= 3 || crate::cpu::possible() == 1, "{failures}");
    });
}

#[test]
fn any_failed_allocation_of_a_read_is_an_error_that_passes() {
    each_store(|make| {
        let unit = make().unit().bytes();
        let here = |store: &Store| {
            pretend::CPU.set(Some(0));
            store.write(PageIndex(0), &compressible(2, unit)).unwrap();
        };
        let part = |store: &Store| {
            pretend::CPU.set(Some(1));
            let mut bytes = [0xee; 10];
            let done = store.read_at(PageIndex(0), 20, &mut bytes);
            pretend::CPU.set(Some(0));
            assert!(done.is_err() || bytes == compressible(2, unit)[20..30]);
            done
        };
        assert!(fail_each(make, &here, &part) >= 1);
        pretend::CPU.set(None);
    });
}

#[test]
fn any_failed_allocation_of_the_making_is_an_error() {
    for algorithm in crate::algorithms() {
        for allowed in 0.. {
            fault::fail_after(allowed);
            let made = Store::builder()
                .size(1 << 20)
                .algorithm(algorithm)
                .checksum(true)
                .build();
            if fault::disarm() {
                made.unwrap();
                assert!(allowed > 5);
                break;
            }
            assert_eq!(
                made.unwrap_err().kind(),
                ErrorKind::NoMemory,
                "allocation {allowed}"
            );
        }
    }
}

/// A writer makes memory and then needs none, because another thread freed an object meanwhile.
#[test]
fn memory_that_was_made_and_not_used_goes_back_too() {
    for size_bytes in [1 << 20, 1 << 30] {
        let store = Store::builder().size(size_bytes).build().unwrap();
        store.inner.pool.grow(100).unwrap();
        assert!(store.stats().mem_spare_bytes > 0);
        store.reset();
        assert_eq!(
            store.stats().mem_resident_bytes,
            0,
            "disk of {size_bytes} bytes"
        );
    }
}

/// Threads with CPU numbers far above the count, which change all the time.
#[test]
fn cpu_numbers_above_the_count_serve() {
    let cpus = [0, 1, 2, 63, 1023, 1024, usize::MAX - 1, usize::MAX];
    let store = Store::builder()
        .size(64 << 12)
        .algorithm("lz4")
        .build()
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..cpus.len() {
            let store = &store;
            scope.spawn(move || {
                let part = 4096 / cpus.len();
                for turn in 0..400u64 {
                    pretend::CPU.set(Some(cpus[(thread + turn as usize / 3) % cpus.len()]));
                    let own = PageIndex(8 + thread as u64);
                    store.write(own, &compressible(turn, 4096)).unwrap();
                    let bytes = noise(turn, part);
                    store
                        .write_at(PageIndex(turn % 8), thread * part, &bytes)
                        .unwrap();
                    let mut back = vec![0; part];
                    store
                        .read_at(PageIndex(turn % 8), thread * part, &mut back)
                        .unwrap();
                    assert!(back == bytes);
                    assert!(read(store, own.0) == compressible(turn, 4096));
                }
                pretend::CPU.set(None);
            });
        }
    });
    assert_eq!(store.stats().orig_data_size_bytes, 16 << 12);
    (0..64).for_each(|index| store.trim(PageIndex(index)).unwrap());
    let stats = store.stats();
    assert_eq!(
        (stats.orig_data_size_bytes, stats.mem_used_total_bytes),
        (0, 0)
    );
}
