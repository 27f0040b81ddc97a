//! The other end of a connection, named for people who want to know what uses a disk.

use std::fmt;
use std::net::SocketAddr;

use rustix::fd::AsFd;
use rustix::net::getpeername;
use rustix::net::sockopt::socket_peercred;

/// A client as the system knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// A process of this machine, by its id as this process sees it.
    Process(u32),
    /// An address and port.
    Address(SocketAddr),
    /// A machine beside this one, over vsock.
    Vsock {
        /// The machine's number: 2 for the host, 1 for this machine, others for guests.
        cid: u32,
        /// The client's port.
        port: u32,
    },
    /// A client that the system does not name, such as a process outside of a container.
    Unknown,
}

impl Peer {
    pub(crate) fn of(socket: impl AsFd) -> Peer {
        let address = getpeername(&socket).ok().flatten();
        if let Some(address) = address.and_then(|any| SocketAddr::try_from(any).ok()) {
            return Peer::Address(address);
        }
        match socket_peercred(&socket) {
            Ok(peer) if peer.pid.as_raw_pid() > 0 => {
                Peer::Process(peer.pid.as_raw_pid().cast_unsigned())
            }
            _ => Peer::Unknown,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Process(pid) => write!(f, "process {pid}"),
            Peer::Address(address) => write!(f, "{address}"),
            Peer::Vsock { cid, port } => write!(f, "vsock {cid}:{port}"),
            Peer::Unknown => f.write_str("somebody"),
        }
    }
}
