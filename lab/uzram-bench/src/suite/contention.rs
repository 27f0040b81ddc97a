//! Many threads on one small disk: what the suites `streams` and `locks` share.
//!
//! So many threads do iozone's or fio's tests, in records of a size, each to a file of its own or all to the same one.
//! In a run each variant gets a fresh disk and all tests are done on it, as the published comparisons did; variants
//! take turns, and only whole runs count. Nothing is pinned, and there are more threads than CPUs: what happens to
//! who holds something then is the question.
//!
//! Whatever a test wrote is read back and compared.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::job::buffers::{Buffers, Pages};
use crate::job::target::{File, Make, Variant};
use crate::job::{Calls, Clock, Job, Mix, Sharing, Test};
use crate::machine;
use crate::peers::kernel_zram::Kernel;
use crate::peers::{Missing, Peer};
use crate::progress::Progress;
use crate::report::Findings;
use crate::side::Side;
use crate::suite::grid::{ALL_TESTS, Grid};
use crate::suite::rows::{self, Cells, Row};
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

/// The part of the disk that each thread works on, and how.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) record_bytes: u64,
    /// Cut to whole records, one at least.
    pub(crate) file_bytes: u64,
    pub(crate) sharing: Sharing,
    /// Times that a test goes over its file, and one that only reads.
    pub(crate) loops: [u32; 2],
    pub(crate) pages: Arc<Pages>,
}

impl Layout {
    /// The tests with so many threads as a row of `grid`.
    pub(crate) fn row(&self, grid: &Grid, tests: &[Test], threads: usize) -> Row {
        let records = (self.file_bytes / self.record_bytes).max(1);
        let jobs = tests.iter().zip(1..).map(|(test, nth)| {
            let job = Job {
                name: test.name.to_owned(),
                order: test.order,
                mix: test.mix,
                calls: Calls::Positioned,
                block_bytes: self.record_bytes,
                size_bytes: records * self.record_bytes,
                workers: threads as u32,
                sharing: self.sharing,
                loops: self.loops[usize::from(test.mix == Mix::Reads)],
                seed: nth,
                buffers: Buffers::Pages(Arc::clone(&self.pages)),
                is_direct: true,
                clock: Clock::LastDone,
                starts_fresh: nth == 1,
            };
            (grid.case(test.name, threads), job)
        });
        Row {
            fill: None,
            jobs: jobs.collect(),
            all: Some(grid.case(ALL_TESTS, threads)),
        }
    }
}

/// Measures the rows of `grids` on `variants` and the kernel's zram; reports what was measured until a failure.
pub(crate) fn measure(
    grids: &[(Grid, Vec<Row>)],
    variants: &[(&'static str, Make)],
    options: &Options,
    findings: &mut Findings,
) -> Result<()> {
    let rows: Vec<&Row> = grids.iter().flat_map(|(_, rows)| rows).collect();
    let algorithm = options.algorithms[0].as_str();
    let name = Peer::KernelZram.name();
    let mut kernel = None;
    if options.against(Peer::KernelZram) {
        let bytes = rows.iter().map(|row| row.device_bytes()).max();
        match Kernel::default().acquire(algorithm, bytes.unwrap_or(0)) {
            Ok(device) => kernel = Some(Arc::new(device)),
            Err(reason) => findings.missing.push(Missing::new(name, reason)),
        }
    }
    let (mut cells, mut progress) = (Cells::default(), Progress::new(rows.len()));
    let measured = rows.into_iter().try_for_each(|row| {
        let bytes = row.device_bytes();
        let ours = variants
            .iter()
            .map(|&of| Side::on(Variant::new(of, algorithm, bytes), None));
        let mut sides: Vec<_> = ours.collect();
        sides.extend(kernel.as_ref().map(|device| {
            let file = File::kernel_zram(name, Arc::clone(device), bytes);
            Side::on(file, None)
        }));
        let turns = (row.jobs[0].0.as_str(), Runs::AtLeast(0), false);
        let rows = std::slice::from_ref(row);
        rows::measure(rows, turns, &mut sides, options, &mut cells, &mut progress)
    });
    let blocks = grids.iter().flat_map(|(grid, _)| grid.blocks(&cells));
    findings.blocks.extend(blocks);
    measured
}

/// The further options of the two suites.
#[derive(Clone, Debug, clap::Args)]
pub struct ContentionArgs {
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
}
