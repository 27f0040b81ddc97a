//! The one error.

use core::fmt;

use crate::format::PAGE_BYTES;

/// Why bytes were not compressed or decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A unit of so many bytes: it must be a multiple of [`PAGE_BYTES`], and not empty.
    Unit(usize),
    /// A destination of so many bytes: the compressed unit is longer. [`bound`](crate::bound) always suffices.
    Destination(usize),
    /// The source is no compressed unit of the destination's size.
    Malformed,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unit(bytes) => {
                write!(f, "unit of {bytes} bytes: must be a multiple of {PAGE_BYTES}, and not empty")
            }
            Error::Destination(bytes) => write!(
                f,
                "destination of {bytes} bytes: the compressed unit is longer; what `bound` says suffices"
            ),
            Error::Malformed => {
                f.write_str("source: no compressed unit of this size; give the bytes and the size that it was made with")
            }
        }
    }
}

impl core::error::Error for Error {}
