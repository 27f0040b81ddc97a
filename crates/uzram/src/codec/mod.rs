//! Codecs turn bytes into fewer bytes and back. One table names them all.
//!
//! Three lifetimes, as in the kernel's zcomp: a [`Codec`] holds parameters and is shared; a
//! [`Compressor`] or [`Decompressor`] holds scratch state and serves one call at a time; source
//! and destination belong to the call. A codec knows bytes, never pages' places.

mod auto;
mod c842;
#[cfg(feature = "c-codecs")]
mod deflate;
mod dictionary;
mod interface;
mod lz4;
#[cfg(feature = "c-codecs")]
mod lz4_dictionary;
#[cfg(feature = "c-codecs")]
mod lz4hc;
mod lzo;
mod parameters;
pub(crate) mod streams;
mod words;
#[cfg(feature = "c-codecs")]
mod zstd;

use crate::error::{Error, ErrorKind, Result};
use crate::page::Unit;

#[cfg(feature = "lab")]
pub use auto::{looks_like_words, words_version};
use interface::NO_DICTIONARY;
pub use interface::{Codec, Compressor, Decompress, DecompressShared, Decompressor, Malformed};
pub use parameters::Parameters;
pub use streams::Compression;

type Make = fn(&Parameters, Unit) -> Result<Box<dyn Codec>>;

/// Every built-in codec, the default first.
const TABLE: &[(&str, Make)] = &[
    (auto::NAME, |parameters, _| {
        Ok(Box::new(auto::Auto::new(parameters)?))
    }),
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
    (words::NAME, |parameters, _| {
        Ok(Box::new(words::Words::new(parameters)?))
    }),
];

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
