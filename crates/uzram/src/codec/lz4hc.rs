//! LZ4 blocks from liblz4's high-compression search: slow to compress, as fast as lz4 to
//! decompress.
//!
//! Its state is large, 256 KiB per CPU, and keeps nothing between pages.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::ops::RangeInclusive;

use super::lz4::Lz4Decoder;
use super::lz4_dictionary::{Prepared, Search};
use super::{Codec, Compressor, Decompressor, Parameters};
use crate::error::Result;
use crate::memory;
use crate::page::Unit;
use crate::sync::Arc;

pub(super) const NAME: &str = "lz4hc";

const LEVELS: RangeInclusive<i32> = 2..=12;
const LEVEL_DEFAULT: i32 = 9;

// Functions of liblz4 1.10 that lz4-sys links but does not declare; signatures from lz4hc.h.
unsafe extern "C" {
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_initStreamHC(state: *mut c_void, size: usize) -> *mut c_void;
    fn LZ4_compress_HC_extStateHC_fastReset(
        state: *mut c_void,
        source: *const c_char,
        destination: *mut c_char,
        source_bytes: c_int,
        destination_bytes: c_int,
        level: c_int,
    ) -> c_int;
}

pub(super) struct Lz4hc {
    level: i32,
    dictionary: Option<Arc<Prepared>>,
}

impl Lz4hc {
    pub(super) fn new(parameters: &Parameters) -> Result<Lz4hc> {
        let level = parameters.level_within(NAME, LEVELS, LEVEL_DEFAULT)?;
        Ok(Lz4hc {
            level,
            dictionary: Prepared::new(parameters, Search::High(level))?,
        })
    }
}

impl Codec for Lz4hc {
    fn name(&self) -> &str {
        NAME
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        match &self.dictionary {
            Some(dictionary) => dictionary.compressor(),
            None => Ok(memory::boxed(State::new(self.level)?)?),
        }
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        match &self.dictionary {
            Some(dictionary) => dictionary.decompressor(),
            None => Ok(Decompressor::Shared(memory::boxed(Lz4Decoder)?)),
        }
    }
}

struct State {
    words: Box<[u64]>,
    level: c_int,
}

impl State {
    fn new(level: c_int) -> Result<State> {
        // SAFETY: a function without arguments that returns a constant.
        let size_bytes = unsafe { LZ4_sizeofStateHC() } as usize;
        let mut words = memory::boxed_slice(size_bytes.div_ceil(8), 0u64)?;
        // SAFETY: `words` is writable, aligned to 8 and at least `size_bytes` long.
        let stream = unsafe { LZ4_initStreamHC(words.as_mut_ptr().cast(), words.len() * 8) };
        assert!(
            !stream.is_null(),
            "liblz4 takes any buffer of its own size and alignment"
        );
        Ok(State { words, level })
    }
}

impl Compressor for State {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        // SAFETY: the state was initialised and is exclusively ours; both buffers are valid for the
        // lengths given, and the library writes no more than `destination_bytes`.
        let length = unsafe {
            LZ4_compress_HC_extStateHC_fastReset(
                self.words.as_mut_ptr().cast(),
                source.as_ptr().cast(),
                destination.as_mut_ptr().cast(),
                c_int::try_from(source.len()).ok()?,
                c_int::try_from(destination.len()).ok()?,
                self.level,
            )
        };
        usize::try_from(length).ok().filter(|length| *length > 0)
    }
}
