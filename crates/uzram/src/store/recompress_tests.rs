//! Recompression: what it takes, what it leaves, and what happens between its two locks.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::codec::{Codec, Compressor, DecompressShared, Decompressor, Malformed};
use crate::config::StoreBuilder;
use crate::store::fault_tests::{compressible, noise};
use crate::store::recover_tests::{config, make as make_apart};
use crate::{PageState, Store, Unit, Zeroing};

const PAGES: u64 = 16;

/// Drops the zeroes at a page's end: a codec that leaves much to gain.
pub(in crate::store) struct Tail;

impl Codec for Tail {
    fn name(&self) -> &str {
        "tail"
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        Ok(Box::new(Tail))
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(Tail)))
    }
}

impl Compressor for Tail {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        let length = source.len() - source.iter().rev().take_while(|byte| **byte == 0).count();
        destination[..length].copy_from_slice(&source[..length]);
        Some(length)
    }
}

impl DecompressShared for Tail {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        destination.fill(0);
        let start = destination.get_mut(..source.len()).ok_or(Malformed)?;
        start.copy_from_slice(source);
        Ok(())
    }
}

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// The codec lz4, before whose next compression something else happens.
struct Hooked {
    hook: Hook,
    codec: Arc<Compression>,
}

impl Codec for Hooked {
    fn name(&self) -> &str {
        "hooked"
    }

    fn compressor(&self, unit: Unit) -> Result<Box<dyn Compressor>> {
        let (hook, compressor) = (self.hook.clone(), self.codec.codec().compressor(unit)?);
        Ok(Box::new(HookedCompressor { hook, compressor }))
    }

    fn decompressor(&self, unit: Unit) -> Result<Decompressor> {
        self.codec.codec().decompressor(unit)
    }
}

struct HookedCompressor {
    hook: Hook,
    compressor: Box<dyn Compressor>,
}

impl Compressor for HookedCompressor {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        let action = self.hook.lock().unwrap().take();
        if let Some(action) = action {
            action();
        }
        self.compressor.compress(source, destination)
    }
}

fn builder() -> StoreBuilder {
    let tail = Compression::with_codec(Box::new(Tail), Unit::DEFAULT).unwrap();
    Store::builder().size(PAGES * 4096).compression(tail)
}

fn lz4() -> Arc<Compression> {
    Compression::new("lz4", Unit::DEFAULT).unwrap()
}

/// A page that its first codec leaves at 3500 bytes.
fn page(seed: u64) -> Vec<u8> {
    let mut page = compressible(seed, 4096);
    page[3500..].fill(0);
    page
}

fn fill(store: &Store) {
    for index in 0..PAGES {
        store.write(PageIndex(index), &page(index)).unwrap();
    }
}

fn read(store: &Store, index: u64) -> Vec<u8> {
    let mut page = vec![0xee; 4096];
    store.read(PageIndex(index), &mut page).unwrap();
    page
}

fn size_bytes(store: &Store, index: u64) -> usize {
    match store.state(PageIndex(index)).unwrap() {
        PageState::Compressed { size_bytes } => size_bytes as usize,
        PageState::Raw => 4096,
        state => panic!("page {index} is {state:?}"),
    }
}

fn run(store: &Store, what: Recompression) -> (u64, u64) {
    let done = store.recompress(&what, &mut || true).unwrap();
    (done.pages_tried, done.pages_replaced)
}

#[test]
fn pages_get_smaller_and_stay_what_they_were() {
    for checksum in [false, true] {
        let store = builder().checksum(checksum).secondary(1, lz4());
        let store = store.build().unwrap();
        fill(&store);
        let before = store.stats();
        assert_eq!(run(&store, Recompression::new(1)), (PAGES, PAGES));
        let stats = store.stats();
        assert_eq!(stats.recompressed_pages, PAGES);
        assert_eq!(stats.orig_data_size_bytes, before.orig_data_size_bytes);
        assert!(stats.compr_data_size_bytes * 2 < before.compr_data_size_bytes);
        let total: usize = (0..PAGES).map(|index| size_bytes(&store, index)).sum();
        assert_eq!(stats.compr_data_size_bytes, total as u64);
        assert_eq!(run(&store, Recompression::new(1)), (0, 0), "done already");
        for index in 0..PAGES {
            assert!(read(&store, index) == page(index));
            let mut part = [0; 50];
            store.read_at(PageIndex(index), 70, &mut part).unwrap();
            assert_eq!(part, page(index)[70..120]);
        }
        // Parts are written over it, whole pages come anew by the first codec.
        store.write_at(PageIndex(3), 10, &[7; 5]).unwrap();
        let mut changed = page(3);
        changed[10..15].fill(7);
        assert!(read(&store, 3) == changed);
        store.write(PageIndex(4), &page(40)).unwrap();
        assert_eq!(size_bytes(&store, 4), 3500);
        assert_eq!(store.stats().recompressed_pages, PAGES - 2);
        let state = |index| store.block_state_from(index).unwrap().to_string();
        assert!(state(5).ends_with(" ....r.") && state(4).ends_with(" ......"));
        store.reset();
        let stats = store.stats();
        assert_eq!(
            (stats.recompressed_pages, stats.compr_data_size_bytes),
            (0, 0)
        );
    }
}

#[test]
fn a_priority_says_which_codec_reads_the_page() {
    let lzo = Compression::new("lzo", Unit::DEFAULT).unwrap();
    let store = builder().secondary(1, lzo).secondary(3, lz4());
    let store = store.build().unwrap();
    fill(&store);
    assert_eq!(store.secondary_priority("lz4"), Some(3));
    assert_eq!(store.secondary_priority("lzo"), Some(1));
    assert_eq!(store.secondary_priority("zstd"), None);
    for index in [0, 1] {
        store.write(PageIndex(index), &[9; 4096]).unwrap();
    }
    let some = Recompression {
        pages_max: Some(5),
        ..Recompression::new(1)
    };
    assert_eq!(run(&store, some), (5, 5));
    let (tried, replaced) = run(&store, Recompression::new(3));
    assert_eq!(tried, PAGES - 2);
    assert_eq!(replaced, PAGES - 2);
    // A codec of a lower priority does not get them back.
    assert_eq!(run(&store, Recompression::new(1)), (0, 0));
    for index in 2..PAGES {
        assert!(read(&store, index) == page(index));
    }
}

#[test]
fn only_pages_that_are_named_are_tried_and_the_largest_first() {
    let store = builder().secondary(1, lz4()).build().unwrap();
    let sized = |index: u64| {
        let mut page = page(index);
        page[1700 + 200 * index as usize..].fill(0);
        page
    };
    for index in 0..10 {
        store.write(PageIndex(index), &sized(index)).unwrap();
    }
    // Kept raw by the first codec only.
    let mut huge = compressible(10, 4096);
    huge[4095] = 1;
    for index in [10, 11] {
        store.write(PageIndex(index), &huge).unwrap();
    }
    store.mark_idle();
    for index in [0, 1, 11] {
        read(&store, index);
    }
    let recompressed = || -> Vec<u64> {
        let is = |index: &u64| {
            let state = store.block_state_from(*index).unwrap();
            state.index == *index && state.is_recompressed
        };
        (0..12).filter(is).collect()
    };
    let base = Recompression::new(1);
    let huge_idle = Recompression {
        pages: ColdPages::HugeIdle,
        ..base
    };
    assert_eq!(run(&store, huge_idle), (1, 1));
    assert_eq!(recompressed(), [10]);
    let huge = Recompression {
        pages: ColdPages::Huge,
        ..base
    };
    assert_eq!(run(&store, huge), (1, 1));
    assert_eq!(recompressed(), [10, 11]);
    let largest_idle = Recompression {
        pages: ColdPages::Idle,
        pages_max: Some(2),
        ..base
    };
    assert_eq!(run(&store, largest_idle), (2, 2));
    assert_eq!(recompressed(), [8, 9, 10, 11]);
    let large = Recompression {
        threshold_bytes: 2500,
        ..base
    };
    assert_eq!(run(&store, large), (4, 4), "4 to 7");
    assert_eq!(recompressed(), [4, 5, 6, 7, 8, 9, 10, 11]);
    let mut asked = 0;
    let mut twice = || {
        asked += 1;
        asked < 3
    };
    let done = store.recompress(&base, &mut twice).unwrap();
    assert_eq!(done.pages_tried, 2);
    // A try takes the mark.
    let idle = (0..12).filter(|index| store.block_state_from(*index).unwrap().is_idle);
    assert_eq!(idle.count(), 2);
}

#[test]
fn a_result_above_the_threshold_is_not_kept() {
    let store = builder().secondary(1, lz4()).build().unwrap();
    fill(&store);
    let tight = Recompression {
        threshold_bytes: 100,
        ..Recompression::new(1)
    };
    assert_eq!(run(&store, tight), (PAGES, 0));
    assert_eq!(store.stats().incompressible_pages, 0, "they do get smaller");
    assert_eq!(size_bytes(&store, 3), 3500);
}

#[test]
fn what_no_codec_makes_smaller_is_marked_and_not_tried_again() {
    let hook = Hook::default();
    let weak = Compression::with_codec(Box::new(Tail), Unit::DEFAULT).unwrap();
    let hooked = Hooked { hook, codec: lz4() };
    let strong = Compression::with_codec(Box::new(hooked), Unit::DEFAULT).unwrap();
    let store = builder().secondary(1, weak).secondary(2, strong);
    let store = store.build().unwrap();
    fill(&store);
    store.write(PageIndex(0), &noise(1, 4096)).unwrap();
    assert_eq!(run(&store, Recompression::new(1)), (PAGES, 0));
    assert_eq!(store.stats().incompressible_pages, 0, "another is left");
    assert_eq!(run(&store, Recompression::new(2)), (PAGES, PAGES - 1));
    assert_eq!(store.stats().incompressible_pages, 1);
    assert_eq!(store.stats().huge_pages, 1);
    assert_eq!(run(&store, Recompression::new(2)), (0, 0));
    let state = store.block_state_from(0).unwrap().to_string();
    assert!(state.ends_with(" ..h..n"), "{state}");
    assert!(read(&store, 0) == noise(1, 4096), "a read leaves the mark");
    assert_eq!(store.stats().incompressible_pages, 1);
    store.write(PageIndex(0), &page(1)).unwrap();
    assert_eq!(store.stats().incompressible_pages, 0);
    assert_eq!(run(&store, Recompression::new(2)), (1, 1));
}

/// The names of what happens while page 3 is packed, whether its smaller object may be published then, and what the page
/// holds afterwards.
#[test]
fn what_happens_while_a_page_is_packed_is_not_undone() {
    type Act = fn(&Store);
    let new = || page(100);
    let mut patched = page(3);
    patched[5..8].fill(1);
    let compact: Act = |store| {
        (0..3).for_each(|index| store.trim(PageIndex(index)).unwrap());
        while store.compact(Duration::from_secs(1)).unwrap() {}
    };
    let cases: [(&str, Act, bool, Vec<u8>); 8] = [
        ("nothing", |_| {}, true, page(3)),
        ("a read", |store| drop(read(store, 3)), true, page(3)),
        (
            "a write",
            |store| store.write(PageIndex(3), &page(100)).unwrap(),
            false,
            new(),
        ),
        (
            "a part",
            |store| store.write_at(PageIndex(3), 5, &[1; 3]).unwrap(),
            false,
            patched,
        ),
        (
            "zeroes",
            |store| store.zero(PageIndex(3), Zeroing::NoHole).unwrap(),
            false,
            vec![0; 4096],
        ),
        (
            "a trim",
            |store| store.trim(PageIndex(3)).unwrap(),
            false,
            vec![0; 4096],
        ),
        ("a reset", Store::reset, false, vec![0; 4096]),
        ("compaction", compact, true, page(3)),
    ];
    for (name, act, is_replaced, after) in cases {
        let hook = Hook::default();
        let hooked = Hooked {
            hook: hook.clone(),
            codec: lz4(),
        };
        let hooked = Compression::with_codec(Box::new(hooked), Unit::DEFAULT).unwrap();
        let store = Arc::new(builder().secondary(1, hooked).build().unwrap());
        (0..4).for_each(|index| store.write(PageIndex(index), &page(index)).unwrap());
        store.mark_idle();
        (0..3).for_each(|index| drop(read(&store, index)));
        let other = store.clone();
        *hook.lock().unwrap() = Some(Box::new(move || act(&other)));
        let idle = Recompression {
            pages: ColdPages::Idle,
            ..Recompression::new(1)
        };
        assert_eq!(run(&store, idle), (1, u64::from(is_replaced)), "{name}");
        assert!(read(&store, 3) == after, "{name}");
        let is_marked = store.inner.table.seen(PageIndex(3)).flags().is_marked();
        assert!(!is_marked, "{name}");
        let objects = (0..4).filter(|n| store.inner.table.seen(PageIndex(*n)).has_object());
        let bytes: usize = objects.map(|index| size_bytes(&store, index)).sum();
        let stats = store.stats();
        assert_eq!(stats.compr_data_size_bytes, bytes as u64, "{name}");
        (0..4).for_each(|index| store.trim(PageIndex(index)).unwrap());
        let stats = store.stats();
        assert_eq!(
            (stats.mem_used_total_bytes, stats.recompressed_pages),
            (0, 0),
            "{name}: a leak"
        );
    }
}

/// Also if the codec panics: nothing is left marked.
#[test]
fn a_codec_that_panics_leaves_the_page_whole() {
    let hook = Hook::default();
    let hooked = Hooked {
        hook: hook.clone(),
        codec: lz4(),
    };
    let hooked = Compression::with_codec(Box::new(hooked), Unit::DEFAULT).unwrap();
    let store = builder().secondary(1, hooked).build().unwrap();
    fill(&store);
    *hook.lock().unwrap() = Some(Box::new(|| panic!("told to")));
    let store = std::panic::AssertUnwindSafe(store);
    let ended = std::panic::catch_unwind(|| store.recompress(&Recompression::new(1), &mut || true));
    assert!(ended.is_err());
    assert!(!store.inner.table.seen(PageIndex(0)).flags().is_marked());
    assert!((0..PAGES).all(|index| read(&store, index) == page(index)));
    assert_eq!(run(&store, Recompression::new(1)), (PAGES, PAGES));
}

#[test]
fn wrong_wishes_are_refused_in_words() {
    let store = builder().secondary(1, lz4()).build().unwrap();
    let refused = |what: Recompression| {
        let error = store.recompress(&what, &mut || true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        error.to_string()
    };
    for priority in [0, 2, 3, 4, 255] {
        let text = refused(Recompression::new(priority));
        assert!(text.contains(&format!("priority {priority}: no")), "{text}");
    }
    let base = Recompression::new(1);
    let text = refused(Recompression {
        threshold_bytes: 4096,
        ..base
    });
    assert!(text.contains("threshold 4096: "), "{text}");
    let text = refused(Recompression {
        pages: ColdPages::Incompressible,
        ..base
    });
    assert!(text.contains("not tried again"), "{text}");
    for priority in [0, 4] {
        let error = builder().secondary(priority, lz4()).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    let large = Compression::new("lz4", Unit::new(16384).unwrap()).unwrap();
    let error = builder().secondary(1, large).build().unwrap_err();
    assert!(error.to_string().contains("unit 4K"), "{error}");
}

/// Each allocation of a pass fails once. Pages stay what they were, and the next pass does the rest.
#[test]
fn any_failed_allocation_of_a_pass_leaves_whole_pages() {
    for allowed in 0.. {
        let store = builder().secondary(1, lz4()).build().unwrap();
        fill(&store);
        // A spare would serve what is to fail.
        store.inner.pool.trim(crate::pool::Parts::Stay);
        crate::memory::fault::fail_after(allowed);
        let done = store.recompress(&Recompression::new(1), &mut || true);
        let was_spared = crate::memory::fault::disarm();
        assert!((0..PAGES).all(|index| read(&store, index) == page(index)));
        let again = run(&store, Recompression::new(1)).1;
        assert_eq!(store.stats().recompressed_pages, PAGES);
        if done.is_ok() {
            assert!(again == 0 && allowed > 2, "{allowed} allocations");
            return;
        }
        assert!(again > 0 && !was_spared);
    }
}

/// At the limit a pass says so, and what it did before stays.
#[test]
fn a_pass_keeps_within_the_limit() {
    let store = builder().secondary(1, lz4()).build().unwrap();
    fill(&store);
    let used_bytes = store.stats().mem_used_total_bytes;
    store.set_mem_limit(used_bytes);
    store.reset_mem_used_max();
    match store.recompress(&Recompression::new(1), &mut || true) {
        Ok(done) => assert_eq!(done.pages_replaced, PAGES),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
    }
    assert!(store.stats().mem_used_max_bytes <= used_bytes);
    assert!((0..PAGES).all(|index| read(&store, index) == page(index)));
}

/// Objects of several codecs, in memory that outlives its process.
#[test]
fn a_rebuilt_store_knows_each_pages_codec() {
    let make_config = || {
        let mut config = config(PAGES, Unit::DEFAULT, "lz4", true);
        config.compression = Compression::with_codec(Box::new(Tail), Unit::DEFAULT).unwrap();
        config.secondaries[1] = Some(lz4());
        config
    };
    let (before, files) = make_apart(make_config());
    fill(&before);
    before.write(PageIndex(0), &noise(1, 4096)).unwrap();
    let done = before
        .recompress(&Recompression::new(2), &mut || true)
        .unwrap();
    assert!(done.pages_replaced > 0);
    before.mark_idle();
    let stats = before.stats();
    let shown: Vec<_> = (0..PAGES)
        .map(|n| before.block_state_from(n).unwrap())
        .collect();
    drop(before);
    let (store, _) = Store::recover(make_config(), files.remains()).unwrap();
    assert_eq!(store.stats().recompressed_pages, stats.recompressed_pages);
    assert_eq!(
        store.stats().incompressible_pages,
        stats.incompressible_pages
    );
    assert!(stats.incompressible_pages > 0);
    for (index, shown) in (0..PAGES).zip(shown) {
        assert_eq!(store.block_state_from(index).unwrap(), shown);
        let expected = if index == 0 {
            noise(1, 4096)
        } else {
            page(index)
        };
        assert!(read(&store, index) == expected);
    }
}
