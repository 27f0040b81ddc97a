//! Suite `iopaths`: page-sized I/O to RAM devices, as published for the kernel's swap in 2017.
//!
//! Three things are measured. What a device does itself: random pages against memcpy on pages of the same
//! size. What a way to it costs: calls of a device that does nothing. And both under swap: a load in
//! the manner of pmbench over the swap layer, each device by each path, the mean of each run's calls.
//! Sides take turns, and ratios are taken run by run.

mod counts;
mod devices;
mod load;
mod published;

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use uzram::{BlockDevice, PageIndex, PageTransfer, Persistence};
use uzram_pager::swap::{IoPath, Latency, SwapArea};

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::machine::{self, Stopwatch};
use crate::mapping::{Backing, Mapping};
use crate::progress::Progress;
use crate::report::{Aim, Block, Findings, Measured, Ratio};
use crate::rng::Rng;
use crate::sample::{Series, Spread};
use crate::suite::Options;
use devices::{Kind, Nothing};
use load::{Load, Plan};

pub use load::Pattern;

/// Working set against memcpy, in bytes, and with --quick.
const RANDOM_BYTES: [u64; 2] = [1 << 30, 64 << 20];
/// Pages of the swapping program, and with --quick.
const PROGRAM_PAGES: [usize; 2] = [16_384, 4_096];
/// Runs of each device and path under swap, as published.
const SWAP_RUNS_MIN: usize = 10;
/// Calls of one run of a path to nothing.
const PATH_CALLS: u64 = 100_000;
/// What a path may cost over the device's own work, in nanoseconds.
const PATH_AIM_NS: f64 = 60.0;
/// Pages of one run at least.
const PART_PAGES_MIN: usize = 16_384;
/// Pages written in turn, to be found in the caches as a program's are.
const SOURCE_PAGES: usize = 64;

/// What the swapping program does, and where files are.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadArgs {
    /// Which page the swapping program touches next
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

/// Does what the hidden option asks for, if it is there.
pub(crate) fn count_calls(args: &LoadArgs) -> Option<Result<()>> {
    args.count_calls.as_deref().map(counts::child)
}

/// Runs the suite.
pub(crate) fn run(options: &Options, args: &LoadArgs, findings: &mut Findings) -> Result<()> {
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
        pinned: cpu.to_string(),
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
    /// Time of the device over the base's at most: for reads, for writes.
    aims: [Option<f64>; 2],
}

/// The aims against memcpy are shares of its speed: 0.85 and 0.9.
const PAIRS: [Pair; 4] = [
    Pair {
        base: None,
        device: Kind::Brd,
        persistence: Persistence::Never,
        suffix: "",
        aims: [Some(1.18), Some(1.18)],
    },
    Pair {
        base: None,
        device: Kind::Pmem,
        persistence: Persistence::Never,
        suffix: "",
        aims: [Some(1.11), Some(1.11)],
    },
    Pair {
        base: Some(Kind::Pmem),
        device: Kind::Btt,
        persistence: Persistence::Never,
        suffix: ", no flushes",
        aims: [None, Some(1.6)],
    },
    Pair {
        base: Some(Kind::Pmem),
        device: Kind::Btt,
        persistence: Persistence::Cpu,
        suffix: ", with flushes",
        aims: [None, Some(2.8)],
    },
];

/// One side on random pages.
enum Side {
    Memcpy(Mapping),
    Device(Arc<dyn BlockDevice>),
}

impl Side {
    fn read(&self, page: usize, buffer: &mut [u8; PAGE_BYTES]) -> Result<()> {
        match self {
            Side::Memcpy(memory) => {
                buffer.copy_from_slice(&memory[page * PAGE_BYTES..][..PAGE_BYTES]);
                Ok(())
            }
            Side::Device(device) => {
                let transfer = PageTransfer::Read(buffer);
                Ok(device.rw_page(PageIndex(page as u64), transfer)?)
            }
        }
    }

    fn write(&mut self, page: usize, data: &[u8; PAGE_BYTES]) -> Result<()> {
        match self {
            Side::Memcpy(memory) => {
                memory[page * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(data);
                Ok(())
            }
            Side::Device(device) => {
                let transfer = PageTransfer::Write(data);
                Ok(device.rw_page(PageIndex(page as u64), transfer)?)
            }
        }
    }
}

struct Bench<'a> {
    options: &'a Options,
    args: &'a LoadArgs,
    folder: PathBuf,
    pinned: String,
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
        let base = match pair.base {
            None => {
                let memory = Mapping::new(bytes as usize, Backing::Small);
                Side::Memcpy(memory.map_err(|error| Error::io("memory for memcpy", error))?)
            }
            Some(kind) => Side::Device(self.make(kind, bytes, pair.persistence)?),
        };
        let device = Side::Device(self.make(pair.device, bytes, pair.persistence)?);
        let mut sides = [base, device];
        let mut source = vec![[0; PAGE_BYTES]; SOURCE_PAGES];
        let mut rng = Rng::new(3);
        source.iter_mut().for_each(|page| rng.fill(page));
        let mut order: Vec<usize> = (0..pages).collect();
        rng.shuffle(&mut order);
        for side in &mut sides {
            // First touches are another story.
            for page in 0..pages {
                side.write(page, &source[page % SOURCE_PAGES])?;
            }
        }
        let name = |kind: Kind| format!("{}{}", kind.name(), pair.suffix);
        let names = [
            pair.base.map_or("memcpy".to_owned(), name),
            name(pair.device),
        ];
        let schedule = self.options.schedule;
        let mut series: [[Series; 2]; 2] = Default::default();
        let started = Instant::now();
        // What kept the thread from running is known to a millisecond or so.
        let part = pages.div_ceil(8).max(PART_PAGES_MIN).min(pages);
        let mut buffer = [0; PAGE_BYTES];
        let mut runs = 0;
        while schedule.wants_more(runs, started.elapsed()) {
            self.options.stop.check()?;
            self.progress
                .at(&names[1], schedule.part(runs, started.elapsed()));
            let chosen = &order[runs % (pages / part) * part..][..part];
            for turn in 0..2 {
                // The other side begins each run.
                let at = (turn + runs) % 2;
                let watch = Stopwatch::start();
                for page in chosen {
                    sides[at].read(*page, &mut buffer)?;
                    black_box(&mut buffer);
                }
                series[0][at].push(per_call(watch, part));
                let watch = Stopwatch::start();
                for page in chosen {
                    sides[at].write(*page, black_box(&source[page % SOURCE_PAGES]))?;
                }
                series[1][at].push(per_call(watch, part));
            }
            runs += 1;
        }
        for (operation, (series, aim)) in series.iter().zip(pair.aims).enumerate() {
            let case = format!(
                "{}{}/{}",
                pair.device.name(),
                pair.suffix,
                ["random-read", "random-write"][operation]
            );
            for (name, series) in names.iter().zip(series) {
                block
                    .results
                    .extend(self.measured(&case, name, TIME, series, bytes));
            }
            let (device, base) = (
                (names[1].as_str(), &series[1]),
                (names[0].as_str(), &series[0]),
            );
            let aim = aim.map(Aim::AtMost);
            block
                .ratios
                .extend(Ratio::of(&case, TIME, device, base, aim));
        }
        self.progress.step();
        Ok(())
    }

    /// What each way costs to a device that does nothing.
    fn paths(&mut self) -> Result<Block> {
        let mut block = Block {
            title: "a path to a device that does nothing".to_owned(),
            ..Block::default()
        };
        let mut series: [Series; 3] = Default::default();
        let schedule = self.options.schedule;
        let started = Instant::now();
        let mut runs = 0;
        while schedule.wants_more(runs, started.elapsed()) {
            self.options.stop.check()?;
            self.progress
                .at("paths", schedule.part(runs, started.elapsed()));
            for turn in 0..3 {
                let at = (turn + runs) % 3;
                let watch = Stopwatch::start();
                counts::call(black_box(&Nothing), IoPath::ALL[at], PATH_CALLS)?;
                series[at].push(per_call(watch, PATH_CALLS as usize));
            }
            runs += 1;
        }
        self.add_paths(&mut block, "nothing/write", TIME, &series, 0);
        for (path, series) in IoPath::ALL.iter().zip(&series).take(2) {
            let Some(spread) = series.spread() else {
                continue;
            };
            let verdict = if spread.median <= PATH_AIM_NS {
                "met"
            } else {
                "missed"
            };
            block.notes.push(format!(
                "{}: {:.1} ns over the device's own work; aim: at most {PATH_AIM_NS} ns, {verdict}",
                path.name(),
                spread.median
            ));
        }
        match counts::instructions() {
            Ok(counts) => {
                for (path, count) in IoPath::ALL.iter().zip(counts) {
                    block.results.extend(self.measured_in(
                        "nothing/write",
                        path.name(),
                        ("instructions", "instructions"),
                        &Series::from(vec![count]),
                        0,
                    ));
                }
            }
            Err(why) => block.notes.push(format!("no instruction counts: {why}")),
        }
        self.progress.step();
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
        for load in &mut loads {
            load.fill()?;
            load.run(working_set / 2)?;
        }
        let mut calls = [Calls::new("swap_writepage"), Calls::new("swap_readpage")];
        let schedule = self.options.schedule;
        let started = Instant::now();
        let mut runs = 0;
        while runs < SWAP_RUNS_MIN || schedule.wants_more(runs, started.elapsed()) {
            self.options.stop.check()?;
            self.progress
                .at(kind.name(), schedule.part(runs, started.elapsed()));
            for turn in 0..3 {
                let at = (turn + runs) % 3;
                areas[at].write_latency().reset();
                areas[at].read_latency().reset();
                loads[at].run(working_set)?;
                calls[0].add(at, areas[at].write_latency());
                calls[1].add(at, areas[at].read_latency());
            }
            runs += 1;
        }
        for calls in &calls {
            for (metric, series) in [(MEAN, &calls.mean), (P50, &calls.p50), (P99, &calls.p99)] {
                let case = format!("{}/{} {metric}", kind.name(), calls.name);
                self.add_paths(&mut block, &case, metric, series, bytes);
            }
            block.notes.extend(verdicts(calls, kind));
        }
        if kind == Kind::Zram {
            block.notes.extend(published::ZRAM.map(str::to_owned));
        }
        self.progress.step();
        Ok(block)
    }

    /// Adds the paths' figures, and the ratios of the longer ones to `rw_page`.
    fn add_paths(
        &self,
        block: &mut Block,
        case: &str,
        metric: &'static str,
        series: &[Series; 3],
        bytes: u64,
    ) {
        let names = IoPath::ALL.map(IoPath::name);
        for (name, series) in names.iter().zip(series) {
            block
                .results
                .extend(self.measured(case, name, metric, series, bytes));
        }
        for at in 1..3 {
            let (longer, shortest) = ((names[at], &series[at]), (names[0], &series[0]));
            block
                .ratios
                .extend(Ratio::of(case, metric, longer, shortest, None));
        }
    }

    fn measured(
        &self,
        case: &str,
        variant: &str,
        metric: &'static str,
        series: &Series,
        bytes: u64,
    ) -> Option<Measured> {
        self.measured_in(case, variant, (metric, "ns"), series, bytes)
    }

    fn measured_in(
        &self,
        case: &str,
        variant: &str,
        (metric, unit): (&'static str, &'static str),
        series: &Series,
        bytes: u64,
    ) -> Option<Measured> {
        Some(Measured {
            case: case.to_owned(),
            variant: variant.to_owned(),
            metric,
            unit,
            spread: series.spread()?,
            working_set_bytes: bytes,
            pinned: Some(self.pinned.clone()),
        })
    }
}

const TIME: &str = "time_per_page";
const MEAN: &str = "mean";
const P50: &str = "p50";
const P99: &str = "p99";

/// One call's figures by each path, a figure a run.
struct Calls {
    name: &'static str,
    mean: [Series; 3],
    p50: [Series; 3],
    p99: [Series; 3],
}

impl Calls {
    fn new(name: &'static str) -> Calls {
        Calls {
            name,
            mean: Default::default(),
            p50: Default::default(),
            p99: Default::default(),
        }
    }

    fn add(&mut self, path: usize, latency: &Latency) {
        let summary = latency.summary();
        self.mean[path].push(summary.mean_ns);
        self.p50[path].push(summary.p50_ns as f64);
        self.p99[path].push(summary.p99_ns as f64);
    }
}

/// Our means with their spread, the published ones beside them, and what may be concluded.
fn verdicts(calls: &Calls, kind: Kind) -> Vec<String> {
    let mut notes = Vec::new();
    let us = |ns: f64| ns / 1000.0;
    for (path, series) in IoPath::ALL.iter().zip(&calls.mean) {
        let (Some(spread), Some((mean, deviation))) =
            (series.spread(), series.mean_and_deviation())
        else {
            continue;
        };
        notes.push(format!(
            "{}, {}: mean {:.2} us, stddev {:.1} %, max {:.2}, min {:.2} ({} runs)",
            calls.name,
            path.name(),
            us(mean),
            deviation / mean * 100.0,
            us(spread.max),
            us(spread.min),
            spread.runs
        ));
    }
    for at in 1..3 {
        let ratio = calls.mean[at].over(&calls.mean[0]).spread();
        notes.extend(ratio.map(|ratio| verdict(calls.name, IoPath::ALL[at], ratio)));
    }
    if let Some(row) = published::row_of(kind.name(), calls.name) {
        notes.push(format!(
            "{}, published: rw_page {:.2} us, on-stack bio {:.2}, allocated bio {:.2}: {:+.0} % and {:+.0} % over rw_page",
            calls.name,
            row.rw_page_us,
            row.on_stack_us,
            row.allocated_us,
            (row.on_stack_us / row.rw_page_us - 1.0) * 100.0,
            (row.allocated_us / row.rw_page_us - 1.0) * 100.0,
        ));
    }
    notes
}

/// What the pairs of runs say: something only if all of them agree.
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
    use crate::corpus::Corpus;
    use crate::stop::Stop;
    use crate::suite::Schedule;
    use std::time::Duration;

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
            corpora: Corpus::synthetic(),
            peers: Vec::new(),
            algorithms: vec!["lz4".into()],
            threads: 1,
            schedule: Schedule {
                at_least: Duration::from_nanos(1),
                runs_min: 2,
            },
            quick: true,
            stop: Stop::default(),
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
            pinned: "0".into(),
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
