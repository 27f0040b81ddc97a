//! System calls in the registers of a stopped thread, and the one loop that an agent runs, by architecture.

use nix::libc::{c_long, user_regs_struct};

/// The instruction of a system call, and where one may begin.
#[cfg(target_arch = "x86_64")]
pub(crate) const INSTRUCTION: (&[u8], usize) = (&[0x0f, 0x05], 1);
/// The instruction of a system call, and where one may begin.
#[cfg(target_arch = "aarch64")]
pub(crate) const INSTRUCTION: (&[u8], usize) = (&[0x01, 0x00, 0x00, 0xd4], 4);

/// `registers`, set so that the instruction at `at` makes system call `number`.
pub(crate) fn with_call(
    registers: user_regs_struct,
    at: u64,
    number: c_long,
    arguments: [u64; 6],
) -> user_regs_struct {
    let mut registers = going_on_at(registers, at);
    #[cfg(target_arch = "x86_64")]
    {
        registers.rax = number as u64;
        [
            registers.rdi,
            registers.rsi,
            registers.rdx,
            registers.r10,
            registers.r8,
            registers.r9,
        ] = arguments;
    }
    #[cfg(target_arch = "aarch64")]
    {
        registers.regs[8] = number as u64;
        registers.regs[..6].copy_from_slice(&arguments);
    }
    registers
}

/// `registers`, set so that the instruction at `at` is the next.
fn going_on_at(mut registers: user_regs_struct, at: u64) -> user_regs_struct {
    #[cfg(target_arch = "x86_64")]
    {
        registers.rip = at;
        // It is in no system call, so the kernel has none to begin again.
        registers.orig_rax = u64::MAX;
    }
    #[cfg(target_arch = "aarch64")]
    {
        registers.pc = at;
    }
    registers
}

/// Makes a list of system calls, puts each answer behind its arguments, and stops at a breakpoint.
///
/// ```text
/// again: rax = [rbx]; rdi = [rbx + 8]; rsi = [rbx + 16]; rdx = [rbx + 24]; syscall
///        [rbx + 32] = rax; rbx += 40; if rbx < r12 goto again; int3
/// ```
#[cfg(target_arch = "x86_64")]
pub(crate) const LOOP: &[u8] = &[
    0x48, 0x8B, 0x03, // mov rax, [rbx]
    0x48, 0x8B, 0x7B, 0x08, // mov rdi, [rbx + 8]
    0x48, 0x8B, 0x73, 0x10, // mov rsi, [rbx + 16]
    0x48, 0x8B, 0x53, 0x18, // mov rdx, [rbx + 24]
    0x0F, 0x05, // syscall
    0x48, 0x89, 0x43, 0x20, // mov [rbx + 32], rax
    0x48, 0x83, 0xC3, 0x28, // add rbx, 40
    0x4C, 0x39, 0xE3, // cmp rbx, r12
    0x72, 0xE2, // jb again
    0xCC, // int3
];

/// Makes a list of system calls, puts each answer behind its arguments, and stops at a breakpoint.
///
/// ```text
/// again: x8 = [x19]; x0, x1 = [x19 + 8]; x2 = [x19 + 24]; svc
///        [x19 + 32] = x0; x19 += 40; if x19 < x20 goto again; brk
/// ```
#[cfg(target_arch = "aarch64")]
pub(crate) const LOOP: &[u8] = &[
    0x68, 0x02, 0x40, 0xF9, // ldr x8, [x19]
    0x60, 0x86, 0x40, 0xA9, // ldp x0, x1, [x19, #8]
    0x62, 0x0E, 0x40, 0xF9, // ldr x2, [x19, #24]
    0x01, 0x00, 0x00, 0xD4, // svc #0
    0x60, 0x12, 0x00, 0xF9, // str x0, [x19, #32]
    0x73, 0xA2, 0x00, 0x91, // add x19, x19, #40
    0x7F, 0x02, 0x14, 0xEB, // cmp x19, x20
    0x23, 0xFF, 0xFF, 0x54, // b.lo again
    0x00, 0x00, 0x20, 0xD4, // brk #0
];

/// Words of a system call of [`LOOP`]: number, three arguments, the answer.
pub(crate) const LOOP_WORDS: usize = 5;

/// `registers`, set so that [`LOOP`] at `at` makes the system calls in `list`.
pub(crate) fn with_loop(
    registers: user_regs_struct,
    at: u64,
    list: std::ops::Range<u64>,
) -> user_regs_struct {
    let mut registers = going_on_at(registers, at);
    #[cfg(target_arch = "x86_64")]
    {
        (registers.rbx, registers.r12) = (list.start, list.end);
    }
    #[cfg(target_arch = "aarch64")]
    {
        (registers.regs[19], registers.regs[20]) = (list.start, list.end);
    }
    registers
}

/// The address of the next instruction.
pub(crate) fn next(registers: &user_regs_struct) -> u64 {
    #[cfg(target_arch = "x86_64")]
    return registers.rip;
    #[cfg(target_arch = "aarch64")]
    return registers.pc;
}

/// The system call's answer.
pub(crate) fn answer(registers: &user_regs_struct) -> i64 {
    #[cfg(target_arch = "x86_64")]
    return registers.rax as i64;
    #[cfg(target_arch = "aarch64")]
    return registers.regs[0] as i64;
}
