//! Memory that parents and children have in common, which is to be counted once.
//!
//! Only a walk of all pages tells how much it is. Between two walks a process's growth is its own, and a child's first memory is its
//! parent's.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::process;

/// A walk of all pages takes at most one part in so many of the time.
const WALK_PART: u32 = 10;

/// Bytes of each large process that are counted with others.
#[derive(Debug)]
pub(crate) struct Common {
    bytes: BTreeMap<i32, u64>,
    next_walk: Instant,
}

impl Common {
    /// Nothing is in common yet.
    pub(crate) fn new() -> Common {
        Common {
            bytes: BTreeMap::new(),
            next_walk: Instant::now(),
        }
    }

    /// Bytes of process `pid` that are counted with others.
    pub(crate) fn of(&self, pid: i32) -> u64 {
        self.bytes.get(&pid).copied().unwrap_or(0)
    }

    /// Looks at the large processes, each with its anonymous bytes in memory.
    pub(crate) fn look(&mut self, large: &[(i32, u64)], now: Instant) {
        if let [_] | [] = large {
            self.bytes.clear();
            return;
        }
        if now >= self.next_walk {
            self.walk(large);
            self.next_walk = now + now.elapsed() * WALK_PART;
            return;
        }
        let is_large = |pid: i32| large.iter().any(|(other, _)| *other == pid);
        self.bytes.retain(|pid, _| is_large(*pid));
        for (pid, its) in large {
            let is_child = || process::parent(*pid).is_some_and(is_large);
            if !self.bytes.contains_key(pid) && is_child() {
                self.bytes.insert(*pid, *its);
            }
        }
    }

    fn walk(&mut self, large: &[(i32, u64)]) {
        let common = |(pid, its): &(i32, u64)| {
            let part = process::anonymous_part_bytes(*pid).unwrap_or(*its);
            (*pid, its.saturating_sub(part))
        };
        self.bytes = large.iter().map(common).collect();
    }
}
