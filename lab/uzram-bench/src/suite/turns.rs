//! The one loop of all suites: sides take turns.
//!
//! A *run* has one part or several; in each part every side has one turn, and what its turns come to is one
//! figure a run. Before the runs may come one that is not measured, the warm-up. What drifts or disturbs meets
//! all sides alike, for [`order`] favours none.

use std::time::{Duration, Instant};

use super::Options;
use crate::error::Result;
use crate::progress::Progress;
use crate::sample::Series;

/// How many runs there are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Runs {
    /// As many as the schedule has at least; [`Turn::time`] is a part of its time.
    Few,
    /// As many as fit into the schedule's time, and no fewer than this.
    AtLeast(usize),
    /// So many.
    Exactly(usize),
}

/// The turns of a measurement: sides, parts and runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns<'a> {
    /// For the line of progress.
    pub(crate) what: &'a str,
    pub(crate) sides: usize,
    /// Parts of a run.
    pub(crate) parts: usize,
    pub(crate) runs: Runs,
    /// Whether an unmeasured run comes first.
    pub(crate) warms_up: bool,
}

/// A side's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) side: usize,
    pub(crate) part: usize,
    /// Runs before this one, the warm-up among them.
    pub(crate) run: usize,
    pub(crate) is_warm_up: bool,
}

impl Turn {
    /// How long it takes: a part of the schedule's time, or so long for the warm-up.
    pub(crate) fn time(self, warm_up: Duration, options: &Options) -> Duration {
        match self.is_warm_up {
            true => warm_up,
            false => options.schedule.at_least / options.schedule.runs_min as u32,
        }
    }
}

impl<'a> Turns<'a> {
    /// Runs of one part, after a warm-up.
    pub(crate) fn of(what: &'a str, sides: usize, runs: Runs) -> Turns<'a> {
        Turns {
            what,
            sides,
            parts: 1,
            runs,
            warms_up: true,
        }
    }

    /// Calls `turn` for each turn of each run. A side's figures of a run are the sums of its turns'.
    ///
    /// # Errors
    /// The errors of `turn`, and [`Error::Interrupted`](crate::Error::Interrupted) between two turns.
    pub(crate) fn take<const N: usize>(
        self,
        options: &Options,
        progress: &mut Progress,
        mut turn: impl FnMut(Turn) -> Result<[f64; N]>,
    ) -> Result<Vec<[Series; N]>> {
        let mut series = vec![std::array::from_fn(|_| Series::default()); self.sides];
        let (schedule, mut started) = (options.schedule, Instant::now());
        let warm_up = usize::from(self.warms_up);
        let wants_more = |run: usize, elapsed: Duration| match self.runs {
            Runs::Few => run < schedule.runs_min,
            Runs::AtLeast(least) => run < least || schedule.wants_more(run, elapsed),
            Runs::Exactly(runs) => run < runs,
        };
        let mut run = 0;
        while run < warm_up || wants_more(run - warm_up, started.elapsed()) {
            let is_warm_up = run < warm_up;
            let mut sums = vec![[0.0; N]; self.sides];
            for part in 0..self.parts {
                for side in order(run + part, self.sides) {
                    options.stop.check()?;
                    let done = schedule.part(run.saturating_sub(warm_up), started.elapsed());
                    progress.at(self.what, if is_warm_up { 0.0 } else { done });
                    let figures = turn(Turn {
                        side,
                        part,
                        run,
                        is_warm_up,
                    })?;
                    for (sum, figure) in sums[side].iter_mut().zip(figures) {
                        *sum += figure;
                    }
                }
            }
            run += 1;
            if is_warm_up {
                started = Instant::now();
                continue;
            }
            for (series, sums) in series.iter_mut().zip(sums) {
                let both = series.iter_mut().zip(sums);
                both.for_each(|(series, sum)| series.push(sum));
            }
        }
        progress.step();
        Ok(series)
    }

    /// The same for turns of one figure.
    pub(crate) fn measure(
        self,
        options: &Options,
        progress: &mut Progress,
        mut turn: impl FnMut(Turn) -> Result<f64>,
    ) -> Result<Vec<Series>> {
        let series = self.take(options, progress, |at| Ok([turn(at)?]))?;
        Ok(series.into_iter().map(|[series]| series).collect())
    }
}

/// The sides in the order of their turns: another one first in each two rounds, and the second of two in the
/// opposite direction. The side that comes second meets the caches, the branch history and the code that the
/// first left behind, which is worth some percent; so neither of two neighbours may always be second.
pub(crate) fn order(round: usize, sides: usize) -> impl Iterator<Item = usize> {
    (0..sides).map(move |nth| {
        let nth = match round % 2 {
            0 => nth,
            _ => sides - 1 - nth,
        };
        (nth + round / 2) % sides
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::two_runs;

    const PLAN: Turns<'static> = Turns {
        what: "x",
        sides: 2,
        parts: 1,
        runs: Runs::Few,
        warms_up: false,
    };

    fn turns(plan: Turns<'_>) -> (Vec<(usize, usize, usize)>, Vec<Series>) {
        let mut turns = Vec::new();
        let mut progress = Progress::new(1);
        let series = plan.measure(&two_runs(1), &mut progress, |turn| {
            turns.push((turn.run, turn.part, turn.side));
            Ok(if turn.is_warm_up { 100.0 } else { 1.0 })
        });
        (turns, series.unwrap())
    }

    #[test]
    fn every_side_has_a_turn_in_every_part_of_every_run() {
        let (few, series) = turns(PLAN);
        assert_eq!(few, [(0, 0, 0), (0, 0, 1), (1, 0, 1), (1, 0, 0)]);
        assert_eq!(series, [Series::from(vec![1.0; 2]), vec![1.0; 2].into()]);
        let runs = |runs| turns(Turns { runs, ..PLAN }).1[0].len();
        assert_eq!(runs(Runs::AtLeast(0)), 2);
        assert_eq!(runs(Runs::AtLeast(5)), 5);
        assert_eq!(runs(Runs::Exactly(3)), 3);
    }

    #[test]
    fn parts_add_up_and_the_warm_up_does_not_count() {
        let plan = Turns {
            parts: 3,
            warms_up: true,
            ..PLAN
        };
        let (turns, series) = turns(plan);
        assert_eq!(turns.len(), 3 * 3 * 2);
        assert_eq!(series[1], Series::from(vec![3.0, 3.0]));
    }

    #[test]
    fn neighbours_come_second_equally_often() {
        for sides in 2..=15 {
            let mut first = vec![vec![0; sides]; sides];
            for round in 0..2 * sides {
                let order: Vec<usize> = order(round, sides).collect();
                for (place, one) in order.iter().enumerate() {
                    for other in &order[place + 1..] {
                        first[*one][*other] += 1;
                    }
                }
            }
            for (one, others) in first.iter().enumerate() {
                let fair = |(other, count): (usize, &usize)| one == other || *count == sides;
                assert!(others.iter().enumerate().all(fair), "{sides}: {first:?}");
            }
        }
    }

    #[test]
    fn nobody_has_a_turn_after_an_interruption() {
        let options = two_runs(1);
        let mut turns = 0;
        let interrupted = PLAN.measure(&options, &mut Progress::new(1), |_| {
            turns += 1;
            options.stop.raise();
            Ok(0.0)
        });
        assert!(interrupted.is_err());
        assert_eq!(turns, 1);
    }
}
