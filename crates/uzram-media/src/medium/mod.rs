//! Persistent memory as the devices on it see it: bytes that are copied, words that are stored in
//! one piece, and points in time by which stores are durable.
//!
//! Until its writer's next [`Medium::fence`], a store may reach the medium or not, in any order
//! with others: after a power cut any subset of these stores is there. A word is there whole or
//! not at all. The devices are tested against a simulation that is as bad as that (`sim`).

mod file;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod guard;
#[cfg(test)]
pub(crate) mod sim;

use std::fmt;

use uzram::Result;

pub use file::{Persistence, PmemFile};

/// Memory that may outlive the power.
///
/// Any number of threads use it at once. Where they overlap without a lock, a read returns some
/// mix of old and new bytes. Offsets and lengths outside of the medium are errors, not panics.
pub(crate) trait Medium: Send + Sync + fmt::Debug {
    /// Size in bytes, a multiple of 4096.
    fn size_bytes(&self) -> u64;

    /// Its name in errors: a path.
    fn name(&self) -> String;

    /// Whether it refuses stores.
    fn is_read_only(&self) -> bool;

    /// Whether a fence waits for a disk.
    fn waits_for_disk(&self) -> bool;

    /// Fills `buffer` from `offset` on.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// Stores `data` from `offset` on.
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Stores `length` zeroes from `offset` on.
    fn zero(&self, offset: u64, length: u64) -> Result<()>;

    /// The little-endian word at `offset`, a multiple of 4.
    fn load_u32(&self, offset: u64) -> Result<u32>;

    /// Stores a little-endian word at `offset`, a multiple of 4, in one piece.
    fn store_u32(&self, offset: u64, word: u32) -> Result<()>;

    /// Stores two little-endian words at `offset`, a multiple of 16, each in one piece. The second is
    /// durable no sooner than the first: they lie on one line, and a line keeps the order of its stores.
    fn store_pair(&self, offset: u64, words: [u64; 2]) -> Result<()>;

    /// Makes this thread's stores visible to threads that it tells. Where the CPU makes stores
    /// durable they are durable as well.
    fn publish(&self);

    /// Makes this thread's stores durable, before anything that it stores next.
    fn fence(&self) -> Result<()>;

    /// Makes everything that any thread published durable.
    fn flush(&self) -> Result<()>;
}
