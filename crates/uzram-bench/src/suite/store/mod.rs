//! Suite `store`: the library against its own codec, memcpy and the kernel's zram, in one thread;
//! against the codec in several; and what it costs in memory.

mod footprint;
mod rounds;
mod same_filled;
mod scaling;
mod subject;

use std::rc::Rc;

use crate::corpus::Corpus;
use crate::error::{Error, Result};
use crate::machine;
use crate::peers::kernel_zram::{Kernel, KernelZram};
use crate::peers::memcpy::Memcpy;
use crate::peers::raw_codec::RawCodec;
use crate::peers::{Missing, Peer, Side};
use crate::progress::Progress;
use crate::report::{Aim, Block, Findings, Measured, Ratio};
use crate::sample::Series;
use crate::suite::{BUSY, Options, SUBJECT};
use crate::workload::{Case, Workload};
use rounds::Rounds;
use subject::Subject;

/// How far the compression ratios of store and codec may lie apart: beyond it they did not do the
/// same work.
const SAME_COMPRESSION: Aim = Aim::Within(0.005);
const TIME: &str = "time_per_page";

/// Runs the suite: one block for each corpus and algorithm.
pub(crate) fn run(options: &Options, findings: &mut Findings) -> Result<()> {
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

/// What one block is measured with.
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
        let weighed = footprint::measure(self.algorithm, workload, &self.prefix(), stop)?;
        self.progress.step();
        block.notes.push(weighed.note);
        block.results.extend(weighed.results);
        block.ratios.extend(weighed.ratios);
        machine::restrict_to(self.cpus)?;
        self.scaling(workload, block)
    }

    fn title(&self, workload: &Workload, block: &Block) -> String {
        let runs = block.results.iter().filter(|result| result.metric == TIME);
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
        let stop = &self.options.stop;
        let mut rounds = Rounds::new(workload, sides, stop);
        for case in Case::ALL {
            let figures = self.measure(&mut rounds, case, case.name(), block)?;
            if case.is_write() {
                self.progress
                    .at(&format!("{}, reading back", self.prefix()), 0.0);
                rounds.verify()?;
            }
            if case == Case::FirstWrite {
                self.compression(&mut rounds.sides, workload, block)?;
            }
            block.ratios.extend(figures);
        }
        let lost = rounds.part_lost_to_others();
        if lost > BUSY {
            block.notes.push(format!(
                "BUSY MACHINE: other processes had the CPU for {:.0} % of the time; do not quote",
                lost * 100.0
            ));
        }
        Ok(())
    }

    /// Same-filled pages: a case of their own, once for each corpus that has any.
    fn same_filled(&mut self, block: &mut Block) -> Result<()> {
        if !same_filled::applies(self.corpus, self.algorithm, self.options) {
            return Ok(());
        }
        let workload = same_filled::workload(self.corpus)?;
        let peers: Vec<Peer> = self
            .options
            .peers
            .iter()
            .copied()
            .filter(|&peer| peer != Peer::RawCodec)
            .collect();
        let sides = self.sides(&workload, &peers)?;
        let stop = &self.options.stop;
        let mut rounds = Rounds::new(&workload, sides, stop);
        for (case, name) in same_filled::CASES {
            let ratios = self.measure(&mut rounds, case, name, block)?;
            block
                .ratios
                .extend(ratios.into_iter().map(|ratio| Ratio { aim: None, ..ratio }));
        }
        rounds.verify()
    }

    /// Measures one case into `block` and returns its ratios.
    fn measure(
        &mut self,
        rounds: &mut Rounds<'_>,
        case: Case,
        name: &str,
        block: &mut Block,
    ) -> Result<Vec<Ratio>> {
        let name = format!("{}/{name}", self.prefix());
        let figures = rounds.measure(case, self.options.schedule, &name, self.progress)?;
        let cpu = self.cpu();
        for (variant, series) in &figures {
            block.results.extend(series.spread().map(|spread| Measured {
                case: name.clone(),
                variant: variant.clone(),
                metric: TIME,
                unit: "ns",
                spread,
                working_set_bytes: rounds.workload.bytes() as u64,
                pinned: Some(cpu.to_string()),
            }));
        }
        Ok(ratios(case, &name, &figures))
    }

    /// The compression ratios, and uzram's over the codec's: one, or they did different work.
    fn compression(
        &self,
        sides: &mut [Box<dyn Side>],
        workload: &Workload,
        block: &mut Block,
    ) -> Result<()> {
        let case = format!("{}/compression", self.prefix());
        let mut found: Vec<(String, Series)> = Vec::new();
        for side in sides {
            if side.name() == "kernel-zram-1m" {
                continue;
            }
            if let Some(bytes) = side.compressed_bytes()? {
                let ratio = workload.bytes() as f64 / bytes as f64;
                found.push((side.name().to_owned(), Series::from(vec![ratio])));
            }
        }
        for (variant, series) in &found {
            block.results.extend(series.spread().map(|spread| Measured {
                case: case.clone(),
                variant: variant.clone(),
                metric: "compression_ratio",
                unit: "x",
                spread,
                working_set_bytes: workload.bytes() as u64,
                pinned: None,
            }));
        }
        if let [ours, theirs] = [SUBJECT, "raw-codec"].map(|name| find(&found, name))
            && let (Some(ours), Some(theirs)) = (ours, theirs)
        {
            let sides = ((SUBJECT, ours), ("raw-codec", theirs));
            let aim = Some(SAME_COMPRESSION);
            block
                .ratios
                .extend(Ratio::of(&case, "compression_ratio", sides.0, sides.1, aim));
        }
        Ok(())
    }

    fn scaling(&mut self, workload: &Workload, block: &mut Block) -> Result<()> {
        if !measures_scaling(self.options) {
            return Ok(());
        }
        let (results, ratios) = scaling::measure(
            self.algorithm,
            workload,
            &self.prefix(),
            self.cpus,
            self.options,
            self.progress,
        )?;
        block.results.extend(results);
        block.ratios.extend(ratios);
        Ok(())
    }

    /// uzram and those of `peers` that this machine has.
    fn sides(&mut self, workload: &Workload, peers: &[Peer]) -> Result<Vec<Box<dyn Side>>> {
        let mut sides: Vec<Box<dyn Side>> = vec![Box::new(Subject::new(self.algorithm, workload)?)];
        for peer in peers {
            match peer {
                Peer::RawCodec => {
                    let chunks = 0..workload.chunks();
                    sides.push(Box::new(RawCodec::new(self.algorithm, workload, chunks)?));
                }
                Peer::Memcpy => sides.push(Box::new(Memcpy::new(workload)?)),
                Peer::KernelZram => match self.kernel_zram(workload)? {
                    Ok(both) => sides.extend(both),
                    Err(reason) => self.miss(Peer::KernelZram, reason),
                },
                Peer::BareLibrary
                | Peer::NbdkitMemory
                | Peer::NbdkitZstd
                | Peer::Malloc
                | Peer::Mimalloc
                | Peer::FuseNull
                | Peer::Nbdfuse
                | Peer::TmpfsLoop
                | Peer::KernelBrd => {}
            }
        }
        Ok(sides)
    }

    fn kernel_zram(&self, workload: &Workload) -> Result<Result<[Box<dyn Side>; 2], String>> {
        let size_bytes = 2 * workload.bytes() as u64;
        let device = match Kernel::default().acquire(self.algorithm, size_bytes) {
            Ok(device) => Rc::new(device),
            Err(reason) => return Ok(Err(reason)),
        };
        Ok(Ok([
            Box::new(KernelZram::by_page(Rc::clone(&device), workload)?),
            Box::new(KernelZram::by_mebibyte(device, workload)?),
        ]))
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

fn find<'a>(figures: &'a [(String, Series)], name: &str) -> Option<&'a Series> {
    figures
        .iter()
        .find(|(variant, _)| variant == name)
        .map(|(_, series)| series)
}

/// uzram's time over the floors' time; the kernel's time over uzram's.
fn ratios(case: Case, name: &str, figures: &[(String, Series)]) -> Vec<Ratio> {
    let Some(ours) = find(figures, SUBJECT) else {
        return Vec::new();
    };
    let peers = figures.iter().filter(|(variant, _)| variant != SUBJECT);
    let ratios = peers.filter_map(|(peer, theirs)| {
        let (subject, peer_side) = ((SUBJECT, ours), (peer.as_str(), theirs));
        let (top, bottom) = match peer.starts_with("kernel-zram") {
            true => (peer_side, subject),
            false => (subject, peer_side),
        };
        Ratio::of(name, TIME, top, bottom, aim(case, peer))
    });
    ratios.collect()
}

/// What is aimed at against each peer.
fn aim(case: Case, peer: &str) -> Option<Aim> {
    match (peer, case) {
        ("raw-codec", Case::FirstWrite) => Some(Aim::AtMost(1.08)),
        ("raw-codec", Case::Overwrite) => Some(Aim::AtMost(1.12)),
        ("raw-codec", Case::RandomRead) => Some(Aim::AtMost(1.15)),
        ("kernel-zram-4k", Case::FirstWrite | Case::Overwrite) => Some(Aim::AtLeast(1.08)),
        ("kernel-zram-4k", Case::RandomRead) => Some(Aim::AtLeast(1.3)),
        // A call into a library is compared with large requests, which spare the kernel its
        // system calls.
        ("kernel-zram-1m", _) => Some(Aim::MoreThan(1.0)),
        _ => None,
    }
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
    fn aims_stand_beside_the_ratio_that_they_are_about() {
        let figures = vec![
            ("uzram".to_owned(), Series::from(vec![5.0])),
            ("raw-codec".to_owned(), Series::from(vec![4.0])),
            ("kernel-zram-4k".to_owned(), Series::from(vec![6.0])),
        ];
        let found = ratios(Case::FirstWrite, "c/lz4/first-write", &figures);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].numerator.as_str(), found[0].spread.median),
            ("uzram", 1.25)
        );
        assert_eq!(found[0].aim, Some(Aim::AtMost(1.08)));
        assert_eq!(
            (found[1].numerator.as_str(), found[1].spread.median),
            ("kernel-zram-4k", 1.2)
        );
        assert_eq!(found[1].aim, Some(Aim::AtLeast(1.08)));
        assert_eq!(aim(Case::SequentialRead, "raw-codec"), None);
    }
}
