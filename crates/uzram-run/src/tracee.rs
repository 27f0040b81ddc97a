//! Threads of other processes, stopped: system calls that they make for us.
//!
//! A thread makes one by the instruction in the vdso, stepped over, with registers set before and restored after. Nothing
//! is written into its code, so threads beside it notice nothing. All signals are blocked meanwhile and come later.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{self, c_long, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::registers;

/// A thread that runs or sleeps stops within microseconds. One that cannot be stopped waits for a disk, or for its child.
const STOP_TIME_MAX: Duration = Duration::from_millis(50);
const STOP_PAUSE: Duration = Duration::from_micros(50);
/// Stops of other reasons until a step is done.
const STOPS_MAX: usize = 64;
/// `linux/ptrace.h`.
const EVENT_STOP: i32 = 128;
const EVENT_CLONE: i32 = libc::PTRACE_EVENT_CLONE;
const MASK_BYTES: usize = 8;

/// A thread that is not as its tracer needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It has ended.
    Ended,
    /// It did not stop in time, or stopped for another reason.
    Busy,
    /// The system refuses.
    Refused(Errno),
}

impl From<Errno> for Lost {
    fn from(errno: Errno) -> Lost {
        match errno {
            Errno::ESRCH | Errno::ECHILD => Lost::Ended,
            errno => Lost::Refused(errno),
        }
    }
}

/// A traced thread that is stopped, and the registers that it had then.
#[derive(Debug)]
pub(crate) struct Stopped {
    pid: Pid,
    registers: user_regs_struct,
    mask: u64,
    /// An instruction of a system call in its memory.
    instruction: u64,
}

impl Stopped {
    /// Stops thread `thread`, whose memory has an instruction of a system call at `instruction`.
    ///
    /// # Errors
    /// [`Lost`]. A thread that is busy stops later: [`let_go`] it then.
    pub(crate) fn seize(thread: i32, instruction: u64) -> Result<Stopped, Lost> {
        let pid = Pid::from_raw(thread);
        ptrace::seize(pid, Options::PTRACE_O_TRACECLONE)?;
        ptrace::interrupt(pid)?;
        until_stopped(pid)?;
        let stopped = Stopped::here(pid, instruction);
        if stopped.is_err() {
            let _ = ptrace::detach(pid, None);
        }
        stopped
    }

    fn here(pid: Pid, instruction: u64) -> Result<Stopped, Lost> {
        let registers = ptrace::getregs(pid)?;
        let mut mask = 0;
        mask_request(libc::PTRACE_GETSIGMASK, pid, &mut mask)?;
        mask_request(libc::PTRACE_SETSIGMASK, pid, &mut u64::MAX.clone())?;
        Ok(Stopped {
            pid,
            registers,
            mask,
            instruction,
        })
    }

    /// The thread.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Has the thread make a system call, which must not wait for this thread.
    ///
    /// # Errors
    /// [`Lost`]. What the call itself answers is in the value: below zero an error number.
    pub(crate) fn call(&self, number: c_long, arguments: [u64; 6]) -> Result<i64, Lost> {
        self.set(number, arguments)?;
        self.step(&mut None)?;
        self.answer()
    }

    /// Begins [`registers::LOOP`], which is at `at`, over the system calls in `list`. No other call may be made until
    /// [`Stopped::has_ended_loop`].
    ///
    /// # Errors
    /// [`Lost`].
    pub(crate) fn begin_loop(&self, at: u64, list: std::ops::Range<u64>) -> Result<(), Lost> {
        ptrace::setregs(self.pid, registers::with_loop(self.registers, at, list))?;
        Ok(ptrace::cont(self.pid, None)?)
    }

    /// Whether the loop has ended. If it `waits`, it has.
    ///
    /// # Errors
    /// [`Lost`].
    pub(crate) fn has_ended_loop(&self, waits: bool) -> Result<bool, Lost> {
        let flags = match waits {
            true => WaitPidFlag::__WALL,
            false => WaitPidFlag::__WALL | WaitPidFlag::WNOHANG,
        };
        for _ in 0..STOPS_MAX {
            match waitpid(self.pid, Some(flags))? {
                WaitStatus::StillAlive => return Ok(false),
                WaitStatus::Stopped(_, Signal::SIGTRAP) => return Ok(true),
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Err(Lost::Ended),
                _ => ptrace::cont(self.pid, None)?,
            }
        }
        Err(Lost::Busy)
    }

    /// Has the thread make a process that shares its memory, and nothing else: stopped, and traced by this thread.
    ///
    /// # Errors
    /// [`Lost`].
    pub(crate) fn spawn(&self) -> Result<Stopped, Lost> {
        // No signal tells its parent of its end.
        let flags = libc::CLONE_VM as u64;
        self.set(libc::SYS_clone, [flags, 0, 0, 0, 0, 0])?;
        let mut spawned = None;
        self.step(&mut spawned)?;
        let answer = self.answer()?;
        let Some(child) = spawned else {
            return Err(Lost::Refused(Errno::from_raw(-answer as i32)));
        };
        until_stopped(child)?;
        ptrace::setoptions(child, Options::PTRACE_O_EXITKILL)?;
        Stopped::here(child, self.instruction)
    }

    /// Lets the thread go on as if it had never been stopped.
    ///
    /// # Errors
    /// [`Lost`].
    pub(crate) fn release(self) -> Result<(), Lost> {
        ptrace::setregs(self.pid, self.registers)?;
        mask_request(libc::PTRACE_SETSIGMASK, self.pid, &mut self.mask.clone())?;
        Ok(ptrace::detach(self.pid, None)?)
    }

    /// Ends the process, which is one of [`Stopped::spawn`].
    pub(crate) fn kill(&self) {
        let _ = nix::sys::signal::kill(self.pid, nix::sys::signal::SIGKILL);
        while let Ok(status) = waitpid(self.pid, Some(WaitPidFlag::__WALL)) {
            if matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..)) {
                break;
            }
        }
    }

    fn set(&self, number: c_long, arguments: [u64; 6]) -> Result<(), Lost> {
        let set = registers::with_call(self.registers, self.instruction, number, arguments);
        Ok(ptrace::setregs(self.pid, set)?)
    }

    /// Steps over the instruction. A child that it made is in `spawned`.
    fn step(&self, spawned: &mut Option<Pid>) -> Result<(), Lost> {
        for _ in 0..STOPS_MAX {
            ptrace::step(self.pid, None)?;
            match waitpid(self.pid, Some(WaitPidFlag::__WALL))? {
                // Within the call.
                WaitStatus::PtraceEvent(_, _, EVENT_CLONE) => {
                    *spawned = Some(Pid::from_raw(ptrace::getevent(self.pid)? as i32));
                }
                WaitStatus::Stopped(..) if self.is_behind()? => return Ok(()),
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Err(Lost::Ended),
                _ => {}
            }
        }
        Err(Lost::Busy)
    }

    fn is_behind(&self) -> Result<bool, Lost> {
        let behind = self.instruction + registers::INSTRUCTION.0.len() as u64;
        Ok(registers::next(&ptrace::getregs(self.pid)?) == behind)
    }

    fn answer(&self) -> Result<i64, Lost> {
        Ok(registers::answer(&ptrace::getregs(self.pid)?))
    }
}

/// Lets a thread go that [`Stopped::seize`] has found busy. False if it has not stopped yet: ask again.
pub(crate) fn let_go(thread: i32) -> bool {
    let pid = Pid::from_raw(thread);
    match has_stopped(pid) {
        Ok(true) => {
            let _ = ptrace::detach(pid, None);
            true
        }
        Ok(false) => false,
        Err(_) => true,
    }
}

fn until_stopped(pid: Pid) -> Result<(), Lost> {
    let begin = Instant::now();
    while !has_stopped(pid)? {
        if begin.elapsed() > STOP_TIME_MAX {
            return Err(Lost::Busy);
        }
        std::thread::sleep(STOP_PAUSE);
    }
    Ok(())
}

/// Whether a seized thread has stopped as it was told to. A signal that comes before goes where it belongs.
fn has_stopped(pid: Pid) -> Result<bool, Lost> {
    let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
    match waitpid(pid, Some(flags))? {
        WaitStatus::PtraceEvent(_, _, EVENT_STOP) => Ok(true),
        WaitStatus::Stopped(_, signal) => {
            ptrace::cont(pid, signal)?;
            Ok(false)
        }
        WaitStatus::PtraceEvent(..) => {
            ptrace::cont(pid, None)?;
            Ok(false)
        }
        WaitStatus::Exited(..) | WaitStatus::Signaled(..) => Err(Lost::Ended),
        _ => Ok(false),
    }
}

fn mask_request(request: libc::c_uint, pid: Pid, mask: &mut u64) -> Result<(), Lost> {
    // The type of a request differs between C libraries.
    // SAFETY: these requests read or write a mask of so many bytes.
    let result = unsafe {
        libc::ptrace(
            request as _,
            pid.as_raw(),
            MASK_BYTES,
            std::ptr::from_mut(mask),
        )
    };
    Ok(Errno::result(result).map(drop)?)
}
