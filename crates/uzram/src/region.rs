//! The engine's only memory mapping: a range of address space whose pages come and go.
//!
//! A region reserves addresses, not memory. Pages arrive by [`Region::populate`], which reports
//! failure as an error where a plain store would be a fault, and leave by [`Region::release`].
//! Offsets into a region mean the same in every process that maps it, so nothing stored in one
//! may hold a pointer.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::sync::MappedU32;
#[cfg(any(test, not(uzram_shuttle)))]
use crate::sync::MappedU64;

/// Size of a huge page, and the granularity of a region's start address, in bytes.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What the system gives and takes back at once, in bytes.
pub(crate) const PAGE_BYTES: usize = 4096;

/// What a region's pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Anonymous memory of this process.
    Private,
    /// An anonymous file, which another process can map and which outlives this one there.
    #[cfg_attr(not(test), allow(dead_code))]
    Memfd,
}

/// A file or DAX device mapped shared, for as long as this value lives.
///
/// Its memory can go at any moment (the file is cut off, the medium has a bad line): the access is
/// then a SIGBUS. So it hands out no references, and only code that survives one may touch it.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    start: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: owns a range of address space and no data; it hands out raw pointers only, whose use is
// its caller's duty.
unsafe impl Send for SharedMapping {}
// SAFETY: as above; no method changes anything.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first `length_bytes` of `file`, writable where `is_writable`. With `is_synchronous` the
    /// file system vouches that a store which left the CPU's caches is durable; only DAX can.
    ///
    /// # Errors
    /// What the system says; `EOPNOTSUPP` where the file is no DAX.
    pub(crate) fn new(
        file: &OwnedFd,
        length_bytes: usize,
        is_writable: bool,
        is_synchronous: bool,
    ) -> Result<SharedMapping, Errno> {
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
        Ok(SharedMapping {
            start: NonNull::new(at.cast()).expect("mmap does not return page zero"),
            length_bytes,
        })
    }

    /// A pointer to `length` bytes at `offset`, which must lie inside; otherwise the caller has a bug
    /// that must not become a wild access.
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
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` made; it gave out no references.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A mapped range, zero-filled where nothing was written, aligned to [`HUGE_PAGE_BYTES`].
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    length_bytes: usize,
    mapping: NonNull<c_void>,
    mapping_bytes: usize,
    file: Option<OwnedFd>,
}

// SAFETY: a region is plain memory owned by this value; it hands out shared references only to
// atomics, and raw pointers whose use is its caller's duty.
unsafe impl Send for Region {}
// SAFETY: as above; all methods take `&self` and change nothing but page tables.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `length_bytes`, rounded up to whole pages.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`] if the address space or the system does not have that much.
    pub(crate) fn reserve(length_bytes: usize, backing: Backing) -> Result<Region> {
        memory::gate()?;
        let file = match backing {
            Backing::Private => None,
            Backing::Memfd => {
                let file = rustix::fs::memfd_create("uzram", MemfdFlags::CLOEXEC)
                    .map_err(|errno| reserve_error(length_bytes, errno))?;
                rustix::fs::ftruncate(&file, round_up(length_bytes)? as u64)
                    .map_err(|errno| reserve_error(length_bytes, errno))?;
                Some(file)
            }
        };
        Region::map(length_bytes, file)
    }

    /// Maps the same memory as `file`, a region's, once more.
    #[cfg(test)]
    pub(crate) fn attach(file: OwnedFd) -> Result<Region> {
        let length = rustix::fs::fstat(&file)
            .expect("a memfd has a size")
            .st_size as usize;
        Region::map(length, Some(file))
    }

    #[cfg(test)]
    pub(crate) fn file(&self) -> OwnedFd {
        self.file
            .as_ref()
            .expect("a memfd region")
            .try_clone()
            .expect("a spare descriptor")
    }

    fn map(length_bytes: usize, file: Option<OwnedFd>) -> Result<Region> {
        let length_bytes = round_up(length_bytes)?;
        // An anonymous mapping over-reserves so that an aligned start exists within; the file is
        // then mapped over that part.
        let mapping_bytes = length_bytes
            .checked_add(HUGE_PAGE_BYTES)
            .ok_or_else(|| reserve_error(length_bytes, Errno::NOMEM))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let mapping = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapping_bytes,
                protection,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|errno| reserve_error(length_bytes, errno))?;
        let padding = mapping.addr().wrapping_neg() % HUGE_PAGE_BYTES;
        let mut region = Region {
            start: NonNull::new(mapping.wrapping_byte_add(padding).cast())
                .expect("mmap does not return page zero"),
            length_bytes,
            mapping: NonNull::new(mapping).expect("mmap does not return page zero"),
            mapping_bytes,
            file: None,
        };
        if let Some(file) = file {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
            let at = region.start.as_ptr().cast();
            // SAFETY: replaces a part of the mapping made above, which nothing refers to yet.
            unsafe { rustix::mm::mmap(at, length_bytes, protection, flags, &file, 0) }
                .map_err(|errno| reserve_error(length_bytes, errno))?;
            region.file = Some(file);
        }
        Ok(region)
    }

    pub(crate) fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// Whether huge pages can back this region: only private memory, for what a file does depends
    /// on a system-wide setting.
    pub(crate) fn takes_huge_pages(&self) -> bool {
        self.file.is_none()
    }

    /// Makes the pages of `range` resident, as huge pages where wanted and possible.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`]; some of the range may be resident then.
    pub(crate) fn populate(&self, range: Range<usize>, huge: bool) -> Result<()> {
        let (at, length) = self.span(&range);
        let page_size = if huge {
            Advice::LinuxHugepage
        } else {
            Advice::LinuxNoHugepage
        };
        // A kernel without huge pages refuses the advice; small pages serve as well.
        // SAFETY: `span` checked that the range lies in this region; the advice changes no content.
        let _ = unsafe { rustix::mm::madvise(at, length, page_size) };
        self.populate_as_advised(range)
    }

    /// Lets no huge page back the region: its pages come and go one by one.
    pub(crate) fn keep_small(&self) {
        let (at, length) = self.span(&(0..self.length_bytes));
        // A kernel without huge pages refuses the advice.
        // SAFETY: the region is ours; the advice changes no content.
        let _ = unsafe { rustix::mm::madvise(at, length, Advice::LinuxNoHugepage) };
    }

    /// As [`Region::populate`], with the size of pages that was advised before.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`]; some of the range may be resident then.
    pub(crate) fn populate_as_advised(&self, range: Range<usize>) -> Result<()> {
        memory::gate()?;
        let (at, length) = self.span(&range);
        // SAFETY: `span` checked that the range lies in this region; populating changes no content.
        match unsafe { rustix::mm::madvise(at, length, Advice::LinuxPopulateWrite) } {
            Ok(()) => Ok(()),
            // Before Linux 5.14 pages come at the first store.
            Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(Error::new(
                ErrorKind::NoMemory,
                "the system gave no memory for compressed pages; free some or set a mem_limit",
            )
            .with_source(errno)),
        }
    }

    /// Gives the pages of `range` back to the system; it reads as zeroes afterwards.
    ///
    /// Where the system refuses even that (memory locked on a kernel before 5.18), the pages stay:
    /// correct, since whoever takes the range next overwrites it, only not smaller.
    pub(crate) fn release(&self, range: Range<usize>) {
        let (at, length) = self.span(&range);
        if let Some(file) = &self.file {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(file, punch, range.start as u64, length as u64);
            return;
        }
        // SAFETY: `span` checked the range. The caller owns it whole and holds no reference into
        // it, so nobody sees the content go.
        let dropped = unsafe { rustix::mm::madvise(at, length, Advice::LinuxDontNeed) };
        if dropped == Err(Errno::INVAL) {
            // SAFETY: as above, for memory that is locked.
            let _ = unsafe { rustix::mm::madvise(at, length, Advice::LinuxDontneedLocked) };
        }
    }

    /// Breaks up the huge page that `range` is a part of: otherwise releasing the part would unmap it
    /// and free nothing, for the system keeps a huge page whole until it is short of memory.
    ///
    /// Where the system refuses (locked memory, or before Linux 5.4) the memory goes back late.
    pub(crate) fn split_huge_page(&self, range: Range<usize>) {
        let (at, length) = self.span(&range);
        // SAFETY: `span` checked the range; the advice changes no content. Any advice that is given
        // to a part makes the kernel split; "cold" is also true.
        let _ = unsafe { rustix::mm::madvise(at, length, Advice::LinuxCold) };
    }

    /// The whole region as words.
    #[cfg(any(test, not(uzram_shuttle)))]
    pub(crate) fn words(&self) -> &[MappedU64] {
        // SAFETY: the memory is mapped for as long as `self`, aligned to 2 MiB, a multiple of
        // 4096 bytes long, and any bit pattern is a valid u64.
        unsafe {
            std::slice::from_raw_parts(
                self.start.as_ptr().cast::<MappedU64>(),
                self.length_bytes / size_of::<MappedU64>(),
            )
        }
    }

    /// The whole region as half words.
    pub(crate) fn half_words(&self) -> &[MappedU32] {
        // SAFETY: as in `words`.
        unsafe {
            std::slice::from_raw_parts(
                self.start.as_ptr().cast::<MappedU32>(),
                self.length_bytes / size_of::<MappedU32>(),
            )
        }
    }

    /// A pointer to the bytes of `range`.
    pub(crate) fn pointer(&self, range: &Range<usize>) -> NonNull<u8> {
        let (at, _) = self.span(range);
        NonNull::new(at.cast()).expect("an address inside a mapping")
    }

    /// Start and length of `range`, which must lie inside; otherwise the caller has a bug that must
    /// not become a wild access.
    fn span(&self, range: &Range<usize>) -> (*mut c_void, usize) {
        assert!(
            range.start <= range.end && range.end <= self.length_bytes,
            "range {range:?} outside a region of {} bytes",
            self.length_bytes
        );
        // SAFETY: the assertion keeps the result inside the mapping.
        let at = unsafe { self.start.as_ptr().add(range.start) };
        (at.cast(), range.end - range.start)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `map` made; references into it borrow `self` and are gone.
        let unmapped = unsafe { rustix::mm::munmap(self.mapping.as_ptr(), self.mapping_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

fn round_up(length_bytes: usize) -> Result<usize> {
    length_bytes
        .max(1)
        .checked_next_multiple_of(PAGE_BYTES)
        .ok_or_else(|| reserve_error(length_bytes, Errno::NOMEM))
}

fn reserve_error(length_bytes: usize, errno: Errno) -> Error {
    Error::new(
        ErrorKind::NoMemory,
        format!("cannot reserve {length_bytes} bytes of address space; choose a smaller size"),
    )
    .with_source(errno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    fn both_backings_keep_what_is_written_and_zero_what_is_released() {
        for backing in [Backing::Private, Backing::Memfd] {
            let region = Region::reserve(4 * HUGE_PAGE_BYTES, backing).unwrap();
            region
                .populate(0..HUGE_PAGE_BYTES, backing == Backing::Private)
                .unwrap();
            region.words()[7].store(42, Ordering::Relaxed);
            assert_eq!(region.words()[7].load(Ordering::Relaxed), 42);
            region.release(0..HUGE_PAGE_BYTES);
            assert_eq!(region.words()[7].load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn a_memfd_region_is_the_same_memory_when_attached_again() {
        let region = Region::reserve(8192, Backing::Memfd).unwrap();
        region.words()[3].store(9, Ordering::Relaxed);
        let again = Region::attach(region.file()).unwrap();
        drop(region);
        assert_eq!(again.words()[3].load(Ordering::Relaxed), 9);
    }

    #[test]
    fn sizes_over_the_address_space_are_refused() {
        for length in [usize::MAX, usize::MAX - 4096, 1 << 60] {
            let error = Region::reserve(length, Backing::Private).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoMemory);
        }
    }

    #[test]
    #[should_panic(expected = "outside a region")]
    fn a_range_outside_is_caught() {
        let region = Region::reserve(4096, Backing::Private).unwrap();
        region.release(0..8192);
    }
}
