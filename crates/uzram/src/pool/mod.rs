//! Pools: memory for compressed objects, and the one table that names them.
//!
//! The trait that all of them implement is in `interface.rs`; each has a file or a folder.

mod arena;
#[cfg(any(test, feature = "lab"))]
#[cfg_attr(
    not(feature = "lab"),
    expect(dead_code, reason = "the tests use a part of it")
)]
pub(crate) mod bare;
mod bestfit;
mod bits;
mod buddies;
mod config;
mod handle;
mod interface;
mod memory;
mod mover;
mod span;
mod table;
mod victims;
mod z3fold;
mod zbud;
mod zsmalloc;
mod ztree;

pub(crate) use self::arena::{Parts, reserve};
pub(crate) use self::config::PoolConfig;
pub(crate) use self::handle::{GRANULE_BITS, GRANULE_BYTES, Handle};
use self::interface::Pool;
pub(crate) use self::interface::{Full, Room};
use self::interface::{lies_nowhere, lies_on_another};
pub(crate) use self::memory::PoolMemory;
#[cfg(any(test, feature = "lab"))]
pub use self::memory::PoolStats;
pub(crate) use self::mover::{Aim, Mover, Victims};

use crate::error::{Error, ErrorKind, Result};
use crate::region::Region;

type Make = fn(&PoolConfig, Region) -> Result<Box<PoolMemory>>;

/// Every pool, the default first.
const TABLE: &[(&str, Make)] = &[
    (bestfit::NAME, bestfit::make),
    (zsmalloc::NAME, zsmalloc::make),
    (zbud::NAME, zbud::make),
    (z3fold::NAME, z3fold::make),
    (ztree::NAME, ztree::make),
];

/// The names of the pools, the default first.
#[must_use]
pub fn pools() -> Vec<&'static str> {
    TABLE.iter().map(|(name, _)| *name).collect()
}

/// The pool's entry in the table: its name for as long as the program runs.
pub(crate) fn find(name: &str) -> Result<&'static str> {
    entry(name).map(|(name, _)| *name)
}

/// Makes the pool called `name` over `region`, which [`reserve`] made.
pub(crate) fn make(name: &str, config: &PoolConfig, region: Region) -> Result<Box<PoolMemory>> {
    (entry(name)?.1)(config, region)
}

fn entry(name: &str) -> Result<&'static (&'static str, Make)> {
    TABLE
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| {
            Error::new(
                ErrorKind::UnknownName,
                format!("unknown pool `{name}`; known: {}", pools().join(", ")),
            )
        })
}

#[cfg(test)]
mod conformance;
#[cfg(all(test, uzram_shuttle))]
mod shuttle_tests;
