//! Memory for large payloads, shared by all connections of a server.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a connection that waits for memory looks whether it still exists.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Bytes that may be taken; a taker gets its turn when others give back.
///
/// Whoever holds bytes waits for none: each request takes all that it needs at once, and gives it
/// back within the time that a client has to send it or to take its reply.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes_max: usize,
    used_bytes: Mutex<usize>,
    given_back: Condvar,
}

impl Budget {
    pub fn new(bytes_max: usize) -> Budget {
        Budget {
            bytes_max,
            used_bytes: Mutex::new(0),
            given_back: Condvar::new(),
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

    /// Whether more than half is taken: then nobody keeps buffers for later.
    pub fn is_tight(&self) -> bool {
        *self.lock() > self.bytes_max / 2
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.used_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_always_let_through_and_the_next_waits() {
        let budget = Budget::new(10);
        assert!(budget.take(50, || panic!("nothing is taken yet")));
        assert!(budget.is_tight());
        assert!(!budget.take(1, || true));
        budget.give_back(50);
        assert!(budget.take(5, || true) && !budget.is_tight());
        assert!(budget.take(5, || true) && budget.is_tight());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(budget.take(6, || false)));
            budget.give_back(5);
            assert!(!budget.take(9, || true));
            budget.give_back(5);
        });
    }
}
