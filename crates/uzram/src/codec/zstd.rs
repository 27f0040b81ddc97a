//! Zstandard, RFC 8878, through the reference library, by default at level 3 as the kernel's zram.
//!
//! Frames are stored without magic number, content size, dictionary id and checksum: the store
//! knows the size, and has checksums of its own. Both directions hold state.
//!
//! A dictionary is digested once for each direction; all contexts refer to the two.

#![allow(unsafe_code)]

use zstd_safe::{CCtx, CDict, CParameter, DCtx, DDict, DParameter, FrameFormat};

use super::{Codec, Compressor, Decompress, Decompressor, Malformed, Parameters};
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::page::Unit;
use crate::sync::Arc;

pub(super) const NAME: &str = "zstd";

const LEVEL_DEFAULT: i32 = 3;

pub(super) struct Zstd {
    level: i32,
    dictionary: Option<Arc<Digested>>,
}

/// A dictionary in the library's two digested forms. Both keep a copy of its content.
struct Digested {
    compressing: CDict<'static>,
    decompressing: DDict<'static>,
}

impl Zstd {
    pub(super) fn new(parameters: &Parameters) -> Result<Zstd> {
        let levels = zstd_safe::min_c_level()..=zstd_safe::max_c_level();
        let level = parameters.level_within(NAME, levels, LEVEL_DEFAULT)?;
        let digested = parameters
            .loaded_dictionary()
            .map(|bytes| Digested::new(&bytes, level).map(Arc::new));
        Ok(Zstd {
            level,
            dictionary: digested.transpose()?,
        })
    }
}

impl Digested {
    fn new(bytes: &[u8], level: i32) -> Result<Digested> {
        memory::gate()?;
        // The library says no more than that it could not: bytes that begin like a trained dictionary
        // and go on otherwise, or no memory. Any other bytes are content.
        let refused = || {
            Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "dict of {} bytes: no zstd dictionary, or no memory for it; make one with uzram train",
                    bytes.len()
                ),
            )
        };
        Ok(Digested {
            compressing: CDict::try_create(bytes, level).ok_or_else(refused)?,
            decompressing: DDict::try_create(bytes).ok_or_else(refused)?,
        })
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
        if let Some(digested) = &self.dictionary {
            // SAFETY: the context is dropped before the dictionary that is kept beside it, which
            // neither moves nor changes.
            let digested = unsafe { &*Arc::as_ptr(digested) };
            context.ref_cdict(&digested.compressing).map_err(refused)?;
        }
        Ok(memory::boxed(ZstdCompressor {
            context,
            _dictionary: self.dictionary.clone(),
        })?)
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        memory::gate()?;
        let mut context = DCtx::try_create().ok_or_else(no_memory)?;
        context
            .set_parameter(DParameter::Format(FrameFormat::Magicless))
            .map_err(refused)?;
        if let Some(digested) = &self.dictionary {
            // SAFETY: as in the compressor.
            let digested = unsafe { &*Arc::as_ptr(digested) };
            context
                .ref_ddict(&digested.decompressing)
                .map_err(refused)?;
        }
        Ok(Decompressor::Stateful(memory::boxed(ZstdDecompressor {
            context,
            _dictionary: self.dictionary.clone(),
        })?))
    }
}

struct ZstdCompressor {
    context: CCtx<'static>,
    // Referred to by the context: it must be declared, and so dropped, after it.
    _dictionary: Option<Arc<Digested>>,
}

impl Compressor for ZstdCompressor {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        self.context.compress2(destination, source).ok()
    }
}

struct ZstdDecompressor {
    context: DCtx<'static>,
    // As in the compressor.
    _dictionary: Option<Arc<Digested>>,
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
