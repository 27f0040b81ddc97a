//! Stays on the CPU of the thread that faults: waking a thread on another CPU that sleeps costs six times as much.
//!
//! The system tells which thread faulted and not where it runs. So that is looked up now and then.

use std::fs::File;
use std::io::Read;

use rustix::thread::CpuSet;

/// Faults from one look to the next: few after a change, then twice as many each time.
const FAULTS_MIN: u32 = 4;
const FAULTS_MAX: u32 = 4096;
/// The field of a thread's `stat` behind the name that has the CPU of the thread, counted from 0.
const FIELD: usize = 36;
const STAT_BYTES_MAX: usize = 1024;

/// Where this thread is bound to, and when to look again.
#[derive(Debug)]
pub(super) struct Follow {
    /// The directory of the threads that fault.
    threads: &'static str,
    cpu: Option<usize>,
    /// The last one that faulted, and its faults in a row.
    thread: u32,
    faults: u32,
    wait: u32,
}

impl Follow {
    pub fn new(threads: &'static str) -> Follow {
        Follow {
            threads,
            cpu: None,
            thread: 0,
            faults: 0,
            wait: 1,
        }
    }

    /// Notes a fault of `thread`, and binds this thread to that one's CPU if it is time to look. If this thread has given
    /// way to the other they share a CPU. True: the other has left this CPU. Threads that take turns are not followed: going from
    /// one's CPU to another's costs more than what is won.
    pub fn answered(&mut self, thread: u32, gave_way: bool) -> bool {
        if thread != self.thread {
            (self.thread, self.faults) = (thread, 0);
        }
        if gave_way {
            (self.faults, self.wait) = (0, FAULTS_MIN);
            return false;
        }
        self.faults += 1;
        if self.faults < self.wait {
            return false;
        }
        self.faults = 0;
        let cpu = cpu_of(self.threads, thread);
        if cpu.is_none() || cpu == self.cpu {
            self.wait = (2 * self.wait).clamp(FAULTS_MIN, FAULTS_MAX);
            return false;
        }
        self.wait = FAULTS_MIN;
        let was_known = self.cpu.is_some();
        self.cpu = cpu.filter(|cpu| bind(*cpu));
        was_known
    }
}

/// Whether this thread may run there, and does from now on.
fn bind(cpu: usize) -> bool {
    if cpu >= CpuSet::MAX_CPU {
        return false;
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).is_ok()
}

/// The CPU on which `thread` ran last.
fn cpu_of(threads: &str, thread: u32) -> Option<usize> {
    let mut buffer = [0; STAT_BYTES_MAX];
    let mut file = File::open(format!("{threads}/{thread}/stat")).ok()?;
    let length = file.read(&mut buffer).ok()?;
    parse(&buffer[..length])
}

/// The name may have blanks and parentheses.
fn parse(stat: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(&stat[stat.iter().rposition(|byte| *byte == b')')? + 1..]);
    text.ok()?.split_ascii_whitespace().nth(FIELD)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_of_this_thread_is_found() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let set = rustix::thread::sched_getaffinity(None).unwrap();
        for threads in ["/proc/self/task", "/proc"] {
            let cpu = cpu_of(threads, thread).unwrap();
            assert!(cpu < CpuSet::MAX_CPU && set.is_set(cpu), "{cpu}");
            assert_eq!(cpu_of(threads, 0), None);
        }
    }

    #[test]
    fn a_name_with_blanks_and_parentheses_is_passed_over() {
        let mut stat = b"7 (a) b (c) S".to_vec();
        (4..FIELD + 8).for_each(|n| stat.extend_from_slice(format!(" {n}").as_bytes()));
        assert_eq!(parse(&stat), Some(39));
        assert_eq!(parse(b"7 (a"), None);
        assert_eq!(parse(b"7 (a) S 1 2"), None);
    }
}
