//! Block devices and files: what a path is, and how a device is emptied.

use std::fs;

use rustix::fs::{FallocateFlags, fallocate};

/// The kind of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    Block,
    File,
}

/// Makes a device read as zeroes, by giving its blocks up; the kernel allows it to who has the device
/// exclusively, or if nobody has.
pub(crate) fn discard(device: &fs::File, size_bytes: u64) -> rustix::io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(device, punch, 0, size_bytes)
}
