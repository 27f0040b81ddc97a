//! The sizes for which a pool and its memory are made.

use crate::page::Unit;
use crate::region::Backing;

/// The sizes for which a pool is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolConfig {
    pub unit: Unit,
    /// Uncompressed bytes that the store can hold.
    pub disksize_bytes: u64,
    /// 0 for none.
    pub limit_bytes: u64,
    pub backing: Backing,
}
