//! A connected stream socket, of either family: the only place that receives and sends.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send};

/// How long a closing connection waits for a client to take what was sent last.
const CLOSE_LINGER: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    draining: AtomicBool,
}

/// What came of an attempt to receive.
pub(crate) enum Received {
    Bytes(usize),
    /// Nothing is there now.
    Nothing,
    /// The client has gone, or this side has stopped receiving.
    End,
}

impl Socket {
    pub fn new(fd: OwnedFd) -> Socket {
        Socket {
            fd,
            draining: AtomicBool::new(false),
        }
    }

    /// Receives what is there without waiting.
    pub fn receive(&self, buffer: &mut [u8]) -> Received {
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

    /// Sends all of `bytes`, waiting for the client as long as it takes.
    pub fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends all of `bytes` before `deadline`.
    pub fn send_before(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
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

    /// Stops receiving once what has arrived is taken; sending goes on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Read);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Ends both directions at once; whoever waits in this socket returns.
    pub fn abort(&self) {
        self.draining.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }

    /// Says that nothing more comes and lets the client read what was sent: closing with bytes
    /// unread would reset a TCP connection and destroy replies on their way.
    pub fn finish(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
        let deadline = Instant::now() + CLOSE_LINGER;
        let mut discarded = [0; 4096];
        loop {
            match self.receive(&mut discarded) {
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

    /// Small replies go out at once, and a peer that has vanished without a word is noticed.
    pub fn tune_tcp(&self) {
        // Both only improve matters; a socket that refuses them still works.
        let _ = rustix::net::sockopt::set_tcp_nodelay(self.fd.as_fd(), true);
        let _ = rustix::net::sockopt::set_socket_keepalive(self.fd.as_fd(), true);
    }
}
