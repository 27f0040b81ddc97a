//! Listening, admitting, refusing, shutting down.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use uzram::{Error, ErrorKind, Result};

use super::Limits;
use super::budget::Budget;
use super::connection::{self, Crew};
use super::endpoint::{Endpoint, Listener};
use super::export::Exports;
use super::handshake::{Agreement, Handshake, Security, Step};
use super::received::Received;
use super::socket::Socket;
use super::tls::Tls;
use super::{vsock, wire};
use crate::peer::Peer;

/// Clients that are being told that the server is full. Further ones are hung up on.
const REFUSALS_MAX: usize = 16;
/// The share of the places that one origin may have in the handshake, as a divisor.
const HALF_OPEN_SHARE: usize = 2;
/// Clients that had to leave the handshake and have not left yet. Beyond that no client is
/// admitted until one has left, for at most [`LEAVE_TIMEOUT`].
const LEAVING_MAX: usize = 32;
const LEAVE_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause after a failed accept, so that a lack of descriptors or threads does not spin.
const ACCEPT_RETRY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
/// Bytes received at once during a handshake.
const HANDSHAKE_CHUNK_BYTES: usize = 4096;

/// A server that is bound to its endpoint and not yet serving: clients can connect and wait.
#[derive(Debug)]
pub struct Server {
    shared: Box<Shared>,
}

/// A running server. Dropping it shuts it down without waiting for requests under way.
#[derive(Debug)]
pub struct ServerHandle {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<Vec<JoinHandle<()>>>>,
}

#[derive(Debug)]
struct Shared {
    listener: Listener,
    exports: Arc<Exports>,
    limits: Limits,
    /// Memory for large payloads, of all clients together.
    budget: Arc<Budget>,
    crew: Arc<Crew>,
    tls: Option<Tls>,
    security: Security,
    /// Readable once the server stops.
    stop: OwnedFd,
    stopping: AtomicBool,
    clients: Mutex<Clients>,
    client_left: Condvar,
}

#[derive(Debug, Default)]
struct Clients {
    sockets: HashMap<u64, Arc<Socket>>,
    /// Clients that are past the handshake.
    users: HashMap<u64, User>,
    /// Clients in the handshake, the oldest first, with their origins.
    half_open: BTreeMap<u64, Origin>,
    /// Clients that were hung up on to make room in the handshake, and have not left yet.
    leaving: BTreeSet<u64>,
    /// Number of clients that are being told that the server is full.
    refused: usize,
    next_id: u64,
}

/// An origin of clients: a user or an address, with a share of the places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    User(u32),
    Machine(IpAddr),
    /// A machine beside this one, by its number.
    Neighbour(u32),
    Unknown,
}

impl Origin {
    fn of(fd: &OwnedFd, peer: Peer) -> Origin {
        match peer {
            Peer::Address(address) => Origin::Machine(address.ip().to_canonical()),
            Peer::Vsock { cid, .. } => Origin::Neighbour(cid),
            Peer::Process(_) | Peer::Unknown => {
                socket_peercred(fd).map_or(Origin::Unknown, |peer| Origin::User(peer.uid.as_raw()))
            }
        }
    }
}

#[derive(Debug)]
struct User {
    export: String,
    peer: Peer,
}

impl Server {
    /// Listens at `endpoint`. A Unix socket that no server listens on any more is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a server listens there, [`ErrorKind::InvalidInput`] for a path that
    /// is too long or an address of another machine, [`ErrorKind::Unsupported`] for vsock where the
    /// kernel has none, [`ErrorKind::Io`] for a missing directory, a lack of permission and whatever else
    /// the system refuses.
    pub fn bind(endpoint: &Endpoint, exports: Arc<Exports>, limits: Limits) -> Result<Server> {
        Server::new(Listener::bind(endpoint)?, exports, limits)
    }

    /// Serves at `socket`, which another program made and listens with, as systemd does for a
    /// service that it starts on demand. The socket's path, if it has one, is not removed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it is not a listening stream socket of TCP or with a path,
    /// [`ErrorKind::Io`] if the system refuses.
    pub fn inherit(socket: OwnedFd, exports: Arc<Exports>, limits: Limits) -> Result<Server> {
        Server::new(Listener::inherit(socket)?, exports, limits)
    }

    /// Serves at `socket`, which listened for a server that is dead, and which another process kept. Clients that came
    /// meanwhile are waiting there. Its path, if it has one, is removed in the end.
    ///
    /// # Errors
    /// As [`Server::inherit`], and [`ErrorKind::Io`] if the socket's path is gone.
    pub fn resume(socket: OwnedFd, exports: Arc<Exports>, limits: Limits) -> Result<Server> {
        Server::new(Listener::resume(socket)?, exports, limits)
    }

    fn new(listener: Listener, exports: Arc<Exports>, limits: Limits) -> Result<Server> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::new(ErrorKind::Io, "eventfd").with_source(error))?;
        let shared = Shared {
            listener,
            exports,
            limits,
            budget: Arc::new(Budget::new(limits.buffered_bytes_max)),
            crew: Arc::default(),
            tls: None,
            security: Security::Plain,
            stop,
            stopping: AtomicBool::new(false),
            clients: Mutex::default(),
            client_left: Condvar::new(),
        };
        let shared = Box::new(shared);
        Ok(Server { shared })
    }

    /// Lets clients start TLS. With `required`, all must before they learn or do anything. The
    /// same holds if `tls` asks for clients' certificates, because a client in the clear would
    /// show none.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: Tls, required: bool) -> Server {
        self.shared.security = Security::of(required || tls.checks_clients());
        self.shared.tls = Some(tls);
        self
    }

    /// The address of the export `name` for clients, with TLS where that is required.
    #[must_use]
    pub fn uri(&self, name: &str) -> String {
        self.shared.uri(name)
    }

    /// The address at which the server listens, with the port that was chosen.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.shared.listener.endpoint
    }

    /// Another descriptor of the listening socket, to be kept for [`Server::resume`].
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no more descriptors may be had.
    pub fn socket(&self) -> Result<OwnedFd> {
        let socket = self.shared.listener.socket.try_clone();
        socket.map_err(|error| Error::new(ErrorKind::Io, "listening socket").with_source(error))
    }

    /// Starts serving on threads of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives no thread.
    pub fn spawn(self) -> Result<ServerHandle> {
        let server = Arc::<Shared>::from(self.shared);
        let shared = Arc::clone(&server);
        let acceptor = thread::Builder::new()
            .name("nbd-accept".to_owned())
            .spawn(move || accept_clients(&shared))
            .map_err(|error| Error::new(ErrorKind::Io, "nbd server thread").with_source(error))?;
        Ok(ServerHandle {
            shared: server,
            acceptor: Some(acceptor),
        })
    }
}

impl ServerHandle {
    /// The address at which the server listens, with the port that was chosen.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.shared.listener.endpoint
    }

    /// The address of the export `name` for clients, with TLS where that is required.
    #[must_use]
    pub fn uri(&self, name: &str) -> String {
        self.shared.uri(name)
    }

    /// Clients connected now, including those in the handshake and without those that are refused.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.clients().served()
    }

    /// The clients that use the export `name` now.
    #[must_use]
    pub fn peers(&self, name: &str) -> Vec<Peer> {
        let clients = self.shared.clients();
        let users = clients.users.values().filter(|user| user.export == name);
        users.map(|user| user.peer).collect()
    }

    /// Hangs up on the clients that use the export `name` now. Their requests under way are
    /// carried out and not answered. Other and later clients are not affected.
    pub fn disconnect(&self, name: &str) {
        let clients = self.shared.clients();
        let users = clients.users.iter().filter(|(_, user)| user.export == name);
        for socket in users.filter_map(|(id, _)| clients.sockets.get(id)) {
            socket.abort();
        }
    }

    /// Stops accepting, stops receiving, lets requests under way finish and be answered for at most
    /// `drain`, then hangs up and waits for every thread. The socket's path is removed.
    ///
    /// After `drain`, requests that are still inside the device are waited for and not answered: a
    /// device completes what it has begun.
    pub fn shutdown(mut self, drain: Duration) {
        self.stop(drain);
    }

    /// The same, for a process that ends and leaves the socket, with its path, to another one.
    pub fn leave(mut self, drain: Duration) {
        self.stop(drain);
        std::mem::forget(self);
    }

    fn stop(&mut self, drain: Duration) {
        let Some(acceptor) = self.acceptor.take() else {
            return;
        };
        let deadline = Instant::now() + drain;
        self.shared.stopping.store(true, Ordering::Release);
        // An eventfd that is already readable serves as well.
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        // Joined first: from here on no client appears.
        let threads = acceptor.join().unwrap_or_default();
        let mut clients = self.shared.clients();
        for socket in clients.sockets.values() {
            socket.drain();
        }
        while !clients.sockets.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let wait = self.shared.client_left.wait_timeout(clients, left);
            clients = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        for socket in clients.sockets.values() {
            socket.abort();
        }
        drop(clients);
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

impl Shared {
    fn uri(&self, name: &str) -> String {
        match self.security {
            Security::Required => self.listener.endpoint.uri_tls(name),
            _ => self.listener.endpoint.uri(name),
        }
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clients {
    fn served(&self) -> usize {
        self.sockets.len() - self.refused - self.leaving.len()
    }

    /// Makes room for another client of `origin`, if possible. Of the clients in the handshake the
    /// oldest leaves: that of the same origin if the origin has its share of them.
    fn make_room(&mut self, origin: Origin, connections_max: usize) {
        let share = (connections_max / HALF_OPEN_SHARE).max(1);
        let mut own = self.half_open.iter().filter(|(_, who)| **who == origin);
        let oldest_own = own.next().map(|(id, _)| *id);
        let goes = if oldest_own.is_some() && 1 + own.count() >= share {
            oldest_own
        } else if self.served() >= connections_max {
            self.half_open.keys().next().copied()
        } else {
            None
        };
        if let Some(id) = goes {
            self.half_open.remove(&id);
            self.leaving.insert(id);
            if let Some(socket) = self.sockets.get(&id) {
                socket.abort();
            }
        }
    }
}

/// Accepts until the server stops; returns the clients' threads.
fn accept_clients(shared: &Arc<Shared>) -> Vec<JoinHandle<()>> {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let mut retry = None;
    loop {
        let listener = &shared.listener.socket;
        let mut events = [
            PollFd::new(&shared.stop, PollFlags::IN),
            PollFd::new(listener, PollFlags::IN),
        ];
        // After a failure only the stop is looked at, for a moment.
        let watched = if retry.is_some() { 1 } else { 2 };
        let _ = poll(&mut events[..watched], retry.take().as_ref());
        if shared.stopping.load(Ordering::Acquire) {
            return threads;
        }
        if !events[1].revents().contains(PollFlags::IN) {
            continue;
        }
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(fd) => {
                threads.retain(|thread| !thread.is_finished());
                match admit(shared, fd) {
                    Admission::Started(thread) => threads.push(thread),
                    Admission::HungUp => {}
                    Admission::NoThread => retry = Some(ACCEPT_RETRY),
                }
            }
            Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
            Err(_) => retry = Some(ACCEPT_RETRY),
        }
    }
}

enum Admission {
    Started(JoinHandle<()>),
    /// Hangs up: even the clients that are told that the server is full are too many.
    HungUp,
    NoThread,
}

/// Starts the thread of a new client, if there is room for one.
fn admit(shared: &Arc<Shared>, fd: OwnedFd) -> Admission {
    let peer = vsock::peer(&fd).unwrap_or_else(|| Peer::of(&fd));
    let origin = Origin::of(&fd, peer);
    let socket = Arc::new(Socket::new(fd, shared.limits.request_timeout));
    if matches!(shared.listener.endpoint, Endpoint::Tcp(_)) {
        socket.tune_tcp();
    }
    let limit = shared.limits.connections_max;
    let crowd = |clients: &mut Clients| clients.leaving.len() >= LEAVING_MAX;
    let wait = shared
        .client_left
        .wait_timeout_while(shared.clients(), LEAVE_TIMEOUT, crowd);
    let mut clients = wait.unwrap_or_else(PoisonError::into_inner).0;
    if crowd(&mut clients) {
        return Admission::HungUp;
    }
    clients.make_room(origin, limit);
    let is_refused = clients.served() >= limit;
    if is_refused && clients.refused >= REFUSALS_MAX {
        return Admission::HungUp;
    }
    let handshake = if is_refused {
        Handshake::refusing(format!(
            "server is full: {limit} connections, its limit; try later"
        ))
    } else {
        Handshake::new(Arc::clone(&shared.exports), shared.security)
    };
    let id = clients.next_id;
    clients.next_id += 1;
    clients.refused += usize::from(is_refused);
    if !is_refused {
        clients.half_open.insert(id, origin);
    }
    clients.sockets.insert(id, Arc::clone(&socket));
    drop(clients);
    let client = Client {
        shared: Arc::clone(shared),
        id,
        is_refused,
        peer,
        socket,
    };
    let name = format!("nbd-{id}");
    // If this fails the closure is dropped, and the client with it.
    match thread::Builder::new()
        .name(name.clone())
        .spawn(move || client.run(handshake, &name))
    {
        Ok(thread) => Admission::Started(thread),
        Err(_) => Admission::NoThread,
    }
}

/// A client's place in the server. Dropping it frees the place.
struct Client {
    shared: Arc<Shared>,
    id: u64,
    is_refused: bool,
    peer: Peer,
    socket: Arc<Socket>,
}

impl Client {
    fn run(self, handshake: Handshake, name: &str) {
        if let Some((agreement, received)) = self.shake_hands(handshake) {
            let (export, peer) = (agreement.lease.export.name.clone(), self.peer);
            self.shared
                .clients()
                .users
                .insert(self.id, User { export, peer });
            let (socket, limits) = (Arc::clone(&self.socket), self.shared.limits);
            let shared = (
                Arc::clone(&self.shared.budget),
                Arc::clone(&self.shared.crew),
            );
            connection::serve(socket, agreement, limits, shared, name, &received);
        }
        self.socket.finish();
    }

    /// Returns the export that was agreed on and the bytes behind the handshake.
    fn shake_hands(&self, mut handshake: Handshake) -> Option<(Agreement, Vec<u8>)> {
        let deadline = Instant::now() + self.shared.limits.handshake_timeout;
        let mut unread = Vec::new();
        let mut replies = Vec::new();
        self.socket.send_before(&wire::greeting(), deadline).ok()?;
        loop {
            let (used, step) = handshake.step(&unread, &mut replies);
            unread.drain(..used.min(unread.len()));
            if matches!(step, Step::Transmit(_)) {
                // Before it is told that it is through: from then on nobody makes it leave. `None` if
                // somebody has.
                self.shared.clients().half_open.remove(&self.id)?;
            }
            self.socket.send_before(&replies, deadline).ok()?;
            replies.clear();
            match step {
                Step::Continue => {}
                Step::NeedBytes => self.receive_before(&mut unread, deadline)?,
                // Bytes behind the option were sent in the clear, by whomever.
                Step::StartTls if !unread.is_empty() => return None,
                Step::StartTls => {
                    let tls = self.shared.tls.as_ref()?;
                    self.socket.start_tls(tls, deadline).then_some(())?;
                    handshake.secured();
                }
                Step::Transmit(agreement) => return Some((agreement, unread)),
                Step::Close => return None,
            }
        }
    }

    fn receive_before(&self, unread: &mut Vec<u8>, deadline: Instant) -> Option<()> {
        let mut chunk = [0; HANDSHAKE_CHUNK_BYTES];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            // Looked at first: TLS may hold what the socket has given it already.
            match self.socket.receive(&mut chunk) {
                Received::Bytes(length) => {
                    unread.extend_from_slice(&chunk[..length]);
                    return Some(());
                }
                Received::Nothing if self.socket.wait(Some(left)) => {}
                Received::Nothing | Received::End => return None,
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut clients = self.shared.clients();
        clients.sockets.remove(&self.id);
        clients.users.remove(&self.id);
        clients.half_open.remove(&self.id);
        clients.leaving.remove(&self.id);
        clients.refused -= usize::from(self.is_refused);
        drop(clients);
        self.shared.client_left.notify_all();
    }
}
