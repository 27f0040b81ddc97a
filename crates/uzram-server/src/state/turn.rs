//! The turn to set disks up and take them down: one process at a time has it. It is a lock like that of a
//! name, so the kernel gives it back for a process that dies. Servers take none.

use std::time::{Duration, Instant};

use uzram::ErrorKind;

use super::claims::{CLAIM_PAUSE, Claim};
use super::{Kind, StateDir};
use crate::error::{Error, Result};

/// Longest wait for another `up` or `down`: taking swap down reads all of it.
const TURN_TIMEOUT: Duration = Duration::from_secs(300);

impl StateDir {
    /// Waits until this process alone sets disks up and takes them down, which it may as long as it holds
    /// the claim. `None` for root in another user's directory, where it creates nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if others take too long, [`ErrorKind::Io`].
    pub fn turn(&self) -> Result<Option<Claim>> {
        if !self.is_own {
            return Ok(None);
        }
        let deadline = Instant::now() + TURN_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(claim) = self.try_claim(Kind::Turn, "up")? {
                return Ok(Some(claim));
            }
            std::thread::sleep(CLAIM_PAUSE);
        }
        let path = self.file("up", Kind::Turn.lock_suffix());
        let (path, seconds) = (path.display(), TURN_TIMEOUT.as_secs());
        let text = format!(
            "{path}: another uzram up or down holds it for {seconds} s; end that (fuser names it)"
        );
        Err(Error::new(ErrorKind::Busy, text))
    }
}
