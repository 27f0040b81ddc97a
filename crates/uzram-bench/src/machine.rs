//! The facts about the machine that a figure means nothing without, and pinning.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::error::{Error, Result};

/// Wake-ups measured for each latency.
const WAKEUPS: usize = 64;
/// How long the woken thread's CPU is left idle before each, as between requests at depth 1.
const IDLE_BEFORE_WAKEUP: Duration = Duration::from_millis(1);

/// What a report says about the machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// CPUs that this process may run on.
    pub(crate) cpus: usize,
    pub(crate) model: String,
    pub(crate) kernel: String,
    pub(crate) memory_bytes: u64,
    /// Median time from a wake-up to the woken thread's running, both on one CPU.
    pub(crate) wakeup_same_cpu_ns: Option<u64>,
    /// The same to another, idle CPU; absent on a machine of one CPU.
    pub(crate) wakeup_cross_cpu_ns: Option<u64>,
}

impl Machine {
    /// Looks at the machine; takes some 0.2 s.
    pub(crate) fn survey() -> Machine {
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
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

/// Pins the calling thread to one CPU.
pub(crate) fn pin_to(cpu: usize) -> Result<()> {
    restrict_to(&[cpu])
}

/// Lets the calling thread, and those it starts from now on, run on `cpus` only.
pub(crate) fn restrict_to(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    let failed = |error| Error::io(format!("running on CPU {cpus:?}"), error);
    sched_setaffinity(None, &set).map_err(failed)
}

/// Lets all threads of another process, and those they start from now on, run on `cpus` only.
pub(crate) fn restrict_process_to(pid: u32, cpus: &[usize]) -> Result<()> {
    let folder = format!("/proc/{pid}/task");
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    let failed = |error: std::io::Error| Error::io(&folder, error);
    for task in fs::read_dir(&folder).map_err(failed)? {
        let name = task.map_err(failed)?.file_name();
        let task = name.to_str().and_then(|name| name.parse().ok());
        if let Some(task) = task.and_then(Pid::from_raw) {
            // A thread that has ended meanwhile needs no place to run.
            let _ = sched_setaffinity(Some(task), &set);
        }
    }
    Ok(())
}

/// Memory that the system can still give, in bytes; `None` where it does not say.
pub(crate) fn available_memory_bytes() -> Option<u64> {
    meminfo_bytes("MemAvailable")
}

/// Memory that nobody uses, in bytes; `None` where the system does not say.
///
/// That is `MemFree` and what the CPUs keep of freed pages for themselves, which `MemFree` lacks: a third of
/// a gigabyte, where one came back in pages of 4 KiB.
pub(crate) fn free_memory_bytes() -> Option<u64> {
    let zones = fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
    Some(meminfo_bytes("MemFree")? + kept_by_cpus_bytes(&zones))
}

/// Free pages in the lists of CPUs, by what `/proc/zoneinfo` says.
fn kept_by_cpus_bytes(zones: &str) -> u64 {
    let counts = zones
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("count: "));
    let pages: u64 = counts
        .filter_map(|pages| pages.trim().parse::<u64>().ok())
        .sum();
    pages * rustix::param::page_size() as u64
}

/// Private memory of this process that the kernel counts as dirty, in bytes.
///
/// Exact, unlike the figures in `/proc/self/status`; a memfd mapped by one process alone counts.
pub(crate) fn private_dirty_bytes() -> Result<u64> {
    let path = "/proc/self/smaps_rollup";
    let text = fs::read_to_string(path).map_err(|error| Error::io(path, error))?;
    let fields = fields_kib(&text);
    let of = |name: &str| fields.get(name).copied().unwrap_or(0);
    Ok((of("Private_Dirty") + of("Private_Hugetlb")) * 1024)
}

/// Takes the time of the thread that starts it, and of what kept that thread from running.
pub(crate) struct Stopwatch {
    waited: Option<Duration>,
    started: Instant,
}

/// What a stopwatch shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lap {
    pub(crate) elapsed: Duration,
    /// The part in which the thread was ready to run and its CPU ran something else; zero where
    /// the kernel does not say.
    pub(crate) waited: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch {
            waited: waited_for_cpu(),
            started: Instant::now(),
        }
    }

    pub(crate) fn stop(self) -> Lap {
        let elapsed = self.started.elapsed();
        let waited = self.waited.zip(waited_for_cpu());
        let waited = waited.map_or(Duration::ZERO, |(then, now)| now.saturating_sub(then));
        Lap {
            elapsed,
            waited: waited.min(elapsed),
        }
    }
}

impl Lap {
    /// The time that the thread ran or slept.
    pub(crate) fn own(self) -> Duration {
        self.elapsed - self.waited
    }
}

/// How long the calling thread has been ready to run so far while its CPU ran something else.
fn waited_for_cpu() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

fn meminfo_bytes(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    fields_kib(&text).get(name).map(|kib| kib * 1024)
}

/// The lines `Name:   123 kB` of a file under /proc.
fn fields_kib(text: &str) -> BTreeMap<&str, u64> {
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
    static RUNG: AtomicBool = AtomicBool::new(false);
    RUNG.store(false, Ordering::SeqCst);
    let (sender, woken) = std::sync::mpsc::channel();
    let sleeper = thread::spawn(move || {
        if pin_to(to).is_err() {
            return;
        }
        for _ in 0..WAKEUPS {
            while !RUNG.swap(false, Ordering::SeqCst) {
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
        RUNG.store(true, Ordering::SeqCst);
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
    fn what_cpus_keep_of_all_zones_is_added_up() {
        let zones = "Node 0, zone DMA\n  pages free 3840\n  pagesets\n    cpu: 0\n              count:    7\n\
                     \x20             high:     9\n    cpu: 1\n              count:    0\n\
                     Node 0, zone Normal\n  pagesets\n    cpu: 0\n              count:    60044\n";
        let pages = 60044 + 7;
        assert_eq!(
            kept_by_cpus_bytes(zones),
            pages * rustix::param::page_size() as u64
        );
        assert_eq!(kept_by_cpus_bytes(""), 0);
    }

    #[test]
    fn private_dirty_memory_follows_what_is_touched() {
        const TOUCHED: usize = 32 << 20;
        let mut memory =
            crate::mapping::Mapping::new(TOUCHED, crate::mapping::Backing::Default).unwrap();
        let before = private_dirty_bytes().unwrap();
        memory.fill(1);
        let grown = private_dirty_bytes().unwrap() - before;
        // Other tests of this process touch memory meanwhile.
        assert!(grown > TOUCHED as u64 / 2, "{grown}");
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

    /// Two threads on one CPU: each runs half the time, and the stopwatch knows.
    #[test]
    fn time_that_another_thread_had_the_cpu_is_told_apart() {
        if waited_for_cpu().is_none() {
            return;
        }
        let cpu = allowed_cpus()[0];
        let spin = move || {
            pin_to(cpu).unwrap();
            let stopwatch = Stopwatch::start();
            let until = Instant::now() + Duration::from_millis(200);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            stopwatch.stop()
        };
        let other = thread::spawn(spin);
        let lap = thread::spawn(spin).join().unwrap();
        other.join().unwrap();
        assert!(lap.waited > lap.elapsed / 10, "{lap:?}");
        assert!(lap.own() > Duration::ZERO);
    }
}
