//! Page contents of every temper, and a small generator of numbers that a seed reproduces.

/// xorshift64*: good enough to choose operations and to make noise.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }
}

/// Bytes that no codec shrinks.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let words = (0..length.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes());
    words.take(length).collect()
}

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
