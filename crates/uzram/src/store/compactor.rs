//! The state of a compaction.

use crate::pool::{Aim, Mover, Victims};

/// Most choices of victims for either aim when compaction is asked for.
const ROUNDS_MAX: usize = 256;

/// The state of a compaction between steps.
#[derive(Debug, Default)]
pub(super) struct Compactor {
    pub(super) victims: Victims,
    pub(super) mover: Mover,
    pub(super) aim: Aim,
    /// The slot to look at next.
    pub(super) next: u64,
    /// Choices of victims that are left; 0 unless compaction was asked for.
    pub(super) rounds_left: usize,
    /// The last sweep gained next to nothing.
    pub(super) is_fruitless: bool,
    /// The waste that was left when compaction last found nothing to do.
    pub(super) hopeless_bytes: u64,
}

impl Compactor {
    pub(super) fn is_running(&self) -> bool {
        !self.victims.is_empty()
    }

    pub(super) fn begin(&mut self, aim: Aim) {
        self.aim = aim;
        self.rounds_left = ROUNDS_MAX;
        self.is_fruitless = false;
    }
}
