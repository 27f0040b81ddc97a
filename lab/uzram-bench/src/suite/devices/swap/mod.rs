//! The case `swap`: a program with more strings than its memory cgroup allows swaps to our disk, to a
//! loop device over tmpfs, which stores nothing compressed and asks no process, and to the kernel's
//! zram.
//!
//! `swap-busy` is the same beside a busy loop per CPU and with our server started at nice 19.
//!
//! Each turn sets its swap up, runs the program once, and takes the swap down. The program is never
//! outside of a cgroup, and nothing is swapped to while the machine has other swap or little memory.

pub(crate) mod area;
mod program;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::error::{Error, Result};
use crate::figures::{Cell, Metric};
use crate::folder::{GROUPS, Group};
use crate::machine;
use crate::peers::{Missing, Peer};
use crate::progress::Progress;
use crate::report::{Block, Findings};
use crate::side::{Side, ours_over_theirs};
use crate::suite::Options;
use crate::suite::turns::{Runs, Turns};
use area::Kind;

/// Bytes of strings, and bytes of memory for the program; with --quick the smaller ones.
const LOADS: [(u64, u64); 2] = [(475_000_000, 200 << 20), (160_000_000, 64 << 20)];
/// The area's size over the strings'.
const AREA_FACTOR: u64 = 2;
/// Free memory over the strings' size that the machine must have.
const FREE_FACTOR: u64 = 4;
/// Runs beside busy programs: that swap is steady is seen in many.
const BUSY_RUNS: usize = 10;
const METRICS: [Metric; 3] = [("allocation", "s"), ("two_scans", "s"), ("touches", "s")];

/// The load beside which the program is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    BusyLoops,
}

/// Runs the swapping program if the hidden option asks for it.
pub(super) fn child(option: Option<&str>) -> Option<Result<()>> {
    option.map(program::child)
}

/// Runs the case; on a machine that cannot, it is missing with the reason.
pub(super) fn run(
    options: &Options,
    algorithm: &str,
    beside: Beside,
    findings: &mut Findings,
) -> Result<()> {
    let case = beside.case();
    let load @ (bytes, limit_bytes) = LOADS[usize::from(options.quick)];
    let group = match refusal(bytes).map_or_else(|| group(limit_bytes), Err) {
        Ok(group) => group,
        Err(error) => {
            findings.missing.push(Missing::new(case, error));
            return Ok(());
        }
    };
    let area_bytes = bytes * AREA_FACTOR;
    let mut block = Block {
        title: title(algorithm, beside, load),
        ..Block::default()
    };
    let mut sides = Vec::new();
    for kind in beside.kinds(options) {
        options.stop.check()?;
        let side = Side::new(kind.variant(algorithm), kind);
        match kind.on(algorithm, area_bytes) {
            Ok(_area) => block.notes.extend(kind.note(&side.name)),
            Err(error) => {
                findings.missing.push(Missing::new(&side.name, error));
                continue;
            }
        }
        sides.push(side);
    }
    // Every turn has a new area, so there is nothing to warm up.
    let turns = Turns {
        warms_up: false,
        ..Turns::of(case, sides.len(), beside.runs())
    };
    let series = turns.take(options, &mut Progress::new(1), |turn| {
        let _area = sides[turn.side].driven.on(algorithm, area_bytes)?;
        let _busy = (beside == Beside::BusyLoops).then(BusyLoops::start);
        program::run(bytes, &group.processes(), &options.stop)
    })?;
    for (at, metric) in METRICS.into_iter().enumerate() {
        let of_metric: Vec<_> = series.iter().map(|series| series[at].clone()).collect();
        let cell = Cell::new(case, metric, bytes);
        cell.add_all(
            &Side::names(&sides),
            &of_metric,
            ours_over_theirs,
            &mut block,
        );
    }
    findings.blocks.push(block);
    Ok(())
}

/// A memory cgroup for the program. Nothing that swaps runs outside of one.
///
/// # Errors
/// Why this machine has none, in a line.
pub(crate) fn group(limit_bytes: u64) -> Result<Group> {
    let mut why = "there is none".to_owned();
    for (root, limit) in GROUPS {
        match Group::below(root.as_ref(), limit, limit_bytes) {
            Ok(group) => return Ok(group),
            Err(error) => why = error.to_string(),
        }
    }
    Err(Error::Failed(format!(
        "needs a memory cgroup of its own (version 1 at {}, or 2 with `memory` in \
         cgroup.subtree_control): {why}",
        GROUPS[0].0
    )))
}

impl Beside {
    fn case(self) -> &'static str {
        match self {
            Beside::Nothing => "swap",
            Beside::BusyLoops => "swap-busy",
        }
    }

    fn runs(self) -> Runs {
        match self {
            Beside::Nothing => Runs::Few,
            Beside::BusyLoops => Runs::Exactly(BUSY_RUNS),
        }
    }

    fn kinds(self, options: &Options) -> Vec<Kind> {
        let is_niced = self == Beside::BusyLoops;
        let ours = [false, true].map(|zswap| Kind::Uzram { zswap, is_niced });
        let tmpfs = (Peer::TmpfsLoop, Kind::TmpfsLoop);
        let peers = [tmpfs, (Peer::KernelZram, Kind::KernelZram)];
        let peers = peers.into_iter().filter(|(peer, _)| options.against(*peer));
        ours.into_iter()
            .chain(peers.map(|(_, kind)| kind))
            .collect()
    }
}

/// Why nothing may be swapped to here.
pub(crate) fn refusal(bytes: u64) -> Option<Error> {
    let needed = bytes * FREE_FACTOR;
    let why = if !rustix::process::geteuid().is_root() {
        "needs root; try sudo".to_owned()
    } else if let Some(other) = area::other_swap() {
        format!("the machine swaps to {other}; swapoff that first")
    } else if machine::available_memory_bytes().is_none_or(|bytes| bytes < needed) {
        format!("needs {} MiB of free memory", needed >> 20)
    } else {
        return None;
    };
    Some(Error::Failed(why))
}

fn title(algorithm: &str, beside: Beside, (bytes, limit_bytes): (u64, u64)) -> String {
    let beside = match beside {
        Beside::Nothing => "",
        Beside::BusyLoops => ", beside a busy loop per CPU, uzram started at nice 19",
    };
    format!(
        "{algorithm}: swap of {} MB of strings in a memory cgroup of {} MiB{beside}",
        bytes / 1_000_000,
        limit_bytes >> 20
    )
}

/// A busy loop per CPU, until it is dropped.
struct BusyLoops {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyLoops {
    fn start() -> BusyLoops {
        let is_over = Arc::new(AtomicBool::new(false));
        let start_one = |_cpu| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = machine::allowed_cpus().into_iter().map(start_one).collect();
        BusyLoops { is_over, threads }
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_swapped_where_memory_is_short() {
        let refused = refusal(u64::MAX / FREE_FACTOR).unwrap().to_string();
        assert!(!refused.contains('\n'), "{refused}");
    }
}
