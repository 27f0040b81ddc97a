//! LZ4 blocks: <https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md>.
//!
//! With C codecs this is liblz4's fast compressor (acceleration 1) with a reused state, whose
//! reset costs nothing between pages; otherwise lz4_flex.

#![allow(unsafe_code)]

use super::{Codec, Compressor, DecompressShared, Decompressor, Malformed};
use crate::error::Result;
use crate::page::Unit;

pub(super) const NAME: &str = "lz4";

pub(super) struct Lz4;

impl Codec for Lz4 {
    fn name(&self) -> &str {
        NAME
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        Ok(Box::new(imp::State::new()?))
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(Lz4)))
    }
}

impl DecompressShared for Lz4 {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        match imp::decompress(source, destination) {
            Some(length) if length == destination.len() => Ok(()),
            _ => Err(Malformed),
        }
    }
}

#[cfg(feature = "c-codecs")]
mod imp {
    use std::ffi::{c_char, c_int, c_void};

    use crate::codec::Compressor;
    use crate::error::Result;
    use crate::memory;

    const ACCELERATION: c_int = 1;

    // Functions of liblz4 1.10 that lz4-sys links but does not declare; signatures from lz4.h.
    unsafe extern "C" {
        fn LZ4_sizeofState() -> c_int;
        fn LZ4_initStream(state: *mut c_void, size: usize) -> *mut c_void;
        fn LZ4_compress_fast_extState_fastReset(
            state: *mut c_void,
            source: *const c_char,
            destination: *mut c_char,
            source_bytes: c_int,
            destination_bytes: c_int,
            acceleration: c_int,
        ) -> c_int;
    }

    pub(super) struct State {
        words: Box<[u64]>,
    }

    impl State {
        pub(super) fn new() -> Result<State> {
            // SAFETY: a function without arguments that returns a constant.
            let size_bytes = unsafe { LZ4_sizeofState() } as usize;
            let mut words = memory::boxed_slice(size_bytes.div_ceil(8), 0u64)?;
            // SAFETY: `words` is writable, aligned to 8 and at least `size_bytes` long.
            let stream = unsafe { LZ4_initStream(words.as_mut_ptr().cast(), words.len() * 8) };
            assert!(
                !stream.is_null(),
                "liblz4 takes any buffer of its own size and alignment"
            );
            Ok(State { words })
        }
    }

    impl Compressor for State {
        fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
            // SAFETY: the state was initialised and is exclusively ours; both buffers are valid
            // for the lengths given, and the library writes no more than `destination_bytes`.
            let length = unsafe {
                LZ4_compress_fast_extState_fastReset(
                    self.words.as_mut_ptr().cast(),
                    source.as_ptr().cast(),
                    destination.as_mut_ptr().cast(),
                    c_int::try_from(source.len()).ok()?,
                    c_int::try_from(destination.len()).ok()?,
                    ACCELERATION,
                )
            };
            usize::try_from(length).ok().filter(|length| *length > 0)
        }
    }

    pub(super) fn decompress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
        // SAFETY: both buffers are valid for the lengths given; the library checks every read and
        // write against them, whatever the bytes are.
        let length = unsafe {
            lz4_sys::LZ4_decompress_safe(
                source.as_ptr().cast(),
                destination.as_mut_ptr().cast(),
                c_int::try_from(source.len()).ok()?,
                c_int::try_from(destination.len()).ok()?,
            )
        };
        usize::try_from(length).ok()
    }
}

#[cfg(not(feature = "c-codecs"))]
mod imp {
    use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};

    use crate::codec::Compressor;
    use crate::error::Result;
    use crate::memory;

    pub(super) struct State {
        table: CompressTable,
    }

    impl State {
        pub(super) fn new() -> Result<State> {
            memory::gate()?;
            Ok(State {
                table: CompressTable::small(),
            })
        }
    }

    impl Compressor for State {
        fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
            compress_into_with_table(source, destination, &mut self.table).ok()
        }
    }

    pub(super) fn decompress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
        decompress_into(source, destination).ok()
    }
}
