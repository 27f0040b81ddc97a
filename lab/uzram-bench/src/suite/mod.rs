//! The suites, and what they share: options, how long to measure, where to pin.

pub(crate) mod codecs;
pub(crate) mod cold;
pub(crate) mod contention;
pub(crate) mod devices;
pub(crate) mod grid;
pub(crate) mod iopaths;
pub(crate) mod jobs;
pub(crate) mod locks;
pub(crate) mod nbd;
pub(crate) mod orderings;
pub(crate) mod pager;
pub(crate) mod pools;
pub(crate) mod rows;
pub(crate) mod store;
pub(crate) mod streams;
pub(crate) mod survive;
pub(crate) mod together;
pub(crate) mod turns;

use std::time::Duration;

use crate::corpus::Corpus;
use crate::error::Result;
use crate::peers::Peer;
use crate::progress::Progress;
use crate::report::Findings;
use crate::sample::Series;
use crate::stop::Stop;

pub(crate) use crate::report::SUBJECT;

/// A suite: what it measures where nothing is named, what it can be asked, and how it runs. `A` are the
/// arguments of its own, so that no suite can be entered with those of another.
#[derive(Debug)]
pub(crate) struct Suite<A = ()> {
    pub(crate) name: &'static str,
    /// Peers that it can be measured against.
    pub(crate) peers: &'static [Peer],
    /// Algorithms where none is named; all for none.
    pub(crate) algorithms: &'static [&'static str],
    /// The synthetic corpus where none is named; all for none.
    pub(crate) corpus: Option<&'static str>,
    pub(crate) work: Work,
    /// Checks its own arguments before anything is measured.
    pub(crate) plan: fn(&Options, &A) -> Result<Run>,
}

/// Measures what was planned, into findings that hold what there is also after a failure.
pub(crate) type Run = Box<dyn FnOnce(&Options, &mut Findings) -> Result<()>>;

/// How much a suite does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// As much as fits into `--seconds`.
    Timed,
    /// A fixed amount.
    Fixed,
    /// The same with 1 to 10 threads, as published.
    Published,
    /// Rounds over more threads than CPUs, with one algorithm; `--seconds` can only make it longer.
    Matrix,
}

impl<A> Suite<A> {
    /// The algorithms that are measured where none is named.
    pub(crate) fn algorithms(&self) -> Vec<&'static str> {
        let mut known = uzram::algorithms();
        if !self.algorithms.is_empty() {
            known.retain(|name| self.algorithms.contains(name));
        }
        known
    }
}

/// The measurements to make, checked.
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

/// The figures of so many runs of a case, each of which has the number of those before it.
pub(crate) fn runs_of<const N: usize>(
    options: &Options,
    progress: &mut Progress,
    case: &str,
    runs: usize,
    mut one_run: impl FnMut(usize) -> Result<[f64; N]>,
) -> Result<[Series; N]> {
    let mut all = std::array::from_fn(|_| Series::default());
    for run in 0..runs {
        options.stop.check()?;
        progress.at(case, run as f64 / runs as f64);
        for (series, figure) in all.iter_mut().zip(one_run(run)?) {
            series.push(figure);
        }
    }
    progress.step();
    Ok(all)
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

/// Two runs of everything on synthetic pages, for the suites' tests.
#[cfg(test)]
pub(crate) fn two_runs(threads: usize) -> Options {
    Options {
        corpora: crate::synthetic::corpora(),
        peers: Vec::new(),
        algorithms: vec!["lz4".to_owned()],
        threads,
        schedule: Schedule {
            at_least: Duration::ZERO,
            runs_min: 2,
        },
        quick: false,
        stop: Stop::default(),
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
