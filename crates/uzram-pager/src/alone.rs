//! A thread that shares as little with the program as a thread can.
//!
//! Its descriptors are its own: the program cannot close one by its number, and no child inherits one. The program's
//! handlers of signals never run on it: they could touch the very memory that it serves.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// `CLOSE_RANGE_UNSHARE` of `linux/close_range.h`.
const UNSHARE: u32 = 2;

thread_local! {
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is isolated: it must not wait for a pager. Asking takes no memory.
pub(crate) fn is_alone() -> bool {
    IS_ALONE.get()
}

/// Blocks all signals for this thread, and gives it a table of descriptors of its own that is empty but for `kept`, if that.
///
/// # Errors
/// The system's.
pub(crate) fn isolate(kept: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    IS_ALONE.set(true);
    // SAFETY: all zeroes are a valid set, which the next call fills.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes the set.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: reads the set and changes the mask of this thread.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()) };
    let kept = kept.map(|kept| kept.as_raw_fd() as u32);
    if let Some(before) = kept.and_then(|kept| kept.checked_sub(1)) {
        close(0, before)?;
    }
    close(kept.map_or(0, |kept| kept + 1), u32::MAX)
}

fn close(first: u32, last: u32) -> Result<(), Errno> {
    // SAFETY: the table is copied first, so no descriptor of another thread is closed. This thread owns none of these.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, UNSHARE) };
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS)),
    }
}
