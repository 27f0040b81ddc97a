//! The comparison of two figures, and whether a ratio is clear beyond its spread.

use super::block::{Aim, Block, Measured, Ratio, SUBJECT};

/// The better direction of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Less,
    More,
}

/// The verdict of a ratio on the side that is judged: uzram, or the numerator if uzram is on
/// neither side or on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Better,
    Worse,
    /// The runs disagree, or the better direction is not known.
    Open,
}

impl Better {
    /// By a unit's name: rates and factors should be high; times and sizes low.
    pub(super) fn of_unit(unit: &str) -> Option<Better> {
        let (amount, per) = unit.split_once('/').unwrap_or((unit, ""));
        if per == "s" || matches!(amount, "IOPS" | "x" | "%") {
            return Some(Better::More);
        }
        let first = amount.split(' ').next().unwrap_or_default();
        let is_cost = matches!(first, "ns" | "us" | "ms" | "s" | "bytes" | "B");
        (is_cost || first.ends_with("iB")).then_some(Better::Less)
    }

    /// The better direction of a ratio's numerator.
    pub(super) fn of_ratio(ratio: &Ratio, block: &Block) -> Option<Better> {
        match ratio.aim {
            Some(Aim::Within(_)) => return None,
            Some(Aim::AtMost(_)) => return Some(Better::Less.for_subject_of(ratio)),
            Some(Aim::AtLeast(_) | Aim::MoreThan(_)) => {
                return Some(Better::More.for_subject_of(ratio));
            }
            None => {}
        }
        let same = |of: &&Measured| of.case == ratio.case && of.metric == ratio.metric;
        let measured = block.results.iter().find(same)?;
        Better::of_unit(measured.unit)
    }

    /// An aim is about the ratio. The side that is judged decides which direction of the metric that is.
    fn for_subject_of(self, ratio: &Ratio) -> Better {
        match judges_denominator(ratio) {
            true => self.turned(),
            false => self,
        }
    }

    fn turned(self) -> Better {
        match self {
            Better::Less => Better::More,
            Better::More => Better::Less,
        }
    }
}

impl Verdict {
    /// The verdict of all runs of a ratio, given which side of its metric is better.
    pub(super) fn of(ratio: &Ratio, better: Option<Better>) -> Verdict {
        let wanted = match (better, judges_denominator(ratio)) {
            (None, _) => return Verdict::Open,
            (Some(better), false) => better,
            (Some(better), true) => better.turned(),
        };
        let (low, high) = match wanted {
            Better::More => (Verdict::Worse, Verdict::Better),
            Better::Less => (Verdict::Better, Verdict::Worse),
        };
        match ratio.spread {
            spread if spread.min > 1.0 => high,
            spread if spread.max < 1.0 => low,
            _ => Verdict::Open,
        }
    }
}

/// Whether uzram is the ratio's denominator, and only that.
pub(super) fn judges_denominator(ratio: &Ratio) -> bool {
    let is_ours = |name: &str| name.starts_with(SUBJECT);
    is_ours(&ratio.denominator) && !is_ours(&ratio.numerator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Series;

    fn ratio(numerator: &str, denominator: &str, values: [f64; 2], aim: Option<Aim>) -> Ratio {
        let (top, bottom) = (Series::from(values.to_vec()), Series::from(vec![1.0, 1.0]));
        let sides = ((numerator, &top), (denominator, &bottom));
        let ratio = Ratio::of("c/x", "time_per_page", sides.0, sides.1).unwrap();
        Ratio { aim, ..ratio }
    }

    #[test]
    fn units_say_what_is_better() {
        for unit in ["ns", "us", "s", "MiB", "MiB spare", "bytes/slot", "bytes"] {
            assert_eq!(Better::of_unit(unit), Some(Better::Less), "{unit}");
        }
        for unit in ["IOPS", "MiB/s", "pages/s", "x", "%"] {
            assert_eq!(Better::of_unit(unit), Some(Better::More), "{unit}");
        }
        assert_eq!(Better::of_unit("pages"), None);
    }

    #[test]
    fn a_verdict_needs_all_runs_on_one_side() {
        let less = Some(Better::Less);
        let of = |values| Verdict::of(&ratio("uzram", "peer", values, None), less);
        assert_eq!(of([0.8, 0.9]), Verdict::Better);
        assert_eq!(of([1.1, 1.2]), Verdict::Worse);
        assert_eq!(of([0.9, 1.1]), Verdict::Open);
        assert_eq!(
            Verdict::of(&ratio("uzram", "peer", [2.0, 3.0], None), None),
            Verdict::Open
        );
    }

    #[test]
    fn uzram_is_judged_on_whichever_side_it_stands() {
        // The peer's time over uzram's: above one, uzram is faster.
        let over_us = ratio("kernel-zram-4k", "uzram", [1.2, 1.4], None);
        assert_eq!(Verdict::of(&over_us, Some(Better::Less)), Verdict::Better);
        // An aim of at least 1.08 for that ratio means the same.
        let aimed = Ratio {
            aim: Some(Aim::AtLeast(1.08)),
            ..over_us
        };
        let better = Better::of_ratio(&aimed, &Block::default());
        assert_eq!(Verdict::of(&aimed, better), Verdict::Better);
        let at_most = ratio("uzram", "raw-codec", [1.02, 1.05], Some(Aim::AtMost(1.12)));
        let better = Better::of_ratio(&at_most, &Block::default());
        assert_eq!(Verdict::of(&at_most, better), Verdict::Worse);
    }
}
