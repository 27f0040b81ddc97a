//! Raw deflate, RFC 1951, through libdeflate. Denser than lz4, slower than zstd at its density.
//!
//! The library's window is always 32 KiB. So a smaller window is accepted only where it makes no
//! difference: when it covers the unit. The library knows no preset dictionaries. zstd with a
//! dictionary is denser and faster than deflate can be, so there is no second library for them.
//!
//! The library is called directly, because its Rust wrapper panics when there is no memory for a
//! context.

#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::ptr::NonNull;

use libdeflate_sys::{
    libdeflate_alloc_compressor, libdeflate_alloc_decompressor, libdeflate_compressor,
    libdeflate_decompressor, libdeflate_deflate_compress, libdeflate_deflate_decompress,
    libdeflate_free_compressor, libdeflate_free_decompressor, libdeflate_result_LIBDEFLATE_SUCCESS,
};

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
        Ok(memory::boxed(DeflateCompressor::new(self.level)?)?)
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        let context = memory::boxed(DeflateDecompressor::new()?)?;
        Ok(Decompressor::Stateful(context))
    }
}

struct DeflateCompressor {
    context: NonNull<libdeflate_compressor>,
}

// SAFETY: the context is memory that this value owns alone; the library ties it to no thread.
unsafe impl Send for DeflateCompressor {}

impl DeflateCompressor {
    fn new(level: i32) -> Result<DeflateCompressor> {
        memory::gate()?;
        // SAFETY: the library answers any level, one that it does not know with null.
        let context = unsafe { libdeflate_alloc_compressor(level) };
        let context = NonNull::new(context).ok_or_else(no_memory)?;
        Ok(DeflateCompressor { context })
    }
}

impl Compressor for DeflateCompressor {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        // SAFETY: the context is alive and exclusively ours; both buffers are valid for the lengths
        // given, and the library writes no more than the destination's.
        let length = unsafe {
            libdeflate_deflate_compress(
                self.context.as_ptr(),
                source.as_ptr().cast(),
                source.len(),
                destination.as_mut_ptr().cast(),
                destination.len(),
            )
        };
        // Nothing compresses to nothing: it did not fit.
        (length > 0).then_some(length)
    }
}

impl Drop for DeflateCompressor {
    fn drop(&mut self) {
        // SAFETY: the library made it, and nobody uses it any more.
        unsafe { libdeflate_free_compressor(self.context.as_ptr()) };
    }
}

struct DeflateDecompressor {
    context: NonNull<libdeflate_decompressor>,
}

// SAFETY: as the compressor's.
unsafe impl Send for DeflateDecompressor {}

impl DeflateDecompressor {
    fn new() -> Result<DeflateDecompressor> {
        memory::gate()?;
        // SAFETY: a function without arguments, which answers null if there is no memory.
        let context = unsafe { libdeflate_alloc_decompressor() };
        let context = NonNull::new(context).ok_or_else(no_memory)?;
        Ok(DeflateDecompressor { context })
    }
}

impl Decompress for DeflateDecompressor {
    fn decompress(&mut self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        // SAFETY: the context is alive and exclusively ours; both buffers are valid for the lengths
        // given, which the library checks every access against, whatever the bytes are. Without a
        // place for the length it takes nothing but a full destination for success.
        let result = unsafe {
            libdeflate_deflate_decompress(
                self.context.as_ptr(),
                source.as_ptr().cast(),
                source.len(),
                destination.as_mut_ptr().cast(),
                destination.len(),
                std::ptr::null_mut(),
            )
        };
        match result == libdeflate_result_LIBDEFLATE_SUCCESS {
            true => Ok(()),
            false => Err(Malformed),
        }
    }
}

impl Drop for DeflateDecompressor {
    fn drop(&mut self) {
        // SAFETY: the library made it, and nobody uses it any more.
        unsafe { libdeflate_free_decompressor(self.context.as_ptr()) };
    }
}

fn no_memory() -> Error {
    Error::new(
        ErrorKind::NoMemory,
        "no memory for a deflate context; free some",
    )
}
