//! Handles: the ownership and the place of an object.
//!
//! Ownership is a value: a [`Handle`] cannot be copied, so its holder is the object's one owner.
//! An object's place is its offset in the arena, so a handle means the same in every process.

#![allow(unsafe_code)]

/// Objects start at multiples of this, in bytes. A slot word holds the quotient.
pub(crate) const GRANULE_BYTES: usize = 8;

/// Bits of a slot word for an object's place, in granules: 2 TiB.
pub(crate) const GRANULE_BITS: u32 = 38;

/// The one owner of one object: its place and its size.
///
/// Losing a handle leaks the object. So dropping one is a bug, and debug builds panic on it.
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

    /// Takes the handle apart. The holder of the parts owns the object.
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
