//! The mark of memory that has vanished.

use crate::sync::{AtomicBool, Ordering, fence};

/// Set before zeroes replace the memory, and looked at after bytes were read from it.
#[derive(Debug)]
pub(super) struct Mark(pub(super) AtomicBool);

impl Mark {
    /// Bytes read before this may be zeroes of the replacement.
    pub fn is_set(&self) -> bool {
        // A load that acquires would let an earlier read come after it.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed)
    }

    /// Before the memory is there, so whoever reads of it sees the mark. The system call lies between.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// For a region that nobody reads yet.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
