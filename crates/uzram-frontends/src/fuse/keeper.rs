//! A process that unmounts a file system for one that may not: a server in a sandbox cannot, and one that was
//! killed does not. It is started before both, asks nothing of anybody, and ends with the mount. What else a
//! sandbox refuses, and the program does, is done when the server asks.
//!
//! ```text
//! the mount's process          a pipe          the keeper
//!   goes on                  ◀──────── a byte: it is not to be ended by signals any more
//!   tidy: a byte             ────────▶ does what the program gave it to do
//!   goes on                  ◀──────── a byte
//!   unmount: a byte, its end ────────▶ unmounts, whoever uses it
//!   its death: the end alone ────────▶ unmounts if nobody answers there
//!   waits for the end        ◀──────── its death
//! ```

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use uzram::{Error, ErrorKind, Result};

use super::fusermount::unmount_as_user;

/// The type of a FUSE file system in the reply of `statfs`, from `linux/magic.h`.
pub(super) const FUSE_MAGIC: rustix::fs::FsWord = 0x6573_5546;
/// Looks at a mount whose process is ending, at most, and the pause between two.
const LOOKS_MAX: usize = 100;
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// The time that a tidying may take.
const TIDY_TIMEOUT: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

const UNMOUNT: u8 = b'.';
const TIDY: u8 = b't';

/// The way to the process, for the one that has the mount. Dropping all of its copies is its death to the keeper.
#[derive(Clone, Debug)]
pub struct Keeper(Arc<Mutex<Pipes>>);

#[derive(Debug)]
struct Pipes {
    ask: ChildStdin,
    done: ChildStdout,
}

impl Keeper {
    /// Starts `command`, which calls [`keep`].
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be started.
    pub(super) fn start(mut command: Command) -> Result<Keeper> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = command.spawn();
        let refused = |error: io::Error| {
            let text = format!("the keeper of a mount, {:?}", command.get_program());
            Error::new(ErrorKind::Io, text).with_source(error)
        };
        let Child { stdin, stdout, .. } = started.map_err(refused)?;
        let (Some(ask), Some(mut done)) = (stdin, stdout) else {
            return Err(refused(io::ErrorKind::BrokenPipe.into()));
        };
        done.read_exact(&mut [0]).map_err(refused)?;
        Ok(Keeper(Arc::new(Mutex::new(Pipes { ask, done }))))
    }

    /// Has the program do what its `tidy` does, and waits for that, 5 s at most. One that is gone does nothing.
    pub fn tidy(&self) {
        let mut pipes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pipes.ask.write_all(&[TIDY]).is_ok() {
            let mut answer = [PollFd::new(&pipes.done, PollFlags::IN)];
            // A late answer is taken for the next one's, which then waits too little.
            if poll(&mut answer, Some(&TIDY_TIMEOUT)).is_ok_and(|ready| ready > 0) {
                let _ = pipes.done.read(&mut [0]);
            }
        }
    }

    /// Has the mount taken away, and waits for that.
    pub(super) fn unmount(&self) {
        let mut pipes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is gone says so by the end of its output.
        let _ = pipes.ask.write_all(&[UNMOUNT]);
        let _ = pipes.done.read_to_end(&mut Vec::new());
    }
}

/// Says on standard output that it is there, calls `tidy` whenever it is asked to, waits for the end of standard
/// input, and takes the mount at `directory` away: if it was asked, or if nobody answers there. This is all that the
/// program does that [`UnservedTree::new`](super::UnservedTree::new) starts; before, it sees to it that no signal ends
/// it.
///
/// # Errors
/// [`ErrorKind::Io`], [`ErrorKind::Busy`] if the system refuses.
pub fn keep(directory: &Path, tidy: impl Fn()) -> Result<()> {
    // One that is not heard is still of use.
    say_so();
    let is_asked = loop {
        let mut asked = [0];
        match io::stdin().read_exact(&mut asked) {
            Ok(()) if asked[0] == TIDY => {
                tidy();
                say_so();
            }
            Ok(()) => break true,
            Err(_ended) => break false,
        }
    };
    for _ in 0..LOOKS_MAX {
        // Not the path: by the time that something is unmounted, another mount may be there.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let place = match rustix::fs::openat(CWD, directory, flags, Mode::empty()) {
            Ok(place) => place,
            Err(_gone) => return Ok(()),
        };
        match rustix::fs::fstatfs(&place) {
            Ok(found) if found.f_type == FUSE_MAGIC && is_asked => {}
            Err(Errno::NOTCONN) => {}
            // Its process has not ended quite, or another one's is there.
            Err(Errno::CONNABORTED) => {
                std::thread::sleep(LOOK_PAUSE);
                continue;
            }
            _ => return Ok(()),
        }
        let itself = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
        return match rustix::mount::unmount(&itself, UnmountFlags::DETACH) {
            // INVAL: it is gone.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(Errno::PERM) => unmount_as_user(directory, true),
            Err(error) => {
                let text = format!("{}: cannot be unmounted", directory.display());
                Err(Error::new(ErrorKind::Io, text).with_source(error))
            }
        };
    }
    Ok(())
}

fn say_so() {
    let mut output = io::stdout();
    let _ = output.write_all(b".").and_then(|()| output.flush());
}
