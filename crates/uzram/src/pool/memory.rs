//! A pool and the arena in which it places objects. The store sees nothing else of either.

use std::ops::Range;
#[cfg(not(uzram_shuttle))]
use std::os::fd::OwnedFd;

use super::arena::{Arena, Parts};
use super::handle::Handle;
use super::interface::{Full, Pool, Room};
use super::victims::{self, Victim};
use crate::error::Result;

/// The memory of a pool, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Memory of blocks that hold objects. The limit bounds it.
    pub used_bytes: u64,
    /// The highest `used_bytes` so far.
    pub used_max_bytes: u64,
    /// Arena memory taken from the system, the spare included.
    pub resident_bytes: u64,
    /// Bookkeeping outside the arena.
    pub side_bytes: u64,
}

/// Memory for objects of 1 byte to one unit: the arena, and the pool that places objects in it.
///
/// All methods may be called from any thread. Locks inside are below every lock of the store.
pub(crate) struct PoolMemory<P: ?Sized = dyn Pool> {
    pub(super) arena: Arena,
    huge_bytes: usize,
    // Last, so that it may be any pool without another allocation to look through.
    pub(super) pool: P,
}

impl<P: Pool> PoolMemory<P> {
    /// `huge_bytes` is the size from which an object costs as much memory as a whole unit.
    pub(super) fn new(arena: Arena, huge_bytes: usize, pool: P) -> PoolMemory<P> {
        PoolMemory {
            arena,
            huge_bytes,
            pool,
        }
    }
}

impl<P: Pool + ?Sized> PoolMemory<P> {
    /// Stores a copy of `bytes`, 1 to one unit long, without taking memory from the system.
    pub(crate) fn insert(&self, bytes: &[u8], room: Room) -> Result<Handle, Full> {
        self.pool.insert(&self.arena, bytes, room)
    }

    /// Frees the object. Returns the number of pages that go to the arena.
    pub(crate) fn remove(&self, handle: Handle) -> usize {
        self.pool.remove(&self.arena, handle)
    }

    /// The object's bytes, in place.
    pub(crate) fn bytes<'a>(&'a self, handle: &'a Handle) -> &'a [u8] {
        debug_assert!(self.pool.holds(handle), "stale handle");
        self.arena.object(handle)
    }

    /// The bytes of an object, also of one that [`PoolMemory::adopt`] refused because others lie there.
    #[cfg(not(uzram_shuttle))]
    pub(crate) fn disputed_bytes<'a>(&'a self, handle: &'a Handle) -> &'a [u8] {
        self.arena.object(handle)
    }

    /// Prefetches bytes that an object may have, wherever they are.
    #[inline]
    pub(crate) fn prefetch(&self, bytes: Range<usize>) {
        self.arena.prefetch(bytes);
    }

    /// Takes memory from the system so that an object of `size_bytes` fits, unless it fits already.
    /// May take long; never call it while holding a stream or a slot.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) at the limit,
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(crate) fn grow(&self, size_bytes: usize) -> Result<()> {
        match self.arena.grow(self.pool.pages_taken(size_bytes)) {
            Err(_) if self.make_room() => Ok(()),
            grown => grown,
        }
    }

    /// As [`Pool::make_room`].
    pub(crate) fn make_room(&self) -> bool {
        self.pool.make_room(&self.arena)
    }

    /// As [`Pool::pages_taken`].
    pub(super) fn pages_taken(&self, size_bytes: usize) -> usize {
        self.pool.pages_taken(size_bytes)
    }

    /// The size from which an object costs as much memory as a whole unit, in bytes.
    pub(crate) fn huge_bytes(&self) -> usize {
        self.huge_bytes
    }

    /// Closes blocks to insertion whose objects fit beside those of others, `blocks_max` at most.
    /// The caller moves their objects: it inserts each anew [in blocks](Room::InBlocks), or in no
    /// more pages than that freed so far, and removes the old one. Such a block goes back with its
    /// last object, like any other.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(super) fn close_sparse(&self, blocks_max: usize) -> Result<Vec<Victim>> {
        let groups = (0..).map_while(|group| self.pool.candidates(group).transpose());
        self.close(victims::sparse(groups, blocks_max))
    }

    /// As [`PoolMemory::close_sparse`], for blocks that lose much between their objects, which
    /// must fit into `pages` new pages. There are none if size classes have all objects, because
    /// these leave nothing between them.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(super) fn close_gappy(&self, blocks_max: usize, pages: usize) -> Result<Vec<Victim>> {
        let groups = (0..).map_while(|group| self.pool.candidates(group).transpose());
        self.close(victims::gappy(groups, blocks_max, pages))
    }

    /// Lets a closed block take objects again; false if it is gone.
    pub(super) fn reopen(&self, victim: Victim) -> bool {
        self.pool.set_closed(victim, false)
    }

    /// Takes over a predecessor's object in this memory, as [`Pool::adopt`]. Nothing may be
    /// inserted before [`PoolMemory::adopted`].
    ///
    /// # Errors
    /// As [`Pool::adopt`].
    #[cfg_attr(uzram_shuttle, allow(dead_code))]
    pub(crate) fn adopt(&self, handle: &Handle) -> Result<()> {
        self.pool.adopt(&self.arena, handle)
    }

    /// As [`Region::file`](crate::region::Region::file).
    #[cfg(not(uzram_shuttle))]
    pub(crate) fn file(&self) -> Result<Option<OwnedFd>> {
        self.arena.file()
    }

    /// Ends the rebuilding: memory that no adopted object needs goes back to the system, or into the spare.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    #[cfg_attr(uzram_shuttle, allow(dead_code))]
    pub(crate) fn adopted(&self) -> Result<()> {
        self.arena.adopted()
    }

    /// Sets the limit on [`PoolStats::used_bytes`]; 0 for none. Not retroactive.
    pub(crate) fn set_limit(&self, limit_bytes: u64) {
        self.arena.set_limit(limit_bytes);
        if self.arena.is_over_limit() {
            self.make_room();
        }
    }

    /// Forgets the highest use, as zram's `mem_used_max` does on writing 0.
    pub(crate) fn reset_used_max(&self) {
        self.arena.reset_used_max();
    }

    /// As [`Pool::make_ready`].
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(crate) fn make_ready(&self) -> Result<()> {
        self.pool.make_ready()
    }

    /// As [`Pool::give_back_tables`].
    pub(crate) fn give_back_tables(&self) {
        self.pool.give_back_tables(&self.arena);
    }

    /// As [`Arena::mapped_bytes`].
    #[cfg(all(test, not(uzram_shuttle)))]
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.arena.mapped_bytes()
    }

    /// As [`Arena::keeps_spare`].
    pub(crate) fn keeps_spare(&self) -> bool {
        self.arena.keeps_spare()
    }

    /// One bounded step of work that writers should not do: populating a spare, or giving excess
    /// back. Returns whether more is left to do.
    pub(crate) fn maintain(&self) -> bool {
        self.arena.maintain()
    }

    /// Gives all memory without objects back to the system, the spare included; parts of huge
    /// pages only if asked for, because that breaks them up.
    pub(crate) fn trim(&self, parts: Parts) {
        self.arena.trim(parts);
    }

    /// [`PoolStats::used_bytes`] without the locks that the other counts take.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.arena.stats().used_bytes
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let arena = self.arena.stats();
        PoolStats {
            used_bytes: arena.used_bytes,
            used_max_bytes: arena.used_max_bytes,
            resident_bytes: arena.resident_bytes,
            side_bytes: self.pool.side_bytes(arena.resident_bytes) as u64 + arena.side_bytes,
        }
    }

    /// Closes the chosen blocks. Those that are gone by now are left out.
    fn close(&self, chosen: Result<Vec<Victim>>) -> Result<Vec<Victim>> {
        let mut victims = chosen?;
        victims.retain(|victim| self.pool.set_closed(*victim, true));
        // What the pool kept in them for other objects must not hold them.
        self.make_room();
        Ok(victims)
    }
}
