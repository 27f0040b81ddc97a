//! The count of opens of the disk's file.

use crate::sync::{AtomicU64, Ordering};

/// Counts opens, and can be closed while there are none.
#[derive(Debug, Default)]
pub(super) struct Gate(AtomicU64);

impl Gate {
    const SHUT: u64 = u64::MAX;

    /// One of a file that is open this many times.
    pub fn of(opens: u64) -> Gate {
        Gate(AtomicU64::new(opens.min(Gate::SHUT - 1)))
    }

    pub fn opens(&self) -> u64 {
        match self.0.load(Ordering::Acquire) {
            Gate::SHUT => 0,
            opens => opens,
        }
    }

    /// Refuses further opens; false if the file is open now.
    pub fn shut(&self) -> bool {
        let shut = self
            .0
            .compare_exchange(0, Gate::SHUT, Ordering::AcqRel, Ordering::Acquire);
        matches!(shut, Ok(_) | Err(Gate::SHUT))
    }

    pub fn reopen(&self) {
        // Fails where it is not shut, and there is nothing to do then.
        let _ = self
            .0
            .compare_exchange(Gate::SHUT, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    pub fn enter(&self) -> bool {
        let one_more = |opens: u64| (opens < Gate::SHUT - 1).then(|| opens + 1);
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .is_ok()
    }

    pub fn leave(&self) {
        let one_less = |opens: u64| (1..Gate::SHUT).contains(&opens).then(|| opens - 1);
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
    }
}
