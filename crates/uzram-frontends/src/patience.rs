//! Looking for more work before sleeping. A sleep costs the other side an interrupt to send and
//! this side up to 70 us to wake. Looking in vain costs everybody else the CPU.

use std::time::{Duration, Instant};

/// Longest time to look for more before sleeping, yielding the CPU between looks.
const LOOK_MAX: Duration = Duration::from_micros(30);
/// A shorter time is not worth beginning.
const LOOK_MIN: Duration = Duration::from_micros(4);
/// After a sleep this short, the time to wake included, looking would have been better.
const SHORT_SLEEP: Duration = Duration::from_micros(100);

/// The time to look, learned from experience: looking in vain halves it.
#[derive(Debug)]
pub(crate) struct Patience(Duration);

impl Default for Patience {
    fn default() -> Patience {
        Patience(LOOK_MAX)
    }
}

impl Patience {
    /// Whether to look once more after having looked since `started`.
    pub fn lasts(&self, started: Instant) -> bool {
        started.elapsed() < self.0
    }

    /// Learns from a sleep that has ended. The look that preceded it began at `started`.
    pub fn slept_since(&mut self, started: Instant) {
        self.0 = match self.0 / 2 {
            _ if started.elapsed() < SHORT_SLEEP => LOOK_MAX,
            shorter if shorter < LOOK_MIN => Duration::ZERO,
            shorter => shorter,
        };
    }
}
