//! The suites, and what they share: options, how long to measure, where to pin.

pub(crate) mod codecs;
pub(crate) mod contention;
pub(crate) mod devices;
pub(crate) mod iopaths;
pub(crate) mod jobs;
pub(crate) mod locks;
pub(crate) mod nbd;
pub(crate) mod orderings;
pub(crate) mod pools;
pub(crate) mod store;
pub(crate) mod streams;
pub(crate) mod together;

use std::time::Duration;

use crate::corpus::Corpus;
use crate::peers::Peer;
use crate::stop::Stop;

/// The variant name of uzram itself; with more than one of it in a case, the prefix.
pub(crate) const SUBJECT: &str = "uzram";

/// Part of the time lost to other processes from which on a block is marked.
pub(crate) const BUSY: f64 = 0.02;

/// What to measure, checked.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) corpora: Vec<Corpus>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) algorithms: Vec<String>,
    /// Threads of the case with several; 1 leaves it out.
    pub(crate) threads: usize,
    pub(crate) schedule: Schedule,
    pub(crate) quick: bool,
    pub(crate) stop: Stop,
}

impl Options {
    pub(crate) fn against(&self, peer: Peer) -> bool {
        self.peers.contains(&peer)
    }
}

/// How long a case is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// All runs of a case together take at least this long.
    pub(crate) at_least: Duration,
    /// Runs that a case has at least.
    pub(crate) runs_min: usize,
}

/// Runs that a case has at most, whatever the time.
const RUNS_MAX: usize = 1000;

impl Schedule {
    /// Whether another run is wanted after `runs` of them that took `elapsed`.
    pub(crate) fn wants_more(&self, runs: usize, elapsed: Duration) -> bool {
        runs < self.runs_min || (elapsed < self.at_least && runs < RUNS_MAX)
    }

    /// The part of a case that is done.
    pub(crate) fn part(&self, runs: usize, elapsed: Duration) -> f64 {
        let by_runs = runs as f64 / self.runs_min as f64;
        let by_time = elapsed.as_secs_f64() / self.at_least.as_secs_f64();
        by_runs.min(by_time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_ends_when_it_has_both_runs_and_time_or_too_many_runs() {
        let schedule = Schedule {
            at_least: Duration::from_secs(5),
            runs_min: 7,
        };
        assert!(schedule.wants_more(6, Duration::from_secs(60)));
        assert!(schedule.wants_more(100, Duration::from_secs(4)));
        assert!(!schedule.wants_more(7, Duration::from_secs(5)));
        assert!(!schedule.wants_more(RUNS_MAX, Duration::from_secs(1)));
    }
}
