//! A store that is written to while memory is made free: what it needs is there before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use uzram::{
    Codec, Compression, Compressor, Decompress, Decompressor, ErrorKind, Malformed, PageIndex,
    Store, Unit,
};

const DISK: u64 = 256 << 20;
const SPARE: u64 = 16 << 20;

/// The program's own code may have to be mapped, where the one store runs what the other did not.
const CODE_FAULTS_MAX: u64 = 4;

fn store() -> Store {
    Store::builder().size(DISK).spare(SPARE).build().unwrap()
}

/// Pages that do not compress, each of its own.
fn noise(index: u64) -> Vec<u8> {
    uzram_testkit::noise(index, 4096)
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

/// Places of removed objects are kept for objects as long, but not where a longer one would fail for them.
#[test]
fn what_a_pool_keeps_makes_room_before_a_write_fails() {
    let store = store();
    let half = |index: u64| {
        let mut page = noise(index);
        page[2048..].fill(0);
        page
    };
    let mut index = 0;
    while store.write(PageIndex(index), &half(index)).is_ok() {
        index += 1;
    }
    (100..108).for_each(|index| store.trim(PageIndex(index)).unwrap());
    store.write(PageIndex(100), &noise(7)).unwrap();
    let mut page = vec![0; 4096];
    store.read(PageIndex(100), &mut page).unwrap();
    assert!(page == noise(7));
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

/// Minor faults of this thread so far.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(7).unwrap().parse().unwrap()
}

/// Pages that do not compress, that do, parts of pages, and all of it read back, within the spare.
fn work(store: &Store, pages: &[Vec<u8>], found: &mut [u8]) {
    let count = 4096;
    for index in 0..count {
        let page = &pages[index as usize % pages.len()];
        store.write(PageIndex(index), page).unwrap();
    }
    for index in (0..count).step_by(3) {
        store
            .write_at(PageIndex(index), 100, &pages[0][..8])
            .unwrap();
        store.trim(PageIndex(index + 1)).unwrap();
        store.read(PageIndex(index), found).unwrap();
    }
}

/// Touching a page for the first time is asking the system for memory.
#[test]
fn with_a_spare_nothing_is_touched_for_the_first_time_by_a_write() {
    let mut pages: Vec<_> = (1..9).map(noise).collect();
    for (page, compressible) in pages.iter_mut().step_by(2).zip(1..) {
        page[compressible * 900..].fill(compressible as u8);
    }
    // What malloc will give is touched; the last piece stays, so that it gives none back.
    let mut heap: Vec<_> = (0..512).map(|_| vec![1_u8; 16 << 10]).collect();
    heap.drain(..511);
    let mut found = vec![1; 4096];
    let names = uzram::algorithms();
    let stateful = ["zstd", "lz4"]
        .into_iter()
        .find(|name| names.contains(name));
    let pools = uzram::pools().into_iter();
    let pools = pools.map(|name| (stateful.unwrap(), name));
    let algorithms = names.iter().map(|name| (*name, uzram::pools()[0]));
    for (algorithm, pool) in pools.chain(algorithms) {
        let compression = || Compression::new(algorithm, Unit::DEFAULT).unwrap();
        let builder = || Store::builder().size(DISK).pool(pool).spare(64 << 20);
        let make = || builder().compression(compression()).build().unwrap();
        let (first, store) = (make(), make());
        // The code and the stack are touched by another store, and by a look.
        work(&first, &pages, &mut found);
        faults();
        let before = faults();
        work(&store, &pages, &mut found);
        let faults = faults() - before;
        assert!(faults <= CODE_FAULTS_MAX, "{faults} {algorithm} {pool}");
    }
}

/// How many contexts were made, and how many of them were used.
#[derive(Clone, Default)]
struct Uses {
    made: Arc<AtomicUsize>,
    used: Arc<AtomicUsize>,
}

impl Uses {
    fn context(&self) -> Context {
        self.made.fetch_add(1, Ordering::Relaxed);
        Context {
            uses: self.clone(),
            is_used: false,
        }
    }
}

struct Context {
    uses: Uses,
    is_used: bool,
}

impl Context {
    fn is_used_now(&mut self) {
        if !std::mem::replace(&mut self.is_used, true) {
            self.uses.used.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A codec whose contexts count.
#[derive(Clone, Default)]
struct Counting {
    packing: Uses,
    unpacking: Uses,
}

impl Codec for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn compressor(&self, _unit: Unit) -> uzram::Result<Box<dyn Compressor>> {
        Ok(Box::new(self.packing.context()))
    }

    fn decompressor(&self, _unit: Unit) -> uzram::Result<Decompressor> {
        Ok(Decompressor::Stateful(Box::new(self.unpacking.context())))
    }
}

impl Compressor for Context {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        self.is_used_now();
        destination[..source.len()].copy_from_slice(source);
        Some(source.len())
    }
}

impl Decompress for Context {
    fn decompress(&mut self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        self.is_used_now();
        destination.copy_from_slice(source);
        Ok(())
    }
}

/// Codecs allocate, and touch, when they first do something.
#[test]
fn with_a_spare_every_context_has_been_used_before_the_first_write() {
    let codec = Counting::default();
    let compression = Compression::with_codec(Box::new(codec.clone()), Unit::DEFAULT).unwrap();
    let builder = Store::builder().size(DISK).compression(compression);
    let store = builder.spare(SPARE).build().unwrap();
    for uses in [&codec.packing, &codec.unpacking] {
        let [made, used] = [&uses.made, &uses.used].map(|count| count.load(Ordering::Relaxed));
        // One more tells what kind of codec it is, or makes what the others are used with.
        assert!(used >= 1 && used + 1 >= made, "{used} of {made}");
    }
    drop(store);
}
