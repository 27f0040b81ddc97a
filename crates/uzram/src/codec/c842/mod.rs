//! 842, the format of IBM's memory compression accelerators, in software and without unsafe code.
//!
//! It is here because zram has it, and to read pages that such hardware compressed. In software it
//! is slow for its density: every other algorithm here is faster at the same density.
//!
//! The format is described in `format.rs`.

mod compress;
mod decompress;
mod format;

use super::{
    Codec, Compressor, DecompressShared, Decompressor, Malformed, NO_DICTIONARY, Parameters,
};
use crate::error::Result;
use crate::memory;
use crate::page::Unit;

use compress::Finder;

pub(super) const NAME: &str = "842";

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
        Ok(memory::boxed(Finder::new()?)?)
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        Ok(Decompressor::Shared(memory::boxed(Decoder)?))
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

#[cfg(test)]
mod tests;
