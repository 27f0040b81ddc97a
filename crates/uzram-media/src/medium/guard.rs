//! Access to memory that can vanish: a mapped file that is truncated, a disk that is full, a line
//! of persistent memory that has gone bad. The CPU reports it as SIGBUS, and here it becomes an
//! error.
//!
//! A handful of leaf routines in assembly make all such accesses, between two labels. The signal
//! handler looks at the CPU's instruction pointer. Within the labels it continues at a third
//! label, which returns "failed" to the caller, as a kernel does with its own accesses to user
//! memory. Anywhere else the signal goes to its previous owner. So an access without a fault costs
//! nothing extra, and Rust code never holds a reference to such memory.
//!
//! The handler (`sigbus.rs`) belongs to the process. Faults here are claimed when the first file
//! is mapped.
//!
//! Persistence, by Intel's manual of the architecture: a non-temporal store goes past the caches.
//! A normal store is written back with CLWB (or CLFLUSHOPT, CLFLUSH, which also evict). SFENCE
//! waits until this thread's stores of both kinds have reached the memory's power-fail domain.

#![allow(unsafe_code)]

use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence};

use crate::sigbus;
use crate::sync::OnceLock;

/// Bytes that are written back at once.
pub(super) const LINE_BYTES: usize = 64;

/// The memory had vanished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault;

/// Copies `buffer.len()` bytes from `from`.
///
/// # Errors
/// [`Fault`]; `buffer` may be filled in part.
///
/// # Safety
/// The bytes at `from` are mapped, backed or not, and no Rust reference leads to them.
pub(super) unsafe fn read(from: *const u8, buffer: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: the caller vouches for `from`, the reference for `buffer`.
    unsafe { uzram_guard_copy(buffer.as_mut_ptr(), from, buffer.len()) }.check()
}

/// Copies `data` to `to`, whole lines past the caches. Parts of lines are also written back if
/// `write_back`. All is durable after this thread's next [`fence`].
///
/// # Errors
/// [`Fault`]; part of `data` may be there.
///
/// # Safety
/// As for [`read`], and the memory is mapped for writing.
pub(super) unsafe fn write(to: *mut u8, data: &[u8], write_back: bool) -> Result<(), Fault> {
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
pub(super) unsafe fn zero(to: *mut u8, length: usize, write_back: bool) -> Result<(), Fault> {
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

/// One aligned word.
///
/// # Errors
/// [`Fault`].
///
/// # Safety
/// As for [`read`]; `from` is aligned to 4.
pub(super) unsafe fn load_u32(from: *const u8) -> Result<u32, Fault> {
    let mut word = 0;
    // SAFETY: the caller vouches for `from`.
    unsafe { uzram_guard_load32(&mut word, from) }.check()?;
    Ok(word)
}

/// One aligned word in one store, written back if `write_back`.
///
/// # Errors
/// [`Fault`]; the word may be there.
///
/// # Safety
/// As for [`write`]; `to` is aligned to 4.
pub(super) unsafe fn store_u32(to: *mut u8, word: u32, write_back: bool) -> Result<(), Fault> {
    // SAFETY: the caller vouches for `to`.
    unsafe { uzram_guard_store32(to, word) }.check()?;
    // SAFETY: as above.
    unsafe { back(to, 4, write_back) }
}

/// Two words on one line, in this order, each in one store. They are written back once, because a
/// line becomes durable in the order of its stores.
///
/// # Errors
/// [`Fault`]; any of the words may be there.
///
/// # Safety
/// As for [`write`]; `to` is aligned to 16.
pub(super) unsafe fn store_pair(
    to: *mut u8,
    words: [u64; 2],
    write_back: bool,
) -> Result<(), Fault> {
    // SAFETY: the caller vouches for `to`.
    unsafe { uzram_guard_store64(to, words[0]) }.check()?;
    // SAFETY: as above; the second word is within what the caller vouches for.
    unsafe { uzram_guard_store64(to.wrapping_add(8), words[1]) }.check()?;
    // SAFETY: as above.
    unsafe { back(to, 16, write_back) }
}

/// Waits until everything that this thread streamed or wrote back is durable.
pub(super) fn fence() {
    // SAFETY: SSE belongs to every x86-64 CPU; the instruction has no operands.
    unsafe { _mm_sfence() };
}

/// Makes SIGBUS in the routines below an error. Called again, it does nothing.
///
/// # Errors
/// The system's error.
pub(super) fn install() -> std::io::Result<()> {
    sigbus::claim(continue_as_failed)
}

/// Handles faults of the routines below.
fn continue_as_failed(fault: &sigbus::Fault) -> bool {
    let machine = fault.context.cast::<libc::ucontext_t>();
    // SAFETY: a claim is called with the interrupted thread's context, which is nobody else's.
    let registers = unsafe { &mut (*machine).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as usize;
    let guarded = (&raw const uzram_guard_begin).addr()..(&raw const uzram_guard_end).addr();
    let is_ours = guarded.contains(&at);
    if is_ours {
        registers[libc::REG_RIP as usize] = (&raw const uzram_guard_failed).addr() as i64;
    }
    is_ours
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
unsafe fn back(at: *mut u8, length: usize, write_back: bool) -> Result<(), Fault> {
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

/// The value that a routine returns: zero, or one after a fault.
#[repr(transparent)]
struct Status(u32);

impl Status {
    fn check(self) -> Result<(), Fault> {
        if self.0 == 0 { Ok(()) } else { Err(Fault) }
    }
}

unsafe extern "C" {
    static uzram_guard_begin: u8;
    static uzram_guard_end: u8;
    static uzram_guard_failed: u8;
    fn uzram_guard_copy(to: *mut u8, from: *const u8, length: usize) -> Status;
    fn uzram_guard_stream(to: *mut u8, from: *const u8, lines: usize) -> Status;
    fn uzram_guard_stream_zero(to: *mut u8, lines: usize) -> Status;
    fn uzram_guard_load32(to: *mut u32, from: *const u8) -> Status;
    fn uzram_guard_store32(to: *mut u8, word: u32) -> Status;
    fn uzram_guard_store64(to: *mut u8, word: u64) -> Status;
    fn uzram_guard_clwb(at: *mut u8) -> Status;
    fn uzram_guard_clflushopt(at: *mut u8) -> Status;
    fn uzram_guard_clflush(at: *mut u8) -> Status;
}

// System V calls: arguments in rdi, rsi, rdx; the result in eax. No routine touches the stack, so
// returning from any instruction of one is returning to its caller.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alignment_and_length_is_copied_and_zeroed() {
        let data: Vec<u8> = (1..=255).cycle().take(400).collect();
        for start in 0..LINE_BYTES {
            for length in [0, 1, 7, 63, 64, 65, 127, 128, 200, 256] {
                let mut memory = vec![0xee; 512];
                let to = memory.as_mut_ptr();
                // SAFETY: within the vector, which nothing else refers to.
                unsafe { write(to.wrapping_add(start), &data[..length], true) }.unwrap();
                fence();
                assert_eq!(memory[start..start + length], data[..length]);
                assert!(memory[..start].iter().all(|byte| *byte == 0xee));
                assert!(memory[start + length..].iter().all(|byte| *byte == 0xee));
                let mut back = vec![0; length];
                // SAFETY: as above.
                unsafe { read(memory.as_ptr().wrapping_add(start), &mut back) }.unwrap();
                assert_eq!(back, data[..length]);
                let to = memory.as_mut_ptr();
                // SAFETY: as above.
                unsafe { zero(to.wrapping_add(start), length, true) }.unwrap();
                fence();
                assert!(memory[start..start + length].iter().all(|byte| *byte == 0));
                assert!(memory[start + length..].iter().all(|byte| *byte == 0xee));
            }
        }
    }
}
