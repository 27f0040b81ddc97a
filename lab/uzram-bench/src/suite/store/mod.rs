//! Suite `store`: the library against its own codec, memcpy and the kernel's zram, in one thread;
//! against the codec in several; and what it costs in memory.

mod footprint;
mod rounds;
mod same_filled;
mod scaling;
mod subject;

use crate::corpus::Corpus;
use crate::error::{Error, Result};
use crate::figures::{Cell, Metric};
use crate::machine;
use crate::mapping::Backing;
use crate::peers::kernel_zram::{Kernel, KernelZram, algorithm_beside};
use crate::peers::memcpy::Memcpy;
use crate::peers::raw_codec::RawCodec;
use crate::peers::{Missing, Peer};
use crate::progress::Progress;
use crate::report::{Block, Findings};
use crate::sample::Series;
use crate::side::PageSide;
use crate::suite::{Options, SUBJECT, Suite, Work};
use crate::workload::{Case, Workload};
use rounds::Rounds;

const TIME: Metric = ("time_per_page", "ns");

/// The suite.
pub(crate) const SUITE: Suite = Suite {
    name: "store",
    peers: &Peer::STORE,
    algorithms: &[],
    corpus: None,
    work: Work::Timed,
    plan: |_, ()| Ok(Box::new(run)),
};

/// Runs the suite: one block for each corpus and algorithm.
fn run(options: &Options, findings: &mut Findings) -> Result<()> {
    let cpus = machine::allowed_cpus();
    let Findings { blocks, missing } = findings;
    let mut progress = Progress::new(steps(options));
    for corpus in &options.corpora {
        let workload = Workload::new(corpus, options.quick)?;
        check_memory(&workload, options)?;
        for algorithm in &options.algorithms {
            let mut bench = Bench {
                options,
                corpus,
                algorithm,
                cpus: &cpus,
                missing,
                progress: &mut progress,
            };
            let mut block = Block::default();
            let measured = bench.block(&workload, &mut block);
            block.title = bench.title(&workload, &block);
            blocks.push(block);
            measured?;
        }
    }
    Ok(())
}

/// The parts that one block is measured with.
struct Bench<'a> {
    options: &'a Options,
    corpus: &'a Corpus,
    algorithm: &'a str,
    cpus: &'a [usize],
    missing: &'a mut Vec<Missing>,
    progress: &'a mut Progress,
}

impl Bench<'_> {
    /// Measures into `block`, which holds what there is also after a failure.
    fn block(&mut self, workload: &Workload, block: &mut Block) -> Result<()> {
        machine::pin_to(self.cpu())?;
        self.cases(workload, block)?;
        self.same_filled(block)?;
        let stop = &self.options.stop;
        self.progress.at(&format!("{}/memory", self.prefix()), 0.0);
        footprint::measure(self.algorithm, workload, &self.prefix(), stop, block)?;
        self.progress.step();
        machine::restrict_to(self.cpus)?;
        if measures_scaling(self.options) {
            let (prefix, progress) = (self.prefix(), &mut *self.progress);
            let threads = &self.cpus[..self.options.threads];
            scaling::measure(
                self.algorithm,
                workload,
                &prefix,
                threads,
                self.options,
                progress,
                block,
            )?;
        }
        Ok(())
    }

    fn title(&self, workload: &Workload, block: &Block) -> String {
        let runs = block
            .results
            .iter()
            .filter(|result| result.metric == TIME.0);
        format!(
            "{} {}: {} MiB of {} distinct pages, one thread pinned to CPU {}, {} runs or more",
            self.corpus.name,
            self.algorithm,
            workload.bytes() >> 20,
            self.corpus.total_pages() - self.corpus.same_filled_pages(),
            self.cpu(),
            runs.map(|result| result.spread.runs).min().unwrap_or(0),
        )
    }

    /// The last CPU: the first one is where interrupts go by default.
    fn cpu(&self) -> usize {
        self.cpus[self.cpus.len() - 1]
    }

    fn prefix(&self) -> String {
        format!("{}/{}", self.corpus.name, self.algorithm)
    }

    /// The cases of one thread, and whether the sides compressed alike.
    fn cases(&mut self, workload: &Workload, block: &mut Block) -> Result<()> {
        let sides = self.sides(workload, &self.options.peers.clone())?;
        let mut rounds = Rounds::new(workload, sides, self.options)?;
        for case in Case::ALL {
            self.measure(&mut rounds, case, case.name(), block)?;
            if case.is_write() {
                self.progress
                    .at(&format!("{}, reading back", self.prefix()), 0.0);
                rounds.verify()?;
            }
            if case == Case::FirstWrite {
                self.compression(&rounds.sides, workload, block)?;
            }
        }
        let theirs = algorithm_beside(self.algorithm);
        if theirs != self.algorithm && self.options.against(Peer::KernelZram) {
            let note = format!("the kernel's zram compresses with {theirs} here");
            block.notes.push(note);
        }
        block.notes.extend(rounds.lost.note());
        Ok(())
    }

    /// Same-filled pages: a case of their own, once for each corpus that has any.
    fn same_filled(&mut self, block: &mut Block) -> Result<()> {
        if !same_filled::applies(self.corpus, self.algorithm, self.options) {
            return Ok(());
        }
        let workload = same_filled::workload(self.corpus)?;
        let mut peers = self.options.peers.clone();
        peers.retain(|&peer| peer != Peer::RawCodec);
        let sides = self.sides(&workload, &peers)?;
        let mut rounds = Rounds::new(&workload, sides, self.options)?;
        for (case, name) in same_filled::CASES {
            self.measure(&mut rounds, case, name, block)?;
        }
        rounds.verify()
    }

    /// Measures one case into `block`.
    fn measure(
        &mut self,
        rounds: &mut Rounds<'_>,
        case: Case,
        name: &str,
        block: &mut Block,
    ) -> Result<()> {
        let name = format!("{}/{name}", self.prefix());
        let figures = rounds.measure(case, &name, self.progress)?;
        let bytes = rounds.workload.bytes() as u64;
        add(
            &Cell::new(name, TIME, bytes).pinned(&[self.cpu()]),
            &figures,
            block,
        );
        Ok(())
    }

    /// The compression ratios, and uzram's over the others': over the codec's one, or they did different work.
    fn compression(
        &self,
        sides: &[PageSide],
        workload: &Workload,
        block: &mut Block,
    ) -> Result<()> {
        let (mut names, mut found) = (Vec::new(), Vec::new());
        // The second of the kernel's sides holds the same.
        for side in sides.iter().filter(|side| side.name != "kernel-zram-1m") {
            if let Some(bytes) = side.driven.compressed_bytes()? {
                names.push(side.name.as_str());
                found.push(Series::from(vec![workload.bytes() as f64 / bytes as f64]));
            }
        }
        let case = format!("{}/compression", self.prefix());
        let cell = Cell::new(case, ("compression_ratio", "x"), workload.bytes() as u64);
        let pair = |top: &str, bottom: &str| top == SUBJECT && bottom != SUBJECT;
        cell.add_all(&names, &found, pair, block);
        Ok(())
    }

    /// uzram and those of `peers` that this machine has.
    fn sides(&mut self, workload: &Workload, peers: &[Peer]) -> Result<Vec<PageSide>> {
        let disk = subject::disk(self.algorithm, workload)?;
        let mut sides = vec![PageSide::of(SUBJECT, disk)];
        for peer in peers {
            let name = peer.name();
            match peer {
                Peer::RawCodec => {
                    let chunks = 0..workload.chunks();
                    let raw = RawCodec::new(self.algorithm, workload, chunks)?;
                    sides.push(PageSide::of(name, raw));
                }
                Peer::KernelZram => {
                    let bytes = 2 * workload.bytes() as u64;
                    let theirs = algorithm_beside(self.algorithm);
                    match Kernel::default().acquire(theirs, bytes) {
                        Ok(device) => sides.extend(KernelZram::sides(device, workload)),
                        Err(reason) => self.miss(*peer, reason),
                    }
                }
                _ => {
                    let memory = Memcpy::new(workload.bytes(), Backing::Huge)?;
                    sides.push(PageSide::of(name, memory));
                }
            }
        }
        Ok(sides)
    }

    /// Notes a missing peer, once for each reason.
    fn miss(&mut self, peer: Peer, reason: String) {
        let peer = format!("{} ({})", peer.name(), self.algorithm);
        let missing = Missing { peer, reason };
        if !self.missing.contains(&missing) {
            self.missing.push(missing);
        }
    }
}

/// Cases that will be measured, for the estimate of the time left.
fn steps(options: &Options) -> usize {
    let scaling = if measures_scaling(options) {
        scaling::CASES.len()
    } else {
        0
    };
    let blocks = options.corpora.iter().flat_map(|corpus| {
        options.algorithms.iter().map(move |algorithm| {
            let same = same_filled::applies(corpus, algorithm, options);
            let same = if same { same_filled::CASES.len() } else { 0 };
            Case::ALL.len() + same + scaling + 1
        })
    });
    blocks.sum()
}

fn measures_scaling(options: &Options) -> bool {
    options.threads > 1 && options.against(Peer::RawCodec)
}

/// All sides' figures; uzram's time over the floors' time; the kernel's time over uzram's.
fn add(cell: &Cell, figures: &[(String, Series)], block: &mut Block) {
    let (names, series): (Vec<String>, Vec<Series>) = figures.iter().cloned().unzip();
    let is_kernel = |name: &str| name.starts_with(Peer::KernelZram.name());
    let pair = |top: &str, bottom: &str| match is_kernel(top) {
        true => bottom == SUBJECT,
        false => top == SUBJECT && bottom != SUBJECT && !is_kernel(bottom),
    };
    cell.add_all(&names, &series, pair, block);
}

/// Refuses a working set for which the machine lacks memory, before the machine starts to reclaim.
fn check_memory(workload: &Workload, options: &Options) -> Result<()> {
    // Each side may need as much as the working set when nothing compresses; kernel-zram twice.
    let sides = 1 + options.peers.len() + usize::from(options.against(Peer::KernelZram));
    let wanted = (workload.bytes() * sides) as u64;
    match machine::available_memory_bytes() {
        Some(available) if available < wanted => Err(Error::Failed(format!(
            "the store suite needs up to {} MiB and {} are available; use --quick or fewer --against",
            wanted >> 20,
            available >> 20
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_uzram_s_over_the_floor_s_and_the_kernel_s_over_uzram_s() {
        let figures = [("uzram", 5.0), ("raw-codec", 4.0), ("kernel-zram-4k", 6.0)];
        let figures = figures.map(|(name, time)| (name.to_owned(), Series::from(vec![time])));
        let mut block = Block::default();
        add(
            &Cell::new("c/lz4/first-write", TIME, 1),
            &figures,
            &mut block,
        );
        let mut found: Vec<(&str, f64)> = block
            .ratios
            .iter()
            .map(|ratio| (ratio.numerator.as_str(), ratio.spread.median))
            .collect();
        found.sort_by(|one, other| one.1.total_cmp(&other.1));
        assert_eq!(found, [("kernel-zram-4k", 1.2), ("uzram", 1.25)]);
    }
}
