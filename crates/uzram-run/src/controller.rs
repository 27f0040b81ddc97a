//! Questions to a server from another thread than the front's.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use uzram::{Error, ErrorKind, Result};

use crate::protocol::{Report, ToFront, ToServer, receive, send};

/// Time in which a server answers, which may wait for a disk.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);

/// Asks the server of a run, and sets its budget, while the program runs.
#[derive(Clone, Debug)]
pub struct Controller {
    socket: Arc<Mutex<OwnedFd>>,
}

impl Controller {
    /// # Errors
    /// The system's.
    pub(crate) fn new(socket: OwnedFd) -> std::result::Result<Controller, Errno> {
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIME_MAX))?;
        Ok(Controller {
            socket: Arc::new(Mutex::new(socket)),
        })
    }

    /// The figures of the run, and of each of its processes.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the server does not answer: the run has ended.
    pub fn report(&self) -> Result<Report> {
        self.ask(&ToServer::Report)
    }

    /// Sets the budget of all processes together, in bytes. What is beyond it begins to leave at once.
    ///
    /// # Errors
    /// As [`report`](Controller::report).
    pub fn set_memory(&self, bytes: u64) -> Result<Report> {
        self.ask(&ToServer::Budget { bytes })
    }

    fn ask(&self, question: &ToServer) -> Result<Report> {
        let failed =
            |errno| Error::new(ErrorKind::Io, "the run does not answer").with_source(errno);
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        // Answers that came too late for who has asked.
        while let Ok(true) = is_readable(socket.as_fd()) {
            if !matches!(receive::<ToFront>(socket.as_fd()), Ok(Some(_))) {
                return Err(failed(Errno::PIPE));
            }
        }
        send(socket.as_fd(), question, None).map_err(failed)?;
        match receive(socket.as_fd()).map_err(failed)? {
            Some((ToFront::Report(report), _)) => Ok(report),
            _ => Err(failed(Errno::PIPE)),
        }
    }
}

fn is_readable(socket: rustix::fd::BorrowedFd) -> std::result::Result<bool, Errno> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&now)).map(|found| found > 0)
}
