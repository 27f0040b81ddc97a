//! Suite `survive`: what it costs that a disk outlives its server, and how long nobody serves when one dies.
//!
//! Two stores are filled with the pages of a corpus: one in private memory, one in files of memory. They take each chunk in
//! turns, so both meet the same moments: first writes, overwrites, random reads; then the maintenance makes huge pages of the
//! files' small ones, and overwrites and reads are timed again. How much small pages cost a reader at least, the bare codec
//! says, whose objects lie in either kind of pages. Each is weighed alone, by what the system says of this
//! process. Then the store in files is left as a dead process leaves it, and opened again.
//!
//! At last `uzram serve --survive` gets content over NBD and is killed again and again (SIGKILL). The pause is what it
//! says itself: from the moment when its holder learnt of the end to the one when clients can connect.

mod pause;
mod stores;

use crate::error::Result;
use crate::figures::Cell;
use crate::progress::Progress;
use crate::report::{Block, Findings};
use crate::sample::Series;
use crate::suite::{Options, SUBJECT, Suite, Work, runs_of};
use crate::workload::Workload;

/// The working set of the stores in bytes, and with `--quick`.
const BYTES: [usize; 2] = [1 << 30, 64 << 20];
/// Runs of each corpus.
const RUNS: [usize; 2] = [5, 3];
/// Bytes that the killed server holds, and how often it is killed.
const SERVED_BYTES: [u64; 2] = [4 << 30, 64 << 20];
const KILLS: [u32; 2] = [40, 5];

/// The suite.
pub(crate) const SUITE: Suite = Suite {
    name: "survive",
    peers: &[],
    algorithms: &["lz4"],
    corpus: None,
    work: Work::Fixed,
    plan: |_, ()| Ok(Box::new(run)),
};

const PRIVATE: &str = "private";
/// The bare codec's objects lie in pages of these sizes.
const IN_PAGES: [&str; 2] = ["codec-huge", "codec-small"];
const TIME: (&str, &str) = ("time_per_page", "ns");
const MEMORY: (&str, &str) = ("memory", "MiB");
const WHOLE: (&str, &str) = ("time", "ms");
const RATE: (&str, &str) = ("slots_per_second", "slots/s");

/// The figures of a run, each with the end of its case, its variant and its metric. The first is the measure where there are
/// two.
const FIGURES: [(&str, &str, (&str, &str)); stores::COUNT] = [
    ("first-write", PRIVATE, TIME),
    ("first-write", SUBJECT, TIME),
    ("overwrite-small-pages", PRIVATE, TIME),
    ("overwrite-small-pages", SUBJECT, TIME),
    ("read-small-pages", PRIVATE, TIME),
    ("read-small-pages", SUBJECT, TIME),
    ("bare-read", IN_PAGES[0], TIME),
    ("bare-read", IN_PAGES[1], TIME),
    ("overwrite-huge-pages", PRIVATE, TIME),
    ("overwrite-huge-pages", SUBJECT, TIME),
    ("read-huge-pages", PRIVATE, TIME),
    ("read-huge-pages", SUBJECT, TIME),
    ("memory", PRIVATE, MEMORY),
    ("memory", SUBJECT, MEMORY),
    ("end-small-pages", SUBJECT, WHOLE),
    ("take-over-small-pages", SUBJECT, WHOLE),
    ("end-huge-pages", SUBJECT, WHOLE),
    ("take-over-huge-pages", SUBJECT, WHOLE),
    ("sweep", SUBJECT, RATE),
    ("first-reads", SUBJECT, TIME),
];

fn run(options: &Options, findings: &mut Findings) -> Result<()> {
    let quick = usize::from(options.quick);
    let cases = options.corpora.len() * options.algorithms.len();
    let mut progress = Progress::new(2 * cases);
    for corpus in &options.corpora {
        let workload = Workload::with_bytes(corpus.pages(), BYTES[quick])?;
        for algorithm in &options.algorithms {
            let case = format!("{}/{algorithm}", corpus.name);
            let one_run = |_| stores::one_run(&workload, algorithm);
            let series = runs_of(options, &mut progress, &case, RUNS[quick], one_run)?;
            findings
                .blocks
                .push(stores_block(&case, &workload, &series));
            progress.at(&format!("{case}/pause"), 0.0);
            let pauses = pause::measure(
                options,
                &workload,
                algorithm,
                SERVED_BYTES[quick],
                KILLS[quick],
            )?;
            progress.step();
            findings.blocks.push(pause_block(&case, quick, &pauses));
        }
    }
    Ok(())
}

fn stores_block(case: &str, workload: &Workload, series: &[Series]) -> Block {
    let mut block = Block {
        title: format!(
            "{case}: {} MiB, a store in files of memory beside one in private memory",
            workload.bytes() >> 20
        ),
        ..Block::default()
    };
    for (nth, ((end, variant, metric), figures)) in FIGURES.iter().zip(series).enumerate() {
        let cell = Cell::new(format!("{case}/{end}"), *metric, workload.bytes() as u64);
        cell.add(variant, figures, &mut block);
        if nth > 0 && FIGURES[nth - 1].0 == *end {
            let before = (FIGURES[nth - 1].1, &series[nth - 1]);
            cell.compare((variant, figures), before, &mut block);
        }
    }
    block
}

fn pause_block(case: &str, quick: usize, pauses: &Series) -> Block {
    let bytes = SERVED_BYTES[quick];
    let mut block = Block {
        title: format!(
            "{case}: a server of {} MiB is killed {} times",
            bytes >> 20,
            KILLS[quick]
        ),
        ..Block::default()
    };
    let cell = Cell::new(format!("{case}/pause"), WHOLE, bytes);
    cell.add(SUBJECT, pauses, &mut block);
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::two_runs;

    #[test]
    fn both_stores_have_their_figures() {
        let workload =
            Workload::with_bytes(crate::synthetic::fio(50, 40).pages(), 16 << 20).unwrap();
        let figures = stores::one_run(&workload, "lz4").unwrap();
        // Other tests of this process give memory back meanwhile.
        let mut told = FIGURES.iter().zip(&figures);
        assert!(
            told.all(|(of, figure)| of.2 == MEMORY || *figure > 0.0),
            "{figures:?}"
        );
        let mut series: [Series; FIGURES.len()] = Default::default();
        for _ in 0..2 {
            series
                .iter_mut()
                .zip(figures)
                .for_each(|(series, figure)| series.push(figure));
        }
        let block = stores_block("fio/lz4", &workload, &series);
        assert_eq!(block.results.len(), FIGURES.len());
        let ratios: Vec<_> = block
            .ratios
            .iter()
            .map(|ratio| ratio.case.as_str())
            .collect();
        assert_eq!(ratios.len(), 7, "{ratios:?}");
        assert_eq!(two_runs(1).algorithms.len(), 1);
    }
}
