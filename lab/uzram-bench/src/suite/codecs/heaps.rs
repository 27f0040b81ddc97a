//! The figures by which `words` and `auto` are judged: speed and density beside lz4's in the geometric mean over
//! all heaps, and what the look of `auto` costs and chooses.
//!
//! A heap is a corpus whose name begins with `heap-`. The cases of the means name the code that ran, since each
//! has aims of its own.

use super::contender::{Contender, Engine, Setting};
use super::passes::{Figures, METRICS};
use crate::corpus::Corpus;
use crate::error::Result;
use crate::figures::{Cell, Metric};
use crate::report::Block;
use crate::sample::Series;

const SPEED: Metric = ("speed_over_lz4", "x");
const DENSITY: Metric = ("ratio_over_lz4", "x");
/// The name of [`Looked`].
pub(super) const LOOKED: &str = "look+lz4";

/// Lz4 after the look of `auto`, whatever that says.
pub(super) struct Looked(Engine);

impl Looked {
    pub(super) fn new() -> Result<Looked> {
        Ok(Looked(Engine::new(&Setting::default_of("lz4"))?))
    }
}

impl Contender for Looked {
    fn name(&self) -> &str {
        LOOKED
    }

    fn compress(&mut self, page: &[u8], packed: &mut [u8]) -> Option<usize> {
        std::hint::black_box(uzram::lab::looks_like_words(page));
        self.0.compress(page, packed)
    }

    fn decompress(&mut self, packed: &[u8], page: &mut [u8]) -> Option<()> {
        self.0.decompress(packed, page)
    }
}

/// Of how many pages `auto` makes the smaller of what words and lz4 make, and how much more it takes.
pub(super) fn choices(figures: &[Figures]) -> Option<String> {
    let of = |name: &str| {
        let found = figures.iter().find(|one| one.name == name)?;
        Some(&found.lengths)
    };
    let (auto, words, lz4) = (of("auto")?, of("words")?, of("lz4")?);
    let smaller: Vec<u32> = words.iter().zip(lz4).map(|(a, b)| *a.min(b)).collect();
    // The byte that says that lz4 made an object is no choice.
    let pairs = auto.iter().zip(&smaller);
    let right = pairs.filter(|(auto, least)| **auto <= **least + 1).count();
    let sum = |lengths: &[u32]| lengths.iter().map(|length| f64::from(*length)).sum::<f64>();
    Some(format!(
        "auto: {right} of {} pages are the smaller of words and lz4; all take {:.3} of these",
        auto.len(),
        sum(auto) / sum(&smaller),
    ))
}

/// Whether a contender is `words`, or `auto`, at any level.
pub(super) fn is_for_words(contender: &str) -> bool {
    let algorithm = contender.split(':').next();
    algorithm == Some("words") || algorithm == Some("auto")
}

/// The figures of all heaps so far.
#[derive(Default)]
pub(super) struct Heaps(Vec<Vec<Figures>>);

impl Heaps {
    pub(super) fn add(&mut self, corpus: &Corpus, figures: Vec<Figures>) {
        if corpus.name.starts_with("heap-") {
            self.0.push(figures);
        }
    }

    /// The means, if there are several heaps and lz4 was measured.
    pub(super) fn block(&self) -> Option<Block> {
        let (heaps, version) = (self.0.len(), uzram::lab::words_version());
        if heaps < 2 {
            return None;
        }
        let mut block = Block {
            title: format!("{heaps} heaps: geometric means over lz4, code for {version}"),
            ..Block::default()
        };
        let cell = |case: &str, metric| Cell::new(format!("heaps/{version}/{case}"), metric, 0);
        let names = self.0[0].iter().map(|one| one.name.as_str());
        for name in names.filter(|name| is_for_words(name)) {
            for (at, metric) in METRICS.into_iter().enumerate() {
                if let Some(direction) = metric.strip_suffix("_mean") {
                    let speed = self.mean(|one| one.times[at].clone(), "lz4", name);
                    cell(direction, SPEED).add(name, &speed, &mut block);
                }
            }
            let bytes = |one: &Figures| Series::from(vec![one.compressed_bytes as f64]);
            let density = self.mean(bytes, "lz4", name);
            cell("ratio", DENSITY).add(name, &density, &mut block);
        }
        Some(block)
    }

    /// The mean over all heaps of a figure of `top` over that of `bottom`, run by run, for as many runs as
    /// every heap had; none where one of them was not measured.
    fn mean(&self, of: impl Fn(&Figures) -> Series, top: &str, bottom: &str) -> Series {
        let find = |heap: &[Figures], name: &str| {
            let found = heap.iter().find(|one| one.name == name);
            found.map_or_else(Series::default, &of)
        };
        let heaps = self.0.iter();
        let ratios: Vec<Series> = heaps
            .map(|heap| find(heap, top).over(&find(heap, bottom)))
            .collect();
        let runs = ratios.iter().map(Series::len).min().unwrap_or(0);
        let mean = |run: usize| {
            let logs = ratios.iter().map(|series| series.values()[run].ln());
            (logs.sum::<f64>() / ratios.len() as f64).exp()
        };
        Series::from((0..runs).map(mean).collect::<Vec<f64>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &str, times: [&[f64]; 2], lengths: &[u32]) -> Figures {
        let mut one = Figures {
            name: name.to_owned(),
            times: Default::default(),
            compressed_bytes: lengths.iter().map(|length| *length as usize).sum(),
            lengths: lengths.to_vec(),
        };
        one.times[0] = Series::from(times[0].to_vec());
        one.times[3] = Series::from(times[1].to_vec());
        one
    }

    fn corpus(name: &str) -> Corpus {
        let page: Vec<u8> = (0..4096).map(|n| (n % 251) as u8).collect();
        Corpus::new(name, &page).unwrap()
    }

    #[test]
    fn means_are_geometric_over_heaps_alone_and_taken_run_by_run() {
        let mut heaps = Heaps::default();
        let of = |lz4: f64, words: f64| {
            vec![
                figures("lz4", [&[lz4, lz4, lz4], &[8.0, 8.0]], &[90, 10]),
                figures("words", [&[words, 1.0, 1.0], &[4.0, 2.0]], &[25, 25]),
            ]
        };
        assert!(heaps.block().is_none());
        heaps.add(&corpus("heap-a"), of(8.0, 1.0));
        assert!(heaps.block().is_none(), "one heap has no mean");
        heaps.add(&corpus("text-b"), of(1000.0, 1.0));
        heaps.add(&corpus("heap-c"), of(2.0, 1.0));
        let block = heaps.block().unwrap();
        let found: Vec<_> = block
            .results
            .iter()
            .map(|one| {
                let case = one.case.rsplit_once('/').unwrap().1;
                let case = (case, one.variant.as_str());
                (case, one.spread.min, one.spread.max, one.spread.runs)
            })
            .collect();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let expected = [
            (("compress", "words"), 4.0, 4.0, 3),
            (("decompress", "words"), 2.0, 4.0, 2),
            (("ratio", "words"), 2.0, 2.0, 1),
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!((found.0, found.3), (expected.0, expected.3));
            assert!(
                close(found.1, expected.1) && close(found.2, expected.2),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_choice_is_right_where_auto_has_the_smaller_and_its_own_byte() {
        let times: [&[f64]; 2] = [&[1.0], &[1.0]];
        let all = [
            figures("lz4", times, &[100, 50, 40]),
            figures("words", times, &[60, 80, 70]),
            figures("auto", times, &[60, 51, 70]),
        ];
        let note = choices(&all).unwrap();
        assert!(
            note.contains("2 of 3 pages") && note.contains("1.207"),
            "{note}"
        );
        assert!(choices(&all[..2]).is_none());
    }
}
