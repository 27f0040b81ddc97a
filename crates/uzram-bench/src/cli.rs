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
use crate::suite::{self, Options, Schedule, iopaths};

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
    /// An algorithm; repeatable. Default: all; for pools lz4 and zstd
    #[arg(long = "algorithm", value_name = "NAME")]
    pub algorithms: Vec<String>,
    /// Threads of the case with several, at most one a CPU; 1 leaves it out. Default: 2 if possible
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Time for each case, at least. Default: 5, with --quick 1
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
    let (suite, args, load) = match args {
        Args::Store(args) => (Suite::Store, args, None),
        Args::Codecs(args) => (Suite::Codecs, args, None),
        Args::Nbd(args) => (Suite::Nbd, args, None),
        Args::Pools(args) => (Suite::Pools, args, None),
        Args::Iopaths(args) => (Suite::Iopaths, args.suite, Some(args.load)),
    };
    if let Some(counted) = load.as_ref().and_then(iopaths::count_calls) {
        return counted;
    }
    let options = options(suite, &args)?;
    // Found out now rather than after minutes of measuring.
    check_writable("json", args.json.as_deref())?;
    check_writable("html", args.html.as_deref())?;
    if !report::is_optimised() {
        eprintln!("uzram: WARNING: a build without optimisation; its figures mean NOTHING");
    }
    let machine = Machine::survey();
    let mut findings = Findings::default();
    let measured = match (suite, load) {
        (Suite::Store, _) => suite::store::run(&options, &mut findings),
        (Suite::Codecs, _) => suite::codecs::run(&options, &mut findings),
        (Suite::Pools, _) => suite::pools::run(&options, &mut findings),
        (Suite::Iopaths, Some(load)) => iopaths::run(&options, &load, &mut findings),
        (Suite::Nbd | Suite::Iopaths, _) => suite::nbd::run(&options, &mut findings),
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suite {
    Store,
    Codecs,
    Nbd,
    Pools,
    Iopaths,
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Suite::Store => "store",
            Suite::Codecs => "codecs",
            Suite::Nbd => "nbd",
            Suite::Pools => "pools",
            Suite::Iopaths => "iopaths",
        }
    }

    fn peers(self) -> &'static [Peer] {
        match self {
            Suite::Store => &Peer::STORE,
            Suite::Codecs => &Peer::CODECS,
            Suite::Nbd => &Peer::NBD,
            Suite::Pools => &Peer::POOLS,
            // memcpy is no choice here.
            Suite::Iopaths => &[],
        }
    }

    /// The algorithms that are measured where none is named.
    fn algorithms(self) -> Vec<&'static str> {
        let mut known = uzram::algorithms();
        if self == Suite::Pools {
            known.retain(|name| suite::pools::ALGORITHMS.contains(name));
        }
        known
    }
}

fn options(suite: Suite, args: &SuiteArgs) -> Result<Options> {
    let peers = Peer::parse(&args.peers, suite.peers())?;
    let algorithms = algorithms(&args.algorithms, &suite.algorithms())?;
    let threads = threads(args.threads, machine::allowed_cpus().len())?;
    if suite == Suite::Pools && args.seconds.is_some() {
        let why = "seconds: suite pools does a fixed amount of work; leave it out, or use --quick";
        return Err(Error::Usage(why.to_owned()));
    }
    let schedule = schedule(args.seconds, args.quick)?;
    Ok(Options {
        corpora: corpora(&args.corpora)?,
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
