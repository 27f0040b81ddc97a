//! Unix sockets that servers listen at, made with care: private from their first moment, in place of
//! what a dead server left and never in place of anything else.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
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

/// Listens at `path`, which goes with the node.
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
    Ok((socket, node))
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
pub(crate) struct SocketNode {
    /// Absolute.
    pub path: PathBuf,
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
