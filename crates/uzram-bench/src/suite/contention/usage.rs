//! CPU time of a thread, in user space and in the kernel.

use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// To the moment.
    total: Duration,
    /// In user space and in the kernel, as of some milliseconds ago: their proportion is what is used.
    parts: [Duration; 2],
}

impl Usage {
    /// The calling thread's.
    pub(crate) fn of_thread() -> Usage {
        let total = clock_gettime(ClockId::ThreadCPUTime);
        let total = Duration::try_from(total).unwrap_or_default();
        Usage {
            total,
            parts: parts().unwrap_or_default(),
        }
    }

    /// What was used since `before`, in user space and in the kernel. The sum is exact.
    pub(crate) fn since(self, before: Usage) -> [Duration; 2] {
        let total = self.total.saturating_sub(before.total);
        let [user, system] = [0, 1].map(|part| self.parts[part].saturating_sub(before.parts[part]));
        let both = (user + system).as_secs_f64();
        let system = match both > 0.0 {
            true => total.mul_f64(system.as_secs_f64() / both),
            false => Duration::ZERO,
        };
        [total - system.min(total), system]
    }
}

/// What the system tells of the calling thread in user space and in the kernel; `None` where it does not.
fn parts() -> Option<[Duration; 2]> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills the structure behind the pointer, which is as large as it expects.
    let status = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: zeroed, which is valid for its integers, and filled where the call succeeded.
    let usage = unsafe { usage.assume_init() };
    (status == 0).then(|| [duration(usage.ru_utime), duration(usage.ru_stime)])
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let microseconds = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(microseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_uses_cpu_and_a_sleeping_one_does_not() {
        let before = Usage::of_thread();
        std::thread::sleep(Duration::from_millis(30));
        let [user, system] = Usage::of_thread().since(before);
        assert!(
            user + system < Duration::from_millis(20),
            "{user:?} {system:?}"
        );
        let mut word = 1u64;
        loop {
            (0..1_000_000).for_each(|_| word = std::hint::black_box(word.wrapping_mul(3)));
            let [user, system] = Usage::of_thread().since(before);
            if user + system > Duration::from_millis(50) {
                assert!(user > system, "{user:?} {system:?}");
                return;
            }
        }
    }

    /// Far less than a tick.
    #[test]
    fn the_sum_is_exact_for_short_times() {
        let before = Usage::of_thread();
        let until = std::time::Instant::now() + Duration::from_millis(2);
        while std::time::Instant::now() < until {
            std::hint::spin_loop();
        }
        let [user, system] = Usage::of_thread().since(before);
        assert!(
            user + system > Duration::from_micros(20),
            "{user:?} {system:?}"
        );
    }
}
