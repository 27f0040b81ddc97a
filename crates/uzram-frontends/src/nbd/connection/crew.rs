//! The number of threads that carry out requests, over all connections of a server. Another thread
//! is called only while a CPU may be free for it.

use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug)]
pub(crate) struct Crew {
    cpus: usize,
    working: AtomicUsize,
}

/// A thread that carries out requests. It counts until this is dropped.
pub(super) struct Working<'a>(&'a Crew);

impl Crew {
    pub(super) fn begin(&self) -> Working<'_> {
        self.working.fetch_add(1, Ordering::Relaxed);
        Working(self)
    }

    /// Whether fewer threads work than there are CPUs: a guess, as they begin and end meanwhile.
    pub(super) fn has_room(&self) -> bool {
        self.working.load(Ordering::Relaxed) < self.cpus
    }
}

impl Default for Crew {
    fn default() -> Crew {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Crew {
            // With a single CPU a second thread still goes on where the first blocks.
            cpus: cpus.max(2),
            working: AtomicUsize::new(0),
        }
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_until_every_cpu_has_a_thread() {
        let crew = Crew {
            cpus: 2,
            working: AtomicUsize::new(0),
        };
        let first = crew.begin();
        assert!(crew.has_room());
        let second = crew.begin();
        assert!(!crew.has_room());
        drop(first);
        assert!(crew.has_room());
        drop(second);
        assert_eq!(crew.working.load(Ordering::Relaxed), 0);
    }
}
