//! The holder's own socket, for `uzram upgrade` and `uzram survive export`.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use uzram::{ErrorKind, REMAINS_FORMAT};

use super::kept::Kept;
use super::message::{Message, Received, receive, send};
use crate::error::{Error, Result};
use crate::state::{check_socket_path, own_uid};

const BACKLOG: i32 = 8;
/// Longest wait for a command that has connected and says nothing.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for a hand-over: two servers have to start if the first fails.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// A socket that commands connect to. Dropping it removes its path.
#[derive(Debug)]
pub(super) struct Commands {
    pub(super) listener: OwnedFd,
    path: PathBuf,
}

impl Commands {
    /// Listens at `path`, in a directory of mode 0700. What a dead holder left there is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub(super) fn bind(path: PathBuf) -> Result<Commands> {
        let address = address(&path)?;
        if connect(new_socket()?, &address).is_err() {
            let _ = fs::remove_file(&path);
        }
        let listener = new_socket()?;
        // The node takes its mode from the socket's.
        let bound = rustix::fs::fchmod(&listener, Mode::RUSR | Mode::WUSR)
            .and_then(|()| bind(&listener, &address))
            .and_then(|()| listen(&listener, BACKLOG));
        bound.map_err(|error| failed(&path, error.into()))?;
        Ok(Commands { listener, path })
    }

    /// The next request, with the connection for its answer; none if whoever connected may not ask, or asked nothing.
    pub(super) fn next(&self) -> Option<(OwnedFd, Received)> {
        let asker = accept_with(&self.listener, SocketFlags::CLOEXEC).ok()?;
        let uid = socket_peercred(&asker).ok()?.uid.as_raw();
        if uid != own_uid() && uid != 0 {
            log::warn!("the holder's socket: a process of user {uid} was refused");
            return None;
        }
        let _ = set_socket_timeout(&asker, Timeout::Recv, Some(REQUEST_TIMEOUT));
        let _ = set_socket_timeout(&asker, Timeout::Send, Some(REQUEST_TIMEOUT));
        let request = receive(&asker).ok()??;
        Some((asker, request))
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Has the holder at `socket` replace its server by `program`, without loss of anything. Returns the time for
/// which nobody served, in nanoseconds.
///
/// # Errors
/// [`ErrorKind::Io`] if there is no holder, or the holder's reason.
pub fn upgrade(socket: &Path, program: &File) -> Result<u64> {
    let asked = Message::Upgrade {
        format: REMAINS_FORMAT,
    };
    match ask(socket, &asked, Some(program))? {
        (
            Message::Done {
                error: None,
                pause_ns,
            },
            _,
        ) => Ok(pause_ns),
        other => Err(refusal(other)),
    }
}

/// All that the holder at `socket` keeps of the device `name`, which nobody serves.
///
/// # Errors
/// As [`upgrade`].
pub(super) fn kept_of(socket: &Path, name: &str) -> Result<Kept> {
    let asked = Message::Export {
        name: name.to_owned(),
    };
    match ask(socket, &asked, None)? {
        (
            Message::Keep {
                key,
                note,
                files: kinds,
            },
            files,
        ) => Ok(Kept::received(key, note, kinds, files)),
        other => Err(refusal(other)),
    }
}

/// Has the holder at `socket` drop what it keeps of the device `name`, which nobody serves.
///
/// # Errors
/// As [`upgrade`]; [`ErrorKind::Unsupported`] while somebody serves it.
pub fn let_go(socket: &Path, name: &str) -> Result<()> {
    let asked = Message::LetGo {
        name: name.to_owned(),
    };
    match ask(socket, &asked, None)? {
        (Message::Done { error: None, .. }, _) => Ok(()),
        other => Err(refusal(other)),
    }
}

/// The process of the holder whose socket this is, if there is one.
#[must_use]
pub fn holder_at(socket: &Path) -> Option<u32> {
    let asker = new_socket().ok()?;
    connect(&asker, &address(socket).ok()?).ok()?;
    let peer = socket_peercred(&asker).ok()?;
    peer.pid.as_raw_nonzero().get().try_into().ok()
}

fn refusal((message, _): Received) -> Error {
    match message {
        Message::Done {
            error: Some(why), ..
        } => Error::new(ErrorKind::Unsupported, why),
        other => Error::new(ErrorKind::Io, format!("holder: answered {other:?}")),
    }
}

fn ask(path: &Path, message: &Message, file: Option<&File>) -> Result<Received> {
    let socket = new_socket()?;
    connect(&socket, &address(path)?).map_err(|error| failed(path, error.into()))?;
    let _ = set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT));
    let files: Vec<_> = file
        .iter()
        .map(|file| std::os::fd::AsFd::as_fd(*file))
        .collect();
    send(&socket, message, &files)?;
    receive(&socket)?.ok_or_else(|| failed(path, std::io::ErrorKind::ConnectionReset.into()))
}

fn address(path: &Path) -> Result<SocketAddrUnix> {
    check_socket_path(path)?;
    SocketAddrUnix::new(path).map_err(|error| failed(path, error.into()))
}

fn new_socket() -> Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    socket.map_err(|error| Error::new(ErrorKind::Io, "socket").with_source(error))
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    let text = format!("the holder's socket {}", path.display());
    Error::new(ErrorKind::Io, text).with_source(error)
}
