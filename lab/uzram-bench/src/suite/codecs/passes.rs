//! Passes over a corpus: contenders take turns of [`TURN_PAGES`] pages, and every page is timed by itself.
//! Means are of whole turns, less the time in which something else had the
//! CPU by the kernel's count; percentiles are of what the clock showed for pages.
//!
//! A page is decompressed half a corpus after it was compressed, so that its compressed form is as cold
//! as the corpus is large. Pages that do not get smaller are copied back, as a store would.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::contender::Contender;
use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::machine::{Lap, Lost, Stopwatch};
use crate::progress::Progress;
use crate::sample::Series;
use crate::stop::Stop;
use crate::suite::Options;
use crate::suite::turns::{Runs, Turns};

/// Pages of a turn: 1 MiB.
const TURN_PAGES: usize = 256;

/// The metrics of a contender in a pass, in nanoseconds per page.
pub(super) const METRICS: [&str; 6] = [
    "compress_mean",
    "compress_p50",
    "compress_p99",
    "decompress_mean",
    "decompress_p50",
    "decompress_p99",
];

/// One contender with its compressed form of each page.
struct Lane {
    contender: Box<dyn Contender>,
    packed: Box<[u8]>,
    kept: Vec<u8>,
    /// Where each page's compressed form lies in `kept`.
    places: Vec<(u32, u32)>,
    /// The pass under way in each direction.
    passes: [Pass; 2],
}

/// The figures of a contender in all passes.
pub(super) struct Figures {
    pub(super) name: String,
    /// In the order of [`METRICS`].
    pub(super) times: [Series; METRICS.len()],
    /// Bytes of each page after compression, of those that do not get smaller as they are.
    pub(super) lengths: Vec<u32>,
    /// Bytes of all pages.
    pub(super) compressed_bytes: usize,
}

impl Figures {
    pub(super) fn median(&self, metric: &str) -> f64 {
        let at = METRICS.iter().position(|known| *known == metric);
        let spread = at.and_then(|at| self.times[at].spread());
        spread.map_or(0.0, |spread| spread.median)
    }
}

/// Compresses every page once with every contender and checks that it comes back; then times passes.
pub(super) fn measure(
    pages: &[&[u8]],
    contenders: Vec<Box<dyn Contender>>,
    what: &str,
    options: &Options,
    progress: &mut Progress,
) -> Result<(Vec<Figures>, Lost)> {
    let lanes = contenders
        .into_iter()
        .map(|contender| Lane::new(contender, pages, &options.stop));
    let mut lanes = lanes.collect::<Result<Vec<Lane>>>()?;
    let (clock_ns, mut lost) = (clock_ns(), Lost::default());
    let turns = Turns {
        what,
        sides: lanes.len(),
        parts: pages.len().div_ceil(TURN_PAGES),
        runs: Runs::AtLeast(0),
        warms_up: true,
    };
    let times = turns.take(options, progress, |turn| {
        let lane = &mut lanes[turn.side];
        let first = turn.part * TURN_PAGES;
        let far = (turn.part + turns.parts / 2) % turns.parts * TURN_PAGES;
        let last = pages.len().min(first + TURN_PAGES);
        for lap in [lane.compress(&pages[first..last]), lane.decompress(far)?] {
            if !turn.is_warm_up {
                lost.add(lap);
            }
        }
        Ok(match turn.part + 1 == turns.parts {
            true => lane.end_of_pass(clock_ns),
            false => Default::default(),
        })
    })?;
    let figures = lanes.iter().zip(times).map(|(lane, times)| {
        let lengths: Vec<u32> = lane.places.iter().map(|(_, length)| *length).collect();
        Figures {
            name: lane.contender.name().to_owned(),
            times,
            compressed_bytes: lengths.iter().map(|length| *length as usize).sum(),
            lengths,
        }
    });
    Ok((figures.collect(), lost))
}

impl Lane {
    fn new(contender: Box<dyn Contender>, pages: &[&[u8]], stop: &Stop) -> Result<Lane> {
        let mut lane = Lane {
            contender,
            packed: vec![0; 2 * PAGE_BYTES].into_boxed_slice(),
            kept: Vec::new(),
            places: Vec::with_capacity(pages.len()),
            passes: Default::default(),
        };
        let mut back = vec![0; PAGE_BYTES];
        for page in pages {
            let length = lane.contender.compress(page, &mut lane.packed);
            let kept = length.and_then(|length| lane.packed.get(..length));
            let kept = kept.filter(|kept| kept.len() < PAGE_BYTES).unwrap_or(page);
            lane.places
                .push((lane.kept.len() as u32, kept.len() as u32));
            lane.kept.extend_from_slice(kept);
        }
        for (number, page) in pages.iter().enumerate() {
            stop.check()?;
            lane.read(number, &mut back)?;
            if back != *page {
                let name = lane.contender.name();
                return Err(Error::Failed(format!(
                    "{name}: page {number} reads back wrong"
                )));
            }
        }
        Ok(lane)
    }

    fn compress(&mut self, pages: &[&[u8]]) -> Lap {
        let stopwatch = Stopwatch::start();
        for page in pages {
            let started = Instant::now();
            let length = self.contender.compress(black_box(page), &mut self.packed);
            let time = started.elapsed().as_nanos() as u64;
            self.passes[0].times_ns.push(time);
            black_box((length, &self.packed));
        }
        self.passes[0].add(stopwatch)
    }

    fn decompress(&mut self, first: usize) -> Result<Lap> {
        let mut page = [0; PAGE_BYTES];
        let stopwatch = Stopwatch::start();
        for number in first..self.places.len().min(first + TURN_PAGES) {
            let started = Instant::now();
            self.read(number, &mut page)?;
            let time = started.elapsed().as_nanos() as u64;
            self.passes[1].times_ns.push(time);
            black_box(&page);
        }
        Ok(self.passes[1].add(stopwatch))
    }

    /// The figures of the pass, and the next one begins.
    fn end_of_pass(&mut self, clock_ns: f64) -> [f64; METRICS.len()] {
        let [compress, decompress] = &mut self.passes;
        let [c, d] = [compress, decompress].map(|pass| std::mem::take(pass).figures(clock_ns));
        [c[0], c[1], c[2], d[0], d[1], d[2]]
    }

    fn read(&mut self, number: usize, page: &mut [u8]) -> Result<()> {
        let (start, length) = self.places[number];
        let kept = &self.kept[start as usize..][..length as usize];
        if kept.len() == page.len() {
            page.copy_from_slice(kept);
            return Ok(());
        }
        match self.contender.decompress(kept, page) {
            Some(()) => Ok(()),
            None => {
                let name = self.contender.name();
                let why = "its own output does not decompress";
                Err(Error::Failed(format!("{name}: {why}")))
            }
        }
    }
}

/// One pass of a contender in one direction.
#[derive(Default)]
struct Pass {
    /// Of each page, by the clock.
    times_ns: Vec<u64>,
    /// Of all turns, without what others took of the CPU.
    own: Duration,
}

impl Pass {
    fn add(&mut self, stopwatch: Stopwatch) -> Lap {
        let lap = stopwatch.stop();
        self.own += lap.own();
        lap
    }

    /// Mean, median and 99th percentile.
    fn figures(mut self, clock_ns: f64) -> [f64; 3] {
        self.times_ns.sort_unstable();
        let own = |ns: f64| (ns - clock_ns).max(0.0);
        let last = self.times_ns.len() - 1;
        let at = |part: f64| own(self.times_ns[(last as f64 * part) as usize] as f64);
        let pages = self.times_ns.len() as f64;
        // A page's time holds one look at the clock, a turn two for each page.
        let mean = own(self.own.as_nanos() as f64 / pages - clock_ns);
        [mean, at(0.5), at(0.99)]
    }
}

/// The least time between two looks at the clock, of many.
fn clock_ns() -> f64 {
    const LOOKS: usize = 1000;
    let look = |_| {
        let started = Instant::now();
        started.elapsed().as_nanos() as u64
    };
    (0..LOOKS).map(look).min().unwrap_or(0) as f64
}
