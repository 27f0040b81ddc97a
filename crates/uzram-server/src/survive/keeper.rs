//! A server's way to its holder.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::Value;
use uzram::ErrorKind;

use super::kept::{Kept, MEMORY_KEY};
use super::message::{Begin, Message, now_ns, receive, send};
use super::twin;
use crate::error::{Error, Result};

/// Longest wait for a holder that does not read. It does little else.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The way to the holder of this process, and what it said at the start. Messages are sent by one thread at a time, so the
/// last one about a key is the newest.
#[derive(Debug)]
pub struct Keeper {
    socket: OwnedFd,
    sending: Mutex<()>,
    begin: Begin,
    is_gone: AtomicBool,
    /// Time from the end of the server before to the moment when this one served.
    pause_ns: AtomicU64,
}

/// Things that a server is given at its start.
#[derive(Debug)]
pub struct Joined {
    /// The way to its holder.
    pub keeper: Keeper,
    /// Things kept of the server before it, and sockets that were handed over to the holder.
    pub(crate) kept: Vec<Kept>,
}

impl Joined {
    /// Whether a server came before this one.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.keeper.begin.take_overs > 0
    }
}

impl Keeper {
    /// Takes from a holder, at the other end of `socket`, what it kept.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the holder is gone, [`ErrorKind::InvalidInput`] if it is none.
    pub fn join(socket: OwnedFd) -> Result<Joined> {
        let _ = set_socket_timeout(&socket, Timeout::Send, Some(SEND_TIMEOUT));
        let mut kept = Vec::new();
        let begin = loop {
            match receive(&socket)? {
                Some((
                    Message::Keep {
                        key,
                        note,
                        files: kinds,
                    },
                    files,
                )) => kept.push(Kept::received(key, note, kinds, files)),
                Some((Message::Begin(begin), _)) => break begin,
                Some((other, _)) => {
                    let text = format!("holder: {other:?} at the start");
                    return Err(Error::new(ErrorKind::InvalidInput, text));
                }
                None => return Err(Error::new(ErrorKind::Io, "holder: gone before the start")),
            }
        };
        let keeper = Keeper {
            socket,
            sending: Mutex::new(()),
            begin,
            is_gone: AtomicBool::new(false),
            pause_ns: AtomicU64::new(0),
        };
        Ok(Joined { keeper, kept })
    }

    /// The circumstances of this server's start.
    #[must_use]
    pub fn begin(&self) -> &Begin {
        &self.begin
    }

    /// The holder's process; 0 once it is gone.
    #[must_use]
    pub fn holder(&self) -> u32 {
        match self.is_gone.load(Ordering::Relaxed) {
            true => 0,
            false => self.begin.holder,
        }
    }

    /// Time from the end of the server before this one to the moment when this one served, in nanoseconds; 0 for
    /// the first.
    #[must_use]
    pub fn pause_ns(&self) -> u64 {
        self.pause_ns.load(Ordering::Relaxed)
    }

    /// Has the holder keep `files`, each with what it is, and a note.
    pub(crate) fn keep(&self, key: String, note: Value, files: &[(&str, OwnedFd)]) {
        let message = Message::Keep {
            key,
            note,
            files: files.iter().map(|(what, _)| (*what).to_owned()).collect(),
        };
        let files: Vec<_> = files.iter().map(|(_, file)| file.as_fd()).collect();
        self.say(&message, &files);
    }

    /// Has the holder let go of what it keeps under `key`.
    pub(crate) fn forget(&self, key: String) {
        self.say(&Message::Forget { key }, &[]);
    }

    /// Tells the holder that clients can connect.
    pub(crate) fn serving(&self, number: &str) {
        if let Some(before) = &self.begin.before {
            let pause_ns = now_ns().saturating_sub(before.at_ns).max(1);
            self.pause_ns.store(pause_ns, Ordering::Relaxed);
        }
        let number = number.to_owned();
        self.say(
            &Message::Serving {
                number,
                format: uzram::REMAINS_FORMAT,
            },
            &[],
        );
    }

    /// Has this process's memory stay locked after its end, in place of that of the server before it.
    pub(crate) fn keep_locked(&self) {
        match twin::start() {
            Ok(socket) => self.keep(MEMORY_KEY.into(), Value::Null, &[("twin", socket)]),
            Err(error) => log::warn!(
                "{error}: a machine that is short of memory may stall when this server dies; it takes Linux 5.9 and \
                 no sandbox (--no-sandbox)"
            ),
        }
    }

    /// Tells the holder that no server is to follow this one.
    pub(crate) fn ending(&self) {
        self.say(&Message::Ending {}, &[]);
    }

    /// Waits until the holder asks for a hand-over; false if it is gone.
    pub(crate) fn waits_for_hand_over(&self) -> bool {
        loop {
            match receive(&self.socket) {
                Ok(Some((Message::HandOver {}, _))) => return true,
                Ok(Some((other, _))) => log::warn!("holder: {other:?}: not expected"),
                Err(error) if error.kind() == ErrorKind::InvalidInput => log::warn!("{error}"),
                Ok(None) | Err(_) => break,
            }
        }
        self.is_gone.store(true, Ordering::Relaxed);
        false
    }

    fn say(&self, message: &Message, files: &[std::os::fd::BorrowedFd<'_>]) {
        let _one_at_a_time = self.sending.lock();
        if self.is_gone.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = send(&self.socket, message, files) {
            log::error!("{error}: not kept; the end of this server would lose it");
        }
    }
}
