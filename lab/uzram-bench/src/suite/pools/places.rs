//! Objects in numbered places: what every side is driven through.

use crate::error::{Error, Result};

/// Objects in numbered places, used by one thread at a time.
pub(super) trait Heap: Send {
    /// Stores a copy of `bytes` in an empty place.
    fn insert(&mut self, place: usize, bytes: &[u8]) -> Result<()>;

    /// Frees the place's object, if there is one.
    fn remove(&mut self, place: usize);

    /// The place's object; nothing for an empty place.
    fn bytes(&self, place: usize) -> &[u8];

    /// Exchanges the objects of two places, which moves no bytes.
    fn swap(&mut self, one: usize, other: usize);

    /// Moves objects together and gives back what becomes free; false where that cannot be.
    fn compact(&mut self) -> Result<bool> {
        Ok(false)
    }
}

/// The error of a side that gets no memory.
pub(super) fn no_memory() -> Error {
    Error::Failed("no memory for an object; close other programs or use --quick".to_owned())
}
