//! Recompression and writing back, beside writers, readers, trims and compaction, under every schedule that shuttle
//! makes.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use super::shuttle_tests::{COMPACTIONS, Tail, long, read, short, together};
use super::*;
use crate::codec::{Codec, Compressor, Decompressor};

/// Leaves all pages raw, so that its successor has something to gain.
struct Raw;

impl Codec for Raw {
    fn name(&self) -> &str {
        "raw"
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        Ok(Box::new(Raw))
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(Tail)))
    }
}

impl Compressor for Raw {
    fn compress(&mut self, _source: &[u8], _destination: &mut [u8]) -> Option<usize> {
        None
    }
}

fn make() -> Arc<Store> {
    let raw = Compression::with_codec(Box::new(Raw), Unit::DEFAULT).unwrap();
    let tail = Compression::with_codec(Box::new(Tail), Unit::DEFAULT).unwrap();
    let file = rustix::fs::memfd_create("backing", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let builder = Store::builder().size(4 << 12).compression(raw);
    let builder = builder.secondary(1, tail).checksum(true).writeback_depth(2);
    let store = builder.backing_file(std::fs::File::from(file)).build();
    let store = store.unwrap();
    // Several batches for a few pages.
    store.set_writeback_batch_pages(1).unwrap();
    Arc::new(store)
}

fn check(model: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(model, 2 * COMPACTIONS);
    shuttle::check_pct(model, 2 * COMPACTIONS, 3);
}

fn empty(store: &Store) {
    (0..4).for_each(|index| store.trim(PageIndex(index)).unwrap());
    let stats = store.stats();
    let left = (
        stats.mem_used_total_bytes,
        stats.orig_data_size_bytes,
        stats.compr_data_size_bytes,
    );
    assert_eq!(left, (0, 0, 0));
    let counted = (
        stats.huge_pages,
        stats.recompressed_pages,
        stats.incompressible_pages,
        stats.bd_count,
    );
    assert_eq!(counted, (0, 0, 0, 0));
}

fn recompress(store: &Store) {
    let what = Recompression::new(1);
    store.recompress(&what, &mut || true).unwrap();
}

#[test]
fn shuttle_recompression_among_writers_readers_and_trims() {
    check(|| {
        let store = make();
        for index in 0..3 {
            store.write(PageIndex(index), &short(1)).unwrap();
        }
        let (pass, writer, parts, reader) =
            (store.clone(), store.clone(), store.clone(), store.clone());
        together(vec![
            Box::new(move || recompress(&pass)),
            Box::new(move || {
                writer.write(PageIndex(0), &short(2)).unwrap();
                assert!(read(&writer, 0) == short(2));
                writer.trim(PageIndex(2)).unwrap();
                assert!(read(&writer, 2) == [0; 4096]);
            }),
            Box::new(move || {
                parts.write_at(PageIndex(1), 16, &[5; 16]).unwrap();
                let seen = read(&parts, 1);
                assert!(seen[..16] == [1; 16] && seen[16..32] == [5; 16]);
            }),
            Box::new(move || {
                assert!([short(1), short(2)].contains(&read(&reader, 0)));
                reader.mark_idle();
            }),
        ]);
        assert!(read(&store, 0) == short(2));
        assert!(read(&store, 1)[16..32] == [5; 16] && read(&store, 2) == [0; 4096]);
        empty(&store);
    });
}

/// An object moves between the two looks of a pass at its slot.
#[test]
fn shuttle_recompression_beside_compaction() {
    check(|| {
        let store = make();
        for index in 0..4 {
            store.write(PageIndex(index), &short(1)).unwrap();
        }
        let (pass, compactor, trims) = (store.clone(), store.clone(), store.clone());
        together(vec![
            Box::new(move || recompress(&pass)),
            Box::new(move || while compactor.compact(Duration::ZERO).unwrap() {}),
            Box::new(move || {
                trims.trim(PageIndex(3)).unwrap();
                assert!(read(&trims, 0) == short(1));
                trims.trim(PageIndex(1)).unwrap();
            }),
        ]);
        assert!(read(&store, 0) == short(1) && read(&store, 2) == short(1));
        assert!(read(&store, 1) == [0; 4096] && read(&store, 3) == [0; 4096]);
        empty(&store);
    });
}

#[test]
fn shuttle_both_passes_take_turns_among_writers() {
    check(|| {
        let store = make();
        for index in 0..3 {
            let page = if index == 1 { long(1) } else { short(1) };
            store.write(PageIndex(index), &page).unwrap();
        }
        let (first, second, writer) = (store.clone(), store.clone(), store.clone());
        together(vec![
            Box::new(move || recompress(&first)),
            Box::new(move || {
                let written = second.write_back_range(0..3, &mut || true);
                assert!(written.unwrap() <= 3);
                second.discard_backing();
            }),
            Box::new(move || {
                for byte in [2, 3] {
                    writer.write(PageIndex(0), &short(byte)).unwrap();
                    assert!(read(&writer, 0) == short(byte));
                }
                assert!(read(&writer, 1) == long(1) && read(&writer, 2) == short(1));
            }),
        ]);
        assert!(read(&store, 0) == short(3) && read(&store, 1) == long(1));
        assert!(read(&store, 2) == short(1));
        empty(&store);
    });
}

/// Slots are free while their pages are read, and blocks that were given back have new owners.
#[test]
fn shuttle_reads_from_the_file_among_writers_and_a_write_back() {
    check(|| {
        let store = make();
        for index in 0..3 {
            store.write(PageIndex(index), &long(1)).unwrap();
        }
        assert_eq!(store.write_back_range(0..3, &mut || true).unwrap(), 3);
        let (reader, parts, writer, pass) =
            (store.clone(), store.clone(), store.clone(), store.clone());
        together(vec![
            Box::new(move || {
                for _ in 0..2 {
                    assert!([long(1), long(2)].contains(&read(&reader, 0)));
                }
            }),
            Box::new(move || {
                parts.write_at(PageIndex(1), 16, &[5; 16]).unwrap();
                let seen = read(&parts, 1);
                assert!(seen[..16] == long(1)[..16] && seen[16..32] == [5; 16]);
            }),
            Box::new(move || {
                writer.write(PageIndex(0), &long(2)).unwrap();
                writer.write_at(PageIndex(1), 48, &[6; 16]).unwrap();
                writer.trim(PageIndex(2)).unwrap();
            }),
            Box::new(move || {
                pass.write_back_range(0..4, &mut || true).unwrap();
                pass.discard_backing();
            }),
        ]);
        let mut parts = long(1);
        parts[16..32].fill(5);
        parts[48..64].fill(6);
        assert!(read(&store, 0) == long(2) && read(&store, 1) == parts);
        assert!(read(&store, 2) == [0; 4096]);
        empty(&store);
    });
}
