//! Codecs: bytes to fewer bytes and back, and the one table that names them.
//!
//! Three lifetimes, as in the kernel's zcomp: a [`Codec`] holds parameters and is shared; a
//! [`Compressor`] or [`Decompressor`] holds scratch state and serves one call at a time; source
//! and destination belong to the call. A codec knows bytes, never pages' places.

mod c842;
#[cfg(feature = "c-codecs")]
mod deflate;
mod dictionary;
mod lz4;
#[cfg(feature = "c-codecs")]
mod lz4_dictionary;
#[cfg(feature = "c-codecs")]
mod lz4hc;
mod lzo;
mod parameters;
pub(crate) mod streams;
#[cfg(feature = "c-codecs")]
mod zstd;

use crate::error::{Error, ErrorKind, Result};
use crate::page::Unit;

pub use parameters::Parameters;
pub use streams::Compression;

/// A compression algorithm with its parameters.
///
/// Register one of your own by handing it to [`Compression::with_codec`].
pub trait Codec: Send + Sync {
    /// The name that users choose it by, such as `lz4`.
    fn name(&self) -> &str;

    /// A context that compresses units of this size.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    fn compressor(&self, unit: Unit) -> Result<Box<dyn Compressor>>;

    /// What decompresses units of this size.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    fn decompressor(&self, unit: Unit) -> Result<Decompressor>;
}

/// The state of one compression at a time.
pub trait Compressor: Send {
    /// Compresses `source`, one unit, into `destination`, two units, and returns the length in bytes.
    /// `None` means that the codec cannot; the store then keeps the page raw, as it does when
    /// the result is not worth it.
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize>;
}

/// How a codec decompresses.
pub enum Decompressor {
    /// Without state: one for all threads at once.
    Shared(Box<dyn DecompressShared>),
    /// With state: the store makes one for each CPU, apart from the compressors, so that a reader
    /// never waits for a preempted writer.
    Stateful(Box<dyn Decompress>),
}

/// Decompression that needs no state.
pub trait DecompressShared: Send + Sync {
    /// Fills all of `destination`, one unit, from `source`.
    ///
    /// # Errors
    /// [`Malformed`] for any `source` that no compressor made for this unit.
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed>;
}

/// Decompression with state, one call at a time.
pub trait Decompress: Send {
    /// Fills all of `destination`, one unit, from `source`.
    ///
    /// # Errors
    /// [`Malformed`] for any `source` that no compressor made for this unit.
    fn decompress(&mut self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed>;
}

/// The bytes are no compressed unit. The destination's content is unspecified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

type Make = fn(&Parameters, Unit) -> Result<Box<dyn Codec>>;

/// Every built-in codec, the default first.
const TABLE: &[(&str, Make)] = &[
    (lz4::NAME, |parameters, _| {
        Ok(Box::new(lz4::Lz4::new(parameters)?))
    }),
    #[cfg(feature = "c-codecs")]
    (zstd::NAME, |parameters, _| {
        Ok(Box::new(zstd::Zstd::new(parameters)?))
    }),
    #[cfg(feature = "c-codecs")]
    (lz4hc::NAME, |parameters, _| {
        Ok(Box::new(lz4hc::Lz4hc::new(parameters)?))
    }),
    #[cfg(feature = "c-codecs")]
    (deflate::NAME, |parameters, unit| {
        Ok(Box::new(deflate::Deflate::new(parameters, unit)?))
    }),
    (lzo::NAME, |parameters, _| {
        Ok(Box::new(lzo::Lzo::new(parameters)?))
    }),
    (lzo::NAME_RLE, |parameters, _| {
        Ok(Box::new(lzo::Lzo::new_rle(parameters)?))
    }),
    (c842::NAME, |parameters, _| {
        Ok(Box::new(c842::C842::new(parameters)?))
    }),
];

/// What codecs without dictionaries say to somebody who gives them one.
const NO_DICTIONARY: &str = "its format has none; zstd, lz4 and lz4hc have";

/// The names of the built-in codecs, the default first.
#[must_use]
pub fn algorithms() -> Vec<&'static str> {
    TABLE.iter().map(|(name, _)| *name).collect()
}

/// The built-in codec called `name` with loaded parameters, for units of this size.
pub(crate) fn by_name(name: &str, parameters: &Parameters, unit: Unit) -> Result<Box<dyn Codec>> {
    let Some((_, make)) = TABLE.iter().find(|(known, _)| *known == name) else {
        let known = algorithms().join(", ");
        return Err(Error::new(
            ErrorKind::UnknownName,
            format!("unknown algorithm `{name}`; known: {known}"),
        ));
    };
    if name != "deflate" {
        parameters.no_winbits(name)?;
    }
    make(parameters, unit)
}

#[cfg(test)]
mod conformance;
