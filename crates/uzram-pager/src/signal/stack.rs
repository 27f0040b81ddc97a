//! A stack for handlers: the interrupted thread's may be small, and the alternate one of its signals is. A codec may need
//! more.

#![allow(unsafe_code)]

use std::arch::asm;
use std::ffi::c_void;

use rustix::mm::MprotectFlags;
use uzram::{Error, ErrorKind, Result};

use crate::mapping::{Mapping, PAGE_BYTES};

/// Pages of a stack, the lowest of which nobody may touch. Those that no call reaches take no memory. The highest stays
/// empty: there a backtrace ends.
const STACK_PAGES: usize = 258;

/// Memory for the stack of one thread at a time.
#[derive(Debug)]
pub(super) struct Stack {
    memory: Mapping,
}

impl Stack {
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub fn new() -> Result<Stack> {
        let memory = Mapping::reserve(STACK_PAGES)?;
        let lowest = memory.address(0) as *mut c_void;
        // SAFETY: nothing is there yet, and nothing will be.
        let guarded = unsafe { rustix::mm::mprotect(lowest, PAGE_BYTES, MprotectFlags::empty()) };
        guarded.map_err(|errno| {
            Error::new(ErrorKind::NoMemory, "no stack for a handler of SIGBUS").with_source(errno)
        })?;
        Ok(Stack { memory })
    }

    /// Calls `body` on this stack. A panic of `body` aborts: there is nothing to unwind to.
    ///
    /// # Safety
    /// No other call on this stack is under way.
    pub unsafe fn call<R>(&self, body: impl FnOnce() -> R) -> R {
        let mut call = Call {
            body: Some(body),
            result: None,
        };
        let top = self.memory.address(STACK_PAGES - 1);
        // SAFETY: the stack is the caller's alone, its top is aligned, and `enter` gets what it is made for.
        unsafe { call_on(top, enter_of(&call), (&raw mut call).cast()) };
        call.result.expect("the body has returned")
    }
}

struct Call<F, R> {
    body: Option<F>,
    result: Option<R>,
}

type Enter = unsafe extern "C" fn(*mut c_void);

fn enter_of<R, F: FnOnce() -> R>(_: &Call<F, R>) -> Enter {
    enter::<R, F>
}

/// # Safety
/// `call` points to a `Call<F, R>` that nobody else uses.
unsafe extern "C" fn enter<R, F: FnOnce() -> R>(call: *mut c_void) {
    // SAFETY: the caller's.
    let call = unsafe { &mut *call.cast::<Call<F, R>>() };
    let body = call.body.take();
    call.result = body.map(|body| body());
}

/// # Safety
/// `top` is the end of a stack that nobody uses, aligned to 16 bytes; `enter` takes `data`.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn call_on(top: u64, enter: Enter, data: *mut c_void) {
    // SAFETY: the call keeps r12, which has this stack meanwhile; all else that a function may change is named.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {enter}",
            "mov rsp, r12",
            top = in(reg) top,
            enter = in(reg) enter,
            in("rdi") data,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
#[inline(never)]
unsafe fn call_on(top: u64, enter: Enter, data: *mut c_void) {
    // SAFETY: the call keeps x20, which has this stack meanwhile; all else that a function may change is named.
    unsafe {
        asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {enter}",
            "mov sp, x20",
            top = in(reg) top,
            enter = in(reg) enter,
            in("x0") data,
            out("x20") _,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than any alternate stack has.
    fn deep(level: u64) -> u64 {
        let room = std::hint::black_box([level; 512]);
        match level {
            0 => room[7],
            level => deep(level - 1) + room[level as usize],
        }
    }

    #[test]
    fn a_body_runs_on_the_stack_and_gives_its_result_back() {
        let stack = Stack::new().unwrap();
        for round in 0..3 {
            let text = format!("round {round}");
            let body = || {
                let local = 0;
                let at = (&raw const local).addr() as u64;
                (stack.memory.page_at(at).is_some(), deep(20), text)
            };
            // SAFETY: one call at a time.
            let (is_on_it, sum, text) = unsafe { stack.call(body) };
            assert!(is_on_it);
            assert_eq!((sum, text), (210, format!("round {round}")));
        }
    }
}
