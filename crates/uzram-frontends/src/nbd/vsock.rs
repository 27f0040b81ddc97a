//! vsock: sockets between a machine and its guests, which need no network. An address is the number of a machine
//! (CID) and a port.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use uzram::{Error, ErrorKind, Result};

use crate::peer::Peer;

/// The number by which a machine knows itself.
pub(crate) const CID_LOCAL: u32 = 1;
/// All numbers that this machine has, and will get.
const CID_ANY: u32 = u32::MAX;
/// Connections that the system holds for a server that has not taken them yet.
const BACKLOG: i32 = 128;

/// Listens at `port`, or at a free one for `u32::MAX`. Returns the port too.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the kernel has no vsock, [`ErrorKind::Busy`] if somebody listens there,
/// [`ErrorKind::Io`] for what the system refuses.
pub(crate) fn listen(port: u32) -> Result<(OwnedFd, u32)> {
    let fail = |error: io::Error| {
        let (kind, remedy) = remedy(&error);
        Error::new(kind, format!("vsock port {port}: {remedy}")).with_source(error)
    };
    let socket = Socket::new(Domain::VSOCK, Type::STREAM, None).map_err(fail)?;
    socket.bind(&SockAddr::vsock(CID_ANY, port)).map_err(fail)?;
    socket.listen(BACKLOG).map_err(fail)?;
    let bound = socket.local_addr().map_err(fail)?.as_vsock_address();
    Ok((socket.into(), bound.map_or(port, |(_, port)| port)))
}

/// The port of `socket`, if it is one of vsock.
pub(crate) fn port(socket: &OwnedFd) -> Option<u32> {
    let address = SockRef::from(socket).local_addr().ok()?;
    let (_, port) = address.as_vsock_address()?;
    Some(port)
}

fn remedy(error: &io::Error) -> (ErrorKind, &'static str) {
    match Errno::from_io_error(error) {
        Some(Errno::AFNOSUPPORT) => (
            ErrorKind::Unsupported,
            "this kernel has no vsock; load its module (on a host vhost_vsock, in a guest \
             vmw_vsock_virtio_transport), or listen at IP:PORT",
        ),
        Some(Errno::PERM) => (
            ErrorKind::Io,
            "refused, as a container's filter of system calls may do; allow AF_VSOCK there, or listen at IP:PORT",
        ),
        Some(Errno::ADDRINUSE) => (
            ErrorKind::Busy,
            "somebody listens there; choose another port",
        ),
        Some(Errno::ACCESS) => (
            ErrorKind::Io,
            "ports below 1024 need privileges; choose a higher one",
        ),
        _ => (ErrorKind::Io, "cannot listen there"),
    }
}

/// The client at the other end of `socket`, if it came over vsock.
pub(crate) fn peer(socket: &OwnedFd) -> Option<Peer> {
    let address = SockRef::from(socket).peer_addr().ok()?;
    let (cid, port) = address.as_vsock_address()?;
    Some(Peer::Vsock { cid, port })
}
