//! A program that fills memory faster than pages can leave is stopped meanwhile, by its [`Fence`].

use std::time::{Duration, Instant};

use log::debug;

use crate::fence::Fence;
use crate::state::Server;

/// Memory beyond the budget from which on programs are stopped, and as a part of it.
const BEYOND_BYTES_MIN: u64 = 4 << 20;
const BEYOND_PART: u64 = 32;
/// The longest stop. A program runs on then for at least a part of that.
const STOP_TIME_MAX: Duration = Duration::from_millis(500);
const RUN_PART: u32 = 32;

/// The fence, and since when its programs are stopped.
#[derive(Debug)]
pub(crate) struct Throttle {
    pub(crate) fence: Option<Fence>,
    stopped_since: Option<Instant>,
    runs_until: Instant,
}

impl Throttle {
    /// Nobody is stopped. Without a fence nobody ever is.
    pub(crate) fn new(fence: Option<Fence>) -> Throttle {
        Throttle {
            fence,
            stopped_since: None,
            runs_until: Instant::now(),
        }
    }

    /// All run on.
    pub(crate) fn end(&mut self) {
        let Some(since) = self.stopped_since.take() else {
            return;
        };
        let now = Instant::now();
        self.runs_until = now + (now - since) / RUN_PART;
        self.freeze(false);
    }

    fn begin(&mut self, now: Instant) {
        if now >= self.runs_until {
            self.stopped_since = Some(now);
            self.freeze(true);
        }
    }

    fn freeze(&mut self, freezes: bool) {
        let result = self.fence.as_ref().map(|fence| fence.freeze(freezes));
        if let Some(Err(error)) = result {
            debug!("programs are not stopped any more: {error}");
            self.fence = None;
        }
    }
}

impl Server {
    /// Stops the programs while too much is in memory that can leave, or lets them run on.
    pub(crate) fn throttle(&mut self) {
        if self.throttle.fence.is_none() {
            return;
        }
        let (used, budget) = (self.statistics.used_bytes, self.statistics.budget_bytes);
        let beyond = (budget / BEYOND_PART).max(BEYOND_BYTES_MIN);
        let now = Instant::now();
        match self.throttle.stopped_since {
            None if used > budget + beyond && !self.is_stuck() && self.has_agent() => {
                self.throttle.begin(now);
            }
            Some(since) if used <= budget || self.is_stuck() || now - since > STOP_TIME_MAX => {
                self.throttle.end();
            }
            _ => {}
        }
    }

    fn has_agent(&self) -> bool {
        self.spaces.values().any(|space| space.agent.is_some())
    }
}
