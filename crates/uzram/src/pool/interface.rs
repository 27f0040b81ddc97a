//! The trait of pools: a pool places objects in the memory of an [`Arena`], which is not the
//! pool's.
//!
//! `insert` allocates and copies in one step, so a half-written object cannot exist. User-space
//! memory is virtually contiguous: there are no page chains and no bounce buffers, and an object
//! is read in place. A pool knows bytes and sizes, never the index of a page.

use super::arena::Arena;
use super::handle::Handle;
use super::victims::{Candidates, Victim};
use crate::error::{Error, ErrorKind, Result};

/// The reason why an object was not inserted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// No populated memory: give the stream back, call [`PoolMemory::grow`](super::PoolMemory::grow), try again.
    NeedsMemory,
    /// Bookkeeping memory could not be had.
    NoMemory,
}

/// The memory that an object may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Into a block that has room, else into pages that are populated and free.
    Any,
    /// Into a block that has room: the pool takes no page.
    InBlocks,
}

/// Places objects of 1 byte to one unit in an arena, which is the same one at every call.
///
/// All methods may be called from any thread. Locks inside are below every lock of the store.
pub(crate) trait Pool: Send + Sync {
    /// Stores a copy of `bytes`, 1 to one unit long, in memory that is populated.
    fn insert(&self, arena: &Arena, bytes: &[u8], room: Room) -> Result<Handle, Full>;

    /// Frees the object. Returns the number of pages that go to the arena.
    fn remove(&self, arena: &Arena, handle: Handle) -> usize;

    /// Whether an object of this size lies at this place.
    fn holds(&self, handle: &Handle) -> bool;

    /// Takes over an object that a predecessor stored in the arena, while the state is being rebuilt from
    /// the slot table. Nothing may be inserted until all are taken over.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if no object can lie there, [`ErrorKind::Corrupt`] if another one does: nothing has changed
    /// then. [`ErrorKind::NoMemory`]: it can be tried again.
    fn adopt(&self, arena: &Arena, handle: &Handle) -> Result<()>;

    /// The pages that an object of `size_bytes` takes where no block has room for it.
    fn pages_taken(&self, size_bytes: usize) -> usize;

    /// Gives places that are kept for objects of some sizes to those of any, which takes no
    /// memory; false if there are none.
    fn make_room(&self, _arena: &Arena) -> bool {
        false
    }

    /// The open blocks of a group whose blocks can take each other's objects; `None` after the
    /// last group. They are read without one lock for all, so they may have changed.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    fn candidates(&self, group: usize) -> Result<Option<Candidates>>;

    /// Closes a block to insertion, or opens it again; false if it is gone, or in that state
    /// already. A closed block goes back with its last object, like any other.
    fn set_closed(&self, victim: Victim, closed: bool) -> bool;

    /// Makes tables resident that an insertion would otherwise touch first.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    fn make_ready(&self) -> Result<()>;

    /// Gives bookkeeping of blocks that are gone back to the system, where no blocks came meanwhile.
    fn give_back_tables(&self, arena: &Arena);

    /// Bookkeeping besides the arena's own, in bytes, if `resident_bytes` of the arena are
    /// populated.
    fn side_bytes(&self, resident_bytes: u64) -> usize;
}

pub(super) fn lies_nowhere() -> Error {
    Error::new(ErrorKind::OutOfRange, "an object lies where none can be")
}

pub(super) fn lies_on_another() -> Error {
    Error::new(ErrorKind::Corrupt, "two objects lie on each other")
}
