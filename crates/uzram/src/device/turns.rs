//! One request at a time in a page of plain memory.
//!
//! Copies into the same page would mix, and a page could go while it is read. Locks are striped: pages
//! that share one wait for each other without need, which is rare and short.

use crossbeam_utils::CachePadded;

use crate::error::Result;
use crate::memory;
use crate::sync::{Mutex, MutexGuard};

/// Locks of a device. Successive pages have different ones.
const STRIPES: usize = 256;

/// The locks of a device's pages. A thread holds one of them, or a run in ascending order.
#[derive(Debug)]
pub(super) struct Turns {
    stripes: Box<[CachePadded<Mutex<()>>]>,
}

impl Turns {
    pub(super) fn new() -> Result<Turns> {
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
    pub(super) fn take(&self, page: u64) -> MutexGuard<'_, ()> {
        self.stripes[page as usize % STRIPES].lock()
    }

    /// Waits for the turns of `N` pages from `first` on, a multiple of `N`, a divisor of
    /// [`STRIPES`]: then they ascend, and two threads never wait for each other.
    pub(super) fn take_run<const N: usize>(&self, first: u64) -> [MutexGuard<'_, ()>; N] {
        const { assert!(STRIPES.is_multiple_of(N)) };
        debug_assert!(first.is_multiple_of(N as u64));
        std::array::from_fn(|at| self.take(first + at as u64))
    }
}
