//! Suite `pools`: memory for compressed objects, the engine's pools beside general allocators.
//!
//! `published` does the published comparison again; `cells` fills every variant with objects of each
//! corpus, weighs it and times it; `scaling` runs two threads. `claims` says what was published, and
//! whether it holds.

mod cells;
mod churn;
mod claims;
mod clock;
mod comparison;
mod draw;
mod figures;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
mod glibc;
mod heap;
mod metrics;
#[allow(unsafe_code)]
mod mimalloc;
mod places;
mod published;
mod scaling;
mod scope;

use crate::error::Result;
use crate::machine;
use crate::peers::Peer;
use crate::progress::Progress;
use crate::report::{Block, Findings};
use crate::suite::{Options, Suite, Work};
use heap::Variant;
use scope::{Cells, Scale};

/// The objects' codecs where none is named: the default, and the densest of the kernel's.
pub(crate) const ALGORITHMS: [&str; 2] = ["lz4", "zstd"];

/// The suite.
pub(crate) const SUITE: Suite = Suite {
    name: "pools",
    peers: &Peer::POOLS,
    algorithms: &ALGORITHMS,
    corpus: None,
    work: Work::Fixed,
    plan: |_, ()| Ok(Box::new(run)),
};

/// Runs the suite: one block for each published disk, one for each corpus and algorithm.
fn run(options: &Options, findings: &mut Findings) -> Result<()> {
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
    let published = scale.disk_pages.len();
    let each = cells::steps(scale, &variants) + scaling::steps(options, &variants);
    let mut progress = Progress::new(published + blocks * each);
    comparison::measure(findings, &variants, scale, &cpus, options, &mut progress)?;
    for corpus in &options.corpora {
        for algorithm in &options.algorithms {
            let cells = Cells {
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

#[cfg(test)]
mod tests;
