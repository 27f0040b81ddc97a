//! The routines of aarch64. Persistence, by Arm's manual of the architecture: DC CVAP cleans a line to the point of
//! persistence; where a CPU has none (before Armv8.2), DC CVAC cleans it to memory. DSB waits until this thread's
//! cleaning is done. Words are loaded with acquire and stored with release, as every load and store of x86-64 is:
//! the devices' orders between words and atomics rely on it.

#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::is_aarch64_feature_detected;

use super::status::{Fault, Status};

/// Copies `data` to `to`, and cleans what it has written if `write_back`. All is durable then after this thread's
/// next [`fence`].
///
/// # Errors
/// [`Fault`]; part of `data` may be there.
///
/// # Safety
/// As for [`read`](super::read), and the memory is mapped for writing.
pub(in crate::medium) unsafe fn write(
    to: *mut u8,
    data: &[u8],
    write_back: bool,
) -> Result<(), Fault> {
    // SAFETY: the caller vouches for `to`, the reference for `data`.
    unsafe { uzram_guard_copy(to, data.as_ptr(), data.len()) }.check()?;
    // SAFETY: as above.
    unsafe { back(to, data.len(), write_back) }
}

/// Fills `length` bytes at `to` with zeroes, as [`write`] would.
///
/// # Errors
/// [`Fault`].
///
/// # Safety
/// As for [`write`].
pub(in crate::medium) unsafe fn zero(
    to: *mut u8,
    length: usize,
    write_back: bool,
) -> Result<(), Fault> {
    // SAFETY: the caller vouches for `to`.
    unsafe { uzram_guard_zero(to, length) }.check()?;
    // SAFETY: as above.
    unsafe { back(to, length, write_back) }
}

/// Waits until everything that this thread stored is seen, and what it cleaned is durable.
pub(in crate::medium) fn fence() {
    // SAFETY: a barrier changes no register and no memory.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
}

/// The place of the interrupted instruction.
pub(super) fn program_counter(machine: &mut libc::ucontext_t) -> &mut u64 {
    &mut machine.uc_mcontext.pc
}

/// Cleans the lines of `length` bytes at `at`, if `write_back`.
///
/// # Safety
/// As for [`write`].
pub(super) unsafe fn back(at: *mut u8, length: usize, write_back: bool) -> Result<(), Fault> {
    if !write_back || length == 0 {
        return Ok(());
    }
    let end = at.wrapping_add(length);
    let status = match is_aarch64_feature_detected!("dpb") {
        // SAFETY: the caller vouches for the bytes; the CPU has the instruction.
        true => unsafe { uzram_guard_clean_to_persistence(at, end) },
        // SAFETY: as above; every CPU has it.
        false => unsafe { uzram_guard_clean_to_memory(at, end) },
    };
    status.check()
}

unsafe extern "C" {
    pub(super) static uzram_guard_begin: u8;
    pub(super) static uzram_guard_end: u8;
    pub(super) static uzram_guard_failed: u8;
    pub(super) fn uzram_guard_copy(to: *mut u8, from: *const u8, length: usize) -> Status;
    pub(super) fn uzram_guard_load32(to: *mut u32, from: *const u8) -> Status;
    pub(super) fn uzram_guard_store32(to: *mut u8, word: u32) -> Status;
    pub(super) fn uzram_guard_store64(to: *mut u8, word: u64) -> Status;
    fn uzram_guard_zero(to: *mut u8, length: usize) -> Status;
    fn uzram_guard_clean_to_persistence(at: *mut u8, end: *const u8) -> Status;
    fn uzram_guard_clean_to_memory(at: *mut u8, end: *const u8) -> Status;
}

// Arguments in x0, x1, x2; the result in w0; x0 to x7 and v0 to v3 are anybody's.
std::arch::global_asm!(
    ".pushsection .text.uzram_guard,\"ax\",@progbits",
    ".p2align 6",
    ".globl uzram_guard_begin",
    ".hidden uzram_guard_begin",
    "uzram_guard_begin:",
    ".globl uzram_guard_copy",
    ".hidden uzram_guard_copy",
    "uzram_guard_copy:",
    "cmp x2, #64",
    "b.lo 3f",
    "2:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, #32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, #32]",
    "add x1, x1, #64",
    "add x0, x0, #64",
    "sub x2, x2, #64",
    "cmp x2, #64",
    "b.hs 2b",
    "3:",
    "cbz x2, 5f",
    "4:",
    "ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "subs x2, x2, #1",
    "b.ne 4b",
    "5:",
    "mov w0, wzr",
    "ret",
    ".p2align 5",
    ".globl uzram_guard_zero",
    ".hidden uzram_guard_zero",
    "uzram_guard_zero:",
    "cmp x1, #32",
    "b.lo 3f",
    "2:",
    "stp xzr, xzr, [x0]",
    "stp xzr, xzr, [x0, #16]",
    "add x0, x0, #32",
    "sub x1, x1, #32",
    "cmp x1, #32",
    "b.hs 2b",
    "3:",
    "cbz x1, 5f",
    "4:",
    "strb wzr, [x0], #1",
    "subs x1, x1, #1",
    "b.ne 4b",
    "5:",
    "mov w0, wzr",
    "ret",
    ".globl uzram_guard_load32",
    ".hidden uzram_guard_load32",
    "uzram_guard_load32:",
    "ldar w2, [x1]",
    "str w2, [x0]",
    "mov w0, wzr",
    "ret",
    ".globl uzram_guard_store32",
    ".hidden uzram_guard_store32",
    "uzram_guard_store32:",
    "stlr w1, [x0]",
    "mov w0, wzr",
    "ret",
    ".globl uzram_guard_store64",
    ".hidden uzram_guard_store64",
    "uzram_guard_store64:",
    "stlr x1, [x0]",
    "mov w0, wzr",
    "ret",
    // The shortest line of all caches: four bytes times two to the power of CTR_EL0's bits 16 to 19.
    ".macro uzram_guard_clean name:req, operation:vararg",
    ".globl \\name",
    ".hidden \\name",
    "\\name:",
    "mrs x2, ctr_el0",
    "ubfx x2, x2, #16, #4",
    "mov x3, #4",
    "lsl x3, x3, x2",
    "sub x4, x3, #1",
    "bic x0, x0, x4",
    "2:",
    "\\operation",
    "add x0, x0, x3",
    "cmp x0, x1",
    "b.lo 2b",
    "mov w0, wzr",
    "ret",
    ".endm",
    // DC CVAP, which assemblers know for Armv8.2 only.
    "uzram_guard_clean uzram_guard_clean_to_persistence, sys #3, c7, c12, #1, x0",
    "uzram_guard_clean uzram_guard_clean_to_memory, dc cvac, x0",
    ".purgem uzram_guard_clean",
    ".globl uzram_guard_end",
    ".hidden uzram_guard_end",
    "uzram_guard_end:",
    ".globl uzram_guard_failed",
    ".hidden uzram_guard_failed",
    "uzram_guard_failed:",
    "mov w0, #1",
    "ret",
    ".popsection",
);
