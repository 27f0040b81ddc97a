//! The disk that a socket offers, and its user: one guest at a time, because the protocol has no
//! word for sharing.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use uzram::{Error, ErrorKind, Result};

use super::Disk;
use crate::peer::Peer;

/// A disk that is offered, and its user.
#[derive(Debug, Default)]
pub struct Seat(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    disk: Option<Disk>,
    user: Option<User>,
}

#[derive(Debug)]
struct User {
    peer: Peer,
    socket: UnixStream,
}

impl Seat {
    /// Offers `disk` to guests that connect from now on, in place of the former disk.
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if its size is not whole sectors of 512 bytes.
    pub fn offer(&self, disk: Disk) -> Result<()> {
        let size_bytes = disk.device.geometry().size_bytes;
        if !size_bytes.is_multiple_of(super::config::SECTOR_BYTES) {
            let text = format!(
                "{}: {size_bytes} bytes, must be whole sectors of 512",
                disk.name
            );
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        self.lock().disk = Some(disk);
        Ok(())
    }

    /// Offers no disk any more.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with the user of the disk.
    pub fn withdraw(&self) -> Result<()> {
        let mut state = self.lock();
        if let Some(user) = &state.user {
            let text = format!("in use by {}", user.peer);
            return Err(Error::new(ErrorKind::Busy, text));
        }
        state.disk = None;
        Ok(())
    }

    /// The user of the disk.
    #[must_use]
    pub fn user(&self) -> Option<Peer> {
        self.lock().user.as_ref().map(|user| user.peer)
    }

    /// Hangs up on the user. Requests that were begun are finished.
    pub fn disconnect(&self) {
        if let Some(user) = &self.lock().user {
            // Fails only for one that is gone.
            let _ = user.socket.shutdown(Shutdown::Both);
        }
    }

    /// Lets `peer` use the disk; `None` if there is no disk.
    pub(super) fn take(&self, peer: Peer, socket: UnixStream) -> Option<Disk> {
        let mut state = self.lock();
        let disk = state.disk.clone()?;
        state.user = Some(User { peer, socket });
        Some(disk)
    }

    /// Ends the use.
    pub(super) fn leave(&self) {
        self.lock().user = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
