//! An allocator over compressed memory.
//!
//! Its tables lie beside the range, because reading one inside would bring a page in. They are made once: afterwards
//! nothing is allocated, so that a global allocator can be built on it. Pages of no allocation are empty, so nothing
//! compresses them, and a new run of pages is zero.
//!
//! There is one lock. Nobody touches the range, or waits for the pager, while holding it.

#![allow(unsafe_code)]

mod lists;
mod runs;
mod slabs;

use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use allocator_api2::alloc::{AllocError, Allocator};
use uzram::{Error, ErrorKind, Result};

use crate::handler::FaultHandler;
use crate::mapping::{Birthmark, PAGE_BYTES};
use crate::memory::CompressedMemory;
use crate::statistics::Statistics;
use runs::{ALONE, Runs};
use slabs::{Class, Slabs};

/// Parts of a [`CompressedMemory`], for collections that take an [`Allocator`].
///
/// ```
/// use allocator_api2::vec::Vec;
/// use uzram_pager::{CompressedHeap, CompressedMemory};
///
/// # fn main() -> Result<(), uzram::Error> {
/// # if CompressedMemory::new(1, 1 << 20).is_err() { return Ok(()) }
/// // 256 MiB for allocations, at most 16 MiB of them uncompressed.
/// let heap = CompressedHeap::new(CompressedMemory::new(256 << 20, 16 << 20)?)?;
/// let mut squares = Vec::new_in(&heap);
/// squares.extend((0..4_000_000_u64).map(|number| number * number));
/// assert_eq!(squares[3_000_000], 9_000_000_000_000);
/// let mut map = hashbrown::HashMap::new_in(&heap);
/// map.insert("key", squares);
/// # Ok(())
/// # }
/// ```
///
/// A large vector grows in place while the pages behind it are free, and shrinks in place. Zeroed memory of more than
/// 3584 bytes costs nothing until it is touched. Memory that is freed in whole pages goes back to the system at once.
///
/// # Threads
///
/// The heap is `Send` and `Sync`, and one lock serves all threads. What it handed out may be used as the global
/// allocator's memory may, system calls included: see [`CompressedMemory`].
///
/// # Ends
///
/// Collections borrow the heap, or own a clone of it, so it outlives them. A clone is the same heap. The last one's drop
/// ends the pager and the range.
///
/// A child after a fork has no allocations: touching one is a SIGSEGV, so it must not drop values whose drop reads what lies
/// there. The child's attempts to allocate fail, and what it frees is left alone. A child of `posix_spawn` or `vfork`
/// shares its parent's memory, and sees no difference.
///
/// # Memory
///
/// Beside that of the [`CompressedMemory`] the heap takes 16 bytes per page, up to the highest page that was used, and
/// 48 per slab of small allocations.
#[derive(Clone)]
pub struct CompressedHeap(Arc<Inner>);

struct Inner {
    memory: CompressedMemory,
    tables: Mutex<Tables>,
    birthmark: Birthmark,
}

struct Tables {
    runs: Runs,
    slabs: Slabs,
}

impl Tables {
    /// The offset of a new allocation, in bytes.
    fn take(&mut self, place: Place) -> Option<usize> {
        match place {
            Place::Slot(class) => self.slabs.take(class, &mut self.runs),
            Place::Run { pages, align } => {
                let first = self.runs.take(pages, align, ALONE);
                first.map(|first| first * PAGE_BYTES)
            }
        }
    }

    fn give_slot(&mut self, class: Class, offset: usize) -> Option<(usize, usize)> {
        self.slabs.give(class, offset, &self.runs)
    }
}

/// Where allocations of a layout lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Slot(Class),
    /// Whole pages. The alignment is in pages too.
    Run {
        pages: usize,
        align: usize,
    },
}

impl Place {
    fn of(layout: Layout) -> Place {
        match Class::of(layout.size(), layout.align()) {
            Some(class) => Place::Slot(class),
            None => Place::Run {
                pages: layout.size().div_ceil(PAGE_BYTES),
                align: layout.align().div_ceil(PAGE_BYTES),
            },
        }
    }

    /// Bytes that such an allocation can use.
    fn bytes(self) -> usize {
        match self {
            Place::Slot(class) => class.slot_bytes(),
            Place::Run { pages, .. } => pages * PAGE_BYTES,
        }
    }
}

impl CompressedHeap {
    /// A heap of all of `memory`, whose content is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`] for its tables; [`ErrorKind::Io`] if the system does not drop the content, because a
    /// part is locked; [`ErrorKind::Unsupported`] before Linux 4.14.
    pub fn new(mut memory: CompressedMemory) -> Result<CompressedHeap> {
        memory.empty().map_err(|errno| {
            let text = "cannot empty compressed memory for a heap; unlock it";
            Error::new(ErrorKind::Io, text).with_source(errno)
        })?;
        let (mapping, pages) = (memory.mapping(), memory.pages());
        let base = mapping.start().addr().get() / PAGE_BYTES;
        let tables = Tables {
            runs: Runs::new(pages, base)?,
            slabs: Slabs::new(pages)?,
        };
        Ok(CompressedHeap(Arc::new(Inner {
            birthmark: Birthmark::new()?,
            tables: Mutex::new(tables),
            memory,
        })))
    }

    /// Changes the budget, in bytes: see [`CompressedMemory::set_budget`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a budget below 256 KiB or above this machine's or cgroup's memory.
    pub fn set_budget(&self, budget_bytes: usize) -> Result<()> {
        self.0.memory.set_budget(budget_bytes)
    }

    /// Lets the budget follow the memory that is left: see [`CompressedMemory::set_auto_budget`].
    ///
    /// # Errors
    /// Those of [`CompressedMemory::set_auto_budget`].
    pub fn set_auto_budget(&self, least_bytes: usize) -> Result<()> {
        self.0.memory.set_auto_budget(least_bytes)
    }

    /// The counters of faults, evictions and memory so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.0.memory.statistics()
    }

    /// Bytes of the pages that allocations take, and slabs with none in them.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.lock().runs.used() * PAGE_BYTES
    }

    pub(crate) fn fault_handler(&self) -> FaultHandler {
        self.0.memory.fault_handler()
    }

    /// Whether `address` lies in the heap's range.
    pub(crate) fn has(&self, address: *const u8) -> bool {
        let offset = address.addr().wrapping_sub(self.start().addr());
        offset < self.0.memory.pages() * PAGE_BYTES
    }

    fn start(&self) -> *mut u8 {
        self.0.memory.mapping().start().as_ptr()
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            let nowhere = std::ptr::without_provenance_mut(layout.align());
            let nowhere = NonNull::new(nowhere).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(nowhere, 0));
        }
        if !self.0.birthmark.is_parent() {
            return Err(AllocError);
        }
        let place = Place::of(layout);
        let mut offset = self.lock().take(place);
        while offset.is_none() && self.give_empty_slab() {
            offset = self.lock().take(place);
        }
        let offset = offset.ok_or(AllocError)?;
        let start = self.start().wrapping_add(offset);
        let start = NonNull::new(start).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(start, place.bytes()))
    }

    fn give(&self, start: NonNull<u8>, layout: Layout) {
        if layout.size() == 0 || !self.0.birthmark.is_parent() {
            return;
        }
        let offset = self.offset(start);
        match Place::of(layout) {
            Place::Slot(class) => {
                let empty = self.lock().give_slot(class, offset);
                if let Some((first, pages)) = empty {
                    self.give_pages(first, pages);
                }
            }
            Place::Run { pages, .. } => self.give_pages(offset / PAGE_BYTES, pages),
        }
    }

    /// Gives the pages of a slab without allocations back. False: there is none.
    fn give_empty_slab(&self) -> bool {
        let empty = self.lock().slabs.take_empty();
        if let Some((first, pages)) = empty {
            self.give_pages(first, pages);
        }
        empty.is_some()
    }

    /// Gives pages back that are this thread's until then.
    fn give_pages(&self, first: usize, pages: usize) {
        self.empty(first, pages);
        self.lock().runs.give(first, pages);
    }

    /// Drops the content of pages that are this thread's.
    fn empty(&self, first: usize, pages: usize) {
        if self.0.memory.mapping().discard(first, pages).is_ok() {
            return;
        }
        // The program has locked them.
        let start = self.start().wrapping_add(first * PAGE_BYTES);
        // SAFETY: the pages lie in the mapping, and nobody else has them.
        unsafe { start.write_bytes(0, pages * PAGE_BYTES) };
    }

    /// Makes an allocation longer or shorter where it is. The caller's layout is `to` afterwards.
    fn resize(&self, start: NonNull<u8>, from: Layout, to: Layout) -> Option<NonNull<[u8]>> {
        if from.size() == 0 || to.size() == 0 || !self.is_aligned(start, to) {
            return None;
        }
        let (was, is) = (Place::of(from), Place::of(to));
        if let (Place::Run { pages: was, .. }, Place::Run { pages: is, .. }) = (was, is) {
            if !self.0.birthmark.is_parent() {
                return None;
            }
            let first = self.offset(start) / PAGE_BYTES;
            if is < was {
                self.empty(first + is, was - is);
                self.lock().runs.shrink(first, was, is);
            } else if is > was && !self.lock().runs.grow(first, was, is) {
                return None;
            }
        } else if was != is {
            return None;
        }
        Some(NonNull::slice_from_raw_parts(start, is.bytes()))
    }

    fn is_aligned(&self, start: NonNull<u8>, to: Layout) -> bool {
        start.addr().get().is_multiple_of(to.align())
    }

    fn offset(&self, start: NonNull<u8>) -> usize {
        start.addr().get() - self.start().addr()
    }

    /// Moves an allocation's bytes to one of layout `to`.
    ///
    /// # Safety
    /// `start` is an allocation of this heap that `from` fits, of which the caller uses `to`'s or `from`'s size, the smaller.
    unsafe fn transfer(
        &self,
        start: NonNull<u8>,
        from: Layout,
        to: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        let new = self.take(to)?;
        let length = from.size().min(to.size());
        let target = new.cast::<u8>();
        // SAFETY: both allocations have that many bytes, and a new one overlaps no other.
        unsafe { target.copy_from_nonoverlapping(start, length) };
        self.give(start, from);
        Ok(new)
    }
}

// SAFETY: an allocation is a run of pages or a slot, which the tables give to one owner at a time and which nobody else
// touches. It stays where it is when the heap is moved, for the range is a mapping, until the last clone is dropped. Clones
// share the tables.
unsafe impl Allocator for CompressedHeap {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.take(layout)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let new = self.take(layout)?;
        if let Place::Slot(class) = Place::of(layout) {
            let length = class.slot_bytes().min(new.len());
            // SAFETY: the slot has that many bytes, and it is new.
            unsafe { new.cast::<u8>().write_bytes(0, length) };
        }
        Ok(new)
    }

    unsafe fn deallocate(&self, start: NonNull<u8>, layout: Layout) {
        self.give(start, layout);
    }

    unsafe fn grow(
        &self,
        start: NonNull<u8>,
        from: Layout,
        to: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        match self.resize(start, from, to) {
            Some(same) => Ok(same),
            // SAFETY: the caller's promise.
            None => unsafe { self.transfer(start, from, to) },
        }
    }

    unsafe fn grow_zeroed(
        &self,
        start: NonNull<u8>,
        from: Layout,
        to: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        let grown = unsafe { self.grow(start, from, to) }?;
        // The rest of the last page or slot had an owner. Pages behind it are zero, for they are new.
        let dirty = Place::of(from).bytes().min(grown.len());
        let from_size = from.size();
        // SAFETY: the allocation has more bytes than it had.
        let rest = unsafe { grown.cast::<u8>().add(from_size) };
        let dirty = match Place::of(to) {
            Place::Slot(_) => grown.len(),
            Place::Run { .. } => dirty,
        };
        // SAFETY: they end with the allocation, at the latest.
        unsafe { rest.write_bytes(0, dirty.saturating_sub(from_size)) };
        Ok(grown)
    }

    unsafe fn shrink(
        &self,
        start: NonNull<u8>,
        from: Layout,
        to: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        unsafe { self.grow(start, from, to) }
    }
}

impl fmt::Debug for CompressedHeap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompressedHeap")
            .field("used_bytes", &self.used_bytes())
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}
