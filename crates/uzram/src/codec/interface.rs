//! The interface between codecs and the store: parameters are shared, contexts serve one call at a
//! time.

use crate::error::Result;
use crate::page::Unit;

/// A compression algorithm with its parameters.
///
/// Register one of your own by handing it to [`Compression::with_codec`](crate::Compression::with_codec).
pub trait Codec: Send + Sync {
    /// The name by which users choose it, such as `lz4`.
    fn name(&self) -> &str;

    /// A context that compresses units of this size.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    fn compressor(&self, unit: Unit) -> Result<Box<dyn Compressor>>;

    /// A decompressor for units of this size.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    fn decompressor(&self, unit: Unit) -> Result<Decompressor>;
}

/// The state of one compression at a time.
pub trait Compressor: Send {
    /// Compresses `source`, one unit, into `destination`, two units, and returns the length in
    /// bytes. `None` means that the codec cannot. The store then keeps the page raw, as it does
    /// with a result that saves no memory.
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize>;
}

/// The way in which a codec decompresses.
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

/// The bytes are not a compressed unit. The destination's content is unspecified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The reason that codecs without dictionaries give when they get one.
pub(super) const NO_DICTIONARY: &str = "its format has none; zstd, lz4 and lz4hc have";
