//! Suite `streams`: how writers share the compressors. Each CPU's own stream, which is the engine's; the idle
//! list of `max_comp_streams` that zram had before; one stream for all. The comparison by which zram went from the one
//! to the other is done again in the engine's own store, beside its figures.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use uzram::lab::{PerCpuStreams, SleepingBit};

use crate::error::Result;
use crate::job::buffers::Pages;
use crate::job::target::{AnyStore, Make, store};
use crate::job::{Mix, Sharing, Test, iozone};
use crate::peers::Peer;
use crate::published::Table;
use crate::report::Findings;
use crate::suite::contention::{self, ALGORITHM, ContentionArgs, Layout, matrix_threads, plan};
use crate::suite::grid::{Grid, Published};
use crate::suite::rows::Row;
use crate::suite::{Options, Suite, Work};
use uzram_variants::streams::{IdleList, OneStream, Sleeps};

/// The published disk.
const DISK_BYTES: u64 = 3 << 30;
/// How many times smaller than published the disk is, and with `--quick`.
const SCALES: [u32; 2] = [64, 256];

const PER_CPU: &str = "uzram-per-cpu";

/// The policies, in a store with the engine's slot lock.
const POLICIES: [(&str, Make); 5] = [
    (PER_CPU, |algorithm, bytes| {
        store::<SleepingBit, _>(algorithm, bytes, PerCpuStreams::new()?, None)
    }),
    ("idle-list-8", |algorithm, bytes| {
        idle_list(algorithm, bytes, 8)
    }),
    ("idle-list-4", |algorithm, bytes| {
        idle_list(algorithm, bytes, 4)
    }),
    ("idle-list-1", |algorithm, bytes| {
        idle_list(algorithm, bytes, 1)
    }),
    ("one-stream", |algorithm, bytes| {
        let sleeps = Sleeps::default();
        let streams = OneStream::new(sleeps.clone());
        store::<SleepingBit, _>(algorithm, bytes, streams, Some(sleeps))
    }),
];

fn idle_list(algorithm: &str, bytes: u64, most: usize) -> Result<Box<dyn AnyStore>> {
    let sleeps = Sleeps::default();
    let streams = IdleList::new(most, sleeps.clone());
    store::<SleepingBit, _>(algorithm, bytes, streams, Some(sleeps))
}

/// zram, March 2016.
const PUBLISHED: Published = Published {
    table: Table::STREAMS,
    columns: &[
        ("max_streams_4", "idle-list-4"),
        ("max_streams_8", "idle-list-8"),
        ("per_cpu_streams", PER_CPU),
    ],
    a_mebibyte: 1024.0,
    why,
};

fn why(test: &str) -> &'static str {
    let tests = iozone::TESTS.iter();
    let mut of_name = tests.filter(|(_, of)| of.name == test);
    match of_name.next().map(|(_, of)| of.mix) {
        Some(Mix::Reads) => {
            "Reads take no stream under any policy, there or here: what orders them is noise. The published author \
             says that he cannot explain his."
        }
        Some(Mix::ByWorker) => {
            "Half of the threads write, the others take no stream; published as no reliable gain."
        }
        Some(Mix::Writes | Mix::Half) => {
            "There, with 4 CPUs, per-CPU streams spared the list's lock and the sleep of who found it empty, and \
             could not be preempted. Here the list is empty only where more threads than it has streams are at work \
             at once, and a holder can be preempted under every policy."
        }
        None => {
            "There system time was the whole of a compression, with the list's lock and the waking of sleepers in it. \
             Here a sleep and a wake-up are all that a policy adds, where it has any."
        }
    }
}

/// The suite.
pub(crate) const SUITE: Suite<ContentionArgs> = Suite {
    name: "streams",
    peers: &Peer::CONTENTION,
    algorithms: &[ALGORITHM],
    corpus: None,
    work: Work::Matrix,
    plan: |options, args| plan(options, args, SCALES, DISK_BYTES, run),
};

/// Runs the suite: iozone's tests over the threads.
fn run(options: &Options, scale: u32, findings: &mut Findings) -> Result<()> {
    let pages = Arc::new(Pages::of(&options.corpora)?);
    let threads = matrix_threads(options.threads, options.quick);
    let grid = grid(&options.algorithms[0], scale, threads);
    let rows = grid
        .threads
        .iter()
        .map(|&threads| row(&grid, threads, scale, &pages));
    let rows: Vec<Row> = rows.collect();
    contention::measure(&[(grid, rows)], &POLICIES, options, findings)
}

fn grid(algorithm: &str, scale: u32, threads: Vec<usize>) -> Grid {
    Grid {
        title: format!(
            "iozone, {algorithm} on a disk of {} MiB, {scale} times smaller than published",
            (DISK_BYTES / u64::from(scale)) >> 20
        ),
        notes: vec![
            "Throughput of T threads, each with a file of its own and records of 8 T KiB, and the CPU time of \
             them all. Here fwrite and fread are as write and read: there is no buffer of the C library's."
                .to_owned(),
            "published: zram, March 2016, a kernel on 4 CPUs, ext4 between; T=10 ran with files of 0 MB. A verdict \
             needs all runs on one side; of equals, one pair in 64 has 7 runs on one side by chance."
                .to_owned(),
        ],
        front: String::new(),
        label: "T=",
        threads,
        tests: tests().map(|test| test.name).collect(),
        published: PUBLISHED,
        pairs: |top, bottom| top == PER_CPU && top != bottom,
    }
}

fn tests() -> impl Iterator<Item = Test> {
    iozone::TESTS.into_iter().map(|(_, test)| test)
}

/// As published: records of 8 KiB a thread, and files that fill the disk but for a tenth.
fn row(grid: &Grid, threads: usize, scale: u32, pages: &Arc<Pages>) -> Row {
    let layout = Layout {
        record_bytes: 8192 * threads as u64,
        file_bytes: DISK_BYTES / u64::from(scale) / threads as u64 / 10 * 9,
        sharing: Sharing::Apart,
        loops: [1; 2],
        pages: Arc::clone(pages),
    };
    layout.row(grid, &tests().collect::<Vec<_>>(), threads)
}
