//! One allocation of mimalloc an object.
//!
//! mimalloc is linked beside the program's own allocator and serves nothing but these objects: it is
//! not the global allocator, and the C library's `malloc` is not replaced.

use std::ptr::NonNull;

use super::places::{Heap, no_memory};
use crate::error::Result;

/// Objects in memory of mimalloc, one a place.
pub(super) struct Mimalloc {
    places: Vec<Option<Object>>,
}

/// `length` initialised bytes at `at`, which mimalloc gave and this value alone owns.
struct Object {
    at: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory is owned by this value alone, and mimalloc lets any thread free it.
unsafe impl Send for Object {}

impl Mimalloc {
    pub(super) fn new(places: usize) -> Mimalloc {
        Mimalloc {
            places: (0..places).map(|_| None).collect(),
        }
    }
}

/// Has mimalloc give all free memory back, so that what it takes from now on is seen.
pub(super) fn collect() {
    // SAFETY: frees only memory that mimalloc holds and nobody has.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

impl Heap for Mimalloc {
    fn insert(&mut self, place: usize, bytes: &[u8]) -> Result<()> {
        // SAFETY: any size may be asked for.
        let at = unsafe { libmimalloc_sys::mi_malloc(bytes.len()) };
        let at = NonNull::new(at.cast::<u8>()).ok_or_else(no_memory)?;
        // SAFETY: `at` is new memory of that length, so it does not overlap `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
        let length = bytes.len();
        self.places[place] = Some(Object { at, length });
        Ok(())
    }

    fn remove(&mut self, place: usize) {
        self.places[place] = None;
    }

    fn bytes(&self, place: usize) -> &[u8] {
        match &self.places[place] {
            // SAFETY: the object's invariant; it is borrowed with `self`.
            Some(object) => unsafe {
                std::slice::from_raw_parts(object.at.as_ptr(), object.length)
            },
            None => &[],
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.places.swap(one, other);
    }
}

impl Drop for Mimalloc {
    /// Here, because a thread gives back only what is its own, and threads of a case do not outlive it.
    fn drop(&mut self) {
        self.places.clear();
        collect();
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: mimalloc gave it, and it is freed once, by its only owner.
        unsafe { libmimalloc_sys::mi_free(self.at.as_ptr().cast()) }
    }
}
