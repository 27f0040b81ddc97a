//! The current CPU, and values per CPU.
//!
//! A CPU number is a hint: the thread may move at any moment, and ids can exceed the count (sparse
//! ids, changed cpusets). So everything indexed by it is shared and locked or atomic.

#![allow(unsafe_code)]

use std::ops::Range;

use crossbeam_utils::CachePadded;

use crate::error::Result;
use crate::memory;

/// Of a cache, in bytes.
const LINE_BYTES: usize = 64;

/// CPUs beyond this number share entries.
#[cfg(not(uzram_shuttle))]
pub(crate) const CPUS_MAX: usize = 1024;

/// The CPU that runs this thread right now.
#[inline]
pub(crate) fn current() -> usize {
    #[cfg(uzram_shuttle)]
    return usize::from(shuttle::current::me());
    #[cfg(not(uzram_shuttle))]
    {
        #[cfg(test)]
        if let Some(cpu) = pretend::CPU.get() {
            return cpu;
        }
        rustix::thread::sched_getcpu()
    }
}

/// Prefetches the cache line at `address`, while a lock is about to be waited for. Any address
/// will do.
#[inline]
pub(crate) fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint that never faults and changes nothing but caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Prefetches the cache lines at `addresses`, which need not be mapped.
#[inline]
pub(crate) fn prefetch_lines(addresses: Range<usize>) {
    addresses.step_by(LINE_BYTES).for_each(prefetch);
}

/// The number of CPUs that this machine may ever have online, from 1 to [`CPUS_MAX`].
pub(crate) fn possible() -> usize {
    #[cfg(uzram_shuttle)]
    return 2;
    #[cfg(not(uzram_shuttle))]
    {
        let listed = std::fs::read_to_string("/sys/devices/system/cpu/possible")
            .ok()
            .and_then(|text| possible_from_list(&text));
        // Without sysfs (an initramfs): what this process may run on; others share.
        let count =
            listed.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        count.clamp(1, CPUS_MAX)
    }
}

/// The number of CPUs that a list such as `0-3,8` spans: its highest id plus one.
#[cfg_attr(uzram_shuttle, allow(dead_code))]
fn possible_from_list(text: &str) -> Option<usize> {
    let ids = text.trim().split([',', '-']).map(|id| id.parse::<usize>());
    ids.collect::<Result<Vec<_>, _>>()
        .ok()?
        .into_iter()
        .max()?
        .checked_add(1)
}

/// One `T` for each possible CPU, each on cache lines of its own.
#[derive(Debug)]
pub(crate) struct PerCpu<T> {
    items: Box<[CachePadded<T>]>,
}

impl<T> PerCpu<T> {
    pub(crate) fn new(make: impl Fn() -> T) -> Result<PerCpu<T>> {
        PerCpu::with_count(possible(), make)
    }

    pub(crate) fn with_count(count: usize, make: impl Fn() -> T) -> Result<PerCpu<T>> {
        let mut items = Vec::new();
        for _ in 0..count.max(1) {
            memory::push(&mut items, CachePadded::new(make()))?;
        }
        Ok(PerCpu {
            items: items.into_boxed_slice(),
        })
    }

    /// The value of the current CPU.
    #[inline]
    pub(crate) fn current(&self) -> &T {
        &self.items[current() % self.items.len()]
    }

    /// All values, the current CPU's first, then its neighbours' in turn.
    pub(crate) fn nearest_first(&self) -> impl Iterator<Item = &T> {
        let (before, from) = self.items.split_at(current() % self.items.len());
        from.iter().chain(before).map(|item| &**item)
    }
}

/// Lets a test run on CPU numbers that the machine does not have.
#[cfg(test)]
pub(crate) mod pretend {
    use std::cell::Cell;

    thread_local! {
        pub(crate) static CPU: Cell<Option<usize>> = const { Cell::new(None) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_span_to_their_highest_id() {
        assert_eq!(possible_from_list("0-1\n"), Some(2));
        assert_eq!(possible_from_list("0"), Some(1));
        assert_eq!(possible_from_list("0-3,8-11\n"), Some(12));
        assert_eq!(possible_from_list(""), None);
        assert_eq!(possible_from_list("a-b"), None);
        assert_eq!(possible_from_list("18446744073709551615"), None);
    }

    #[test]
    fn an_id_above_the_count_finds_an_entry() {
        let counts = PerCpu::with_count(3, || 0u8).unwrap();
        for cpu in [0, 2, 3, 1023, usize::MAX] {
            pretend::CPU.set(Some(cpu));
            assert!(std::ptr::eq(
                counts.current(),
                counts.nearest_first().next().unwrap()
            ));
            assert_eq!(counts.nearest_first().count(), 3);
        }
        pretend::CPU.set(None);
    }
}
