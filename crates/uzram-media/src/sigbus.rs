//! SIGBUS with several owners. An owner has memory that can vanish: a mapped file that is
//! truncated, a guest's memory that its process shrinks.
//!
//! A process has one handler of a signal, so there is one here. It asks each owner whether the
//! fault is the owner's. A fault that no owner claims goes to the handler that the signal had
//! before. The handler is installed with the first claim. A program that replaces it afterwards
//! must pass signals on, or vanished memory ends the program. All signals are blocked meanwhile: the
//! handler before may need that.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;

use crate::sync::OnceLock;

/// Most owners in a process.
const CLAIMS_MAX: usize = 4;

/// A fault as its owner sees it.
#[derive(Debug)]
pub struct Fault {
    /// The address of the missing byte.
    pub address: usize,
    /// The interrupted thread's `ucontext_t`.
    pub context: *mut c_void,
}

/// Deals with a fault and returns true, or leaves it alone and returns false. It runs in the
/// signal's handler: only system calls without a buffer and atomics are allowed.
pub type Claim = fn(&Fault) -> bool;

static CLAIMS: [OnceLock<Claim>; CLAIMS_MAX] = [const { OnceLock::new() }; CLAIMS_MAX];

/// The action that SIGBUS had before, or the errno that kept ours from being installed.
static PREVIOUS: OnceLock<Result<libc::sigaction, Option<i32>>> = OnceLock::new();

/// Asks `claim` about every SIGBUS from now on. Claiming again changes nothing.
///
/// # Errors
/// The system's error, and [`io::ErrorKind::QuotaExceeded`] for the fifth owner.
pub fn claim(claim: Claim) -> io::Result<()> {
    let is_claimed = CLAIMS.iter().any(|place| {
        let owner = *place.get_or_init(|| claim);
        std::ptr::fn_addr_eq(owner, claim)
    });
    if !is_claimed {
        return Err(io::ErrorKind::QuotaExceeded.into());
    }
    match PREVIOUS.get_or_init(install) {
        Ok(_) => Ok(()),
        Err(errno) => Err(errno.map_or_else(
            || io::Error::other("sigaction"),
            io::Error::from_raw_os_error,
        )),
    }
}

fn install() -> Result<libc::sigaction, Option<i32>> {
    // SAFETY: an all-zero sigaction is a valid value: the default action, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: writes the mask.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    // SAFETY: as above.
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both point to live values; the handler is async-signal-safe: it reads values that were
    // set once, its own arguments, and calls claims, which promise the same.
    match unsafe { libc::sigaction(libc::SIGBUS, &action, &mut previous) } {
        0 => Ok(previous),
        _ => Err(io::Error::last_os_error().raw_os_error()),
    }
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a siginfo_t.
    let info_of_fault = unsafe { &*info };
    // SAFETY: of the union's fields SIGBUS has this one; one that was sent has other bytes in its
    // place, which are a number all the same.
    let address = unsafe { info_of_fault.si_addr() }.addr();
    let fault = Fault { address, context };
    let is_taken = CLAIMS
        .iter()
        .filter_map(OnceLock::get)
        .any(|claim| claim(&fault));
    if !is_taken {
        pass_on(signal, info, context);
    }
}

/// Passes a signal that no owner claimed on to the handler before.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // The handler can run before `install` has stored what was there: the default then.
    let previous = PREVIOUS.get().and_then(|previous| previous.as_ref().ok());
    let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // A fault cannot be ignored. With the default action back, the instruction runs again and
        // ends the process, with the right address in its core.
        // SAFETY: `signal` is the one being handled.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    } else if previous.is_some_and(|previous| previous.sa_flags & libc::SA_SIGINFO != 0) {
        type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        // SAFETY: the flag says that the address is a function of this kind.
        let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Handler>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without the flag it is a function of this kind.
        let handler =
            unsafe { std::mem::transmute::<libc::sighandler_t, extern "C" fn(c_int)>(handler) };
        handler(signal);
    }
}
