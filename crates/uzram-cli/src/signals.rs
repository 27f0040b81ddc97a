//! Signals that ask a command to end, or to look again.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Failure, Result};

/// Exit status of a command that a second signal cut short.
const STATUS_CUT_SHORT: i32 = 1;

/// What somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// SIGINT or SIGTERM.
    End,
    /// SIGHUP.
    Reload,
}

/// SIGINT and SIGTERM: the first one is waited for, the second one ends the process at once. SIGHUP
/// is the same where nothing can be reloaded, as when a terminal goes away.
pub struct Signals {
    caught: UnixStream,
    is_ending: Arc<AtomicBool>,
    is_reloading: Arc<AtomicBool>,
}

impl Signals {
    /// From now on signals are caught.
    pub fn catch(can_reload: bool) -> Result<Signals> {
        let failed = |e: std::io::Error| Failure::Failed(format!("signals: {e}"));
        let (caught, notify) = UnixStream::pair().map_err(failed)?;
        let signals = Signals {
            caught,
            is_ending: Arc::default(),
            is_reloading: Arc::default(),
        };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let flag = match signal == SIGHUP && can_reload {
                true => &signals.is_reloading,
                false => &signals.is_ending,
            };
            if Arc::ptr_eq(flag, &signals.is_ending) {
                // In this order: the first signal finds the flag clear and sets it.
                signal_hook::flag::register_conditional_shutdown(
                    signal,
                    STATUS_CUT_SHORT,
                    Arc::clone(flag),
                )
                .map_err(failed)?;
            }
            signal_hook::flag::register(signal, Arc::clone(flag)).map_err(failed)?;
            let notify = notify.try_clone().map_err(failed)?;
            signal_hook::low_level::pipe::register(signal, notify).map_err(failed)?;
        }
        Ok(signals)
    }

    /// Waits for the next one.
    pub fn wait(&mut self) -> Asked {
        loop {
            if self.is_ending() {
                return Asked::End;
            }
            if self.is_reloading.swap(false, Ordering::SeqCst) {
                return Asked::Reload;
            }
            // A byte for each signal; those of signals that were merged are left over and harmless.
            match self.caught.read(&mut [0]) {
                Err(e) if e.kind() != ErrorKind::Interrupted => return Asked::End,
                _ => {}
            }
        }
    }

    /// Takes the next signal that asks to end for the first one: this one was refused.
    pub fn refuse(&self) {
        self.is_ending.store(false, Ordering::SeqCst);
    }

    /// Whether one has asked to end.
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }
}
