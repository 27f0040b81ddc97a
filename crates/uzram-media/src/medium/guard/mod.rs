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
//! The routines, and what makes a store durable, are the CPU's: one file for each architecture. No routine touches the
//! stack, so returning from any instruction of one is returning to its caller.

#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod status;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as cpu;
#[cfg(target_arch = "x86_64")]
use x86_64 as cpu;

use crate::sigbus;
use cpu::{
    uzram_guard_begin, uzram_guard_copy, uzram_guard_end, uzram_guard_failed, uzram_guard_load32,
    uzram_guard_store32, uzram_guard_store64,
};
use status::Fault;

pub(super) use cpu::{fence, write, zero};

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
    unsafe { cpu::back(to, 4, write_back) }
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
    unsafe { cpu::back(to, 16, write_back) }
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
    // SAFETY: a claim is called with the interrupted thread's context, which is nobody else's.
    let machine = unsafe { &mut *fault.context.cast::<libc::ucontext_t>() };
    let at = cpu::program_counter(machine);
    let guarded = (&raw const uzram_guard_begin).addr()..(&raw const uzram_guard_end).addr();
    let is_ours = guarded.contains(&(*at as usize));
    if is_ours {
        *at = (&raw const uzram_guard_failed).addr() as _;
    }
    is_ours
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE_BYTES: usize = 64;

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
