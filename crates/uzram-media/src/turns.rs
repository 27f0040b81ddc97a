//! One request at a time per page of plain memory.
//!
//! Copies into the same page would mix, and a page could be freed while it is read. Locks are
//! striped: pages that share a lock wait for each other without need, which is rare and short.

use crossbeam_utils::CachePadded;

use crate::memory;
use crate::sync::{Mutex, MutexGuard};
use uzram::Result;

/// Locks of a device. Successive pages have different locks.
const STRIPES: usize = 256;

/// The locks of a device's pages. A thread holds one of them, or a run in ascending order.
#[derive(Debug)]
pub(crate) struct Turns {
    stripes: Box<[CachePadded<Mutex<()>>]>,
}

impl Turns {
    pub(crate) fn new() -> Result<Turns> {
        let mut stripes = Vec::new();
        for _ in 0..STRIPES {
            memory::push(&mut stripes, CachePadded::new(Mutex::new(())))?;
        }
        Ok(Turns {
            stripes: stripes.into_boxed_slice(),
        })
    }

    /// Waits for `page`'s turn.
    #[inline]
    pub(crate) fn take(&self, page: u64) -> MutexGuard<'_, ()> {
        self.stripes[page as usize % STRIPES].lock()
    }

    /// Waits for the turns of `N` pages from `first` on, which is a multiple of `N`. `N` divides
    /// [`STRIPES`], so the locks ascend and two threads never wait for each other.
    pub(crate) fn take_run<const N: usize>(&self, first: u64) -> [MutexGuard<'_, ()>; N] {
        const { assert!(STRIPES.is_multiple_of(N)) };
        debug_assert!(first.is_multiple_of(N as u64));
        std::array::from_fn(|at| self.take(first + at as u64))
    }
}
