//! Eight threads on the same pages, while others mark them idle, recompress them by three codecs, write them back and
//! compact: every byte that was acknowledged stays until somebody overwrites it.
//!
//! Fails when a pass publishes its result without looking whether the page is still the one that it took.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uzram::{
    Codec, ColdPages, Compression, Compressor, DecompressShared, Decompressor, Malformed,
    PageIndex, Recompression, Store, Unit,
};

use crate::pages::Rng;
use crate::race::{PAGES, TURNS, race};

/// A codec that compresses nothing, and so leaves all to others.
struct Raw;

impl Codec for Raw {
    fn name(&self) -> &str {
        "raw"
    }

    fn compressor(&self, _unit: Unit) -> uzram::Result<Box<dyn Compressor>> {
        Ok(Box::new(Raw))
    }

    fn decompressor(&self, _unit: Unit) -> uzram::Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(Raw)))
    }
}

impl Compressor for Raw {
    fn compress(&mut self, _source: &[u8], _destination: &mut [u8]) -> Option<usize> {
        None
    }
}

impl DecompressShared for Raw {
    fn decompress(&self, _source: &[u8], _destination: &mut [u8]) -> Result<(), Malformed> {
        Err(Malformed)
    }
}

/// Three codecs above one that leaves all to them, ages, checksums, and a backing file.
fn make(compressed_writeback: bool) -> Store {
    let raw = Compression::with_codec(Box::new(Raw), Unit::DEFAULT).unwrap();
    let mut builder = Store::builder().size(PAGES << 12).compression(raw);
    for (priority, name) in [(1, "lz4"), (2, "lzo"), (3, "842")] {
        let codec = Compression::new(name, Unit::DEFAULT).unwrap();
        builder = builder.secondary(priority, codec);
    }
    let builder = builder.backing_file(tempfile::tempfile().unwrap());
    let builder = builder.checksum(true).ages(true);
    let builder = builder.compressed_writeback(compressed_writeback);
    builder.build().unwrap()
}

/// One pass of some kind.
fn pass(store: &Store, rng: &mut Rng) {
    match rng.below_u64(8) {
        0 => store.mark_idle(),
        1 => store.mark_idle_older_than(Duration::ZERO).unwrap(),
        2 => drop(store.compact(Duration::ZERO).unwrap()),
        3 => drop(store.discard_backing()),
        4 => {
            let first = rng.below_u64(PAGES - 8);
            let written = store.write_back_range(first..first + 8, &mut || true);
            assert!(written.unwrap() <= 8);
        }
        5 => {
            let kinds = [ColdPages::Idle, ColdPages::Incompressible];
            let kind = kinds[rng.below_u64(2) as usize];
            store.write_back_cold(kind, &mut || true).unwrap();
        }
        _ => {
            let what = Recompression {
                pages_max: [None, Some(20)][rng.below_u64(2) as usize],
                ..Recompression::new(1 + rng.below_u64(3) as u8)
            };
            store.recompress(&what, &mut || true).unwrap();
        }
    }
}

/// Ends the passes when the race does, in whatever way.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Trims all pages; nothing is left of them.
fn empty(store: &Store) {
    for page in 0..PAGES {
        store.trim(PageIndex(page)).unwrap();
    }
    let stats = store.stats();
    let bytes = [
        stats.mem_used_total_bytes,
        stats.orig_data_size_bytes,
        stats.compr_data_size_bytes,
    ];
    let pages = [
        stats.huge_pages,
        stats.recompressed_pages,
        stats.incompressible_pages,
        stats.bd_count,
    ];
    assert_eq!((bytes, pages), ([0; 3], [0; 4]), "{stats:?}");
    assert_eq!((stats.failed_reads, stats.bd_failed_writes), (0, 0));
    store.reset();
    assert_eq!(store.stats().mem_resident_bytes, 0);
}

#[test]
fn no_byte_is_lost_beside_passes_over_cold_pages() {
    for compressed_writeback in [true, false] {
        let store = make(compressed_writeback);
        let is_over = AtomicBool::new(false);
        let (mut recompressed, mut back) = (0, 0);
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let (store, is_over) = (&store, &is_over);
                scope.spawn(move || {
                    let mut rng = Rng::new(100 + seed);
                    while !is_over.load(Ordering::Relaxed) {
                        pass(store, &mut rng);
                    }
                });
            }
            let (store, is_over) = (&store, &is_over);
            let (recompressed, back) = (&mut recompressed, &mut back);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let stats = store.stats();
                    *recompressed = stats.recompressed_pages.max(*recompressed);
                    *back = stats.bd_count.max(*back);
                    std::thread::yield_now();
                }
            });
            let _over = Over(is_over);
            race(store, TURNS, &|| {});
        });
        // Only now: what a pass has in its hands is memory too.
        empty(&store);
        assert!(recompressed > 10 && back > 10, "{recompressed}, {back}");
    }
}
