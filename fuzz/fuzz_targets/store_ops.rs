//! Sequences of operations on a store against a map of pages: contents, counters, the limit; pages that are packed again
//! and pages that go to a file.

#![no_main]

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use uzram::{ColdPages, Compression, ErrorKind, PageIndex, Recompression, Store, Unit, Zeroing};

const PAGES: u64 = 16;
const OPS_MAX: usize = 200;
const COMPACTION: Duration = Duration::from_millis(10);

fn compression(which: u8) -> Arc<Compression> {
    static ALL: OnceLock<Vec<Arc<Compression>>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let pairs = uzram::algorithms()
            .into_iter()
            .flat_map(|name| [4096, 16384].map(|unit| (name, Unit::new(unit).unwrap())));
        pairs
            .map(|(name, unit)| Compression::new(name, unit).unwrap())
            .collect()
    });
    all[usize::from(which) % all.len()].clone()
}

/// The codec that packs pages again.
fn secondary(unit: usize) -> Arc<Compression> {
    static BOTH: OnceLock<[Arc<Compression>; 2]> = OnceLock::new();
    let make = |unit| Compression::new("zstd", Unit::new(unit).unwrap()).unwrap();
    let both = BOTH.get_or_init(|| [make(4096), make(16384)]);
    Arc::clone(&both[usize::from(unit > 4096)])
}

/// A file in memory, where there is such a folder: no disk is to be waited for.
fn backing_file() -> File {
    tempfile::tempfile_in("/dev/shm")
        .or_else(|_| tempfile::tempfile())
        .unwrap()
}

/// A pass over cold pages. No page changes, and none is lost.
fn cold_pass(store: &Store, input: &mut Input<'_>) {
    let (what, pages) = (input.byte(), 1 + usize::from(input.byte() & 7));
    let kind = match what >> 4 & 3 {
        0 => ColdPages::All,
        1 => ColdPages::Idle,
        2 => ColdPages::Huge,
        _ => ColdPages::Incompressible,
    };
    store.set_writeback_batch_pages(pages).unwrap();
    store.set_writeback_limit(u64::from(what));
    store.set_writeback_limit_enabled(what & 8 == 8);
    let done = match what & 7 {
        0 | 1 => return store.mark_idle(),
        2 => store.write_back_cold(kind, &mut || true).map(drop),
        3 => store
            .write_back_range(0..pages as u64, &mut || true)
            .map(drop),
        4 => {
            store.discard_backing();
            return;
        }
        _ => {
            let mut again = Recompression::new(1);
            again.pages = match kind {
                // Those are not tried again.
                ColdPages::Incompressible => ColdPages::HugeIdle,
                kind => kind,
            };
            again.threshold_bytes = usize::from(what & 8) * 256;
            again.pages_max = (what & 7 == 6).then_some(pages as u64);
            store.recompress(&again, &mut || true).map(drop)
        }
    };
    if let Err(error) = done {
        let is_at_limit = error.kind() == ErrorKind::NoSpace && store.mem_limit() > 0;
        let is_used_up = error.kind() == ErrorKind::LimitUsedUp && store.writeback_limit_enabled();
        let has_none = error.kind() == ErrorKind::InvalidInput && !store.has_backing_file();
        assert!(is_at_limit || is_used_up || has_none, "{error}");
    }
}

/// Bytes from the input: fixed-size numbers, zero after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// A content that takes few bytes to name: a word repeated, with noise in a part of it.
    fn content(&mut self, length: usize) -> Vec<u8> {
        let width = usize::from(self.byte() % 9).max(1);
        let word: Vec<u8> = (0..width).map(|_| self.byte()).collect();
        let mut bytes = word.repeat(length.div_ceil(width));
        bytes.truncate(length);
        let noisy = usize::from(self.byte()) * length / 255;
        let mut state = u64::from(self.byte()) | 1 << 40;
        for word in bytes[..noisy].chunks_mut(8) {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let noise = (state ^ state >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&noise.to_le_bytes()[..word.len()]);
        }
        bytes
    }

    fn part(&mut self, unit: usize) -> (usize, usize) {
        let (a, b) = (
            usize::from(self.word()) % (unit + 1),
            usize::from(self.word()) % (unit + 1),
        );
        (a.min(b), a.max(b))
    }

    fn zeroing(&mut self) -> Zeroing {
        if self.byte() & 1 == 0 {
            Zeroing::MayPunch
        } else {
            Zeroing::NoHole
        }
    }
}

uzram_fuzz::sanitizer_options!();

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let compression = compression(input.byte());
    let unit = compression.unit().bytes();
    let builder = Store::builder()
        .size(PAGES * unit as u64)
        .compression(compression);
    let limit = u64::from(input.byte() % 32) * 8192;
    let pools = uzram::pools();
    let pool = pools[usize::from(input.byte()) % pools.len()];
    let flags = input.byte();
    let mut builder = builder.mem_limit(limit).pool(pool).checksum(flags & 1 == 1);
    if flags & 2 == 2 {
        builder = builder
            .backing_file(backing_file())
            .compressed_writeback(flags & 4 == 4)
            .writeback_depth(1 + usize::from(flags >> 3 & 3))
            .secondary(1, secondary(unit));
    }
    let store = builder.build().unwrap();
    let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
    let zeroes = vec![0; unit];
    for _ in 0..OPS_MAX {
        if input.0.is_empty() {
            break;
        }
        let op = input.byte();
        let index = u64::from(op >> 4) % PAGES;
        let at = PageIndex(index);
        let old = model.get(&index).unwrap_or(&zeroes).clone();
        let was_hole = !model.contains_key(&index);
        let mut refusable = |done: uzram::Result<()>, new: Option<Vec<u8>>| match done {
            Ok(()) => {
                match new {
                    Some(page) => model.insert(index, page),
                    None => model.remove(&index),
                };
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                assert!(store.mem_limit() > 0);
            }
        };
        match op & 15 {
            0..4 => {
                let page = input.content(unit);
                refusable(store.write(at, &page), Some(page));
            }
            4..8 => {
                let (start, end) = input.part(unit);
                let part = input.content(end - start);
                let done = store.write_at(at, start, &part);
                if start < end {
                    let mut page = old;
                    page[start..end].copy_from_slice(&part);
                    refusable(done, Some(page));
                }
            }
            8 => {
                store.trim(at).unwrap();
                model.remove(&index);
            }
            9 => {
                let zeroing = input.zeroing();
                store.zero(at, zeroing).unwrap();
                refusable(Ok(()), (zeroing == Zeroing::NoHole).then(|| zeroes.clone()));
            }
            10 => {
                let (start, end) = input.part(unit);
                let zeroing = input.zeroing();
                let punches = zeroing == Zeroing::MayPunch && (was_hole || end - start == unit);
                let done = store.zero_at(at, start, end - start, zeroing);
                if start < end {
                    let mut page = old;
                    page[start..end].fill(0);
                    refusable(done, (!punches).then_some(page));
                }
            }
            11 => {
                let (start, end) = input.part(unit);
                let mut part = vec![0xee; end - start];
                store.read_at(at, start, &mut part).unwrap();
                assert!(part == old[start..end]);
            }
            12 => store.set_mem_limit(u64::from(input.byte()) * 1024),
            13 => drop(store.maintain(Duration::ZERO)),
            14 => match input.byte() {
                0..16 => while store.compact(COMPACTION).unwrap() {},
                77 => {
                    store.reset();
                    model.clear();
                    assert_eq!(store.stats().mem_resident_bytes, 0);
                }
                _ => cold_pass(&store, &mut input),
            },
            _ => {
                let mut page = vec![0xee; unit];
                store.read(at, &mut page).unwrap();
                assert!(page == old);
            }
        }
        let stats = store.stats();
        assert_eq!(stats.orig_data_size_bytes, (model.len() * unit) as u64);
        assert!(stats.mem_used_total_bytes >= stats.compr_data_size_bytes);
    }
    let mut page = vec![0xee; unit];
    for index in 0..PAGES {
        store.read(PageIndex(index), &mut page).unwrap();
        assert!(
            page == *model.get(&index).unwrap_or(&zeroes),
            "page {index}"
        );
        store.trim(PageIndex(index)).unwrap();
    }
    let stats = store.stats();
    assert_eq!(
        (
            stats.mem_used_total_bytes,
            stats.compr_data_size_bytes,
            stats.bd_count
        ),
        (0, 0, 0)
    );
});
