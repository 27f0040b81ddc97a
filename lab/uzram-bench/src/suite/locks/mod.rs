//! Suite `locks`: what guards an entry of the slot table. The engine's bit whose waiters sleep; the four locks an
//! entry and the one of the table that zram chose from in 2014. That comparison is done again in the engine's own store,
//! beside its figures.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use uzram::lab::{PerCpuStreams, SleepingBit, SlotLock};

use crate::error::Result;
use crate::job::buffers::Pages;
use crate::job::target::{AnyStore, Make, store};
use crate::job::{Calls, Mix, Order, Sharing, Test, fio, iozone};
use crate::peers::Peer;
use crate::published::Table;
use crate::report::Findings;
use crate::suite::contention::{self, ALGORITHM, ContentionArgs, Layout, matrix_threads, plan};
use crate::suite::grid::{Grid, Published};
use crate::suite::rows::Row;
use crate::suite::{Options, Suite, Work};
use uzram_variants::locks::{EntryCas, EntryRwLock, EntrySpinlock, SpinningBit, TableRwLock};

/// iozone's file, as published.
const IOZONE_BYTES: u64 = 200 << 20;
/// fio's device, as published.
const FIO_DEVICE_BYTES: u64 = 10 << 20;
/// How many times smaller than published iozone's files are, and with `--quick`.
const SCALES: [u32; 2] = [16, 64];
/// fio's loops at scale 1, and of tests that only read: a raw page is read in a small part of the time that it takes to
/// write. 3000 as published would only do the same again.
const LOOPS: [u32; 2] = [16, 256];
/// Threads of the published tables.
const PUBLISHED_THREADS: usize = 4;

const ENGINE: &str = "uzram-sleeping-bit";
const TABLE: &str = "table-rwlock";

/// The locks, in a store with the engine's streams.
const LOCKS: [(&str, Make); 6] = [
    (ENGINE, with::<SleepingBit>),
    ("bit-spinlock", with::<SpinningBit>),
    ("rwlock", with::<EntryRwLock>),
    ("spinlock", with::<EntrySpinlock>),
    ("cas", with::<EntryCas>),
    (TABLE, with::<TableRwLock>),
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

fn with<L: SlotLock + 'static>(algorithm: &str, bytes: u64) -> Result<Box<dyn AnyStore>> {
    store::<L, _>(algorithm, bytes, PerCpuStreams::new()?, None)
}

const COLUMNS: &[(&str, &str)] = &[
    ("base_rwlock_table_kbps", TABLE),
    ("cas_kbps", "cas"),
    ("spinlock_kbps", "spinlock"),
    ("rwlock_kbps", "rwlock"),
    ("bit_spinlock_kbps", "bit-spinlock"),
];
const IOZONE: Published = Published {
    table: Table::LOCKS_IOZONE,
    columns: COLUMNS,
    a_mebibyte: 1024.0,
    why: |_| {
        "Each thread has pages of its own, so no two meet on an entry, and a lock that nobody holds costs some \
         ns of the microseconds of a page, whatever its kind. The table's lock costs its cache line, which each user \
         takes from the last: little on 2 CPUs, more on many. In a profile on 2 CPUs (perf, cpu-clock, --quick) waits \
         that outlast their spinning, futex and sched_yield, have at most 0.6 % of the samples of these tests. Among \
         locks of an entry the published differences are small, and nothing was concluded of them."
    },
};
const FIO: Published = Published {
    table: Table::LOCKS_FIO,
    why: |_| {
        "Jobs meet on entries, yet a writer holds one only to publish a word, and a reader for a copy. The holder \
         could not be preempted there; here it can, and who spins for it yields after a while. In a profile on 2 CPUs \
         (perf, cpu-clock, --quick) futex and sched_yield have 0.1 to 0.6 % of the samples of these tests. Among \
         locks of an entry the published differences are small, and nothing was concluded of them."
    },
    ..IOZONE
};

/// fio's tests of the published comparison.
const FIO_TESTS: [Test; 4] = [
    fio::test("seq-write", Order::Forward, Mix::Writes),
    fio::test("seq-read", Order::Forward, Mix::Reads),
    fio::test("seq-rw", Order::Forward, Mix::Half),
    fio::test("rand-rw", Order::Random, Mix::Half),
];

/// The suite.
pub(crate) const SUITE: Suite<ContentionArgs> = Suite {
    name: "locks",
    peers: &Peer::CONTENTION,
    algorithms: &[ALGORITHM],
    corpus: None,
    work: Work::Matrix,
    plan: |options, args| {
        let bytes = IOZONE_BYTES * PUBLISHED_THREADS as u64;
        plan(options, args, SCALES, bytes, run)
    },
};

/// Runs the suite: iozone's tests, and fio's over the jobs.
fn run(options: &Options, scale: u32, findings: &mut Findings) -> Result<()> {
    let pages = Arc::new(Pages::of(&options.corpora)?);
    let grids = [
        iozone(&options.algorithms[0], scale, pages),
        fio(options, scale, Arc::new(Pages::random()?)),
    ];
    contention::measure(&grids, &LOCKS, options, findings)
}

/// As published: four threads, records of 16 KiB, a file of 200 MB each. fwrite and fread were left out.
fn iozone(algorithm: &str, scale: u32, pages: Arc<Pages>) -> (Grid, Vec<Row>) {
    let layout = Layout {
        record_bytes: 16 << 10,
        file_bytes: IOZONE_BYTES / u64::from(scale),
        sharing: Sharing::Apart,
        loops: [1; 2],
        pages,
    };
    let tests = iozone::TESTS.into_iter().map(|(_, test)| test);
    let tests: Vec<Test> = tests.filter(|test| test.calls != Calls::Buffered).collect();
    let entries = LOCKS.iter().zip(ENTRY_BYTES);
    let entries: Vec<String> = entries
        .map(|((lock, _), bytes)| format!("{lock} {bytes}"))
        .collect();
    let grid = Grid {
        title: format!(
            "iozone, {algorithm}, records of 16 KiB, a file of {:.1} MiB each, {scale} times smaller than published",
            layout.file_bytes as f64 / f64::from(1 << 20)
        ),
        notes: vec![
            format!("Bytes of an entry of the slot table: {}.", entries.join(", ")),
            "published: zram, 2014, a kernel on a Core2 Quad with ext4 between; base is the rwlock on the table. A \
             verdict needs all runs on one side; of equals, one pair in 64 has 7 runs on one side by chance."
                .to_owned(),
        ],
        front: String::new(),
        label: "T=",
        threads: vec![PUBLISHED_THREADS],
        tests: tests.iter().map(|test| test.name).collect(),
        published: IOZONE,
        pairs,
    };
    let row = layout.row(&grid, &tests, PUBLISHED_THREADS);
    (grid, vec![row])
}

/// As published: all jobs on the whole of one device of 10 MB, blocks of 32 KiB.
fn fio(options: &Options, scale: u32, pages: Arc<Pages>) -> (Grid, Vec<Row>) {
    let layout = Layout {
        record_bytes: 32 << 10,
        file_bytes: FIO_DEVICE_BYTES,
        sharing: Sharing::Together,
        loops: LOOPS.map(|loops| (loops / scale).max(1)),
        pages,
    };
    let [loops, read_loops] = layout.loops;
    let grid = Grid {
        title: format!(
            "fio, all jobs on one device of 10 MB, blocks of 32 KiB, random pages; loops: {loops}, of reads \
             {read_loops}, published 3000"
        ),
        notes: Vec::new(),
        front: String::new(),
        label: "jobs=",
        threads: matrix_threads(options.threads, options.quick),
        tests: FIO_TESTS.iter().map(|test| test.name).collect(),
        published: FIO,
        pairs,
    };
    let rows = grid
        .threads
        .iter()
        .map(|&jobs| layout.row(&grid, &FIO_TESTS, jobs));
    let rows = rows.collect();
    (grid, rows)
}

/// Each lock of an entry over the table's, and the engine's over the bit that spins and the kernel's zram.
fn pairs(top: &str, bottom: &str) -> bool {
    let kernel = Peer::KernelZram.name();
    match bottom {
        TABLE => ![TABLE, kernel].contains(&top),
        _ => top == ENGINE && ["bit-spinlock", kernel].contains(&bottom),
    }
}
