//! `uzram bench`: the command line, checked into options, and the run from there to the report.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use crate::corpus::{self, Corpus};
use crate::error::{Error, Result};
use crate::machine::{self, Machine};
use crate::peers::Peer;
use crate::report::{self, Findings, Report};
use crate::stop::Stop;
use crate::suite::contention::{self, ContentionArgs};
use crate::suite::{self, Options, Schedule, iopaths, jobs};

/// Threads at most, on machines with so many CPUs.
const THREADS_MAX: usize = 64;
/// Seconds a case at most.
const SECONDS_MAX: u32 = 3600;
/// Corpora at most.
const CORPORA_MAX: usize = 64;

/// Measure uzram against its peers on this machine
#[derive(Clone, Debug, Subcommand)]
pub enum Args {
    /// The library: codec alone, memcpy, the kernel's zram; memory; several threads
    ///
    /// Pages of each corpus are repeated, in a shuffled order, to a working set of 512 MiB. All
    /// sides take turns in one thread pinned to a CPU, and ratios are taken run by run. Peers:
    /// raw-codec, memcpy, kernel-zram (a free /dev/zram* is set up and reset afterwards; one in
    /// use is never touched; needs root).
    Store(SuiteArgs),
    /// The codecs: time a page and density, beside their libraries alone and a copy
    ///
    /// Up to 4096 pages of each corpus, each timed by itself, in one thread pinned to a CPU; the ratio
    /// with and without the pool's rounding; a matrix of jobs through the interface and past it; what
    /// the store's early rejection of random pages costs and gains. Peers: bare-library, memcpy.
    Codecs(SuiteArgs),
    /// The server: 4 KiB random reads and writes over NBD, beside nbdkit's RAM disks
    ///
    /// Each server is a process of its own. Buffers come from the corpora, and in a last block from
    /// a generator like fio's buffer_compress_percentage=50 refill_buffers. Peers: nbdkit-memory,
    /// nbdkit-zstd.
    Nbd(SuiteArgs),
    /// Block devices: FUSE and loop devices under fio, vhost-user beside NBD (root)
    ///
    /// 4 KiB and 128 KiB at random places, depth 1 and 32, 1 and 4 jobs, with fio's half-compressible
    /// buffers (corpora are not used) and the first --algorithm. Peers: fuse-null (the same path to
    /// a device that stores nothing: the floor), nbdfuse over nbdkit's RAM disk, a loop device over
    /// tmpfs (not compressed), kernel-zram (a free /dev/zram*, reset afterwards).
    Devices(SuiteArgs),
    /// RAM devices under swap: brd, pmem, btt and zram, each by rw_page, on-stack and allocated bio
    ///
    /// First random pages of 1 GiB against memcpy (1 GiB more, and files as large), then what a path
    /// costs to a device that does nothing, then a program with more pages than memory that swaps
    /// to each device by each path. What was published about the kernel's stands beside; a
    /// difference counts only if every run agrees. Pages come from the first corpus, zram's codec
    /// is the first algorithm. Instructions are counted if valgrind is there.
    Iopaths(IopathsArgs),
    /// The allocators: every pool, malloc and mimalloc; density and latencies
    ///
    /// First the published comparison of ztree, zsmalloc, z3fold and zbud is done again: two streams
    /// of writes and reads on disks of 1000, 1500 and 2048 MiB. Then objects of the sizes that the
    /// corpora compress to are stored, 16384 to 1048576 of them: bytes of memory a stored byte after
    /// a fill, after ten random overwrites of everything, after half is discarded, and what goes
    /// back; insert, remove and access beyond a plain copy. The amount of work is fixed, so there is
    /// no --seconds; it takes up to 3 GiB of memory. Peers: malloc, mimalloc.
    Pools(SuiteArgs),
    /// iozone's and fio's jobs: the published tables of zram over 1 to 10 threads, or jobs of your own
    ///
    /// The tables by which per-CPU streams, slot locks and the compression interface were judged, each
    /// figure beside what was published: throughput with its spread, CPU time, writes that took the slow
    /// path. Sizes are the published ones over --scale; the amount of work is fixed, so there are
    /// neither --seconds nor --threads. The codec is lzo, as published, unless --algorithm names others;
    /// pages are synthetic-mixed unless --corpus does. Peer: kernel-zram.
    ///
    /// Jobs of your own, in the words of either program, run on any --on: in this process, over NBD, on
    /// a block device or a file; on the latter two beside fio itself. A device that is in use is never
    /// touched, one that holds data only if --destroy names it.
    #[command(after_help = JOBS_EXAMPLES)]
    Jobs(JobsSuiteArgs),
    /// Streams: one a CPU, an idle list of max_comp_streams, one; 1 to 10 threads, iozone's tests
    ///
    /// The comparison by which zram's streams became per-CPU is done again in the engine's own store: T
    /// threads, each with a file of its own, records of 8 T KiB, more threads than CPUs. Throughput,
    /// CPU time, worst record, slow path and sleeps for a stream, T by T, beside what was published.
    /// All corpora are mixed; the codec is lzo, as published, or --algorithm. --threads says how
    /// far T goes, 64 at most. It takes some five minutes, with --quick one. Peer: kernel-zram
    /// (as in suite store).
    Streams(ContentionArgs),
    /// Slot locks: the engine's, four others an entry, one for the table; iozone's and fio's tests
    ///
    /// The comparison by which zram's table lock went into its entries is done again in the engine's own
    /// store: iozone's tests with 4 threads, and fio's on one device of 10 MB on which all jobs meet,
    /// with 1 to 10 jobs, or up to --threads. Codec, corpora and peer as in suite streams.
    Locks(ContentionArgs),
}

const JOBS_EXAMPLES: &str = "Examples:
  uzram bench jobs --quick
  uzram bench jobs --algorithm lz4 --corpus heap.pages --html jobs.html
  uzram bench jobs --iozone '-t 4 -r 16K -s 64M -I -+Z' --on engine --on nbd
  uzram bench jobs --fio 'rw=randrw bs=4k size=64m numjobs=2 buffer_compress_percentage=50' --on /dev/ram0";

/// What the suite `jobs` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct JobsSuiteArgs {
    /// What every suite takes
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// Which jobs, and where
    #[command(flatten)]
    pub jobs: jobs::JobsArgs,
}

/// What the suite `iopaths` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct IopathsArgs {
    /// What every suite takes
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// The swapping program
    #[command(flatten)]
    pub load: iopaths::LoadArgs,
}

/// What every suite takes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SuiteArgs {
    /// A file of 4 KiB pages, as `uzram capture` makes them; repeatable. Default: synthetic pages
    #[arg(long = "corpus", value_name = "FILE")]
    pub corpora: Vec<PathBuf>,
    /// A peer to measure against; repeatable. Default: all of the suite's
    #[arg(long = "against", value_name = "PEER")]
    pub peers: Vec<String>,
    /// An algorithm; repeatable. Default: all; for pools lz4 and zstd; for streams and locks lzo
    #[arg(long = "algorithm", value_name = "NAME")]
    pub algorithms: Vec<String>,
    /// Threads of the case with several, at most one a CPU; 1 leaves it out. Default: 2 if possible; for
    /// streams and locks 10, at most 64
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Time for each case, at least. Default: 5, with --quick 1; none for streams and locks
    #[arg(long, value_name = "S")]
    pub seconds: Option<u32>,
    /// A smaller working set (64 MiB, which caches may hold) and fewer runs: for a first look
    #[arg(long)]
    pub quick: bool,
    /// Also write the report to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the report to FILE as one HTML page with charts, which needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Measures, and prints the report: after a failure or Ctrl-C, of what was measured until then.
///
/// # Errors
/// [`Error::Usage`] before anything is measured if the arguments cannot be, else what failed.
pub fn run(args: Args) -> Result<()> {
    let (suite, args, own) = match args {
        Args::Store(args) => (Suite::Store, args, Own::None),
        Args::Codecs(args) => (Suite::Codecs, args, Own::None),
        Args::Nbd(args) => (Suite::Nbd, args, Own::None),
        Args::Devices(args) => (Suite::Devices, args, Own::None),
        Args::Pools(args) => (Suite::Pools, args, Own::None),
        Args::Iopaths(args) => (Suite::Iopaths, args.suite, Own::Load(args.load)),
        Args::Jobs(args) => (Suite::Jobs, args.suite, Own::Jobs(args.jobs)),
        Args::Streams(args) => (Suite::Streams, args.suite, Own::Scale(args.scale)),
        Args::Locks(args) => (Suite::Locks, args.suite, Own::Scale(args.scale)),
    };
    if let Own::Load(load) = &own
        && let Some(counted) = iopaths::count_calls(load)
    {
        return counted;
    }
    let options = options(suite, &args)?;
    let plan = match &own {
        Own::Jobs(args) => Some(jobs::plan(&options, args)?),
        _ => None,
    };
    let scale = match &own {
        Own::Scale(asked) => suite.scale(*asked, args.quick)?,
        _ => 1,
    };
    // Found out now rather than after minutes of measuring.
    check_writable("json", args.json.as_deref())?;
    check_writable("html", args.html.as_deref())?;
    if !report::is_optimised() {
        eprintln!("uzram: WARNING: a build without optimisation; its figures mean NOTHING");
    }
    let machine = Machine::survey();
    let mut findings = Findings::default();
    let measured = match (suite, own, &plan) {
        (Suite::Store, ..) => suite::store::run(&options, &mut findings),
        (Suite::Codecs, ..) => suite::codecs::run(&options, &mut findings),
        (Suite::Devices, ..) => suite::devices::run(&options, &mut findings),
        (Suite::Pools, ..) => suite::pools::run(&options, &mut findings),
        (Suite::Streams, ..) => suite::streams::run(&options, scale, &mut findings),
        (Suite::Locks, ..) => suite::locks::run(&options, scale, &mut findings),
        (_, Own::Load(load), _) => iopaths::run(&options, &load, &mut findings),
        (_, _, Some(plan)) => jobs::run(&options, plan, &mut findings),
        (Suite::Nbd | Suite::Iopaths | Suite::Jobs, ..) => suite::nbd::run(&options, &mut findings),
    };
    // Ctrl-C also reaches the servers, whose end then looks like a failure.
    let measured = options.stop.check().and(measured);
    let report = Report {
        suite: suite.name(),
        command: command_line(),
        machine,
        corpora: options.corpora.iter().map(Into::into).collect(),
        blocks: findings.blocks,
        missing: findings.missing,
        stopped: measured.as_ref().err().map(ToString::to_string),
        headline: None,
    };
    deliver(&report, &args)?;
    measured
}

/// Prints the report and writes the files asked for.
fn deliver(report: &Report, args: &SuiteArgs) -> Result<()> {
    if let Some(path) = &args.json {
        report::write_json(report, path)?;
    }
    if let Some(path) = &args.html {
        report::write_html(report, path)?;
    }
    if report.stopped.is_some() && report.blocks.is_empty() {
        return Ok(());
    }
    let printed = report::print_table(report).or_else(ignore_closed_pipe);
    printed.map_err(|error| Error::io("standard output", error))
}

/// What a suite takes besides.
enum Own {
    None,
    Load(iopaths::LoadArgs),
    Jobs(jobs::JobsArgs),
    Scale(Option<u32>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suite {
    Store,
    Codecs,
    Nbd,
    Devices,
    Pools,
    Iopaths,
    Jobs,
    Streams,
    Locks,
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Suite::Store => "store",
            Suite::Codecs => "codecs",
            Suite::Nbd => "nbd",
            Suite::Devices => "devices",
            Suite::Pools => "pools",
            Suite::Iopaths => "iopaths",
            Suite::Jobs => "jobs",
            Suite::Streams => "streams",
            Suite::Locks => "locks",
        }
    }

    fn peers(self) -> &'static [Peer] {
        match self {
            Suite::Store => &Peer::STORE,
            Suite::Codecs => &Peer::CODECS,
            Suite::Nbd => &Peer::NBD,
            Suite::Devices => &Peer::DEVICES,
            Suite::Pools => &Peer::POOLS,
            Suite::Jobs => &Peer::JOBS,
            // memcpy is no choice here.
            Suite::Iopaths => &[],
            Suite::Streams | Suite::Locks => &Peer::CONTENTION,
        }
    }

    /// The algorithms that are measured where none is named.
    fn algorithms(self) -> Vec<&'static str> {
        let mut known = uzram::algorithms();
        match self {
            Suite::Pools => known.retain(|name| suite::pools::ALGORITHMS.contains(name)),
            Suite::Jobs => known.retain(|name| jobs::ALGORITHMS.contains(name)),
            _ => {}
        }
        if self.has_threads_beyond_cpus() {
            known = vec![contention::ALGORITHM];
        }
        known
    }

    /// Whether its threads are a matrix's, more of them than CPUs.
    fn has_threads_beyond_cpus(self) -> bool {
        matches!(self, Suite::Streams | Suite::Locks)
    }

    /// How many times smaller than published it is; 1 for suites without a scale.
    fn scale(self, asked: Option<u32>, quick: bool) -> Result<u32> {
        match self {
            Suite::Streams => suite::streams::scale(asked, quick),
            Suite::Locks => suite::locks::scale(asked, quick),
            _ => Ok(1),
        }
    }
}

fn options(suite: Suite, args: &SuiteArgs) -> Result<Options> {
    let peers = Peer::parse(&args.peers, suite.peers())?;
    let algorithms = algorithms(&args.algorithms, &suite.algorithms())?;
    let threads = match suite.has_threads_beyond_cpus() {
        true => matrix_threads(args.threads)?,
        false => threads(args.threads, machine::allowed_cpus().len())?,
    };
    let mut schedule = schedule(args.seconds, args.quick)?;
    if matches!(suite, Suite::Pools | Suite::Jobs) && args.seconds.is_some() {
        let name = suite.name();
        let why = "does a fixed amount of work; leave it out, or use --quick";
        return Err(Error::Usage(format!("seconds: suite {name} {why}")));
    }
    if suite == Suite::Jobs && args.threads.is_some() {
        let why = "threads: suite jobs has 1 to 10; for others name them in --iozone or --fio";
        return Err(Error::Usage(why.to_owned()));
    }
    let mut corpora = corpora(&args.corpora)?;
    if suite == Suite::Jobs && args.corpora.is_empty() {
        corpora.retain(|corpus| corpus.name == jobs::CORPUS);
    }
    if suite.has_threads_beyond_cpus() {
        if let [_, second, ..] = &algorithms[..] {
            let (name, why) = (
                suite.name(),
                "one algorithm at a time; leave the others out",
            );
            return Err(Error::Usage(format!(
                "algorithm {second:?}: suite {name} takes {why}"
            )));
        }
        // A fixed number of rounds, unless somebody wants to wait for more.
        if args.seconds.is_none() {
            schedule.at_least = Duration::ZERO;
        }
    }
    Ok(Options {
        corpora,
        peers,
        algorithms,
        threads,
        schedule,
        quick: args.quick,
        stop: Stop::on_signals()?,
    })
}

fn corpora(paths: &[PathBuf]) -> Result<Vec<Corpus>> {
    if paths.len() > CORPORA_MAX {
        let count = paths.len();
        return Err(Error::Usage(format!(
            "{count} corpora: at most {CORPORA_MAX} at once"
        )));
    }
    if paths.is_empty() {
        return Ok(Corpus::synthetic());
    }
    let loaded: Result<Vec<Corpus>> = paths.iter().map(|path| Corpus::load(path)).collect();
    let mut corpora = loaded?;
    corpus::make_names_distinct(&mut corpora);
    Ok(corpora)
}

fn algorithms(names: &[String], default: &[&str]) -> Result<Vec<String>> {
    if names.is_empty() {
        return Ok(default.iter().map(ToString::to_string).collect());
    }
    let known = uzram::algorithms();
    let mut algorithms: Vec<String> = Vec::new();
    for name in names {
        if !known.contains(&name.as_str()) {
            let list = known.join(", ");
            return Err(Error::Usage(format!(
                "algorithm {name:?}: unknown; one of {list}"
            )));
        }
        if !algorithms.contains(name) {
            algorithms.push(name.clone());
        }
    }
    Ok(algorithms)
}

fn threads(wanted: Option<usize>, cpus: usize) -> Result<usize> {
    let most = cpus.min(THREADS_MAX);
    match wanted {
        None => Ok(most.min(2)),
        Some(0) => Err(Error::Usage("threads 0: at least 1".to_owned())),
        Some(threads) if threads > most => Err(Error::Usage(format!(
            "threads {threads}: at most {most} here, one for each CPU and {THREADS_MAX} in all"
        ))),
        Some(threads) => Ok(threads),
    }
}

/// Threads of a matrix that goes beyond the CPUs.
fn matrix_threads(wanted: Option<usize>) -> Result<usize> {
    match wanted {
        None => Ok(contention::THREADS),
        Some(0) => Err(Error::Usage("threads 0: at least 1".to_owned())),
        Some(threads) if threads > THREADS_MAX => Err(Error::Usage(format!(
            "threads {threads}: at most {THREADS_MAX}"
        ))),
        Some(threads) => Ok(threads),
    }
}

fn schedule(seconds: Option<u32>, quick: bool) -> Result<Schedule> {
    let seconds = match seconds {
        None if quick => 1,
        None => 5,
        Some(0) => return Err(Error::Usage("seconds 0: at least 1".to_owned())),
        Some(seconds) if seconds > SECONDS_MAX => {
            return Err(Error::Usage(format!(
                "seconds {seconds}: at most {SECONDS_MAX}"
            )));
        }
        Some(seconds) => seconds,
    };
    let at_least = Duration::from_secs(u64::from(seconds));
    Ok(Schedule {
        at_least,
        runs_min: if quick { 3 } else { 7 },
    })
}

/// Opens the report's file for writing, without changing what is there.
pub(crate) fn check_writable(option: &str, path: Option<&std::path::Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let opened = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path);
    let refused = |error| Error::Usage(format!("{option} {}: {error}", path.display()));
    opened.map(drop).map_err(refused)
}

/// `uzram bench store | head` is no failure.
pub(crate) fn ignore_closed_pipe(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        Ok(())
    } else {
        Err(error)
    }
}

/// The command line as typed, quoted where a shell would need it; where the program lies is left out.
pub(crate) fn command_line() -> String {
    let arguments = std::env::args_os().skip(1);
    let words = std::iter::once("uzram".into())
        .chain(arguments)
        .map(|word| quoted(&word.to_string_lossy()));
    words.collect::<Vec<_>>().join(" ")
}

/// A word of a command line, quoted where a shell would need it.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(suite: Suite, args: &SuiteArgs) -> String {
        let error = options(suite, args).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        let text = error.to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    }

    #[test]
    fn what_cannot_be_measured_is_refused_in_one_line() {
        let args = SuiteArgs::default;
        let unknown = SuiteArgs {
            peers: vec!["memcpy".into()],
            ..args()
        };
        assert!(refused(Suite::Nbd, &unknown).contains("one of nbdkit-memory, nbdkit-zstd"));
        let unknown = SuiteArgs {
            algorithms: vec!["lz5".into()],
            ..args()
        };
        assert!(
            refused(Suite::Store, &unknown).starts_with("algorithm \"lz5\": unknown; one of lz4")
        );
        let missing = SuiteArgs {
            corpora: vec!["/none.pages".into()],
            ..args()
        };
        assert!(refused(Suite::Store, &missing).starts_with("corpus /none.pages: "));
        let many = SuiteArgs {
            corpora: vec!["/none".into(); 65],
            ..args()
        };
        assert_eq!(
            refused(Suite::Store, &many),
            "65 corpora: at most 64 at once"
        );
        let seconds = |seconds| SuiteArgs {
            seconds: Some(seconds),
            ..args()
        };
        assert_eq!(refused(Suite::Store, &seconds(0)), "seconds 0: at least 1");
        assert_eq!(
            refused(Suite::Store, &seconds(3601)),
            "seconds 3601: at most 3600"
        );
        let pools = SuiteArgs {
            seconds: Some(3),
            ..args()
        };
        assert!(refused(Suite::Pools, &pools).starts_with("seconds: suite pools does a fixed"));
        let threads = |threads| SuiteArgs {
            threads: Some(threads),
            ..args()
        };
        assert_eq!(refused(Suite::Store, &threads(0)), "threads 0: at least 1");
        assert!(refused(Suite::Store, &threads(65)).starts_with("threads 65: at most "));
        for suite in [Suite::Streams, Suite::Locks] {
            assert_eq!(refused(suite, &threads(65)), "threads 65: at most 64");
            assert_eq!(refused(suite, &threads(0)), "threads 0: at least 1");
            assert_eq!(refused(suite, &seconds(0)), "seconds 0: at least 1");
            let peers = SuiteArgs {
                peers: vec!["memcpy".into()],
                ..args()
            };
            let said = refused(suite, &peers);
            assert_eq!(
                said,
                "peer \"memcpy\": unknown to this suite; one of kernel-zram"
            );
            let two = SuiteArgs {
                algorithms: vec!["lz4".into(), "lzo".into()],
                ..args()
            };
            assert!(refused(suite, &two).starts_with("algorithm \"lzo\": suite "));
            assert!(suite.scale(Some(0), false).is_err());
            assert_eq!(options(suite, &threads(64)).unwrap().threads, 64);
            let default = options(suite, &args()).unwrap();
            assert_eq!((default.threads, default.algorithms.len()), (10, 1));
        }
    }

    #[test]
    fn threads_are_limited_by_the_cpus_and_by_name() {
        assert_eq!(threads(None, 1).unwrap(), 1);
        assert_eq!(threads(None, 200).unwrap(), 2);
        assert_eq!(threads(Some(64), 200).unwrap(), 64);
        assert!(threads(Some(65), 200).is_err());
        assert!(threads(Some(3), 2).is_err());
    }

    #[test]
    fn a_report_that_could_not_be_written_is_refused_before_measuring() {
        let path = std::path::Path::new("/none/report.json");
        let error = check_writable("json", Some(path)).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        assert!(error.to_string().starts_with("json /none/report.json: "));
    }

    #[test]
    fn no_arguments_mean_everything() {
        let options = options(Suite::Store, &SuiteArgs::default()).unwrap();
        assert_eq!(options.peers, Peer::STORE);
        assert_eq!(options.algorithms, uzram::algorithms());
        assert_eq!(options.corpora.len(), 3);
        assert_eq!(options.schedule.runs_min, 7);
    }
}
