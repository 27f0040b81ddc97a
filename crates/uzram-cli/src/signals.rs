//! Signals that ask a command to end, or to reload.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals as Caught;

use crate::failure::{Failure, Result};

/// The request of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// SIGINT or SIGTERM.
    End,
    /// SIGHUP.
    Reload,
}

/// SIGINT and SIGTERM, and SIGHUP, which asks for the same if nothing can be reloaded, as when a
/// terminal goes away. Signals that come while no thread waits are kept, several of a kind as one.
pub struct Signals {
    caught: Caught,
    can_reload: bool,
}

impl Signals {
    /// Catches signals from now on.
    pub fn catch(can_reload: bool) -> Result<Signals> {
        let caught = Caught::new([SIGINT, SIGTERM, SIGHUP]);
        Ok(Signals {
            caught: caught.map_err(|e| Failure::Failed(format!("signals: {e}")))?,
            can_reload,
        })
    }

    /// Waits for the next one.
    pub fn wait(&mut self) -> Asked {
        let can_reload = self.can_reload;
        match self.caught.forever().next() {
            Some(SIGHUP) if can_reload => Asked::Reload,
            _ => Asked::End,
        }
    }

    /// Whether a signal has asked to end.
    pub fn is_ending(&mut self) -> bool {
        let can_reload = self.can_reload;
        let mut pending = self.caught.pending();
        pending.any(|signal| signal != SIGHUP || !can_reload)
    }
}
