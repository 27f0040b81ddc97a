//! A socket from which virtual machines take a disk: one per disk, because the protocol has no
//! names.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uzram_frontends::vhost_user::{Seat, Server, ServerHandle};

use crate::error::{Error, Result};

/// The socket of a disk, served from [`GuestSocket::start`] to [`GuestSocket::end`]; a virtual machine
/// can connect before and waits.
#[derive(Debug)]
pub(crate) struct GuestSocket {
    path: PathBuf,
    seat: Arc<Seat>,
    socket: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Bound(Server),
    Serving(#[expect(dead_code, reason = "held for its destructor")] ServerHandle),
    Ended,
}

impl GuestSocket {
    /// Listens at `path`; errors as [`Server::bind`].
    pub(crate) fn bind(path: &Path) -> Result<GuestSocket> {
        Ok(GuestSocket::over(Server::bind(path)?)?)
    }

    /// Listens with a socket that listened at `path` for a dead server; errors as [`Server::resume`].
    pub(crate) fn resume(socket: OwnedFd, path: &Path) -> Result<GuestSocket> {
        Ok(GuestSocket::over(Server::resume(socket, path)?)?)
    }

    fn over(server: Server) -> uzram::Result<GuestSocket> {
        Ok(GuestSocket {
            path: server.path().to_owned(),
            seat: Arc::clone(server.seat()),
            socket: server.socket()?,
            state: Mutex::new(State::Bound(server)),
        })
    }

    /// Another descriptor of its socket, to be kept for [`GuestSocket::resume`].
    ///
    /// # Errors
    /// [`uzram::ErrorKind::Io`] if no more descriptors may be had.
    pub(crate) fn socket(&self) -> Result<OwnedFd> {
        let socket = self.socket.try_clone();
        socket.map_err(|error| {
            Error::new(uzram::ErrorKind::Io, "listening socket").with_source(error)
        })
    }

    /// Its path, absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The disk that it offers, and its user.
    pub(crate) fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Starts serving, once. Lines about guests go to the log, under `name`.
    ///
    /// # Errors
    /// [`uzram::ErrorKind::Io`] if the system gives no thread; then it has ended.
    pub(crate) fn start(&self, name: &str) -> Result<()> {
        let mut state = self.lock();
        *state = match std::mem::replace(&mut *state, State::Ended) {
            State::Bound(server) => {
                let name = name.to_owned();
                let notice = move |text: &str| log::info!("{name}: {text}");
                State::Serving(server.spawn(Arc::new(notice))?)
            }
            other => other,
        };
        Ok(())
    }

    /// Finishes the requests that were begun, hangs up, and removes the socket.
    pub(crate) fn end(&self) {
        let state = std::mem::replace(&mut *self.lock(), State::Ended);
        drop(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
