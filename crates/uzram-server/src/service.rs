//! The protocol between a service manager and a server: readiness, a watchdog, sockets handed
//! over.
//!
//! The protocols are those of systemd, sd_notify(3) and sd_listen_fds(3), which others speak too.
//! Without a manager nothing happens.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use listenfd::ListenFd;
use rustix::time::{ClockId, clock_gettime};
use uzram::ErrorKind;

use crate::error::{Error, Result};

/// Sockets that are taken over, at most.
const SOCKETS_MAX: usize = 64;

/// A socket for clients of NBD with which another process listens, as systemd hands over. One
/// named like a device is for that device, others are for all.
#[derive(Debug)]
pub struct Inherited {
    /// Its name.
    pub name: String,
    /// The socket.
    pub socket: OwnedFd,
}

/// The way to the service manager, if there is one.
///
/// Connected once and early: a sandbox would refuse it later.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
    watchdog: Option<Watchdog>,
}

#[derive(Debug)]
struct Watchdog {
    interval: Duration,
    last: Mutex<Instant>,
}

impl Notifier {
    /// The one that the environment names (`NOTIFY_SOCKET`, `WATCHDOG_USEC`), or none.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be reached.
    pub fn from_environment() -> Result<Notifier> {
        let Some(address) = std::env::var_os("NOTIFY_SOCKET").filter(|text| !text.is_empty())
        else {
            return Ok(Notifier::default());
        };
        let failed = |e: std::io::Error| {
            let text = format!("NOTIFY_SOCKET {}", address.display());
            Error::new(ErrorKind::Io, text).with_source(e)
        };
        let socket = UnixDatagram::unbound().map_err(failed)?;
        let to = socket_address(&address).map_err(failed)?;
        socket.connect_addr(&to).map_err(failed)?;
        // A manager that does not read must not hold a server up.
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Notifier {
            socket: Some(socket),
            watchdog: watchdog(),
        })
    }

    /// Clients can connect; `status` is a line for people.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The configuration is being read again; [`Notifier::ready`] says when that is done.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
    }

    /// A line for people about the server's state.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// The server is ending.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Says that the server is alive, if it is time to.
    pub(crate) fn alive(&self) {
        let Some(watchdog) = &self.watchdog else {
            return;
        };
        let Ok(mut last) = watchdog.last.lock() else {
            return;
        };
        if last.elapsed() >= watchdog.interval {
            *last = Instant::now();
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, text: &str) {
        if let Some(socket) = &self.socket {
            // There is nobody to tell if this fails.
            let _ = socket.send(text.as_bytes());
        }
    }
}

fn socket_address(text: &OsString) -> std::io::Result<SocketAddr> {
    match text.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(text),
        _ => Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            "must be an absolute path, or @ and a name",
        )),
    }
}

/// A third of the time in which the manager wants a sign of life.
fn watchdog() -> Option<Watchdog> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let wanted = number("WATCHDOG_USEC").filter(|_| is_for_us)?;
    Some(Watchdog {
        interval: Duration::from_micros(wanted / 3),
        last: Mutex::new(Instant::now()),
    })
}

/// The sockets that a service manager listens with and hands over (`LISTEN_FDS`), with their names.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for something else than stream sockets that listen.
pub fn inherited_sockets() -> Result<Vec<Inherited>> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut handed_over = ListenFd::from_env();
    if handed_over.len() > SOCKETS_MAX {
        let text = format!(
            "{} sockets handed over; at most {SOCKETS_MAX}",
            handed_over.len()
        );
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    let mut sockets = Vec::new();
    for index in 0..handed_over.len() {
        let name = names.next().unwrap_or_default().to_owned();
        let socket = take(&mut handed_over, index).map_err(|e| {
            let text = format!(
                "inherited socket {index} {name:?}: must be a Unix or TCP socket that listens"
            );
            Error::new(ErrorKind::InvalidInput, text).with_source(e)
        })?;
        sockets.extend(socket.map(|socket| Inherited { name, socket }));
    }
    Ok(sockets)
}

fn take(handed_over: &mut ListenFd, index: usize) -> std::io::Result<Option<OwnedFd>> {
    match handed_over.take_unix_listener(index) {
        Ok(socket) => Ok(socket.map(OwnedFd::from)),
        Err(_) => Ok(handed_over.take_tcp_listener(index)?.map(OwnedFd::from)),
    }
}
