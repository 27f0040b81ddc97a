//! A global allocator that takes large requests from compressed memory, and all others from the system.
//!
//! The pager allocates too, and must never wait for itself. So its requests, and all made before the heap is there, go to
//! the system. docs/design/pager.md says why that suffices.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::NonNull;
use std::sync::OnceLock;

use allocator_api2::alloc::Allocator;
use uzram::{Error, ErrorKind, Result};

use crate::alone::is_alone;
use crate::handler::FaultHandler;
use crate::heap::CompressedHeap;

/// The smallest request that a heap may serve, in bytes. What the pager reads of other threads' allocations is smaller.
const LEAST_BYTES_MIN: usize = 64 << 10;

/// A global allocator whose large allocations are compressed memory.
///
/// ```
/// use uzram_pager::{CompressedGlobal, CompressedHeap, CompressedMemory};
///
/// // Requests of 1 MiB and more.
/// #[global_allocator]
/// static GLOBAL: CompressedGlobal = CompressedGlobal::new(1 << 20);
///
/// # fn main() -> Result<(), uzram::Error> {
/// # if CompressedMemory::new(1, 1 << 20).is_err() { return Ok(()) }
/// GLOBAL.start(CompressedHeap::new(CompressedMemory::new(256 << 20, 16 << 20)?)?)?;
/// let numbers: Vec<u64> = (0..8_000_000).collect();
/// assert_eq!(numbers[5_000_000], 5_000_000);
/// assert!(GLOBAL.heap().expect("started above").used_bytes() > 60_000_000);
/// # Ok(())
/// # }
/// ```
///
/// Until [`start`](CompressedGlobal::start) all requests go to the system. Afterwards these do: smaller ones, those of the
/// pager's thread, those that the heap has no room for, and those of a child after a fork. Such a child must not touch
/// its parent's large allocations: they are a SIGSEGV there. `std::process::Command` is fine.
///
/// A codec of yours in the heap's store, and a panic hook, run on the pager's thread. They must not touch large
/// allocations of other threads: the pager would wait for itself.
#[derive(Debug)]
pub struct CompressedGlobal {
    least_bytes: usize,
    heap: OnceLock<CompressedHeap>,
}

impl CompressedGlobal {
    /// An allocator that takes requests of `least_bytes` and more from a heap, once it has one.
    ///
    /// # Panics
    /// If `least_bytes` is below 64 KiB. A static does not compile then.
    #[must_use]
    pub const fn new(least_bytes: usize) -> CompressedGlobal {
        assert!(
            least_bytes >= LEAST_BYTES_MIN,
            "least_bytes: must be 65536 or more"
        );
        CompressedGlobal {
            least_bytes,
            heap: OnceLock::new(),
        }
    }

    /// Uses `heap` from now on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a heap with [`FaultHandler::FaultingThread`]: bringing a page can allocate, and such an
    /// allocation must not lie in the heap. [`ErrorKind::Busy`] if there is one already.
    pub fn start(&self, heap: CompressedHeap) -> Result<()> {
        if heap.fault_handler() == FaultHandler::FaultingThread {
            let text =
                "a global allocator needs FaultHandler::OwnThread, and its heap has FaultingThread";
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let started = self.heap.set(heap);
        started.map_err(|_| {
            Error::new(
                ErrorKind::Busy,
                "the global allocator has a heap already; start it once",
            )
        })
    }

    /// The heap, for its counters and budget.
    #[must_use]
    pub fn heap(&self) -> Option<&CompressedHeap> {
        self.heap.get()
    }

    /// The heap, if it is to serve a request of `bytes`.
    fn heap_for(&self, bytes: usize) -> Option<&CompressedHeap> {
        self.heap()
            .filter(|_| bytes >= self.least_bytes && !is_alone())
    }

    /// The heap, if `start` is one of its allocations.
    fn heap_of(&self, start: *mut u8) -> Option<(&CompressedHeap, NonNull<u8>)> {
        let heap = self.heap().filter(|heap| heap.has(start))?;
        Some((heap, NonNull::new(start)?))
    }
}

// SAFETY: each allocation is one of the heap's or one of the system's, whose rules are the same, and its address tells which.
// Neither unwinds, and the heap allocates nothing.
unsafe impl GlobalAlloc for CompressedGlobal {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let heap = self.heap_for(layout.size());
        if let Some(new) = heap.and_then(|heap| heap.allocate(layout).ok()) {
            return new.as_ptr().cast();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let heap = self.heap_for(layout.size());
        if let Some(new) = heap.and_then(|heap| heap.allocate_zeroed(layout).ok()) {
            return new.as_ptr().cast();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        match self.heap_of(start) {
            // SAFETY: the address is in the heap, and the rest is the caller's promise.
            Some((heap, start)) => unsafe { heap.deallocate(start, layout) },
            // SAFETY: the address is not in the heap, and the rest is the caller's promise.
            None => unsafe { System.dealloc(start, layout) },
        }
    }

    unsafe fn realloc(&self, start: *mut u8, from: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size suits the alignment.
        let to = unsafe { Layout::from_size_align_unchecked(size, from.align()) };
        let target = self.heap_for(size);
        let same = match (self.heap_of(start), target) {
            // SAFETY: the allocation is the system's, and the rest is the caller's promise.
            (None, None) => return unsafe { System.realloc(start, from, size) },
            // SAFETY: the allocation is the heap's, which takes any size, and the rest is the caller's promise.
            (Some((heap, start)), Some(_)) => unsafe { heap.grow(start, from, to) }.ok(),
            _ => None,
        };
        if let Some(same) = same {
            return same.as_ptr().cast();
        }
        // From one to the other, or the heap is full.
        // SAFETY: the caller promises that the size is not zero.
        let new = unsafe { self.alloc(to) };
        if !new.is_null() {
            // SAFETY: both have that many bytes, and a new allocation overlaps no other.
            unsafe { new.copy_from_nonoverlapping(start, from.size().min(size)) };
            // SAFETY: the caller's promise, and nobody uses it any more.
            unsafe { self.dealloc(start, from) };
        }
        new
    }
}
