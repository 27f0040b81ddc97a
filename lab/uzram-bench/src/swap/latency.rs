//! Latencies of calls: all of them, in a histogram of three significant digits.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use uzram::{Error, ErrorKind, Result};

/// Longer calls count as one minute, in nanoseconds.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// Significant digits of a latency.
const DIGITS: u8 = 3;

/// The latencies of one kind of call.
#[derive(Debug)]
pub struct Latency {
    histogram: Mutex<Histogram<u64>>,
}

/// The figures of a histogram, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Calls that were recorded.
    pub calls: u64,
    /// Their mean.
    pub mean_ns: f64,
    /// Their standard deviation.
    pub deviation_ns: f64,
    /// The shortest.
    pub min_ns: u64,
    /// Half were shorter.
    pub p50_ns: u64,
    /// 99 of 100 were shorter.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Latency {
    pub(super) fn new() -> Result<Latency> {
        let histogram = Histogram::new_with_max(LATENCY_MAX_NS, DIGITS);
        let histogram = histogram.map_err(|_| {
            Error::new(
                ErrorKind::InvalidInput,
                "no histogram of these latencies can be",
            )
        })?;
        Ok(Latency {
            histogram: Mutex::new(histogram),
        })
    }

    pub(super) fn record(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.lock().saturating_record(took_ns.max(1));
    }

    /// The latencies recorded since the last [`Latency::reset`].
    #[must_use]
    pub fn summary(&self) -> Summary {
        let histogram = self.lock();
        if histogram.is_empty() {
            return Summary::default();
        }
        Summary {
            calls: histogram.len(),
            mean_ns: histogram.mean(),
            deviation_ns: histogram.stdev(),
            min_ns: histogram.min(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            max_ns: histogram.max(),
        }
    }

    /// Forgets all latencies.
    pub fn reset(&self) {
        self.lock().reset();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Histogram<u64>> {
        self.histogram
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_that_of_the_calls() {
        let latency = Latency::new().unwrap();
        assert_eq!(latency.summary(), Summary::default());
        for ns in 1..=1000 {
            latency.record(Duration::from_nanos(ns));
        }
        let summary = latency.summary();
        assert_eq!(
            (summary.calls, summary.min_ns, summary.max_ns),
            (1000, 1, 1000)
        );
        assert_eq!((summary.p50_ns, summary.p99_ns), (500, 990));
        assert!((summary.mean_ns - 500.5).abs() < 1.0, "{summary:?}");
        assert!((summary.deviation_ns - 288.7).abs() < 1.0, "{summary:?}");
        latency.record(Duration::MAX);
        assert!(latency.summary().max_ns >= LATENCY_MAX_NS);
        latency.reset();
        assert_eq!(latency.summary().calls, 0);
    }
}
