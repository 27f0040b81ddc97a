//! Suite `devices`: block devices and files of this machine under fio.
//!
//! All sides are set up at once and filled with the same kind of data; fio runs on them in turn, a
//! run is one slice each, and ratios are taken run by run. Nothing is pinned: fio, a FUSE server and
//! the loop driver's threads are placed by the kernel, as they are for users.
//!
//! Disks of virtual machines have no device here: `guests` measures them with a client of ours. What
//! swap to a device costs a program, `swap` measures.

mod fio;
mod guests;
mod sides;
pub(crate) mod swap;

use std::time::Duration;

use crate::error::{Error, Result};
use crate::figures::Cell;
use crate::job::fio_program;
use crate::peers::{Missing, Peer};
use crate::progress::Progress;
use crate::report::{Block, Findings};
use crate::side::{Side, ours_over_theirs};
use crate::suite::nbd::lines::IOPS;
use crate::suite::turns::{Runs, Turns};
use crate::suite::{Options, Suite, Work};
use fio::Load;
use sides::Device;
use swap::Beside;

/// Size of each device, in bytes; with --quick the smaller one.
const DEVICE_BYTES: u64 = 512 << 20;
const QUICK_DEVICE_BYTES: u64 = 128 << 20;
const WARM_UP: Duration = Duration::from_millis(300);

/// The suite.
pub(crate) const SUITE: Suite<DevicesArgs> = Suite {
    name: "devices",
    peers: &Peer::DEVICES,
    algorithms: &["lz4"],
    corpus: None,
    work: Work::Timed,
    plan: |_, args| {
        let args = args.clone();
        Ok(Box::new(move |options, findings| {
            run(options, &args, findings)
        }))
    },
};

/// Arguments of this suite alone.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DevicesArgs {
    /// A part of the suite; repeatable. Default: all
    #[arg(long = "only", value_enum, value_name = "PART")]
    pub parts: Vec<Part>,
    /// Called by this program itself, as the program that swaps
    #[arg(long, hide = true, value_name = "BYTES:FILE")]
    pub swap_program: Option<String>,
}

/// A part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Disks of virtual machines
    Guests,
    /// Files and block devices under fio
    Fio,
    /// A program that swaps
    Swap,
    /// The same beside a busy loop per CPU
    SwapBusy,
}

/// Runs the part of the suite for which this program was started again, if it was.
pub(crate) fn child(args: &DevicesArgs) -> Option<Result<()>> {
    swap::child(args.swap_program.as_deref())
}

/// Runs the suite with the first of the algorithms.
fn run(options: &Options, args: &DevicesArgs, findings: &mut Findings) -> Result<()> {
    let algorithm = options.algorithms.first().map_or("lz4", String::as_str);
    let wants = |part| args.parts.is_empty() || args.parts.contains(&part);
    if wants(Part::Guests) {
        guests::run(options, algorithm, findings)?;
    }
    if wants(Part::Fio) {
        under_fio(options, algorithm, findings)?;
    }
    if wants(Part::Swap) {
        swap::run(options, algorithm, Beside::Nothing, findings)?;
    }
    if wants(Part::SwapBusy) {
        swap::run(options, algorithm, Beside::BusyLoops, findings)?;
    }
    Ok(())
}

/// Every side that this machine has, under fio.
fn under_fio(options: &Options, algorithm: &str, findings: &mut Findings) -> Result<()> {
    if let Some(reason) = fio_program::missing() {
        return Err(Error::Failed(reason));
    }
    if !rustix::process::geteuid().is_root() {
        let text = "devices: mounts and loop devices need root; try sudo";
        return Err(Error::Failed(text.to_owned()));
    }
    let bytes = if options.quick {
        QUICK_DEVICE_BYTES
    } else {
        DEVICE_BYTES
    };
    let sides = set_up(options, algorithm, bytes, findings)?;
    let loads = loads();
    let mut progress = Progress::new(sides.len() + loads.len());
    findings.blocks.push(Block {
        title: format!(
            "{algorithm}: {} MiB devices, fio, direct I/O, not pinned",
            bytes >> 20
        ),
        notes: vec![
            "N x D: N jobs at depth D each; depth 1 is psync, others libaio".to_owned(),
            "-file: through the file system; -loop: a loop device over that file".to_owned(),
        ],
        ..Block::default()
    });
    for side in &sides {
        options.stop.check()?;
        progress.at(&format!("fill {}", side.name), 0.0);
        // A loop device has what its file has.
        if !side.name.ends_with("-loop") || side.name == "tmpfs-loop" {
            fio::fill(&side.driven.path, bytes, &options.stop)?;
        }
        progress.step();
    }
    for load in loads {
        let block = findings.blocks.last_mut().expect("pushed above");
        measure(&sides, load, bytes, options, &mut progress, block)?;
    }
    Ok(())
}

/// Every combination of direction, block, depth and jobs.
fn loads() -> Vec<Load> {
    let mut loads = Vec::new();
    for block_bytes in [4 << 10, 128 << 10] {
        for depth in [1, 32] {
            for jobs in [1, 4] {
                loads.extend([false, true].map(|is_read| Load {
                    is_read,
                    block_bytes,
                    depth,
                    jobs,
                }));
            }
        }
    }
    loads
}

/// Ours, and those peers that are here.
fn set_up(
    options: &Options,
    algorithm: &str,
    bytes: u64,
    findings: &mut Findings,
) -> Result<Vec<Side<Device>>> {
    let mut sides = sides::uzram(algorithm, bytes)?;
    match sides::ublk(algorithm, bytes) {
        Ok(made) => sides.extend(made),
        Err(error) => findings.missing.push(Missing::new("uzram-ublk", error)),
    }
    for &peer in &options.peers {
        options.stop.check()?;
        let made = match peer {
            Peer::FuseNull => sides::fuse_null(bytes),
            Peer::Nbdfuse => sides::nbdfuse(bytes),
            Peer::TmpfsLoop => sides::tmpfs(bytes),
            Peer::KernelBrd => sides::kernel_brd(bytes),
            _ => sides::kernel_zram(algorithm, bytes, |held| held),
        };
        match made {
            Ok(made) => sides.extend(made),
            Err(error) => findings.missing.push(Missing::new(peer.name(), error)),
        }
    }
    Ok(sides)
}

fn measure(
    sides: &[Side<Device>],
    load: Load,
    bytes: u64,
    options: &Options,
    progress: &mut Progress,
    block: &mut Block,
) -> Result<()> {
    let case = load.name();
    let turns = Turns::of(&case, sides.len(), Runs::Few);
    let rates = turns.measure(options, progress, |turn| {
        let (path, time) = (&sides[turn.side].driven.path, turn.time(WARM_UP, options));
        fio::run(path, bytes, load, time, &options.stop)
    })?;
    let pair = |ours: &str, theirs: &str| ours_over_theirs(ours, theirs) && are_alike(ours, theirs);
    Cell::new(case, IOPS, bytes).add_all(&Side::names(sides), &rates, pair, block);
    Ok(())
}

/// Files are compared with files, block devices with block devices.
fn are_alike(ours: &str, theirs: &str) -> bool {
    let is_file = |variant: &str| variant.ends_with("-file");
    is_file(ours) == is_file(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_measured_once() {
        let mut names: Vec<String> = loads().into_iter().map(Load::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 16);
    }

    #[test]
    fn files_and_block_devices_are_compared_apart() {
        assert!(are_alike("uzram-lz4-loop", "kernel-zram"));
        assert!(!are_alike("uzram-lz4-file", "nbdfuse-loop"));
    }
}
