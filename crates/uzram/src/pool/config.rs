//! The sizes for which a pool and its memory are made.

use super::handle::{GRANULE_BITS, GRANULE_BYTES};
use crate::page::Unit;
use crate::region::{Backing, HUGE_PAGE_BYTES};

/// Address space for a device, as a multiple of its size: objects of mixed sizes leave gaps until
/// the store is compacted.
const RESERVE_FACTOR: u64 = 4;
const RESERVE_MIN_BYTES: u64 = 64 << 20;

/// The sizes for which a pool is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolConfig {
    pub unit: Unit,
    /// Uncompressed bytes that the store can hold.
    pub disksize_bytes: u64,
    /// 0 for none.
    pub limit_bytes: u64,
    pub backing: Backing,
    /// Memory to keep populated ahead of writers, in bytes; 0 for the usual few spans.
    pub spare_bytes: u64,
}

impl PoolConfig {
    /// Address space that an arena reserves, in bytes: a multiple of a span.
    pub(crate) fn arena_bytes(&self) -> usize {
        let bytes = self
            .disksize_bytes
            .saturating_mul(RESERVE_FACTOR)
            .clamp(RESERVE_MIN_BYTES, (GRANULE_BYTES as u64) << GRANULE_BITS)
            .next_multiple_of(HUGE_PAGE_BYTES as u64);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}
