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

use crate::error::{Error, Result};
use crate::machine::{Lost, Stopwatch};
use crate::progress::Progress;
use crate::sample::Series;
use crate::side::PageSide;
use crate::sink::Sink;
use crate::suite::Options;
use crate::suite::turns::{Runs, Turns};
use crate::workload::{Case, Generation, Workload};

/// Sides with the pages that they handle.
pub(crate) struct Rounds<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) sides: Vec<PageSide>,
    options: &'a Options,
    /// The content of all places now.
    holds: Generation,
    sink: Sink,
    pub(crate) lost: Lost,
}

impl<'a> Rounds<'a> {
    /// Sides with nothing written yet.
    pub(crate) fn new(
        workload: &'a Workload,
        sides: Vec<PageSide>,
        options: &'a Options,
    ) -> Result<Rounds<'a>> {
        Ok(Rounds {
            workload,
            sides,
            options,
            holds: Generation::First,
            sink: Sink::new()?,
            lost: Lost::default(),
        })
    }

    /// Measures a case: for every side that takes it, nanoseconds a page, one figure a run.
    pub(crate) fn measure(
        &mut self,
        case: Case,
        what: &str,
        progress: &mut Progress,
    ) -> Result<Vec<(String, Series)>> {
        let (workload, holds) = (self.workload, self.holds);
        let mut sides: Vec<&mut PageSide> = self.sides.iter_mut().collect();
        sides.retain(|side| side.driven.takes(case));
        let turns = Turns {
            what,
            sides: sides.len(),
            parts: workload.chunks(),
            runs: Runs::AtLeast(0),
            warms_up: true,
        };
        let series = turns.measure(self.options, progress, |turn| {
            // No page is overwritten with itself.
            self.holds = holds.after(case, turn.run + 1);
            let chunk = chunk(turn.part, turn.side, turns.sides, turns.parts);
            let side = &mut sides[turn.side].driven;
            if turn.part == 0 {
                side.begin(case)?;
            }
            side.prepare(
                case,
                workload.first_place(chunk)..workload.first_place(chunk + 1),
            )?;
            let stopwatch = Stopwatch::start();
            side.run(workload.work(case, chunk, self.holds), &mut self.sink)?;
            let lap = stopwatch.stop();
            self.lost.add(lap);
            Ok(lap.own().as_nanos() as f64 / workload.pages() as f64)
        })?;
        let names = sides.iter().map(|side| side.name.clone());
        Ok(names.zip(series).collect())
    }

    /// Reads every place of every side back and compares; not timed.
    pub(crate) fn verify(&mut self) -> Result<()> {
        for side in &mut self.sides {
            for place in 0..self.workload.pages() {
                let page = self.sink.single();
                // A page at a time, also of a side that reads many at once.
                side.driven.read(place, page)?;
                if page != self.workload.page(place, self.holds) {
                    return Err(Error::Failed(format!(
                        "{}: page {place} reads back wrong",
                        side.name
                    )));
                }
            }
            self.options.stop.check()?;
        }
        Ok(())
    }
}

/// The chunk of a side in a part of a run: no two sides are near the same pages.
fn chunk(part: usize, side: usize, sides: usize, chunks: usize) -> usize {
    (part + side * chunks / sides) % chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::PAGE_BYTES;
    use crate::mapping::Backing;
    use crate::peers::memcpy::Memcpy;
    use crate::peers::raw_codec::RawCodec;
    use crate::side::Pages;
    use crate::suite::store::subject;
    use crate::suite::two_runs;
    use crate::workload::CHUNK_PAGES;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn every_side_handles_every_chunk_once_in_one_cyclic_order() {
        let (sides, chunks) = (3, 8);
        for side in 0..sides {
            let order: Vec<usize> = (0..chunks)
                .map(|part| chunk(part, side, sides, chunks))
                .collect();
            assert!(
                order
                    .windows(2)
                    .all(|pair| pair[1] == (pair[0] + 1) % chunks),
                "{order:?}"
            );
        }
        for part in 0..chunks {
            let mut met: Vec<usize> = (0..sides)
                .map(|side| chunk(part, side, sides, chunks))
                .collect();
            met.sort_unstable();
            met.dedup();
            assert_eq!(met.len(), sides, "two sides on the same pages");
        }
    }

    /// Records the first byte that each chunk is given; loses a page when told to.
    struct Probe {
        inner: Memcpy,
        lose: Option<usize>,
        log: Log,
    }

    impl Pages for Probe {
        fn write(&mut self, place: usize, pages: &[u8]) -> Result<()> {
            if place.is_multiple_of(CHUNK_PAGES) {
                self.log.borrow_mut().push((place, pages.to_vec()));
            }
            self.inner.write(place, pages)
        }
        fn read(&mut self, place: usize, pages: &mut [u8]) -> Result<()> {
            self.inner.read(place, pages)?;
            pages[4095] ^= u8::from(self.lose == Some(place));
            Ok(())
        }
    }

    type Log = Rc<RefCell<Vec<(usize, Vec<u8>)>>>;

    fn memcpy(workload: &Workload) -> Memcpy {
        Memcpy::new(workload.bytes(), Backing::Default).unwrap()
    }

    fn rounds<'a>(
        workload: &'a Workload,
        options: &'a Options,
        lose: Option<usize>,
    ) -> (Rounds<'a>, Log) {
        let log = Log::default();
        let probe = Probe {
            inner: memcpy(workload),
            lose,
            log: log.clone(),
        };
        let sides = vec![
            PageSide::of("memcpy", memcpy(workload)),
            PageSide::of("probe", probe),
        ];
        (Rounds::new(workload, sides, options).unwrap(), log)
    }

    fn workload() -> Workload {
        let bytes = 4 * CHUNK_PAGES * PAGE_BYTES;
        Workload::with_bytes(crate::synthetic::corpora()[0].pages(), bytes).unwrap()
    }

    #[test]
    fn runs_are_counted_after_a_warm_up_and_overwrites_change_the_content() {
        let (workload, options) = (workload(), two_runs(1));
        let (mut rounds, log) = rounds(&workload, &options, None);
        let mut progress = Progress::new(2);
        rounds.measure(Case::FirstWrite, "", &mut progress).unwrap();
        rounds.verify().unwrap();
        log.borrow_mut().clear();
        let figures = rounds.measure(Case::Overwrite, "", &mut progress).unwrap();
        let names: Vec<&str> = figures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["memcpy", "probe"]);
        assert!(figures.iter().all(|(_, series)| series.len() == 2));
        // Three passes (one of them the warm-up) of four chunks.
        assert_eq!(log.borrow().len(), 12);
        for (nth, (place, page)) in log.borrow().iter().enumerate() {
            let expected = match nth / 4 % 2 {
                0 => Generation::Second,
                _ => Generation::First,
            };
            assert_eq!(page, workload.page(*place, expected), "pass {}", nth / 4);
        }
        rounds.verify().unwrap();
    }

    #[test]
    fn one_wrong_byte_on_one_side_is_found() {
        let (workload, options) = (workload(), two_runs(1));
        let place = workload.pages() - 1;
        let (mut rounds, _) = rounds(&workload, &options, Some(place));
        rounds
            .measure(Case::FirstWrite, "", &mut Progress::new(1))
            .unwrap();
        let error = rounds.verify().unwrap_err().to_string();
        assert_eq!(error, format!("probe: page {place} reads back wrong"));
    }

    /// The fairness of the whole suite rests on this: the same pages, compressed alike.
    #[test]
    fn store_and_codec_hold_the_same_pages_compressed_alike() {
        let bytes = 2 * CHUNK_PAGES * PAGE_BYTES;
        let workload = Workload::with_bytes(crate::synthetic::corpora()[2].pages(), bytes).unwrap();
        let options = two_runs(1);
        for algorithm in uzram::algorithms() {
            let raw = RawCodec::new(algorithm, &workload, 0..workload.chunks()).unwrap();
            let sides = vec![
                PageSide::of("uzram", subject::disk(algorithm, &workload).unwrap()),
                PageSide::of("raw-codec", raw),
            ];
            let mut rounds = Rounds::new(&workload, sides, &options).unwrap();
            for case in [Case::FirstWrite, Case::Overwrite] {
                rounds.measure(case, "", &mut Progress::new(4)).unwrap();
                rounds.verify().unwrap();
            }
            let stored = |side: &PageSide| side.driven.compressed_bytes().unwrap().unwrap() as f64;
            let sizes: Vec<f64> = rounds.sides.iter().map(stored).collect();
            assert!(
                (sizes[0] / sizes[1] - 1.0).abs() < 0.005,
                "{algorithm}: {sizes:?}"
            );
        }
    }
}
