//! Where a server listens: addresses, their URIs, and sockets made with care.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use uzram::{Error, ErrorKind, Result};

/// Longest path of a Unix socket, in bytes: the system's limit.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Connections that the system holds for a server that has not taken them yet.
const BACKLOG: i32 = 128;
/// How long a server waits for another one that is making a socket in the same directory.
const DIRECTORY_LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const DIRECTORY_LOCK_RETRY: Duration = Duration::from_millis(5);

/// Where a server listens. Displayed as the URI that clients take.
///
/// ```
/// use uzram_frontends::nbd::Endpoint;
/// let unix = Endpoint::Unix("/run/uzram/nbd.sock".into());
/// assert_eq!(unix.to_string(), "nbd+unix:///?socket=/run/uzram/nbd.sock");
/// assert_eq!(unix.uri("disk 0"), "nbd+unix:///disk%200?socket=/run/uzram/nbd.sock");
/// let tcp = Endpoint::Tcp(([127, 0, 0, 1], 10809).into());
/// assert_eq!(tcp.uri("disk0"), "nbd://127.0.0.1:10809/disk0");
/// assert!(tcp.is_loopback());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A socket of at most [`SOCKET_PATH_BYTES_MAX`] bytes of path, made with mode 0600.
    Unix(PathBuf),
    /// An address and port; port 0 takes a free one.
    Tcp(SocketAddr),
}

impl Endpoint {
    /// The URI of the export `name` here.
    #[must_use]
    pub fn uri(&self, name: &str) -> String {
        self.uri_of("nbd", name)
    }

    /// The same for clients that are to start TLS.
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
        }
    }

    /// Whether only this machine can connect.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match self {
            Endpoint::Unix(_) => true,
            Endpoint::Tcp(address) => address.ip().to_canonical().is_loopback(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uri(""))
    }
}

/// Bytes with those percent-encoded that mean something in a URI.
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

/// A listening socket; removes its path when dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    pub socket: OwnedFd,
    pub endpoint: Endpoint,
    _node: Option<SocketNode>,
}

impl Listener {
    pub fn bind(endpoint: &Endpoint) -> Result<Listener> {
        match endpoint {
            Endpoint::Unix(path) => bind_unix(path),
            Endpoint::Tcp(address) => bind_tcp(*address),
        }
    }

    /// Takes a socket that somebody else listens with and hands over, as systemd does. Its path is
    /// theirs, and stays.
    pub fn inherit(socket: OwnedFd) -> Result<Listener> {
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
        } else {
            let tcp = SocketAddr::try_from(address);
            Endpoint::Tcp(tcp.map_err(|_| refuse("neither a Unix socket nor TCP"))?)
        };
        Ok(Listener {
            socket,
            endpoint,
            _node: None,
        })
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

fn bind_unix(path: &Path) -> Result<Listener> {
    let shown = path.display();
    let bytes = path.as_os_str().len();
    if bytes == 0 || bytes > SOCKET_PATH_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("socket path {shown}: {bytes} bytes, must be 1 to {SOCKET_PATH_BYTES_MAX}"),
        ));
    }
    let fail = |remedy: &str, error: io::Error| {
        Error::new(ErrorKind::Io, format!("socket {shown}: {remedy}")).with_source(error)
    };
    let _lock = lock_directory(path)?;
    remove_stale(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| fail("cannot make a socket", error.into()))?;
    // The node takes its mode from the socket's, so it is private from its first moment. A umask
    // would do the same to whatever another thread creates meanwhile; chmod alone comes too late.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)
        .map_err(|error| fail("cannot set its mode", error.into()))?;
    let address =
        SocketAddrUnix::new(path).map_err(|error| fail("not a valid socket path", error.into()))?;
    rustix::net::bind(&socket, &address).map_err(|error| {
        fail(
            "cannot make it; check the directory's permissions",
            error.into(),
        )
    })?;
    let node = SocketNode::of(path).map_err(|error| fail("vanished while made", error))?;
    if node.mode & 0o177 != 0 {
        // A file system that ignores the socket's mode: nobody can connect before listen().
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)
            .map_err(|error| fail("cannot make it private", error.into()))?;
    }
    rustix::net::listen(&socket, BACKLOG).map_err(|error| fail("cannot listen", error.into()))?;
    Ok(Listener {
        socket,
        endpoint: Endpoint::Unix(node.path.clone()),
        _node: Some(node),
    })
}

/// Keeps two servers from taking the same stale path at once: one would unlink the other's new
/// socket. The lock is on the directory, so that it leaves no file behind.
fn lock_directory(path: &Path) -> Result<Option<File>> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let file = match File::open(directory) {
        // A directory that may be written and not read: the race stays open there.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        opened => opened,
    };
    let file = file.map_err(|error| {
        let remedy = if error.kind() == io::ErrorKind::NotFound {
            "its directory does not exist; create it"
        } else {
            "its directory cannot be opened"
        };
        Error::new(
            ErrorKind::Io,
            format!("socket {}: {remedy}", path.display()),
        )
        .with_source(error)
    })?;
    let start = Instant::now();
    // Whoever holds the lock longer is not a server being started: then only the race is open.
    while rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive).is_err()
        && start.elapsed() < DIRECTORY_LOCK_TIMEOUT
    {
        std::thread::sleep(DIRECTORY_LOCK_RETRY);
    }
    Ok(Some(file))
}

fn remove_stale(path: &Path) -> Result<()> {
    let shown = path.display();
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            let text = format!("socket {shown}: cannot be looked at; check its directory");
            return Err(Error::new(ErrorKind::Io, text).with_source(error));
        }
    };
    if !metadata.file_type().is_socket() {
        let text = format!("socket {shown}: exists and is not a socket; choose another path");
        return Err(Error::new(ErrorKind::Busy, text));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|error| {
                let text = format!("socket {shown}: left behind and cannot be removed");
                Error::new(ErrorKind::Io, text).with_source(error)
            }),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let text = format!("socket {shown}: belongs to somebody else; choose another path");
            Err(Error::new(ErrorKind::Busy, text).with_source(error))
        }
        // Connected, or too busy to: somebody listens.
        _ => Err(Error::new(
            ErrorKind::Busy,
            format!("socket {shown}: a server is listening there; stop it or choose another path"),
        )),
    }
}

/// The file of a Unix socket, known by its inode so that only our own is ever removed.
#[derive(Debug)]
struct SocketNode {
    path: PathBuf,
    device: u64,
    inode: u64,
    mode: u32,
}

impl SocketNode {
    fn of(path: &Path) -> io::Result<SocketNode> {
        let metadata = fs::symlink_metadata(path)?;
        // Absolute, so that a later change of the working directory does not matter.
        let path = std::path::absolute(path)?;
        let (device, inode, mode) = (metadata.dev(), metadata.ino(), metadata.mode());
        Ok(SocketNode {
            path,
            device,
            inode,
            mode,
        })
    }
}

impl Drop for SocketNode {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|now| (now.dev(), now.ino()) == (self.device, self.inode));
        if ours {
            // Failing leaves a stale socket, which the next server removes.
            let _ = fs::remove_file(&self.path);
        }
    }
}
