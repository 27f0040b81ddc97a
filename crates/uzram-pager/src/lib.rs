//! Compressed memory for one process: a slice of which a budget's worth is in memory as it is, and the rest compressed.
//!
//! [`CompressedMemory`] is that slice. It needs Linux 6.8 and the right to use userfaultfd, and says so where it has not.
//! No swap, no device and no module are needed.
//!
//! ```
//! use uzram_pager::CompressedMemory;
//!
//! # fn main() -> Result<(), uzram::Error> {
//! # if CompressedMemory::new(1, 1 << 20).is_err() { return Ok(()) }
//! // 256 MiB of bytes, at most 16 MiB of them uncompressed.
//! let mut memory = CompressedMemory::new(256 << 20, 16 << 20)?;
//! memory[200_000_000] = 7;
//! assert_eq!(memory[200_000_000], 7);
//! # Ok(())
//! # }
//! ```
//!
//! [`CompressedHeap`] hands out parts of such memory to collections: vectors of [`allocator_api2`], maps of hashbrown.
//! [`CompressedGlobal`] is a global allocator that takes large requests from a heap.

#![deny(unsafe_code)]

mod alone;
mod auto;
mod global;
mod handler;
mod heap;
mod mapping;
mod memory;
#[doc(hidden)]
pub mod near;
mod pager;
mod plant;
mod populated;
mod signal;
mod spill;
mod statistics;
mod sync;
mod turns;
#[doc(hidden)]
pub mod uffd;

pub use allocator_api2;
pub use global::CompressedGlobal;
pub use handler::FaultHandler;
pub use heap::CompressedHeap;
pub use memory::{CompressedMemory, CompressedMemoryBuilder};
pub use statistics::Statistics;
