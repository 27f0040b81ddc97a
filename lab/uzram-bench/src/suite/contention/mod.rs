//! Many threads on one small disk: what the suites `streams` and `locks` share.
//!
//! A *layout* says how many threads do iozone's or fio's tests, in which records, each to a file of its own or
//! all to the same one. In a run each variant gets a fresh disk and all tests are done on it, as the published
//! comparisons did; variants take turns, and only whole runs count. Nothing is pinned, and there are more
//! threads than CPUs: what happens to who holds something then is the question.
//!
//! Whatever a test wrote is read back and compared.

pub(crate) mod claims;
pub(crate) mod published;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::figures::Metric;
use crate::job::buffers::{Buffers, Pages};
use crate::job::target::{File, Make, Variant};
use crate::job::{Calls, Clock, Job, Mix, Order, Sharing, Test, iozone};
use crate::machine;
use crate::peers::kernel_zram::Kernel;
use crate::peers::{Missing, Peer};
use crate::progress::Progress;
use crate::report::Findings;
use crate::side::Side;
use crate::suite::rows::{self, Cells, Figure, Row, THROUGHPUT};
use crate::suite::turns::Runs;
use crate::suite::{Options, Run};

/// Threads up to which the matrices go where nothing else is said, as published.
pub(crate) const THREADS: usize = 10;
/// The codec of all published comparisons of streams and locks.
pub(crate) const ALGORITHM: &str = "lzo";
/// How many times smaller than published a disk can be made.
const SCALE_MAX: u32 = 512;
/// The part of the memory that the system can still give that a disk may take, were nothing compressed.
const MEMORY_PART: u64 = 2;
/// The case of all tests of a run together.
pub(crate) const ALL_TESTS: &str = "all-tests";

pub(crate) const USER: Metric = ("cpu_user", "ms");
pub(crate) const SYSTEM: Metric = ("cpu_system", "ms");
pub(crate) const WORST: Metric = ("worst_record", "ms");
pub(crate) const SLOW_PATH: Metric = ("slow_path", "of 1000 writes");
pub(crate) const SLEEPS: Metric = ("sleeps_for_a_stream", "of 1000 writes");

pub(crate) const FIGURES: [Figure; 6] = [
    (THROUGHPUT, |done| {
        Some(done.bytes as f64 / f64::from(1 << 20) / done.elapsed.as_secs_f64())
    }),
    (USER, |done| Some(done.cpu.user.as_secs_f64() * 1e3)),
    (SYSTEM, |done| Some(done.cpu.system.as_secs_f64() * 1e3)),
    (WORST, |done| Some(done.worst_ns as f64 / 1e6)),
    (SLOW_PATH, |done| {
        done.of_written_pages(done.counts.slow_path_writes, 1e3)
    }),
    (SLEEPS, |done| {
        done.of_written_pages(done.counts.sleeps, 1e3)
    }),
];

/// iozone's tests without fwrite and fread: those go through the C library's buffers and the page cache, of
/// which there are none here.
pub(crate) fn iozone_tests() -> impl Iterator<Item = Test> {
    let tests = iozone::TESTS.into_iter().map(|(_, test)| test);
    tests.filter(|test| test.calls != Calls::Buffered)
}

/// fio's tests of the published comparison of locks.
pub(crate) const FIO: [Test; 4] = [
    fio("seq-write", Order::Forward, Mix::Writes),
    fio("seq-read", Order::Forward, Mix::Reads),
    fio("seq-rw", Order::Forward, Mix::Half),
    fio("rand-rw", Order::Random, Mix::Half),
];

const fn fio(name: &'static str, order: Order, mix: Mix) -> Test {
    Test {
        name,
        title: name,
        order,
        mix,
        calls: Calls::Positioned,
    }
}

/// How many threads do what to which part of the disk.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) threads: usize,
    pub(crate) record_bytes: u64,
    /// Whole records.
    pub(crate) file_bytes: u64,
    pub(crate) sharing: Sharing,
    /// Times that a test goes over its file, and one that only reads.
    pub(crate) loops: [u32; 2],
    pub(crate) pages: Arc<Pages>,
}

impl Layout {
    /// The tests as a row, each in its case.
    pub(crate) fn row(
        &self,
        tests: impl Iterator<Item = Test>,
        case: impl Fn(&str) -> String,
        all: Option<String>,
    ) -> Row {
        let jobs = tests.zip(1..).map(|(test, nth)| {
            let job = Job {
                name: test.name.to_owned(),
                order: test.order,
                mix: test.mix,
                calls: Calls::Positioned,
                block_bytes: self.record_bytes,
                size_bytes: self.file_bytes,
                workers: self.threads as u32,
                sharing: self.sharing,
                loops: self.loops[usize::from(test.mix == Mix::Reads)],
                seed: nth,
                buffers: Buffers::Pages(Arc::clone(&self.pages)),
                is_direct: true,
                clock: Clock::LastDone,
                starts_fresh: nth == 1,
            };
            (case(test.name), job)
        });
        Row {
            label: String::new(),
            fill: None,
            jobs: jobs.collect(),
            all,
        }
    }
}

/// Measures `rows` on `variants` and the kernel's zram; what was measured until a failure.
pub(crate) fn measure(
    rows: &[Row],
    variants: &[(&'static str, Make)],
    options: &Options,
    findings: &mut Findings,
) -> (Cells, Result<()>) {
    let mut cells = Cells::new(&FIGURES);
    let algorithm = options.algorithms[0].as_str();
    let name = Peer::KernelZram.name();
    let mut kernel = None;
    if options.against(Peer::KernelZram) {
        let bytes = rows.iter().map(Row::device_bytes).max().unwrap_or(0);
        match Kernel::default().acquire(algorithm, bytes) {
            Ok(device) => kernel = Some(Arc::new(device)),
            Err(reason) => findings.missing.push(Missing::new(name, reason)),
        }
    }
    let mut progress = Progress::new(rows.len());
    let measured = rows.iter().try_for_each(|row| {
        let bytes = row.device_bytes();
        let ours = variants
            .iter()
            .map(|&of| Variant::new(of, algorithm, bytes));
        let mut sides: Vec<_> = ours.map(|variant| Side::on(variant, None)).collect();
        sides.extend(kernel.as_ref().map(|device| {
            let file = File::kernel_zram(name, Arc::clone(device), bytes);
            Side::on(file, None)
        }));
        let turns = (row.jobs[0].0.as_str(), Runs::AtLeast(0), false);
        let rows = std::slice::from_ref(row);
        rows::measure(rows, turns, &mut sides, options, &mut cells, &mut progress)
    });
    (cells, measured)
}

/// Arguments of the two suites.
#[derive(Clone, Debug, clap::Args)]
pub struct ContentionArgs {
    /// Arguments of every suite
    #[command(flatten)]
    pub suite: crate::args::SuiteArgs,
    /// Disks and files so many times smaller than published, 1 to 512. Default: streams 64, with
    /// --quick 256; locks 16, with --quick 64
    #[arg(long, value_name = "N")]
    pub scale: Option<u32>,
}

/// The run of a suite at the scale asked for, else at its own: the first, or the second with `--quick`.
///
/// # Errors
/// Those of [`scale`].
pub(crate) fn plan(
    options: &Options,
    args: &ContentionArgs,
    defaults: [u32; 2],
    published_bytes: u64,
    run: fn(&Options, u32, &mut Findings) -> Result<()>,
) -> Result<Run> {
    let default = defaults[usize::from(options.quick)];
    let scale = scale(args.scale, default, published_bytes)?;
    Ok(Box::new(move |options, findings| {
        run(options, scale, findings)
    }))
}

/// The scale asked for, or `default`, of a suite that takes `published_bytes` at scale 1.
///
/// # Errors
/// [`Error::Usage`] if it is none, or memory does not suffice.
fn scale(asked: Option<u32>, default: u32, published_bytes: u64) -> Result<u32> {
    let scale = asked.unwrap_or(default);
    if !(1..=SCALE_MAX).contains(&scale) {
        return Err(Error::Usage(format!("scale {scale}: 1 to {SCALE_MAX}")));
    }
    let bytes = published_bytes / u64::from(scale);
    let available_bytes = machine::available_memory_bytes().unwrap_or(u64::MAX);
    if bytes > available_bytes / MEMORY_PART {
        let least = published_bytes.div_ceil((available_bytes / MEMORY_PART).max(1));
        return Err(Error::Usage(format!(
            "scale {scale}: a disk of {} MiB is more than half of the memory that is free; take {least} or more",
            bytes >> 20
        )));
    }
    Ok(scale)
}

/// The numbers of threads of a matrix: all up to `most`, for a quick look a few of them.
pub(crate) fn matrix_threads(most: usize, is_quick: bool) -> Vec<usize> {
    let all = 1..=most;
    match is_quick {
        true => all.filter(|n| [1, 2, 4, most].contains(n)).collect(),
        false => all.collect(),
    }
}

/// A list of numbers in words: `1-3, 5`.
pub(crate) fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => runs.push((number, number)),
        }
    }
    let words = runs.iter().map(|(start, end)| match start == end {
        true => start.to_string(),
        false => format!("{start}-{end}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_within_its_limits_and_the_memory() {
        assert_eq!(scale(None, 64, 1 << 30).unwrap(), 64);
        assert_eq!(scale(Some(512), 64, 1 << 30).unwrap(), 512);
        for (asked, said) in [(0, "scale 0: 1 to 512"), (513, "scale 513: 1 to 512")] {
            let error = scale(Some(asked), 64, 1 << 30).unwrap_err();
            assert_eq!((error.exit_status(), error.to_string().as_str()), (2, said));
        }
        let error = scale(Some(1), 64, 1 << 50).unwrap_err().to_string();
        assert!(
            error.starts_with("scale 1: a disk of 1073741824 MiB"),
            "{error}"
        );
        assert!(error.contains("; take "), "{error}");
    }

    #[test]
    fn a_quick_matrix_has_the_ends_and_some_between() {
        assert_eq!(matrix_threads(10, true), [1, 2, 4, 10]);
        assert_eq!(matrix_threads(2, true), [1, 2]);
        assert_eq!(matrix_threads(3, false), [1, 2, 3]);
    }

    #[test]
    fn numbers_are_named_by_their_runs() {
        assert_eq!(ranges(&[1, 2, 3, 5, 7, 8]), "1-3, 5, 7-8");
        assert_eq!(ranges(&[]), "");
    }
}
