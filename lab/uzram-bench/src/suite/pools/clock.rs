//! Times of single operations: a stamp between any two, sorted into a histogram afterwards.
//!
//! One reading of the clock ends an operation and begins the next. What a reading costs is measured
//! when the suite starts and taken off means and percentiles, never off counts and the worst.

use std::hint::black_box;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Operations between two looks at the stamps: few enough that the stamps stay in the first cache.
pub(super) const BATCH: usize = 64;
/// Decimal digits to which a percentile is exact.
const DIGITS: u8 = 2;
/// 18 minutes; longer times count as that.
const TIME_MAX_NS: u64 = 1 << 40;
/// Calibrations, of which the least counts: others were interrupted.
const CALIBRATIONS: usize = 64;
/// The empty loop runs for one part in so many of the time that operations took.
pub(super) const IDLE_PART: u32 = 8;
const MICROSECONDS_100: u64 = 100_000;
const MILLISECOND: u64 = 1_000_000;

/// A clock whose own cost is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) cost_ns: f64,
}

/// Operations of one kind.
#[derive(Clone, Debug)]
pub(super) struct Latencies {
    times: Histogram<u32>,
    pub(super) total_ns: u64,
    pub(super) worst_ns: u64,
    pub(super) over_100us: u64,
    pub(super) over_1ms: u64,
}

/// The cost of a kind of operation in nanoseconds, without that of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Costs {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
}

impl Clock {
    pub(super) fn calibrate() -> Clock {
        let costs = (0..CALIBRATIONS).map(|_| {
            let start = Instant::now();
            let mut last = start;
            for _ in 0..BATCH {
                last = black_box(Instant::now());
            }
            (last - start).as_nanos() as f64 / BATCH as f64
        });
        Clock {
            cost_ns: costs.fold(f64::INFINITY, f64::min),
        }
    }

    /// Runs `operation` for 0 to `count`, at most [`BATCH`] of them, and records each.
    #[inline]
    pub(super) fn batch<E>(
        self,
        count: usize,
        latencies: &mut Latencies,
        mut operation: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let count = count.min(BATCH);
        let start = Instant::now();
        let mut ends = [start; BATCH];
        for (at, end) in ends[..count].iter_mut().enumerate() {
            operation(at)?;
            *end = Instant::now();
        }
        let mut begin = start;
        for &end in &ends[..count] {
            latencies.record(end - begin);
            begin = end;
        }
        Ok(())
    }

    /// Times one operation alone.
    #[inline]
    pub(super) fn once<T>(latencies: &mut Latencies, operation: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = operation();
        latencies.record(begin.elapsed());
        done
    }

    /// Does nothing for about `time`, and records it as operations.
    pub(super) fn idle(self, time: Duration, latencies: &mut Latencies) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let nothing = |_| Ok::<(), std::convert::Infallible>(());
            let Ok(()) = self.batch(BATCH, latencies, nothing);
        }
    }

    /// The costs of `latencies`; zeroes without any.
    pub(super) fn costs(self, latencies: &Latencies) -> Costs {
        if latencies.count() == 0 {
            return Costs::default();
        }
        let part = |part| latencies.quantile_ns(part) - self.cost_ns;
        Costs {
            mean: latencies.total_ns as f64 / latencies.count() as f64 - self.cost_ns,
            p50: part(0.5),
            p99: part(0.99),
            p999: part(0.999),
        }
    }
}

impl Costs {
    /// The costs beyond `floor`, figure by figure.
    pub(super) fn beyond(self, floor: Costs) -> Costs {
        Costs {
            mean: self.mean - floor.mean,
            p50: self.p50 - floor.p50,
            p99: self.p99 - floor.p99,
            p999: self.p999 - floor.p999,
        }
    }
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies {
            times: Histogram::new_with_max(TIME_MAX_NS, DIGITS).expect("the bounds are in order"),
            total_ns: 0,
            worst_ns: 0,
            over_100us: 0,
            over_1ms: 0,
        }
    }
}

impl Latencies {
    #[inline]
    pub(super) fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.times.saturating_record(ns);
        self.total_ns += ns;
        self.worst_ns = self.worst_ns.max(ns);
        self.over_100us += u64::from(ns > MICROSECONDS_100);
        self.over_1ms += u64::from(ns > MILLISECOND);
    }

    pub(super) fn add(&mut self, other: &Latencies) {
        let added = self.times.add(&other.times);
        added.expect("all have the same bounds");
        self.total_ns += other.total_ns;
        self.worst_ns = self.worst_ns.max(other.worst_ns);
        self.over_100us += other.over_100us;
        self.over_1ms += other.over_1ms;
    }

    pub(super) fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns)
    }

    pub(super) fn count(&self) -> u64 {
        self.times.len()
    }

    /// The time that `part` of the operations do not exceed.
    fn quantile_ns(&self, part: f64) -> f64 {
        let found = self.times.value_at_quantile(part);
        self.times.median_equivalent(found) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_counts_and_the_worst_are_those_of_the_times() {
        let mut latencies = Latencies::default();
        for ns in 1..=1000 {
            latencies.record(Duration::from_nanos(ns));
        }
        for ns in [150_000, 2_000_000, 3_000_000] {
            latencies.record(Duration::from_nanos(ns));
        }
        assert_eq!((latencies.over_100us, latencies.over_1ms), (3, 2));
        assert_eq!(latencies.worst_ns, 3_000_000);
        let costs = Clock { cost_ns: 10.0 }.costs(&latencies);
        let near = |value: f64, wanted: f64| (value - wanted).abs() <= wanted / 128.0 + 1.0;
        assert!(near(costs.p50 + 10.0, 502.0), "{costs:?}");
        assert!(near(costs.p99 + 10.0, 993.0), "{costs:?}");
        assert!(near(costs.p999 + 10.0, 2_000_000.0), "{costs:?}");
        let sum: f64 = 1000.0 * 1001.0 / 2.0 + 5_150_000.0;
        assert!((costs.mean - (sum / 1003.0 - 10.0)).abs() < 1e-6);
        let mut twice = latencies.clone();
        twice.add(&latencies);
        assert_eq!(twice.count(), 2 * latencies.count());
        assert_eq!(twice.quantile_ns(0.99), latencies.quantile_ns(0.99));
    }

    #[test]
    fn an_idle_loop_costs_what_the_clock_costs() {
        let clock = Clock::calibrate();
        let mut latencies = Latencies::default();
        clock.idle(Duration::from_millis(5), &mut latencies);
        assert!(latencies.count() > 100);
        // Other processes may interrupt it; half of all readings they do not.
        assert!(clock.costs(&latencies).p50.abs() < clock.cost_ns + 50.0);
    }
}
