//! What a suite found: figures, ratios, aims, and the peers that were missing.

mod better;
mod claim;
mod front;
mod html;
mod json;
mod matrix;
mod table;

use serde::Serialize;

use crate::corpus::Corpus;
use crate::machine::Machine;
use crate::peers::Missing;
use crate::sample::{Series, Spread};

pub(crate) use claim::{Claim, Standing};
pub(crate) use front::front;
#[cfg(test)]
pub(crate) use html::assert_sound_in_a_browser;
pub(crate) use html::write as write_html;
pub(crate) use json::write as write_json;
pub(crate) use matrix::{Column, Figure, Lines, Matrix};
pub(crate) use table::{align, print as print_table};

/// Everything about one invocation.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) suite: &'static str,
    /// The command line as typed.
    pub(crate) command: String,
    pub(crate) machine: Machine,
    pub(crate) corpora: Vec<CorpusFacts>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) missing: Vec<Missing>,
    /// Why measuring ended early, in one line: the report is then a part of what was asked for.
    pub(crate) stopped: Option<String>,
    /// What it all comes to, where a suite can say that itself.
    pub(crate) headline: Option<Headline>,
}

/// The first thing that a reader should see.
#[derive(Clone, Debug)]
pub(crate) struct Headline {
    pub(crate) title: String,
    pub(crate) sentence: String,
    /// What to type next.
    pub(crate) command: Option<String>,
}

/// What a suite has found so far. Whatever is in here when a suite fails or is interrupted is
/// reported, so a suite records each figure as soon as it has it.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) blocks: Vec<Block>,
    pub(crate) missing: Vec<Missing>,
}

/// A corpus's line in the report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CorpusFacts {
    name: String,
    pages: usize,
    same_filled_pages: usize,
}

impl From<&Corpus> for CorpusFacts {
    fn from(corpus: &Corpus) -> CorpusFacts {
        CorpusFacts {
            name: corpus.name.clone(),
            pages: corpus.total_pages(),
            same_filled_pages: corpus.same_filled_pages(),
        }
    }
}

/// Cases that belong together: one corpus, one algorithm.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub(crate) title: String,
    /// Lines under the title.
    pub(crate) notes: Vec<String>,
    pub(crate) results: Vec<Measured>,
    pub(crate) ratios: Vec<Ratio>,
    /// How people see the results; without any, one line a figure.
    pub(crate) matrices: Vec<Matrix>,
    pub(crate) claims: Vec<Claim>,
    /// What to draw in two dimensions.
    pub(crate) tradeoffs: Vec<Tradeoff>,
    /// The metrics that are drawn; without any, all of them.
    pub(crate) drawn: Vec<&'static str>,
}

/// Two metrics of the same variants, one to be paid for with the other: a scatter chart in which
/// those that no other beats in both are marked.
#[derive(Clone, Debug)]
pub(crate) struct Tradeoff {
    pub(crate) title: String,
    /// The metric along the horizontal axis; its unit says what is better.
    pub(crate) across: &'static str,
    /// The metric along the vertical axis.
    pub(crate) up: &'static str,
    /// The variant to point out.
    pub(crate) chosen: Option<String>,
}

/// One variant's figure in one case.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// `CORPUS/ALGORITHM/CASE`, unique together with variant and metric.
    pub(crate) case: String,
    pub(crate) variant: String,
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) spread: Spread,
    pub(crate) working_set_bytes: u64,
    /// The CPUs that the measured threads were pinned to, as a list like `0,1`.
    pub(crate) pinned: Option<String>,
}

/// One figure over another, pair by pair.
#[derive(Clone, Debug)]
pub(crate) struct Ratio {
    pub(crate) case: String,
    pub(crate) numerator: String,
    pub(crate) denominator: String,
    pub(crate) metric: &'static str,
    pub(crate) spread: Spread,
    pub(crate) aim: Option<Aim>,
}

/// What a ratio should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Aim {
    AtMost(f64),
    AtLeast(f64),
    MoreThan(f64),
    /// One, give or take this much.
    Within(f64),
}

impl Aim {
    /// Whether the median meets the aim.
    pub(crate) fn is_met(self, spread: Spread) -> bool {
        match self {
            Aim::AtMost(limit) => spread.median <= limit,
            Aim::AtLeast(limit) => spread.median >= limit,
            Aim::MoreThan(limit) => spread.median > limit,
            Aim::Within(tolerance) => (spread.median - 1.0).abs() <= tolerance,
        }
    }
}

impl Ratio {
    /// `numerator` over `denominator`, run by run; `None` without runs.
    pub(crate) fn of(
        case: &str,
        metric: &'static str,
        (numerator, top): (&str, &Series),
        (denominator, bottom): (&str, &Series),
        aim: Option<Aim>,
    ) -> Option<Ratio> {
        let spread = top.over(bottom).spread()?;
        Some(Ratio {
            case: case.to_owned(),
            numerator: numerator.to_owned(),
            denominator: denominator.to_owned(),
            metric,
            spread,
            aim,
        })
    }
}

/// A ratio stands in the line of the peer: the side that is not uzram.
pub(crate) fn belongs(ratio: &Ratio, measured: &Measured) -> bool {
    let subject = |name: &str| name.starts_with(crate::suite::SUBJECT);
    let peer = if subject(&ratio.numerator) {
        &ratio.denominator
    } else {
        &ratio.numerator
    };
    ratio.case == measured.case && ratio.metric == measured.metric && *peer == measured.variant
}

/// The revision this was built from, `unknown` outside a checkout.
pub(crate) const GIT: &str = env!("UZRAM_BENCH_GIT");
/// The cargo profile this was built with.
pub(crate) const PROFILE: &str = env!("UZRAM_BENCH_PROFILE");

/// Whether the compiler optimised: figures of a build without are worth nothing.
pub(crate) fn is_optimised() -> bool {
    env!("UZRAM_BENCH_OPTIMISED") == "true"
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Report {
        let machine = Machine {
            cpus: 2,
            model: "some CPU".to_owned(),
            kernel: "6.1".to_owned(),
            memory_bytes: 1 << 30,
            wakeup_same_cpu_ns: Some(4000),
            wakeup_cross_cpu_ns: None,
        };
        let ours = Series::from(vec![110.0, 120.0, 104.0]);
        let theirs = Series::from(vec![100.0, 100.0, 100.0]);
        let case = "text/lz4/overwrite";
        let measured = |variant: &str, series: &Series| Measured {
            case: case.to_owned(),
            variant: variant.to_owned(),
            metric: "time_per_page",
            unit: "ns",
            spread: series.spread().unwrap(),
            working_set_bytes: 1 << 29,
            pinned: Some("1".to_owned()),
        };
        let (us, them) = (("uzram", &ours), ("raw-codec", &theirs));
        let ratio = Ratio::of(case, "time_per_page", us, them, Some(Aim::AtMost(1.12))).unwrap();
        Report {
            suite: "store",
            command: "uzram bench store".to_owned(),
            machine,
            corpora: vec![CorpusFacts::from(&Corpus::fio(50, 2))],
            blocks: vec![Block {
                title: "text, lz4".to_owned(),
                notes: vec!["a note".to_owned()],
                results: vec![measured("uzram", &ours), measured("raw-codec", &theirs)],
                ratios: vec![ratio],
                ..Block::default()
            }],
            missing: vec![Missing {
                peer: "kernel-zram".to_owned(),
                reason: "none".to_owned(),
            }],
            stopped: None,
            headline: None,
        }
    }

    #[test]
    fn an_aim_is_judged_by_the_median() {
        let spread = Series::from(vec![1.0, 1.1, 5.0]).spread().unwrap();
        assert!(Aim::AtMost(1.1).is_met(spread));
        assert!(!Aim::AtMost(1.09).is_met(spread));
        assert!(Aim::AtLeast(1.1).is_met(spread));
        assert!(!Aim::MoreThan(1.1).is_met(spread));
        assert!(Aim::Within(0.11).is_met(spread));
        assert!(!Aim::Within(0.09).is_met(spread));
    }
}
