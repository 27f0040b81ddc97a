//! The facts about the machine without which a figure means nothing, and pinning.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Wake-ups measured for each latency.
const WAKEUPS: usize = 64;
/// Idle time of the woken thread's CPU before each wake-up, as between requests at depth 1.
const IDLE_BEFORE_WAKEUP: Duration = Duration::from_millis(1);

/// The machine in a report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// CPUs that this process may run on.
    pub cpus: usize,
    /// The CPU's name.
    pub model: String,
    /// The kernel's release.
    pub kernel: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Median time from a wake-up to the first instruction of the woken thread, both on one CPU.
    pub wakeup_same_cpu_ns: Option<u64>,
    /// The same to another, idle CPU; absent on a machine of one CPU.
    pub wakeup_cross_cpu_ns: Option<u64>,
}

impl Machine {
    /// Looks at the machine; takes some 0.2 s.
    pub fn survey() -> Machine {
        let cpus = allowed_cpus();
        let pairs = (cpus.first(), cpus.get(1));
        Machine {
            cpus: cpus.len(),
            model: cpu_model(),
            kernel: read_trimmed("/proc/sys/kernel/osrelease"),
            memory_bytes: meminfo_bytes("MemTotal").unwrap_or(0),
            wakeup_same_cpu_ns: pairs.0.and_then(|&one| wakeup_ns(one, one)),
            wakeup_cross_cpu_ns: match pairs {
                (Some(&one), Some(&other)) => wakeup_ns(one, other),
                _ => None,
            },
        }
    }
}

/// The CPUs that this process may run on, in order.
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

/// Pins the calling thread to one CPU.
pub fn pin_to(cpu: usize) -> Result<()> {
    restrict_to(&[cpu])
}

/// Lets the calling thread, and those it starts from now on, run on `cpus` only.
pub fn restrict_to(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    let failed = |error| Error::io(format!("running on CPU {cpus:?}"), error);
    sched_setaffinity(None, &set).map_err(failed)
}

/// A line of `/proc/meminfo`, in bytes; `None` if the system does not tell.
#[must_use]
pub fn meminfo_bytes(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    fields_kib(&text).get(name).map(|kib| kib * 1024)
}

/// The lines `Name:   123 kB` of a file under /proc.
#[must_use]
pub fn fields_kib(text: &str) -> BTreeMap<&str, u64> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .filter_map(|(name, rest)| {
            let number = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some((name, number))
        })
        .collect()
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = named.map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned());
    model.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn read_trimmed(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Median time from `unpark` on CPU `from` to the parked thread's first instruction on CPU `to`.
fn wakeup_ns(from: usize, to: usize) -> Option<u64> {
    let before = sched_getaffinity(None).ok()?;
    pin_to(from).ok()?;
    let samples = wakeups(to);
    // Undone for the caller's sake; it was allowed a moment ago.
    let _ = sched_setaffinity(None, &before);
    let mut samples = samples?;
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied()
}

fn wakeups(to: usize) -> Option<Vec<u64>> {
    let rung_here = Arc::new(AtomicBool::new(false));
    let rung_there = Arc::clone(&rung_here);
    let (sender, woken) = std::sync::mpsc::channel();
    let sleeper = thread::spawn(move || {
        if pin_to(to).is_err() {
            return;
        }
        for _ in 0..WAKEUPS {
            while !rung_there.swap(false, Ordering::SeqCst) {
                thread::park();
            }
            let now = Instant::now();
            if sender.send(now).is_err() {
                return;
            }
        }
    });
    let samples = (0..WAKEUPS).map(|_| {
        thread::sleep(IDLE_BEFORE_WAKEUP);
        let rung = Instant::now();
        rung_here.store(true, Ordering::SeqCst);
        sleeper.thread().unpark();
        let arrived = woken.recv().ok()?;
        Some(arrived.saturating_duration_since(rung).as_nanos() as u64)
    });
    let samples = samples.collect();
    sleeper.join().ok()?;
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_kib_and_the_rest_is_skipped() {
        let text = "Rss:   12 kB\nName: x\n00400000-7ffe rw-p [rollup]\nPrivate_Dirty:\t 3 kB\n";
        let fields = fields_kib(text);
        assert_eq!(fields.get("Rss"), Some(&12));
        assert_eq!(fields.get("Private_Dirty"), Some(&3));
        assert_eq!(fields.len(), 2);
    }

    #[test]
    fn the_survey_finds_cpus_memory_and_a_latency_and_leaves_the_affinity_alone() {
        let before = allowed_cpus();
        let machine = Machine::survey();
        assert_eq!(allowed_cpus(), before);
        assert_eq!(machine.cpus, before.len());
        assert!(machine.memory_bytes > 1 << 20);
        assert!(machine.wakeup_same_cpu_ns.is_some());
        assert_eq!(machine.wakeup_cross_cpu_ns.is_some(), before.len() > 1);
    }
}
