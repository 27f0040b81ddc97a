//! The pages that a pass over cold pages takes, and their order.
//!
//! A pass sweeps over the slot words without their locks, and looks again once it has a slot's lock. If only some pages
//! may go, those with the largest objects go first, to [`STEP_BYTES`]: one sweep counts the sizes, two more visit.

use std::ops::ControlFlow;

use super::StoreWith;
use super::layout::Seen;
use super::lock::SlotLock;
use crate::codec::streams::{Stream, StreamPolicy};
use crate::error::Result;
use crate::memory;
use crate::page::{PageIndex, PageState};

/// Objects are told apart by their sizes in steps of this many bytes.
const STEP_BYTES: usize = 64;

/// Pages by what is known of them, of those that have an object in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColdPages {
    /// All of them.
    #[default]
    All,
    /// Those marked idle and not accessed since.
    Idle,
    /// Those kept raw, because compressing them did not pay.
    Huge,
    /// Those that are both.
    HugeIdle,
    /// Those that recompression did not make smaller.
    Incompressible,
}

impl ColdPages {
    pub(super) fn has(self, seen: Seen) -> bool {
        let is_huge = seen.state() == PageState::Raw;
        let flags = seen.flags();
        seen.has_object()
            && match self {
                ColdPages::All => true,
                ColdPages::Idle => flags.is_idle(),
                ColdPages::Huge => is_huge,
                ColdPages::HugeIdle => is_huge && flags.is_idle(),
                ColdPages::Incompressible => flags.is_incompressible(),
            }
    }
}

impl<L: SlotLock, S: StreamPolicy<Stream>> StoreWith<L, S> {
    /// Calls `visit` for each page that is wanted, until it breaks: in their order, or the largest objects first if
    /// about `pages_max` of them are visited.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(super) fn visit_cold(
        &self,
        pages_max: Option<u64>,
        is_wanted: impl Fn(Seen) -> bool,
        mut visit: impl FnMut(PageIndex) -> ControlFlow<()>,
    ) -> Result<()> {
        let Some(pages_max) = pages_max else {
            let _ = self.sweep(&is_wanted, visit);
            return Ok(());
        };
        let least = self.least_step(pages_max, &is_wanted)?;
        let larger = |seen: Seen| is_wanted(seen) && step(seen) > least;
        if self.sweep(larger, &mut visit).is_continue() {
            let _ = self.sweep(|seen| is_wanted(seen) && step(seen) == least, visit);
        }
        Ok(())
    }

    fn sweep(
        &self,
        is_wanted: impl Fn(Seen) -> bool,
        mut visit: impl FnMut(PageIndex) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut next = 0;
        while let Some((index, _)) = self.seen_from(next, &is_wanted) {
            visit(index)?;
            next = index.0 + 1;
        }
        ControlFlow::Continue(())
    }

    /// The step of sizes that the last of the `pages_max` largest wanted objects has.
    fn least_step(&self, pages_max: u64, is_wanted: impl Fn(Seen) -> bool) -> Result<usize> {
        let mut counts = memory::boxed_slice(self.unit.bytes() / STEP_BYTES + 1, 0_u64)?;
        let mut next = 0;
        while let Some((index, seen)) = self.seen_from(next, &is_wanted) {
            counts[step(seen).min(self.unit.bytes() / STEP_BYTES)] += 1;
            next = index.0 + 1;
        }
        let mut sum = 0;
        let reached = counts.iter().rposition(|count| {
            sum += count;
            sum >= pages_max
        });
        Ok(reached.unwrap_or(0))
    }
}

fn step(seen: Seen) -> usize {
    seen.size_bytes() / STEP_BYTES
}
