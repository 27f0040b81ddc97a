//! The figures of each disk between two looks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use uzram_server::Latencies;
use uzram_server::control::Attributes;

use crate::commands::{Disk, number, plain};

/// Two looks at once would divide by nothing.
const TIME_MIN: Duration = Duration::from_millis(1);

/// The disks at the last look.
#[derive(Debug, Default)]
pub struct Model {
    /// Those that answered, in the order of their names.
    pub disks: Vec<Figures>,
    /// The reasons of those that did not.
    pub failures: Vec<String>,
    before: HashMap<String, Seen>,
}

/// The counters of a disk at a look.
#[derive(Debug)]
struct Seen {
    at: Instant,
    requests: [u64; 2],
    latencies: [Latencies; 2],
}

/// The figures of a disk.
#[derive(Debug, Default)]
pub struct Figures {
    /// Its name.
    pub name: String,
    /// Its attributes.
    pub attributes: Attributes,
    /// Reads and writes per second since the look before.
    pub per_second: [f64; 2],
    /// Their times since then, or since ever at the first look and where there were none.
    pub latencies: [Latencies; 2],
}

impl Model {
    /// Takes a look's answers.
    pub fn look(&mut self, at: Instant, disks: Vec<Disk>) {
        self.disks.clear();
        self.failures.clear();
        let mut seen = HashMap::new();
        for disk in disks {
            match disk.attributes {
                Ok(attributes) => {
                    let (figures, now) = self.figures(at, attributes);
                    seen.insert(figures.name.clone(), now);
                    self.disks.push(figures);
                }
                Err(failure) => self.failures.push(failure.to_string()),
            }
        }
        self.before = seen;
    }

    fn figures(&self, at: Instant, attributes: Attributes) -> (Figures, Seen) {
        let times = |name: &str| {
            let value = attributes.get(name);
            value.map_or_else(Latencies::default, Latencies::from_json)
        };
        let now = Seen {
            at,
            requests: ["read_requests", "write_requests"].map(|name| number(&attributes, name)),
            latencies: ["read_latency", "write_latency"].map(times),
        };
        let name = attributes.get("name").map(plain).unwrap_or_default();
        let mut figures = Figures {
            latencies: now.latencies.clone(),
            name,
            attributes,
            ..Figures::default()
        };
        if let Some(before) = self.before.get(&figures.name) {
            let seconds = (at - before.at).max(TIME_MIN).as_secs_f64();
            for of in 0..2 {
                // A reset in between starts the counter afresh.
                let (then, now_count) = (before.requests[of], now.requests[of]);
                let count = now_count.checked_sub(then).unwrap_or(now_count);
                figures.per_second[of] = count as f64 / seconds;
                let since = now.latencies[of].since(&before.latencies[of]);
                if since.count() > 0 {
                    figures.latencies[of] = since;
                }
            }
        }
        (figures, now)
    }
}

impl Figures {
    /// The memory of a disk by its state, in bytes.
    pub fn memory(&self) -> [(&'static str, u64); 4] {
        let of = |name| number(&self.attributes, name);
        let compressed = of("compr_data_size").min(of("mem_used_total"));
        [
            ("compressed", compressed),
            ("fragments", of("mem_used_total") - compressed),
            ("spare", of("mem_spare")),
            ("tables", of("side_tables")),
        ]
    }

    /// The share of its memory that holds no data, in percent.
    pub fn fragmentation_percent(&self) -> Option<f64> {
        let [(_, compressed), (_, fragments), ..] = self.memory();
        let all = compressed.saturating_add(fragments);
        (all > 0).then(|| 100.0 * fragments as f64 / all as f64)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A disk that has answered.
    pub fn disk(name: &str, reads: u64) -> Disk {
        let attributes = json!({
            "name": name, "compr_data_size": 30 << 20, "mem_used_total": 40 << 20,
            "orig_data_size": 120 << 20, "compr_ratio": 4.0, "mem_ratio": 3.0, "mem_spare": 2 << 20,
            "side_tables": 1 << 20, "same_pages": 7, "huge_pages": 3, "read_requests": reads,
            "write_requests": 5, "read_latency": {"sum_ns": 1000 * reads, "steps": [[6, reads]]},
        });
        let Value::Object(attributes) = attributes else {
            unreachable!();
        };
        Disk {
            name: name.into(),
            pid: Some(1),
            attributes: Ok(attributes),
        }
    }

    #[test]
    fn rates_and_times_are_those_since_the_look_before() {
        let mut model = Model::default();
        let start = Instant::now();
        model.look(start, vec![disk("a", 100)]);
        assert_eq!(model.disks[0].per_second, [0.0, 0.0]);
        assert_eq!(model.disks[0].latencies[0].count(), 100);
        model.look(start + Duration::from_secs(2), vec![disk("a", 300)]);
        assert_eq!(model.disks[0].per_second, [100.0, 0.0]);
        assert_eq!(model.disks[0].latencies[0].count(), 200);
        model.look(start + Duration::from_secs(3), vec![disk("a", 300)]);
        assert_eq!(model.disks[0].latencies[0].count(), 300, "none since");
        model.look(start + Duration::from_secs(4), vec![disk("a", 10)]);
        assert_eq!(model.disks[0].per_second, [10.0, 0.0], "reset in between");
        assert_eq!(model.disks[0].fragmentation_percent(), Some(25.0));
        model.look(start + Duration::from_secs(5), vec![disk("b", 10)]);
        assert_eq!(model.disks[0].per_second, [0.0, 0.0], "another disk");
        assert_eq!(model.before.len(), 1);
    }
}
