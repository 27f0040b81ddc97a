//! The command line of `uzram-bench`, checked into options, and the run from there to the report.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;

use crate::aims;
use crate::args::{SuiteArgs, With};
use crate::command;
use crate::corpus::{self, Corpus};
use crate::earlier;
use crate::error::{Error, Result};
use crate::folder;
use crate::machine::{self, Machine};
use crate::peers::Peer;
use crate::plain;
use crate::published;
use crate::render::{self, RenderArgs};
use crate::report::{self, Built, Findings, Report};
use crate::saved::Saved;
use crate::stop::Stop;
use crate::suite::contention::{self, ContentionArgs};
use crate::suite::{Options, Schedule, Suite, Work};
use crate::suite::{
    codecs, cold, devices, iopaths, jobs, locks, nbd, pager, pools, store, streams, survive,
};
use crate::summary::{self, SummaryArgs};
use crate::synthetic;

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
    /// The codecs: time a page and density, beside their libraries alone, others' codecs and a copy
    ///
    /// Up to 4096 pages of each corpus, each timed by itself, in one thread pinned to a CPU; the ratio
    /// with and without the pool's rounding; a matrix of jobs through the interface and past it; what
    /// the store's early rejection of random pages costs and gains. Peers: bare-library, other-levels (of
    /// words, auto and zstd), snappy, wkdm (the codec for pages of 1999), memcpy.
    Codecs(SuiteArgs),
    /// Cold pages: recompression and writing back, the memory that they gain and the time that they take
    ///
    /// A store is filled, and six of ten pages stay idle. They are packed again by zstd, what does not get
    /// smaller goes to a file, and then all that is idle. The passes are timed beside both codecs alone and
    /// beside direct writes to the same file, which lies where temporary files do (TMPDIR); reads beside
    /// each other. The amount of work is fixed.
    Cold(SuiteArgs),
    /// Disks that outlive their server: what that costs, and how long nobody serves when one is killed
    ///
    /// A store in files of memory takes turns with one in private memory: writes, reads, memory. It is left
    /// and opened again. Then `uzram serve --survive` with 4 GiB of content is killed 40 times. The
    /// amount of work is fixed; it takes some 8 GiB of memory, with --quick half of one.
    Survive(SuiteArgs),
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
    ///
    /// Then a program with more strings than its memory cgroup allows swaps to each (`--only swap`),
    /// also beside a busy loop per CPU (`--only swap-busy`). The machine must have no other swap.
    Devices(With<devices::DevicesArgs>),
    /// RAM devices under swap: brd, pmem, btt and zram, each by rw_page, on-stack and allocated bio
    ///
    /// First random pages of 1 GiB against memcpy (1 GiB more, and files as large), then what a path
    /// costs to a device that does nothing, then a program with more pages than memory that swaps
    /// to each device by each path. What was published about the kernel's stands beside; a
    /// difference counts only if every run agrees. Pages come from the first corpus, zram's codec
    /// is the first algorithm. Instructions are counted if valgrind is there.
    Iopaths(With<iopaths::LoadArgs>),
    /// The allocators: every pool, malloc and mimalloc; density and latencies
    ///
    /// First the published comparison of ztree, zsmalloc, z3fold and zbud is done again: two streams
    /// of writes and reads on disks of 1000, 1500 and 2048 MiB. Then objects of the sizes that the
    /// corpora compress to are stored, 16384 to 1048576 of them: bytes of memory a stored byte after
    /// a fill, after ten random overwrites of everything, after half is discarded, and what goes
    /// back; insert, remove and access beyond a plain copy. The amount of work is fixed, so there is
    /// no --seconds; it takes up to 3 GiB of memory. Peers: malloc, mimalloc.
    Pools(SuiteArgs),
    /// Compressed memory of a process beside swap to the kernel's zram, in single faults and patterns
    ///
    /// First pages that all have left are touched one by one, in order, and with gaps, and leave again.
    /// Then a program with 1.25 to 4 times as many pages as fit touches them in pmbench's patterns; then
    /// one whose pages all fit. Each turn is a program of its own with swap of its own; the kernel's
    /// sides are limited by a memory cgroup. Pages are synthetic-mixed unless --corpus names others; the
    /// amount of work is fixed. Peers: kernel-zram-swap (lz4, a free /dev/zram* or one made for this;
    /// root), loop-swap (`uzram up --swap`, lz4), small-pages and huge-pages (memory that fits). The
    /// machine must have no other swap.
    Pager(With<pager::PagerArgs>),
    /// iozone's and fio's jobs of your own, or the published table of zram's compression interface
    ///
    /// The table by which the compression interface was judged, 1 to 10 jobs, each figure beside what was
    /// published: throughput with its spread, CPU time, writes that took the slow path. Sizes are the published
    /// ones over --scale; the amount of work is fixed, so there are neither --seconds nor --threads. The codec is
    /// lzo, as published, unless --algorithm names others. Peer: kernel-zram. The tables by which per-CPU streams
    /// and slot locks were judged are in suites streams and locks.
    ///
    /// Jobs of your own, in the words of either program, run on any --on: in this process, over NBD, on
    /// a block device or a file; on the latter two beside fio itself. A device that is in use is never
    /// touched, one that holds data only if --destroy names it.
    #[command(after_help = JOBS_EXAMPLES)]
    Jobs(With<jobs::JobsArgs>),
    /// Streams: one a CPU, an idle list of max_comp_streams, one; 1 to 10 threads, iozone's tests
    ///
    /// The comparison by which zram's streams became per-CPU is done again in the engine's own store: T
    /// threads, each with a file of its own, records of 8 T KiB, more threads than CPUs. Throughput,
    /// CPU time, worst record, slow path and sleeps for a stream, T by T, beside what was published.
    /// All corpora are mixed; the codec is lzo, as published, or --algorithm. --threads says how
    /// far T goes, 64 at most. It takes some five minutes, with --quick one. Peer: kernel-zram
    /// (as in suite store).
    Streams(With<ContentionArgs>),
    /// Slot locks: the engine's, four others an entry, one for the table; iozone's and fio's tests
    ///
    /// The comparison by which zram's table lock went into its entries is done again in the engine's own
    /// store: iozone's tests with 4 threads, and fio's on one device of 10 MB on which all jobs meet,
    /// with 1 to 10 jobs, or up to --threads. Codec, corpora and peer as in suite streams.
    Locks(With<ContentionArgs>),
    /// A report's JSON as a table of a quarter of its length, on stdout
    Summary(SummaryArgs),
    /// A report's JSON as a table of every figure, on stdout, or as a page; also beside an earlier one
    Render(RenderArgs),
}

const JOBS_EXAMPLES: &str = "Examples:
  uzram-bench jobs --quick
  uzram-bench jobs --algorithm lz4 --corpus heap.pages --html jobs.html
  uzram-bench jobs --iozone '-t 4 -r 16K -s 64M -I -+Z' --on engine --on nbd
  uzram-bench jobs --on /dev/ram0 \\
    --fio 'rw=randrw bs=4k size=64m numjobs=2 buffer_compress_percentage=50'";

/// Measures, and prints the report: after a failure or Ctrl-C, of what was measured until then.
///
/// # Errors
/// [`Error::Usage`] before anything is measured if the arguments cannot be, else what failed.
pub fn run(args: Args) -> Result<()> {
    match args {
        Args::Store(args) => measure(&store::SUITE, &args, &()),
        Args::Codecs(args) => measure(&codecs::SUITE, &args, &()),
        Args::Cold(args) => measure(&cold::SUITE, &args, &()),
        Args::Survive(args) => measure(&survive::SUITE, &args, &()),
        Args::Nbd(args) => measure(&nbd::SUITE, &args, &()),
        Args::Devices(args) => match devices::child(&args.own) {
            Some(done) => done,
            None => measure(&devices::SUITE, &args.suite, &args.own),
        },
        Args::Pager(args) => match pager::child(&args.own) {
            Some(done) => done,
            None => measure(&pager::SUITE, &args.suite, &args.own),
        },
        Args::Pools(args) => measure(&pools::SUITE, &args, &()),
        Args::Iopaths(args) => match iopaths::count_calls(&args.own) {
            Some(counted) => counted,
            None => measure(&iopaths::SUITE, &args.suite, &args.own),
        },
        Args::Jobs(args) => measure(&jobs::SUITE, &args.suite, &args.own),
        Args::Streams(args) => measure(&streams::SUITE, &args.suite, &args.own),
        Args::Locks(args) => measure(&locks::SUITE, &args.suite, &args.own),
        Args::Summary(args) => summary::run(&args),
        Args::Render(args) => render::run(&args),
    }
}

/// Measures a suite, with what every suite takes and what it takes besides.
fn measure<A>(suite: &Suite<A>, args: &SuiteArgs, own: &A) -> Result<()> {
    let options = options(suite, args)?;
    let earlier = earlier(suite, args, &options)?;
    folder::undo_dead_runs();
    let run = (suite.plan)(&options, own)?;
    // Found out now rather than after minutes of measuring.
    command::check_writable("json", args.json.as_deref())?;
    command::check_writable("html", args.html.as_deref())?;
    if !report::is_optimised() {
        eprintln!("uzram-bench: WARNING: a build without optimisation; its figures mean NOTHING");
    }
    let machine = Machine::survey();
    if let Some(earlier) = &earlier {
        earlier::check_machine(earlier, &machine)?;
    }
    let mut findings = Findings::default();
    let measured = run(&options, &mut findings);
    // Ctrl-C also reaches the servers, whose end then looks like a failure.
    let measured = options.stop.check().and(measured);
    aims::apply(suite.name, args.aims, &mut findings.blocks);
    published::keep_asked(args.aims, args.published, &mut findings.blocks);
    let report = Report {
        suite: suite.name,
        command: command::line("uzram-bench"),
        built: Built::this(),
        machine,
        corpora: options.corpora.iter().map(Into::into).collect(),
        blocks: findings.blocks,
        missing: findings.missing,
        stopped: measured.as_ref().err().map(ToString::to_string),
        headline: None,
    };
    deliver(&report, args, earlier.as_ref())?;
    measured
}

/// The earlier report that `--against` names.
fn earlier<A>(suite: &Suite<A>, args: &SuiteArgs, options: &Options) -> Result<Option<Saved>> {
    let (files, _) = earlier::told_apart(&args.against);
    match &files[..] {
        [] => Ok(None),
        [file] => earlier::load(Path::new(file), suite.name, &options.corpora).map(Some),
        [_, second, ..] => Err(Error::Usage(format!(
            "against {second}: one earlier run at a time; leave the others out"
        ))),
    }
}

/// Prints the report and writes the files asked for.
fn deliver(report: &Report, args: &SuiteArgs, earlier: Option<&Saved>) -> Result<()> {
    if let Some(path) = &args.json {
        report::write_json(report, path)?;
    }
    if let Some(path) = &args.html {
        report::write_html(report, path)?;
    }
    if report.stopped.is_some() && report.blocks.is_empty() {
        return Ok(());
    }
    let printed = match args.table || args.aims || args.published {
        true => report::print_table(report),
        false => plain::print(report),
    };
    let printed = printed.and_then(|()| {
        let beside = earlier.map(|earlier| earlier::render(report, earlier));
        io::stdout()
            .lock()
            .write_all(beside.unwrap_or_default().as_bytes())
    });
    let printed = printed.or_else(command::ignore_closed_pipe);
    printed.map_err(|error| Error::io("standard output", error))
}

fn options<A>(suite: &Suite<A>, args: &SuiteArgs) -> Result<Options> {
    let name = suite.name;
    let (_, peers) = earlier::told_apart(&args.against);
    let peers = Peer::parse(&peers, suite.peers)?;
    let algorithms = algorithms(&args.algorithms, &suite.algorithms())?;
    let threads = match suite.work {
        Work::Matrix => matrix_threads(args.threads)?,
        Work::Timed | Work::Fixed | Work::Published => {
            threads(args.threads, machine::allowed_cpus().len())?
        }
    };
    let mut schedule = schedule(args.seconds, args.quick)?;
    if matches!(suite.work, Work::Fixed | Work::Published) && args.seconds.is_some() {
        let why = "does a fixed amount of work; leave it out, or use --quick";
        return Err(Error::Usage(format!("seconds: suite {name} {why}")));
    }
    if suite.work == Work::Published && args.threads.is_some() {
        let why = "has 1 to 10; for others name them in --iozone or --fio";
        return Err(Error::Usage(format!("threads: suite {name} {why}")));
    }
    let mut corpora = corpora(&args.corpora)?;
    if let (Some(only), true) = (suite.corpus, args.corpora.is_empty()) {
        corpora.retain(|corpus| corpus.name == only);
    }
    if suite.work == Work::Matrix {
        if let [_, second, ..] = &algorithms[..] {
            let why = "one algorithm at a time; leave the others out";
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
        return Ok(synthetic::corpora());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn args(change: impl FnOnce(&mut SuiteArgs)) -> SuiteArgs {
        let mut args = SuiteArgs::default();
        change(&mut args);
        args
    }

    fn refused<A>(suite: &Suite<A>, change: impl FnOnce(&mut SuiteArgs)) -> String {
        let error = options(suite, &args(change)).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        let text = error.to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    }

    #[test]
    fn what_cannot_be_measured_is_refused_in_one_line() {
        let said = refused(&nbd::SUITE, |args| args.against = vec!["memcpy".into()]);
        assert!(said.contains("one of nbdkit-memory, nbdkit-zstd"));
        let said = refused(&store::SUITE, |args| args.algorithms = vec!["lz5".into()]);
        assert!(said.starts_with("algorithm \"lz5\": unknown; one of auto, lz4"));
        let corpora = |corpora: Vec<PathBuf>| refused(&store::SUITE, |args| args.corpora = corpora);
        assert!(corpora(vec!["/none.pages".into()]).starts_with("corpus /none.pages: "));
        let many = corpora(vec!["/none".into(); 65]);
        assert_eq!(many, "65 corpora: at most 64 at once");
        let seconds = |seconds| refused(&store::SUITE, |args| args.seconds = Some(seconds));
        assert_eq!(seconds(0), "seconds 0: at least 1");
        assert_eq!(seconds(3601), "seconds 3601: at most 3600");
        let said = refused(&pools::SUITE, |args| args.seconds = Some(3));
        assert!(said.starts_with("seconds: suite pools does a fixed"));
        let threads = |threads| refused(&store::SUITE, |args| args.threads = Some(threads));
        assert_eq!(threads(0), "threads 0: at least 1");
        assert!(threads(65).starts_with("threads 65: at most "));
        for suite in [&streams::SUITE, &locks::SUITE] {
            let threads = |threads| refused(suite, |args| args.threads = Some(threads));
            assert_eq!(threads(65), "threads 65: at most 64");
            assert_eq!(threads(0), "threads 0: at least 1");
            let said = refused(suite, |args| args.seconds = Some(0));
            assert_eq!(said, "seconds 0: at least 1");
            let said = refused(suite, |args| args.against = vec!["memcpy".into()]);
            let unknown = "peer \"memcpy\": unknown to this suite; one of kernel-zram";
            assert_eq!(said, unknown);
            let two = || vec!["lz4".into(), "lzo".into()];
            let said = refused(suite, |args| args.algorithms = two());
            assert!(said.starts_with("algorithm \"lzo\": suite "));
            let most = options(suite, &args(|args| args.threads = Some(64)));
            let default = options(suite, &SuiteArgs::default()).unwrap();
            assert_eq!(most.unwrap().threads, 64);
            assert_eq!((default.threads, default.algorithms.len()), (10, 1));
            let own = ContentionArgs { scale: Some(0) };
            assert!((suite.plan)(&default, &own).is_err());
        }
    }

    /// A paragraph is one line of the source, which clap wraps; two that are wrapped again look broken.
    #[test]
    fn help_after_the_options_fits_a_terminal_or_is_wrapped_once() {
        let command = <Args as Subcommand>::augment_subcommands(clap::Command::new("x"));
        let of_suites = command
            .get_subcommands()
            .filter_map(clap::Command::get_after_help);
        let texts: Vec<String> = of_suites.map(ToString::to_string).collect();
        assert!(!texts.is_empty());
        for line in texts.iter().flat_map(|text| text.lines()) {
            assert!(line.len() <= 80 || line.ends_with('.'), "{line}");
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
    fn no_arguments_mean_everything() {
        let options = options(&store::SUITE, &SuiteArgs::default()).unwrap();
        assert_eq!(options.peers, Peer::STORE);
        assert_eq!(options.algorithms, uzram::algorithms());
        assert_eq!(options.corpora.len(), 3);
        assert_eq!(options.schedule.runs_min, 7);
    }

    #[test]
    fn every_suite_has_a_name_of_its_own_and_measures_what_there_is() {
        fn check<A>(suite: &Suite<A>) {
            let command = <Args as Subcommand>::augment_subcommands(clap::Command::new("x"));
            let name = suite.name;
            assert!(command.find_subcommand(name).is_some(), "{name}");
            assert!(!suite.algorithms().is_empty(), "{name}");
            let options = options(suite, &SuiteArgs::default()).unwrap();
            assert!(!options.corpora.is_empty(), "{name}");
        }
        let plain = [
            store::SUITE,
            codecs::SUITE,
            cold::SUITE,
            survive::SUITE,
            nbd::SUITE,
            pools::SUITE,
        ];
        plain.iter().for_each(check);
        check(&devices::SUITE);
        check(&pager::SUITE);
        check(&iopaths::SUITE);
        check(&jobs::SUITE);
        check(&streams::SUITE);
        check(&locks::SUITE);
    }
}
