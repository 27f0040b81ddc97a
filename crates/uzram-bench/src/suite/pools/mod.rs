//! Suite `pools`: memory for compressed objects, the engine's pools beside general allocators.
//!
//! `published` does the published comparison again; `cells` fills every variant with objects of each
//! corpus, weighs it and times it; `scaling` runs two threads. `claims` says what was published or
//! aimed at, and whether it holds.

mod cells;
mod churn;
mod claims;
mod clock;
mod comparison;
mod draw;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
mod glibc;
mod heap;
#[allow(unsafe_code)]
mod mimalloc;
mod published;
mod scaling;

use crate::error::Result;
use crate::machine;
use crate::progress::Progress;
use crate::report::{Block, Findings, Measured};
use crate::sample::Series;
use crate::suite::Options;
use heap::Variant;

/// The objects' codecs where none is named: the default, and the densest of the kernel's.
pub(crate) const ALGORITHMS: [&str; 2] = ["lz4", "zstd"];

/// How much is measured.
#[derive(Clone, Debug)]
struct Scale {
    /// Objects of the cases, in rising order.
    objects: Vec<usize>,
    /// Objects where the variants take turns.
    alternated_objects: usize,
    /// Pages of the published disks.
    disk_pages: Vec<usize>,
    /// The published disks are so many times smaller.
    disk_divisor: usize,
    /// Runs of the published comparison.
    runs: usize,
    /// Runs with several threads.
    thread_runs: usize,
    /// Overwrites of a thread in one turn: some tens of milliseconds.
    thread_overwrites: usize,
    /// Memory for the copy alone, in bytes.
    copy_bytes: usize,
}

impl Scale {
    fn full() -> Scale {
        Scale {
            objects: vec![16_384, 65_536, 1_048_576],
            alternated_objects: 65_536,
            disk_pages: disks(1),
            disk_divisor: 1,
            runs: 3,
            thread_runs: 7,
            thread_overwrites: 1 << 15,
            copy_bytes: 512 << 20,
        }
    }

    /// Seconds, and caches may hold some of it.
    fn quick() -> Scale {
        Scale {
            objects: vec![16_384, 65_536],
            alternated_objects: 16_384,
            disk_pages: disks(16),
            disk_divisor: 16,
            thread_runs: 3,
            copy_bytes: 64 << 20,
            ..Scale::full()
        }
    }
}

/// Pages of the published disks, `divisor` times smaller.
fn disks(divisor: usize) -> Vec<usize> {
    let pages = published::DISKS_MIB.map(|mebibytes| (mebibytes << 20) / 4096 / divisor);
    pages.to_vec()
}

/// Runs the suite: one block for each published disk, one for each corpus and algorithm.
pub(crate) fn run(options: &Options, findings: &mut Findings) -> Result<()> {
    let scale = if options.quick {
        Scale::quick()
    } else {
        Scale::full()
    };
    measure(options, &scale, findings)
}

fn measure(options: &Options, scale: &Scale, findings: &mut Findings) -> Result<()> {
    let cpus = machine::allowed_cpus();
    let variants = Variant::all(&options.peers);
    let blocks = options.corpora.len() * options.algorithms.len();
    let published = scale.disk_pages.len() * scale.runs * variants.len();
    let each = cells::steps(scale, &variants) + scaling::steps(options);
    let mut progress = Progress::new(published + blocks * each);
    let stop = &options.stop;
    comparison::measure(findings, &variants, scale, &cpus, stop, &mut progress)?;
    for corpus in &options.corpora {
        for algorithm in &options.algorithms {
            let cells = cells::Cells {
                options,
                scale,
                variants: &variants,
                cpus: &cpus,
                corpus,
                algorithm,
            };
            let mut block = Block::default();
            let measured = cells.measure(&mut block, &mut progress);
            findings.blocks.push(block);
            measured?;
        }
    }
    Ok(())
}

/// A row of the report; none for a series without runs.
fn row(
    case: &str,
    variant: &str,
    (metric, unit): (&'static str, &'static str),
    series: &Series,
    working_set_bytes: u64,
    pinned: Option<&str>,
) -> Option<Measured> {
    Some(Measured {
        case: case.to_owned(),
        variant: variant.to_owned(),
        metric,
        unit,
        spread: series.spread()?,
        working_set_bytes,
        pinned: pinned.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests;
