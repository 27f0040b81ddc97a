//! What persistent memory is to the devices on it: bytes that are copied, words that are stored in one
//! piece, and points in time by which they are durable.
//!
//! Until its writer's next [`Medium::fence`], a store may reach the medium or not, and stores may do
//! so in any order: after a power cut any subset of them is there. A word is there whole or not at
//! all. What is built on this is tested against a simulation that is as bad as that (`sim`).

mod file;
#[cfg(target_arch = "x86_64")]
mod guard;
#[cfg(test)]
pub(super) mod sim;

use std::fmt;

use crate::error::Result;

pub use file::{Persistence, PmemFile};

/// Memory that may outlive the power.
///
/// Any number of threads use it at once; where they overlap without a lock, what is read is some mix
/// of old and new bytes. Offsets and lengths outside of the medium are errors, not panics.
pub(super) trait Medium: Send + Sync + fmt::Debug {
    /// Size in bytes, a multiple of 4096.
    fn size_bytes(&self) -> u64;

    /// What errors call it: a path.
    fn name(&self) -> String;

    /// Whether it takes no stores.
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

    /// What this thread stored is seen by threads that it tells. Where the CPU makes stores durable
    /// it is durable as well.
    fn publish(&self);

    /// What this thread stored is durable, before anything that it stores next.
    fn fence(&self) -> Result<()>;

    /// What every thread published is durable.
    fn flush(&self) -> Result<()>;
}
