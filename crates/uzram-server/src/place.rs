//! A place where clients connect: an NBD socket with the exports that it offers.
//!
//! Lock order: `state` is a leaf, except at a server's own end.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use uzram::ErrorKind;
use uzram_frontends::nbd::{Endpoint, Exports, Limits, Peer, Server as NbdServer, ServerHandle};

use crate::error::{Error, Result};
use crate::tls::{TlsOptions, open_to_all};

/// One socket, served from [`Place::start`] to [`Place::end`]; clients can connect before and wait.
pub(crate) struct Place {
    endpoint: Endpoint,
    exports: Arc<Exports>,
    is_inherited: bool,
    tls: OnceLock<TlsOptions>,
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

    /// Listens with a socket that listened here for a dead server; errors as [`NbdServer::resume`].
    pub(crate) fn resume(socket: OwnedFd, limits: Limits) -> Result<Place> {
        let exports = Arc::new(Exports::new());
        let server = NbdServer::resume(socket, Arc::clone(&exports), limits)?;
        Ok(Place::new(server, exports, false))
    }

    /// Another descriptor of its socket while it does not serve yet, to be kept for [`Place::resume`].
    ///
    /// # Errors
    /// [`uzram::ErrorKind::Io`] if no more descriptors may be had.
    pub(crate) fn socket(&self) -> Result<Option<OwnedFd>> {
        match &*self.lock() {
            State::Bound(server) => Ok(Some(server.socket()?)),
            State::Serving(_) | State::Ended => Ok(None),
        }
    }

    fn new(server: NbdServer, exports: Arc<Exports>, is_inherited: bool) -> Place {
        Place {
            endpoint: server.endpoint().clone(),
            exports,
            is_inherited,
            tls: OnceLock::new(),
            state: Mutex::new(State::Bound(Box::new(server))),
        }
    }

    /// Its address, with the port that was chosen.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The address of the export `name` here.
    pub(crate) fn uri(&self, name: &str) -> String {
        match self.requires_tls() {
            true => self.endpoint.uri_tls(name),
            false => self.endpoint.uri(name),
        }
    }

    /// Whether clients must start TLS.
    pub(crate) fn requires_tls(&self) -> bool {
        self.tls.get().is_some_and(|tls| tls.required)
    }

    /// Whether other machines can connect, by the address at which the socket really listens, and
    /// need no TLS.
    pub(crate) fn is_open_to_others(&self) -> bool {
        !self.endpoint.is_loopback() && !self.requires_tls()
    }

    /// Gives TLS by `options`, if there are any, to a place that offers nothing yet. Makes `name`
    /// the export for clients that name none.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it has other TLS already, or serves without, or if other
    /// machines could connect without TLS and the device is not insecure; and the errors of the
    /// files.
    pub(crate) fn prepare_for(
        &self,
        name: &str,
        options: &TlsOptions,
        is_insecure: bool,
    ) -> Result<()> {
        let is_first = self.exports.list().is_empty();
        let refuse = |what: &str| {
            let text = format!("{}: {what}", self.endpoint);
            Error::new(ErrorKind::InvalidInput, text)
        };
        let tls = options.at(&self.endpoint, is_insecure);
        if tls.is_given() && self.tls.get() != Some(&tls) {
            if self.tls.get().is_some() {
                return Err(refuse("has other TLS options; give the same or none"));
            }
            let mut state = self.lock();
            *state = match std::mem::replace(&mut *state, State::Ended) {
                State::Bound(server) if is_first => State::Bound(Box::new(tls.secure(*server)?)),
                other => {
                    *state = other;
                    return Err(refuse("serves without TLS; choose another address"));
                }
            };
            let _ = self.tls.set(tls);
        }
        if self.is_open_to_others() && !is_insecure {
            return Err(refuse(&open_to_all(&self.endpoint)));
        }
        if is_first {
            self.exports.set_default(Some(name));
        }
        Ok(())
    }

    /// The exports that it offers.
    pub(crate) fn exports(&self) -> &Exports {
        &self.exports
    }

    /// Whether the socket was handed over.
    pub(crate) fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    /// Whether it serves or will serve.
    pub(crate) fn is_open(&self) -> bool {
        !matches!(*self.lock(), State::Ended)
    }

    /// Whether it can be dropped without loss. A socket that was handed over stays for later
    /// devices.
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

    /// The users of the export `name` here.
    pub(crate) fn peers(&self, name: &str) -> Vec<Peer> {
        match &*self.lock() {
            State::Serving(server) => server.peers(name),
            State::Bound(_) | State::Ended => Vec::new(),
        }
    }

    /// Hangs up on the users of the export `name` here.
    pub(crate) fn disconnect(&self, name: &str) {
        if let State::Serving(server) = &*self.lock() {
            server.disconnect(name);
        }
    }

    /// Stops accepting, lets requests under way be answered for at most `drain`, then hangs up.
    pub(crate) fn end(&self, drain: Duration) {
        let state = std::mem::replace(&mut *self.lock(), State::Ended);
        if let State::Serving(server) = state {
            server.shutdown(drain);
        }
    }

    /// The same, and leaves the socket's path to whoever takes the socket over.
    pub(crate) fn leave(&self, drain: Duration) {
        let state = std::mem::replace(&mut *self.lock(), State::Ended);
        if let State::Serving(server) = state {
            server.leave(drain);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
