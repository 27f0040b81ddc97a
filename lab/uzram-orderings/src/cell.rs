//! A number that is no atomic. Loom fails a model in which an access to it is not ordered.

#![allow(unsafe_code)]

use loom::cell::UnsafeCell;

pub(crate) struct Cell(UnsafeCell<u32>);

impl Cell {
    pub(crate) fn new(value: u32) -> Cell {
        Cell(UnsafeCell::new(value))
    }

    pub(crate) fn get(&self) -> u32 {
        // SAFETY: loom runs one thread at a time, and ends the model at an access that races a write.
        self.0.with(|value| unsafe { *value })
    }

    pub(crate) fn set(&self, new: u32) {
        // SAFETY: as above, for any other access.
        self.0.with_mut(|value| unsafe { *value = new });
    }
}
