//! Listening, admitting one guest at a time, ending.
//!
//! One thread per socket waits for connections and for messages, and carries the messages out. The
//! requests of a guest never pass through it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{RecvFlags, SocketFlags, accept_with, recv};
use uzram::{Error, ErrorKind, Result};
use vhost::vhost_user::BackendReqHandler;

use super::backend::Backend;
use super::{MESSAGE_TIMEOUT, Notices, Seat};
use crate::peer::Peer;
use crate::unix_socket::{self, SocketNode};

/// The header of every message: its kind, flags, and the length of the rest.
const HEADER_BYTES: usize = 12;
/// Pause after a failed accept, so that a lack of descriptors does not spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A server that is bound to its socket and not yet serving: guests can connect and wait.
#[derive(Debug)]
pub struct Server {
    socket: OwnedFd,
    node: SocketNode,
    seat: Arc<Seat>,
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct ServerHandle {
    path: PathBuf,
    seat: Arc<Seat>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`, with mode 0600. A socket that no server listens at any more is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a server listens there, [`ErrorKind::InvalidInput`] for a path that is
    /// too long, [`ErrorKind::Io`] for what the system refuses.
    pub fn bind(path: &Path) -> Result<Server> {
        let (socket, node) = unix_socket::listen(path)?;
        let seat = Arc::default();
        Ok(Server { socket, node, seat })
    }

    /// Serves at `socket`, which listened at `path` for a server that is dead, and which another process kept. Guests that came
    /// meanwhile are waiting there; each takes up its queues at their used indexes. The path is removed in the end.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it does not listen, [`ErrorKind::Io`] if the path is gone.
    pub fn resume(socket: OwnedFd, path: &Path) -> Result<Server> {
        let failed =
            |kind, what: &str| Error::new(kind, format!("socket {}: {what}", path.display()));
        if !rustix::net::sockopt::socket_acceptconn(&socket).unwrap_or(false) {
            return Err(failed(ErrorKind::InvalidInput, "kept, but does not listen"));
        }
        let node = SocketNode::of(path).map_err(|error| {
            failed(ErrorKind::Io, "kept, but its path is gone").with_source(error)
        })?;
        let seat = Arc::default();
        Ok(Server { socket, node, seat })
    }

    /// Another descriptor of the listening socket, to be kept for [`Server::resume`].
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no more descriptors may be had.
    pub fn socket(&self) -> Result<OwnedFd> {
        let socket = self.socket.try_clone();
        socket.map_err(|error| Error::new(ErrorKind::Io, "listening socket").with_source(error))
    }

    /// The path of the socket, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.node.path
    }

    /// The disk that it offers: none at first.
    #[must_use]
    pub fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// Starts serving on threads of its own. `notices` gets lines for people who look for a fault:
    /// guests that come and go, and the reasons.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives no thread.
    pub fn spawn(self, notices: Notices) -> Result<ServerHandle> {
        let failed =
            |error| Error::new(ErrorKind::Io, "vhost-user server thread").with_source(error);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|errno| failed(errno.into()))?);
        let (path, seat) = (self.node.path.clone(), Arc::clone(&self.seat));
        let mut serving = Serving {
            server: self,
            stop: Arc::clone(&stop),
            notices,
            guest: None,
        };
        let thread = thread::Builder::new().name("vhost-user".to_owned());
        let thread = thread.spawn(move || serving.run()).map_err(failed)?;
        Ok(ServerHandle {
            path,
            seat,
            stop,
            thread: Some(thread),
        })
    }
}

impl ServerHandle {
    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The disk that it offers.
    #[must_use]
    pub fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }
}

impl Drop for ServerHandle {
    /// Stops accepting, lets requests that were begun finish, hangs up, and waits for every
    /// thread. Requests of a guest that were not begun stay in its queue, for the next server. The
    /// socket's path is removed.
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        // It may be waiting for the rest of a message.
        self.seat.disconnect();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Serving {
    server: Server,
    stop: Arc<OwnedFd>,
    notices: Notices,
    guest: Option<Guest>,
}

impl Serving {
    fn run(&mut self) {
        loop {
            let [stop, newcomer, message] = self.wait();
            if stop {
                break;
            }
            if newcomer {
                self.accept();
            } else if message {
                self.handle_message();
            }
        }
        self.end("the server ends");
    }

    /// Waits for the stop, the listening socket and the guest's, and tells which of them is ready.
    fn wait(&self) -> [bool; 3] {
        let listener = self.server.socket.as_fd();
        let guest = self.guest.as_ref().map_or(listener, Guest::socket);
        let mut sources = [
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::from_borrowed_fd(listener, PollFlags::IN),
            PollFd::from_borrowed_fd(guest, PollFlags::IN),
        ];
        // Interrupted: nothing has anything.
        let _ = poll(&mut sources, None);
        let mut ready = sources.map(|source| !source.revents().is_empty());
        ready[2] &= self.guest.is_some();
        ready
    }

    fn accept(&mut self) {
        let Ok(socket) = accept_with(&self.server.socket, SocketFlags::CLOEXEC) else {
            return thread::sleep(ACCEPT_RETRY);
        };
        let peer = Peer::of(&socket);
        if self.guest.as_ref().is_some_and(|guest| !guest.has_left()) {
            let user = self
                .guest
                .as_ref()
                .map_or(Peer::Unknown, |guest| guest.peer);
            return self.say(&format!("{peer} refused: in use by {user}"));
        }
        // One that was killed, and is started again before its end was seen.
        self.end("left");
        match Guest::new(socket.into(), peer, &self.server.seat, &self.notices) {
            Some(guest) => {
                self.guest = Some(guest);
                self.say(&format!("{peer} connected"));
            }
            None => self.say(&format!("{peer} refused: the disk is not offered just now")),
        }
    }

    fn handle_message(&mut self) {
        let Some(guest) = &mut self.guest else { return };
        if let Err(why) = guest.handle_message() {
            self.end(&why);
        }
    }

    /// Ends the guest's use, if there is one. Its queues end first, so that no request is under
    /// way when the disk is free.
    fn end(&mut self, why: &str) {
        let Some(guest) = self.guest.take() else {
            return;
        };
        guest.backend().stop();
        self.say(&format!("{} disconnected: {why}", guest.peer));
        drop(guest);
        self.server.seat.leave();
    }

    fn say(&self, what: &str) {
        (self.notices)(what);
    }
}

/// A connection.
struct Guest {
    peer: Peer,
    handler: BackendReqHandler<Mutex<Backend>>,
    backend: Arc<Mutex<Backend>>,
    socket: UnixStream,
}

impl Guest {
    /// `None` if no disk is offered, or the socket is not to be used.
    fn new(socket: UnixStream, peer: Peer, seat: &Seat, notices: &Notices) -> Option<Guest> {
        socket.set_read_timeout(Some(MESSAGE_TIMEOUT)).ok()?;
        socket.set_write_timeout(Some(MESSAGE_TIMEOUT)).ok()?;
        let (watched, shut) = (socket.try_clone().ok()?, socket.try_clone().ok()?);
        let disk = seat.take(peer, shut)?;
        let backend = Backend::new(disk, Arc::clone(notices));
        let backend = Arc::new(Mutex::new(backend));
        Some(Guest {
            peer,
            handler: BackendReqHandler::from_stream(socket, Arc::clone(&backend)),
            backend,
            socket: watched,
        })
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether its process has closed the socket.
    fn has_left(&self) -> bool {
        let flags = PollFlags::RDHUP | PollFlags::HUP;
        let mut socket = [PollFd::new(&self.socket, flags)];
        let at_once = Timespec::default();
        let _ = poll(&mut socket, Some(&at_once));
        socket[0].revents().intersects(flags)
    }

    /// Receives one message and carries it out.
    fn handle_message(&mut self) -> std::result::Result<(), String> {
        use vhost::vhost_user::Error as Fault;
        self.await_header()?;
        let outcome = self.handler.handle_request();
        let problem = self.backend().problem();
        match (outcome, problem) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(problem)) => Err(problem),
            (Err(Fault::Disconnected | Fault::PartialMessage), _) => Err("left".to_owned()),
            (Err(Fault::SocketRetry(_)), _) => Err("stopped within a message".to_owned()),
            (Err(fault), None) => Err(fault.to_string()),
        }
    }

    /// Waits until the header of a message is there, for a limited time: the library would wait
    /// for ever.
    fn await_header(&self) -> std::result::Result<(), String> {
        let mut header = [0; HEADER_BYTES];
        let flags = RecvFlags::PEEK | RecvFlags::WAITALL;
        match recv(&self.socket, &mut header, flags) {
            Ok((_, HEADER_BYTES)) => Ok(()),
            Ok((_, 0)) => Err("left".to_owned()),
            Ok(_) => Err("stopped within a message".to_owned()),
            Err(errno) => Err(errno.to_string()),
        }
    }

    fn backend(&self) -> MutexGuard<'_, Backend> {
        self.backend.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
