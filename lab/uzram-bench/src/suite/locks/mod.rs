//! Suite `locks`: what guards an entry of the slot table. The engine's bit whose waiters sleep; the four locks an
//! entry and the one of the table that zram chose from in 2014.
//!
//! `published.rs` holds what was published then, `claims.rs` says what of it holds here, and what was
//! aimed at.

mod claims;
mod kinds;
mod published;

use std::sync::Arc;

use crate::error::Result;
use crate::job::buffers::Pages;
use crate::job::{Sharing, Test};
use crate::peers::Peer;
use crate::report::{Block, Column, Findings, Matrix, Ratio};
use crate::suite::contention::{
    ALGORITHM, ContentionArgs, FIO, Layout, SYSTEM, USER, WORST, iozone_tests, matrix_threads,
    measure, plan,
};
use crate::suite::rows::{Cells, THROUGHPUT};
use crate::suite::{Options, Suite, Work};

use kinds::{ENGINE, ENTRY_BYTES, LOCKS, TABLE, case, entry_locks};
use published::Table;

/// How many times smaller than published iozone's files are, and with `--quick`.
const SCALES: [u32; 2] = [16, 64];
/// fio's loops at scale 1; 3000 as published would only do the same again.
const LOOPS: u32 = 16;
/// The same of tests that only read: a raw page is read in a small part of the time that it takes to write.
const READ_LOOPS: u32 = 256;
/// Threads of the published tables.
const PUBLISHED_THREADS: usize = 4;

/// The suite.
pub(crate) const SUITE: Suite<ContentionArgs> = Suite {
    name: "locks",
    peers: &Peer::CONTENTION,
    algorithms: &[ALGORITHM],
    corpus: None,
    work: Work::Matrix,
    plan: |options, args| {
        plan(
            options,
            args,
            SCALES,
            published::IOZONE_BYTES * PUBLISHED_THREADS as u64,
            run,
        )
    },
};

/// Runs the suite: iozone's table, fio's table, and fio's tests over the threads.
fn run(options: &Options, scale: u32, findings: &mut Findings) -> Result<()> {
    let threads = matrix_threads(options.threads, options.quick);
    let layout = iozone_layout(scale, Arc::new(Pages::of(&options.corpora)?));
    let mut rows = vec![layout.row(iozone_tests(), |test| format!("iozone/{test}"), None)];
    let random = Arc::new(Pages::random()?);
    rows.extend(threads.iter().map(|&threads| {
        let layout = fio_layout(threads, scale, Arc::clone(&random));
        layout.row(FIO.into_iter(), |test| case(test, threads), None)
    }));
    let (cells, measured) = measure(&rows, &LOCKS, options, findings);
    let blocks = &mut findings.blocks;
    blocks.push(iozone(options, scale, layout.file_bytes, &cells));
    blocks.push(fio(options, scale, &cells));
    for test in &FIO {
        blocks.extend(over_threads(test, &threads, &cells));
    }
    measured
}

/// As published: four threads, records of 16 KiB, a file of 200 MB each.
fn iozone_layout(scale: u32, pages: Arc<Pages>) -> Layout {
    let record_bytes = 16 << 10;
    let file_bytes = published::IOZONE_BYTES / u64::from(scale);
    Layout {
        threads: PUBLISHED_THREADS,
        record_bytes,
        file_bytes: file_bytes / record_bytes * record_bytes,
        sharing: Sharing::Apart,
        loops: [1; 2],
        pages,
    }
}

/// As published: all threads on the whole of one device of 10 MB, blocks of 32 KiB.
fn fio_layout(threads: usize, scale: u32, pages: Arc<Pages>) -> Layout {
    Layout {
        threads,
        record_bytes: 32 << 10,
        file_bytes: published::FIO_DEVICE_BYTES,
        sharing: Sharing::Together,
        loops: fio_loops(scale),
        pages,
    }
}

/// Of tests that write, and of those that only read.
fn fio_loops(scale: u32) -> [u32; 2] {
    [LOOPS, READ_LOOPS].map(|loops| (loops / scale).max(1))
}

fn iozone(options: &Options, scale: u32, file_bytes: u64, cells: &Cells) -> Block {
    let case = |test: &Test| format!("iozone/{}", test.name);
    let mut block = published_block(
        Table::Iozone,
        &iozone_tests().collect::<Vec<_>>(),
        &case,
        cells,
    );
    block.title = format!(
        "iozone: {PUBLISHED_THREADS} threads, records of 16 KiB, {}, a file of {:.1} MiB each, {scale} times smaller \
         than published",
        options.algorithms[0],
        file_bytes as f64 / f64::from(1 << 20)
    );
    let entries = LOCKS.iter().zip(ENTRY_BYTES);
    let entries: Vec<String> = entries
        .map(|((lock, _), bytes)| format!("{lock} {bytes}"))
        .collect();
    block.notes = vec![
        format!("Bytes of an entry of the slot table: {}.", entries.join(", ")),
        "published: zram, 2014, a kernel on a Core2 Quad with ext4 between; base is the rwlock on the table. A \
         verdict needs all runs on one side; of equals, one pair in 64 has 7 runs on one side by chance."
            .to_owned(),
    ];
    block
}

fn fio(options: &Options, scale: u32, cells: &Cells) -> Block {
    let threads = PUBLISHED_THREADS.min(options.threads);
    let case = |test: &Test| case(test.name, threads);
    let mut block = published_block(Table::Fio, &FIO, &case, cells);
    let [loops, read_loops] = fio_loops(scale);
    block.title = format!(
        "fio: {threads} jobs on all of one device of 10 MB, blocks of 32 KiB, random pages; loops: {loops}, of reads \
         {read_loops}, published 3000"
    );
    block.claims.extend(claims::of_mixed_rows(&case, cells));
    block
}

/// A published table beside what was measured.
fn published_block(
    table: Table,
    tests: &[Test],
    case: &dyn Fn(&Test) -> String,
    cells: &Cells,
) -> Block {
    let mut results = Vec::new();
    for test in tests {
        let mut rows = cells.results(|known| known == case(test));
        // The figures over the threads have them under their own name.
        rows.iter_mut()
            .for_each(|row| row.case = published::beside(table, test.name));
        results.extend(rows);
    }
    results.extend(table.rows(tests));
    let measured = tests
        .iter()
        .map(|test| (test.name, published::beside(table, test.name)));
    let there = tests
        .iter()
        .map(|test| (test.name, published::case(table, test.name)));
    Block {
        ratios: tests
            .iter()
            .flat_map(|test| ratios(&case(test), cells))
            .collect(),
        claims: claims::of_a_table(table, tests, case, cells),
        matrices: vec![matrix("MiB/s", measured), matrix("published MiB/s", there)],
        results,
        ..Block::default()
    }
}

/// A test of fio's over the threads; `None` before there are figures.
fn over_threads(test: &Test, threads: &[usize], cells: &Cells) -> Option<Block> {
    let results = cells.results(|case| {
        let name = case.split_once('/').map(|(name, _)| name);
        name == Some(test.name)
    });
    if results.is_empty() {
        return None;
    }
    let columns = |metric: &'static str| {
        threads.iter().map(move |threads| {
            Column::median(&format!("j={threads}"), &case(test.name, *threads), metric)
        })
    };
    let figures = [
        ("MiB/s", THROUGHPUT),
        ("user ms", USER),
        ("system ms", SYSTEM),
        ("worst record ms", WORST),
    ];
    let matrices = figures.map(|(title, metric)| Matrix::of(title, columns(metric.0)));
    let cases = threads.iter().map(|threads| case(test.name, *threads));
    Some(Block {
        title: format!("{}: fio's, over the jobs", test.name),
        ratios: cases.flat_map(|case| ratios(&case, cells)).collect(),
        claims: claims::over_threads(test.name, threads, cells),
        matrices: matrices.to_vec(),
        results,
        ..Block::default()
    })
}

/// Each lock of an entry over the table's, and the engine's over the bit that spins.
fn ratios(case: &str, cells: &Cells) -> Vec<Ratio> {
    let over_table = entry_locks().filter_map(|lock| cells.ratio(case, lock, TABLE));
    over_table
        .chain(cells.ratio(case, ENGINE, "bit-spinlock"))
        .collect()
}

fn matrix(title: &str, columns: impl Iterator<Item = (&'static str, String)>) -> Matrix {
    let columns = columns.map(|(head, case)| Column::median(head, &case, THROUGHPUT.0));
    Matrix::of(title, columns)
}

#[cfg(test)]
mod tests;
