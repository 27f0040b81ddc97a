//! One request at a time: how long it takes, and how much longer the slowest in a hundred.
//!
//! `echo` is a thread that answers as many bytes over a socket and does nothing else: what its slowest
//! take is the machine's, not a server's.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::figures::{Cell, Metric};
use crate::machine;
use crate::progress::Progress;
use crate::report::Block;
use crate::sample::Series;
use crate::side::Side;
use crate::suite::Options;
use crate::suite::nbd::client::{Direction, REPLY_BYTES, REQUEST_BYTES};
use crate::suite::nbd::lines::{Lines, Load, WARM_UP};
use crate::suite::nbd::load;
use crate::suite::turns::{Runs, Turns};

/// Cases at most: write and read, on one CPU and on two.
pub(super) const STEPS: usize = 4;

const ECHO: &str = "echo";

/// Median and 99th percentile, and the one over the other.
const METRICS: [Metric; 3] = [
    ("latency_p50", "us p50"),
    ("latency_p99", "us p99"),
    ("latency_tail", "medians"),
];

/// The figures of [`METRICS`] of one server, one a run.
type Latency = [Series; 3];

/// Times the requests of every server, on one CPU and, where there are more, on two.
pub(super) fn measure(
    lines: &mut Lines<'_>,
    corpus: &str,
    options: &Options,
    progress: &mut Progress,
    block: &mut Block,
) -> Result<()> {
    let all = machine::allowed_cpus();
    for count in [1, 2] {
        if let Some(cpus) = all.get(..count) {
            lines.restrict_to(cpus)?;
            let measured = on(cpus, lines, corpus, options, progress, block);
            lines.restrict_to(&all)?;
            measured?;
        }
    }
    Ok(())
}

fn on(
    cpus: &[usize],
    lines: &mut Lines<'_>,
    corpus: &str,
    options: &Options,
    progress: &mut Progress,
    block: &mut Block,
) -> Result<()> {
    for (verb, direction) in [("write", Direction::Write), ("read", Direction::Read)] {
        let case = format!("{corpus}/random-{verb}-1x1-{}cpu", cpus.len());
        let latencies = lines.time(direction, &case, options, progress)?;
        let bytes = lines.workload.bytes() as u64;
        let variants = Side::names(&lines.sides).into_iter().chain([ECHO]);
        for (variant, latency) in variants.zip(&latencies) {
            for (metric, series) in METRICS.into_iter().zip(latency) {
                let cell = Cell::new(case.as_str(), metric, bytes).pinned(cpus);
                cell.add(variant, series, block);
            }
        }
    }
    Ok(())
}

impl Lines<'_> {
    /// Servers and load run on `cpus` only.
    fn restrict_to(&self, cpus: &[usize]) -> Result<()> {
        machine::restrict_to(cpus)?;
        for side in &self.sides {
            machine::restrict_process_to(side.driven.server.pid(), cpus)?;
        }
        Ok(())
    }

    /// The servers' latencies in their order, and last the echo's.
    fn time(
        &mut self,
        direction: Direction,
        case: &str,
        options: &Options,
        progress: &mut Progress,
    ) -> Result<Vec<Latency>> {
        let load = Load {
            name: "",
            direction,
            read_bytes: PAGE_BYTES,
            depth: 1,
        };
        let (pages, sides) = (self.workload.input(), &mut self.sides);
        let turns = Turns::of(case, sides.len() + 1, Runs::Few);
        turns.take(options, progress, |turn| {
            let time = turn.time(WARM_UP, options);
            let mut taken_ns = match sides.get_mut(turn.side) {
                Some(side) => {
                    let workers = &mut side.driven.workers;
                    load::run_together(workers, load.job(pages, time))?;
                    workers[0].latencies_ns().to_vec()
                }
                None => echo(direction, time)?,
            };
            taken_ns.sort_unstable();
            let [p50, p99] = [50, 99].map(|percent| quantile_us(&taken_ns, percent));
            Ok([p50, p99, p99 / p50])
        })
    }
}

/// The time that `percent` of the sorted times do not exceed, in us; 0 without times.
fn quantile_us(sorted_ns: &[u64], percent: usize) -> f64 {
    let rank = (sorted_ns.len() * percent).div_ceil(100);
    let ns = sorted_ns.get(rank.saturating_sub(1)).copied();
    ns.unwrap_or(0) as f64 / 1000.0
}

/// Times questions and answers of a request's size for so long, in ns.
fn echo(direction: Direction, duration: Duration) -> Result<Vec<u64>> {
    let (asked, answered) = match direction {
        Direction::Write => (REQUEST_BYTES + PAGE_BYTES, REPLY_BYTES),
        Direction::Read => (REQUEST_BYTES, REPLY_BYTES + PAGE_BYTES),
    };
    let failed = |error| Error::io(ECHO, error);
    let (near, mut far) = UnixStream::pair().map_err(failed)?;
    let mut taken_ns = Vec::new();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut bytes = vec![0; asked.max(answered)];
            let mut answer = || {
                far.read_exact(&mut bytes[..asked])?;
                far.write_all(&bytes[..answered])
            };
            while answer().is_ok() {}
        });
        // Dropped here, which ends the thread.
        let mut near = near;
        let mut bytes = vec![0; asked.max(answered)];
        let deadline = Instant::now() + duration;
        while Instant::now() < deadline {
            let started = Instant::now();
            near.write_all(&bytes[..asked]).map_err(failed)?;
            near.read_exact(&mut bytes[..answered]).map_err(failed)?;
            taken_ns.push(started.elapsed().as_nanos() as u64);
        }
        Ok(taken_ns)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_time_that_so_many_do_not_exceed() {
        let times: Vec<u64> = (1..=200).map(|us| us * 1000).collect();
        assert_eq!(quantile_us(&times, 50), 100.0);
        assert_eq!(quantile_us(&times, 99), 198.0);
        assert_eq!(quantile_us(&times[..1], 99), 1.0);
        assert_eq!(quantile_us(&[], 99), 0.0);
    }

    #[test]
    fn the_echo_answers_until_its_time_is_over() {
        for direction in [Direction::Write, Direction::Read] {
            let taken_ns = echo(direction, Duration::from_millis(5)).unwrap();
            assert!(!taken_ns.is_empty());
        }
    }
}
