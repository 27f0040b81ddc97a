//! Pages that do not compress go to a file, if there is one. A thread writes them, so nobody waits for it unless it falls behind.
//! A touch of such a page waits for the file, and so does the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread;
use std::time::Duration;

use uzram::{ColdPages, Error, ErrorKind, Result, Store};

/// Pages that are worth a pass.
const PASS_PAGES: u64 = 256;
/// Pages that may wait for the thread.
const WAITING_MAX: u64 = 16 << 10;
/// Time for the thread to catch up, before more comes.
const WAIT: Duration = Duration::from_millis(2);
/// Time until a file that has failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The thread.
pub(crate) struct Spill {
    wake: SyncSender<()>,
    failures: Receiver<String>,
    has_failed: Arc<AtomicBool>,
}

impl Spill {
    /// A thread for a store with a backing file. It ends with this value.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no thread can be had.
    pub(crate) fn begin(store: Arc<Store>) -> Result<Spill> {
        let (wake, woken) = sync_channel(1);
        let (sender, failures) = channel();
        let has_failed = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&has_failed);
        thread::Builder::new()
            .name("uzram-spill".into())
            .spawn(move || write(&store, &woken, &sender, &its))
            .map_err(|error| {
                Error::new(ErrorKind::Io, "no thread for the file").with_source(error)
            })?;
        Ok(Spill {
            wake,
            failures,
            has_failed,
        })
    }

    /// Tells that so many pages in memory do not compress. If they are too many it takes some time.
    pub(crate) fn note(&self, huge_pages: u64) {
        if huge_pages < PASS_PAGES {
            return;
        }
        let is_awake = matches!(self.wake.try_send(()), Err(TrySendError::Full(())));
        if is_awake && huge_pages > WAITING_MAX && !self.has_failed.load(Ordering::Relaxed) {
            thread::sleep(WAIT);
        }
    }

    /// The reason why pages stay in memory, once each time that the file begins to fail.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failures.try_recv().ok()
    }
}

fn write(store: &Store, woken: &Receiver<()>, failures: &Sender<String>, has_failed: &AtomicBool) {
    while woken.recv().is_ok() {
        let written = store.write_back_cold(ColdPages::Huge, &mut || true);
        let has_failed_before = has_failed.swap(written.is_err(), Ordering::Relaxed);
        if let Err(error) = written {
            if !has_failed_before && failures.send(error.to_string()).is_err() {
                return;
            }
            thread::sleep(RETRY);
        }
    }
}
