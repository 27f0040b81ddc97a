//! Passes over a corpus: contenders take turns of [`TURN_PAGES`] pages, in an order that favours none
//! ([`order`]), and every page is timed by itself. Means are of whole turns, less the time in which something else had the
//! CPU by the kernel's count; percentiles are of what the clock showed for pages.
//!
//! A page is decompressed half a corpus after it was compressed, so that its compressed form is as cold
//! as the corpus is large. Pages that do not get smaller are copied back, as a store would.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::contender::Contender;
use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::machine::{Lap, Stopwatch};
use crate::sample::Series;
use crate::stop::Stop;

/// Pages of a turn: 1 MiB.
const TURN_PAGES: usize = 256;

/// One contender with what it made of each page.
struct Lane {
    contender: Box<dyn Contender>,
    packed: Box<[u8]>,
    kept: Vec<u8>,
    /// Where each page's compressed form lies in `kept`.
    places: Vec<(u32, u32)>,
}

/// What a pass found of one contender, in nanoseconds a page.
#[derive(Clone, Default)]
pub(super) struct Times {
    pub(super) mean: Series,
    pub(super) p50: Series,
    pub(super) p99: Series,
}

/// What all passes found of one contender.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) name: String,
    pub(super) compress: Times,
    pub(super) decompress: Times,
    /// Bytes of all pages after compression, those that do not get smaller as they are.
    pub(super) compressed_bytes: usize,
}

/// Contenders on one corpus.
pub(super) struct Passes<'a> {
    pages: Vec<&'a [u8]>,
    lanes: Vec<Lane>,
    /// What taking the time takes, in nanoseconds.
    clock_ns: f64,
    figures: Vec<Figures>,
    measured: Duration,
    waited: Duration,
}

impl<'a> Passes<'a> {
    /// Compresses every page once with every contender and checks that it comes back.
    pub(super) fn new(
        pages: Vec<&'a [u8]>,
        contenders: Vec<Box<dyn Contender>>,
        stop: &Stop,
    ) -> Result<Passes<'a>> {
        let lanes: Result<Vec<Lane>> = contenders
            .into_iter()
            .map(|contender| Lane::new(contender, &pages, stop))
            .collect();
        let lanes = lanes?;
        let figures = lanes.iter().map(|lane| Figures {
            name: lane.contender.name().to_owned(),
            compressed_bytes: lane.places.iter().map(|(_, length)| *length as usize).sum(),
            ..Figures::default()
        });
        Ok(Passes {
            figures: figures.collect(),
            pages,
            lanes,
            clock_ns: clock_ns(),
            measured: Duration::ZERO,
            waited: Duration::ZERO,
        })
    }

    /// One pass of all contenders.
    pub(super) fn run(&mut self, stop: &Stop) -> Result<()> {
        let turns = self.pages.len().div_ceil(TURN_PAGES);
        let lanes = self.lanes.len();
        let mut compress = vec![Turns::default(); lanes];
        let mut decompress = compress.clone();
        for turn in 0..turns {
            stop.check()?;
            for lane in order(lanes, turn) {
                let pages = self.pages[turn * TURN_PAGES..].iter().take(TURN_PAGES);
                let pages: Vec<&[u8]> = pages.copied().collect();
                let far = (turn + turns / 2) % turns * TURN_PAGES;
                let one = &mut self.lanes[lane];
                let laps = [
                    compress[lane].take(|times| {
                        one.compress(&pages, times);
                        Ok(())
                    })?,
                    decompress[lane].take(|times| one.decompress(far, times))?,
                ];
                for lap in laps {
                    self.measured += lap.elapsed;
                    self.waited += lap.waited;
                }
            }
        }
        let times = compress.into_iter().zip(decompress);
        for (figures, (compress, decompress)) in self.figures.iter_mut().zip(times) {
            figures.compress.push(compress, self.clock_ns);
            figures.decompress.push(decompress, self.clock_ns);
        }
        Ok(())
    }

    /// Forgets the times so far.
    pub(super) fn forget(&mut self) {
        for figures in &mut self.figures {
            figures.compress = Times::default();
            figures.decompress = Times::default();
        }
        (self.measured, self.waited) = (Duration::ZERO, Duration::ZERO);
    }

    /// What was found, and the part of the time in which other processes had the CPU.
    pub(super) fn end(self) -> (Vec<Figures>, f64) {
        let whole = self.measured.as_secs_f64().max(f64::MIN_POSITIVE);
        (self.figures, self.waited.as_secs_f64() / whole)
    }
}

/// The contenders' order in a turn: another one first in each two turns, and the second of two in the
/// opposite direction. Whoever comes second meets the branch history and code that the first left behind,
/// which is worth some percent to a library after itself; so neither of two neighbours may always be second.
fn order(lanes: usize, turn: usize) -> impl Iterator<Item = usize> {
    (0..lanes).map(move |nth| {
        let nth = match turn % 2 {
            0 => nth,
            _ => lanes - 1 - nth,
        };
        (nth + turn / 2) % lanes
    })
}

impl Lane {
    fn new(contender: Box<dyn Contender>, pages: &[&[u8]], stop: &Stop) -> Result<Lane> {
        let mut lane = Lane {
            contender,
            packed: vec![0; 2 * PAGE_BYTES].into_boxed_slice(),
            kept: Vec::new(),
            places: Vec::with_capacity(pages.len()),
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

    fn compress(&mut self, pages: &[&[u8]], times: &mut Vec<u64>) {
        for page in pages {
            let started = Instant::now();
            let length = self.contender.compress(black_box(page), &mut self.packed);
            times.push(started.elapsed().as_nanos() as u64);
            black_box((length, &self.packed));
        }
    }

    fn decompress(&mut self, first: usize, times: &mut Vec<u64>) -> Result<()> {
        let mut page = [0; PAGE_BYTES];
        for number in first..self.places.len().min(first + TURN_PAGES) {
            let started = Instant::now();
            self.read(number, &mut page)?;
            times.push(started.elapsed().as_nanos() as u64);
            black_box(&page);
        }
        Ok(())
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

/// A contender's turns of one pass in one direction.
#[derive(Clone, Default)]
struct Turns {
    /// Of each page, by the clock.
    times_ns: Vec<u64>,
    /// Of all turns, without what others took of the CPU.
    own: Duration,
}

impl Turns {
    fn take(&mut self, work: impl FnOnce(&mut Vec<u64>) -> Result<()>) -> Result<Lap> {
        let stopwatch = Stopwatch::start();
        work(&mut self.times_ns)?;
        let lap = stopwatch.stop();
        self.own += lap.own();
        Ok(lap)
    }
}

impl Times {
    /// Adds a pass.
    fn push(&mut self, mut turns: Turns, clock_ns: f64) {
        turns.times_ns.sort_unstable();
        let own = |ns: f64| (ns - clock_ns).max(0.0);
        let last = turns.times_ns.len() - 1;
        let at = |part: f64| own(turns.times_ns[(last as f64 * part) as usize] as f64);
        self.p50.push(at(0.5));
        self.p99.push(at(0.99));
        let pages = turns.times_ns.len() as f64;
        // A page's time holds one look at the clock, a turn two for each page.
        self.mean
            .push(own(turns.own.as_nanos() as f64 / pages - clock_ns));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_come_second_equally_often() {
        for lanes in 2..=15 {
            let mut first = vec![vec![0i32; lanes]; lanes];
            for turn in 0..2 * lanes {
                let order: Vec<usize> = order(lanes, turn).collect();
                for (place, one) in order.iter().enumerate() {
                    for other in &order[place + 1..] {
                        first[*one][*other] += 1;
                    }
                }
            }
            for (one, others) in first.iter().enumerate() {
                let fair = |(other, count): (usize, &i32)| one == other || *count == lanes as i32;
                assert!(others.iter().enumerate().all(fair), "{lanes}: {first:?}");
            }
        }
    }
}
