//! One value per CPU.
//!
//! A CPU's number is a hint: the thread may move at any moment, and numbers can exceed the count
//! (sparse ids, changed cpusets). So everything indexed by it is shared and locked or atomic.

use crossbeam_utils::CachePadded;
use uzram::Result;

use crate::memory;

/// The CPU that runs this thread right now.
pub(crate) fn current() -> usize {
    rustix::thread::sched_getcpu()
}

/// The number of CPUs that this process may run on now, at least 1.
pub(crate) fn usable() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Several `T`s, each on cache lines of its own, handed out by CPU.
#[derive(Debug)]
pub(crate) struct PerCpu<T> {
    items: Box<[CachePadded<T>]>,
}

impl<T> PerCpu<T> {
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
    pub(crate) fn current(&self) -> &T {
        &self.items[current() % self.items.len()]
    }

    /// All values: the current CPU's first, then its neighbours' in turn.
    pub(crate) fn nearest_first(&self) -> impl Iterator<Item = &T> {
        let (before, from) = self.items.split_at(current() % self.items.len());
        from.iter().chain(before).map(|item| &**item)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().map(|item| &**item)
    }
}
