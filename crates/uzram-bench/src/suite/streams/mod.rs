//! Suite `streams`: how writers share the compressors. Each CPU's own stream, which is the engine's; the idle
//! list of `max_comp_streams` that zram had before; one stream for all.
//!
//! `published.rs` holds what was published when zram went from the one to the other, `claims.rs` says what of it
//! holds here, and what was aimed at.

mod claims;
mod published;

use uzram::{PerCpuStreams, SleepingBit};

use crate::error::Result;
use crate::progress::Progress;
use crate::report::{Block, Column, Findings, Matrix};
use crate::suite::Options;
use crate::suite::contention::cells::{Cells, SLEEPS, SLOW_PATH, SYSTEM, THROUGHPUT, USER, WORST};
use crate::suite::contention::content::Content;
use crate::suite::contention::crew::Layout;
use crate::suite::contention::disk::{Disk, KernelZram, Variant, store};
use crate::suite::contention::patterns::IOZONE;
use crate::suite::contention::rounds::{ALL_TESTS, Plan, measure};
use crate::suite::contention::{matrix_threads, scale as checked_scale};
use crate::variants::streams::{IdleList, OneStream, Sleeps};

use published::{DISK_BYTES, Published};

/// How many times smaller than published the disk is.
const SCALE: u32 = 64;
const SCALE_QUICK: u32 = 256;

const PER_CPU: &str = "uzram-per-cpu";
const IDLE_8: &str = "idle-list-8";
const IDLE_4: &str = "idle-list-4";
const IDLE_1: &str = "idle-list-1";
const ONE: &str = "one-stream";

/// The policies, in a store with the engine's slot lock.
const POLICIES: [Variant<'static>; 5] = [
    Variant::store(PER_CPU, |algorithm, bytes| {
        store::<SleepingBit, _>(algorithm, bytes, PerCpuStreams::new()?, None)
    }),
    Variant::store(IDLE_8, |algorithm, bytes| idle_list(algorithm, bytes, 8)),
    Variant::store(IDLE_4, |algorithm, bytes| idle_list(algorithm, bytes, 4)),
    Variant::store(IDLE_1, |algorithm, bytes| idle_list(algorithm, bytes, 1)),
    Variant::store(ONE, |algorithm, bytes| {
        let sleeps = Sleeps::default();
        let streams = OneStream::new(sleeps.clone());
        store::<SleepingBit, _>(algorithm, bytes, streams, Some(sleeps))
    }),
];

fn idle_list(algorithm: &str, bytes: u64, most: usize) -> Result<Box<dyn Disk>> {
    let sleeps = Sleeps::default();
    let streams = IdleList::new(most, sleeps.clone());
    store::<SleepingBit, _>(algorithm, bytes, streams, Some(sleeps))
}

/// The scale, checked.
///
/// # Errors
/// [`Error::Usage`](crate::error::Error::Usage).
pub(crate) fn scale(asked: Option<u32>, quick: bool) -> Result<u32> {
    let default = if quick { SCALE_QUICK } else { SCALE };
    checked_scale(asked, default, DISK_BYTES)
}

/// Runs the suite: a block for all tests together, and one for each.
pub(crate) fn run(options: &Options, scale: u32, findings: &mut Findings) -> Result<()> {
    let kernel = KernelZram::acquire(options, DISK_BYTES / u64::from(scale), findings);
    let mut variants = Vec::from(POLICIES);
    variants.extend(kernel.as_ref().map(Variant::kernel));
    let threads = matrix_threads(options.threads, options.quick);
    let mut cells = Cells::default();
    let measured = rounds(options, scale, &threads, &variants, &mut cells);
    let published = Published::parse();
    findings
        .blocks
        .push(summary(options, scale, &threads, &published, &cells));
    for test in &IOZONE {
        let block = block(test.name, test.published, &threads, &published, &cells);
        findings.blocks.extend(block);
    }
    measured
}

fn rounds(
    options: &Options,
    scale: u32,
    threads: &[usize],
    variants: &[Variant<'_>],
    cells: &mut Cells,
) -> Result<()> {
    let content = Content::mixed(&options.corpora)?;
    let mut progress = Progress::new(threads.len());
    for &threads in threads {
        let plan = Plan {
            algorithm: &options.algorithms[0],
            variants,
            tests: &IOZONE,
            content: &content,
            layout: layout(threads, scale),
            case: &|test| case(test, threads),
        };
        measure(&plan, options, cells, &mut progress)?;
    }
    Ok(())
}

/// As published: records of 8 KiB a thread, and files that fill the disk but for a tenth.
fn layout(threads: usize, scale: u32) -> Layout {
    let record_bytes = 8192 * threads;
    let file_bytes = DISK_BYTES / u64::from(scale) / threads as u64 / 10 * 9;
    let records = u32::try_from(file_bytes / record_bytes as u64).unwrap_or(u32::MAX);
    Layout {
        threads,
        record_bytes,
        records: records.max(1),
        loops: 1,
        read_loops: 1,
        is_shared: false,
    }
}

fn case(test: &str, threads: usize) -> String {
    format!("{test}/T={threads}")
}

fn is_of(test: &str, case: &str) -> bool {
    case.split_once('/').is_some_and(|(name, _)| name == test)
}

/// All tests of a round together: what a run of iozone takes.
fn summary(
    options: &Options,
    scale: u32,
    threads: &[usize],
    published: &Published,
    cells: &Cells,
) -> Block {
    let figures = [
        ("MiB/s", THROUGHPUT),
        ("user ms", USER),
        ("system ms", SYSTEM),
        ("worst record ms", WORST),
        ("slow path of 1000 writes", SLOW_PATH),
        ("sleeps of 1000 writes", SLEEPS),
    ];
    let matrices = figures.map(|(title, metric)| matrix(title, ALL_TESTS, metric.0, threads, ""));
    let mut block = Block {
        title: format!(
            "all tests: iozone's in turn, {} on a disk of {} MiB, {scale} times smaller than published",
            options.algorithms[0],
            (DISK_BYTES / u64::from(scale)) >> 20,
        ),
        notes: vec![
            "Throughput of T threads, each with a file of its own and records of 8 T KiB, and the CPU time of \
             them all. fwrite and fread are left out: they measure the C library's buffers."
                .to_owned(),
            "published: zram, March 2016, a kernel on 4 CPUs, ext4 between. A verdict needs all runs on one \
             side; of equals, one pair in 64 has 7 runs on one side by chance."
                .to_owned(),
        ],
        results: cells.results(|case| is_of(ALL_TESTS, case)),
        claims: claims::of_all_tests(threads, published, cells),
        matrices: matrices.to_vec(),
        ..Block::default()
    };
    block.ratios = ratios(ALL_TESTS, threads, cells);
    block
}

/// One test, over the threads; `None` before there are figures.
fn block(
    test: &str,
    title: &str,
    threads: &[usize],
    published: &Published,
    cells: &Cells,
) -> Option<Block> {
    let mut results = cells.results(|case| is_of(test, case));
    if results.is_empty() {
        return None;
    }
    results.extend(published.rows(test, title, threads));
    Some(Block {
        title: format!("{title}: over the threads"),
        notes: Vec::new(),
        ratios: ratios(test, threads, cells),
        claims: claims::of_a_test(test, title, threads, published, cells),
        matrices: vec![
            matrix("MiB/s", test, THROUGHPUT.0, threads, ""),
            matrix(
                "published MiB/s",
                test,
                THROUGHPUT.0,
                threads,
                published::PREFIX,
            ),
        ],
        results,
        ..Block::default()
    })
}

/// The engine's policy over each other one.
fn ratios(test: &str, threads: &[usize], cells: &Cells) -> Vec<crate::report::Ratio> {
    let pairs = threads
        .iter()
        .flat_map(|threads| others().map(move |other| (case(test, *threads), other)));
    pairs
        .filter_map(|(case, other)| cells.ratio(&case, PER_CPU, other))
        .collect()
}

/// The policies but the engine's.
fn others() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().skip(1).map(|variant| variant.name)
}

fn matrix(
    title: &str,
    test: &str,
    metric: &'static str,
    threads: &[usize],
    prefix: &str,
) -> Matrix {
    let columns = threads.iter().map(|threads| {
        let place = format!("T={threads}");
        Column::median(&place, &format!("{test}/{prefix}{place}"), metric)
    });
    Matrix {
        title: title.to_owned(),
        columns: columns.collect(),
        ..Matrix::default()
    }
}

#[cfg(test)]
mod tests;
