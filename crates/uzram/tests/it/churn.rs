//! Pages of other sizes come and go for long: a pool takes no more memory for them than for the first ones.
//!
//! Each page names its compressed size, which the codec keeps to, so that the sizes are exact.

use uzram::{
    Codec, Compression, Compressor, DecompressShared, Decompressor, Malformed, PageIndex, Result,
    Store, Unit,
};

use crate::memory::{slack_bytes, usage};

const PAGE_BYTES: usize = 4096;

/// Where a page says how many of its bytes the codec keeps, in its last two bytes.
const LENGTH_AT: usize = PAGE_BYTES - 2;

const PAGES: usize = 4_000;
const TIDES: u64 = 6;

/// Size of all pages uncompressed and a block per CPU: the new object of a page is stored before the old one goes.
const RAW_BYTES_MAX: u64 = (PAGES * PAGE_BYTES) as u64 + (1 << 20);

/// Memory comes and goes in spans, and where a tide's peak lies among them is chance.
const SPAN_BYTES: u64 = 2 << 20;

/// Bookkeeping of so few pages: a few pages more or less.
const SIDE_BYTES: u64 = 64 << 10;

/// How many bytes of a page are kept, from a random number; the first are small, the third ones mostly raw.
const SIZES: [fn(u64) -> u64; 4] = [
    |draw| 1 + draw % 300,
    |draw| 600 + draw % 1500,
    |draw| 2500 + draw % 1597,
    |draw| 1 + draw % 4096,
];

/// Overwrites pages of every pool, in tides of sizes.
pub fn churn() {
    for name in uzram::pools() {
        churn_in(name);
    }
}

fn churn_in(name: &str) {
    let codec = Compression::with_codec(Box::new(Told), Unit::DEFAULT).unwrap();
    let builder = Store::builder().size(256 << 20).pool(name);
    let store = builder.compression(codec).build().unwrap();
    let mut sizes = vec![0; PAGES];
    let base = usage();
    let mut draws = (1u64..).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20);
    let mut draw = || draws.next().unwrap();
    let (mut high_bytes, mut high_side_bytes) = (0, 0);
    for tide in 0..TIDES {
        for size in SIZES {
            for _ in 0..2 * PAGES {
                let index = draw() as usize % PAGES;
                overwrite(&store, index, &mut sizes[index], size(draw()) as usize);
            }
        }
        let stats = store.stats();
        let over = usage().saturating_sub(base);
        println!("{name}, tide {tide}: {} KiB by the system", over >> 10);
        assert!(
            stats.mem_used_total_bytes <= RAW_BYTES_MAX,
            "{name}: {stats:?}"
        );
        let said = stats.mem_resident_bytes + stats.side_tables_bytes;
        let slack = slack_bytes() + over / 512;
        assert!(
            over <= said + slack,
            "{name}: {over} is more than {stats:?}"
        );
        match tide {
            // The first fills it, the second meets what the first left.
            0 | 1 => {
                high_bytes = high_bytes.max(over);
                high_side_bytes = high_side_bytes.max(stats.side_tables_bytes);
            }
            _ => {
                let grown = over > high_bytes + slack_bytes() + SPAN_BYTES;
                let side_grown = stats.side_tables_bytes > high_side_bytes * 5 / 4 + SIDE_BYTES;
                assert!(!grown, "{name}: {over} after {high_bytes}, {stats:?}");
                assert!(!side_grown, "{name}: {stats:?} after {high_side_bytes}");
            }
        }
    }
    store.reset();
    let stats = store.stats();
    let left = (stats.mem_used_total_bytes, stats.mem_resident_bytes);
    assert_eq!(left, (0, 0), "{name}");
    let over = usage().saturating_sub(base);
    let slack = slack_bytes() + stats.side_tables_bytes;
    assert!(over <= slack, "{name}: {over} bytes stay of nothing");
}

/// Replaces a page, which must still be as it was written, by one of which `size` bytes are kept.
fn overwrite(store: &Store, index: usize, old_size: &mut usize, size: usize) {
    let place = PageIndex(index as u64);
    if *old_size > 0 {
        let mut old = [0xee; PAGE_BYTES];
        store.read(place, &mut old).unwrap();
        assert!(
            old == page(index, *old_size),
            "page {index} is not as it was"
        );
    }
    store.write(place, &page(index, size)).unwrap();
    *old_size = size;
}

/// A page that begins with its index, of which `size` bytes are kept.
fn page(index: usize, size: usize) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    page[..size].fill(index as u8 | 1);
    let name = (index as u64).to_le_bytes();
    let named = size.min(name.len());
    page[..named].copy_from_slice(&name[..named]);
    page[LENGTH_AT..].copy_from_slice(&(size as u16).to_le_bytes());
    page
}

/// Keeps as many bytes as the page says, and none of the zeroes behind.
struct Told;

impl Codec for Told {
    fn name(&self) -> &str {
        "told"
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        Ok(Box::new(Told))
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(Told)))
    }
}

impl Compressor for Told {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        let size = usize::from(u16::from_le_bytes([
            source[LENGTH_AT],
            source[LENGTH_AT + 1],
        ]));
        let kept = source[..LENGTH_AT].get(..size)?;
        destination[..size].copy_from_slice(kept);
        Some(size)
    }
}

impl DecompressShared for Told {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        destination.fill(0);
        destination[..source.len()].copy_from_slice(source);
        destination[LENGTH_AT..].copy_from_slice(&(source.len() as u16).to_le_bytes());
        Ok(())
    }
}
