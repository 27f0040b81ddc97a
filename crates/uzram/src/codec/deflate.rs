//! Raw deflate, RFC 1951, through libdeflate. Denser than lz4, slower than zstd at its density.
//!
//! The library's window is always 32 KiB, so a smaller one is taken only where it makes no difference:
//! when it covers the unit. The library knows no preset dictionaries; zstd with one is denser and faster
//! than deflate can be, so there is no second library for them.

use std::ops::RangeInclusive;

use libdeflater::CompressionLvl;

use super::{Codec, Compressor, Decompress, Decompressor, Malformed, Parameters};
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::page::Unit;

pub(super) const NAME: &str = "deflate";

const LEVELS: RangeInclusive<i32> = 1..=12;
const LEVEL_DEFAULT: i32 = 6;
const WINDOW_BITS: i32 = 15;

pub(super) struct Deflate {
    level: i32,
}

impl Deflate {
    pub(super) fn new(parameters: &Parameters, unit: Unit) -> Result<Deflate> {
        let covers_unit = -unit.shift().cast_signed().min(WINDOW_BITS);
        parameters.winbits_within(-WINDOW_BITS..=covers_unit, -WINDOW_BITS)?;
        parameters.no_dictionary(NAME, "libdeflate has no such call; zstd, lz4 and lz4hc do")?;
        let level = parameters.level_within(NAME, LEVELS, LEVEL_DEFAULT)?;
        Ok(Deflate { level })
    }
}

impl Codec for Deflate {
    fn name(&self) -> &str {
        NAME
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        memory::gate()?;
        let level = CompressionLvl::new(self.level).map_err(|_| {
            Error::new(
                ErrorKind::Unsupported,
                format!("level {}: this libdeflate does not know it", self.level),
            )
        })?;
        let context = libdeflater::Compressor::new(level);
        Ok(Box::new(DeflateCompressor { context }))
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        memory::gate()?;
        let context = libdeflater::Decompressor::new();
        Ok(Decompressor::Stateful(Box::new(DeflateDecompressor {
            context,
        })))
    }
}

struct DeflateCompressor {
    context: libdeflater::Compressor,
}

impl Compressor for DeflateCompressor {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        self.context.deflate_compress(source, destination).ok()
    }
}

struct DeflateDecompressor {
    context: libdeflater::Decompressor,
}

impl Decompress for DeflateDecompressor {
    fn decompress(&mut self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        match self.context.deflate_decompress(source, destination) {
            Ok(length) if length == destination.len() => Ok(()),
            _ => Err(Malformed),
        }
    }
}
