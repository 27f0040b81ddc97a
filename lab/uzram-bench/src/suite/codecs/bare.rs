//! The libraries called directly, with the parameters and the reused state that the engine uses: what
//! its interface costs beyond them.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat};

use super::contender::Contender;
use crate::error::{Error, Result};

/// The engine's defaults.
const LZ4_ACCELERATION: c_int = 1;
const LZ4HC_LEVEL: c_int = 9;
const ZSTD_LEVEL: c_int = 3;
const DEFLATE_LEVEL: i32 = 6;

// Functions of liblz4 1.10 that lz4-sys links but does not declare; signatures from lz4.h and lz4hc.h.
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

/// The library of `algorithm`, if that is not the engine's own code.
pub(super) fn library(algorithm: &str) -> Result<Option<Box<dyn Contender>>> {
    Ok(Some(match algorithm {
        "lz4" => Box::new(Lz4::new("bare-lz4", LZ4)),
        "lz4hc" => Box::new(Lz4::new("bare-lz4hc", LZ4HC)),
        "zstd" => Box::new(Zstd::new()?),
        "deflate" => Box::new(Deflate::new()?),
        _ => return Ok(None),
    }))
}

/// The functions of liblz4 around a state, and the effort that the last of them takes.
struct Functions {
    state_bytes: unsafe extern "C" fn() -> c_int,
    make: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    compress:
        unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_char, c_int, c_int, c_int) -> c_int,
    effort: c_int,
}

const LZ4: Functions = Functions {
    state_bytes: LZ4_sizeofState,
    make: LZ4_initStream,
    compress: LZ4_compress_fast_extState_fastReset,
    effort: LZ4_ACCELERATION,
};
const LZ4HC: Functions = Functions {
    state_bytes: LZ4_sizeofStateHC,
    make: LZ4_initStreamHC,
    compress: LZ4_compress_HC_extStateHC_fastReset,
    effort: LZ4HC_LEVEL,
};

struct Lz4 {
    name: &'static str,
    functions: Functions,
    state: Box<[u64]>,
}

impl Lz4 {
    fn new(name: &'static str, functions: Functions) -> Lz4 {
        // SAFETY: a function without arguments that returns a constant.
        let size_bytes = unsafe { (functions.state_bytes)() } as usize;
        let mut state = vec![0u64; size_bytes.div_ceil(8)].into_boxed_slice();
        // SAFETY: the state is writable, aligned to 8 and as long as said.
        let made = unsafe { (functions.make)(state.as_mut_ptr().cast(), state.len() * 8) };
        assert!(!made.is_null(), "liblz4 takes a buffer of its own size");
        Lz4 {
            name,
            functions,
            state,
        }
    }
}

impl Contender for Lz4 {
    fn name(&self) -> &str {
        self.name
    }

    fn compress(&mut self, page: &[u8], packed: &mut [u8]) -> Option<usize> {
        // SAFETY: the state was initialised by the function beside this one and is ours alone; the buffers are
        // valid for the lengths given.
        let length = unsafe {
            (self.functions.compress)(
                self.state.as_mut_ptr().cast(),
                page.as_ptr().cast(),
                packed.as_mut_ptr().cast(),
                page.len() as c_int,
                packed.len() as c_int,
                self.functions.effort,
            )
        };
        usize::try_from(length).ok().filter(|length| *length > 0)
    }

    fn decompress(&mut self, packed: &[u8], page: &mut [u8]) -> Option<()> {
        lz4_decompress(packed, page)
    }
}

fn lz4_decompress(packed: &[u8], page: &mut [u8]) -> Option<()> {
    // SAFETY: the buffers are valid for the lengths given, which the library keeps to.
    let length = unsafe {
        lz4_sys::LZ4_decompress_safe(
            packed.as_ptr().cast(),
            page.as_mut_ptr().cast(),
            packed.len() as c_int,
            page.len() as c_int,
        )
    };
    (usize::try_from(length) == Ok(page.len())).then_some(())
}

struct Zstd {
    compressing: CCtx<'static>,
    decompressing: DCtx<'static>,
}

impl Zstd {
    fn new() -> Result<Zstd> {
        let refused = |code| Error::Failed(zstd_safe::get_error_name(code).to_owned());
        let mut compressing = CCtx::create();
        for parameter in [
            CParameter::CompressionLevel(ZSTD_LEVEL),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            compressing.set_parameter(parameter).map_err(refused)?;
        }
        let mut decompressing = DCtx::create();
        decompressing
            .set_parameter(DParameter::Format(FrameFormat::Magicless))
            .map_err(refused)?;
        Ok(Zstd {
            compressing,
            decompressing,
        })
    }
}

impl Contender for Zstd {
    fn name(&self) -> &str {
        "bare-zstd"
    }

    fn compress(&mut self, page: &[u8], packed: &mut [u8]) -> Option<usize> {
        self.compressing.compress2(packed, page).ok()
    }

    fn decompress(&mut self, packed: &[u8], page: &mut [u8]) -> Option<()> {
        let length = self.decompressing.decompress(page, packed);
        (length == Ok(page.len())).then_some(())
    }
}

struct Deflate {
    compressing: libdeflater::Compressor,
    decompressing: libdeflater::Decompressor,
}

impl Deflate {
    fn new() -> Result<Deflate> {
        let level = libdeflater::CompressionLvl::new(DEFLATE_LEVEL)
            .map_err(|_| Error::Failed("libdeflate refuses its own default level".to_owned()))?;
        Ok(Deflate {
            compressing: libdeflater::Compressor::new(level),
            decompressing: libdeflater::Decompressor::new(),
        })
    }
}

impl Contender for Deflate {
    fn name(&self) -> &str {
        "bare-deflate"
    }

    fn compress(&mut self, page: &[u8], packed: &mut [u8]) -> Option<usize> {
        self.compressing.deflate_compress(page, packed).ok()
    }

    fn decompress(&mut self, packed: &[u8], page: &mut [u8]) -> Option<()> {
        let length = self.decompressing.deflate_decompress(packed, page);
        (length == Ok(page.len())).then_some(())
    }
}
