//! A server that a holder has started.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use uzram::ErrorKind;

use super::kept::Table;
use super::message::{Begin, Message, send};
use super::program::Program;
use crate::error::{Error, Result};

/// Longest wait for a server that does not take what was kept.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// A child, from its start to its end.
#[derive(Debug)]
pub(super) struct Running {
    pid: Pid,
    /// Readable once all its threads have ended.
    pub(super) ended: OwnedFd,
    pub(super) socket: OwnedFd,
    pub(super) started: Instant,
    pub(super) is_serving: bool,
    /// It said that it ends because somebody asked it to.
    pub(super) is_ending: bool,
    /// It was killed because it did not serve in time.
    pub(super) is_given_up: bool,
    /// Its end of the socket is closed.
    pub(super) is_silent: bool,
}

impl Running {
    /// Starts `program`, which waits for [`Running::begin`], with another standard error if there is one.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be started.
    pub(super) fn start(
        program: &Program,
        arguments: &[OsString],
        stderr: Option<&OwnedFd>,
    ) -> Result<Running> {
        let failed = |what: &'static str| {
            move |error: std::io::Error| {
                Error::new(ErrorKind::Io, format!("holder: {what}")).with_source(error)
            }
        };
        let pair = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let (socket, theirs) = pair.map_err(|error| failed("a socket")(error.into()))?;
        let _ = set_socket_timeout(&socket, Timeout::Send, Some(SEND_TIMEOUT));
        let mut command = program.command();
        command.args(arguments).stdin(Stdio::from(theirs));
        if let Some(stderr) = stderr {
            let copy = stderr.try_clone().map_err(failed("standard error"))?;
            command.stderr(copy);
        }
        let child = command.spawn().map_err(failed("cannot start the server"))?;
        let pid = Pid::from_child(&child);
        // It holds the server's end of the socket.
        drop(command);
        let ended = pidfd_open(pid, PidfdFlags::empty());
        Ok(Running {
            ended: ended.map_err(|error| failed("pidfd")(error.into()))?,
            pid,
            socket,
            started: Instant::now(),
            is_serving: false,
            is_ending: false,
            is_given_up: false,
            is_silent: false,
        })
    }

    /// Hands it `kept`, with which it serves.
    pub(super) fn begin(&mut self, kept: &Table, begin: Begin) {
        self.started = Instant::now();
        for kept in kept.iter() {
            let (message, files) = kept.message();
            if send(&self.socket, &message, &files).is_err() {
                // It is gone, or would wait for the rest for ever. Its end will be seen.
                return self.signal(Signal::KILL);
            }
        }
        if send(&self.socket, &Message::Begin(begin), &[]).is_err() {
            self.signal(Signal::KILL);
        }
    }

    /// Ends one that never began.
    pub(super) fn discard(self) {
        self.signal(Signal::KILL);
        let _ = self.status();
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid, signal);
    }

    /// The status of its end, which [`Running::ended`] has told of.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub(super) fn status(&self) -> Result<ExitStatus> {
        loop {
            match waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => return Ok(ExitStatus::from_raw(status.as_raw())),
                Ok(None) | Err(Errno::INTR) => {}
                Err(error) => {
                    return Err(Error::new(ErrorKind::Io, "holder: wait").with_source(error));
                }
            }
        }
    }
}

/// How a process ended, in words.
pub(super) fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended by itself with status {code}"),
        (None, Some(signal)) => {
            let name = match Signal::from_named_raw(signal) {
                Some(Signal::KILL) => " (KILL)",
                Some(Signal::SEGV) => " (SEGV)",
                Some(Signal::BUS) => " (BUS)",
                Some(Signal::ABORT) => " (ABRT, as after a panic or without memory)",
                Some(Signal::ILL) => " (ILL)",
                Some(Signal::SYS) => " (SYS)",
                _ => "",
            };
            format!("killed by signal {signal}{name}")
        }
        (None, None) => "ended in an unknown way".to_owned(),
    }
}
