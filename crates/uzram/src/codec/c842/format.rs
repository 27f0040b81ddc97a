//! The format 842.
//!
//! As the kernel's header describes it:
//! <https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/lib/842/842.h>. A stream of
//! bits, the highest of each byte first. Each operation begins with 5 bits:
//!
//! | Bits | Followed by | Meaning |
//! |---|---|---|
//! | 0x00 to 0x19 | the arguments of [`TEMPLATES`] | 8 bytes, in parts of 2, 4 or 8 |
//! | 0x1b | 6 bits, N | the last 8 bytes N + 1 times more |
//! | 0x1c | | 8 zeroes |
//! | 0x1e | CRC-32 of the page, padding to 8 bytes | the end |
//!
//! A part is its bytes, or an index into a ring of the last 512 bytes (parts of 2 bytes) or 2048
//! bytes (parts of 4 and 8): 8 bits for parts of 2 and 8 bytes, 9 for 4. A ring's place keeps its
//! content until 8 bytes that cover it are complete. The CRC has the usual polynomial, highest bit
//! first, without inversions at start and end. 0x1d, fewer than 8 bytes, cannot occur in a page.

/// Bytes that one operation produces.
pub(super) const BLOCK: usize = 8;

pub(super) const OPERATION_BITS: u32 = 5;
pub(super) const REPEAT: u8 = 0x1b;
pub(super) const ZEROES: u8 = 0x1c;
pub(super) const END: u8 = 0x1e;

pub(super) const REPEAT_BITS: u32 = 6;
pub(super) const REPEAT_MAX: usize = 1 << REPEAT_BITS;
pub(super) const CRC_BITS: u32 = 32;

/// A stream's length is a multiple of this, in bytes.
pub(super) const PADDING: usize = 8;

/// A part of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// This many literal bytes.
    Data(usize),
    /// The index of this many bytes in their ring.
    Index(usize),
}

impl Part {
    pub(super) const fn bytes(self) -> usize {
        match self {
            Part::Data(bytes) | Part::Index(bytes) => bytes,
        }
    }

    pub(super) const fn bits(self) -> u32 {
        match self {
            Part::Data(bytes) => 8 * bytes as u32,
            Part::Index(4) => 9,
            Part::Index(_) => 8,
        }
    }
}

/// Size of the ring for parts of `bytes` bytes.
pub(super) const fn ring(bytes: usize) -> usize {
    bytes << Part::Index(bytes).bits()
}

pub(super) const D2: Part = Part::Data(2);
pub(super) const D4: Part = Part::Data(4);
pub(super) const D8: Part = Part::Data(8);
pub(super) const I2: Part = Part::Index(2);
pub(super) const I4: Part = Part::Index(4);
pub(super) const I8: Part = Part::Index(8);

/// The arguments of each of the first 26 operations.
pub(super) const TEMPLATES: [&[Part]; 26] = [
    &[D8],
    &[D4, D2, I2],
    &[D4, I2, D2],
    &[D4, I2, I2],
    &[D4, I4],
    &[D2, I2, D4],
    &[D2, I2, D2, I2],
    &[D2, I2, I2, D2],
    &[D2, I2, I2, I2],
    &[D2, I2, I4],
    &[I2, D2, D4],
    &[I2, D4, I2],
    &[I2, D2, I2, D2],
    &[I2, D2, I2, I2],
    &[I2, D2, I4],
    &[I2, I2, D4],
    &[I2, I2, D2, I2],
    &[I2, I2, I2, D2],
    &[I2, I2, I2, I2],
    &[I2, I2, I4],
    &[I4, D4],
    &[I4, D2, I2],
    &[I4, I2, D2],
    &[I4, I2, I2],
    &[I4, I4],
    &[I8],
];

/// The format's CRC-32.
///
/// The usual CRC takes the lowest bit of each byte first. So it is fed with reversed bytes,
/// between inversions that undo its own.
pub(super) fn crc32(page: &[u8]) -> u32 {
    const PIECE: usize = 512;
    let mut hasher = crc32fast::Hasher::new_with_initial(u32::MAX);
    let mut turned = [0; PIECE];
    for piece in page.chunks(PIECE) {
        for (to, from) in turned.iter_mut().zip(piece) {
            *to = from.reverse_bits();
        }
        hasher.update(&turned[..piece.len()]);
    }
    (!hasher.finalize()).reverse_bits()
}
