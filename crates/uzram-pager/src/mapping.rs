//! Ranges of private memory: the program's, and the ring's.
//!
//! Both are made of 4 KiB pages, because one page of a huge page leaves it at 200 times the cost. A child after a fork
//! sees neither: nobody would serve its faults there.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use uzram::{Error, ErrorKind, Result};

/// Size of a page, in bytes.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Whether the page at an address is in memory: of private memory that was written, and is not in swap.
pub(crate) fn is_in_memory(address: u64) -> bool {
    let mut answer = 0;
    // SAFETY: the system looks at its tables and writes one byte, of `answer`.
    let result = unsafe { libc::mincore(address as *mut c_void, PAGE_BYTES, &raw mut answer) };
    result == 0 && answer & 1 == 1
}

/// A mapped range of whole pages, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    pages: usize,
}

// SAFETY: owns a range of address space. References into it come from methods that take `&mut self`, and from
// `Program`, which nothing else makes slices of.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods that take `&self` compute addresses and drop pages of a range that nobody reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves addresses for `pages` pages. No memory is taken.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`] if the address space has not that much; [`ErrorKind::Io`] if the system cannot keep
    /// the range from children.
    pub(crate) fn reserve(pages: usize) -> Result<Mapping> {
        let mapping = Mapping::map(pages)?;
        // A kernel without huge pages refuses the advice.
        let _ = mapping.advise(0, pages, Advice::LinuxNoHugepage);
        mapping
            .advise(0, pages, Advice::LinuxDontFork)
            .map_err(|errno| {
                let text = "cannot keep compressed memory from children after a fork";
                Error::new(ErrorKind::Io, text).with_source(errno)
            })?;
        Ok(mapping)
    }

    fn map(pages: usize) -> Result<Mapping> {
        let refused = |errno: Errno| {
            let text =
                format!("cannot reserve {pages} pages of address space; choose a smaller length");
            Error::new(ErrorKind::NoMemory, text).with_source(errno)
        };
        let length = pages
            .checked_mul(PAGE_BYTES)
            .ok_or_else(|| refused(Errno::NOMEM))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(refused)?;
        let start = NonNull::new(at.cast()).expect("mmap does not return page zero");
        Ok(Mapping { start, pages })
    }

    /// Where it starts. A heap hands out parts of the range by their addresses, and nobody else makes slices of it then.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length, in pages.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// The address of page `page`.
    pub(crate) fn address(&self, page: usize) -> u64 {
        assert!(page <= self.pages, "page {page} of {}", self.pages);
        (self.start.addr().get() + page * PAGE_BYTES) as u64
    }

    /// The page at `address`, if it lies in the range.
    pub(crate) fn page_at(&self, address: u64) -> Option<usize> {
        let offset = (address as usize).checked_sub(self.start.addr().get())?;
        Some(offset / PAGE_BYTES).filter(|page| *page < self.pages)
    }

    /// The bytes of page `page`. It must be populated, or the caller waits for itself.
    pub(crate) fn page_mut(&mut self, page: usize) -> &mut [u8] {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        // SAFETY: the assertion keeps the page inside the mapping.
        let at = unsafe { self.start.as_ptr().add(page * PAGE_BYTES) };
        // SAFETY: the page is mapped for as long as `self`, any bytes are valid, and `&mut self` excludes others.
        unsafe { std::slice::from_raw_parts_mut(at, PAGE_BYTES) }
    }

    /// Gives the memory of a page that nobody reads back to the system.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn discard(&self, page: usize, pages: usize) -> Result<(), Errno> {
        self.advise(page, pages, Advice::LinuxDontNeed)
    }

    /// Wakes the pager: the system tells it that the last page is discarded. The call returns once it was told, or at once
    /// if it has ended.
    pub(crate) fn ring_bell(&self) {
        // A failure changes nothing: the page is empty.
        let _ = self.discard(self.pages - 1, 1);
    }

    fn advise(&self, page: usize, pages: usize, advice: Advice) -> Result<(), Errno> {
        assert!(page + pages <= self.pages, "{pages} pages at {page}");
        let at = self.address(page) as *mut c_void;
        // SAFETY: the assertion keeps the range inside the mapping. Of the advice given here only that of `discard`
        // changes content, of pages to which nobody holds a reference.
        unsafe { rustix::mm::madvise(at, pages * PAGE_BYTES, advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `reserve` made; references into it borrow `self` and are gone.
        let unmapped =
            unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.pages * PAGE_BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The program's bytes: the first of a mapping of which nobody else makes slices.
#[derive(Debug)]
pub(crate) struct Program {
    mapping: Arc<Mapping>,
    length_bytes: usize,
}

impl Program {
    /// The first `length_bytes` of `mapping`. Other holders of `mapping` use it for addresses only.
    pub(crate) fn new(mapping: Arc<Mapping>, length_bytes: usize) -> Program {
        assert!(length_bytes <= mapping.pages * PAGE_BYTES);
        Program {
            mapping,
            length_bytes,
        }
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Leaves the range mapped for good.
    pub(crate) fn leak(&self) {
        std::mem::forget(Arc::clone(&self.mapping));
    }
}

impl Deref for Program {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let at = self.mapping.start.as_ptr();
        // SAFETY: the mapping is that long and lives as long as `self`; any bytes are valid; only `self` makes slices
        // of it. The pager takes pages away and brings them back, which no load or store can see.
        unsafe { std::slice::from_raw_parts(at, self.length_bytes) }
    }
}

impl DerefMut for Program {
    fn deref_mut(&mut self) -> &mut [u8] {
        let at = self.mapping.start.as_ptr();
        // SAFETY: as above, and `&mut self` excludes others.
        unsafe { std::slice::from_raw_parts_mut(at, self.length_bytes) }
    }
}

/// Tells a child after a fork from its parent, without a system call.
#[derive(Debug)]
pub(crate) struct Birthmark(Mapping);

impl Birthmark {
    /// A page that the system empties in each child.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`]; [`ErrorKind::Unsupported`] before Linux 4.14.
    pub(crate) fn new() -> Result<Birthmark> {
        let mut page = Mapping::map(1)?;
        page.advise(0, 1, Advice::LinuxWipeOnFork)
            .map_err(|errno| {
                let text = "the system cannot tell a child after a fork; use Linux 4.14 or newer";
                Error::new(ErrorKind::Unsupported, text).with_source(errno)
            })?;
        page.page_mut(0)[0] = 1;
        Ok(Birthmark(page))
    }

    /// Whether this is the process that made it, or shares its memory.
    pub(crate) fn is_parent(&self) -> bool {
        // SAFETY: the page is mapped as long as `self`, and nothing writes to it after it was made.
        unsafe { self.0.start.as_ptr().read_volatile() == 1 }
    }
}
