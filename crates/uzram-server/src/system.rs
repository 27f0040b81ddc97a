//! System calls that no crate of ours wraps: the loop driver's ioctls, and swap.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

// From linux/loop.h and linux/fs.h.
const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LO_FLAGS_DIRECT_IO: u32 = 16;
const BLKFLSBUF: libc::Ioctl = 0x1261;

// From linux/swap.h.
const SWAP_FLAG_PREFER: i32 = 0x8000;
const SWAP_FLAG_DISCARD: i32 = 0x1_0000;
const SWAP_FLAG_DISCARD_PAGES: i32 = 0x4_0000;
/// Memory is asked of malloc in pieces of this size, in bytes, which it does not map singly.
const HEAP_PIECE_BYTES: usize = 64 << 10;
/// By how much the heap grows once it is used up, in bytes.
#[cfg(target_env = "gnu")]
const HEAP_GROWTH_BYTES: i32 = 1 << 20;

/// Highest priority of a swap device.
pub const SWAP_PRIORITY_MAX: u16 = 32767;

/// Bytes of a loop device's label, its terminating zero included.
pub(crate) const LABEL_BYTES: usize = 64;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; LABEL_BYTES],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_bytes: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

impl LoopInfo {
    const EMPTY: LoopInfo = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; LABEL_BYTES],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

/// The number of a loop device that is free at this moment.
pub(crate) fn loop_free(control: &File) -> io::Result<u32> {
    // SAFETY: this request takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

/// Puts `file` under the free loop device `device`: direct I/O, blocks of `block_bytes`, and a label
/// by which it is known again.
pub(crate) fn loop_configure(
    device: &File,
    file: &File,
    block_bytes: u32,
    label: &[u8; LABEL_BYTES],
) -> io::Result<()> {
    let config = LoopConfig {
        fd: file.as_raw_fd().cast_unsigned(),
        block_bytes,
        info: LoopInfo {
            flags: LO_FLAGS_DIRECT_IO,
            file_name: *label,
            ..LoopInfo::EMPTY
        },
        reserved: [0; 8],
    };
    // SAFETY: the argument is the structure that this request reads, alive for the call.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    checked(done)
}

/// The label of a loop device; an error where it has no file.
pub(crate) fn loop_label(device: &File) -> io::Result<[u8; LABEL_BYTES]> {
    let mut info = LoopInfo::EMPTY;
    // SAFETY: the argument is the structure that this request fills, alive for the call; all bit
    // patterns are valid in it.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    checked(done).map(|()| info.file_name)
}

/// Takes the file away. While somebody else has the device open, the kernel does it at the last
/// close.
pub(crate) fn loop_clear(device: &File) -> io::Result<()> {
    // SAFETY: this request takes no argument.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD) })
}

/// Writes the kernel's copies of a block device's content out and forgets them.
pub(crate) fn flush_buffers(device: &File) -> io::Result<()> {
    // SAFETY: this request takes no argument.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF) })
}

/// Starts swapping to a block device that has a swap header. Pages that become free are discarded,
/// so that their memory is not held.
///
/// # Errors
/// What the system says; a priority above [`SWAP_PRIORITY_MAX`] is cut.
pub fn swap_on(device: &Path, priority: Option<u16>) -> io::Result<()> {
    let prefer = |priority: u16| SWAP_FLAG_PREFER | i32::from(priority.min(SWAP_PRIORITY_MAX));
    let flags = priority.map_or(0, prefer) | SWAP_FLAG_DISCARD | SWAP_FLAG_DISCARD_PAGES;
    let path = CString::new(device.as_os_str().as_bytes())?;
    // SAFETY: the path ends in a zero byte and is alive for the call.
    checked(unsafe { libc::swapon(path.as_ptr(), flags) })
}

/// Stops swapping to a device: everything in it is read back into memory first.
///
/// # Errors
/// What the system says; `ENOMEM` where memory does not suffice.
pub fn swap_off(device: &Path) -> io::Result<()> {
    /// The kernel stops where it was for a signal, and for what is left of an io_uring that this thread
    /// has closed; then it goes on from there.
    const TRIES: u32 = 100;
    let path = CString::new(device.as_os_str().as_bytes())?;
    for _ in 1..TRIES {
        // SAFETY: the path ends in a zero byte and is alive for the call.
        match checked(unsafe { libc::swapoff(path.as_ptr()) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

fn checked(returned: libc::c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Keeps malloc from giving memory back, and from making a heap for each thread, where it is the GNU C
/// library's: one serves all threads. To make or grow a heap is to wait for whoever has this process's memory
/// map locked. For the threads that are started afterwards.
pub(crate) fn keep_heap() {
    #[cfg(target_env = "gnu")]
    for (what, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_TOP_PAD, HEAP_GROWTH_BYTES),
        (libc::M_TRIM_THRESHOLD, i32::MAX),
    ] {
        // SAFETY: sets a number of the allocator's, under its lock.
        unsafe { libc::mallopt(what, value) };
    }
}

/// Gets malloc `bytes` that are in memory and free, to last for what is allocated later; fewer where the
/// system has no more.
pub(crate) fn fill_heap(bytes: usize) {
    let piece = |_| {
        let mut piece = Vec::new();
        piece.try_reserve_exact(HEAP_PIECE_BYTES).ok()?;
        piece.resize(HEAP_PIECE_BYTES, 1_u8);
        Some(piece)
    };
    let pieces = (0..bytes.div_ceil(HEAP_PIECE_BYTES)).map_while(piece);
    drop(std::hint::black_box(pieces.collect::<Vec<_>>()));
}
