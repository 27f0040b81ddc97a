//! A listening socket's thread, and a thread for each of its connections, up to a number.
//!
//! Lock order: `open` is a leaf; only the socket's own shutdown is called while it is held.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use uzram::ErrorKind;

use crate::error::{Error, Result};

/// Pause after an accept that failed, as when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The service of a socket. A connection of either family is a `UnixStream` here, whose calls are those
/// of any stream socket.
pub(crate) struct Service {
    /// Its name in threads and errors.
    pub(crate) name: &'static str,
    /// Most connections at once.
    pub(crate) connections_max: usize,
    /// The directions in which connections are shut down at the end.
    pub(crate) end: Shutdown,
    /// Serves one, within a time of its own.
    pub(crate) serve: Box<dyn Fn(&UnixStream) + Send + Sync>,
    /// Answers one too many, without waiting.
    pub(crate) refuse: fn(&UnixStream),
}

/// A socket that is being served. Dropping it ends it once no connection is under way.
pub(crate) struct Acceptor {
    /// Closed to wake the thread up for the last time.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Serves the connections of `listener`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives no thread or descriptor.
    pub(crate) fn start(listener: OwnedFd, service: Service) -> Result<Acceptor> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Io, format!("{} thread", service.name)).with_source(error)
        };
        // A client may be gone between the poll and the accept.
        rustix::io::ioctl_fionbio(&listener, true).map_err(|e| failed(e.into()))?;
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let thread = thread::Builder::new().name(format!("uzram-{}", service.name));
        let thread = thread
            .spawn(move || accept_until(&stopped, &listener, &service))
            .map_err(|e| Error::new(ErrorKind::Io, "server thread").with_source(e))?;
        Ok(Acceptor {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The connections being served: a slot each, free when `None`.
type Open = Mutex<Vec<Option<UnixStream>>>;

fn accept_until(stopped: &UnixStream, listener: &OwnedFd, service: &Service) {
    let open: Open = Mutex::new((0..service.connections_max).map(|_| None).collect());
    thread::scope(|scope| {
        loop {
            let mut fds = [
                PollFd::new(stopped, PollFlags::IN),
                PollFd::new(listener, PollFlags::IN),
            ];
            if poll(&mut fds, None).is_err() {
                thread::sleep(ACCEPT_PAUSE);
                continue;
            }
            if !fds[0].revents().is_empty() {
                break;
            }
            match accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(stream) => {
                    let stream = UnixStream::from(stream);
                    let Some(slot) = occupy(&open, &stream) else {
                        (service.refuse)(&stream);
                        continue;
                    };
                    let open = &open;
                    let serve = move || {
                        (service.serve)(&stream);
                        lock(open)[slot] = None;
                    };
                    if thread::Builder::new().spawn_scoped(scope, serve).is_err() {
                        lock(open)[slot] = None;
                    }
                }
                Err(Errno::AGAIN) => {}
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
        for stream in lock(&open).iter().flatten() {
            let _ = stream.shutdown(service.end);
        }
    });
}

/// Stores `stream` in a free slot, if there is one.
fn occupy(open: &Open, stream: &UnixStream) -> Option<usize> {
    let mut open = lock(open);
    let slot = open.iter().position(Option::is_none)?;
    open[slot] = Some(stream.try_clone().ok()?);
    Some(slot)
}

fn lock(open: &Open) -> MutexGuard<'_, Vec<Option<UnixStream>>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}
