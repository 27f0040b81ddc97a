//! LZO1X streams and their extension LZO-RLE, written from the description of the format in the
//! kernel's documentation: <https://docs.kernel.org/staging/lzo.html>.
//!
//! In speed and density beside lz4 at the cost of slower reads. They are here because zram has them;
//! `lzo-rle` is its default. Version 1 of the format, lzo-rle, adds an instruction for runs of zeroes.
//! The decoder takes both versions, whichever of the names it goes by. No unsafe code.

mod compress;
mod decompress;

use super::{
    Codec, Compressor, DecompressShared, Decompressor, Malformed, NO_DICTIONARY, Parameters,
};
use crate::error::Result;
use crate::page::Unit;

use compress::{Finder, Version};

pub(super) const NAME: &str = "lzo";
pub(super) const NAME_RLE: &str = "lzo-rle";

/// Ends a stream: a copy over the distance that means nothing.
const END: [u8; 3] = [17, 0, 0];

/// The first byte of a stream that says its version.
const VERSIONED: u8 = 17;

/// Nearest and farthest distances of the instructions, in bytes.
const NEAR_MAX: usize = 2048;
const MIDDLE_MAX: usize = 1 << 14;
const FAR_MIN: usize = (1 << 14) + 1;

/// Runs of zeroes in one instruction, in bytes.
const RUN_MIN: usize = 4;
const RUN_MAX: usize = 2051;

pub(super) struct Lzo {
    version: Version,
}

impl Lzo {
    pub(super) fn new(parameters: &Parameters) -> Result<Lzo> {
        refuse_parameters(parameters, NAME)?;
        Ok(Lzo {
            version: Version::Original,
        })
    }

    pub(super) fn new_rle(parameters: &Parameters) -> Result<Lzo> {
        refuse_parameters(parameters, NAME_RLE)?;
        Ok(Lzo {
            version: Version::Rle,
        })
    }
}

fn refuse_parameters(parameters: &Parameters, name: &str) -> Result<()> {
    parameters.no_level(name)?;
    parameters.no_dictionary(name, NO_DICTIONARY)
}

impl Codec for Lzo {
    fn name(&self) -> &str {
        match self.version {
            Version::Original => NAME,
            Version::Rle => NAME_RLE,
        }
    }

    fn compressor(&self, unit: Unit) -> Result<Box<dyn Compressor>> {
        Ok(match unit.bytes() {
            ..=8192 => Box::new(LzoCompressor {
                finder: Finder::<SMALL>::new()?,
                version: self.version,
            }),
            _ => Box::new(LzoCompressor {
                finder: Finder::<LARGE>::new()?,
                version: self.version,
            }),
        })
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(LzoDecoder)))
    }
}

/// Places that a compressor remembers. It forgets them page by page, which takes time, so that small
/// units get a small table.
const SMALL: usize = 1 << 12;
const LARGE: usize = 1 << 14;

struct LzoCompressor<const PLACES: usize> {
    finder: Finder<PLACES>,
    version: Version,
}

impl<const PLACES: usize> Compressor for LzoCompressor<PLACES> {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        match self.version {
            Version::Original => self.finder.compress::<false>(source, destination),
            Version::Rle => self.finder.compress::<true>(source, destination),
        }
    }
}

struct LzoDecoder;

impl DecompressShared for LzoDecoder {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        decompress::decompress(source, destination).ok_or(Malformed)
    }
}

#[cfg(test)]
mod tests;
