//! Endpoints of a server: addresses, their URIs, and listening sockets.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::net::{SocketAddrUnix, SocketType};
use uzram::{Error, ErrorKind, Result};

use super::vsock;
use crate::unix_socket::{self, SocketNode};

/// The address at which a server listens. Displayed as the URI that clients take.
///
/// ```
/// use uzram_frontends::nbd::Endpoint;
/// let unix = Endpoint::Unix("/run/uzram/nbd.sock".into());
/// assert_eq!(unix.to_string(), "nbd+unix:///?socket=/run/uzram/nbd.sock");
/// assert_eq!(unix.uri("disk 0"), "nbd+unix:///disk%200?socket=/run/uzram/nbd.sock");
/// let tcp = Endpoint::Tcp(([127, 0, 0, 1], 10809).into());
/// assert_eq!(tcp.uri("disk0"), "nbd://127.0.0.1:10809/disk0");
/// assert!(tcp.is_loopback());
/// assert_eq!(Endpoint::Vsock(10809).uri("disk0"), "nbd+vsock://1:10809/disk0");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A socket of at most [`SOCKET_PATH_BYTES_MAX`](super::SOCKET_PATH_BYTES_MAX) bytes of path, made with mode 0600.
    Unix(PathBuf),
    /// An address and port; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A port of vsock, at each number that this machine has: its guests connect to it, or the host whose guest
    /// it is. `u32::MAX` takes a free one.
    Vsock(u32),
}

impl Endpoint {
    /// The URI of the export `name` here. Over vsock it is that of clients on this machine; others put the number
    /// that they know this machine by in place of 1: 2 in a guest of it.
    #[must_use]
    pub fn uri(&self, name: &str) -> String {
        self.uri_of("nbd", name)
    }

    /// The same for clients that must start TLS.
    #[must_use]
    pub fn uri_tls(&self, name: &str) -> String {
        self.uri_of("nbds", name)
    }

    fn uri_of(&self, scheme: &str, name: &str) -> String {
        let name = Escaped(name.as_bytes());
        match self {
            Endpoint::Unix(path) => {
                let path = Escaped(path.as_os_str().as_encoded_bytes());
                format!("{scheme}+unix:///{name}?socket={path}")
            }
            Endpoint::Tcp(address) => format!("{scheme}://{address}/{name}"),
            Endpoint::Vsock(port) => format!("{scheme}+vsock://{}:{port}/{name}", vsock::CID_LOCAL),
        }
    }

    /// Whether only this machine can connect.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match self {
            Endpoint::Unix(_) => true,
            Endpoint::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Endpoint::Vsock(_) => false,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uri(""))
    }
}

/// The bytes, percent-encoded where they have a meaning in a URI.
struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in self.0 {
            if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// A listening socket. Dropping it removes its path, if it made one.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: OwnedFd,
    /// Its address, with the port that was chosen.
    pub endpoint: Endpoint,
    _node: Option<SocketNode>,
}

impl Listener {
    /// Listens at `endpoint`. A path gets mode 0600; one that a dead server left is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if somebody listens there, [`ErrorKind::InvalidInput`] for an address or
    /// path that cannot be, [`ErrorKind::Unsupported`] for vsock where the kernel has none, [`ErrorKind::Io`] for what
    /// the system refuses.
    pub fn bind(endpoint: &Endpoint) -> Result<Listener> {
        match endpoint {
            Endpoint::Unix(path) => {
                let (socket, node) = unix_socket::listen(path)?;
                Ok(Listener {
                    socket,
                    endpoint: Endpoint::Unix(node.path.clone()),
                    _node: Some(node),
                })
            }
            Endpoint::Tcp(address) => bind_tcp(*address),
            Endpoint::Vsock(port) => {
                let (socket, port) = vsock::listen(*port)?;
                Ok(Listener {
                    socket,
                    endpoint: Endpoint::Vsock(port),
                    _node: None,
                })
            }
        }
    }

    /// Takes a listening socket that another program made and hands over, as systemd does. Its
    /// path stays.
    pub(crate) fn inherit(socket: OwnedFd) -> Result<Listener> {
        let refuse = |why: &str| {
            let text = format!("inherited socket: {why}");
            Error::new(ErrorKind::InvalidInput, text)
        };
        let is_listening = rustix::net::sockopt::socket_acceptconn(&socket).unwrap_or(false);
        let kind = rustix::net::sockopt::socket_type(&socket);
        if !is_listening || kind != Ok(SocketType::STREAM) {
            return Err(refuse("not a stream socket that listens"));
        }
        let address = rustix::net::getsockname(&socket);
        let address = address.map_err(|error| refuse("has no address").with_source(error))?;
        let endpoint = if let Ok(unix) = SocketAddrUnix::try_from(address.clone()) {
            let path = unix.path_bytes().map(OsStr::from_bytes);
            Endpoint::Unix(path.ok_or_else(|| refuse("has no path"))?.into())
        } else if let Some(port) = vsock::port(&socket) {
            Endpoint::Vsock(port)
        } else {
            let tcp = SocketAddr::try_from(address);
            Endpoint::Tcp(tcp.map_err(|_| refuse("neither a Unix socket, nor TCP, nor vsock"))?)
        };
        Ok(Listener {
            socket,
            endpoint,
            _node: None,
        })
    }
}

impl Listener {
    /// Takes a listening socket over from a dead process, which another one kept. Its path, if it has one, goes with this
    /// listener.
    pub(crate) fn resume(socket: OwnedFd) -> Result<Listener> {
        let mut listener = Listener::inherit(socket)?;
        if let Endpoint::Unix(path) = &listener.endpoint {
            let node = SocketNode::of(path).map_err(|error| {
                let text = format!("socket {}: kept, but its path is gone", path.display());
                Error::new(ErrorKind::Io, text).with_source(error)
            })?;
            listener._node = Some(node);
        }
        Ok(listener)
    }
}

fn bind_tcp(address: SocketAddr) -> Result<Listener> {
    let fail = |error: io::Error| {
        let (kind, remedy) = match error.kind() {
            io::ErrorKind::AddrInUse => {
                (ErrorKind::Busy, "choose another port, or 0 for a free one")
            }
            io::ErrorKind::PermissionDenied => (
                ErrorKind::Io,
                "ports below 1024 need privileges; choose a higher one",
            ),
            io::ErrorKind::AddrNotAvailable => {
                (ErrorKind::InvalidInput, "choose an address of this machine")
            }
            _ => (ErrorKind::Io, "cannot listen there"),
        };
        Error::new(kind, format!("address {address}: {remedy}")).with_source(error)
    };
    let listener = TcpListener::bind(address).map_err(fail)?;
    let endpoint = Endpoint::Tcp(listener.local_addr().map_err(fail)?);
    Ok(Listener {
        socket: listener.into(),
        endpoint,
        _node: None,
    })
}
