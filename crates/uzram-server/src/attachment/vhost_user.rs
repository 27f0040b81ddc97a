//! A socket from which virtual machines take a disk: one per disk, because the protocol has no
//! names.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uzram_frontends::vhost_user::{Seat, Server, ServerHandle};

use crate::error::Result;

/// The socket of a disk, served from [`GuestSocket::start`] to [`GuestSocket::end`]; a virtual machine
/// can connect before and waits.
#[derive(Debug)]
pub(crate) struct GuestSocket {
    path: PathBuf,
    seat: Arc<Seat>,
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
        let server = Server::bind(path)?;
        Ok(GuestSocket {
            path: server.path().to_owned(),
            seat: Arc::clone(server.seat()),
            state: Mutex::new(State::Bound(server)),
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
