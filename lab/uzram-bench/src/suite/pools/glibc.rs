//! glibc's allocator as a fresh process has it, and its own way to give memory back.
//!
//! Freeing one large allocation lets glibc keep up to 64 MiB of free memory from then on. A suite that
//! frees large tables would so change what it measures; the thresholds are held at their defaults.

use std::ffi::c_int;

/// glibc's default for both thresholds, in bytes.
const THRESHOLD_BYTES: c_int = 128 << 10;

/// Holds the thresholds at their defaults from now on.
pub(super) fn hold_thresholds() {
    for parameter in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: both are parameters of this allocator, and the value is one that it accepts.
        unsafe { libc::mallopt(parameter, THRESHOLD_BYTES) };
    }
}

/// Gives the free memory of the C library's allocator back to the system.
pub(super) fn trim() {
    // SAFETY: frees only memory that the allocator holds and nobody has.
    unsafe { libc::malloc_trim(0) };
}
