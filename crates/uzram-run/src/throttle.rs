//! A program that fills memory faster than pages can leave is stopped meanwhile, by its [`Fence`].

use std::time::{Duration, Instant};

use log::debug;

use crate::fence::Fence;

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

    /// Stops the programs while more than the budget is in memory of which some can leave, or lets them run on.
    pub(crate) fn follow(&mut self, used_bytes: u64, budget_bytes: u64, can_leave: bool) {
        let beyond_bytes = (budget_bytes / BEYOND_PART).max(BEYOND_BYTES_MIN);
        let now = Instant::now();
        match self.stopped_since {
            None if used_bytes > budget_bytes + beyond_bytes && can_leave => self.begin(now),
            Some(since) => {
                let is_kept = used_bytes <= budget_bytes;
                if is_kept || !can_leave || now - since > STOP_TIME_MAX {
                    self.end();
                }
            }
            None => {}
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
        if now >= self.runs_until && self.fence.is_some() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_stopped_while_they_are_beyond_the_budget() {
        const BUDGET: u64 = 100 << 20;
        let directory = tempfile::tempdir().unwrap();
        let fence = Fence::of_directory(directory.path().into());
        let mut throttle = Throttle::new(Some(fence));
        let mut after = |used_bytes, can_leave| {
            throttle.follow(used_bytes, BUDGET, can_leave);
            let file = directory.path().join("cgroup.freeze");
            std::fs::read_to_string(file).unwrap_or_default()
        };
        assert_eq!(after(BUDGET + (3 << 20), true), "");
        assert_eq!(after(BUDGET + (8 << 20), false), "");
        assert_eq!(after(BUDGET + (8 << 20), true), "1");
        assert_eq!(after(BUDGET + 1, true), "1");
        assert_eq!(after(BUDGET, true), "0");
    }

    #[test]
    fn programs_run_on_if_nothing_can_leave() {
        let directory = tempfile::tempdir().unwrap();
        let fence = Fence::of_directory(directory.path().into());
        let mut throttle = Throttle::new(Some(fence));
        throttle.follow(200 << 20, 100 << 20, true);
        throttle.follow(200 << 20, 100 << 20, false);
        let word = std::fs::read_to_string(directory.path().join("cgroup.freeze"));
        assert_eq!(word.unwrap(), "0");
    }
}
