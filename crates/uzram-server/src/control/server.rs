//! The server's half: a short-lived thread for each request.

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, accept_with};
use uzram::ErrorKind;

use super::{CONNECTIONS_MAX, REQUEST_BYTES_MAX, REQUEST_TIMEOUT, Reply, Request};
use crate::acceptor::{Acceptor, Service};
use crate::error::{Error, Result};
use crate::state::{check_socket_path, own_uid};

/// Time in which a client must take its reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time and reads for which surplus bytes of a client are discarded before the connection is cut.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);
const DRAIN_READS_MAX: usize = 1024;

/// Answers one request, which a file may have come with.
pub type Handler = dyn Fn(&Request, Option<OwnedFd>) -> Reply + Send + Sync;

/// A control socket that clients can connect to. It does not answer yet.
#[derive(Debug)]
pub struct BoundControl {
    path: PathBuf,
    listener: UnixListener,
}

/// A control socket that is being served. Dropping it finishes the requests under way, ends it and
/// removes it.
pub struct Control {
    path: PathBuf,
    acceptor: Option<Acceptor>,
}

impl Control {
    /// Listens on a socket made at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a path too long, [`ErrorKind::Io`] if the system refuses.
    pub fn bind(path: &Path) -> Result<BoundControl> {
        check_socket_path(path)?;
        let failed = |e: std::io::Error| {
            Error::new(ErrorKind::Io, format!("control socket {}", path.display())).with_source(e)
        };
        // Between these two calls the directory's mode 0700 protects the socket.
        let listener = UnixListener::bind(path).map_err(failed)?;
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(path, private).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(BoundControl {
            path: path.to_owned(),
            listener,
        })
    }
}

impl BoundControl {
    /// Listens with a socket that listened at `path` for a dead server.
    pub(crate) fn resume(path: &Path, listener: OwnedFd) -> BoundControl {
        BoundControl {
            path: path.to_owned(),
            listener: listener.into(),
        }
    }

    /// Another descriptor of the socket, to be kept for [`BoundControl::resume`].
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no more descriptors may be had.
    pub(crate) fn socket(&self) -> Result<OwnedFd> {
        let socket = self.listener.try_clone();
        let text = || format!("control socket {}", self.path.display());
        let failed = |error| Error::new(ErrorKind::Io, text()).with_source(error);
        socket.map(OwnedFd::from).map_err(failed)
    }

    /// Answers requests on a thread of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives no thread.
    pub fn serve(self, handler: Arc<Handler>) -> Result<Control> {
        let service = Service {
            name: "control",
            connections_max: CONNECTIONS_MAX,
            // Who has not sent a request by now will not be heard; requests at work are answered.
            end: Shutdown::Read,
            serve: Box::new(move |stream| serve_one(stream, handler.as_ref())),
            refuse: |stream| refuse(stream, "too many requests at once; try again"),
        };
        Ok(Control {
            path: self.path,
            acceptor: Some(Acceptor::start(self.listener.into(), service)?),
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.acceptor.take());
        // Its name is this server's for as long as it holds its number. In a sandbox nobody else finds
        // out that it is left over.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Refuses the next request that waits at the control socket `listener`, for a server that is gone.
pub(crate) fn refuse_next(listener: &OwnedFd, why: &str) {
    let Ok(stream) = accept_with(listener, SocketFlags::CLOEXEC).map(UnixStream::from) else {
        return;
    };
    if peer_is_trusted(&stream) {
        refuse(&stream, why);
    }
}

fn serve_one(stream: &UnixStream, handler: &Handler) {
    if !peer_is_trusted(stream) {
        log::warn!("control socket: somebody else's process was refused");
        return refuse(stream, "only the server's own user and root may ask");
    }
    let reply = match read_request(stream, Instant::now() + REQUEST_TIMEOUT) {
        Ok(Some((request, file))) => reply_to(&request, file, handler),
        Ok(None) => return,
        Err(why) => refusal(&why),
    };
    send(stream, &reply);
}

/// The handler's reply. A handler that panics refuses its request only: the slot of the connection
/// is freed, and the client gets an error.
fn reply_to(request: &Request, file: Option<OwnedFd>, handler: &Handler) -> Reply {
    catch_unwind(AssertUnwindSafe(|| handler(request, file))).unwrap_or_else(|_panic| {
        let text = "control socket: the request made the server panic, which is a bug; it may have \
                    been carried out in part; the server's standard error says where";
        Reply::refused(&Error::new(ErrorKind::Io, text))
    })
}

/// Whether the process at the other end runs as this server's user or as root.
fn peer_is_trusted(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| may_ask(peer.uid.as_raw(), own_uid()))
}

fn may_ask(peer_uid: u32, own_uid: u32) -> bool {
    peer_uid == own_uid || peer_uid == 0
}

/// A request, and the file that came with it.
type Received = (Request, Option<OwnedFd>);

/// One line within the limits, parsed; `None` if the client left without a word.
fn read_request(stream: &UnixStream, deadline: Instant) -> Result<Option<Received>, String> {
    let mut line = [0; REQUEST_BYTES_MAX];
    let mut file = None;
    let mut filled = 0;
    let end = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("no request within {} s", REQUEST_TIMEOUT.as_secs()));
        }
        // The deadline holds for the whole line, so a client that drips bytes gains nothing.
        let _ = stream.set_read_timeout(Some(left.max(Duration::from_millis(1))));
        match receive(stream, &mut line[filled..], &mut file) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => break filled,
            Ok(count) => {
                let end = line[filled..filled + count]
                    .iter()
                    .position(|&b| b == b'\n');
                filled += count;
                if let Some(end) = end {
                    break filled - count + end;
                }
                if filled == line.len() {
                    return Err(format!("request over {REQUEST_BYTES_MAX} bytes"));
                }
            }
            Err(e) if is_passing(e.kind()) => {}
            Err(_) => return Ok(None),
        }
    };
    let request = serde_json::from_slice(&line[..end]);
    let request = request.map_err(|e| format!("malformed request: {e}"))?;
    Ok(Some((request, file)))
}

/// Reads what there is, and the last file that comes with it; others are closed.
fn receive(
    stream: &UnixStream,
    buffer: &mut [u8],
    file: &mut Option<OwnedFd>,
) -> std::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(buffer)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(stream, &mut parts, &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            *file = files.last().or_else(|| file.take());
        }
    }
    Ok(received.bytes)
}

fn is_passing(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(kind, Interrupted | TimedOut | WouldBlock)
}

fn refuse(stream: &UnixStream, why: &str) {
    send(stream, &refusal(why));
}

fn refusal(why: &str) -> Reply {
    Reply::refused(&Error::new(
        ErrorKind::InvalidInput,
        format!("control socket: {why}"),
    ))
}

fn send(mut stream: &UnixStream, reply: &Reply) {
    let Ok(mut line) = serde_json::to_vec(reply) else {
        return;
    };
    line.push(b'\n');
    let _ = stream.set_write_timeout(Some(REPLY_TIMEOUT));
    let _ = stream.write_all(&line);
    // Unread bytes at close would reset the connection and take the reply with them.
    let _ = stream.shutdown(Shutdown::Write);
    drain(stream);
}

/// Discards what the client still sends, a little and not for long.
fn drain(mut stream: &UnixStream) {
    let _ = stream.set_read_timeout(Some(DRAIN_TIMEOUT));
    let mut rest = [0; REQUEST_BYTES_MAX];
    for _ in 0..DRAIN_READS_MAX {
        if !matches!(stream.read(&mut rest), Ok(1..)) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ask;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    fn echo() -> Arc<Handler> {
        Arc::new(|request: &Request, _| {
            let Request::Stat { name } = request else {
                return Reply::done(Vec::new());
            };
            let mut device = crate::control::Attributes::new();
            device.insert("name".into(), name.clone().into());
            Reply::done(vec![device])
        })
    }

    fn started(handler: Arc<Handler>) -> (tempfile::TempDir, std::path::PathBuf, Control) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("control");
        let control = Control::bind(&path).unwrap().serve(handler).unwrap();
        (temp, path, control)
    }

    fn answer(path: &Path, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn a_request_is_answered_and_the_socket_private() {
        let (_temp, path, _control) = started(echo());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let reply = ask(&path, &Request::Stat { name: "d".into() }).unwrap();
        assert!(reply.ok);
        assert_eq!(reply.devices[0]["name"], "d");
    }

    #[test]
    fn hostile_bytes_get_an_error_line() {
        let (_temp, path, _control) = started(echo());
        let deep = "[".repeat(REQUEST_BYTES_MAX - 1);
        let long = "x".repeat(REQUEST_BYTES_MAX);
        let longer = "x".repeat(3 * REQUEST_BYTES_MAX);
        let huge = "x".repeat(100 * REQUEST_BYTES_MAX);
        for (bytes, said) in [
            (&b"\n"[..], "malformed"),
            (b"{}\n", "malformed"),
            (b"{\"op\":\"stat\"}\n", "malformed"),
            (b"{\"op\":\"stat\",\"name\":1}\n", "malformed"),
            (b"{\"op\":\"explode\"}\n", "malformed"),
            (b"{\"op\":\"list\",\"more\":1}\n", "malformed"),
            (b"{\"op\":\"list\"} trailing\n", "malformed"),
            (b"\xff\xfe\0\0\n", "malformed"),
            (b"{\"op\":\"st", "malformed"),
            (deep.as_bytes(), "malformed"),
            (long.as_bytes(), "over 4096 bytes"),
            (longer.as_bytes(), "over 4096 bytes"),
            (huge.as_bytes(), "over 4096 bytes"),
        ] {
            let reply = answer(&path, bytes);
            assert_eq!(reply.matches('\n').count(), 1, "{reply:?}");
            let reply: Reply = serde_json::from_str(&reply).unwrap();
            assert!(!reply.ok && reply.errno == Some(22));
            assert!(reply.error.unwrap().contains(said), "{bytes:?}");
        }
        assert_eq!(answer(&path, b""), "");
        assert!(ask(&path, &Request::List {}).unwrap().ok, "it still serves");
    }

    #[test]
    fn a_reply_survives_what_was_not_read_before_it() {
        let (_temp, path, _control) = started(echo());
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(&[b'x'; 3 * REQUEST_BYTES_MAX]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        // Long enough for the server to close, were it not to wait for us.
        thread::sleep(DRAIN_TIMEOUT / 2);
        let mut reply = String::new();
        stream
            .read_to_string(&mut reply)
            .expect("the connection was reset");
        assert!(reply.ends_with("}\n"), "{reply}");
    }

    #[test]
    fn connections_are_bounded_and_slots_come_back() {
        let (_temp, path, _control) = started(echo());
        let idle: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| UnixStream::connect(&path).unwrap())
            .collect();
        let reply = ask(&path, &Request::List {}).unwrap();
        assert!(reply.error.unwrap().contains("too many"));
        drop(idle);
        let until = Instant::now() + Duration::from_secs(5);
        while !ask(&path, &Request::List {}).unwrap().ok {
            assert!(Instant::now() < until, "slots are lost");
        }
    }

    #[test]
    fn a_handler_that_panics_refuses_its_request_only() {
        let handler: Arc<Handler> = Arc::new(|request, _| match request {
            // Past the hook: a backtrace of each can take longer than a client waits.
            Request::List {} => std::panic::resume_unwind(Box::new("told to")),
            _ => Reply::done(Vec::new()),
        });
        let (_temp, path, control) = started(handler);
        // More often than there are slots: each must come back.
        for _ in 0..=CONNECTIONS_MAX {
            let error = ask(&path, &Request::List {}).unwrap().error.unwrap();
            assert!(error.contains("panic"), "{error}");
        }
        assert!(ask(&path, &Request::Stat { name: "d".into() }).unwrap().ok);
        drop(control);
    }

    #[test]
    fn the_end_answers_what_is_at_work_and_cuts_who_is_silent() {
        let entered = Arc::new(AtomicUsize::new(0));
        let handler: Arc<Handler> = {
            let entered = Arc::clone(&entered);
            Arc::new(move |_, _| {
                entered.fetch_add(1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(200));
                Reply::done(Vec::new())
            })
        };
        let (_temp, path, control) = started(handler);
        let _silent = UnixStream::connect(&path).unwrap();
        let asking = thread::spawn(move || ask(&path, &Request::List {}));
        while entered.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        let began = Instant::now();
        drop(control);
        assert!(
            asking.join().unwrap().unwrap().ok,
            "the request at work was dropped"
        );
        assert!(
            began.elapsed() < REQUEST_TIMEOUT,
            "the silent client held the end up"
        );
    }

    #[test]
    fn a_drip_of_bytes_does_not_hold_a_slot_past_the_deadline() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(200);
        let reading = thread::spawn(move || read_request(&theirs, deadline));
        while !reading.is_finished() {
            assert!(
                Instant::now() < deadline + Duration::from_secs(5),
                "still reading"
            );
            let _ = ours.write_all(b" ");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(
            reading
                .join()
                .unwrap()
                .unwrap_err()
                .contains("no request within")
        );
    }

    #[test]
    fn only_the_own_user_and_root_may_ask() {
        assert!(may_ask(7, 7) && may_ask(0, 7) && may_ask(0, 0));
        assert!(!may_ask(7, 0) && !may_ask(8, 7) && !may_ask(u32::MAX, 0));
    }

    #[test]
    fn a_path_that_is_taken_or_too_long_is_refused() {
        let (temp, path, _control) = started(echo());
        let error = Control::bind(&path).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Io);
        let long = temp.path().join("x".repeat(108));
        assert_eq!(
            Control::bind(&long).err().unwrap().kind(),
            ErrorKind::InvalidInput
        );
    }
}
