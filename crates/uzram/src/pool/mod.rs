//! Pools: memory for compressed objects, and the one table that names them.
//!
//! `insert` allocates and copies in one step, so a half-written object cannot exist. User-space
//! memory is virtually contiguous: no page chains and no bounce buffers, and an object is read
//! where it lies. A pool knows bytes and sizes, never pages' places.
//!
//! Ownership is a value: a [`Handle`] cannot be copied, so whoever has it is the object's one owner.

#![allow(unsafe_code)]

pub(crate) mod arena;
pub(crate) mod bare;
mod bestfit;
mod bits;
mod buddies;
mod span;
mod table;
mod victims;
mod z3fold;
mod zbud;
mod zsmalloc;
mod ztree;

use self::arena::Arena;
pub(crate) use self::victims::{Aim, Mover, Victim, Victims};

use crate::error::{Error, ErrorKind, Result};
use crate::page::Unit;
use crate::region::Backing;

/// Objects start at multiples of this, in bytes: a slot word holds the quotient.
pub(crate) const GRANULE_BYTES: usize = 8;

/// Bits of a slot word for an object's place, in granules: 2 TiB.
pub(crate) const GRANULE_BITS: u32 = 38;

/// The one owner of one object: its place and its size.
///
/// Losing a handle leaks the object, so dropping one is a bug that debug builds report.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    granule: u64,
    size_bytes: u32,
}

impl Handle {
    /// The owner of `size_bytes` bytes from granule `granule` of a pool's arena.
    ///
    /// # Safety
    /// Until this handle is taken apart, no other handle may cover any of these bytes, and
    /// nothing but it may be used to touch them.
    pub(crate) unsafe fn from_parts(granule: u64, size_bytes: u32) -> Handle {
        Handle {
            granule,
            size_bytes,
        }
    }

    /// Takes the handle apart; whoever keeps the parts owns the object.
    pub(crate) fn into_parts(self) -> (u64, u32) {
        let parts = (self.granule, self.size_bytes);
        std::mem::forget(self);
        parts
    }

    pub(crate) fn offset_bytes(&self) -> usize {
        self.granule as usize * GRANULE_BYTES
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes as usize
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            panic!(
                "the object at granule {} was dropped, not removed: a leak",
                self.granule
            );
        }
    }
}

/// Why an object was not inserted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// No populated memory: give the stream back, call [`Pool::grow`], try again.
    NeedsMemory,
    /// Bookkeeping memory could not be had.
    NoMemory,
}

/// Where an object may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Into a block that has room, else into pages that are populated and free.
    Any,
    /// Into a block that has room: the pool takes no page.
    InBlocks,
}

/// What a pool holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Memory of blocks that hold objects: what the limit counts.
    pub used_bytes: u64,
    /// The highest `used_bytes` so far.
    pub used_max_bytes: u64,
    /// Arena memory taken from the system, the spare included.
    pub resident_bytes: u64,
    /// Bookkeeping outside the arena.
    pub side_bytes: u64,
}

/// Memory for objects of 1 byte to one unit.
///
/// All methods may be called from any thread. Locks inside are below every lock of the store.
pub(crate) trait Pool: Send + Sync {
    /// Stores a copy of `bytes`, 1 to one unit long, without taking memory from the system.
    fn insert(&self, bytes: &[u8], room: Room) -> Result<Handle, Full>;

    /// Takes memory from the system so that an object of `size_bytes` fits, unless it fits already.
    /// May take long; never call it while holding a stream or a slot.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] at the limit, [`ErrorKind::NoMemory`].
    fn grow(&self, size_bytes: usize) -> Result<()> {
        self.arena().grow(self.pages_taken(size_bytes))
    }

    /// Gives what the pool keeps for objects of some sizes to those of any, which takes no memory; false if
    /// there is nothing.
    fn make_room(&self) -> bool {
        false
    }

    /// The pages that an object of `size_bytes` takes where no block has room for it.
    fn pages_taken(&self, size_bytes: usize) -> usize;

    /// The object's bytes, where they lie.
    fn bytes<'a>(&'a self, handle: &'a Handle) -> &'a [u8] {
        debug_assert!(self.holds(handle), "stale handle");
        self.arena().object(handle)
    }

    /// Frees the object; how many pages that left without one, which are the arena's now.
    fn remove(&self, handle: Handle) -> usize;

    /// Whether an object lies there whose size would put it there.
    fn holds(&self, handle: &Handle) -> bool;

    /// Takes over an object that a predecessor stored in this pool's arena, while the state is being
    /// rebuilt from the slot table. Nothing may be inserted before [`Pool::adopted`].
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if no object can lie there or another one does.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "nothing takes a store over yet")
    )]
    fn adopt(&self, handle: &Handle) -> Result<()>;

    /// The size from which an object costs as much memory as a whole unit, in bytes.
    fn huge_bytes(&self) -> usize;

    /// Where all objects lie.
    fn arena(&self) -> &Arena;

    /// Bookkeeping outside the arena, and besides the arena's own, in bytes.
    fn side_bytes(&self) -> usize;

    /// Closes blocks to insertion whose objects fit beside those of others, `blocks_max` at most, for the
    /// caller to move their objects: insert each anew [in blocks](Room::InBlocks), or in no
    /// more pages than that made free so far, and remove the old one. Such a block goes
    /// back with its last object, like any other.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    fn close_sparse(&self, blocks_max: usize) -> Result<Vec<Victim>>;

    /// As [`Pool::close_sparse`], blocks that lose much between their objects: these fit into `pages` new
    /// pages. None where a class has all objects, which leaves nothing between them.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    fn close_gappy(&self, _blocks_max: usize, _pages: usize) -> Result<Vec<Victim>> {
        Ok(Vec::new())
    }

    /// Lets a closed block take objects again; false if it is gone.
    fn reopen(&self, victim: Victim) -> bool;

    /// Ends the rebuilding: memory that no adopted object needs goes back to the system.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "nothing takes a store over yet")
    )]
    fn adopted(&self) {
        self.arena().adopted();
    }

    /// Sets the limit on [`PoolStats::used_bytes`]; 0 for none. Not retroactive.
    fn set_limit(&self, limit_bytes: u64) {
        self.arena().set_limit(limit_bytes);
    }

    /// Forgets the highest use, as zram's `mem_used_max` does on writing 0.
    fn reset_used_max(&self) {
        self.arena().reset_used_max();
    }

    /// Makes tables resident that are otherwise when first touched, by whoever inserts.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    fn make_ready(&self) -> Result<()>;

    /// Keeps at least so much memory populated ahead of writers, whatever is used; false if it cannot.
    fn set_spare(&self, bytes: u64) -> bool {
        self.arena().set_spare(bytes)
    }

    /// One bounded step of work better not done by a writer: populating a spare, or giving excess
    /// back. Returns whether more is left to do.
    fn maintain(&self) -> bool {
        self.arena().maintain()
    }

    /// Gives all memory without objects back to the system, the spare included; parts of huge pages
    /// only where asked for, since that breaks them up.
    fn trim(&self, parts: arena::Parts) {
        self.arena().trim(parts);
    }

    fn stats(&self) -> PoolStats {
        let arena = self.arena().stats();
        PoolStats {
            used_bytes: arena.used_bytes,
            used_max_bytes: arena.used_max_bytes,
            resident_bytes: arena.resident_bytes,
            side_bytes: self.side_bytes() as u64 + arena.side_bytes,
        }
    }
}

/// What a pool is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolConfig {
    pub unit: Unit,
    /// Uncompressed bytes that the store can hold.
    pub disksize_bytes: u64,
    /// 0 for none.
    pub limit_bytes: u64,
    pub backing: Backing,
}

type Make = fn(&PoolConfig, arena::Memory) -> Result<Box<dyn Pool>>;

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

/// Makes the pool called `name` over `memory`.
pub(crate) fn make(
    name: &str,
    config: &PoolConfig,
    memory: arena::Memory,
) -> Result<Box<dyn Pool>> {
    (entry(name)?.1)(config, memory)
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

fn lies_nowhere() -> Error {
    Error::new(ErrorKind::Corrupt, "an object lies where none can be")
}

fn lies_on_another() -> Error {
    Error::new(ErrorKind::Corrupt, "two objects lie on each other")
}

#[cfg(test)]
mod conformance;
#[cfg(all(test, uzram_shuttle))]
mod shuttle_tests;
