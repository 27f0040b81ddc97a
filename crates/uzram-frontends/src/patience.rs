//! Looking for more before sleeping: a sleep costs the other side an interrupt to send and this side
//! up to 70 us to come back, and looking in vain costs everybody else the CPU.

use std::time::{Duration, Instant};

/// How long to look for more before sleeping, yielding the CPU between looks.
const LOOK_MAX: Duration = Duration::from_micros(30);
/// Less than this is not worth beginning.
const LOOK_MIN: Duration = Duration::from_micros(4);
/// A sleep this short, the time to wake included, had better been spent looking.
const SHORT_SLEEP: Duration = Duration::from_micros(100);

/// How long to look, as experience has it: looking in vain halves it.
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

    /// Learns from a sleep that has ended; looking for what woke it began at `started`.
    pub fn slept_since(&mut self, started: Instant) {
        self.0 = match self.0 / 2 {
            _ if started.elapsed() < SHORT_SLEEP => LOOK_MAX,
            shorter if shorter < LOOK_MIN => Duration::ZERO,
            shorter => shorter,
        };
    }
}
