//! Pages of known kinds, the same everywhere.
//!
//! They imitate real pages and do not replace them: quote figures from captured pages.

use crate::Rng;

/// Size of a page, in bytes.
pub const PAGE_BYTES: usize = 4096;
/// Pages of each synthetic kind.
pub const SYNTHETIC_PAGES: usize = 2048;

/// A name, and as many pages as are wanted.
pub type Named = (&'static str, Vec<u8>);

/// Fills a page.
type MakePage = fn(&mut Rng, &mut [u8]);

/// Text, the heap of a managed language, and both mixed with random pages: [`SYNTHETIC_PAGES`] of
/// each, under a name.
#[must_use]
pub fn synthetic() -> [Named; 3] {
    let make = |seed, make: MakePage| {
        let mut rng = Rng::new(seed);
        let mut bytes = vec![0; SYNTHETIC_PAGES * PAGE_BYTES];
        for page in bytes.chunks_exact_mut(PAGE_BYTES) {
            make(&mut rng, page);
        }
        bytes
    };
    [
        ("synthetic-text", make(0, text_page)),
        ("synthetic-heap", make(1, heap_page)),
        ("synthetic-mixed", make(2, mixed_page)),
    ]
}

/// Pages as fio's `buffer_compress_percentage=PERCENTAGE refill_buffers` writes them.
///
/// Of each 512 bytes (fio's default `buffer_compress_chunk`) `percentage` in a hundred are zero
/// and the others random, and no two pages are alike.
#[must_use]
pub fn fio(percentage: usize, pages: usize) -> Vec<u8> {
    const COMPRESS_CHUNK_BYTES: usize = 512;
    let random_bytes = COMPRESS_CHUNK_BYTES * (100 - percentage.min(100)) / 100;
    let mut rng = Rng::new(0x0f10);
    let mut bytes = vec![0; pages * PAGE_BYTES];
    for chunk in bytes.chunks_exact_mut(COMPRESS_CHUNK_BYTES) {
        rng.fill(&mut chunk[..random_bytes]);
    }
    bytes
}

/// Words by falling frequency, in lines with indents.
fn text_page(rng: &mut Rng, page: &mut [u8]) {
    const WORDS: usize = 700;
    let mut at = 0;
    while at < page.len() {
        // The square skews the draw to the frequent words.
        let draw = rng.below(WORDS);
        let word = draw * draw / WORDS;
        let mut letters = Rng::new(word as u64);
        let length = 2 + letters.below(3 + word / 80);
        let separator = if rng.below(9) == 0 { b'\n' } else { b' ' };
        for position in 0..=length {
            let Some(byte) = page.get_mut(at + position) else {
                break;
            };
            *byte = if position == length {
                separator
            } else {
                b'a' + letters.below(26) as u8
            };
        }
        at += length + 1;
    }
}

/// Objects of a managed heap: a type pointer, a reference count, pointers to neighbours, small
/// integers, short strings; one page in eight was freed and cleared.
fn heap_page(rng: &mut Rng, page: &mut [u8]) {
    const ARENA_BASE: u64 = 0x7f3a_5c00_0000;
    if rng.below(8) == 0 {
        page.fill(0);
        return;
    }
    let types: Vec<u64> = (0..5).map(|n| 0x55d0_1c00_a000 + n * 0x1a0).collect();
    let locality = rng.below(1 << 14) as u64 * 4096;
    for object in page.chunks_exact_mut(64) {
        for (field, bytes) in object.chunks_exact_mut(8).enumerate() {
            let word = match (field, rng.below(10)) {
                (0, _) => 1 + rng.below(3) as u64,
                (1, _) => types[rng.below(types.len())],
                (_, 0..=3) => ARENA_BASE + locality + rng.below(1 << 12) as u64 * 16,
                (_, 4..=5) => rng.below(1000) as u64,
                (_, 6) => u64::from_le_bytes(*b"name=val") ^ (rng.below(64) as u64) << 40,
                (_, 7) => rng.next(),
                _ => 0,
            };
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Half of the pages are random bytes, like compressed or encrypted data.
fn mixed_page(rng: &mut Rng, page: &mut [u8]) {
    match rng.below(4) {
        0 => text_page(rng, page),
        1 => heap_page(rng, page),
        _ => rng.fill(page),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_synthetic_pages_are_the_same_everywhere() {
        let sums = synthetic().map(|(_, pages)| {
            let filled = |page: &&[u8]| page[8..] == page[..page.len() - 8];
            let pages = pages.chunks_exact(PAGE_BYTES).filter(|page| !filled(page));
            let sum = |sum: u32, byte: &u8| sum.rotate_left(5) ^ u32::from(*byte);
            pages.flatten().fold(0u32, sum)
        });
        assert_eq!(
            sums,
            [0xdc28_f005, 0x0ad0_30c9, 0xa5e8_c37b],
            "the generators changed: older figures do not compare"
        );
    }

    #[test]
    fn fio_pages_are_half_random_half_zero_in_each_512_bytes() {
        let pages = fio(50, 4);
        for chunk in pages.chunks_exact(512) {
            assert!(chunk[256..].iter().all(|&byte| byte == 0));
            assert!(chunk[..256].iter().filter(|&&byte| byte == 0).count() < 10);
        }
        assert_ne!(pages[..4096], pages[4096..8192]);
    }
}
