//! Suite `streams`: how writers share the compressors. Each CPU's own stream, which is the engine's; the idle
//! list of `max_comp_streams` that zram had before; one stream for all.
//!
//! `published.rs` holds what was published when zram went from the one to the other, `claims.rs` says what of it
//! holds here, and what was aimed at.

mod claims;
mod policies;
mod published;

use std::sync::Arc;

use crate::error::Result;
use crate::job::Sharing;
use crate::job::buffers::Pages;
use crate::peers::Peer;
use crate::report::{Block, Column, Findings, Matrix};
use crate::suite::contention::{
    ALGORITHM, ALL_TESTS, ContentionArgs, Layout, SLEEPS, SLOW_PATH, SYSTEM, USER, WORST,
    iozone_tests, matrix_threads, measure, plan,
};
use crate::suite::rows::{Cells, Row, THROUGHPUT};
use crate::suite::{Options, Suite, Work};

use crate::published::Table;
use policies::{PER_CPU, POLICIES, case, others};
use published::DISK_BYTES;

/// How many times smaller than published the disk is, and with `--quick`.
const SCALES: [u32; 2] = [64, 256];

/// The suite.
pub(crate) const SUITE: Suite<ContentionArgs> = Suite {
    name: "streams",
    peers: &Peer::CONTENTION,
    algorithms: &[ALGORITHM],
    corpus: None,
    work: Work::Matrix,
    plan: |options, args| plan(options, args, SCALES, DISK_BYTES, run),
};

/// Runs the suite: a block for all tests together, and one for each.
fn run(options: &Options, scale: u32, findings: &mut Findings) -> Result<()> {
    let threads = matrix_threads(options.threads, options.quick);
    let pages = Arc::new(Pages::of(&options.corpora)?);
    let rows = threads.iter().map(|&threads| {
        let layout = layout(threads, scale, &pages);
        let all = case(ALL_TESTS, threads);
        layout.row(iozone_tests(), |test| case(test, threads), Some(all))
    });
    let rows: Vec<Row> = rows.collect();
    let (cells, measured) = measure(&rows, &POLICIES, options, findings);
    let published = Table::streams();
    findings
        .blocks
        .push(summary(options, scale, &threads, &published, &cells));
    for test in iozone_tests() {
        let block = block(test.name, test.title, &threads, &published, &cells);
        findings.blocks.extend(block);
    }
    measured
}

/// As published: records of 8 KiB a thread, and files that fill the disk but for a tenth.
fn layout(threads: usize, scale: u32, pages: &Arc<Pages>) -> Layout {
    let record_bytes = 8192 * threads as u64;
    let file_bytes = DISK_BYTES / u64::from(scale) / threads as u64 / 10 * 9;
    Layout {
        threads,
        record_bytes,
        file_bytes: (file_bytes / record_bytes).max(1) * record_bytes,
        sharing: Sharing::Apart,
        loops: [1; 2],
        pages: Arc::clone(pages),
    }
}

fn is_of(test: &str, case: &str) -> bool {
    case.split_once('/').is_some_and(|(name, _)| name == test)
}

/// All tests of a round together: what a run of iozone takes.
fn summary(
    options: &Options,
    scale: u32,
    threads: &[usize],
    published: &Table,
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
    published: &Table,
    cells: &Cells,
) -> Option<Block> {
    let mut results = cells.results(|case| is_of(test, case));
    if results.is_empty() {
        return None;
    }
    results.extend(published::rows(published, test, title, threads));
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
    Matrix::of(title, columns)
}

#[cfg(test)]
mod tests;
