//! The routines of x86-64. Persistence, by Intel's manual of the architecture: a non-temporal store goes past the
//! caches. A normal store is written back with CLWB (or CLFLUSHOPT, CLFLUSH, which also evict). SFENCE
//! waits until this thread's stores of both kinds have reached the memory's power-fail domain.

#![allow(unsafe_code)]

use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence};

use super::status::{Fault, Status};
use crate::sync::OnceLock;

/// Bytes that are written back at once.
const LINE_BYTES: usize = 64;

/// Copies `data` to `to`, whole lines past the caches. Parts of lines are also written back if
/// `write_back`. All is durable after this thread's next [`fence`].
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
    let (head, lines, tail) = split(to, data.len());
    // SAFETY: the caller vouches for `to` and all that follows for the length of `data`.
    unsafe { edge(to, &data[..head], write_back) }?;
    // SAFETY: `head` is within.
    let middle = unsafe { to.add(head) };
    // SAFETY: `split` keeps the lines within, and `middle` on a line's start.
    unsafe { uzram_guard_stream(middle, data[head..].as_ptr(), lines) }.check()?;
    // SAFETY: the lines are within.
    let end = unsafe { middle.add(lines * LINE_BYTES) };
    // SAFETY: as for the head.
    unsafe { edge(end, &data[data.len() - tail..], write_back) }
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
    const ZEROES: [u8; LINE_BYTES] = [0; LINE_BYTES];
    let (head, lines, tail) = split(to, length);
    // SAFETY: as in `write`.
    unsafe { edge(to, &ZEROES[..head], write_back) }?;
    // SAFETY: `head` is within.
    let middle = unsafe { to.add(head) };
    // SAFETY: as in `write`.
    unsafe { uzram_guard_stream_zero(middle, lines) }.check()?;
    // SAFETY: the lines are within.
    let end = unsafe { middle.add(lines * LINE_BYTES) };
    // SAFETY: as for the head.
    unsafe { edge(end, &ZEROES[..tail], write_back) }
}

/// Waits until everything that this thread streamed or wrote back is durable.
pub(in crate::medium) fn fence() {
    // SAFETY: SSE belongs to every x86-64 CPU; the instruction has no operands.
    unsafe { _mm_sfence() };
}

/// The place of the interrupted instruction.
pub(super) fn program_counter(machine: &mut libc::ucontext_t) -> &mut i64 {
    &mut machine.uc_mcontext.gregs[libc::REG_RIP as usize]
}

/// Bytes before the first whole line, whole lines, bytes after the last.
fn split(to: *mut u8, length: usize) -> (usize, usize, usize) {
    let head = (to.addr().wrapping_neg() % LINE_BYTES).min(length);
    let rest = length - head;
    (head, rest / LINE_BYTES, rest % LINE_BYTES)
}

/// Copies less than a line.
///
/// # Safety
/// As for [`write`].
unsafe fn edge(to: *mut u8, data: &[u8], write_back: bool) -> Result<(), Fault> {
    if data.is_empty() {
        return Ok(());
    }
    // SAFETY: the caller vouches for `to`.
    unsafe { uzram_guard_copy(to, data.as_ptr(), data.len()) }.check()?;
    // SAFETY: as above.
    unsafe { back(to, data.len(), write_back) }
}

/// Writes back the line of `length` bytes at `at`, which must not cross into another line.
///
/// # Safety
/// As for [`write`].
pub(super) unsafe fn back(at: *mut u8, length: usize, write_back: bool) -> Result<(), Fault> {
    debug_assert!(at.addr() % LINE_BYTES + length <= LINE_BYTES);
    if !write_back {
        return Ok(());
    }
    let status = match WriteBack::of_this_cpu() {
        // SAFETY: the caller vouches for `at`; the CPU has the instruction.
        WriteBack::Clwb => unsafe { uzram_guard_clwb(at) },
        // SAFETY: as above.
        WriteBack::Clflushopt => unsafe { uzram_guard_clflushopt(at) },
        // SAFETY: as above; every x86-64 CPU has it.
        WriteBack::Clflush => unsafe { uzram_guard_clflush(at) },
    };
    status.check()
}

/// The best instruction for writing a line back.
#[derive(Clone, Copy)]
enum WriteBack {
    Clwb,
    Clflushopt,
    Clflush,
}

impl WriteBack {
    fn of_this_cpu() -> WriteBack {
        static FOUND: OnceLock<WriteBack> = OnceLock::new();
        *FOUND.get_or_init(|| {
            // Leaf 7: EBX bit 23 CLFLUSHOPT, bit 24 CLWB.
            let features = match __cpuid(0).eax {
                0..7 => 0,
                _ => __cpuid_count(7, 0).ebx,
            };
            match features {
                with if with & 1 << 24 != 0 => WriteBack::Clwb,
                with if with & 1 << 23 != 0 => WriteBack::Clflushopt,
                _ => WriteBack::Clflush,
            }
        })
    }
}

unsafe extern "C" {
    pub(super) static uzram_guard_begin: u8;
    pub(super) static uzram_guard_end: u8;
    pub(super) static uzram_guard_failed: u8;
    pub(super) fn uzram_guard_copy(to: *mut u8, from: *const u8, length: usize) -> Status;
    pub(super) fn uzram_guard_load32(to: *mut u32, from: *const u8) -> Status;
    pub(super) fn uzram_guard_store32(to: *mut u8, word: u32) -> Status;
    pub(super) fn uzram_guard_store64(to: *mut u8, word: u64) -> Status;
    fn uzram_guard_stream(to: *mut u8, from: *const u8, lines: usize) -> Status;
    fn uzram_guard_stream_zero(to: *mut u8, lines: usize) -> Status;
    fn uzram_guard_clwb(at: *mut u8) -> Status;
    fn uzram_guard_clflushopt(at: *mut u8) -> Status;
    fn uzram_guard_clflush(at: *mut u8) -> Status;
}

// System V calls: arguments in rdi, rsi, rdx; the result in eax.
std::arch::global_asm!(
    ".pushsection .text.uzram_guard,\"ax\",@progbits",
    ".p2align 6",
    ".globl uzram_guard_begin",
    ".hidden uzram_guard_begin",
    "uzram_guard_begin:",
    ".globl uzram_guard_copy",
    ".hidden uzram_guard_copy",
    "uzram_guard_copy:",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".p2align 5",
    ".globl uzram_guard_stream",
    ".hidden uzram_guard_stream",
    "uzram_guard_stream:",
    "test rdx, rdx",
    "jz 3f",
    "2:",
    "movdqu xmm0, [rsi]",
    "movdqu xmm1, [rsi + 16]",
    "movdqu xmm2, [rsi + 32]",
    "movdqu xmm3, [rsi + 48]",
    "movntdq [rdi], xmm0",
    "movntdq [rdi + 16], xmm1",
    "movntdq [rdi + 32], xmm2",
    "movntdq [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "dec rdx",
    "jnz 2b",
    "3:",
    "xor eax, eax",
    "ret",
    ".p2align 5",
    ".globl uzram_guard_stream_zero",
    ".hidden uzram_guard_stream_zero",
    "uzram_guard_stream_zero:",
    "pxor xmm0, xmm0",
    "test rsi, rsi",
    "jz 3f",
    "2:",
    "movntdq [rdi], xmm0",
    "movntdq [rdi + 16], xmm0",
    "movntdq [rdi + 32], xmm0",
    "movntdq [rdi + 48], xmm0",
    "add rdi, 64",
    "dec rsi",
    "jnz 2b",
    "3:",
    "xor eax, eax",
    "ret",
    ".globl uzram_guard_load32",
    ".hidden uzram_guard_load32",
    "uzram_guard_load32:",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "xor eax, eax",
    "ret",
    ".globl uzram_guard_store32",
    ".hidden uzram_guard_store32",
    "uzram_guard_store32:",
    "mov [rdi], esi",
    "xor eax, eax",
    "ret",
    ".globl uzram_guard_store64",
    ".hidden uzram_guard_store64",
    "uzram_guard_store64:",
    "mov [rdi], rsi",
    "xor eax, eax",
    "ret",
    ".globl uzram_guard_clwb",
    ".hidden uzram_guard_clwb",
    "uzram_guard_clwb:",
    "clwb [rdi]",
    "xor eax, eax",
    "ret",
    ".globl uzram_guard_clflushopt",
    ".hidden uzram_guard_clflushopt",
    "uzram_guard_clflushopt:",
    "clflushopt [rdi]",
    "xor eax, eax",
    "ret",
    ".globl uzram_guard_clflush",
    ".hidden uzram_guard_clflush",
    "uzram_guard_clflush:",
    "clflush [rdi]",
    "xor eax, eax",
    "ret",
    ".globl uzram_guard_end",
    ".hidden uzram_guard_end",
    "uzram_guard_end:",
    ".globl uzram_guard_failed",
    ".hidden uzram_guard_failed",
    "uzram_guard_failed:",
    "mov eax, 1",
    "ret",
    ".popsection",
);
