//! The thread for work that writers should not wait for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use uzram::{ErrorKind, Store};

use crate::device::Live;
use crate::error::{Error, Result};
use crate::registry::Registry;
use crate::service::Notifier;

/// Work on one device before the next one has its turn.
const BUDGET: Duration = Duration::from_millis(10);
/// Pause between rounds while devices change, and the longest pause while they do not.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(640);
/// The longest pause beside a disk for swap: a burst of a gigabyte a second, which is what a loop
/// device over FUSE carries, uses a third of the smallest spare (64 MiB) up in this time.
const PAUSE_MAX_FOR_SWAP: Duration = Duration::from_millis(20);

/// The running thread. Once dropped, it ends within [`BUDGET`] per device.
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
            let mut given_up = GivenUp::default();
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                // From here: a device that hangs in this thread's work is what a watchdog is for.
                notifier.alive();
                let devices = registry.devices();
                // Every device has its turn: not any(), which stops at the first with work left.
                let unfinished = devices
                    .iter()
                    .filter(|d| {
                        let live = d.live();
                        let store = live.as_deref().and_then(Live::store);
                        let maintain = || store.is_some_and(|store| store.maintain(BUDGET));
                        given_up.turn(d, d.name(), maintain)
                    })
                    .count();
                let used_before = used_bytes;
                used_bytes = devices
                    .iter()
                    .map(|d| {
                        d.live()
                            .as_deref()
                            .and_then(Live::store)
                            .map_or(0, Store::mem_used_bytes)
                    })
                    .sum();
                let is_idle = unfinished == 0 && used_bytes == used_before;
                let pause_max = match devices.iter().any(|d| d.is_for_swap()) {
                    true => PAUSE_MAX_FOR_SWAP,
                    false => PAUSE_MAX,
                };
                pause = if is_idle {
                    (pause * 2).min(pause_max)
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

/// Devices whose maintenance panicked. They are served without it. The others keep theirs, and the
/// watchdog still gets signs of life.
struct GivenUp<T>(Vec<Weak<T>>);

impl<T> Default for GivenUp<T> {
    fn default() -> GivenUp<T> {
        GivenUp(Vec::new())
    }
}

impl<T> GivenUp<T> {
    /// Does `device`'s work, unless it was given up; `true` if some is left.
    fn turn(&mut self, device: &Arc<T>, name: &str, work: impl FnOnce() -> bool) -> bool {
        // A weak reference keeps the address from being another device's.
        let is_it = |known: &Weak<T>| Weak::as_ptr(known) == Arc::as_ptr(device);
        if self.0.iter().any(is_it) {
            return false;
        }
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_panic| {
            log::error!(
                "{name}: maintenance panicked, which is a bug; the disk is served on without it: copy \
                 its data elsewhere and remove it"
            );
            self.0.retain(|known| known.strong_count() > 0);
            self.0.push(Arc::downgrade(device));
            false
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_whose_maintenance_panics_is_given_up_and_the_others_are_not() {
        let [broken, sound] = [Arc::new(0), Arc::new(1)];
        let mut given_up = GivenUp::default();
        assert!(!given_up.turn(&broken, "broken", || panic!("told to")));
        assert!(!given_up.turn(&broken, "broken", || unreachable!("given up")));
        assert!(given_up.turn(&sound, "sound", || true));
        // Its place may be taken by another device.
        drop(broken);
        let next = Arc::new(2);
        assert!(given_up.turn(&next, "next", || true));
        assert!(!given_up.turn(&next, "next", || panic!("told to")));
        assert_eq!(given_up.0.len(), 1, "what is gone is forgotten");
    }
}
