//! A connected stream socket, of either family, in the clear or through TLS. Nothing else receives
//! or sends.
//!
//! Locks: `stream`, for making and taking apart records, never across a system call that waits.
//! The sender holds the connection's `writer` around it, so records leave in the order of their
//! making.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send};

use super::received::Received;
use super::tls::{Stream, Tls};

/// The time that a closing connection gives a client to take the last replies.
const CLOSE_LINGER: Duration = Duration::from_millis(200);
/// Silence after which a TCP peer is asked whether it is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between further questions, and the number of unanswered ones after which the peer is given
/// up.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;
/// Bytes per second that a client which is slower than its time limit must still take or send.
pub(crate) const RATE_MIN: u32 = 64 << 10;

#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    draining: AtomicBool,
    /// The time for which a client may take nothing of what is sent to it.
    stall_timeout: Duration,
    tls: OnceLock<Sealed>,
}

#[derive(Debug)]
struct Sealed {
    stream: Mutex<Stream>,
    /// Records on their way out. The sender takes the buffer, so that its memory is used again.
    records: Mutex<Vec<u8>>,
}

impl Socket {
    pub fn new(fd: OwnedFd, stall_timeout: Duration) -> Socket {
        // Where the system refuses, a send waits for ever, as it would without.
        let _ = sockopt::set_socket_timeout(&fd, Timeout::Send, Some(stall_timeout));
        Socket {
            fd,
            draining: AtomicBool::new(false),
            stall_timeout,
            tls: OnceLock::new(),
        }
    }

    /// Receives what is there without waiting.
    pub fn receive(&self, buffer: &mut [u8]) -> Received {
        match self.tls.get() {
            None => self.receive_raw(buffer),
            Some(sealed) => {
                let mut source = |buffer: &mut [u8]| self.receive_raw(buffer);
                sealed.stream().receive(buffer, &mut source)
            }
        }
    }

    fn receive_raw(&self, buffer: &mut [u8]) -> Received {
        loop {
            // The buffer is never empty, so 0 means the end.
            return match recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => Received::End,
                Ok((length, _)) => Received::Bytes(length),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if self.is_draining() => Received::End,
                Err(Errno::AGAIN) => Received::Nothing,
                Err(_) => Received::End,
            };
        }
    }

    /// Bytes that have come and are not yet received, as far as the system knows.
    pub fn pending_bytes(&self) -> usize {
        rustix::io::ioctl_fionread(&self.fd).map_or(0, |bytes| bytes as usize)
    }

    /// Waits until something can be received, the client has gone or `timeout` has passed (`None`:
    /// for ever); `false` on a timeout.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        self.wait_for(PollFlags::IN, timeout)
    }

    fn wait_for(&self, events: PollFlags, timeout: Option<Duration>) -> bool {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            });
            match poll(&mut [PollFd::new(&self.fd, events)], left.as_ref()) {
                Ok(0) => return false,
                Err(Errno::INTR) => {}
                // On a failure the receive that follows tells what is wrong.
                Ok(_) | Err(_) => return true,
            }
        }
    }

    /// Whether replies would be in vain: the client has closed, or this side has aborted. A client
    /// that has only stopped sending still takes them.
    pub fn is_gone(&self) -> bool {
        let mut events = [PollFd::new(&self.fd, PollFlags::empty())];
        let looked = poll(&mut events, Some(&Timespec::default()));
        let gone = PollFlags::HUP | PollFlags::ERR;
        looked.is_ok() && events[0].revents().intersects(gone)
    }

    /// Sends all of `bytes`. A client that takes nothing for long, or too little, is given up.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.send_sealed(bytes, |bytes| self.send_raw(bytes))
    }

    /// Sends all of `bytes` before `deadline`.
    pub fn send_before(&self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        self.send_sealed(bytes, |bytes| self.send_raw_before(bytes, deadline))
    }

    fn send_sealed(
        &self,
        mut bytes: &[u8],
        send: impl Fn(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(sealed) = self.tls.get() else {
            return send(bytes);
        };
        let mut records = sealed.take_records();
        while !bytes.is_empty() {
            records.clear();
            let length = sealed.stream().seal(bytes, &mut records)?;
            bytes = &bytes[length..];
            send(&records)?;
        }
        sealed.keep_records(records);
        Ok(())
    }

    fn send_raw(&self, mut bytes: &[u8]) -> io::Result<()> {
        // Looked at only when a send was cut short, which it is when it had to wait.
        let mut slow: Option<(Instant, usize)> = None;
        while !bytes.is_empty() {
            match send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                // The system's word for the time limit.
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
            if bytes.is_empty() {
                break;
            }
            let (since, left) = slow.get_or_insert((Instant::now(), bytes.len()));
            let taken = (*left - bytes.len()) as u32;
            if since.elapsed() > self.stall_timeout + Duration::from_secs(1) * (taken / RATE_MIN) {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    fn send_raw_before(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(&self.fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if !self.wait_for(PollFlags::OUT, Some(left)) {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Starts TLS before `deadline`; `false` if that fails. Nothing may then be sent in the clear.
    pub fn start_tls(&self, tls: &Tls, deadline: Instant) -> bool {
        let Some(stream) = tls.stream() else {
            return false;
        };
        let sealed = self.tls.get_or_init(|| Sealed {
            stream: Mutex::new(stream),
            records: Mutex::default(),
        });
        loop {
            let mut source = |buffer: &mut [u8]| self.receive_raw(buffer);
            let mut stream = sealed.stream();
            let is_handshaking = stream.is_handshaking();
            let received = match is_handshaking {
                true => stream.advance(&mut source),
                false => Received::Nothing,
            };
            let mut records = Vec::new();
            let said = stream.outgoing(&mut records);
            drop(stream);
            // An alert goes out too, where the handshake has failed.
            let sent = said.and_then(|()| self.send_raw_before(&records, deadline));
            if sent.is_err() || received == Received::End {
                return false;
            }
            if !is_handshaking {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let must_wait = received == Received::Nothing && sealed.stream().is_handshaking();
            if left.is_zero() || must_wait && !self.wait(Some(left)) {
                return false;
            }
        }
    }

    /// Stops receiving once what has arrived is taken; sending goes on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Read);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Ends both directions at once. Threads that wait in this socket return.
    pub fn abort(&self) {
        self.draining.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }

    /// Announces the end and lets the client read the last replies. Closing with bytes unread
    /// would reset a TCP connection and destroy replies on their way.
    pub fn finish(&self) {
        if let Some(sealed) = self.tls.get() {
            let mut records = sealed.take_records();
            records.clear();
            if sealed.stream().close(&mut records).is_ok() {
                let _ = self.send_raw_before(&records, Instant::now() + CLOSE_LINGER);
            }
        }
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
        let deadline = Instant::now() + CLOSE_LINGER;
        let mut discarded = [0; 4096];
        loop {
            match self.receive_raw(&mut discarded) {
                Received::End => return,
                Received::Bytes(_) if Instant::now() < deadline => {}
                Received::Bytes(_) => return,
                Received::Nothing => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if !self.wait(Some(left)) {
                        return;
                    }
                }
            }
        }
    }

    /// Sends small replies at once, and notices a peer that has vanished without a word.
    pub fn tune_tcp(&self) {
        // All of it only improves matters; a socket that refuses it still works.
        let fd = self.fd.as_fd();
        let _ = sockopt::set_tcp_nodelay(fd, true);
        let _ = sockopt::set_socket_keepalive(fd, true);
        let _ = sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE);
        let _ = sockopt::set_tcp_keepintvl(fd, KEEPALIVE_INTERVAL);
        let _ = sockopt::set_tcp_keepcnt(fd, KEEPALIVE_PROBES);
    }
}

impl Sealed {
    fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_records(&self) -> Vec<u8> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut records)
    }

    fn keep_records(&self, records: Vec<u8>) {
        *self.records.lock().unwrap_or_else(PoisonError::into_inner) = records;
    }
}
