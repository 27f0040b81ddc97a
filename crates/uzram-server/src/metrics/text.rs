//! The attribute table in Prometheus's text format, version 0.0.4: `uzram_` and an attribute's name, with
//! the unit behind it, and `_total` behind a counter's.
//!
//! Texts are labels of `uzram_disk_info`. A reset starts counters afresh, which scrapers expect of them.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text::encode,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use serde_json::Value;

use crate::attributes::{Attribute, Measure, TABLE};
use crate::control::Attributes;
use crate::latencies::Latencies;

/// Attributes that say nothing over time.
const LEFT_OUT: [&str; 2] = ["pid", "initstate"];
/// Texts that are labels, and their labels.
const LABELS: [(&str, &str); 4] = [
    ("device", "device"),
    ("comp_algorithm", "algorithm"),
    ("algorithm_params", "algorithm_params"),
    ("pool", "pool"),
];
const NS_PER_SECOND: f64 = 1e9;

/// The metrics of `devices`.
#[must_use]
pub fn text(devices: Vec<Attributes>) -> String {
    let mut registry = Registry::with_prefix("uzram");
    if !devices.is_empty() {
        registry.register_collector(Box::new(Devices(devices)));
    }
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes all");
    text
}

#[derive(Debug)]
struct Devices(Vec<Attributes>);

impl Collector for Devices {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let about = "texts of a disk, as labels";
        let mut info = encoder.encode_descriptor("disk", about, None, MetricType::Info)?;
        for device in &self.0 {
            let labels = [("name", "disk")].iter().chain(&LABELS);
            let labels = labels.map(|(attribute, label)| (*label, text_of(device, attribute)));
            info.encode_info(&labels.collect::<Vec<_>>())?;
        }
        let metrics = TABLE.iter().filter_map(Metric::of);
        metrics
            .into_iter()
            .try_for_each(|metric| metric.encode(&self.0, &mut encoder))
    }
}

/// A metric, and its attribute.
struct Metric {
    attribute: &'static Attribute,
    /// Without its prefix, unit and suffix.
    name: &'static str,
    unit: Option<Unit>,
    kind: MetricType,
}

impl Metric {
    /// The metric of an attribute, if it is one.
    fn of(attribute: &'static Attribute) -> Option<Metric> {
        let name = attribute.name;
        let kind = match attribute.is_counter {
            true => MetricType::Counter,
            false => MetricType::Gauge,
        };
        let (unit, kind) = match attribute.measure {
            Measure::Text => return None,
            Measure::Times => (Some(Unit::Seconds), MetricType::Histogram),
            Measure::Bytes => (Some(Unit::Bytes), kind),
            Measure::Count | Measure::Ratio => (None, kind),
        };
        let is_left_out = LEFT_OUT.contains(&name) || !attribute.is_readable();
        (!is_left_out).then_some(Metric {
            attribute,
            name: match name {
                // That end is for histograms.
                "bd_count" => "bd_stored",
                _ => name.strip_suffix("_bytes").unwrap_or(name),
            },
            unit,
            kind,
        })
    }

    fn encode(&self, devices: &[Attributes], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (about, unit) = (self.attribute.about, self.unit.as_ref());
        let mut metric = encoder.encode_descriptor(self.name, about, unit, self.kind)?;
        for device in devices {
            // An older server has fewer.
            let Some(value) = device.get(self.attribute.name) else {
                continue;
            };
            let disk = [("disk", text_of(device, "name"))];
            self.encode_value(value, metric.encode_family(&disk)?)?;
        }
        Ok(())
    }

    fn encode_value(&self, value: &Value, mut metric: MetricEncoder<'_>) -> fmt::Result {
        let count = value.as_u64().unwrap_or(0);
        match (self.attribute.measure, self.kind) {
            (Measure::Times, _) => {
                let times = Latencies::from_json(value);
                let buckets = times.doublings();
                let buckets: Vec<_> = buckets
                    .map(|(end_ns, count)| (end_ns as f64 / NS_PER_SECOND, count))
                    .collect();
                let sum = times.sum_ns() as f64 / NS_PER_SECOND;
                metric.encode_histogram::<NoLabelSet>(sum, times.count(), &buckets, None)
            }
            (_, MetricType::Counter) => metric.encode_counter::<NoLabelSet, _, u64>(&count, None),
            // Without a divisor there is no ratio.
            (Measure::Ratio, _) => metric.encode_gauge(&value.as_f64().unwrap_or(f64::NAN)),
            _ => metric.encode_gauge(&count),
        }
    }
}

fn text_of<'a>(device: &'a Attributes, attribute: &str) -> &'a str {
    let text = device.get(attribute).and_then(Value::as_str);
    text.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn device(name: &str) -> Attributes {
        let value = json!({
            "name": name, "device": "zram", "pool": "a\\b\n\"c", "pid": 7, "disksize": 1 << 30,
            "read_bytes": 4096, "compr_ratio": null, "mem_ratio": 2.5, "connections": 1,
            "read_latency": {"sum_ns": 2_500_000_000u64, "steps": [[1, 2], [3, 1], [49, 4]]},
        });
        match value {
            Value::Object(attributes) => attributes,
            _ => unreachable!(),
        }
    }

    #[test]
    fn each_metric_has_its_lines_together() {
        let text = text(vec![device("a"), device("b")]);
        for lines in [
            "uzram_disk_info{disk=\"a\",device=\"zram\",algorithm=\"\",algorithm_params=\"\",\
             pool=\"a\\\\b\\n\\\"c\"} 1\n",
            "# TYPE uzram_disksize_bytes gauge\nuzram_disksize_bytes{disk=\"a\"} 1073741824\n\
             uzram_disksize_bytes{disk=\"b\"} 1073741824\n",
            "# TYPE uzram_read_bytes_total counter\nuzram_read_bytes_total{disk=\"a\"} 4096\n",
            "uzram_compr_ratio{disk=\"a\"} NaN\n",
            "uzram_mem_ratio{disk=\"b\"} 2.5\n",
            "# TYPE uzram_read_latency_seconds histogram\n\
             uzram_read_latency_seconds_bucket{disk=\"a\",le=\"5.12e-07\"} 0\n\
             uzram_read_latency_seconds_bucket{disk=\"a\",le=\"1.024e-06\"} 2\n\
             uzram_read_latency_seconds_bucket{disk=\"a\",le=\"2.048e-06\"} 3\n",
            "le=\"8.589934592\"} 3\nuzram_read_latency_seconds_bucket{disk=\"a\",le=\"+Inf\"} 7\n\
             uzram_read_latency_seconds_sum{disk=\"a\"} 2.5\n\
             uzram_read_latency_seconds_count{disk=\"a\"} 7\n",
        ] {
            assert!(text.contains(lines), "{lines}\n{text}");
        }
        assert!(!text.contains("_pid") && !text.contains("pages_compacted_total{"));
        assert_eq!(super::text(Vec::new()), "");
    }

    #[test]
    fn every_name_is_an_attributes() {
        let known = |name: &&str| TABLE.iter().any(|attribute| attribute.name == *name);
        let labels = LABELS.map(|(name, _)| name);
        assert!(LEFT_OUT.iter().chain(&labels).all(known));
    }
}
