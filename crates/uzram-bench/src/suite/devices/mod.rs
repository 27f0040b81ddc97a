//! Suite `devices`: block devices and files of this machine under fio.
//!
//! All sides are set up at once and filled with the same kind of data; fio runs on them in turn, a
//! run is one slice each, and ratios are taken run by run. Nothing is pinned: fio, a FUSE server and
//! the loop driver's threads are placed by the kernel, as they are for users.
//!
//! Disks of virtual machines have no device here: `guests` measures them with a client of ours.

mod fio;
mod guests;
mod sides;

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::job::fio_program;
use crate::peers::{Missing, Peer};
use crate::progress::Progress;
use crate::report::{Aim, Block, Findings, Measured, Ratio};
use crate::sample::Series;
use crate::suite::{Options, SUBJECT};
use fio::Load;
use sides::Side;

/// Size of each device, in bytes; with --quick the smaller one.
const DEVICE_BYTES: u64 = 512 << 20;
const QUICK_DEVICE_BYTES: u64 = 128 << 20;
const WARM_UP: Duration = Duration::from_millis(300);
const IOPS: &str = "iops";

/// Runs the suite with the first of the algorithms.
pub(crate) fn run(options: &Options, findings: &mut Findings) -> Result<()> {
    let algorithm = options.algorithms.first().map_or("lz4", String::as_str);
    guests::run(options, algorithm, findings)?;
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
        progress.at(&format!("fill {}", side.variant), 0.0);
        // A loop device has what its file has.
        if !side.variant.ends_with("-loop") || side.variant == "tmpfs-loop" {
            fio::fill(&side.path, bytes, &options.stop)?;
        }
        progress.step();
    }
    for load in loads {
        let figures = measure(&sides, load, bytes, options, &mut progress)?;
        let block = findings.blocks.last_mut().expect("pushed above");
        record(load, &figures, bytes, block);
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
) -> Result<Vec<Side>> {
    let mut sides = sides::uzram(algorithm, bytes)?;
    match sides::ublk(algorithm, bytes) {
        Ok(made) => sides.extend(made),
        Err(error) => findings.missing.push(Missing {
            peer: "uzram-ublk".to_owned(),
            reason: error.to_string(),
        }),
    }
    for &peer in &options.peers {
        options.stop.check()?;
        let made = match peer {
            Peer::FuseNull => sides::fuse_null(bytes),
            Peer::Nbdfuse => sides::nbdfuse(bytes),
            Peer::TmpfsLoop => sides::tmpfs(bytes),
            Peer::KernelBrd => sides::kernel_brd(bytes),
            _ => sides::kernel_zram(algorithm, bytes),
        };
        match made {
            Ok(made) => sides.extend(made),
            Err(error) => findings.missing.push(Missing {
                peer: peer.name().to_owned(),
                reason: error.to_string(),
            }),
        }
    }
    Ok(sides)
}

fn measure(
    sides: &[Side],
    load: Load,
    bytes: u64,
    options: &Options,
    progress: &mut Progress,
) -> Result<Vec<(String, Series)>> {
    let schedule = options.schedule;
    let slice = schedule.at_least / schedule.runs_min as u32;
    let name = load.name();
    for side in sides {
        fio::run(&side.path, bytes, load, WARM_UP, &options.stop)?;
    }
    let mut series = vec![Series::default(); sides.len()];
    let started = Instant::now();
    for run in 0..schedule.runs_min {
        for position in 0..sides.len() {
            options.stop.check()?;
            progress.at(&name, schedule.part(run, started.elapsed()));
            // Another side starts each run.
            let at = (position + run) % sides.len();
            let rate = fio::run(&sides[at].path, bytes, load, slice, &options.stop)?;
            series[at].push(rate);
        }
    }
    progress.step();
    let names = sides.iter().map(|side| side.variant.clone());
    Ok(names.zip(series).collect())
}

fn record(load: Load, figures: &[(String, Series)], bytes: u64, block: &mut Block) {
    let case = load.name();
    for (variant, series) in figures {
        block.results.extend(series.spread().map(|spread| Measured {
            case: case.clone(),
            variant: variant.clone(),
            metric: IOPS,
            unit: "IOPS",
            spread,
            working_set_bytes: bytes,
            pinned: None,
        }));
    }
    let is_ours = |variant: &str| variant.starts_with(SUBJECT);
    for (ours, our_series) in figures.iter().filter(|(variant, _)| is_ours(variant)) {
        for (theirs, their_series) in figures.iter().filter(|(variant, _)| !is_ours(variant)) {
            if !are_alike(ours, theirs) {
                continue;
            }
            let aim = aim(ours, theirs, load);
            let sides = ((ours.as_str(), our_series), (theirs.as_str(), their_series));
            block
                .ratios
                .extend(Ratio::of(&case, IOPS, sides.0, sides.1, aim));
        }
    }
}

/// Files are compared with files, block devices with block devices.
fn are_alike(ours: &str, theirs: &str) -> bool {
    let is_file = |variant: &str| variant.ends_with("-file");
    is_file(ours) == is_file(theirs)
}

fn aim(ours: &str, theirs: &str, load: Load) -> Option<Aim> {
    if load.block_bytes != 4096 || load.jobs != 1 || !ours.starts_with("uzram-lz4") {
        return None;
    }
    let limit = match (theirs, load.depth, load.is_read) {
        ("nbdfuse-file", 1, _) => 4.0,
        ("nbdfuse-loop", 1, _) => 2.0,
        ("fuse-null-loop", 1, _) => 0.75,
        ("tmpfs-loop", 32, true) => 0.45,
        ("tmpfs-loop", 32, false) => 0.3,
        _ => return None,
    };
    Some(Aim::AtLeast(limit))
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
    fn files_and_block_devices_are_compared_apart_and_have_aims() {
        assert!(are_alike("uzram-lz4-loop", "kernel-zram"));
        assert!(!are_alike("uzram-lz4-file", "nbdfuse-loop"));
        let load = loads()[1];
        assert!(load.is_read && load.depth == 1 && load.jobs == 1);
        assert_eq!(
            aim("uzram-lz4-file", "nbdfuse-file", load),
            Some(Aim::AtLeast(4.0))
        );
        assert_eq!(aim("uzram-zstd-file", "nbdfuse-file", load), None);
    }
}
