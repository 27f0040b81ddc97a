//! The client's half.

use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use uzram::ErrorKind;

use super::{REPLY_BYTES_MAX, Reply, Request};
use crate::error::{Error, Result};
use crate::state::check_socket_path;

/// Longest wait for a server's counters.
const SHOW_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for a server that empties a large device, or gives its memory back.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Asks the server whose control socket is at `path`. A refusal is an `Ok` with `ok` false.
///
/// # Errors
/// [`ErrorKind::Io`] if no server answers there, or its answer is not a reply.
pub fn ask(path: &Path, request: &Request) -> Result<Reply> {
    ask_with(path, request, None)
}

/// The same, and hands the server a file that the request names: it may not be able to open it.
///
/// # Errors
/// As [`ask`].
pub fn ask_with(path: &Path, request: &Request, file: Option<&File>) -> Result<Reply> {
    check_socket_path(path)?;
    let failed = |e: std::io::Error| {
        Error::new(ErrorKind::Io, format!("control socket {}", path.display())).with_source(e)
    };
    let timeout = match request {
        Request::List {} | Request::Stat { .. } => SHOW_TIMEOUT,
        Request::Set { .. } | Request::Add { .. } | Request::Remove { .. } => CHANGE_TIMEOUT,
    };
    let stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(timeout)).map_err(failed)?;
    stream.set_write_timeout(Some(timeout)).map_err(failed)?;
    let mut line = serde_json::to_vec(request).map_err(|e| failed(e.into()))?;
    line.push(b'\n');
    // A server that refuses without reading (too many requests) has closed; its reply is there.
    let sent = match file {
        // A file comes with the first bytes.
        Some(file) => send_with(&stream, &line, file).unwrap_or(0),
        None => 0,
    };
    let _ = (&stream).write_all(&line[sent..]);
    let mut reply = Vec::new();
    BufReader::new((&stream).take(REPLY_BYTES_MAX as u64))
        .read_until(b'\n', &mut reply)
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => failed(std::io::ErrorKind::TimedOut.into()),
            _ => failed(e),
        })?;
    serde_json::from_slice(&reply).map_err(|e| failed(e.into()))
}

fn send_with(stream: &UnixStream, bytes: &[u8], file: &File) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&files));
    let parts = [IoSlice::new(bytes)];
    rustix::net::sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL)
}
