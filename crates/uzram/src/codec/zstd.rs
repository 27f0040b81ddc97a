//! Zstandard, RFC 8878, through the reference library, by default at level 3 as the kernel's zram.
//!
//! Frames are stored without magic number, content size, dictionary id and checksum: the store
//! knows the size, and asks for checksums by itself when wanted. Both directions hold state.

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat};

use super::{Codec, Compressor, Decompress, Decompressor, Malformed, Parameters};
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::page::Unit;

pub(super) const NAME: &str = "zstd";

const LEVEL_DEFAULT: i32 = 3;

pub(super) struct Zstd {
    level: i32,
}

impl Zstd {
    pub(super) fn new(parameters: &Parameters) -> Result<Zstd> {
        let levels = zstd_safe::min_c_level()..=zstd_safe::max_c_level();
        let level = parameters.level_within(NAME, levels, LEVEL_DEFAULT)?;
        Ok(Zstd { level })
    }
}

impl Codec for Zstd {
    fn name(&self) -> &str {
        NAME
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        memory::gate()?;
        let mut context = CCtx::try_create().ok_or_else(no_memory)?;
        for parameter in [
            CParameter::CompressionLevel(self.level),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            context.set_parameter(parameter).map_err(refused)?;
        }
        Ok(Box::new(ZstdCompressor { context }))
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        memory::gate()?;
        let mut context = DCtx::try_create().ok_or_else(no_memory)?;
        context
            .set_parameter(DParameter::Format(FrameFormat::Magicless))
            .map_err(refused)?;
        Ok(Decompressor::Stateful(Box::new(ZstdDecompressor {
            context,
        })))
    }
}

struct ZstdCompressor {
    context: CCtx<'static>,
}

impl Compressor for ZstdCompressor {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        self.context.compress2(destination, source).ok()
    }
}

struct ZstdDecompressor {
    context: DCtx<'static>,
}

impl Decompress for ZstdDecompressor {
    fn decompress(&mut self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        match self.context.decompress(destination, source) {
            Ok(length) if length == destination.len() => Ok(()),
            _ => Err(Malformed),
        }
    }
}

fn no_memory() -> Error {
    Error::new(
        ErrorKind::NoMemory,
        "no memory for a zstd context; free some",
    )
}

fn refused(code: zstd_safe::ErrorCode) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "libzstd refused a parameter: {}",
            zstd_safe::get_error_name(code)
        ),
    )
}
