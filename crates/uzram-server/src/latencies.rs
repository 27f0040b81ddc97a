//! How long requests took: a histogram of nanoseconds whose steps are a half or a third of their value,
//! from half a microsecond to eight seconds.
//!
//! A request costs two additions to its CPU's own cache lines. The steps are exact powers of two and
//! what lies in the middle between them, so histograms can be added up.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

/// All below 2^9 ns are in the first step.
const FIRST_LOG2: u32 = 9;
/// Doublings above it; what takes longer is in the last step.
const DOUBLINGS: u32 = 24;
/// Steps: two for each doubling, and the ends.
pub(crate) const STEPS: usize = 2 * DOUBLINGS as usize + 2;

/// Counters of one CPU.
#[derive(Debug)]
pub(crate) struct Shard {
    counts: [AtomicU64; STEPS],
    sum_ns: AtomicU64,
}

impl Default for Shard {
    fn default() -> Shard {
        Shard {
            counts: [const { AtomicU64::new(0) }; STEPS],
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl Shard {
    pub(crate) fn count(&self, ns: u64) {
        self.counts[step(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn reset(&self) {
        for counter in self.counts.iter().chain([&self.sum_ns]) {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// The latencies of the requests of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    counts: Vec<u64>,
    sum_ns: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies {
            counts: vec![0; STEPS],
            sum_ns: 0,
        }
    }
}

impl Latencies {
    pub(crate) fn of<'a>(shards: impl Iterator<Item = &'a Shard>) -> Latencies {
        let mut all = Latencies::default();
        for shard in shards {
            for (sum, counter) in all.counts.iter_mut().zip(&shard.counts) {
                *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
            }
            let ns = shard.sum_ns.load(Ordering::Relaxed);
            all.sum_ns = all.sum_ns.wrapping_add(ns);
        }
        all
    }

    /// The requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time that they took together, in nanoseconds.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The time within which this share of them ended, from 0 to 1, in nanoseconds; none without
    /// requests. Within a step they are taken to lie evenly.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let wanted = (share.clamp(0.0, 1.0) * self.count() as f64).max(1.0);
        let mut below = 0.0;
        for (step, count) in self.counts.iter().enumerate() {
            let count = *count as f64;
            if count > 0.0 && below + count >= wanted {
                let start = step.checked_sub(1).and_then(end_ns).unwrap_or(0) as f64;
                let end = end_ns(step).map_or(start, |end| end as f64);
                return Some((start + (end - start) * (wanted - below) / count) as u64);
            }
            below += count;
        }
        None
    }

    /// The requests of each doubling of nanoseconds but the last ones, as pairs of its end and their
    /// number.
    pub fn doublings(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut count = 0;
        let steps = self.counts.iter().enumerate();
        steps.filter_map(move |(step, more)| {
            count += more;
            let end = end_ns(step).filter(|end| end.is_power_of_two())?;
            Some((end, std::mem::take(&mut count)))
        })
    }

    /// The requests since `before`, an earlier look at the same histogram.
    #[must_use]
    pub fn since(&self, before: &Latencies) -> Latencies {
        let pairs = self.counts.iter().zip(&before.counts);
        // After a reset, what there is now.
        if pairs.clone().any(|(now, then)| now < then) {
            return self.clone();
        }
        Latencies {
            counts: pairs.map(|(now, then)| now - then).collect(),
            sum_ns: self.sum_ns.wrapping_sub(before.sum_ns),
        }
    }

    /// As an attribute: the sum, and pairs of a step's number and its requests.
    pub(crate) fn to_json(&self) -> Value {
        let steps = self.counts.iter().enumerate();
        let steps = steps.filter(|(_, count)| **count > 0);
        let steps: Vec<Value> = steps.map(|(step, count)| json!([step, count])).collect();
        json!({
            "count": self.count(),
            "sum_ns": self.sum_ns,
            "p50_ns": self.quantile_ns(0.5),
            "p99_ns": self.quantile_ns(0.99),
            "steps": steps,
        })
    }

    /// From an attribute; whatever is no such thing counts nothing.
    #[must_use]
    pub fn from_json(value: &Value) -> Latencies {
        let mut all = Latencies {
            sum_ns: value["sum_ns"].as_u64().unwrap_or(0),
            ..Latencies::default()
        };
        for pair in value["steps"].as_array().into_iter().flatten() {
            let step = pair[0].as_u64().and_then(|step| usize::try_from(step).ok());
            let sum = step.and_then(|step| all.counts.get_mut(step));
            if let (Some(sum), Some(count)) = (sum, pair[1].as_u64()) {
                // So that no sum of them overflows.
                *sum = count.min(u64::MAX / STEPS as u64);
            }
        }
        all
    }
}

/// The step of a time.
fn step(ns: u64) -> usize {
    let Some(log2) = ns.checked_ilog2().filter(|log2| *log2 >= FIRST_LOG2) else {
        return 0;
    };
    let upper_half = (ns >> (log2 - 1)) & 1;
    let step = 2 * u64::from(log2 - FIRST_LOG2) + upper_half + 1;
    (step as usize).min(STEPS - 1)
}

/// The first time that is beyond a step; none for the last one.
fn end_ns(step: usize) -> Option<u64> {
    let base = 1 << (FIRST_LOG2 as usize + step / 2);
    match step {
        _ if step >= STEPS - 1 => None,
        _ if step.is_multiple_of(2) => Some(base),
        _ => Some(base + base / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steps_end_where_the_next_begin() {
        for index in 0..STEPS - 1 {
            let end = end_ns(index).unwrap();
            assert_eq!((step(end - 1), step(end)), (index, index + 1));
        }
        assert_eq!((step(0), step(u64::MAX)), (0, STEPS - 1));
        assert_eq!(end_ns(STEPS - 2), Some(1 << 33));
    }

    fn of(times: &[u64]) -> Latencies {
        let shards = [Shard::default(), Shard::default()];
        for (index, ns) in times.iter().enumerate() {
            shards[index % 2].count(*ns);
        }
        Latencies::of(shards.iter())
    }

    #[test]
    fn quantiles_lie_within_their_step() {
        assert_eq!(Latencies::default().quantile_ns(0.5), None);
        let times: Vec<u64> = (0..1000).map(|n| 1000 + 9 * n).collect();
        let all = of(&times);
        assert_eq!(all.count(), 1000);
        assert_eq!(all.sum_ns(), times.iter().sum::<u64>());
        for (share, exact) in [(0.01, 1090), (0.5, 5500), (0.99, 9910), (1.0, 9991)] {
            let found = all.quantile_ns(share).unwrap();
            let is_near = found * 2 >= exact && found <= exact * 3 / 2 + 512;
            assert!(is_near, "{share}: {found} for {exact}");
        }
        assert_eq!(of(&[u64::MAX >> 1]).quantile_ns(0.5), Some(1 << 33));
    }

    #[test]
    fn doublings_are_two_steps() {
        let all = of(&[1, 600, 1000, 1500, 1 << 40]);
        let found: Vec<_> = all.doublings().take(4).collect();
        assert_eq!(found, [(512, 1), (1024, 2), (2048, 1), (4096, 0)]);
        assert_eq!(all.doublings().count(), DOUBLINGS as usize + 1);
        assert_eq!(all.doublings().last(), Some((1 << 33, 0)));
    }

    #[test]
    fn hostile_attributes_count_nothing() {
        for value in [
            json!(null),
            json!({"steps": 7}),
            json!({"steps": [[0], ["a", 1], [999, 1], [-1, 1], [0, -1]]}),
        ] {
            assert_eq!(Latencies::from_json(&value).count(), 0, "{value}");
        }
        let huge = json!({"steps": [[0, u64::MAX], [1, u64::MAX]]});
        assert!(Latencies::from_json(&huge).count() > 1 << 57);
        assert!(Latencies::from_json(&huge).quantile_ns(0.5).is_some());
    }

    proptest! {
        #[test]
        fn what_is_sent_is_found_again(times in proptest::collection::vec(0u64..1 << 40, 0..50)) {
            let all = of(&times);
            prop_assert_eq!(&Latencies::from_json(&all.to_json()), &all);
            let more = of(&[&times[..], &[5000]].concat());
            prop_assert_eq!(more.since(&all), of(&[5000]));
            prop_assert_eq!(Latencies::default().since(&all).count(), 0);
        }
    }
}
