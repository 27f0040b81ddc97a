//! Compressed memory: a store of pages that are kept compressed in RAM, like the kernel's zram, in
//! user space.
//!
//! ```
//! use uzram::{PageIndex, Store};
//!
//! // Room for 64 MiB of pages, in at most 16 MiB of memory, none of which is taken yet.
//! let store = Store::builder().size(64 << 20).mem_limit(16 << 20).build()?;
//! let mut page = [b'a'; 4096];
//! page[..5].copy_from_slice(b"uzram");
//! store.write(PageIndex(7), &page)?;
//! store.read(PageIndex(7), &mut page)?;
//! assert_eq!(&page[..5], b"uzram");
//! assert!(store.stats().compr_data_size_bytes < 100);
//! # Ok::<(), uzram::Error>(())
//! ```
//!
//! - [`Store::builder`] has the options: codec ([`algorithms`]), pool ([`pools`]), unit, limits.
//! - [`Zram`] turns a store into a [`BlockDevice`] that takes any byte range.
//! - [`Codec`] compresses. Register one of your own with [`Compression::with_codec`].
//! - [`Stats`] has the counters of zram's `mm_stat` and `io_stat` under their names.
//!
//! # Limits
//!
//! - Linux, on processors with 64-bit addresses.
//! - A page has 4096 to 65536 bytes ([`Unit`]). All objects of a store together take 2 TiB at most.
//! - The table of pages takes 8 bytes for each page of a part that was ever written.
//! - `mem_limit` is never exceeded by the memory of objects, not even for a moment. A write that does not fit
//!   fails with [`ErrorKind::NoSpace`], and the page keeps its old content.
//! - Nothing outlives the process. The crate opens no sockets, mounts nothing and starts no threads:
//!   call [`Store::maintain`] from time to time, so that writers find memory ready.
//!
//! # Threads
//!
//! [`Store`] and [`Zram`] are `Send` and `Sync`: any number of threads may call them at once. A
//! read returns a page as one write left it, never a mix of two. Writes to different bytes of one
//! page never undo each other. Contexts of a codec are kept per CPU. No method panics on input. If
//! a codec of yours panics, all pages stay whole.
//!
//! # Errors
//!
//! An [`Error`] is one line and an [`ErrorKind`] to match on, and has the errno that a block
//! device returns.

#![deny(unsafe_code)]

// Slot words, saved stores and codecs' streams are read in place as the little-endian numbers that they are.
#[cfg(target_endian = "big")]
compile_error!(
    "uzram runs on little-endian machines only: build it for one, such as x86-64 or aarch64"
);

// Tests share a codec that is written like a user's.
#[cfg(test)]
extern crate self as uzram;

mod cgroup;
mod codec;
mod config;
mod cpu;
#[cfg(all(test, not(uzram_shuttle)))]
mod crash;
pub mod device;
mod error;
pub mod file;
mod headroom;
mod memory;
mod page;
mod pool;
mod region;
mod stats;
mod store;
mod sync;
pub mod system_page;

pub use cgroup::{CgroupLimit, CgroupRoom};
pub use codec::{
    Codec, Compression, Compressor, Decompress, DecompressShared, Decompressor, Malformed,
    Parameters, algorithms,
};
pub use config::StoreBuilder;
pub use device::{
    AllocatedBio, Bio, BioPool, BlockDevice, CompletedBio, Direction, EndIo, Extent, Geometry,
    PageBuffer, PageTransfer, Waiter, Zram,
};
pub use error::{Error, ErrorKind, Result};
pub use headroom::{cgroup_limit, cgroup_room};
pub use page::{PageIndex, PageState, Unit, Zeroing};
pub use pool::pools;
pub use stats::Stats;
pub use store::{BlockState, ColdPages, Recompressed, Recompression, Store};
#[cfg(not(uzram_shuttle))]
pub use store::{REMAINS_FORMAT, Recovery, Remains};

/// Variants that the laboratory compares: stores with other slot locks and streams, pools without a store.
/// The product never enables the feature `lab`. Nothing here is subject to semver.
#[cfg(feature = "lab")]
pub mod lab {
    pub use crate::codec::streams::{PerCpuStreams, SharedStreams, Stream, StreamPolicy};
    pub use crate::codec::{looks_like_words, words_version};
    pub use crate::pool::PoolStats;
    pub use crate::pool::bare::{BarePool, Objects};
    pub use crate::store::StoreWith;
    pub use crate::store::lock::{LOCK_BITS, SleepingBit, Slot, SlotLock, Word};
}
