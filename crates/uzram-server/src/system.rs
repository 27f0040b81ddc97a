//! System calls that no library of ours wraps: the ioctls of the loop driver and of userfaultfd, swap,
//! and the installing of a filter of system calls with a flag.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

// From linux/loop.h and linux/fs.h.
const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4c07;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LO_FLAGS_DIRECT_IO: u32 = 16;
const BLKFLSBUF: libc::Ioctl = 0x1261;

// From linux/swap.h.
const SWAP_FLAG_PREFER: i32 = 0x8000;
const SWAP_FLAG_DISCARD: i32 = 0x1_0000;
const SWAP_FLAG_DISCARD_PAGES: i32 = 0x4_0000;

// From linux/userfaultfd.h.
const USERFAULTFD_IOC_NEW: libc::Ioctl = libc::_IO(0xaa, 0x00);
const UFFDIO_API: libc::Ioctl = libc::_IOWR::<UserfaultfdApi>(0xaa, 0x3f);
const UFFD_API: u64 = 0xaa;
const UFFD_USER_MODE_ONLY: libc::c_int = 1;

/// Size of the pieces in which memory is asked of malloc, in bytes. It does not map them singly.
const HEAP_PIECE_BYTES: usize = 64 << 10;
/// Growth of the heap once it is used up, in bytes.
#[cfg(target_env = "gnu")]
const HEAP_GROWTH_BYTES: i32 = 1 << 20;
/// Freed pieces of this size go back to the system, in bytes.
#[cfg(target_env = "gnu")]
const LARGE_PIECE_BYTES: i32 = 1 << 20;

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

/// `struct uffdio_api` of linux/userfaultfd.h.
#[repr(C)]
struct UserfaultfdApi {
    api: u64,
    features: u64,
    ioctls: u64,
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

/// Puts `file` under the free loop device `device`: direct I/O, blocks of `block_bytes`, and a
/// label for finding it again.
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

/// The label of a loop device; an error if it has no file.
pub(crate) fn loop_label(device: &File) -> io::Result<[u8; LABEL_BYTES]> {
    let mut info = LoopInfo::EMPTY;
    // SAFETY: the argument is the structure that this request fills, alive for the call; all bit
    // patterns are valid in it.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    checked(done).map(|()| info.file_name)
}

/// Gives a loop device the size of its file.
pub(crate) fn loop_resize(device: &File) -> io::Result<()> {
    // SAFETY: this request takes no argument.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY) })
}

/// Takes the file away. While another program has the device open, the kernel does it at the last
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
/// so that they take no memory.
///
/// # Errors
/// The system's error; a priority above [`SWAP_PRIORITY_MAX`] is cut.
pub fn swap_on(device: &Path, priority: Option<u16>) -> io::Result<()> {
    let prefer = |priority: u16| SWAP_FLAG_PREFER | i32::from(priority.min(SWAP_PRIORITY_MAX));
    let flags = priority.map_or(0, prefer) | SWAP_FLAG_DISCARD | SWAP_FLAG_DISCARD_PAGES;
    let path = CString::new(device.as_os_str().as_bytes())?;
    // SAFETY: the path ends in a zero byte and is alive for the call.
    checked(unsafe { libc::swapon(path.as_ptr(), flags) })
}

/// Stops swapping to a device: all of its pages are read back into memory first.
///
/// # Errors
/// The system's error; `ENOMEM` if memory does not suffice.
pub fn swap_off(device: &Path) -> io::Result<()> {
    /// Tries again: the kernel stops half-way for a signal, and for the rest of an io_uring that
    /// this thread has closed. It goes on from there.
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

/// Opens a userfaultfd by its system call: for faults of all code, or for those outside of system
/// calls only, which needs no privilege (Linux 5.11).
pub(crate) fn userfaultfd(for_user_mode_only: bool) -> io::Result<OwnedFd> {
    let scope = if for_user_mode_only {
        UFFD_USER_MODE_ONLY
    } else {
        0
    };
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | scope;
    // SAFETY: the call takes flags only.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    owned(fd)
}

/// Opens a userfaultfd by the node `/dev/userfaultfd` (Linux 6.1), whose mode says who may.
pub(crate) fn userfaultfd_of(node: &Path) -> io::Result<OwnedFd> {
    let node = File::options().read(true).write(true).open(node)?;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: this request takes flags only, and other drivers do not know its number.
    let fd = unsafe { libc::ioctl(node.as_raw_fd(), USERFAULTFD_IOC_NEW, flags) };
    owned(fd.into())
}

/// The features that the kernel has, as bits of linux/userfaultfd.h. None of them is turned on.
pub(crate) fn userfaultfd_features(userfaultfd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut api = UserfaultfdApi {
        api: UFFD_API,
        features: 0,
        ioctls: 0,
    };
    // SAFETY: the argument is the structure that this request reads and fills, alive for the call;
    // all bit patterns are valid in it.
    let done = unsafe { libc::ioctl(userfaultfd.as_raw_fd(), UFFDIO_API, &raw mut api) };
    checked(done).map(|()| api.features)
}

/// Takes the descriptor that a system call has returned.
fn owned(returned: libc::c_long) -> io::Result<OwnedFd> {
    match libc::c_int::try_from(returned) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: the caller got it from a system call that opens one, and nobody else has it.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets `filter` decide on the system calls of this thread, and of those that it will start, for ever.
///
/// The filter must not slow the program down, which runs no code of others: before Linux 5.16 a filter
/// also turns on the processor's mitigation of speculative store bypass, unless this flag is given
/// (Linux 4.17).
///
/// # Errors
/// The system's error: it has no filters, or there may still be new privileges.
pub(crate) fn filter_calls(filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        // The kernel only reads it.
        filter: filter.as_ptr().cast_mut(),
    };
    let install = |flags: libc::c_ulong| {
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        // SAFETY: the argument is the structure that this call reads, with as many instructions as it
        // says, all alive for the call.
        let done = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    match install(libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => install(0),
        done => done,
    }
}

/// Whether this process is in a user namespace of its own; `None` where /proc does not say. The
/// kernel lets that namespace's root neither swap to a device nor mount one.
#[must_use]
pub fn is_in_user_namespace() -> Option<bool> {
    const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    Some(!map.split_whitespace().eq(ALL_USERS))
}

fn checked(returned: libc::c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Keeps malloc from giving memory back, and from making a heap for each thread, where it is the
/// GNU C library's: one heap serves all threads. Making or growing a heap waits for the lock of
/// this process's memory map. It holds for threads that are started afterwards.
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

/// Makes malloc give large pieces back to the system when they are freed. Otherwise the GNU C
/// library's serves pieces as large as the largest one freed so far, up to 32 MiB, from the heap,
/// and keeps as much in the heap of each thread.
pub fn give_back_large_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: sets a number of the allocator's, under its lock.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_PIECE_BYTES) };
    }
}

/// Gets malloc `bytes` that are resident and free, for later allocations; fewer if the system has
/// no more.
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

/// Has the system keep children of this process that have ended until they are waited for. Who started it may have told it to
/// forget them.
pub(crate) fn keep_ended_children() {
    // SAFETY: the default action runs no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Collects children of this process that have ended, but `known` ones, for which somebody else waits.
pub(crate) fn reap_others(known: &[u32]) {
    let wait = |kind, id, flags| {
        // SAFETY: it is plain integers.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = flags | libc::WEXITED | libc::WNOHANG;
        // SAFETY: the system fills the structure in, which is there.
        let done = unsafe { libc::waitid(kind, id, &raw mut info, flags) };
        // SAFETY: it is about a child, or still zero.
        (done == 0).then(|| unsafe { info.si_pid() }.cast_unsigned())
    };
    while let Some(pid @ 1..) = wait(libc::P_ALL, 0, libc::WNOWAIT) {
        if known.contains(&pid) || wait(libc::P_PID, pid, 0).is_none() {
            return;
        }
    }
}

/// Has a thread of this process, 0 for the calling one, run before all threads that are not of this kind, or no longer so.
///
/// # Errors
/// If the system refuses: it takes CAP_SYS_NICE.
pub(crate) fn set_urgent(thread: i32, is_urgent: bool) -> io::Result<()> {
    let (policy, priority) = match is_urgent {
        true => (libc::SCHED_RR, 1),
        false => (libc::SCHED_OTHER, 0),
    };
    let priority: libc::c_int = priority;
    // SAFETY: the kernel's structure is one integer, which is there.
    let done = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            thread,
            policy,
            &raw const priority,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
