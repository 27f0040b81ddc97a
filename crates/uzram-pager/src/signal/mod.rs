//! SIGBUS of a touch of an absent page, answered by the thread that touches.
//!
//! The signal comes at an instruction that touches the range, never elsewhere. So the handler may take what no thread holds
//! while it touches the range: the pager's lock, and the store's. All signals are blocked meanwhile, and the holder of the
//! lock does not touch the range itself.
//!
//! A process has one handler of a signal. A SIGBUS of another address goes to the handler that was there before.

#![allow(unsafe_code)]

mod last_words;
mod place;
mod stack;
mod table;

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::Errno;
use uzram::{Error, ErrorKind, Result};

use crate::mapping::Mapping;
use crate::pager::{Answer, Fault, STARVED_PAUSE};
use crate::plant::{Plant, is_planted};
use crate::turns::Turns;
use stack::Stack;
use table::{RANGES_MAX, Table};

/// `si_code` of a page that could not be brought.
const BUS_ADRERR: c_int = 2;

/// How long a thread waits for a disk from one look to the next.
const DISK_PAUSE: Duration = Duration::from_micros(50);

static TABLE: OnceLock<Table<Server>> = OnceLock::new();

/// The action that SIGBUS had before, or the errno that kept ours from being installed.
static PREVIOUS: OnceLock<Result<libc::sigaction, i32>> = OnceLock::new();

/// A range whose faults are answered by the threads that touch it, until this is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    table: &'static Table<Server>,
    place: usize,
    server: NonNull<Server>,
}

/// All that a handler needs.
#[derive(Debug)]
struct Server {
    turns: Arc<Turns>,
    /// Used by who has the turn.
    stack: Stack,
}

// SAFETY: owns the server, of which other threads get shared references alone.
unsafe impl Send for Registration {}
// SAFETY: has no methods.
unsafe impl Sync for Registration {}

impl Registration {
    /// Answers faults in all pages of `program` but the last with the pager of `turns` from now on.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`]; [`ErrorKind::Unsupported`] if the process has too many; [`ErrorKind::Io`] if the system
    /// takes no handler.
    pub fn new(program: &Mapping, turns: Arc<Turns>) -> Result<Registration> {
        let table = table::of_process(&TABLE)?;
        let stack = Stack::new()?;
        install()?;
        let server = NonNull::from(Box::leak(Box::new(Server { turns, stack })));
        let (start, end) = (program.address(0), program.address(program.pages() - 1));
        match table.add(start as usize, end as usize, server) {
            Some(place) => Ok(Registration {
                table,
                place,
                server,
            }),
            None => {
                // SAFETY: made above, and nobody knows it.
                drop(unsafe { Box::from_raw(server.as_ptr()) });
                let text = format!(
                    "{RANGES_MAX} compressed memories are served by the threads that fault: drop one, or use a thread for each"
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.table.remove(self.place);
        // SAFETY: `new` made it. A handler that has it answers a touch of the range, and who drops the range touches it no
        // more.
        drop(unsafe { Box::from_raw(self.server.as_ptr()) });
    }
}

fn install() -> Result<()> {
    let installed = PREVIOUS.get_or_init(|| {
        // SAFETY: an all-zero sigaction is a valid value: the default action, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_sigbus as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: writes the mask.
        unsafe { libc::sigfillset(&raw mut action.sa_mask) };
        // SAFETY: as above.
        let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both point to live values; the handler takes what the head of this file says.
        match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous) } {
            0 => Ok(previous),
            _ => Err(errno()),
        }
    });
    match installed {
        Ok(_) => Ok(()),
        Err(errno) => {
            let text = "the system takes no handler of SIGBUS";
            let source = std::io::Error::from_raw_os_error(*errno);
            Err(Error::new(ErrorKind::Io, text).with_source(source))
        }
    }
}

/// The outcome of a SIGBUS.
enum Fate {
    /// The instruction runs again.
    Again,
    /// It is not ours.
    PassedOn,
    /// The page cannot be brought: the touch ends the program.
    Deadly(Errno),
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let errno_before = errno();
    // SAFETY: the kernel hands a handler with SA_SIGINFO a siginfo_t.
    let info_of_fault = unsafe { &*info };
    // SAFETY: of the union's fields a SIGBUS of the system's has this one. For a program's own it is not looked at.
    let address = unsafe { info_of_fault.si_addr() }.addr();
    let fate = if info_of_fault.si_code == BUS_ADRERR {
        // SAFETY: the kernel hands it a context, too.
        fate_of(address, unsafe { is_write(context) })
    } else {
        Fate::PassedOn
    };
    match fate {
        Fate::Again => {}
        Fate::PassedOn => {
            // A program's own signal has a code of zero or less.
            if info_of_fault.si_code > 0 && server_of(address).is_some() {
                last_words::lost(address);
            }
            pass_on(signal, info, context);
        }
        Fate::Deadly(errno) => {
            last_words::refused(address, errno);
            // SAFETY: `signal` is the one being handled. The instruction runs again, and ends the process.
            let _ = unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
    set_errno(errno_before);
}

fn server_of(address: usize) -> Option<NonNull<Server>> {
    TABLE.get().and_then(|table| table.find(address))
}

fn fate_of(address: usize, is_write: bool) -> Fate {
    let Some(server) = server_of(address) else {
        return Fate::PassedOn;
    };
    // SAFETY: whoever touches the range keeps its memory, and that the registration.
    let server = unsafe { server.as_ref() };
    let fault = Fault {
        address: address as u64,
        is_write,
        thread: this_thread(),
    };
    loop {
        match answer(server, fault) {
            Ok(Answer::Served { calls }) => {
                if calls {
                    server.turns.call();
                }
                return Fate::Again;
            }
            // The thread that changes mappings must run on, and the pager's must read its message.
            Ok(Answer::Later) => std::thread::yield_now(),
            Ok(Answer::NoMemory) => std::thread::sleep(STARVED_PAUSE),
            Ok(Answer::Disk) => std::thread::sleep(DISK_PAUSE),
            Ok(Answer::PassOn) => return Fate::PassedOn,
            // A descriptor that the program has closed is one of the reasons.
            Err(_) if is_planted(Plant::ClosedIgnored) => return Fate::Again,
            Err(errno) => return Fate::Deadly(errno),
        }
    }
}

/// One attempt, with the pager's lock.
fn answer(server: &Server, fault: Fault) -> Result<Answer, Errno> {
    let mut turn = server.turns.take();
    let pager = &raw mut *turn;
    if is_planted(Plant::LockGivenUp) {
        drop(turn);
    }
    let attempt = || {
        // SAFETY: the lock makes the pager this thread's alone. A plant breaks that.
        unsafe { &mut *pager }.answer(fault)
    };
    // SAFETY: and so it does the stack.
    unsafe { server.stack.call(attempt) }
}

/// A number that most likely is this thread's alone.
fn this_thread() -> u32 {
    // SAFETY: asks for a number.
    let thread = unsafe { libc::pthread_self() } as u64;
    // The low bits of two threads are often the same.
    (thread.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

/// Whether the touch was a write; true where the system does not tell.
///
/// # Safety
/// `context` is what the kernel has handed to a handler.
unsafe fn is_write(context: *mut c_void) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller's.
        let context = unsafe { &*context.cast::<libc::ucontext_t>() };
        context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = context;
        true
    }
}

/// Passes a signal that is not ours on to the handler before.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    type WithInfo = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    type Plain = extern "C" fn(c_int);
    // The handler can run before `install` has stored what was there: the default then.
    let previous = PREVIOUS.get().and_then(|previous| previous.as_ref().ok());
    let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    let has_info = previous.is_some_and(|previous| previous.sa_flags & libc::SA_SIGINFO != 0);
    match handler {
        // A fault cannot be ignored: the instruction runs again and ends the process.
        // SAFETY: `signal` is the one being handled.
        libc::SIG_DFL | libc::SIG_IGN => drop(unsafe { libc::signal(signal, libc::SIG_DFL) }),
        handler if has_info => {
            // SAFETY: the flag says that the address is a function of this kind.
            let handler = unsafe { std::mem::transmute::<libc::sighandler_t, WithInfo>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without the flag it is a function of this kind.
            let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Plain>(handler) };
            handler(signal);
        }
    }
}

fn errno() -> c_int {
    // SAFETY: asks for an address.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is that of this thread's number.
    unsafe { place.read() }
}

fn set_errno(number: c_int) {
    // SAFETY: asks for an address.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is that of this thread's number.
    unsafe { place.write(number) };
}
