//! The memories that are compared, and the machine's part in them: swap, its memory cgroup, its setting.

use std::fs;

use uzram_pager::{CompressedMemory, FaultHandler};

use super::program::{self, Memory, Plan, Work};
use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::folder::{Folder, PAGE_CLUSTER};
use crate::peers::{Missing, Peer};
use crate::side::Side;
use crate::stop::Stop;
use crate::suite::devices::swap;
use crate::suite::{Options, SUBJECT};
use swap::area::{Area, Kind as SwapKind};

/// The codec of swap, whatever ours is.
const SWAP_ALGORITHM: &str = "lz4";
/// The area's size over the pages'.
const AREA_FACTOR: u64 = 2;
/// Attempts of a turn.
const TRIES_MAX: usize = 20;
/// Room of a cgroup beyond the pages that are to fit: for tables of pages and stacks, and for what each CPU charges ahead.
const BESIDE_BYTES: u64 = 1 << 20;

/// A memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ours {
        algorithm: String,
        handler: FaultHandler,
    },
    KernelZramSwap,
    LoopSwap,
    Small,
    Huge,
}

impl Kind {
    /// Whether its pages can leave.
    pub(super) fn swaps(&self) -> bool {
        !matches!(self, Kind::Small | Kind::Huge)
    }

    fn memory(&self) -> Memory {
        match self {
            Kind::Ours { handler, .. } => match handler {
                FaultHandler::OwnThread => Memory::Compressed,
                FaultHandler::FaultingThread => Memory::CompressedBySigbus,
            },
            Kind::KernelZramSwap | Kind::LoopSwap => Memory::Swapped,
            Kind::Small => Memory::Small,
            Kind::Huge => Memory::Huge,
        }
    }

    /// Starts swapping, where it needs that.
    fn area(&self, pages: usize) -> Result<Option<Area>> {
        let kind = match self {
            Kind::KernelZramSwap => SwapKind::KernelZram,
            Kind::LoopSwap => SwapKind::Uzram {
                zswap: false,
                is_niced: false,
            },
            Kind::Ours { .. } | Kind::Small | Kind::Huge => return Ok(None),
        };
        let bytes = (pages * PAGE_BYTES) as u64 * AREA_FACTOR;
        kind.on(SWAP_ALGORITHM, bytes).map(Some)
    }
}

/// Ours with each algorithm, and the peers that this machine has.
pub(super) fn all(options: &Options, missing: &mut Vec<Missing>) -> Vec<Side<Kind>> {
    let ours = options.algorithms.iter().flat_map(|algorithm| {
        let handlers = [
            (FaultHandler::OwnThread, ""),
            (FaultHandler::FaultingThread, "-sigbus"),
        ];
        handlers.map(|(handler, suffix)| {
            let algorithm = algorithm.clone();
            let name = format!("{SUBJECT}-{algorithm}{suffix}");
            Side::new(name, Kind::Ours { algorithm, handler })
        })
    });
    let mut sides: Vec<Side<Kind>> = ours.collect();
    for peer in &options.peers {
        let kind = match peer {
            Peer::KernelZramSwap => Kind::KernelZramSwap,
            Peer::LoopSwap => Kind::LoopSwap,
            Peer::SmallPages => Kind::Small,
            _ => Kind::Huge,
        };
        match can_be(&kind) {
            Ok(()) => sides.push(Side::new(peer.name(), kind)),
            Err(error) => missing.push(Missing::new(peer.name(), error)),
        }
    }
    sides
}

fn can_be(kind: &Kind) -> Result<()> {
    if kind.memory() != Memory::Swapped {
        return Ok(());
    }
    swap::refusal(BESIDE_BYTES).map_or(Ok(()), Err)?;
    swap::group(BESIDE_BYTES)?;
    kind.area(1 << 10).map(drop)
}

/// Why this machine has no compressed memory, if so.
pub(super) fn refusal_of_ours() -> Option<Error> {
    let refused = CompressedMemory::new(1, 1 << 20).err()?;
    Some(Error::Failed(refused.to_string()))
}

/// One turn: the program with `plan`, in the memory of `side`, and how many times the kernel killed it before. It does so
/// now and then where all pages of a small cgroup are in use.
///
/// # Errors
/// The program's; what could not be set up; that it was killed [`TRIES_MAX`] times.
pub(super) fn turn<const N: usize>(
    side: &Side<Kind>,
    plan: &Plan,
    source: &[u8],
    stop: &Stop,
) -> Result<([f64; N], usize)> {
    let kind = &side.driven;
    let area = kind.area(plan.pages)?;
    // Where MADV_PAGEOUT makes pages leave, there is memory for all of them.
    let fits = match plan.work {
        Work::Patterns { .. } => plan.budget_pages,
        Work::Faults | Work::Fits { .. } => AREA_FACTOR as usize * plan.pages,
    };
    let bytes = (fits * PAGE_BYTES) as u64 + BESIDE_BYTES;
    let group = area.is_some().then(|| swap::group(bytes)).transpose()?;
    let algorithm = match kind {
        Kind::Ours { algorithm, .. } => algorithm.as_str(),
        _ => "",
    };
    let plan = Plan {
        memory: kind.memory(),
        algorithm: algorithm.to_owned(),
        group: group.as_ref().map(|group| group.processes()),
        ..plan.clone()
    };
    for killed in 0..TRIES_MAX {
        if let Some(figures) = program::run(&plan, source, stop)? {
            return Ok((figures, killed));
        }
    }
    let text = format!("{}: its program was killed {TRIES_MAX} times", side.name);
    Err(Error::Failed(text))
}

/// The system reads no page ahead from swap, until this is dropped.
#[derive(Debug)]
pub(super) struct PageCluster {
    before: String,
    /// Has what was before, for the run that undoes this one if it is killed.
    _folder: Folder,
}

impl PageCluster {
    /// None where this user may not say so, or it is said: by another run, perhaps, which undoes it.
    pub(super) fn none() -> Result<Option<PageCluster>> {
        let Ok(before) = fs::read_to_string(PAGE_CLUSTER.1) else {
            return Ok(None);
        };
        if before.trim() == "0" {
            return Ok(None);
        }
        let folder = Folder::new()?;
        let kept = fs::write(folder.path().join(PAGE_CLUSTER.0), &before);
        kept.map_err(|error| Error::io(folder.path().display(), error))?;
        let set = fs::write(PAGE_CLUSTER.1, "0");
        Ok(set.is_ok().then_some(PageCluster {
            before,
            _folder: folder,
        }))
    }
}

impl Drop for PageCluster {
    fn drop(&mut self) {
        // It was written before.
        let _ = fs::write(PAGE_CLUSTER.1, &self.before);
    }
}
