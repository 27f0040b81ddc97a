//! LZO1X streams and their extension LZO-RLE, written from the description of the format in the
//! kernel's documentation: <https://docs.kernel.org/staging/lzo.html>.
//!
//! Speed and density are close to lz4's, with slower reads. They are here because zram has them;
//! `lzo-rle` is its default. Version 1 of the format, lzo-rle, adds an instruction for runs of
//! zeroes. The decoder takes both versions, under either name. No unsafe code.

mod compress;
mod decompress;
mod format;

use super::{
    Codec, Compressor, DecompressShared, Decompressor, Malformed, NO_DICTIONARY, Parameters,
};
use crate::error::Result;
use crate::memory;
use crate::page::Unit;

use compress::{Finder, LARGE, SMALL, Version};

pub(super) const NAME: &str = "lzo";
pub(super) const NAME_RLE: &str = "lzo-rle";

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
            ..=8192 => memory::boxed(LzoCompressor {
                finder: Finder::<SMALL>::new()?,
                version: self.version,
            })?,
            _ => memory::boxed(LzoCompressor {
                finder: Finder::<LARGE>::new()?,
                version: self.version,
            })?,
        })
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        Ok(Decompressor::Shared(memory::boxed(LzoDecoder)?))
    }
}

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
