//! Page contents of every temper, which a seed reproduces.

#[allow(unused_imports, reason = "not every test program needs both")]
pub use uzram_testkit::{Rng, noise};

/// Bytes that every codec shrinks to about a third: noise between repetitions.
pub fn compressible(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = Vec::with_capacity(length + 64);
    while bytes.len() < length {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
        bytes.extend_from_slice(b"uzram keeps pages ");
    }
    bytes.truncate(length);
    bytes
}

/// One 32-bit word, repeated.
pub fn same_filled(word: u32, length: usize) -> Vec<u8> {
    word.to_ne_bytes()
        .into_iter()
        .cycle()
        .take(length)
        .collect()
}

/// One 64-bit word with unequal halves, repeated: looks same-filled and is not.
pub fn odd_filled(word: u64, length: usize) -> Vec<u8> {
    let word = if word as u32 == (word >> 32) as u32 {
        word ^ 1
    } else {
        word
    };
    word.to_ne_bytes()
        .into_iter()
        .cycle()
        .take(length)
        .collect()
}

/// Whether a page repeats one 32-bit word, told the slow way.
pub fn is_same_filled(page: &[u8]) -> bool {
    page.chunks(4).all(|word| word == &page[..4])
}
