//! Codecs that the library's user brings along: odd ones, failing ones, panicking ones.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uzram::{
    Codec, Compression, Compressor, Decompress, DecompressShared, Decompressor, Error, ErrorKind,
    Malformed, PageIndex, Result, Store, Unit,
};

use crate::pages::{Rng, compressible, noise, same_filled};
use crate::races::race_on_store;
use crate::runs::{Runs, RunsState};

fn store_with(codec: impl Codec + 'static) -> Store {
    let compression = Compression::with_codec(Box::new(codec), Unit::DEFAULT).unwrap();
    Store::builder()
        .size(64 << 12)
        .compression(compression)
        .build()
        .unwrap()
}

/// Long runs: what `Runs` shrinks.
fn runs(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut page = Vec::new();
    while page.len() < 4096 {
        page.resize(page.len() + 1 + rng.below(200), rng.next() as u8);
    }
    page.truncate(4096);
    page
}

fn read(store: &Store, index: u64) -> Result<Vec<u8>> {
    let mut page = vec![0xee; 4096];
    store.read(PageIndex(index), &mut page)?;
    Ok(page)
}

#[test]
fn a_codec_that_pads_and_expands_keeps_its_pages() {
    let store = store_with(Runs::default());
    assert_eq!(store.algorithm(), "runs");
    for index in 0..32 {
        let page = if index % 2 == 0 {
            runs(index)
        } else {
            noise(index, 4096)
        };
        store.write(PageIndex(index), &page).unwrap();
        store.write_at(PageIndex(index), 100, &[9; 300]).unwrap();
        let mut expected = page;
        expected[100..400].fill(9);
        assert!(read(&store, index).unwrap() == expected);
    }
    let stats = store.stats();
    assert_eq!(stats.huge_pages, 16, "noise is kept raw: {stats:?}");
    assert_eq!(
        (stats.compr_data_size_bytes - 16 * 4096) % 8,
        0,
        "padded sizes are kept"
    );
}

#[test]
fn pages_that_look_random_are_kept_raw_untried() {
    let store = Store::builder().size(64 << 12).build().unwrap();
    store.write(PageIndex(0), &noise(1, 4096)).unwrap();
    store.write(PageIndex(1), &compressible(2, 4096)).unwrap();
    store.write(PageIndex(2), &same_filled(5, 4096)).unwrap();
    store.write_at(PageIndex(0), 9, b"part").unwrap();
    store.write_at(PageIndex(1), 9, b"part").unwrap();
    store.write_at(PageIndex(2), 0, &noise(3, 4095)).unwrap();
    let stats = store.stats();
    assert_eq!((stats.early_rejections, stats.huge_pages), (3, 2));
    let mut expected = noise(1, 4096);
    expected[9..13].copy_from_slice(b"part");
    assert!(read(&store, 0).unwrap() == expected);
    assert!(read(&store, 2).unwrap()[..4095] == noise(3, 4095));
}

/// The estimate cannot know what the codec knows.
#[cfg(feature = "c-codecs")]
#[test]
fn a_dictionary_compresses_pages_that_look_random() {
    for algorithm in ["lz4", "lz4hc", "zstd"] {
        let parameters = uzram::Parameters::default().dictionary(noise(1, 16384));
        let builder = Store::builder().size(64 << 12).algorithm(algorithm);
        let store = builder.parameters(parameters).build().unwrap();
        let page = &noise(1, 16384)[8000..][..4096];
        store.write(PageIndex(0), page).unwrap();
        assert!(read(&store, 0).unwrap() == page);
        let stats = store.stats();
        assert_eq!(stats.early_rejections, 0);
        assert!(stats.compr_data_size_bytes < 100, "{algorithm}: {stats:?}");
    }
}

/// Contexts are one for each CPU whatever the number of threads, and never used by two at once.
#[test]
fn state_is_never_shared() {
    let codec = Runs::default();
    let store = store_with(codec.clone());
    race_on_store(&store, 1000, &|| {});
    let listed = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    let highest = listed.trim().rsplit(['-', ',']).next().unwrap();
    let cpus = highest.parse::<usize>().unwrap() + 1;
    for made in [&codec.compressors, &codec.decompressors] {
        let made = made.load(Ordering::Relaxed);
        assert!(
            (1..=cpus).contains(&made),
            "{made} contexts for {cpus} CPUs"
        );
    }
}

/// Misbehaves as told.
#[derive(Clone, Default)]
struct Moody {
    refuse_contexts: Arc<AtomicBool>,
    refuse_pages: Arc<AtomicBool>,
    boast: Arc<AtomicBool>,
    panic_packing: Arc<AtomicBool>,
    panic_unpacking: Arc<AtomicBool>,
    malformed: Arc<AtomicBool>,
}

fn on(switch: &AtomicBool) -> bool {
    switch.load(Ordering::Relaxed)
}

fn set(switch: &AtomicBool, value: bool) {
    switch.store(value, Ordering::Relaxed);
}

impl Codec for Moody {
    fn name(&self) -> &str {
        "moody"
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        match on(&self.refuse_contexts) {
            true => Err(Error::new(ErrorKind::NoMemory, "no context today")),
            false => Ok(Box::new(self.clone())),
        }
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(self.clone())))
    }
}

impl Compressor for Moody {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        destination.fill(0xdd);
        if on(&self.panic_packing) {
            panic!("planned: while compressing");
        }
        if on(&self.refuse_pages) {
            return None;
        }
        let packed = RunsState::new().compress(source, destination);
        if on(&self.boast) {
            Some(usize::MAX)
        } else {
            packed
        }
    }
}

impl DecompressShared for Moody {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        destination.fill(0xdd);
        if on(&self.panic_unpacking) {
            panic!("planned: while decompressing");
        }
        if on(&self.malformed) {
            return Err(Malformed);
        }
        RunsState::new().decompress(source, destination)
    }
}

#[test]
fn a_codec_that_gives_up_or_lies_about_lengths_leaves_pages_raw() {
    let codec = Moody::default();
    let store = store_with(codec.clone());
    for switch in [&codec.refuse_pages, &codec.boast] {
        set(switch, true);
        store.write(PageIndex(0), &runs(1)).unwrap();
        store.write_at(PageIndex(0), 7, b"part").unwrap();
        set(switch, false);
        let mut expected = runs(1);
        expected[7..11].copy_from_slice(b"part");
        assert!(read(&store, 0).unwrap() == expected);
        assert_eq!(store.stats().huge_pages, 1);
    }
}

#[test]
fn without_a_context_writes_fail_and_everything_else_goes_on() {
    let codec = Moody::default();
    let store = store_with(codec.clone());
    set(&codec.refuse_contexts, true);
    assert_eq!(
        store.write(PageIndex(0), &runs(1)).unwrap_err().kind(),
        ErrorKind::NoMemory
    );
    assert_eq!(
        store.write_at(PageIndex(0), 1, b"x").unwrap_err().kind(),
        ErrorKind::NoMemory
    );
    store.write(PageIndex(1), &same_filled(5, 4096)).unwrap();
    assert!(read(&store, 0).unwrap() == vec![0; 4096]);
    assert_eq!(store.stats().failed_writes, 2);
    set(&codec.refuse_contexts, false);
    store.write(PageIndex(0), &runs(1)).unwrap();
    assert!(read(&store, 0).unwrap() == runs(1));
}

#[test]
fn a_page_that_does_not_unpack_is_an_error_and_no_other_bytes() {
    let codec = Moody::default();
    let store = store_with(codec.clone());
    store.write(PageIndex(0), &runs(1)).unwrap();
    set(&codec.malformed, true);
    let mut page = vec![0xee; 4096];
    assert_eq!(
        store.read(PageIndex(0), &mut page).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    assert_eq!(page, vec![0; 4096], "what the codec left behind is wiped");
    let mut part = vec![0xee; 10];
    assert_eq!(
        store
            .read_at(PageIndex(0), 3, &mut part)
            .unwrap_err()
            .kind(),
        ErrorKind::Corrupt
    );
    assert!(!part.contains(&0xdd));
    assert_eq!(
        store.write_at(PageIndex(0), 3, b"x").unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    let stats = store.stats();
    assert_eq!((stats.failed_reads, stats.failed_writes), (2, 1));
    set(&codec.malformed, false);
    assert!(
        read(&store, 0).unwrap() == runs(1),
        "the page was left alone"
    );
    set(&codec.malformed, true);
    store.write(PageIndex(0), &noise(2, 4096)).unwrap();
    assert!(
        read(&store, 0).unwrap() == noise(2, 4096),
        "a whole write repairs it"
    );
}

#[test]
fn a_codec_that_panics_takes_nobody_along() {
    let codec = Moody::default();
    let store = store_with(codec.clone());
    for index in 0..4 {
        store.write(PageIndex(index), &runs(index)).unwrap();
    }
    let before = store.stats();
    let panics = |work: &dyn Fn()| catch_unwind(AssertUnwindSafe(work)).is_err();
    let mut scratch = [0; 16];
    // More often than there are CPUs: no context may be lost to a panic either.
    for _ in 0..20 {
        set(&codec.panic_packing, true);
        assert!(panics(&|| store
            .write(PageIndex(0), &compressible(9, 4096))
            .unwrap()));
        assert!(panics(&|| store
            .write_at(PageIndex(1), 9, b"part")
            .unwrap()));
        set(&codec.panic_packing, false);
        set(&codec.panic_unpacking, true);
        assert!(panics(&|| drop(read(&store, 2))));
        assert!(panics(&|| store
            .write_at(PageIndex(3), 9, b"part")
            .unwrap()));
        assert!(panics(&|| store
            .read_at(PageIndex(3), 9, &mut [0; 16])
            .unwrap()));
        set(&codec.panic_unpacking, false);
    }
    for index in 0..4 {
        assert!(read(&store, index).unwrap() == runs(index), "page {index}");
        store.read_at(PageIndex(index), 9, &mut scratch).unwrap();
        assert_eq!(scratch, runs(index)[9..25]);
        store.write_at(PageIndex(index), 0, b"goes on").unwrap();
        store.write(PageIndex(index), &runs(index + 7)).unwrap();
        assert!(read(&store, index).unwrap() == runs(index + 7));
        store.write(PageIndex(index), &runs(index)).unwrap();
    }
    let after = store.stats();
    assert_eq!(
        after.compr_data_size_bytes, before.compr_data_size_bytes,
        "nothing leaked"
    );
    store.reset();
    assert_eq!(store.stats().mem_used_total_bytes, 0);
}
