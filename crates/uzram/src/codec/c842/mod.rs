//! 842, the format of IBM's memory compression accelerators, in software and without unsafe code.
//!
//! It is here because zram has it and because pages that such hardware made should be readable. In
//! software it is slow for what it saves: every algorithm here is faster at its density.
//!
//! # Format
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
//! A part is the bytes themselves, or an index into the ring of the last 512 (parts of 2 bytes) or 2048
//! bytes (of 4 and 8): 8 bits for 2 and 8 bytes, 9 for 4. A ring's place keeps its content until 8 bytes
//! that cover it are complete. The CRC has the usual polynomial, highest bit first, and neither starts
//! nor ends with an inversion. 0x1d, fewer than 8 bytes, cannot occur in a page.

mod compress;
mod decompress;

use super::{
    Codec, Compressor, DecompressShared, Decompressor, Malformed, NO_DICTIONARY, Parameters,
};
use crate::error::Result;
use crate::page::Unit;

use compress::Finder;

pub(super) const NAME: &str = "842";

/// Bytes that an operation makes.
const BLOCK: usize = 8;

const OPERATION_BITS: u32 = 5;
const REPEAT: u8 = 0x1b;
const ZEROES: u8 = 0x1c;
const END: u8 = 0x1e;

const REPEAT_BITS: u32 = 6;
const REPEAT_MAX: usize = 1 << REPEAT_BITS;
const CRC_BITS: u32 = 32;

/// A stream's length is a multiple of this, in bytes.
const PADDING: usize = 8;

/// A part of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// This many bytes themselves.
    Data(usize),
    /// The index of this many bytes in their ring.
    Index(usize),
}

impl Part {
    const fn bytes(self) -> usize {
        match self {
            Part::Data(bytes) | Part::Index(bytes) => bytes,
        }
    }

    const fn bits(self) -> u32 {
        match self {
            Part::Data(bytes) => 8 * bytes as u32,
            Part::Index(4) => 9,
            Part::Index(_) => 8,
        }
    }
}

/// Bytes that indexes of parts of `bytes` bytes reach back.
const fn ring(bytes: usize) -> usize {
    bytes << Part::Index(bytes).bits()
}

const D2: Part = Part::Data(2);
const D4: Part = Part::Data(4);
const D8: Part = Part::Data(8);
const I2: Part = Part::Index(2);
const I4: Part = Part::Index(4);
const I8: Part = Part::Index(8);

/// What follows each of the first 26 operations.
const TEMPLATES: [&[Part]; 26] = [
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

pub(super) struct C842;

impl C842 {
    pub(super) fn new(parameters: &Parameters) -> Result<C842> {
        parameters.no_level(NAME)?;
        parameters.no_dictionary(NAME, NO_DICTIONARY)?;
        Ok(C842)
    }
}

impl Codec for C842 {
    fn name(&self) -> &str {
        NAME
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        Ok(Box::new(Finder::new()?))
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(Decoder)))
    }
}

impl Compressor for Finder {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        Finder::compress(self, source, destination)
    }
}

struct Decoder;

impl DecompressShared for Decoder {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        decompress::decompress(source, destination).ok_or(Malformed)
    }
}

/// The format's CRC-32.
///
/// The usual one takes the lowest bit of each byte first: it is fed bytes turned round, between
/// inversions that undo its own.
fn crc32(page: &[u8]) -> u32 {
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

#[cfg(test)]
mod tests;
