//! The aims: `data/aims.csv`, applied to a report after it was measured.
//!
//! A line is about the ratio of two variants, or, without a denominator, about a variant's figure. The first
//! line with patterns that fit has the aim of it. In a pattern `*` stands for any text and `?` for one character; a
//! semicolon stands for a comma. Lines that are shown `always` check the measurement itself; the others are shown
//! with `--aims`: beside the ratio, where the report lists ratios, else as a claim.

use crate::report::{Aim, Block, Claim, Standing};
use crate::sample::Spread;
use crate::suite::orderings::shown;

/// A line of the file.
struct Line {
    /// Suite, case, metric, numerator, denominator.
    patterns: [String; 5],
    aim: Aim,
    is_always_shown: bool,
}

/// Puts the aims of `suite` beside the ratios in `blocks`, all of them or those that are always shown, and adds a
/// claim for each line about figures or about ratios that the block does not list.
pub(crate) fn apply(suite: &str, is_asked: bool, blocks: &mut [Block]) {
    let lines = lines();
    let place = |texts: [&str; 4]| lines.iter().position(|line| line.fits(suite, texts));
    for block in blocks {
        let mut judged: Vec<Vec<(String, Spread)>> = vec![Vec::new(); lines.len()];
        let is_listed = block.matrices.is_empty();
        for ratio in &mut block.ratios {
            let (top, bottom) = (&ratio.numerator, &ratio.denominator);
            let found = place([&ratio.case, ratio.metric, top, bottom]);
            if let (Some(at), false) = (found, is_listed) {
                let name = format!("{top} / {bottom} in {}", ratio.case);
                judged[at].push((name, ratio.spread));
            }
            let line = found.map(|at| &lines[at]);
            let line = line.filter(|line| is_asked || line.is_always_shown);
            ratio.aim = line.map(|line| line.aim);
        }
        for row in &block.results {
            let found = place([&row.case, row.metric, &row.variant, ""]);
            // A pattern that any denominator fits is of ratios.
            if let Some(at) = found.filter(|at| lines[*at].patterns[4].is_empty()) {
                judged[at].push((format!("{} in {}", row.variant, row.case), row.spread));
            }
        }
        let found = lines.iter().zip(judged);
        let claims = found.filter(|(_, judged)| !judged.is_empty());
        let claims = claims.map(|(line, judged)| line.claim(&judged));
        block.claims.extend(claims);
    }
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

    /// Case, metric, numerator and denominator of `suite`.
    fn fits(&self, suite: &str, [case, metric, top, bottom]: [&str; 4]) -> bool {
        let texts = [suite, case, metric, top, bottom];
        let mut pairs = self.patterns.iter().zip(texts);
        pairs.all(|(pattern, text)| fits(pattern.as_bytes(), text.as_bytes()))
    }

    /// The claim of this line about figures or ratios, of which there is one at least.
    fn claim(&self, judged: &[(String, Spread)]) -> Claim {
        let [_, case, metric, top, bottom] = &self.patterns;
        let over = match bottom.as_str() {
            "" => String::new(),
            bottom => format!(" / {bottom}"),
        };
        let metric = metric.replace('_', " ");
        let claim = format!("{metric} of {top}{over} in {case} {}", words(self.aim));
        let standings: Vec<Standing> = judged.iter().map(|of| standing(self.aim, of.1)).collect();
        let told = |nth: usize| format!("{}: {}", judged[nth].0, shown(judged[nth].1));
        let measured = match judged.len() {
            1 => told(0),
            all => {
                let of = |wanted| standings.iter().filter(|is| **is == wanted).count();
                let worst = (0..all).min_by(|&one, &other| {
                    let [one, other] = [one, other].map(|nth| margin(self.aim, judged[nth].1));
                    one.total_cmp(&other)
                });
                let (held, open) = (of(Standing::Held), of(Standing::WithinSpread));
                let worst = worst.map(told).unwrap_or_default();
                format!("{held} of {all} held, {open} within the spread; the worst is {worst}")
            }
        };
        let standing = Standing::of_all(standings.iter().copied());
        Claim::aim(case.clone(), claim, measured, standing)
    }
}

fn words(aim: Aim) -> String {
    match aim {
        Aim::AtMost(limit) => format!("at most {limit}"),
        Aim::AtLeast(limit) => format!("at least {limit}"),
        Aim::MoreThan(limit) => format!("more than {limit}"),
        Aim::Within(tolerance) => format!("1 within {tolerance}"),
    }
}

/// How the aim stands over all runs.
fn standing(aim: Aim, spread: Spread) -> Standing {
    match aim {
        Aim::AtMost(limit) => Standing::at_most(limit, spread),
        Aim::AtLeast(limit) => Standing::at_least(limit, spread),
        Aim::MoreThan(limit) => Standing::at_least(limit.next_up(), spread),
        Aim::Within(tolerance) => Standing::of_all([
            Standing::at_most(1.0 + tolerance, spread),
            Standing::at_least(1.0 - tolerance, spread),
        ]),
    }
}

/// How far the median is on the right side of the limit.
fn margin(aim: Aim, spread: Spread) -> f64 {
    match aim {
        Aim::AtMost(limit) => limit - spread.median,
        Aim::AtLeast(limit) | Aim::MoreThan(limit) => spread.median - limit,
        Aim::Within(tolerance) => tolerance - (spread.median - 1.0).abs(),
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
    use crate::report::{Column, Matrix, Ratio};
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

    #[test]
    fn figures_and_ratios_that_are_not_listed_are_judged_by_claims() {
        let bytes = ("pool_bytes_per_stored_byte", "bytes/byte");
        let mut block = Block {
            matrices: vec![Matrix::of("t", [Column::median("c", "c", bytes.0)])],
            ..Block::default()
        };
        let series = |value: f64| Series::from(vec![value]);
        for (case, pool, value) in [
            ("c/lz4/16384/fill", "bestfit", 1.05),
            ("c/lz4/65536/fill", "bestfit", 1.05),
            ("c/lz4/16384/fill", "zbud", 2.0),
        ] {
            crate::figures::Cell::new(case, bytes, 0).add(pool, &series(value), &mut block);
        }
        for (pool, value) in [("zsmalloc", 0.9), ("zbud", 1.1), ("malloc-glibc", 2.0)] {
            let sides = (("bestfit", &series(value)), (pool, &series(1.0)));
            let ratio = Ratio::of("c/lz4/65536/fill", bytes.0, sides.0, sides.1);
            block.ratios.extend(ratio);
        }
        let mut blocks = [block];
        apply("pools", true, &mut blocks);
        let claims = blocks[0].claims.iter();
        let found: Vec<(&str, Standing)> = claims
            .map(|claim| (claim.measured.as_str(), claim.standing))
            .collect();
        let of_ratios = "1 of 2 held, 0 within the spread; the worst is \
            bestfit / zbud in c/lz4/65536/fill: 1.100";
        let expected = [
            ("bestfit in c/lz4/16384/fill: 1.050", Standing::Held),
            ("bestfit in c/lz4/65536/fill: 1.050", Standing::NotHeld),
            (of_ratios, Standing::NotHeld),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn an_aim_stands_over_all_runs() {
        let spread = Series::from(vec![1.0, 1.1]).spread().unwrap();
        for (aim, expected) in [
            (Aim::AtMost(1.1), Standing::Held),
            (Aim::AtMost(1.05), Standing::WithinSpread),
            (Aim::AtLeast(1.0), Standing::Held),
            (Aim::MoreThan(1.0), Standing::WithinSpread),
            (Aim::MoreThan(1.1), Standing::NotHeld),
            (Aim::Within(0.2), Standing::Held),
            (Aim::Within(0.05), Standing::WithinSpread),
        ] {
            assert_eq!(standing(aim, spread), expected, "{aim:?}");
        }
    }
}
