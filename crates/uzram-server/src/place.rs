//! A place where clients connect: an NBD socket with the exports that it offers.
//!
//! Lock order: `state` is a leaf, but for a server's own end.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uzram::Result;
use uzram_frontends::nbd::{Endpoint, Exports, Limits, Server as NbdServer, ServerHandle};

/// One socket, served from [`Place::start`] to [`Place::end`]; clients can connect before and wait.
pub(crate) struct Place {
    endpoint: Endpoint,
    exports: Arc<Exports>,
    is_inherited: bool,
    state: Mutex<State>,
}

enum State {
    Bound(Box<NbdServer>),
    Serving(ServerHandle),
    Ended,
}

impl Place {
    /// Listens at `endpoint`; errors as [`NbdServer::bind`].
    pub(crate) fn bind(endpoint: &Endpoint, limits: Limits) -> Result<Place> {
        let exports = Arc::new(Exports::new());
        let server = NbdServer::bind(endpoint, Arc::clone(&exports), limits)?;
        Ok(Place::new(server, exports, false))
    }

    /// Listens with a socket that was handed over; errors as [`NbdServer::inherit`].
    pub(crate) fn inherit(socket: OwnedFd, limits: Limits) -> Result<Place> {
        let exports = Arc::new(Exports::new());
        let server = NbdServer::inherit(socket, Arc::clone(&exports), limits)?;
        Ok(Place::new(server, exports, true))
    }

    fn new(server: NbdServer, exports: Arc<Exports>, is_inherited: bool) -> Place {
        Place {
            endpoint: server.endpoint().clone(),
            exports,
            is_inherited,
            state: Mutex::new(State::Bound(Box::new(server))),
        }
    }

    /// Where it is, with the port that was chosen.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What it offers.
    pub(crate) fn exports(&self) -> &Exports {
        &self.exports
    }

    /// Whether the socket was handed over.
    pub(crate) fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    /// Whether it serves or will.
    pub(crate) fn is_open(&self) -> bool {
        !matches!(*self.lock(), State::Ended)
    }

    /// Whether nobody would miss it: a socket that was handed over stays for devices to come.
    pub(crate) fn is_unused(&self) -> bool {
        !self.is_inherited && self.exports.list().is_empty()
    }

    /// Starts serving, once.
    ///
    /// # Errors
    /// [`uzram::ErrorKind::Io`] if the system gives no thread; then the place has ended.
    pub(crate) fn start(&self) -> Result<()> {
        let mut state = self.lock();
        *state = match std::mem::replace(&mut *state, State::Ended) {
            State::Bound(server) => State::Serving(server.spawn()?),
            other => other,
        };
        Ok(())
    }

    /// Stops accepting, lets requests under way be answered for at most `drain`, then hangs up.
    pub(crate) fn end(&self, drain: Duration) {
        let state = std::mem::replace(&mut *self.lock(), State::Ended);
        if let State::Serving(server) = state {
            server.shutdown(drain);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
