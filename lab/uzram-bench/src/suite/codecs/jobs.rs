//! The matrix of jobs by which zram's move to the kernel's generic compression interface was judged:
//! 1 to 10 jobs, six tests, a static pattern of 5 bytes; the claim was parity.
//!
//! Here one side calls the library directly, the other through the engine's interface. A job is a thread
//! with contexts of its own; reads decompress, writes compress, mixed ones do both by turns.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::bare;
use super::contender::{Contender, Engine, Setting};
use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::figures::{Cell, Metric};
use crate::progress::Progress;
use crate::report::{Basis, Block, Claim, Ratio, Standing};
use crate::sample::Series;
use crate::suite::Options;
use crate::suite::together::at_once;
use crate::suite::turns::{Runs, Turns};
use uzram_testkit::Rng;

/// The algorithm of the matrix: the fastest library, so that an interface's cost shows most. (The
/// published one, lzo, is the engine's own code and has no library.)
pub(super) const ALGORITHM: &str = "lz4";
/// The pattern that fio repeated.
const PATTERN: &[u8; 5] = b"uzram";
/// Pages that a job walks.
const PAGES: usize = 1024;
/// A slice lasts about as long, so that starting its threads is no part of it.
const SLICE: Duration = Duration::from_millis(20);
const SLICE_QUICK: Duration = Duration::from_millis(5);
/// Slices of each side.
const RUNS: usize = 9;
const RUNS_QUICK: usize = 3;
const METRIC: Metric = ("time_per_operation", "ns");
/// The library called directly, and through the interface.
const NAMES: [&str; 2] = ["bare-lz4", ALGORITHM];
/// Most cost of the interface, as a share of the direct call.
const TOLERANCE: f64 = 0.02;

/// One of fio's tests.
struct Test {
    name: &'static str,
    /// Whether an operation, by its number, writes.
    writes: fn(usize) -> bool,
    /// Whether places come in a shuffled order.
    random: bool,
}

const TESTS: [Test; 6] = [
    test("read", |_| false, false),
    test("randread", |_| false, true),
    test("write", |_| true, false),
    test("randwrite", |_| true, true),
    test("rw", |nth| nth.is_multiple_of(2), false),
    test("randrw", |nth| nth.is_multiple_of(2), true),
];

const fn test(name: &'static str, writes: fn(usize) -> bool, random: bool) -> Test {
    Test {
        name,
        writes,
        random,
    }
}

/// Jobs of the rows.
fn rows(quick: bool) -> Vec<usize> {
    if quick {
        vec![1, 2]
    } else {
        (1..=10).collect()
    }
}

/// Steps of the matrix, for the estimate of the time left.
pub(super) fn steps(quick: bool) -> usize {
    rows(quick).len() * TESTS.len()
}

/// One job: a contender with its pages.
struct Job {
    contender: Box<dyn Contender>,
    pages: Vec<u8>,
    packed: Vec<u8>,
    kept: Vec<u8>,
    order: Vec<u32>,
}

/// Measures the matrix into `block`.
pub(super) fn measure(options: &Options, block: &mut Block, progress: &mut Progress) -> Result<()> {
    let setting = Setting::default_of(ALGORITHM);
    for jobs in rows(options.quick) {
        let direct: Result<Vec<Job>> = (0..jobs).map(|_| Job::new(library()?)).collect();
        let engine: Result<Vec<Job>> = (0..jobs)
            .map(|_| Job::new(Box::new(Engine::new(&setting)?)))
            .collect();
        let mut sides = [direct?, engine?];
        for test in &TESTS {
            let case = format!("jobs/{ALGORITHM}/{}-{jobs}", test.name);
            let times = cell(&mut sides, test, &case, options, progress)?;
            let cell = Cell::new(case, METRIC, (jobs * PAGES * PAGE_BYTES) as u64);
            let pair = |top: &str, bottom: &str| [bottom, top] == NAMES;
            cell.add_all(&NAMES, &times, pair, block);
        }
    }
    block.claims.extend(parity(&block.ratios));
    Ok(())
}

/// The claim over all cells together, as one of many noisy cells strays by chance.
fn parity(cells: &[Ratio]) -> Option<Claim> {
    let medians: Vec<f64> = cells.iter().map(|cell| cell.spread.median).collect();
    let over_all = Series::from(medians).spread()?;
    let limit = 1.0 + TOLERANCE;
    let dearer = cells.iter().filter(|cell| cell.spread.min > limit).count();
    let standing = match dearer {
        0 if over_all.median <= limit => Standing::Held,
        0 => Standing::WithinSpread,
        _ => Standing::NotHeld,
    };
    Some(Claim {
            basis: Basis::Published,
        case: format!("jobs/{ALGORITHM}"),
        claim: "through the interface at most 1.02 of the direct call; published, kernel 4.7 with lzo on \
                4 CPUs: 0.96 to 1.03 in all 80 cells, 1.00 in the median"
            .to_owned(),
        measured: format!(
            "{:.2} to {:.2} in all {} cells, {:.3} in the median; dearer in every run of {dearer} cells",
            over_all.min,
            over_all.max,
            cells.len(),
            over_all.median,
        ),
        standing,
        why: String::new(),
    })
}

fn library() -> Result<Box<dyn Contender>> {
    bare::library(ALGORITHM)?
        .ok_or_else(|| Error::Failed(format!("{ALGORITHM}: this build has no library for it")))
}

/// Both sides of one cell, in slices by turns, in nanoseconds an operation.
fn cell(
    sides: &mut [Vec<Job>; 2],
    test: &Test,
    what: &str,
    options: &Options,
    progress: &mut Progress,
) -> Result<Vec<Series>> {
    let (runs, length) = match options.quick {
        true => (RUNS_QUICK, SLICE_QUICK),
        false => (RUNS, SLICE),
    };
    let walk_ns = slice(&mut sides[0], test, 1)?;
    let walks = (length.as_nanos() as f64 / walk_ns).ceil() as usize;
    let turns = Turns::of(what, sides.len(), Runs::Exactly(runs));
    turns.measure(options, progress, |turn| {
        let jobs = &mut sides[turn.side];
        let time_ns = slice(jobs, test, walks)?;
        Ok(time_ns / (jobs.len() * walks * PAGES) as f64)
    })
}

/// All jobs at once, in nanoseconds from the first one's start to the last one's end.
fn slice(jobs: &mut [Job], test: &Test, walks: usize) -> Result<f64> {
    let damaged = || Error::Failed("a job's page does not come back".to_owned());
    let works = jobs.iter_mut().map(|job| {
        move || {
            let started = Instant::now();
            job.run(test, walks).ok_or_else(damaged)?;
            Ok((started, Instant::now()))
        }
    });
    let spans = at_once(works)?;
    let first = spans.iter().map(|(started, _)| *started).min();
    let last = spans.iter().map(|(_, ended)| *ended).max();
    let span = first.zip(last).map(|(first, last)| last - first);
    Ok(span.unwrap_or_default().as_nanos() as f64)
}

impl Job {
    fn new(mut contender: Box<dyn Contender>) -> Result<Job> {
        let pages = PATTERN.iter().copied().cycle().take(PAGES * PAGE_BYTES);
        let pages: Vec<u8> = pages.collect();
        let mut packed = vec![0; 2 * PAGE_BYTES];
        let length = contender.compress(&pages[..PAGE_BYTES], &mut packed);
        let kept = length
            .and_then(|length| packed.get(..length))
            .map(<[u8]>::to_vec);
        let refused = || Error::Failed("a page of one pattern does not compress".to_owned());
        let mut order: Vec<u32> = (0..PAGES as u32).collect();
        Rng::new(5).shuffle(&mut order);
        Ok(Job {
            contender,
            pages,
            packed,
            kept: kept.ok_or_else(refused)?,
            order,
        })
    }

    fn run(&mut self, test: &Test, walks: usize) -> Option<()> {
        for nth in 0..walks * PAGES {
            let place = match test.random {
                true => self.order[nth % PAGES] as usize,
                false => nth % PAGES,
            };
            let page = &mut self.pages[place * PAGE_BYTES..][..PAGE_BYTES];
            if (test.writes)(nth) {
                black_box(self.contender.compress(page, &mut self.packed)?);
            } else {
                // Pages begin at different places of the pattern; that they become alike is no matter.
                self.contender.decompress(&self.kept, page)?;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_read_and_write_through_either_side() {
        for contender in [
            library().unwrap(),
            Box::new(Engine::new(&Setting::default_of(ALGORITHM)).unwrap()),
        ] {
            let mut job = Job::new(contender).unwrap();
            assert!(job.kept.len() < 100);
            for test in &TESTS {
                job.run(test, 1).unwrap_or_else(|| panic!("{}", test.name));
            }
            assert_eq!(job.pages[..10], *b"uzramuzram");
            job.kept.truncate(3);
            assert!(job.run(&TESTS[0], 1).is_none(), "a damaged page is seen");
        }
    }
}
