//! Messages between a holder and a server: one of JSON a packet, with descriptors beside it.
//!
//! The socket is a pair of the holder's making, of kind SOCK_SEQPACKET. What a server has sent is there to be read
//! after its death too, so nothing has to be confirmed.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uzram::ErrorKind;

use crate::error::{Error, Result};

/// Longest message, in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 10;
/// Descriptors beside a message, at most.
pub(super) const FILES_MAX: usize = 16;

/// A message. Files come beside [`Message::Keep`] alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Message {
    /// To the holder: keep this in place of what is kept under the key. To a server, at its start: this was kept.
    Keep {
        key: String,
        /// Its meaning is the server's own matter.
        note: Value,
        /// The use of each file.
        files: Vec<String>,
    },
    /// To the holder: let go of it.
    Forget { key: String },
    /// To the holder: clients can connect. `number` is that of the server in the state directory.
    Serving { number: String, format: u32 },
    /// To the holder: the server ends because somebody asked it to, and leaves nothing.
    Ending {},
    /// To the server: all that was kept has been sent.
    Begin(Begin),
    /// To the server: answer what is under way and end, but leave everything as it is.
    HandOver {},
    /// From a command: have the program beside this serve, if it has this format.
    Upgrade { format: u32 },
    /// From a command: hand over what is kept of this device, as [`Message::Keep`], while nobody serves it.
    Export { name: String },
    /// From a command: drop what is kept of this device, while nobody serves it.
    LetGo { name: String },
    /// To a command: done, or the reason why not.
    Done {
        error: Option<String>,
        pause_ns: u64,
    },
}

impl Message {
    /// The files that come beside it.
    fn files(&self) -> usize {
        match self {
            Message::Keep { files, .. } => files.len(),
            Message::Upgrade { .. } => 1,
            _ => 0,
        }
    }
}

/// The moment of a start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// The holder's process.
    pub holder: u32,
    /// How often a server ended before, and was followed by another one.
    pub take_overs: u64,
    /// The end of the one before this, if there was one.
    pub before: Option<Death>,
}

/// The end of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Death {
    /// Its process.
    pub pid: u32,
    /// How it ended, in words: `killed by signal 9 (KILL)`.
    pub why: String,
    /// When the holder learnt of it, in nanoseconds of CLOCK_MONOTONIC; of a hand-over, when it was asked for.
    pub at_ns: u64,
}

/// The present moment, in nanoseconds of CLOCK_MONOTONIC.
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A message that came, with its files.
pub(super) type Received = (Message, Vec<OwnedFd>);

/// Sends a message with its files.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] if it is too long, [`ErrorKind::Io`] if nobody takes it.
pub(super) fn send(socket: impl AsFd, message: &Message, files: &[BorrowedFd<'_>]) -> Result<()> {
    let failed = |error: std::io::Error| Error::new(ErrorKind::Io, "holder").with_source(error);
    let bytes = serde_json::to_vec(message).map_err(|error| failed(error.into()))?;
    if bytes.len() > MESSAGE_BYTES_MAX || files.len() > FILES_MAX {
        let text = format!(
            "holder: {} bytes and {} files to keep; at most {MESSAGE_BYTES_MAX} and {FILES_MAX}",
            bytes.len(),
            files.len()
        );
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(files));
    }
    let parts = [IoSlice::new(&bytes)];
    loop {
        match rustix::net::sendmsg(&socket, &parts, &mut beside, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
            Ok(_) => return Ok(()),
        }
    }
}

/// Waits for a message; none once the other end is gone.
///
/// # Errors
/// [`ErrorKind::Io`] if the system refuses; [`ErrorKind::InvalidInput`] for what is no message: the next one may be.
pub(super) fn receive(socket: impl AsFd) -> Result<Option<Received>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = loop {
        match rustix::net::recvmsg(&socket, &mut parts, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            // Its other end died with messages of ours unread.
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(Error::new(ErrorKind::Io, "holder").with_source(error)),
            Ok(received) => break received,
        }
    };
    let mut files = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            files.extend(more);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let bad = |why: String| Error::new(ErrorKind::InvalidInput, format!("holder: {why}"));
    if received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(bad(
            "a message that is too long, or came without its files".into()
        ));
    }
    let message = serde_json::from_slice::<Message>(&bytes[..received.bytes]);
    let message = message.map_err(|error| bad(format!("malformed message: {error}")))?;
    let named = message.files();
    if named != files.len() {
        return Err(bad(format!(
            "{named} files named, and {} came",
            files.len()
        )));
    }
    Ok(Some((message, files)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    fn kept(files: usize) -> Message {
        Message::Keep {
            key: "device/d".into(),
            note: serde_json::json!({ "options": {} }),
            files: vec!["table".into(); files],
        }
    }

    #[test]
    fn messages_outlive_their_sender() {
        let (holder, server) = pair();
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        send(&server, &kept(2), &[file.as_fd(), file.as_fd()]).unwrap();
        send(&server, &Message::Ending {}, &[]).unwrap();
        drop(server);
        let (message, files) = receive(&holder).unwrap().unwrap();
        assert_eq!((message, files.len()), (kept(2), 2));
        assert_eq!(receive(&holder).unwrap().unwrap().0, Message::Ending {});
        assert!(receive(&holder).unwrap().is_none());
    }

    /// Each costs itself alone.
    #[test]
    fn what_is_no_message_is_refused_and_the_next_one_is_heard() {
        let (holder, server) = pair();
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let say = |bytes: &[u8]| rustix::net::send(&server, bytes, SendFlags::empty()).unwrap();
        say(b"no JSON");
        say(b"{\"is\":\"burn\"}");
        say(b"{\"is\":\"forget\"}");
        say(b"{\"is\":\"forget\",\"key\":\"a\",\"more\":1}");
        say(&[b'['; MESSAGE_BYTES_MAX + 1]);
        say(&[b'['; MESSAGE_BYTES_MAX]);
        send(&server, &kept(2), &[file.as_fd()]).unwrap();
        send(&server, &Message::Ending {}, &[file.as_fd()]).unwrap();
        for _ in 0..8 {
            let refused = receive(&holder).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
        }
        send(&server, &Message::Ending {}, &[]).unwrap();
        assert!(receive(&holder).unwrap().is_some());
        let long = Message::Forget {
            key: "x".repeat(MESSAGE_BYTES_MAX),
        };
        assert!(send(&server, &long, &[]).is_err());
        assert!(send(&server, &kept(17), &[file.as_fd(); 17]).is_err());
    }
}
