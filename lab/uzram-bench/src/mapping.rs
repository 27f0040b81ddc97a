//! Memory straight from the kernel, aligned to 2 MiB, that can be made fresh again.
//!
//! The only unsafe code of this crate. A benchmark needs three things that `Vec` cannot give: huge
//! pages like those of the engine's arena, alignment for O_DIRECT, and memory whose next touch
//! costs what a first touch costs.

use std::ffi::c_void;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Size of a huge page, and the alignment of every mapping, in bytes.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The pages that the kernel should back a mapping with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Huge pages where the system grants them, as in the engine's arena.
    Huge,
    /// Pages of 4 KiB, as a file in memory has them.
    Small,
    /// The pages that the system gives by default.
    Default,
}

/// Private zeroed memory of a fixed length.
///
/// Invariant: `base..base+length` lies in the mapping `raw..raw+raw_length`, which this value alone
/// owns, readable and writable until it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    raw: NonNull<c_void>,
    raw_length: usize,
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping owns its memory alone, like a Vec<u8>; access goes through & and &mut.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared access is read-only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes; nothing is touched yet.
    pub(crate) fn new(length: usize, backing: Backing) -> io::Result<Mapping> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let raw_length = length.checked_add(HUGE_PAGE_BYTES).ok_or_else(too_large)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no other memory.
        let raw = unsafe { mmap_anonymous(std::ptr::null_mut(), raw_length, protection, flags) }?;
        let raw = NonNull::new(raw).ok_or_else(too_large)?;
        let skip = raw.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: skip < HUGE_PAGE_BYTES, so skip + length lies within the mapping.
        let base = unsafe { raw.cast::<u8>().add(skip) };
        let mut mapping = Mapping {
            raw,
            raw_length,
            base,
            length,
        };
        // A kernel without huge pages says EINVAL; small pages then serve all sides alike.
        let _ = match backing {
            Backing::Huge => mapping.advise(Advice::LinuxHugepage),
            Backing::Small => mapping.advise(Advice::LinuxNoHugepage),
            Backing::Default => Ok(()),
        };
        Ok(mapping)
    }

    /// Gives the memory back to the system: it reads as zeroes, and the next touch is a first one.
    pub(crate) fn make_fresh(&mut self) -> io::Result<()> {
        self.make_range_fresh(0..self.length)
    }

    /// The same for a range that lies within and starts at a multiple of 2 MiB.
    pub(crate) fn make_range_fresh(&mut self, range: Range<usize>) -> io::Result<()> {
        let part = &mut self[range];
        let (base, length) = (part.as_mut_ptr().cast::<c_void>(), part.len());
        // SAFETY: `part` is borrowed mutably: nobody looks at the memory while it becomes zeroes,
        // and any content is valid for u8.
        unsafe { madvise(base, length, Advice::LinuxDontNeed) }?;
        Ok(())
    }

    /// Lets the system swap all of it.
    pub(crate) fn page_out(&mut self) -> io::Result<()> {
        self.advise(Advice::LinuxPageOut)
    }

    fn advise(&mut self, advice: Advice) -> io::Result<()> {
        let base = self.base.as_ptr().cast::<c_void>();
        // SAFETY: the mapping is ours, and advice on the size of pages or on swap changes no content.
        unsafe { madvise(base, self.length, advice) }?;
        Ok(())
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the invariant; the kernel zeroes what was never written.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the invariant, and &mut self is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's alone and is not used again.
        let unmapped = unsafe { munmap(self.raw.as_ptr(), self.raw_length) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_memory_reads_as_zeroes_again() {
        let mut mapping = Mapping::new(3 << 20, Backing::Huge).unwrap();
        assert_eq!(mapping.as_ptr().align_offset(HUGE_PAGE_BYTES), 0);
        assert_eq!(mapping.len(), 3 << 20);
        mapping.fill(0xa5);
        mapping.make_fresh().unwrap();
        assert!(mapping.iter().all(|&byte| byte == 0));
    }
}
