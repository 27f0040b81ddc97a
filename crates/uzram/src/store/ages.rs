//! Ages of pages: the second of each page's last access, in 4 bytes per page, in stores that were asked to keep them.
//!
//! The clock is the system's coarse one, which costs some nanoseconds and does not count time asleep.

use rustix::time::{ClockId, clock_gettime};

use super::side_table::SideTable;
use crate::page::PageIndex;
use crate::sync::Ordering;

/// The second of the last access of each page, since the system was started.
#[derive(Debug)]
pub(super) struct Ages {
    pub(super) accessed_s: SideTable,
    /// Added to the clock.
    #[cfg(test)]
    pub(super) ahead_s: std::sync::atomic::AtomicU32,
}

impl Ages {
    pub(super) fn new(accessed_s: SideTable) -> Ages {
        Ages {
            accessed_s,
            #[cfg(test)]
            ahead_s: std::sync::atomic::AtomicU32::new(0),
        }
    }

    /// Notes an access, while the slot is locked.
    #[inline]
    pub(super) fn note(&self, index: PageIndex) {
        let cell = self.accessed_s.cell(index);
        cell.store(self.now_s(), Ordering::Relaxed);
    }

    pub(super) fn last_s(&self, index: PageIndex) -> u32 {
        self.accessed_s.cell(index).load(Ordering::Relaxed)
    }

    /// Seconds fit for 136 years.
    pub(super) fn now_s(&self) -> u32 {
        let now_s = clock_gettime(ClockId::MonotonicCoarse).tv_sec as u32;
        #[cfg(test)]
        let now_s = now_s + self.ahead_s.load(std::sync::atomic::Ordering::Relaxed);
        now_s
    }
}
