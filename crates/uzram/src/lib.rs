//! uzram: zram in user space. Pages of 4 to 64 KiB, kept compressed in memory.
//!
//! - [`Store`] keeps pages by index; [`Store::builder`] makes one. Start here.
//! - [`Zram`] turns a store into a [`BlockDevice`] that takes any byte range.
//! - [`Codec`] is what compresses; built-in ones go by name ([`algorithms`]), and one of your own is
//!   handed over through [`Compression::with_codec`]. Memory comes from a pool, by name ([`pools`]).
//! - [`Stats`] has the counters of zram's `mm_stat` and `io_stat` under their names.
//!
//! The crate opens no sockets, mounts nothing and starts no threads. Errors are an [`ErrorKind`] to
//! match on, with the errno that a block device would return.
//!
//! Data flows one way: `device` (byte ranges) -> `store` (pages, slots) -> `codec` and `pool`
//! (bytes), which never see each other -> `page`, `region`, `cpu`, `sync`, `memory`, `error`. The
//! lock order stands at the top of `store/slot.rs`.
//!
//! # Modules that may use unsafe
//!
//! - `codec/lz4.rs`: calls into liblz4
//! - `codec/lz4_dictionary.rs`: calls into liblz4
//! - `codec/lz4hc.rs`: calls into liblz4
//! - `codec/zstd.rs`: contexts that refer to the dictionary kept beside them
//! - `cpu.rs`: hints to the cache
//! - `device/brd.rs`: copies into pages of plain memory
//! - `device/medium/file.rs`: vouches for places in a mapped file
//! - `device/medium/guard.rs`: loads and stores that survive the loss of a mapped file
//! - `pool/mod.rs`: states what a handle's maker vouches for
//! - `pool/arena.rs`: objects as slices of mapped memory
//! - `pool/bestfit/mod.rs`: makes the handle of a new object
//! - `pool/buddies.rs`: makes the handle of a new object
//! - `pool/zsmalloc/mod.rs`: makes the handle of a new object
//! - `pool/ztree/mod.rs`: makes the handle of a new object
//! - `region.rs`: mmap and madvise
//! - `sigbus.rs`: the handler of a signal
//! - `store/lock.rs`: promises that locks exclude
//! - `store/slot.rs`: turns a locked word back into the handle that it stands for

#![deny(unsafe_code)]

// Tests share a codec that is written like a user's.
#[cfg(test)]
extern crate self as uzram;

mod codec;
mod config;
mod cpu;
pub mod device;
mod error;
mod memory;
mod page;
mod pool;
mod region;
// For our frontends alone: guests' memory vanishes as files do.
#[doc(hidden)]
pub mod sigbus;
mod stats;
mod store;
mod sync;

pub use codec::{
    Codec, Compression, Compressor, Decompress, DecompressShared, Decompressor, Malformed,
    Parameters, algorithms,
};
pub use config::StoreBuilder;
pub use device::{
    AllocatedBio, Bio, BioPool, BlockDevice, Brd, Btt, BttProblem, BttReport, BttVersion,
    CompletedBio, Direction, EndIo, Extent, Geometry, PageBuffer, PageTransfer, Persistence, Pmem,
    PmemFile, Waiter, Zram,
};
pub use error::{Error, ErrorKind, Result};
pub use page::{PageIndex, PageState, Unit, Zeroing};
// For our benchmarks and fuzz targets alone: pools without a store around them.
pub use pool::pools;
#[doc(hidden)]
pub use pool::{
    PoolStats,
    bare::{BarePool, Objects},
};
pub use stats::Stats;
pub use store::Store;
// For our benchmarks alone: stores with other slot locks and other streams.
#[doc(hidden)]
pub use codec::streams::{PerCpuStreams, Stream, StreamPolicy};
#[doc(hidden)]
pub use store::lock::{LOCK_BITS, SleepingBit, Slot, SlotLock, Word};
