//! The thread that does what writers should not wait for.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use uzram::{Error, ErrorKind, Result, Store};

use crate::registry::Registry;
use crate::service::Notifier;

/// Work on one device before the next one has its turn.
const BUDGET: Duration = Duration::from_millis(10);
/// Pause between rounds while devices change, and the most that it grows to while they do not.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(640);

/// The running thread. Dropped, it ends within [`BUDGET`] a device.
pub(crate) struct Maintenance {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Maintenance {
    pub(crate) fn start(registry: Arc<Registry>, notifier: Arc<Notifier>) -> Result<Maintenance> {
        let (stop, stopped) = channel();
        let maintain = move || {
            let mut pause = PAUSE_MIN;
            let mut used_bytes = 0;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                // From here: a device that hangs in this thread's work is what a watchdog is for.
                notifier.alive();
                let devices = registry.devices();
                // Every device has its turn: not any(), which stops at the first with work left.
                let unfinished = devices
                    .iter()
                    .filter(|d| d.store().is_some_and(|store| store.maintain(BUDGET)))
                    .count();
                let used_before = used_bytes;
                used_bytes = devices
                    .iter()
                    .map(|d| d.store().map_or(0, Store::mem_used_bytes))
                    .sum();
                // A burst of swapping uses a spare up in less than the longest pause.
                let may_burst = devices.iter().any(|d| d.is_for_swap());
                let is_idle = unfinished == 0 && used_bytes == used_before && !may_burst;
                pause = if is_idle {
                    (pause * 2).min(PAUSE_MAX)
                } else {
                    PAUSE_MIN
                };
            }
        };
        let thread = thread::Builder::new()
            .name("uzram-maintain".into())
            .spawn(maintain);
        let thread =
            thread.map_err(|e| Error::new(ErrorKind::Io, "maintenance thread").with_source(e))?;
        Ok(Maintenance {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
