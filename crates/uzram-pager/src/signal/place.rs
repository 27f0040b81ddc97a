//! One place of the table of ranges: written by its owner, read by signal handlers without a lock.

use std::ptr::NonNull;

use crate::sync::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};

/// All zeroes are an empty place.
#[derive(Debug, Default)]
pub(super) struct Place {
    is_taken: AtomicBool,
    /// Odd while it is changed.
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    server: AtomicPtr<()>,
}

impl Place {
    /// Whether it was free, and is the caller's now.
    pub fn take(&self) -> bool {
        let taken =
            self.is_taken
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    /// Empties it for another owner.
    pub fn give_back(&self) {
        self.set(0, 0, std::ptr::null_mut());
        self.is_taken.store(false, Ordering::Release);
    }

    /// By whoever has taken the place.
    pub fn set(&self, start: usize, end: usize, server: *mut ()) {
        let version = self.begin_change();
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.server.store(server, Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
    }

    /// Lets readers pass the place over, and gives the version before.
    pub fn begin_change(&self) -> usize {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        version
    }

    /// The server of `address`, if the place has it and does not change.
    pub fn find<T>(&self, address: usize) -> Option<NonNull<T>> {
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        let server = self.server.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        NonNull::new(server.cast()).filter(|_| is_whole && (start..end).contains(&address))
    }
}
