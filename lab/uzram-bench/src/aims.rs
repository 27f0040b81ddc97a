//! The aims of ratios: `data/aims.csv`, applied to a report after it was measured.
//!
//! The first line with patterns that fit a ratio has its aim. In a pattern `*` stands for any text
//! and `?` for one character; a semicolon stands for a comma. Lines that are shown `always` check the
//! measurement itself; the others are shown with `--aims`. `data/limits.csv` holds the limits of claims that
//! are no ratios of two sides.

use crate::report::{Aim, Block, Ratio};

/// A line of the file.
struct Line {
    /// Suite, case, metric, numerator, denominator.
    patterns: [String; 5],
    aim: Aim,
    is_always_shown: bool,
}

/// Puts the aims of `suite` beside the ratios in `blocks`, all of them or those that are always shown.
pub(crate) fn apply(suite: &str, is_asked: bool, blocks: &mut [Block]) {
    let lines = lines();
    let shown = |line: &&Line| is_asked || line.is_always_shown;
    for ratio in blocks.iter_mut().flat_map(|block| &mut block.ratios) {
        let line = lines.iter().find(|line| line.fits(suite, ratio));
        ratio.aim = line.filter(shown).map(|line| line.aim);
    }
}

/// The limit `name` of `data/limits.csv`.
///
/// # Panics
/// If there is none: the tests of the suites ask for all of them.
pub(crate) fn limit(name: &str) -> f64 {
    let lines = include_str!("../data/limits.csv").lines();
    let found = lines
        .filter_map(|line| line.split_once(','))
        .find(|(known, _)| *known == name);
    let limit = found.and_then(|(_, limit)| limit.parse().ok());
    limit.unwrap_or_else(|| panic!("data/limits.csv has no number for {name}"))
}

fn lines() -> Vec<Line> {
    let lines = include_str!("../data/aims.csv").lines().skip(1);
    let lines = lines.filter(|line| !line.starts_with('#'));
    lines
        .map(|line| Line::parse(line).expect("a test parses every line"))
        .collect()
}

impl Line {
    fn parse(line: &str) -> Option<Line> {
        let fields: Vec<&str> = line.split(',').collect();
        let [patterns @ .., bound, limit, shown] = &fields[..] else {
            return None;
        };
        let patterns: [&str; 5] = patterns.try_into().ok()?;
        let limit = limit.parse().ok()?;
        let aim = match *bound {
            "at-most" => Aim::AtMost(limit),
            "at-least" => Aim::AtLeast(limit),
            "more-than" => Aim::MoreThan(limit),
            "within" => Aim::Within(limit),
            _ => return None,
        };
        let is_always_shown = match *shown {
            "always" => true,
            "asked" => false,
            _ => return None,
        };
        Some(Line {
            patterns: patterns.map(|pattern| pattern.replace(';', ",")),
            aim,
            is_always_shown,
        })
    }

    fn fits(&self, suite: &str, ratio: &Ratio) -> bool {
        let Ratio {
            case,
            metric,
            numerator,
            denominator,
            ..
        } = ratio;
        let texts: [&str; 5] = [suite, case, metric, numerator, denominator];
        let mut pairs = self.patterns.iter().zip(texts);
        pairs.all(|(pattern, text)| fits(pattern.as_bytes(), text.as_bytes()))
    }
}

/// Whether `text` is one that `pattern` stands for.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|skipped| fits(rest, &text[skipped..])),
        ([b'?', rest @ ..], [_, tail @ ..]) => fits(rest, tail),
        ([one, rest @ ..], [first, tail @ ..]) => one == first && fits(rest, tail),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Series;

    fn aim(suite: &str, case: &str, metric: &'static str, sides: [&str; 2]) -> Option<Aim> {
        let one = Series::from(vec![1.0]);
        let [top, bottom] = sides.map(|side| (side, &one));
        let ratio = Ratio::of(case, metric, top, bottom).unwrap();
        let mut blocks = [Block {
            ratios: vec![ratio],
            ..Block::default()
        }];
        apply(suite, true, &mut blocks);
        let asked = blocks[0].ratios[0].aim;
        apply(suite, false, &mut blocks);
        let always = blocks[0].ratios[0].aim;
        assert!(always.is_none() || always == asked);
        asked
    }

    #[test]
    fn every_limit_is_a_number_and_its_name_is_used() {
        let source = [
            include_str!("suite/contention/claims.rs"),
            include_str!("suite/iopaths/mod.rs"),
            include_str!("suite/pools/claims.rs"),
            include_str!("suite/streams/claims.rs"),
        ];
        let lines = include_str!("../data/limits.csv").lines().skip(1);
        for line in lines.filter(|line| !line.starts_with('#')) {
            let name = line.split_once(',').unwrap().0;
            assert!(limit(name) > 0.0, "{name}");
            let last = name.rsplit('/').next().unwrap();
            let is_used = |name: &str| source.concat().contains(&format!("\"{name}\""));
            let is_of_a_count = name.starts_with("pools/fill/");
            assert!(is_used(name) || is_used(last) || is_of_a_count, "{name}");
        }
    }

    #[test]
    fn every_line_is_read() {
        assert!(lines().len() >= 30);
        for wrong in ["", "a,b,c,d,e,at-most,x,asked", "a,b,c,d,e,about,1,asked"] {
            assert!(Line::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_ratio_has_the_aim_of_its_suite_case_and_sides() {
        let time = "time_per_page";
        let store = |case, sides| aim("store", case, time, sides);
        let codec = ["uzram", "raw-codec"];
        assert_eq!(store("c/lz4/first-write", codec), Some(Aim::AtMost(1.08)));
        assert_eq!(
            store("c/lz4/sequential-read", codec),
            Some(Aim::AtMost(1.1))
        );
        assert_eq!(store("c/lz4/same-filled-read", codec), None);
        let kernel = ["kernel-zram-4k", "uzram"];
        assert_eq!(store("c/lz4/first-write", kernel), Some(Aim::AtLeast(1.08)));
        assert_eq!(aim("codecs", "c/lz4/first-write", time, codec), None);
        let nbd = |case, sides| aim("nbd", case, "iops", sides);
        let memory = ["uzram-lz4", "nbdkit-memory"];
        assert_eq!(nbd("c/random-read-1x32", memory), Some(Aim::AtLeast(0.95)));
        assert_eq!(nbd("c/random-read-1m-4x4", memory), Some(Aim::AtLeast(0.6)));
        let zstd = ["uzram-zstd", "nbdkit-zstd"];
        assert_eq!(nbd("c/random-write-1x32", zstd), Some(Aim::AtLeast(5.0)));
        assert_eq!(nbd("c/random-read-1m-1x4", zstd), None);
        let devices = |case, sides| aim("devices", case, "iops", sides);
        let files = ["uzram-lz4-file", "nbdfuse-file"];
        assert_eq!(
            devices("random-read-4k-1x1", files),
            Some(Aim::AtLeast(4.0))
        );
        let zstd = ["uzram-zstd-file", "nbdfuse-file"];
        assert_eq!(devices("random-read-4k-1x1", zstd), None);
        let btt = ["btt, no flushes", "pmem, no flushes"];
        let written = aim("iopaths", "btt, no flushes/random-write", time, btt);
        assert_eq!(written, Some(Aim::AtMost(1.6)));
    }

    #[test]
    fn what_checks_the_measurement_is_shown_unasked() {
        let one = Series::from(vec![1.0]);
        let sides = (("uzram", &one), ("raw-codec", &one));
        let ratio = Ratio::of("c/lz4/density", "compression_ratio", sides.0, sides.1);
        let mut blocks = [Block {
            ratios: ratio.into_iter().collect(),
            ..Block::default()
        }];
        apply("store", false, &mut blocks);
        assert_eq!(blocks[0].ratios[0].aim, Some(Aim::Within(0.005)));
    }
}
