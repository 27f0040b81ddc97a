//! Figures of a block that form a line. They are found by their names, so that a suite has nothing to do.
//!
//! - **Over a number.** Cases that differ in one whole number of the last part of their names, with
//!   three or more different numbers: `read-1-threads`, `read-2-threads`, `read-4-threads`; `T=1`,
//!   `T=2`, `T=4`. One line per variant.
//! - **A distribution.** Metrics of one case that end in `_p50`, `_p90`, `_p99`, `_p999` or `_max`,
//!   two or more of them. One line per variant.

use super::names::{case_label, words};
use crate::report::{Block, Measured};
use crate::sample::Spread;

/// Different numbers from which on they make an axis.
const NUMBERS_MIN: usize = 3;
/// Words that surely belong to the number beside them.
const COUNTED: [&str; 6] = ["threads", "jobs", "connections", "depth", "streams", "T"];
const PERCENTILES: [(&str, f64, &str); 8] = [
    ("_min", 0.0, "min"),
    ("_p50", 50.0, "50 %"),
    ("_p90", 90.0, "90 %"),
    ("_p95", 95.0, "95 %"),
    ("_p99", 99.0, "99 %"),
    ("_p999", 99.9, "99.9 %"),
    ("_p9999", 99.99, "99.99 %"),
    ("_max", 100.0, "max"),
];

/// Lines in one chart.
pub(super) struct Series<'a> {
    pub(super) title: String,
    pub(super) unit: &'a str,
    /// The label of the horizontal axis: the thing that it counts.
    pub(super) across: String,
    /// Whether the values along it are names more than amounts.
    pub(super) is_ordinal: bool,
    pub(super) lines: Vec<Line<'a>>,
}

pub(super) struct Line<'a> {
    pub(super) variant: &'a str,
    pub(super) points: Vec<Point>,
}

pub(super) struct Point {
    pub(super) x: f64,
    pub(super) text: String,
    pub(super) spread: Spread,
}

/// Results that are drawn at all, with their places.
fn drawable(block: &Block) -> impl Iterator<Item = (usize, &Measured)> {
    let all = block.results.iter().enumerate();
    all.filter(|(_, result)| block.drawn.is_empty() || block.drawn.contains(&result.metric))
}

/// The lines of a block, and for each of its results whether it is in one of them.
pub(super) fn of_block(block: &Block) -> (Vec<Series<'_>>, Vec<bool>) {
    let mut drawn = vec![false; block.results.len()];
    let mut found = distributions(block, &mut drawn);
    found.extend(over_numbers(block, &mut drawn));
    (found, drawn)
}

/// A result with its place on the horizontal axis.
type Placed<'a> = (usize, &'a Measured, f64, String);

fn distributions<'a>(block: &'a Block, drawn: &mut [bool]) -> Vec<Series<'a>> {
    let mut groups: Vec<((&str, &str), Vec<Placed<'a>>)> = Vec::new();
    for (index, measured) in drawable(block) {
        if let Some((stem, x, text)) = percentile(measured.metric) {
            let placed = (index, measured, x, text.to_owned());
            add(&mut groups, (measured.case.as_str(), stem), placed);
        }
    }
    let lines = groups.into_iter().filter_map(|((case, stem), placed)| {
        if distinct_places(&placed) < 2 {
            return None;
        }
        mark(&placed, drawn);
        Some(Series {
            title: format!("{}, {}", case_label(case), words(stem)),
            unit: placed[0].1.unit,
            across: "share of operations that took no longer".to_owned(),
            is_ordinal: true,
            lines: lines(placed),
        })
    });
    lines.collect()
}

fn over_numbers<'a>(block: &'a Block, drawn: &mut [bool]) -> Vec<Series<'a>> {
    let mut groups: Vec<((Key, &str), Vec<Placed<'a>>)> = Vec::new();
    for (index, measured) in drawable(block) {
        for (key, number) in keys(&measured.case) {
            let placed = (index, measured, f64::from(number), number.to_string());
            add(&mut groups, (key, measured.metric), placed);
        }
    }
    let series = groups.into_iter().filter_map(|((key, metric), placed)| {
        // A result belongs to the first of its numbers that makes an axis.
        let free = placed.into_iter().filter(|(index, ..)| !drawn[*index]);
        let placed: Vec<Placed<'a>> = free.collect();
        if distinct_places(&placed) < NUMBERS_MIN {
            return None;
        }
        mark(&placed, drawn);
        let title = match key.rest.is_empty() {
            true => words(metric),
            false => format!("{}, {}", key.rest, words(metric)),
        };
        Some(Series {
            title,
            unit: placed[0].1.unit,
            across: key.counted,
            is_ordinal: false,
            lines: lines(placed),
        })
    });
    series.collect()
}

fn add<'a, K: PartialEq>(groups: &mut Vec<(K, Vec<Placed<'a>>)>, key: K, placed: Placed<'a>) {
    match groups.iter_mut().find(|(known, _)| *known == key) {
        Some((_, group)) => group.push(placed),
        None => groups.push((key, vec![placed])),
    }
}

fn distinct_places(placed: &[Placed<'_>]) -> usize {
    let mut places: Vec<f64> = placed.iter().map(|(_, _, x, _)| *x).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    places.len()
}

fn mark(placed: &[Placed<'_>], drawn: &mut [bool]) {
    for (index, ..) in placed {
        drawn[*index] = true;
    }
}

fn lines(placed: Vec<Placed<'_>>) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for (_, measured, x, text) in placed {
        let spread = measured.spread;
        let point = Point { x, text, spread };
        match lines
            .iter_mut()
            .find(|line| line.variant == measured.variant)
        {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                variant: &measured.variant,
                points: vec![point],
            }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    lines
}

/// A metric without its percentile, the percentile, and that as a text.
fn percentile(metric: &str) -> Option<(&str, f64, &'static str)> {
    let mut found = PERCENTILES.iter().filter_map(|(suffix, x, text)| {
        let stem = metric.strip_suffix(suffix)?;
        Some((stem, *x, *text))
    });
    found.next()
}

/// A case's name with one of its numbers taken out.
#[derive(PartialEq)]
struct Key {
    /// All of the name before its last part.
    front: String,
    /// The words before and after the number's.
    around: (String, String),
    /// The word that says what the number counts: `threads`.
    counted: String,
    /// The other words.
    rest: String,
}

/// One key with its number for each number that stands alone in the last part of the name.
fn keys(case: &str) -> Vec<(Key, u32)> {
    let (front, last) = case.rsplit_once('/').unwrap_or(("", case));
    let words: Vec<&str> = last.split('-').collect();
    let keys = words.iter().enumerate().filter_map(|(at, word)| {
        let (name, digits) = number_word(word)?;
        let number = digits.parse().ok()?;
        let beside = name
            .is_empty()
            .then(|| counted_beside(&words, at))
            .flatten();
        let others = (0..words.len()).filter(|other| *other != at && Some(*other) != beside);
        let rest: Vec<&str> = others.map(|other| words[other]).collect();
        let key = Key {
            front: front.to_owned(),
            around: (words[..at].join("-"), words[at + 1..].join("-")),
            counted: beside.map_or(name, |beside| words[beside]).to_owned(),
            rest: rest.join("-"),
        };
        Some((key, number))
    });
    keys.collect()
}

/// A word that is a number, perhaps with its name in front (`T=4`, `t4`): name and digits.
fn number_word(word: &str) -> Option<(&str, &str)> {
    let (name, digits) = match word.split_once('=') {
        Some(parts) => parts,
        None => match word.starts_with(|c: char| c.is_ascii_alphabetic()) {
            true => word.split_at(1),
            false => ("", word),
        },
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then_some((name, digits))
}

/// The index of the word beside the number at `at` that says what the number counts.
fn counted_beside(words: &[&str], at: usize) -> Option<usize> {
    let is_word = |at: &usize| {
        let word = words.get(*at).copied().unwrap_or_default();
        !word.is_empty() && word.chars().all(char::is_alphabetic)
    };
    let beside = [Some(at + 1), at.checked_sub(1)];
    let mut beside: Vec<usize> = beside.into_iter().flatten().filter(is_word).collect();
    beside.sort_by_key(|at| !COUNTED.contains(&words[*at]));
    beside.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Series as Runs;

    fn block(results: &[(&str, &str, &'static str)]) -> Block {
        let measured = |(case, variant, metric): &(&str, &str, &'static str)| Measured {
            case: (*case).to_owned(),
            variant: (*variant).to_owned(),
            metric,
            unit: "ns",
            spread: Runs::from(vec![1.0]).spread().unwrap(),
            working_set_bytes: 0,
            pinned: None,
        };
        Block {
            results: results.iter().map(measured).collect(),
            ..Block::default()
        }
    }

    #[test]
    fn three_numbers_in_a_name_make_a_line_and_two_do_not() {
        let time = "time";
        let mut results = vec![
            ("a/read-1-threads", "x", time),
            ("a/read-4-threads", "x", time),
            ("a/write-1x16", "x", time),
            ("a/write-2x16", "x", time),
            ("a/write-4x16", "x", time),
        ];
        let two = block(&results);
        assert!(of_block(&two).0.is_empty());
        results.insert(1, ("a/read-2-threads", "x", time));
        results.insert(1, ("a/read-2-threads", "y", time));
        let three = block(&results);
        let (found, drawn) = of_block(&three);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].across, "threads");
        assert_eq!(found[0].title, "read, time");
        let places: Vec<f64> = found[0].lines[0]
            .points
            .iter()
            .map(|point| point.x)
            .collect();
        assert_eq!(places, [1.0, 2.0, 4.0]);
        assert_eq!(found[0].lines[1].points.len(), 1);
        assert_eq!(drawn, [true, true, true, true, false, false, false]);
    }

    #[test]
    fn names_of_numbers_are_found() {
        let counted = |case: &str| {
            let found = keys(case).into_iter().next();
            found.map(|(key, number)| (key.counted, key.rest, number))
        };
        let some = |counted: &str, rest: &str, n| Some((counted.to_owned(), rest.to_owned(), n));
        assert_eq!(counted("a/T=4"), some("T", "", 4));
        assert_eq!(counted("a/randrw-t4"), some("t", "randrw", 4));
        assert_eq!(
            counted("a/threads-12-randrw"),
            some("threads", "randrw", 12)
        );
        assert_eq!(counted("a/write-jobs=3"), some("jobs", "write", 3));
        assert_eq!(counted("corpus-7/write"), None);
        assert_eq!(counted("a/lz4-write"), None);
        assert_eq!(counted("a/99999999999"), None);
    }

    #[test]
    fn percentiles_of_one_case_are_one_distribution() {
        let results = block(&[
            ("a/read", "x", "latency_p50"),
            ("a/read", "x", "latency_p99"),
            ("a/read", "x", "latency_p999"),
            ("a/write", "x", "latency_p50"),
        ]);
        let (found, drawn) = of_block(&results);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].title, "read, latency");
        assert_eq!(found[0].lines[0].points.len(), 3);
        assert_eq!(drawn, [true, true, true, false]);
    }
}
