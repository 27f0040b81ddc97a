//! A store that is written to while memory is made free: what it needs is there before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uzram::{ErrorKind, PageIndex, Store};

const DISK: u64 = 256 << 20;
const SPARE: u64 = 16 << 20;

fn store() -> Store {
    Store::builder().size(DISK).spare(SPARE).build().unwrap()
}

/// Pages that do not compress, each of its own.
fn noise(index: u64) -> Vec<u8> {
    let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..512).flat_map(|_| next().to_ne_bytes()).collect()
}

#[test]
fn the_spare_is_there_before_the_first_write_and_again_after_maintenance() {
    let store = store();
    assert_eq!(store.stats().mem_spare_bytes, SPARE);
    for index in 0..2048 {
        store.write(PageIndex(index), &noise(index)).unwrap();
    }
    let after = store.stats();
    assert!(after.mem_spare_bytes < SPARE, "{after:?}");
    assert_eq!(after.slow_path_writes, 0, "{after:?}");
    while store.maintain(Duration::from_secs(1)) {}
    assert!(
        store.stats().mem_spare_bytes >= SPARE,
        "{:?}",
        store.stats()
    );
}

#[test]
fn without_a_spare_a_write_waits_for_it_and_takes_no_memory_itself() {
    let store = store();
    let resident = |store: &Store| {
        let stats = store.stats();
        stats.mem_used_total_bytes + stats.mem_spare_bytes
    };
    let before = resident(&store);
    // Nobody maintains: the write that finds no spare fails in the end, and not at once.
    let mut index = 0;
    let (error, waited) = loop {
        let start = Instant::now();
        match store.write(PageIndex(index), &noise(index)) {
            Ok(()) => index += 1,
            Err(error) => break (error, start.elapsed()),
        }
        assert!(index << 12 < DISK, "the spare has no end");
    };
    assert_eq!(error.kind(), ErrorKind::NoMemory);
    assert!(waited >= Duration::from_millis(900), "{waited:?}");
    assert_eq!(resident(&store), before);
    assert!(index << 12 > SPARE / 2, "{index} pages used it up");
    let mut page = vec![0; 4096];
    store.read(PageIndex(index - 1), &mut page).unwrap();
    assert!(page == noise(index - 1));

    // Now somebody does.
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                store.maintain(Duration::from_millis(10));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let written = (index..index + 8192).try_for_each(|i| store.write(PageIndex(i), &noise(i)));
        is_done.store(true, Ordering::Relaxed);
        written.unwrap();
    });
}

#[test]
fn a_limit_holds_whatever_the_spare() {
    let limit = 8 << 20;
    let builder = Store::builder().size(DISK).spare(SPARE).mem_limit(limit);
    let store = builder.build().unwrap();
    let start = Instant::now();
    let mut writes = (0..4096).map(|index| store.write(PageIndex(index), &noise(index)));
    let error = writes.find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(start.elapsed() < Duration::from_secs(5));
    let stats = store.stats();
    assert!(
        stats.mem_used_total_bytes + stats.mem_spare_bytes <= limit,
        "{stats:?}"
    );
}
