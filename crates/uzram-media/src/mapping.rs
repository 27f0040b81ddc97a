//! A range of address space: a file mapped shared, or memory of this process that is populated and
//! freed by the page.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use uzram::device::PAGE_BYTES;
use uzram::{Error, ErrorKind, Result, system_page};

/// A mapped range. It is unmapped when this value is dropped.
///
/// It hands out raw pointers only. The memory of a file can vanish at any moment (the file is
/// truncated, the medium has a bad line). The access is then a SIGBUS, and only code that survives
/// one may touch it.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length_bytes: usize,
    /// Bytes of the system's page, a power of two. Ours may be smaller.
    system_page_bytes: usize,
}

// SAFETY: owns a range of address space; it hands out raw pointers only, whose use is its caller's
// duty.
unsafe impl Send for Mapping {}
// SAFETY: as above; its methods change page tables only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `length_bytes` of `file`, writable if `is_writable`. With `is_synchronous`
    /// the file system vouches that a store is durable once it has left the CPU's caches; only DAX
    /// can.
    ///
    /// # Errors
    /// The system's error; `EOPNOTSUPP` where the file is not on DAX.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn of_file(
        file: &OwnedFd,
        length_bytes: usize,
        is_writable: bool,
        is_synchronous: bool,
    ) -> Result<Mapping, Errno> {
        let flags = if is_synchronous {
            MapFlags::SHARED_VALIDATE | MapFlags::SYNC
        } else {
            MapFlags::SHARED
        };
        let protection = if is_writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length_bytes,
                protection,
                flags,
                file,
                0,
            )
        }?;
        Ok(Mapping::owning(at, length_bytes))
    }

    /// Reserves addresses for `length_bytes`, rounded up to whole pages, that read as zeroes. Small
    /// pages back them, so that each can go back to the system singly.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`] if the address space or the system has not that much.
    pub(crate) fn reserve(length_bytes: usize) -> Result<Mapping> {
        let refused = |errno: Errno| {
            let text = format!(
                "cannot reserve {length_bytes} bytes of address space; choose a smaller size"
            );
            Error::new(ErrorKind::NoMemory, text).with_source(errno)
        };
        let length_bytes = length_bytes
            .max(1)
            .checked_next_multiple_of(PAGE_BYTES)
            .ok_or_else(|| refused(Errno::NOMEM))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(refused)?;
        // A kernel without huge pages refuses the advice.
        // SAFETY: the mapping is new; the advice changes no content.
        let _ = unsafe { rustix::mm::madvise(at, length_bytes, Advice::LinuxNoHugepage) };
        Ok(Mapping::owning(at, length_bytes))
    }

    fn owning(at: *mut c_void, length_bytes: usize) -> Mapping {
        Mapping {
            start: NonNull::new(at.cast()).expect("mmap does not return page zero"),
            length_bytes,
            system_page_bytes: system_page::size_bytes(),
        }
    }

    pub(crate) fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// Makes the pages of `range` resident, so that a lack of memory is an error and not a fault.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`]; some of the range may be resident then.
    pub(crate) fn populate(&self, range: Range<usize>) -> Result<()> {
        // An advice must begin with a page of the system.
        let (at, length) = self.span(&system_page::around(&range, self.system_page_bytes));
        // SAFETY: `span` checked that the range lies inside; populating changes no content.
        match unsafe { rustix::mm::madvise(at, length, Advice::LinuxPopulateWrite) } {
            Ok(()) => Ok(()),
            // Before Linux 5.14 pages come at the first store.
            Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(Error::new(
                ErrorKind::NoMemory,
                "the system gave no memory for pages of the disk; free some or trim the disk",
            )
            .with_source(errno)),
        }
    }

    /// Gives the pages of `range`, of reserved memory, back to the system; it reads as zeroes
    /// afterwards, except where the memory is locked and the kernel older than 5.18. Parts of pages of
    /// the system only become zeroes: the rest of such a page may be somebody else's.
    pub(crate) fn release(&self, range: Range<usize>) {
        let whole = system_page::whole(&range, self.system_page_bytes);
        self.zero(range.start..whole.start);
        self.zero(whole.end..range.end);
        if whole.is_empty() {
            return;
        }
        let (at, length) = self.span(&whole);
        // SAFETY: `span` checked the range. The caller owns it whole and holds no reference into it.
        let dropped = unsafe { rustix::mm::madvise(at, length, Advice::LinuxDontNeed) };
        if dropped == Err(Errno::INVAL) {
            // SAFETY: as above, for memory that is locked.
            let _ = unsafe { rustix::mm::madvise(at, length, Advice::LinuxDontneedLocked) };
        }
    }

    /// Makes `range`, of reserved memory, zeroes.
    fn zero(&self, range: Range<usize>) {
        let (at, length) = self.span(&range);
        // SAFETY: `span` checked the range, which can be written. The caller of `release` owns it and
        // holds no reference into it.
        unsafe { at.cast::<u8>().write_bytes(0, length) };
    }

    /// A pointer to `length` bytes at `offset`, which must lie inside. Panics otherwise: such a
    /// bug of the caller must not become a wild access.
    pub(crate) fn pointer(&self, offset: usize, length: usize) -> *mut u8 {
        let fits = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.length_bytes);
        assert!(
            fits,
            "{length} bytes at {offset} outside a mapping of {} bytes",
            self.length_bytes
        );
        // SAFETY: the assertion keeps the result inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    fn span(&self, range: &Range<usize>) -> (*mut c_void, usize) {
        let length = range.end - range.start;
        (self.pointer(range.start, length).cast(), length)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what this value was made of; it gave out no references.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_over_the_address_space_are_refused() {
        for length in [usize::MAX, usize::MAX - 4096, 1 << 60] {
            let error = Mapping::reserve(length).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoMemory);
        }
    }

    /// On a system with larger pages than ours, a page of ours has neighbours in the system's page.
    #[test]
    fn a_release_zeroes_its_range_and_no_neighbour_in_a_system_page() {
        for (released, kept) in [
            (0..1, (1..16).collect::<Vec<_>>()),
            (1..10, vec![0, 10, 11, 12, 13, 14, 15]),
            (8..16, (0..8).collect()),
        ] {
            let mut mapping = Mapping::reserve(16 * PAGE_BYTES).unwrap();
            mapping.system_page_bytes = 16384;
            // SAFETY: of this mapping, which nobody else has.
            let word = |page: usize| unsafe { &mut *mapping.pointer(page * PAGE_BYTES, 1) };
            (0..16).for_each(|page| *word(page) = 1);
            mapping.release(released.start * PAGE_BYTES..released.end * PAGE_BYTES);
            let left: Vec<usize> = (0..16).filter(|page| *word(*page) == 1).collect();
            assert_eq!(left, kept, "{released:?}");
        }
    }

    #[test]
    #[should_panic(expected = "outside a mapping")]
    fn a_range_outside_is_caught() {
        let mapping = Mapping::reserve(4096).unwrap();
        mapping.release(0..8192);
    }
}
