//! Alternation: the sides take turns chunk by chunk, and a run is one whole pass of all of them.
//!
//! Why this and not whole passes in turn: on a shared machine noise comes in bursts of tens of
//! milliseconds to seconds. Turns of ten milliseconds put every burst on all sides; what is left is
//! bursts shorter than a turn, and a run sums dozens of turns. A run's figure is the sum over the
//! pass, not a median of chunks, so that rare costs (the pool grows, a span goes back) stay in.
//!
//! Time in which the thread was ready to run and another process had its CPU is taken off, by the
//! kernel's own count; no side has threads that could hide there. Time asleep is not taken off. What
//! the other process did to the caches stays, so a block that lost much time is marked.

use std::time::{Duration, Instant};

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::machine::Stopwatch;
use crate::peers::Side;
use crate::progress::Progress;
use crate::sample::Series;
use crate::stop::Stop;
use crate::suite::Schedule;
use crate::workload::{Case, Generation, Workload};

/// Sides with the pages that they handle.
pub(crate) struct Rounds<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) sides: Vec<Box<dyn Side>>,
    /// What all places hold now.
    pub(crate) holds: Generation,
    pub(crate) stop: &'a Stop,
    /// Time that was measured so far.
    measured: Duration,
    /// How much of it the thread was kept from running.
    waited: Duration,
}

impl<'a> Rounds<'a> {
    /// Sides with nothing written yet.
    pub(crate) fn new(
        workload: &'a Workload,
        sides: Vec<Box<dyn Side>>,
        stop: &'a Stop,
    ) -> Rounds<'a> {
        let (measured, waited) = (Duration::ZERO, Duration::ZERO);
        let holds = Generation::First;
        Rounds {
            workload,
            sides,
            holds,
            stop,
            measured,
            waited,
        }
    }

    /// The part of the measured time in which other processes had the CPU.
    ///
    /// It is taken off every turn, yet the caches were shared with them.
    pub(crate) fn part_lost_to_others(&self) -> f64 {
        self.waited.as_secs_f64() / self.measured.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Measures a case: for every side that takes it, nanoseconds a page, one figure a run.
    ///
    /// Before it comes an unmeasured pass, the warm-up.
    pub(crate) fn measure(
        &mut self,
        case: Case,
        schedule: Schedule,
        what: &str,
        progress: &mut Progress,
    ) -> Result<Vec<(String, Series)>> {
        self.pass(case, &mut |_| {})?;
        let taking = self.taking(case);
        let mut series = vec![Series::default(); taking.len()];
        let started = Instant::now();
        while schedule.wants_more(series[0].len(), started.elapsed()) {
            let part = schedule.part(series[0].len(), started.elapsed());
            let times = self.pass(case, &mut |_| progress.at(what, part))?;
            for (series, time) in series.iter_mut().zip(times) {
                series.push(time.as_nanos() as f64 / self.workload.pages() as f64);
            }
        }
        progress.step();
        let names = taking
            .iter()
            .map(|&side| self.sides[side].name().to_owned());
        Ok(names.zip(series).collect())
    }

    /// Reads every place of every side back and compares; not timed.
    pub(crate) fn verify(&mut self) -> Result<()> {
        let mut page = vec![0; PAGE_BYTES];
        for side in &mut self.sides {
            for place in 0..self.workload.pages() {
                side.read_back(place, &mut page)?;
                if page != self.workload.page(place, self.holds) {
                    let name = side.name();
                    return Err(Error::Failed(format!(
                        "{name}: page {place} reads back wrong"
                    )));
                }
            }
            self.stop.check()?;
        }
        Ok(())
    }

    /// One pass of all sides that take the case: the time of each.
    fn pass(&mut self, case: Case, before_round: &mut dyn FnMut(usize)) -> Result<Vec<Duration>> {
        let generation = self.content_of(case);
        let taking = self.taking(case);
        for &side in &taking {
            self.sides[side].begin(case)?;
        }
        let chunks = self.workload.chunks();
        let mut times = vec![Duration::ZERO; taking.len()];
        for round in 0..chunks {
            self.stop.check()?;
            before_round(round);
            for turn in turns(round, taking.len(), chunks) {
                let side = &mut self.sides[taking[turn.side]];
                side.prepare(self.workload, case, turn.chunk)?;
                let stopwatch = Stopwatch::start();
                side.run(self.workload, case, turn.chunk, generation)?;
                let lap = stopwatch.stop();
                times[turn.side] += lap.own();
                self.measured += lap.elapsed;
                self.waited += lap.waited;
            }
        }
        self.holds = generation;
        Ok(times)
    }

    fn taking(&self, case: Case) -> Vec<usize> {
        (0..self.sides.len())
            .filter(|&side| self.sides[side].takes(case))
            .collect()
    }

    /// Overwrites alternate between two contents, so that no page is overwritten with itself.
    fn content_of(&self, case: Case) -> Generation {
        match (case, self.holds) {
            (Case::FirstWrite, _) | (Case::Overwrite, Generation::Second) => Generation::First,
            (Case::Overwrite, Generation::First) => Generation::Second,
            (Case::SequentialRead | Case::RandomRead, holds) => holds,
        }
    }
}

/// A side's turn within a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) side: usize,
    pub(crate) chunk: usize,
}

/// Who handles what in a round: each side once, another one first in each round, and no two sides
/// near the same pages.
pub(crate) fn turns(round: usize, sides: usize, chunks: usize) -> impl Iterator<Item = Turn> {
    (0..sides).map(move |position| {
        let side = (position + round) % sides;
        Turn {
            side,
            chunk: (round + side * chunks / sides) % chunks,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::Corpus;
    use crate::peers::memcpy::Memcpy;
    use crate::peers::raw_codec::RawCodec;
    use crate::suite::store::subject::Subject;
    use crate::workload::CHUNK_PAGES;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn every_side_handles_every_chunk_once_in_one_cyclic_order() {
        let (sides, chunks) = (3, 8);
        let all: Vec<Turn> = (0..chunks)
            .flat_map(|round| turns(round, sides, chunks))
            .collect();
        for side in 0..sides {
            let order: Vec<usize> = all
                .iter()
                .filter(|turn| turn.side == side)
                .map(|turn| turn.chunk)
                .collect();
            assert_eq!(order.len(), chunks);
            assert!(
                order
                    .windows(2)
                    .all(|pair| pair[1] == (pair[0] + 1) % chunks),
                "{order:?}"
            );
        }
        for round in 0..chunks {
            let mut met: Vec<usize> = turns(round, sides, chunks).map(|turn| turn.chunk).collect();
            met.dedup();
            assert_eq!(
                met.len(),
                sides,
                "two sides on the same pages in round {round}"
            );
            assert_eq!(
                turns(round, sides, chunks).next().unwrap().side,
                round % sides
            );
        }
    }

    /// Records its calls; loses a page when told to.
    struct Probe {
        inner: Memcpy,
        lose: Option<usize>,
        log: Rc<RefCell<Vec<(Case, usize, Generation)>>>,
    }

    impl Side for Probe {
        fn name(&self) -> &str {
            "probe"
        }
        fn begin(&mut self, case: Case) -> Result<()> {
            self.inner.begin(case)
        }
        fn run(
            &mut self,
            workload: &Workload,
            case: Case,
            chunk: usize,
            generation: Generation,
        ) -> Result<()> {
            self.log.borrow_mut().push((case, chunk, generation));
            self.inner.run(workload, case, chunk, generation)
        }
        fn read_back(&mut self, place: usize, page: &mut [u8]) -> Result<()> {
            self.inner.read_back(place, page)?;
            if self.lose == Some(place) {
                page[4095] ^= 1;
            }
            Ok(())
        }
    }

    fn rounds<'a>(
        workload: &'a Workload,
        stop: &'a Stop,
        lose: Option<usize>,
    ) -> (Rounds<'a>, Log) {
        let log = Log::default();
        let inner = Memcpy::new(workload).unwrap();
        let probe = Probe {
            inner,
            lose,
            log: log.clone(),
        };
        let sides: Vec<Box<dyn Side>> =
            vec![Box::new(Memcpy::new(workload).unwrap()), Box::new(probe)];
        (Rounds::new(workload, sides, stop), log)
    }

    type Log = Rc<RefCell<Vec<(Case, usize, Generation)>>>;

    fn workload() -> Workload {
        let bytes = 4 * CHUNK_PAGES * PAGE_BYTES;
        Workload::with_bytes(Corpus::synthetic()[0].pages(), bytes).unwrap()
    }

    const SHORT: Schedule = Schedule {
        at_least: Duration::from_nanos(1),
        runs_min: 3,
    };

    #[test]
    fn runs_are_counted_after_a_warm_up_and_overwrites_change_the_content() {
        let (workload, stop) = (workload(), Stop::default());
        let (mut rounds, log) = rounds(&workload, &stop, None);
        let mut progress = Progress::new(2);
        rounds
            .measure(Case::FirstWrite, SHORT, "", &mut progress)
            .unwrap();
        rounds.verify().unwrap();
        log.borrow_mut().clear();
        let figures = rounds
            .measure(Case::Overwrite, SHORT, "", &mut progress)
            .unwrap();
        let names: Vec<&str> = figures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["memcpy", "probe"]);
        assert!(figures.iter().all(|(_, series)| series.len() == 3));
        let generations: Vec<Generation> = log.borrow().iter().map(|entry| entry.2).collect();
        // Four passes (one of them the warm-up) of four chunks.
        assert_eq!(generations.len(), 16);
        for pass in 0..4 {
            let expected = if pass % 2 == 0 {
                Generation::Second
            } else {
                Generation::First
            };
            assert!(
                generations[pass * 4..][..4]
                    .iter()
                    .all(|&met| met == expected)
            );
        }
        rounds.verify().unwrap();
    }

    #[test]
    fn one_wrong_byte_on_one_side_is_found() {
        let (workload, stop) = (workload(), Stop::default());
        let place = workload.pages() - 1;
        let (mut rounds, _) = rounds(&workload, &stop, Some(place));
        rounds
            .measure(Case::FirstWrite, SHORT, "", &mut Progress::new(1))
            .unwrap();
        let error = rounds.verify().unwrap_err().to_string();
        assert_eq!(error, format!("probe: page {place} reads back wrong"));
    }

    /// The fairness of the whole suite rests on this: the same pages, compressed alike.
    #[test]
    fn store_and_codec_hold_the_same_pages_compressed_alike() {
        let bytes = 2 * CHUNK_PAGES * PAGE_BYTES;
        let workload = Workload::with_bytes(Corpus::synthetic()[2].pages(), bytes).unwrap();
        let stop = Stop::default();
        for algorithm in uzram::algorithms() {
            let raw = RawCodec::new(algorithm, &workload, 0..workload.chunks()).unwrap();
            let sides: Vec<Box<dyn Side>> = vec![
                Box::new(Subject::new(algorithm, &workload).unwrap()),
                Box::new(raw),
            ];
            let mut rounds = Rounds::new(&workload, sides, &stop);
            let once = Schedule {
                at_least: Duration::from_nanos(1),
                runs_min: 1,
            };
            for case in [Case::FirstWrite, Case::Overwrite] {
                rounds
                    .measure(case, once, "", &mut Progress::new(4))
                    .unwrap();
                rounds.verify().unwrap();
            }
            let stored =
                |side: &mut Box<dyn Side>| side.compressed_bytes().unwrap().unwrap() as f64;
            let sizes: Vec<f64> = rounds.sides.iter_mut().map(stored).collect();
            assert!(
                (sizes[0] / sizes[1] - 1.0).abs() < 0.005,
                "{algorithm}: {sizes:?}"
            );
        }
    }
}
