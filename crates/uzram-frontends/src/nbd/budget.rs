//! Memory for large payloads, shared by all connections of a server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A connection that waits for memory checks this often whether its client is still there.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The share of the memory for buffers that are kept for later requests, as a divisor.
const KEPT_SHARE: usize = 8;

/// Bytes that may be taken. A taker waits until others give back.
///
/// No holder of bytes waits for bytes: each request takes all that it needs at once, and gives it
/// back within the time that a client has to send it or to take its reply. Kept buffers are
/// counted apart and never wait, so they hold up no request.
#[derive(Debug)]
pub(crate) struct Budget {
    /// For requests.
    bytes_max: usize,
    used_bytes: Mutex<usize>,
    given_back: Condvar,
    kept_bytes_max: usize,
    kept_bytes: AtomicUsize,
}

impl Budget {
    pub fn new(bytes_max: usize) -> Budget {
        let kept_bytes_max = bytes_max / KEPT_SHARE;
        Budget {
            bytes_max: bytes_max - kept_bytes_max,
            used_bytes: Mutex::new(0),
            given_back: Condvar::new(),
            kept_bytes_max,
            kept_bytes: AtomicUsize::new(0),
        }
    }

    /// Waits for `bytes` and takes them; `false` if `is_over` first. One taker is always let
    /// through, so that a small limit slows down but never stops.
    pub fn take(&self, bytes: usize, is_over: impl Fn() -> bool) -> bool {
        let mut used = self.lock();
        while *used > 0 && used.saturating_add(bytes) > self.bytes_max {
            if is_over() {
                return false;
            }
            let wait = self.given_back.wait_timeout(used, LOOK_EVERY);
            used = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        *used += bytes;
        true
    }

    pub fn give_back(&self, bytes: usize) {
        *self.lock() -= bytes;
        self.given_back.notify_all();
    }

    /// Takes `bytes` for a buffer that is kept; `None` if others keep too many.
    pub fn keep(self: &Arc<Self>, bytes: usize) -> Option<Kept> {
        let kept = Kept {
            budget: Arc::clone(self),
            bytes,
        };
        // Given back by the guard where that is too much.
        let before = self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
        (before.saturating_add(bytes) <= self.kept_bytes_max).then_some(kept)
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.used_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of a kept buffer. Dropping this gives them back.
#[derive(Debug)]
pub(crate) struct Kept {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.budget
            .kept_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_always_let_through_and_the_next_waits() {
        let budget = Budget::new(11);
        assert!(budget.take(50, || panic!("nothing is taken yet")));
        assert!(!budget.take(1, || true));
        budget.give_back(50);
        assert!(budget.take(5, || true));
        assert!(budget.take(5, || true));
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(budget.take(6, || false)));
            budget.give_back(5);
            assert!(!budget.take(9, || true));
            budget.give_back(5);
        });
    }

    #[test]
    fn what_is_kept_is_part_of_the_whole_and_holds_up_no_request() {
        let budget = Arc::new(Budget::new(80));
        let kept = budget.keep(6).unwrap();
        assert!(budget.keep(5).is_none(), "ten in all");
        let more = budget.keep(4).unwrap();
        assert!(budget.take(70, || panic!("it waits for what is kept")));
        assert!(!budget.take(1, || true));
        drop(kept);
        assert!(!budget.take(1, || true), "not for requests");
        drop(budget.keep(6).unwrap());
        drop(more);
        assert!(budget.keep(10).is_some());
    }
}
