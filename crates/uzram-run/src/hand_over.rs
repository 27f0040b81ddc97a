//! Descriptors over sockets, also into a process whose system calls are made for it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends `descriptor` and `bytes`.
///
/// # Errors
/// The system's.
pub(crate) fn give(socket: BorrowedFd, descriptor: BorrowedFd, bytes: &[u8]) -> Result<(), Errno> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags).map(drop)
}

/// Receives bytes and at most one descriptor. No bytes: the other end is closed.
///
/// # Errors
/// The system's.
pub(crate) fn take(socket: impl AsFd, bytes: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(bytes)];
    let received = recvmsg(socket, &mut parts, &mut ancillary, flags)?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes, descriptor))
}

/// Addresses in another process's page.
pub(crate) struct Places {
    /// Of the `msghdr`.
    pub header: u64,
    /// Of the number of the descriptor that came.
    pub descriptor: u64,
}

/// The bytes that [`take`] would have at address `at`, for one byte and one descriptor: `recvmsg`'s structures of 64-bit Linux.
pub(crate) fn header(at: u64) -> (Vec<u8>, Places) {
    const HEADER_BYTES: u64 = 56;
    const PART_BYTES: u64 = 16;
    const ANCILLARY_BYTES: u64 = 24;
    let part = at + HEADER_BYTES;
    let ancillary = part + PART_BYTES;
    let byte = ancillary + ANCILLARY_BYTES;
    // No name; one part; the ancillary data; flags. Then the part, and room for the ancillary data.
    let header = [0, 0, part, 1, ancillary, ANCILLARY_BYTES, 0];
    let words = [header.as_slice(), &[byte, 1], &[0; 4]].concat();
    let bytes = words.into_iter().flat_map(u64::to_ne_bytes);
    let places = Places {
        header: at,
        descriptor: ancillary + 16,
    };
    (bytes.collect(), places)
}
