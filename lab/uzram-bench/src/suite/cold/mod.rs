//! Suite `cold`: what recompression and writing back gain, and what they cost.
//!
//! A store is filled with the pages of a corpus, and six of ten are left idle. Then the idle ones are packed again by a
//! denser codec, those that this did not make smaller go to a file, and at last all that are idle. Between these steps
//! the pool is compacted and weighed. The passes are timed beside the least that they could do: both codecs alone on the
//! same pages, and direct writes (O_DIRECT) of as many pages in as large batches to another file of the same folder. The two
//! take turns to be first. A new file has to be given blocks by its file system as it grows; so all is written once more,
//! when both files have theirs, beside direct writes of one batch after another and of as many at once as the store has.

mod floor;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uzram::{ColdPages, Compression, PageIndex, Recompression, Store, Unit};

use crate::corpus::{Corpus, PAGE_BYTES};
use crate::cpu_time::CpuTime;
use crate::error::{Error, Result};
use crate::figures::Cell;
use crate::folder::Folder;
use crate::progress::Progress;
use crate::report::{Block, Findings};
use crate::sample::Series;
use crate::suite::{Options, SUBJECT, Suite, Work, runs_of};
use crate::workload::{Generation, Workload};
use floor::{per_page, spent_since};

/// The working set in bytes, and with `--quick`.
const BYTES: [usize; 2] = [256 << 20, 32 << 20];
/// Runs of each corpus.
const RUNS: [usize; 2] = [5, 3];
/// Idle pages of ten.
const IDLE_OF_TEN: usize = 6;
/// Batches that the store writes at once.
const DEPTH: usize = 4;
/// Most pages of a kind whose reads are timed.
const READS_MAX: usize = 2000;
/// The codec that packs again.
const SECONDARY: &str = "zstd";

/// The suite.
pub(crate) const SUITE: Suite = Suite {
    name: "cold",
    peers: &[],
    algorithms: &["lz4", "auto"],
    corpus: None,
    work: Work::Fixed,
    plan: |_, ()| Ok(Box::new(run)),
};

/// The figures of a run, each with the end of its case, its variant and its metric.
const FIGURES: [(&str, &str, (&str, &str)); 14] = [
    ("memory/filled", SUBJECT, MEMORY),
    ("memory/recompressed", SUBJECT, MEMORY),
    ("memory/incompressible-back", SUBJECT, MEMORY),
    ("memory/idle-back", SUBJECT, MEMORY),
    ("recompression", SUBJECT, CPU_TIME),
    ("recompression", "both-codecs", CPU_TIME),
    ("writeback/new-file", SUBJECT, TIME),
    ("writeback/new-file", "direct-writes", TIME),
    ("writeback/again", SUBJECT, TIME),
    ("writeback/again", "direct-writes", TIME),
    ("writeback/again", "direct-writes-deep", TIME),
    ("read/packed", SUBJECT, TIME),
    ("read/recompressed", SUBJECT, TIME),
    ("read/written-back", SUBJECT, TIME),
];
const MEMORY: (&str, &str) = ("pool_memory", "MiB");
const TIME: (&str, &str) = ("time_per_page", "ns");
const CPU_TIME: (&str, &str) = ("cpu_time_per_page", "ns");

/// Pairs of figures whose ratio is shown.
const RATIOS: [(usize, usize); 7] = [(1, 0), (2, 0), (3, 0), (4, 5), (7, 6), (9, 8), (10, 8)];

fn run(options: &Options, findings: &mut Findings) -> Result<()> {
    let quick = usize::from(options.quick);
    let cases = options.corpora.len() * options.algorithms.len();
    let mut progress = Progress::new(cases);
    for corpus in &options.corpora {
        let workload = Workload::with_bytes(corpus.pages(), BYTES[quick])?;
        for algorithm in &options.algorithms {
            let case = format!("{}/{algorithm}", corpus.name);
            let one_run = |run| one_run(&workload, algorithm, run % 2 == 1);
            let series = runs_of(options, &mut progress, &case, RUNS[quick], one_run)?;
            let block = report(corpus, algorithm, &workload, &series);
            findings.blocks.push(block);
        }
    }
    Ok(())
}

fn report(corpus: &Corpus, algorithm: &str, workload: &Workload, series: &[Series]) -> Block {
    let cell = |figure: usize| {
        let (case, _, metric) = FIGURES[figure];
        let case = format!("{}/{algorithm}/{case}", corpus.name);
        Cell::new(case, metric, workload.bytes() as u64)
    };
    let mut block = Block {
        title: format!(
            "{} {algorithm}: {} MiB, {IDLE_OF_TEN} of ten pages idle, packed again by {SECONDARY}",
            corpus.name,
            workload.bytes() >> 20
        ),
        ..Block::default()
    };
    for (figure, series) in series.iter().enumerate() {
        cell(figure).add(FIGURES[figure].1, series, &mut block);
    }
    for (top, bottom) in RATIOS {
        let side = |figure: usize| {
            // Steps of one variant are told apart by their cases.
            let (case, variant, metric) = FIGURES[figure];
            let name = if metric == MEMORY { case } else { variant };
            (name, &series[figure])
        };
        cell(top).compare(side(top), side(bottom), &mut block);
    }
    block
}

/// All steps once, in the order of [`FIGURES`].
fn one_run(
    workload: &Workload,
    algorithm: &str,
    is_floor_first: bool,
) -> Result<[f64; FIGURES.len()]> {
    let folder = Folder::new()?;
    let path = folder.path().join("backing");
    let secondary = Compression::new(SECONDARY, Unit::DEFAULT)?;
    let store = Store::builder()
        .size(workload.bytes() as u64)
        .algorithm(algorithm)
        .secondary(1, Arc::clone(&secondary))
        .backing_file(create(&path)?)
        .writeback_depth(DEPTH)
        .build()?;
    write(&store, workload, |_| true)?;
    let filled = weigh(&store)?;
    idle_but_some(&store, workload)?;
    let idle = Recompression {
        pages: ColdPages::Idle,
        ..Recompression::new(1)
    };
    let start = CpuTime::now()?;
    let done = store.recompress(&idle, &mut || true)?;
    let recompression = per_page(spent_since(start)?, done.pages_tried);
    let recompressed = weigh(&store)?;
    let both_codecs = floor::both_codecs(workload, algorithm, &secondary, is_idle)?;
    let read = |wanted: &dyn Fn(usize) -> bool| read_some(&store, workload, wanted);
    let read_packed = read(&|place| !is_idle(place))?;
    let read_recompressed = read(&is_idle)?;

    let floor = |threads| {
        let path = folder.path().join("floor");
        let pages = workload.pages() * IDLE_OF_TEN / 10;
        floor::direct_writes(
            &path,
            workload,
            pages,
            store.writeback_batch_pages(),
            threads,
        )
    };
    let before = is_floor_first.then(|| floor(1)).transpose()?;
    let start = Instant::now();
    let mut written = store.write_back_cold(ColdPages::Incompressible, &mut || true)?;
    let mut writing = start.elapsed();
    let incompressible_back = weigh(&store)?;
    // A try to pack a page took its mark.
    idle_but_some(&store, workload)?;
    let start = Instant::now();
    written += store.write_back_cold(ColdPages::Idle, &mut || true)?;
    writing += start.elapsed();
    let new_file = per_page(writing, written);
    let idle_back = weigh(&store)?;
    let direct_new_file = before.map_or_else(|| floor(1), Ok)?;
    let read_back = read(&is_idle)?;

    write(&store, workload, is_idle)?;
    idle_but_some(&store, workload)?;
    let floors = || Ok::<_, Error>([floor(1)?, floor(DEPTH)?]);
    let before = is_floor_first.then(floors).transpose()?;
    let start = Instant::now();
    let written = store.write_back_cold(ColdPages::Idle, &mut || true)?;
    let again = per_page(start.elapsed(), written);
    let [direct, direct_deep] = before.map_or_else(floors, Ok)?;
    Ok([
        filled,
        recompressed,
        incompressible_back,
        idle_back,
        recompression,
        both_codecs,
        new_file,
        direct_new_file,
        again,
        direct,
        direct_deep,
        read_packed,
        read_recompressed,
        read_back,
    ])
}

fn create(path: &Path) -> Result<File> {
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(path);
    file.map_err(|error| Error::io("the backing file", error))
}

/// Writes the pages that are wanted.
fn write(store: &Store, workload: &Workload, wanted: impl Fn(usize) -> bool) -> Result<()> {
    for place in (0..workload.pages()).filter(|place| wanted(*place)) {
        let page = workload.page(place, Generation::First);
        store.write(PageIndex(place as u64), page)?;
    }
    Ok(())
}

fn is_idle(place: usize) -> bool {
    place % 10 < IDLE_OF_TEN
}

/// Marks all pages and uses those that are not to stay so.
fn idle_but_some(store: &Store, workload: &Workload) -> Result<()> {
    store.mark_idle();
    let mut page = [0; PAGE_BYTES];
    for place in (0..workload.pages()).filter(|place| !is_idle(*place)) {
        store.read(PageIndex(place as u64), &mut page)?;
    }
    Ok(())
}

/// Memory of the pool after compaction, in MiB.
fn weigh(store: &Store) -> Result<f64> {
    while store.compact(Duration::from_secs(1))? {}
    Ok(store.mem_used_bytes() as f64 / f64::from(1 << 20))
}

/// The time of a read, over some of the places that are wanted, at random. Each page is compared.
fn read_some(store: &Store, workload: &Workload, wanted: &dyn Fn(usize) -> bool) -> Result<f64> {
    let places = (0..workload.chunks()).flat_map(|chunk| workload.random_places(chunk));
    let places = places.map(|place| *place as usize);
    let (mut spent, mut reads) = (Duration::ZERO, 0);
    let mut page = [0; PAGE_BYTES];
    for place in places.filter(|place| wanted(*place)).take(READS_MAX) {
        let start = Instant::now();
        store.read(PageIndex(place as u64), &mut page)?;
        spent += start.elapsed();
        reads += 1;
        if page[..] != *workload.page(place, Generation::First) {
            return Err(Error::Failed(format!("page {place} holds other bytes")));
        }
    }
    Ok(per_page(spent, reads))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::two_runs;

    #[test]
    fn every_step_has_its_figures_and_writing_back_stands_beside_direct_writes() {
        let options = Options {
            corpora: vec![crate::synthetic::fio(50, 40)],
            algorithms: vec!["lz4".to_owned()],
            quick: true,
            ..two_runs(1)
        };
        let mut findings = Findings::default();
        run(&options, &mut findings).unwrap();
        let block = &findings.blocks[0];
        let found = block.results.iter().map(|one| {
            let step = FIGURES.iter().find(|(end, ..)| one.case.ends_with(end));
            (step.map(|(end, ..)| *end), one.variant.as_str())
        });
        let wanted = FIGURES.map(|(end, variant, _)| (Some(end), variant));
        assert_eq!(found.collect::<Vec<_>>(), wanted);
        let median = |nth: usize| block.results[nth].spread.median;
        assert!(median(0) >= median(1) && median(1) >= median(2) && median(2) > median(3));
        assert!(block.results.iter().all(|one| one.spread.median > 0.0));
        assert_eq!(block.ratios.len(), RATIOS.len());
    }
}
