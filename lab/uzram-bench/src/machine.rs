//! Memory and CPU time of this process by the system's count, and pinning.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::error::{Error, Result};

pub(crate) use uzram_advise::machine::{Machine, allowed_cpus, pin_to, restrict_to};
use uzram_advise::machine::{fields_kib, meminfo_bytes};

/// Lets all threads of another process, and those they start from now on, run on `cpus` only.
pub fn restrict_process_to(pid: u32, cpus: &[usize]) -> Result<()> {
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
pub fn available_memory_bytes() -> Option<u64> {
    meminfo_bytes("MemAvailable")
}

/// Memory that nobody uses, in bytes; `None` where the system does not say.
///
/// That is `MemFree` and what the CPUs keep of freed pages for themselves, which `MemFree` lacks: a third of
/// a gigabyte, where one came back in pages of 4 KiB.
pub fn free_memory_bytes() -> Option<u64> {
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
pub fn private_dirty_bytes() -> Result<u64> {
    let path = "/proc/self/smaps_rollup";
    let text = fs::read_to_string(path).map_err(|error| Error::io(path, error))?;
    let fields = fields_kib(&text);
    let of = |name: &str| fields.get(name).copied().unwrap_or(0);
    Ok((of("Private_Dirty") + of("Private_Hugetlb")) * 1024)
}

/// Takes the time of the thread that starts it, and of what kept that thread from running.
pub struct Stopwatch {
    waited: Option<Duration>,
    started: Instant,
}

/// The reading of a stopwatch.
#[derive(Clone, Copy, Debug)]
pub struct Lap {
    pub elapsed: Duration,
    /// The part in which the thread was ready to run and its CPU ran something else; zero where
    /// the kernel does not say.
    pub waited: Duration,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch {
            waited: waited_for_cpu(),
            started: Instant::now(),
        }
    }

    pub fn stop(self) -> Lap {
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
    pub fn own(self) -> Duration {
        self.elapsed - self.waited
    }
}

/// How much of the measured time other processes had the CPU. It is taken off every turn, yet the caches
/// were shared with them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lost {
    measured: Duration,
    waited: Duration,
}

/// Part of the time lost to other processes from which on a block is marked.
pub const BUSY: f64 = 0.02;

impl Lost {
    pub fn add(&mut self, lap: Lap) {
        self.measured += lap.elapsed;
        self.waited += lap.waited;
    }

    pub fn part(&self) -> f64 {
        self.waited.as_secs_f64() / self.measured.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The note on a block that lost much.
    pub fn note(&self) -> Option<String> {
        let percent = self.part() * 100.0;
        (self.part() > BUSY).then(|| {
            format!(
                "BUSY MACHINE: other processes had the CPU for {percent:.0} % of the time; do not quote"
            )
        })
    }
}

/// How long the calling thread has been ready to run so far while its CPU ran something else.
fn waited_for_cpu() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

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
