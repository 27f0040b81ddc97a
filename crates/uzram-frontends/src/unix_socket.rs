//! Unix sockets that servers listen at. They are private from their first moment. They replace
//! what a dead server left, and never anything else.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Dir, FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use uzram::{Error, ErrorKind, Result};

/// Longest path of a Unix socket, in bytes: the system's limit.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Connections that the system holds for a server that has not taken them yet.
const BACKLOG: i32 = 128;
/// The time that a server waits for another one that makes a socket in the same directory.
const DIRECTORY_LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Names of a directory that are looked through for a socket's.
const ENTRIES_MAX: usize = 1 << 20;
const DIRECTORY_LOCK_RETRY: Duration = Duration::from_millis(5);

/// Listens at `path`. The path is removed with the node.
///
/// # Errors
/// [`ErrorKind::Busy`] if a server listens there, [`ErrorKind::InvalidInput`] for a path that is too
/// long, [`ErrorKind::Io`] for what the system refuses.
pub(crate) fn listen(path: &Path) -> Result<(OwnedFd, SocketNode)> {
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
    rustix::net::bind(&socket, &address).map_err(|errno| match errno {
        // Only a sandbox lets it come so far: otherwise what was there is gone, or known.
        Errno::ADDRINUSE => Error::new(
            ErrorKind::Busy,
            format!(
                "socket {shown}: exists already, and a sandbox keeps this server from finding out whether \
                 somebody listens there; choose another path, or remove it if nobody does"
            ),
        ),
        errno => fail(
            "cannot make it; check the directory's permissions",
            errno.into(),
        ),
    })?;
    let node = SocketNode::of(path).map_err(|error| fail("vanished while made", error))?;
    make_private(path).map_err(|error| fail("cannot make it private", error))?;
    rustix::net::listen(&socket, BACKLOG).map_err(|error| fail("cannot listen", error.into()))?;
    Ok((socket, node))
}

/// Sees to the mode of the socket at `path`, on a file system that ignores the one that it was made
/// with. Nobody can connect before listen(). A sandbox refuses to look: a server that has one could do
/// so in the same directory before.
fn make_private(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.mode() & 0o177 != 0 => {
            let private = Mode::RUSR | Mode::WUSR;
            Ok(rustix::fs::chmod(path, private)?)
        }
        Err(error) if !is_refused(&error) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Whether a filter of system calls refused a call. A file's mode gives another error.
fn is_refused(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::PERM.raw_os_error())
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
        // Making the socket will tell.
        Err(error) if is_refused(&error) => return Ok(()),
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

/// The file of a Unix socket, known by its inode, so that only this one is ever removed.
///
/// The inode is read from the directory, for the system call that tells it of a path tells more, and a
/// sandbox refuses it.
#[derive(Debug)]
pub(crate) struct SocketNode {
    /// The path, absolute.
    pub path: PathBuf,
    /// The device and the inode.
    identity: (u64, u64),
}

impl SocketNode {
    pub fn of(path: &Path) -> io::Result<SocketNode> {
        // Absolute, so that a later change of the working directory does not matter.
        let path = std::path::absolute(path)?;
        let identity = identity(&path)?;
        Ok(SocketNode { path, identity })
    }
}

/// The device and the inode of `path`, which is absolute.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    match listed(path) {
        // A directory that may be written and not read.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let found = fs::symlink_metadata(path)?;
            Ok((found.dev(), found.ino()))
        }
        found => found,
    }
}

/// The same as its directory lists it.
fn listed(path: &Path) -> io::Result<(u64, u64)> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let directory = File::open(directory)?;
    let device = rustix::fs::fstat(&directory)?.st_dev;
    for entry in Dir::new(directory)?.take(ENTRIES_MAX) {
        let entry = entry?;
        if entry.file_name().to_bytes() == name.as_encoded_bytes() {
            return Ok((device, entry.ino()));
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

impl Drop for SocketNode {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            // Failing leaves a stale socket, which the next server removes.
            let _ = fs::remove_file(&self.path);
        }
    }
}
