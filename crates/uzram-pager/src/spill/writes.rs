//! Pages that are written to the file. The pager gives a batch when the writing thread has none.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uzram::PageIndex;

/// Most pages of a batch.
pub(crate) const BATCH_PAGES: usize = 64;
/// How long a file that has failed or is full is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// Pages to write, or those that a file did not take.
pub(crate) type Batch = Vec<PageIndex>;

/// The batch under way.
#[derive(Debug)]
pub(crate) struct Writes {
    state: Mutex<State>,
    is_given: Condvar,
    /// A batch waits or is being written.
    is_busy: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    given: Option<Batch>,
    /// A batch that was written, and is empty, or was not.
    back: Option<Batch>,
    failed: Option<Instant>,
    is_ending: bool,
}

impl Writes {
    pub fn new() -> Writes {
        Writes {
            state: Mutex::new(State {
                back: Some(Vec::with_capacity(BATCH_PAGES)),
                ..State::default()
            }),
            is_given: Condvar::new(),
            is_busy: AtomicBool::new(false),
        }
    }

    /// Whether a batch waits or is being written.
    pub fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Acquire)
    }

    /// The last batch, with the pages in it that the file did not take. None: it is not back, or the file is left alone for
    /// a while.
    pub fn take_back(&self) -> Option<Batch> {
        if self.is_busy() {
            return None;
        }
        let mut state = self.lock();
        if state.failed.is_some_and(|at| at.elapsed() < PAUSE) {
            return None;
        }
        state.failed = None;
        state.back.take()
    }

    /// Gives the batch to be written. An empty one lets holes be made in the file.
    pub fn give(&self, batch: Batch) {
        self.is_busy.store(true, Ordering::Relaxed);
        self.lock().given = Some(batch);
        self.is_given.notify_one();
    }

    /// Keeps a batch that is not needed now.
    pub fn keep(&self, batch: Batch) {
        self.lock().back = Some(batch);
    }

    pub(super) fn next(&self) -> Option<Batch> {
        let mut state = self.lock();
        loop {
            if state.is_ending {
                return None;
            }
            if let Some(batch) = state.given.take() {
                return Some(batch);
            }
            let waited = self.is_given.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn done(&self, batch: Batch, has_failed: bool) {
        let mut state = self.lock();
        state.back = Some(batch);
        state.failed = has_failed.then(Instant::now);
        self.is_busy.store(false, Ordering::Release);
    }

    /// Whether the writing thread has something else to do.
    pub(super) fn is_wanted(&self) -> bool {
        let state = self.lock();
        state.is_ending || state.given.is_some()
    }

    pub(super) fn end(&self) {
        self.lock().is_ending = true;
        self.is_given.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
