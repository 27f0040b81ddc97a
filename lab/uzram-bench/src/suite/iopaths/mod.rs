//! Suite `iopaths`: page-sized I/O to RAM devices, as published for the kernel's swap in 2017.
//!
//! Three things are measured. What a device does itself: random pages against memcpy on pages of the same
//! size. What a way to it costs: calls of a device that does nothing. And both under swap: a load in
//! the manner of pmbench over the swap layer, each device by each path, the mean of each run's calls.
//! Sides take turns, and ratios are taken run by run.

mod counts;
mod devices;
mod load;

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;

use crate::swap::{IoPath, SwapArea};
use uzram::{BlockDevice, PageIndex, PageTransfer};
use uzram_media::Persistence;

use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::figures::{Cell, Metric};
use crate::machine::{self, Stopwatch};
use crate::mapping::Backing;
use crate::peers::memcpy::Memcpy;
use crate::progress::Progress;
use crate::published::Table;
use crate::report::{Block, Findings};
use crate::sample::{Series, Spread};
use crate::side::{PageSide, Pages, Task};
use crate::sink::Sink;
use crate::suite::turns::{Runs, Turns};
use crate::suite::{Options, Suite, Work};
use devices::{Kind, Nothing};
use load::{Load, Plan};
use uzram_testkit::Rng;

pub use load::Pattern;

/// Working set against memcpy, in bytes, and with --quick.
const RANDOM_BYTES: [u64; 2] = [1 << 30, 64 << 20];
/// Pages of the swapping program, and with --quick.
const PROGRAM_PAGES: [usize; 2] = [16_384, 4_096];
/// Runs of each device and path under swap, as published.
const SWAP_RUNS_MIN: usize = 10;
/// Calls of one run of a path to nothing.
const PATH_CALLS: u64 = 100_000;
/// Pages of one run at least.
const PART_PAGES_MIN: usize = 16_384;
/// The published lines about zram under swap, ten runs a path.
const ZRAM_PUBLISHED: [&str; 2] = [
    "published: rw_page mean 5.54 us, stddev 8.89 %, max 6.02, min 4.20 (10 runs)",
    "published: on-stack bio mean 5.27 us, stddev 13.03 %, max 5.96, min 3.55 (10 runs)",
];
/// Pages written in turn, to be found in the caches as a program's are.
const SOURCE_PAGES: usize = 64;

/// The behaviour of the swapping program, and the place of files.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadArgs {
    /// The choice of the page that the swapping program touches next
    #[arg(long, value_enum, default_value_t = Pattern::Uniform)]
    pub pattern: Pattern,
    /// Percentage of its pages that fit into memory, 1 to 99
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub resident: u32,
    /// Percentage of its touches that read, 0 to 100
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub reads: u32,
    /// Where the files of pmem and btt are made. Default: /dev/shm, else the system's folder for
    /// temporary files
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Called by this program itself, under callgrind
    #[arg(long, hide = true, value_name = "PATH:CALLS")]
    pub count_calls: Option<String>,
}

/// The suite.
pub(crate) const SUITE: Suite<LoadArgs> = Suite {
    name: "iopaths",
    peers: &[],
    algorithms: &[],
    corpus: None,
    work: Work::Timed,
    plan: |_, args| {
        let args = args.clone();
        Ok(Box::new(move |options, findings| {
            run(options, &args, findings)
        }))
    },
};

/// Does what the hidden option asks for, if it is there.
pub(crate) fn count_calls(args: &LoadArgs) -> Option<Result<()>> {
    args.count_calls.as_deref().map(counts::child)
}

/// Runs the suite.
fn run(options: &Options, args: &LoadArgs, findings: &mut Findings) -> Result<()> {
    let folder = args.folder.clone().unwrap_or_else(|| {
        let memory = PathBuf::from("/dev/shm");
        if memory.is_dir() {
            memory
        } else {
            std::env::temp_dir()
        }
    });
    // One thread does everything; moved about, it would meet cold caches.
    let cpu = *machine::allowed_cpus().last().unwrap_or(&0);
    machine::pin_to(cpu)?;
    let mut bench = Bench {
        options,
        args,
        folder,
        cpu,
        progress: Progress::new(PAIRS.len() + 1 + Kind::ALL.len()),
    };
    let mut block = Block {
        title: format!(
            "random pages of {} MiB against memcpy",
            bench.random_bytes() >> 20
        ),
        ..Block::default()
    };
    let outcome = PAIRS
        .iter()
        .try_for_each(|pair| bench.pair(pair, &mut block));
    findings.blocks.push(block);
    outcome?;
    let block = bench.paths()?;
    findings.blocks.push(block);
    for kind in Kind::ALL {
        let block = bench.swap(kind)?;
        findings.blocks.push(block);
    }
    Ok(())
}

/// Two sides on random pages.
struct Pair {
    /// `None` is memcpy.
    base: Option<Kind>,
    device: Kind,
    persistence: Persistence,
    suffix: &'static str,
}

const PAIRS: [Pair; 4] = [
    Pair {
        base: None,
        device: Kind::Brd,
        persistence: Persistence::Never,
        suffix: "",
    },
    Pair {
        base: None,
        device: Kind::Pmem,
        persistence: Persistence::Never,
        suffix: "",
    },
    Pair {
        base: Some(Kind::Pmem),
        device: Kind::Btt,
        persistence: Persistence::Never,
        suffix: ", no flushes",
    },
    Pair {
        base: Some(Kind::Pmem),
        device: Kind::Btt,
        persistence: Persistence::Cpu,
        suffix: ", with flushes",
    },
];

impl Pages for Arc<dyn BlockDevice> {
    #[inline]
    fn write(&mut self, place: usize, page: &[u8]) -> Result<()> {
        let page = page.try_into().expect("a page at a time");
        Ok(self.rw_page(PageIndex(place as u64), PageTransfer::Write(page))?)
    }

    #[inline]
    fn read(&mut self, place: usize, page: &mut [u8]) -> Result<()> {
        let page = page.try_into().expect("a page at a time");
        Ok(self.rw_page(PageIndex(place as u64), PageTransfer::Read(page))?)
    }
}

struct Bench<'a> {
    options: &'a Options,
    args: &'a LoadArgs,
    folder: PathBuf,
    cpu: usize,
    progress: Progress,
}

impl Bench<'_> {
    fn random_bytes(&self) -> u64 {
        RANDOM_BYTES[usize::from(self.options.quick)]
    }

    fn make(
        &self,
        kind: Kind,
        size_bytes: u64,
        persistence: Persistence,
    ) -> Result<Arc<dyn BlockDevice>> {
        kind.make(
            size_bytes,
            &self.folder,
            persistence,
            &self.options.algorithms[0],
        )
    }

    fn pair(&mut self, pair: &Pair, block: &mut Block) -> Result<()> {
        let bytes = self.random_bytes();
        let pages = bytes as usize / PAGE_BYTES;
        let side = |kind: Kind| -> Result<PageSide> {
            let device = self.make(kind, bytes, pair.persistence)?;
            let name = format!("{}{}", kind.name(), pair.suffix);
            Ok(PageSide::of(name, device))
        };
        let base = match pair.base {
            None => PageSide::of("memcpy", Memcpy::new(bytes as usize, Backing::Small)?),
            Some(kind) => side(kind)?,
        };
        let mut sides = [base, side(pair.device)?];
        let mut source = vec![0; SOURCE_PAGES * PAGE_BYTES];
        let mut rng = Rng::new(3);
        rng.fill(&mut source);
        let mut places: Vec<u32> = (0..pages as u32).collect();
        rng.shuffle(&mut places);
        let mut sink = Sink::new()?;
        // What kept the thread from running is known to a millisecond or so.
        let part = pages.div_ceil(8).max(PART_PAGES_MIN).min(pages);
        let names = [sides[0].name.clone(), sides[1].name.clone()];
        let turns = Turns::of(&names[1], sides.len(), Runs::AtLeast(0));
        let figures = turns.take(self.options, &mut self.progress, |turn| {
            // First touches are another story.
            let chosen = match turn.is_warm_up {
                true => &places[..],
                false => &places[turn.run % (pages / part) * part..][..part],
            };
            let read = Task::ReadAt(chosen);
            let write = Task::WriteAt {
                places: chosen,
                source: &source,
            };
            let mut timed = |work| -> Result<f64> {
                let watch = Stopwatch::start();
                sides[turn.side].driven.run(work, &mut sink)?;
                Ok(per_call(watch, part))
            };
            Ok([timed(read)?, timed(write)?])
        })?;
        for (at, operation) in ["random-read", "random-write"].into_iter().enumerate() {
            let case = format!("{}{}/{operation}", pair.device.name(), pair.suffix);
            let series: Vec<Series> = figures.iter().map(|of| of[at].clone()).collect();
            let is_pair = |top: &str, bottom: &str| [bottom, top] == names;
            let cell = self.cell(&case, (TIME, "ns"), bytes);
            cell.add_all(&names, &series, is_pair, block);
        }
        Ok(())
    }

    /// The cost of each way to a device that does nothing.
    fn paths(&mut self) -> Result<Block> {
        let mut block = Block {
            title: "a path to a device that does nothing".to_owned(),
            ..Block::default()
        };
        let turns = Turns::of("paths", IoPath::ALL.len(), Runs::AtLeast(0));
        let series = turns.measure(self.options, &mut self.progress, |turn| {
            let watch = Stopwatch::start();
            counts::call(black_box(&Nothing), IoPath::ALL[turn.side], PATH_CALLS)?;
            Ok(per_call(watch, PATH_CALLS as usize))
        })?;
        let case = "nothing/write";
        self.add_paths(&mut block, case, TIME, &series, 0);
        match counts::instructions() {
            Ok(counts) => {
                let cell = self.cell(case, ("instructions", "instructions"), 0);
                for (path, count) in IoPath::ALL.iter().zip(counts) {
                    cell.add(path.name(), &Series::from(vec![count]), &mut block);
                }
            }
            Err(why) => block.notes.push(format!("no instruction counts: {why}")),
        }
        Ok(block)
    }

    /// The published experiment on one device.
    fn swap(&mut self, kind: Kind) -> Result<Block> {
        let working_set = PROGRAM_PAGES[usize::from(self.options.quick)];
        let plan = Plan {
            pattern: self.args.pattern,
            working_set,
            resident: (working_set * self.args.resident as usize / 100).max(1),
            reads: self.args.reads,
        };
        let bytes = (working_set * PAGE_BYTES) as u64;
        let corpus = &self.options.corpora[0];
        let mut block = Block {
            title: format!(
                "{} under swap: {} MiB of {}, {} % fit, {} % reads",
                kind.name(),
                bytes >> 20,
                corpus.name,
                self.args.resident,
                self.args.reads
            ),
            ..Block::default()
        };
        let mut areas = Vec::new();
        for path in IoPath::ALL {
            let device = self.make(kind, bytes, Persistence::Never)?;
            areas.push(SwapArea::new(device, path)?);
        }
        let mut loads: Vec<_> = areas
            .iter()
            .map(|area| Load::new(plan, area, corpus.pages()))
            .collect();
        let turns = Turns::of(kind.name(), areas.len(), Runs::AtLeast(SWAP_RUNS_MIN));
        let figures = turns.take(self.options, &mut self.progress, |turn| {
            let (area, load) = (&areas[turn.side], &mut loads[turn.side]);
            if turn.is_warm_up {
                load.fill()?;
                load.run(working_set / 2)?;
                return Ok([0.0; 6]);
            }
            let latencies = [area.write_latency(), area.read_latency()];
            latencies.iter().for_each(|latency| latency.reset());
            load.run(working_set)?;
            let [write, read] = latencies.map(|latency| {
                let of = latency.summary();
                [of.mean_ns, of.p50_ns as f64, of.p99_ns as f64]
            });
            Ok([write[0], write[1], write[2], read[0], read[1], read[2]])
        })?;
        for (call, name) in ["swap_writepage", "swap_readpage"].into_iter().enumerate() {
            let of = |metric: usize| -> Vec<Series> {
                let figures = figures.iter().map(|side| side[call * 3 + metric].clone());
                figures.collect()
            };
            for (at, metric) in ["mean", "p50", "p99"].into_iter().enumerate() {
                let case = format!("{}/{name} {metric}", kind.name());
                self.add_paths(&mut block, &case, metric, &of(at), bytes);
            }
            block.notes.extend(verdicts(name, &of(0), kind));
        }
        if kind == Kind::Zram {
            block.notes.extend(ZRAM_PUBLISHED.map(str::to_owned));
        }
        Ok(block)
    }

    /// Adds the paths' figures, and the ratios of the longer ones to `rw_page`.
    fn add_paths(
        &self,
        block: &mut Block,
        case: &str,
        metric: &'static str,
        series: &[Series],
        bytes: u64,
    ) {
        let names = IoPath::ALL.map(IoPath::name);
        let is_pair = |top: &str, bottom: &str| bottom == names[0] && top != bottom;
        let cell = self.cell(case, (metric, "ns"), bytes);
        cell.add_all(&names, series, is_pair, block);
    }

    fn cell(&self, case: &str, metric: Metric, bytes: u64) -> Cell {
        Cell::new(case, metric, bytes).pinned(&[self.cpu])
    }
}

const TIME: &str = "time_per_page";

/// Our means with their spread, the published ones beside them, and what may be concluded.
fn verdicts(call: &str, means: &[Series], kind: Kind) -> Vec<String> {
    let mut notes = Vec::new();
    let us = |ns: f64| ns / 1000.0;
    for (path, series) in IoPath::ALL.iter().zip(means) {
        let (Some(spread), Some((mean, deviation))) =
            (series.spread(), series.mean_and_deviation())
        else {
            continue;
        };
        notes.push(format!(
            "{}, {}: mean {:.2} us, stddev {:.1} %, max {:.2}, min {:.2} ({} runs)",
            call,
            path.name(),
            us(mean),
            deviation / mean * 100.0,
            us(spread.max),
            us(spread.min),
            spread.runs
        ));
    }
    for at in 1..3 {
        let ratio = means[at].over(&means[0]).spread();
        notes.extend(ratio.map(|ratio| verdict(call, IoPath::ALL[at], ratio)));
    }
    let fields = ["allocated_us", "on_stack_us", "rw_page_us"];
    let keys = [("device", kind.name()), ("call", call)];
    for [allocated_us, on_stack_us, rw_page_us] in Table::SWAP.find(&keys, fields) {
        notes.push(format!(
            "{}, published: rw_page {:.2} us, on-stack bio {:.2}, allocated bio {:.2}: {:+.0} % and {:+.0} % over rw_page",
            call,
            rw_page_us,
            on_stack_us,
            allocated_us,
            (on_stack_us / rw_page_us - 1.0) * 100.0,
            (allocated_us / rw_page_us - 1.0) * 100.0,
        ));
    }
    notes
}

/// The verdict of the pairs of runs, if all of them agree.
fn verdict(call: &str, path: IoPath, ratio: Spread) -> String {
    let percent = (ratio.median - 1.0) * 100.0;
    let what = match () {
        () if ratio.min > 1.0 => format!("{percent:+.1} %, slower in every run"),
        () if ratio.max < 1.0 => format!("{percent:+.1} %, faster in every run"),
        () => format!("{percent:+.1} %, within the spread: no verdict"),
    };
    format!("{call}, {} over rw_page: {what}", path.name())
}

fn per_call(watch: Stopwatch, calls: usize) -> f64 {
    watch.stop().own().as_nanos() as f64 / calls as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::two_runs;

    #[test]
    fn a_verdict_needs_all_runs() {
        let spread = |ratios: Vec<f64>| Series::from(ratios).spread().unwrap();
        let said = |ratios| verdict("swap_readpage", IoPath::OnStackBio, spread(ratios));
        assert!(said(vec![1.1, 1.2, 1.05]).contains("+10.0 %, slower in every run"));
        assert!(said(vec![0.9, 0.8, 0.95]).contains("-10.0 %, faster in every run"));
        assert!(said(vec![1.1, 1.2, 0.99]).contains("no verdict"));
    }

    #[test]
    fn a_quick_run_has_every_device_call_and_path() {
        let options = Options {
            quick: true,
            ..two_runs(1)
        };
        let folder = tempfile::tempdir().unwrap();
        let args = LoadArgs {
            pattern: Pattern::Normal,
            resident: 50,
            reads: 30,
            folder: Some(folder.path().to_owned()),
            count_calls: None,
        };
        let mut bench = Bench {
            options: &options,
            args: &args,
            folder: folder.path().to_owned(),
            cpu: 0,
            progress: Progress::new(1),
        };
        for kind in [Kind::Btt, Kind::Zram] {
            let block = bench.swap(kind).unwrap();
            // Two calls, three paths, three metrics.
            assert_eq!((block.results.len(), block.ratios.len()), (18, 12));
            assert!(
                block
                    .results
                    .iter()
                    .all(|result| result.spread.runs == SWAP_RUNS_MIN)
            );
            let published = block.notes.iter().filter(|note| note.contains("published"));
            assert_eq!(published.count(), 2, "{:?}", block.notes);
        }
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            0,
            "no file is left"
        );
    }
}
