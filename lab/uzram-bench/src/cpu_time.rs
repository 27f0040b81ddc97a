//! CPU time that a process has used, in user mode and in the kernel.

use std::fs;
use std::mem::MaybeUninit;
use std::time::Duration;

use crate::error::{Error, Result};

/// In which `/proc` counts; the kernel's own clock may be another.
const TICKS_PER_SECOND: u32 = 100;

/// Seconds of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTime {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

impl CpuTime {
    /// Of this process so far, all threads, also those that have ended.
    pub(crate) fn now() -> Result<CpuTime> {
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the kernel writes one rusage to where the pointer points.
        let status = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
        if status != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Error::io("CPU time", error));
        }
        // SAFETY: the call succeeded, so all of it is written.
        let usage = unsafe { usage.assume_init() };
        Ok(CpuTime {
            user: duration(usage.ru_utime),
            system: duration(usage.ru_stime),
        })
    }

    /// Of another process, to a tick of the system's clock (10 ms); none once it has ended.
    pub(crate) fn of_process(pid: u32) -> CpuTime {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The second field is the program's name in parentheses, which may hold anything.
        let after = text.rsplit_once(')').map_or("", |(_, after)| after);
        let mut ticks = after.split_whitespace().skip(11).map(|field| {
            let ticks = field.parse::<u32>().unwrap_or(0);
            Duration::from_secs(1) * ticks / TICKS_PER_SECOND
        });
        CpuTime {
            user: ticks.next().unwrap_or_default(),
            system: ticks.next().unwrap_or_default(),
        }
    }

    pub(crate) fn plus(self, other: CpuTime) -> CpuTime {
        CpuTime {
            user: self.user + other.user,
            system: self.system + other.system,
        }
    }

    pub(crate) fn since(self, before: CpuTime) -> CpuTime {
        CpuTime {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_takes_user_time_of_this_process_and_of_its_entry_in_proc() {
        let before = CpuTime::now().unwrap();
        let until = Instant::now() + Duration::from_millis(60);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let used = CpuTime::now().unwrap().since(before);
        assert!(
            used.user + used.system > Duration::from_millis(5),
            "{used:?}"
        );
        let listed = CpuTime::of_process(std::process::id());
        assert!(listed.user + listed.system > Duration::ZERO);
        assert_eq!(CpuTime::of_process(u32::MAX), CpuTime::default());
    }
}
