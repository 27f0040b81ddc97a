//! Advice on pages whose best choice is known, and on choices that are made to mislead.

use std::collections::BTreeMap;
use std::sync::Arc;

use uzram::{Codec, Compression, Compressor, DecompressShared, Decompressor, Malformed, Unit};

use super::measure::{Figures, Times};
use super::rule::Outcome;
use super::*;
use crate::corpus::PAGE_BYTES;
use crate::sample::Series;

/// Trials of a few choices: saved in percent, cost in microseconds.
fn trials(figures: &[(f64, f64)]) -> Vec<Trial> {
    let setting = &choice::settings(true)[0];
    let trial = |(saved, cost): &(f64, f64)| trial(setting, *saved, *cost);
    figures.iter().map(trial).collect()
}

fn trial(setting: &Setting, saved: f64, cost_us: f64) -> Trial {
    Trial {
        choice: setting.choice(4096, uzram::pools()[0]),
        figures: Figures {
            saved: saved / 100.0,
            ratio: 1.0,
            times: times_of(cost_us),
        },
        is_on_front: false,
        is_tied: false,
    }
}

/// A cost in microseconds: half of it to write, half to read.
fn times_of(cost_us: f64) -> Times {
    let half = Series::from(vec![cost_us * 500.0]);
    Times {
        writes: half.clone(),
        reads: half,
    }
}

/// The recommended one's place, and whether it is over the budget.
fn recommended(figures: &[(f64, f64)], budget_us: f64) -> (usize, bool) {
    recommended_of(&trials(figures), budget_us)
}

fn recommended_of(trials: &[Trial], budget_us: f64) -> (usize, bool) {
    match rule::recommend(trials, budget_us * 1e3) {
        Outcome::Recommended {
            index,
            is_over_budget,
        } => (index, is_over_budget),
        other => panic!("{other:?}"),
    }
}

/// As little as gives figures.
const EFFORT: Effort = Effort {
    runs: 1,
    run: Duration::from_millis(1),
    objects_bytes: 2 << 20,
};
/// With a budget that allows everything.
const HOW: (Effort, f64) = (EFFORT, 1e9);
const FAST: (f64, f64) = (62.0, 5.0);
const DENSE: (f64, f64) = (76.0, 15.0);
const DENSEST: (f64, f64) = (80.0, 60.0);

#[test]
fn the_budget_decides_between_fast_and_dense() {
    let all = [FAST, DENSE, DENSEST];
    assert_eq!(recommended(&all, 10.0).0, 0);
    assert_eq!(recommended(&all, 25.0).0, 1);
    assert_eq!(recommended(&all, 1000.0).0, 2);
}

#[test]
fn memory_is_compared_by_what_remains_of_it() {
    // Leaves 24.2 % where the densest leaves 24: as dense, and cheaper by a quarter and more.
    let almost = (75.8, 11.5);
    assert_eq!(recommended(&[FAST, DENSE, almost], 25.0).0, 2);
    // Cheaper within the noise: the first in the fixed order.
    let noise = (75.8, 13.0);
    assert_eq!(recommended(&[FAST, DENSE, noise], 25.0).0, 1);
    assert_eq!(recommended(&[FAST, noise, DENSE], 25.0).0, 1);
    // A hundredth of the original is 8 % of what remains of these: not for a tenth of a microsecond.
    let (denser, thinner) = ((88.0, 1.0), (87.1, 0.7));
    assert_eq!(recommended(&[thinner, denser], 25.0).0, 1);
}

#[test]
fn the_default_pool_is_preferred_to_one_that_is_as_dense() {
    let figures = [(75.8, 14.5), DENSE];
    let mut trials = trials(&figures);
    (trials[0].choice.pool, trials[1].choice.pool) = ("zsmalloc", uzram::pools()[0]);
    assert_eq!(rule::best(&trials, &[0, 1]), Some(1));
    trials.swap(0, 1);
    assert_eq!(rule::best(&trials, &[0, 1]), Some(0));
}

/// Costs as a busy machine shows them: every run up to 8 % dearer, and one in eight by half.
#[test]
fn noise_does_not_change_the_answer() {
    // Saved, and the cost in microseconds: the same codec in five pools, then others, as of a heap.
    let figures = [
        (76.4, 17.0),
        (76.5, 16.8),
        (76.45, 17.3),
        (74.0, 17.1),
        (71.0, 16.9),
        (76.3, 16.9),
        (75.0, 12.0),
        (62.0, 4.0),
        (63.0, 5.0),
        (79.0, 41.0),
        (80.0, 70.0),
    ];
    let exact: Vec<_> = figures.map(|(saved, cost)| (saved, cost)).to_vec();
    let mut exact = trials(&exact);
    for (trial, pool) in exact.iter_mut().zip(uzram::pools()) {
        trial.choice.pool = pool;
    }
    let mut rng = uzram_testkit::Rng::new(21);
    let mut answers = BTreeMap::new();
    for _ in 0..1000 {
        let mut noisy = exact.clone();
        for trial in &mut noisy {
            trial.figures.times = noisy_runs(&trial.figures.times, 5, &mut rng);
        }
        for index in rule::close(&noisy, 30e3) {
            noisy[index].figures.times = noisy_runs(&exact[index].figures.times, 20, &mut rng);
        }
        let Outcome::Recommended { index, .. } = rule::recommend(&noisy, 30e3) else {
            panic!("nothing recommended");
        };
        *answers.entry(index).or_insert(0) += 1;
    }
    assert_eq!(answers, BTreeMap::from([(0, 1000)]));
}

fn noisy_runs(exact: &Times, runs: usize, rng: &mut uzram_testkit::Rng) -> Times {
    let mut run = |of: &Series| {
        let busy = if rng.below(8) == 0 { 1.5 } else { 1.0 };
        of.values()[0] * busy * (1.0 + rng.below(800) as f64 / 1e4)
    };
    let mut times = Times::default();
    for _ in 0..runs {
        times.writes.push(run(&exact.writes));
        times.reads.push(run(&exact.reads));
    }
    times
}

/// Two levels of one codec, as dense as each other and about a tenth apart in cost.
#[test]
fn choices_astride_a_margin_get_the_same_answer_each_time() {
    let settings = choice::settings(false);
    let setting = |algorithm: &str, parameters: &str| {
        let is_it = |it: &&Setting| it.algorithm == algorithm && it.parameters == parameters;
        settings.iter().find(is_it).unwrap()
    };
    // The usual way, and on a machine where the other level is a tenth cheaper.
    for (default, level) in [(16.5, 15.0), (15.0, 16.5)] {
        let exact = [
            trial(setting("zstd", ""), 76.4, default),
            trial(setting("zstd", "level=1"), 76.38, level),
            trial(setting("lz4", ""), 62.0, 4.0),
            trial(setting("zstd", "level=7"), 77.5, 45.0),
        ];
        let mut rng = uzram_testkit::Rng::new(13);
        let mut answers = BTreeMap::new();
        for _ in 0..1000 {
            let mut noisy = exact.clone();
            for (noisy, exact) in noisy.iter_mut().zip(&exact) {
                noisy.figures.times = noisy_runs(&exact.figures.times, 5, &mut rng);
            }
            let (index, _) = recommended_of(&noisy, 30.0);
            *answers.entry(index).or_insert(0) += 1;
        }
        assert_eq!(answers, BTreeMap::from([(1, 1000)]));
    }
}

/// The denser choice costs just less than the budget, and the machine is slow for seconds at a time:
/// every run of a round is up to 8 % dearer. The same answer, in each of a thousand.
#[test]
fn a_cost_near_the_budget_gets_the_same_answer_each_time() {
    for (cost, expected) in [(28.5, 1), (29.5, 1), (29.9, 1), (30.0, 1), (33.0, 0)] {
        let exact = trials(&[(70.0, 20.0), (75.0, cost), (80.0, 60.0)]);
        let mut rng = uzram_testkit::Rng::new(30);
        let mut answers = BTreeMap::new();
        for _ in 0..1000 {
            let mut noisy = exact.clone();
            let mut round = |noisy: &mut [Trial], indexes: &[usize]| {
                for &index in indexes {
                    let slow = rng.below(800) as f64 / 1e4;
                    let mut times = times_of(exact[index].figures.cost_ns() / 1e3 * (1.0 + slow));
                    times.extend(&noisy[index].figures.times);
                    noisy[index].figures.times = times;
                }
            };
            for trial in &mut noisy {
                trial.figures.times = Times::default();
            }
            round(&mut noisy, &[0, 1, 2]);
            let close = rule::close(&noisy, 30e3);
            round(&mut noisy, &close);
            for _ in 0..ROUNDS_DOUBTFUL {
                let doubtful = rule::doubtful(&noisy, 30e3);
                round(&mut noisy, &doubtful);
            }
            for _ in 0..ROUNDS_MORE {
                let close = rule::close(&noisy, 30e3);
                round(&mut noisy, &close);
            }
            *answers.entry(recommended_of(&noisy, 30.0).0).or_insert(0) += 1;
        }
        assert_eq!(answers, BTreeMap::from([(expected, 1000)]), "{cost}");
    }
}

/// As dense and as cheap, in every column of what is shown: such rows are ties, and left out.
#[test]
fn no_row_that_is_shown_beats_the_recommended_one_in_both_columns() {
    let sample = half_compressible();
    let split = Split::of(&sample).unwrap();
    let mut rng = uzram_testkit::Rng::new(7);
    for _ in 0..1000 {
        let figure = |rng: &mut uzram_testkit::Rng| {
            let saved = 70.0 + rng.below(40) as f64 / 10.0;
            (saved, 10.0 + rng.below(300) as f64 / 10.0)
        };
        let figures: Vec<_> = (0..12).map(|_| figure(&mut rng)).collect();
        let advice = Advice::new(&sample, &split, trials(&figures), BUDGET, None);
        let best = &advice.recommended().unwrap().figures;
        let beats = |own: &&Trial| {
            let (own, rest) = (own.figures.cost_ns(), own.figures.remaining());
            own <= best.cost_ns()
                && rest <= best.remaining()
                && (own, rest) != (best.cost_ns(), best.remaining())
        };
        let shown = output::shown(&advice);
        assert_eq!(
            shown
                .iter()
                .copied()
                .find(beats)
                .map(|it| it.figures.cost_ns()),
            None
        );
        // What is left out is as good and no better.
        for tied in advice.trials.iter().filter(|trial| trial.is_tied) {
            assert!(tied.figures.cost_ns() * 1.25 >= best.cost_ns());
            assert!(tied.figures.remaining() * 1.01 >= best.remaining() * 0.9999);
        }
    }
}

/// The choices that are measured again are those that the answer depends on.
#[test]
fn costs_that_decide_are_measured_again() {
    let near_the_budget = (78.0, 27.0);
    let over = (78.5, 33.0);
    let figures = [FAST, DENSE, (76.1, 14.0), near_the_budget, over];
    assert_eq!(rule::close(&trials(&figures), 30e3), [4, 3]);
    assert_eq!(rule::close(&trials(&figures), 20e3), [4, 3, 2, 1]);
    assert_eq!(rule::close(&trials(&figures), 15.5e3), [3, 2, 1]);
    // The densest within the budget, whatever they cost.
    assert_eq!(rule::contenders(&trials(&figures), 30e3), [0, 1, 2, 3]);
    let many: Vec<_> = (0..20).map(|n| (60.0 + f64::from(n), 15.0)).collect();
    let found = rule::contenders(&trials(&many), 30e3);
    assert_eq!(found, Vec::from_iter(12..20));
}

#[test]
fn nothing_within_the_budget_gives_the_cheapest_and_says_so() {
    assert_eq!(recommended(&[DENSE, FAST, DENSEST], 1.0), (1, true));
}

#[test]
fn pages_that_hardly_compress_get_no_recommendation() {
    let outcome = rule::recommend(&trials(&[(1.0, 1.0), (4.0, 20.0)]), 25e3);
    assert_eq!(outcome, Outcome::NotWorthIt { saved: 0.04 });
}

/// Remembers the pages that it was shown: those "compress" to eight bytes, others not at all.
#[derive(Clone)]
struct Memoriser {
    known: Arc<BTreeMap<Vec<u8>, u64>>,
    unit: Unit,
}

impl Memoriser {
    fn shown(pages: &[u8], unit: Unit) -> Memoriser {
        let units = pages.chunks_exact(unit.bytes()).map(<[u8]>::to_vec);
        Memoriser {
            known: Arc::new(units.zip(0..).collect()),
            unit,
        }
    }
}

impl Codec for Memoriser {
    fn name(&self) -> &str {
        "memoriser"
    }
    fn compressor(&self, _unit: Unit) -> uzram::Result<Box<dyn Compressor>> {
        Ok(Box::new(self.clone()))
    }
    fn decompressor(&self, _unit: Unit) -> uzram::Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(self.clone())))
    }
}

impl Compressor for Memoriser {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        let number = self.known.get(source)?;
        destination[..8].copy_from_slice(&number.to_le_bytes());
        Some(8)
    }
}

impl DecompressShared for Memoriser {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        let number = u64::from_le_bytes(source.try_into().map_err(|_| Malformed)?);
        let mut known = self.known.iter();
        let (page, _) = known.find(|(_, own)| **own == number).ok_or(Malformed)?;
        assert_eq!(page.len(), self.unit.bytes());
        destination.copy_from_slice(page);
        Ok(())
    }
}

/// Text, half of it random: every codec saves something, none very much.
fn half_compressible() -> Sample {
    let pages = uzram_testkit::pages::fio(50, PAGES_MIN);
    Sample {
        name: "test".to_owned(),
        pages,
        pages_total: PAGES_MIN as u64,
        disk_bytes: 1 << 30,
        training: Vec::new(),
    }
}

/// Through the whole of measuring and choosing, with a budget that allows everything.
#[test]
fn a_codec_that_has_learnt_the_pages_by_heart_is_found_out() {
    let sample = half_compressible();
    let split = Split::of(&sample).unwrap();
    let learnt = split.training.clone();
    let make = move |unit| Compression::with_codec(Box::new(Memoriser::shown(&learnt, unit)), unit);
    let mut settings = vec![Setting::made_by("memoriser", String::new(), make)];
    settings.extend(
        choice::settings(true)
            .into_iter()
            .filter(|it| it.algorithm == "lz4"),
    );
    let mut trials = Vec::new();
    try_all(&split, 1e9, &settings, HOW, &Stop::default(), &mut trials).unwrap();
    let planted = &trials[0].figures;
    assert!(planted.saved < 0.01, "{planted:?}");
    let advice = Advice::new(&sample, &split, trials, Duration::from_secs(1), None);
    let chosen = advice.recommended().unwrap();
    assert_eq!(chosen.choice.setting.algorithm, "lz4");
}

/// Or a dictionary would be judged by the pages that it was made of.
#[test]
fn no_page_is_in_two_parts() {
    let pages = (0..PAGES_MIN * 4).flat_map(|n| {
        let mut page = vec![0; PAGE_BYTES];
        page[..4].copy_from_slice(&(n as u32 + 1).to_le_bytes());
        page
    });
    let sample = Sample {
        pages: pages.collect(),
        ..half_compressible()
    };
    let split = Split::of(&sample).unwrap();
    let numbers = |part: &[u8]| -> Vec<u32> {
        let pages = split::pages_of(part);
        pages
            .map(|page| u32::from_le_bytes(*page.first_chunk().unwrap()))
            .collect()
    };
    let parts = [&split.training, &split.judged].map(|part| numbers(part));
    assert_eq!(parts.each_ref().map(Vec::len), [64, 192]);
    let mut all = parts.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(1..=256));
    assert_eq!(parts[1][..2], [17, 18], "runs stay together");
}

#[test]
fn what_cannot_be_advised_on_is_said() {
    let of = |pages: Vec<u8>| Sample {
        name: "process 7".to_owned(),
        pages,
        pages_total: 1000,
        disk_bytes: 1 << 30,
        training: Vec::new(),
    };
    let refused = |sample: &Sample| Split::of(sample).unwrap_err().to_string();
    let few = of(vec![1; (PAGES_MIN - 1) * PAGE_BYTES]);
    assert_eq!(
        refused(&few),
        "process 7: too little to advise on: 63 of at least 64 pages of 4 KiB"
    );
    let same = of(vec![7; PAGES_MIN * PAGE_BYTES]);
    assert_eq!(
        refused(&same),
        "process 7: every page repeats one word; any choice keeps them for nothing"
    );
}

#[test]
fn pages_that_are_random_get_no_recommendation() {
    let pages = uzram_testkit::noise(3, PAGES_MIN * PAGE_BYTES);
    let sample = Sample {
        name: "noise".to_owned(),
        pages,
        pages_total: PAGES_MIN as u64,
        disk_bytes: 1 << 30,
        training: Vec::new(),
    };
    let split = Split::of(&sample).unwrap();
    let settings = vec![choice::settings(true).remove(0)];
    let mut trials = Vec::new();
    try_all(&split, 1e9, &settings, HOW, &Stop::default(), &mut trials).unwrap();
    let advice = Advice::new(&sample, &split, trials, BUDGET, None);
    assert!(
        matches!(advice.outcome, Outcome::NotWorthIt { .. }),
        "{:?}",
        advice.outcome
    );
    let text = output::sentences(&advice).join(" ");
    assert!(
        text.starts_with("No recommendation: these pages hardly compress"),
        "{text}"
    );
}

/// Ctrl-C: what was tried is shown, and nothing is recommended on half of the evidence.
#[test]
fn an_interrupted_advice_recommends_nothing() {
    let sample = half_compressible();
    let split = Split::of(&sample).unwrap();
    let mut trials = Vec::new();
    let stop = Stop::default();
    let interrupting = Setting::made_by("late", String::new(), {
        let stop = stop.clone();
        move |unit| {
            stop.raise();
            Compression::new(uzram::algorithms()[0], unit)
        }
    });
    let settings = [choice::settings(true).remove(0), interrupting];
    let error = try_all(&split, 1e9, &settings, HOW, &stop, &mut trials).unwrap_err();
    assert!(matches!(error, crate::Error::Interrupted));
    assert_eq!(trials.len(), 3);
    let advice = Advice::new(&sample, &split, trials, BUDGET, Some(error.to_string()));
    assert!(advice.recommended().is_none());
    assert!(
        output::sentences(&advice)
            .join(" ")
            .contains("not everything was tried")
    );
}
