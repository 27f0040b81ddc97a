//! Suite `locks`: what guards an entry of the slot table. The engine's bit whose waiters sleep; the four locks an
//! entry and the one of the table that zram chose from in 2014.
//!
//! `published.rs` holds what was published then, `claims.rs` says what of it holds here, and what was
//! aimed at.

mod claims;
mod published;

use uzram::{PerCpuStreams, SleepingBit, SlotLock};

use crate::error::Result;
use crate::progress::Progress;
use crate::report::{Block, Column, Findings, Matrix, Ratio};
use crate::suite::Options;
use crate::suite::contention::cells::{Cells, SYSTEM, THROUGHPUT, USER, WORST};
use crate::suite::contention::content::Content;
use crate::suite::contention::crew::Layout;
use crate::suite::contention::disk::{Disk, KernelZram, Variant, store};
use crate::suite::contention::patterns::{FIO, IOZONE, Test};
use crate::suite::contention::rounds::{Plan, measure};
use crate::suite::contention::{matrix_threads, scale as checked_scale};
use crate::variants::locks::{EntryCas, EntryRwLock, EntrySpinlock, SpinningBit, TableRwLock};

use published::{Published, Table};

/// How many times smaller than published iozone's files are.
const SCALE: u32 = 16;
const SCALE_QUICK: u32 = 64;
/// fio's loops at scale 1; 3000 as published would only do the same again.
const LOOPS: u32 = 16;
/// The same of tests that only read: a raw page is read in a small part of the time that it takes to write.
const READ_LOOPS: u32 = 256;
/// Threads of the published tables.
const PUBLISHED_THREADS: usize = 4;

const ENGINE: &str = "uzram-sleeping-bit";
const TABLE: &str = "table-rwlock";

/// The locks, in a store with the engine's streams.
const LOCKS: [Variant<'static>; 6] = [
    Variant::store(ENGINE, with::<SleepingBit>),
    Variant::store("bit-spinlock", with::<SpinningBit>),
    Variant::store("rwlock", with::<EntryRwLock>),
    Variant::store("spinlock", with::<EntrySpinlock>),
    Variant::store("cas", with::<EntryCas>),
    Variant::store(TABLE, with::<TableRwLock>),
];

/// Bytes of an entry of the slot table with each of the locks.
const ENTRY_BYTES: [usize; 6] = [
    8 * SleepingBit::ENTRY_WORDS,
    8 * SpinningBit::ENTRY_WORDS,
    8 * EntryRwLock::ENTRY_WORDS,
    8 * EntrySpinlock::ENTRY_WORDS,
    8 * EntryCas::ENTRY_WORDS,
    8 * TableRwLock::ENTRY_WORDS,
];

fn with<L: SlotLock + 'static>(algorithm: &str, bytes: u64) -> Result<Box<dyn Disk>> {
    store::<L, _>(algorithm, bytes, PerCpuStreams::new()?, None)
}

/// The scale, checked.
///
/// # Errors
/// [`Error::Usage`](crate::error::Error::Usage).
pub(crate) fn scale(asked: Option<u32>, quick: bool) -> Result<u32> {
    let default = if quick { SCALE_QUICK } else { SCALE };
    checked_scale(
        asked,
        default,
        published::IOZONE_BYTES * PUBLISHED_THREADS as u64,
    )
}

/// Runs the suite: iozone's table, fio's table, and fio's tests over the threads.
pub(crate) fn run(options: &Options, scale: u32, findings: &mut Findings) -> Result<()> {
    let bytes = iozone_layout(scale).disk_bytes();
    let kernel = KernelZram::acquire(options, bytes.max(published::FIO_DEVICE_BYTES), findings);
    let mut variants = Vec::from(LOCKS);
    variants.extend(kernel.as_ref().map(Variant::kernel));
    let threads = matrix_threads(options.threads, options.quick);
    let mut cells = Cells::default();
    let measured = rounds(options, scale, &threads, &variants, &mut cells);
    let published = Published::parse();
    findings
        .blocks
        .push(iozone(options, scale, &published, &cells));
    findings
        .blocks
        .push(fio(options, scale, &published, &cells));
    for test in &FIO {
        findings.blocks.extend(over_threads(test, &threads, &cells));
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
    let mixed = Content::mixed(&options.corpora)?;
    let random = Content::random()?;
    let mut progress = Progress::new(1 + threads.len());
    let algorithm = &options.algorithms[0];
    let plan = Plan {
        algorithm,
        variants,
        tests: &IOZONE,
        content: &mixed,
        layout: iozone_layout(scale),
        case: &|test| format!("iozone/{test}"),
    };
    measure(&plan, options, cells, &mut progress)?;
    for &threads in threads {
        let plan = Plan {
            algorithm,
            variants,
            tests: &FIO,
            content: &random,
            layout: fio_layout(threads, scale),
            case: &|test| case(test, threads),
        };
        measure(&plan, options, cells, &mut progress)?;
    }
    Ok(())
}

/// As published: four threads, records of 16 KiB, a file of 200 MB each.
fn iozone_layout(scale: u32) -> Layout {
    let record_bytes = 16 << 10;
    let records = published::IOZONE_BYTES / u64::from(scale) / record_bytes as u64;
    Layout {
        threads: PUBLISHED_THREADS,
        record_bytes,
        records: records as u32,
        loops: 1,
        read_loops: 1,
        is_shared: false,
    }
}

/// As published: all threads on the whole of one device of 10 MB, blocks of 32 KiB.
fn fio_layout(threads: usize, scale: u32) -> Layout {
    let record_bytes = 32 << 10;
    Layout {
        threads,
        record_bytes,
        records: (published::FIO_DEVICE_BYTES / record_bytes as u64) as u32,
        loops: (LOOPS / scale).max(1),
        read_loops: (READ_LOOPS / scale).max(1),
        is_shared: true,
    }
}

fn case(test: &str, threads: usize) -> String {
    format!("{test}/jobs={threads}")
}

fn iozone(options: &Options, scale: u32, published: &Published, cells: &Cells) -> Block {
    let layout = iozone_layout(scale);
    let case = |test: &Test| format!("iozone/{}", test.name);
    let mut block = published_block(published, Table::Iozone, &IOZONE, &case, cells);
    block.title = format!(
        "iozone: {PUBLISHED_THREADS} threads, records of 16 KiB, {}, a file of {:.1} MiB each, {scale} times smaller \
         than published",
        options.algorithms[0],
        layout.file_bytes() as f64 / f64::from(1 << 20)
    );
    let entries = LOCKS.iter().zip(ENTRY_BYTES);
    let entries: Vec<String> = entries
        .map(|(lock, bytes)| format!("{} {bytes}", lock.name))
        .collect();
    block.notes = vec![
        format!("Bytes of an entry of the slot table: {}.", entries.join(", ")),
        "published: zram, 2014, a kernel on a Core2 Quad with ext4 between; base is the rwlock on the table. A \
         verdict needs all runs on one side; of equals, one pair in 64 has 7 runs on one side by chance."
            .to_owned(),
    ];
    block
}

fn fio(options: &Options, scale: u32, published: &Published, cells: &Cells) -> Block {
    let threads = PUBLISHED_THREADS.min(options.threads);
    let case = |test: &Test| case(test.name, threads);
    let mut block = published_block(published, Table::Fio, &FIO, &case, cells);
    let Layout {
        loops, read_loops, ..
    } = fio_layout(threads, scale);
    block.title = format!(
        "fio: {threads} jobs on all of one device of 10 MB, blocks of 32 KiB, random pages; loops: {loops}, of reads \
         {read_loops}, published 3000"
    );
    block.claims.extend(claims::of_mixed_rows(&case, cells));
    block
}

/// A published table beside what was measured.
fn published_block(
    published: &Published,
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
    results.extend(published.rows(table, tests));
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
        claims: claims::of_a_table(published, table, tests, case, cells),
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
    let matrices = figures.map(|(title, metric)| Matrix {
        title: title.to_owned(),
        columns: columns(metric.0).collect(),
        ..Matrix::default()
    });
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

/// The locks but the table's.
fn entry_locks() -> impl Iterator<Item = &'static str> {
    LOCKS
        .iter()
        .map(|lock| lock.name)
        .filter(|name| *name != TABLE)
}

fn matrix(title: &str, columns: impl Iterator<Item = (&'static str, String)>) -> Matrix {
    let columns = columns.map(|(head, case)| Column::median(head, &case, THROUGHPUT.0));
    Matrix {
        title: title.to_owned(),
        columns: columns.collect(),
        ..Matrix::default()
    }
}

#[cfg(test)]
mod tests;
