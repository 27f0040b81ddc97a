//! Memory that a queue shares with the kernel: the table of descriptions, and the requests' buffers.
//!
//! A mapping lives until it is dropped, or for ever if it is abandoned: memory to which the kernel
//! may still write must not be reused.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use super::protocol::{DEPTH_MAX, DESCRIPTOR_BYTES, Descriptor};

/// Pages that are mapped.
struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
    is_abandoned: bool,
}

impl Mapping {
    fn adopt(start: *mut c_void, bytes: usize) -> io::Result<Mapping> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping {
            start,
            bytes,
            is_abandoned: false,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_abandoned {
            return;
        }
        // SAFETY: made by mmap with this length and unmapped here only; whoever borrowed from it borrowed
        // its owner, which is being dropped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// A queue's table of descriptions, which the kernel writes.
pub(super) struct Descriptors {
    mapping: Mapping,
    depth: u16,
}

impl Descriptors {
    /// Maps the table of `queue` of the device whose node is `node`.
    pub(super) fn map(node: BorrowedFd<'_>, queue: u16, depth: u16) -> io::Result<Descriptors> {
        let page_bytes = uzram::system_page::size_bytes();
        let all = (usize::from(DEPTH_MAX) * DESCRIPTOR_BYTES).next_multiple_of(page_bytes);
        let bytes = (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(page_bytes);
        let offset = u64::from(queue) * all as u64;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory of ours.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ,
                flags,
                node,
                offset,
            )
        }?;
        let mapping = Mapping::adopt(start, bytes)?;
        Ok(Descriptors { mapping, depth })
    }

    /// The description under `tag`.
    ///
    /// # Panics
    /// If the tag is not below the depth.
    pub(super) fn read(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "tag {tag} of {}", self.depth);
        let start = self.mapping.start.cast::<[u8; DESCRIPTOR_BYTES]>();
        // SAFETY: the mapping holds `depth` descriptions, and the tag is below that.
        let place = unsafe { start.add(usize::from(tag)) };
        // SAFETY: the place is mapped and readable, and bytes need no alignment. The kernel wrote it before
        // the arrival that was seen, and all values are valid; volatile, since it is not ours to assume so.
        let bytes = unsafe { place.read_volatile() };
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|index| bytes[at + index]));
        let long = [8, 9, 10, 11, 12, 13, 14, 15].map(|index: usize| bytes[index]);
        Descriptor {
            operation_and_flags: word(0),
            sectors: word(4),
            first_sector: u64::from_ne_bytes(long),
        }
    }
}

/// A buffer for each tag of a queue, which the kernel fills and empties.
pub(super) struct Buffers {
    mapping: Mapping,
    each_bytes: usize,
    depth: u16,
}

impl Buffers {
    /// Reserves `depth` buffers; memory is taken when they are first used.
    pub(super) fn new(depth: u16, each_bytes: u32) -> io::Result<Buffers> {
        let each_bytes = usize::try_from(each_bytes).map_err(io::Error::other)?;
        let bytes = usize::from(depth).checked_mul(each_bytes);
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let (anywhere, flags) = (std::ptr::null_mut(), MapFlags::PRIVATE);
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory of ours.
        let start = unsafe { rustix::mm::mmap_anonymous(anywhere, bytes, protection, flags) }?;
        Ok(Buffers {
            mapping: Mapping::adopt(start, bytes)?,
            each_bytes,
            depth,
        })
    }

    /// The address of the buffer of `tag`, for the kernel.
    pub(super) fn address(&self, tag: u16) -> u64 {
        let offset = usize::from(tag) * self.each_bytes;
        (self.mapping.start.as_ptr().expose_provenance() + offset) as u64
    }

    /// The buffer of `tag`, which must be with us and not with the kernel.
    ///
    /// # Panics
    /// If the tag is not below the depth.
    pub(super) fn get(&mut self, tag: u16) -> &mut [u8] {
        assert!(tag < self.depth, "tag {tag} of {}", self.depth);
        let offset = usize::from(tag) * self.each_bytes;
        // SAFETY: the mapping holds `depth` buffers, and the tag is below that.
        let start = unsafe { self.mapping.start.cast::<u8>().add(offset) };
        // SAFETY: mapped, readable, writable, and zeroed by the kernel before its first use. Borrowing all
        // buffers mutably excludes another slice; the kernel writes to a buffer only between the commit of
        // its tag and the next arrival under it, and the queue asks for a buffer only outside of that.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.each_bytes) }
    }

    /// Never unmaps the buffers: tags stay with the kernel, which may write to their buffers at
    /// any time.
    pub(super) fn abandon(&mut self) {
        self.mapping.is_abandoned = true;
    }
}
