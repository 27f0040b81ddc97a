//! The results of a suite: the figures, the peers, and the aims.

use serde::{Deserialize, Serialize};

use super::claim::Claim;
use super::columns::Matrix;
use crate::corpus::Corpus;
use crate::machine::Machine;
use crate::sample::{Series, Spread};

/// The variant name of uzram itself; with more than one of it in a case, the prefix.
pub const SUBJECT: &str = "uzram";

/// Everything about one invocation.
#[derive(Clone, Debug)]
pub struct Report {
    /// The suite, or `advise`.
    pub suite: &'static str,
    /// The command line as typed.
    pub command: String,
    /// The build that measured.
    pub built: Built,
    /// The machine that was measured on.
    pub machine: Machine,
    /// The pages that were measured on.
    pub corpora: Vec<CorpusFacts>,
    /// The results, block by block.
    pub blocks: Vec<Block>,
    /// The peers that this machine does not have.
    pub missing: Vec<Missing>,
    /// The reason why measuring ended early, in one line: the report is then incomplete.
    pub stopped: Option<String>,
    /// The conclusion, where a suite can draw one itself.
    pub headline: Option<Headline>,
}

/// A build: its revision and its cargo profile.
#[derive(Clone, Debug)]
pub struct Built {
    /// The revision.
    pub git: String,
    /// The cargo profile.
    pub profile: String,
}

impl Built {
    /// This program.
    pub fn this() -> Built {
        Built {
            git: GIT.to_owned(),
            profile: PROFILE.to_owned(),
        }
    }
}

/// The first thing that a reader should see.
#[derive(Clone, Debug)]
pub struct Headline {
    /// In a few words.
    pub title: String,
    /// In full.
    pub sentence: String,
    /// The line to type next.
    pub command: Option<String>,
}

/// A peer that this machine does not have, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub peer: String,
    /// The reason, and the remedy.
    pub reason: String,
}

impl Missing {
    /// `peer`, and the error by which it turned out to be missing.
    pub fn new(peer: &str, reason: impl ToString) -> Missing {
        Missing {
            peer: peer.to_owned(),
            reason: reason.to_string(),
        }
    }
}

/// The findings of a suite so far. They are reported also when the suite fails or is interrupted, so a
/// suite records each figure as soon as it has it.
#[derive(Debug, Default)]
pub struct Findings {
    /// The results, block by block.
    pub blocks: Vec<Block>,
    /// The peers that this machine does not have.
    pub missing: Vec<Missing>,
}

/// A corpus's line in the report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CorpusFacts {
    /// Its name.
    pub name: String,
    /// Its pages.
    pub pages: usize,
    /// Those of them that are filled with one word.
    pub same_filled_pages: usize,
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
pub struct Block {
    /// Its heading.
    pub title: String,
    /// Lines under the title.
    pub notes: Vec<String>,
    /// The figures.
    pub results: Vec<Measured>,
    /// Figures over figures.
    pub ratios: Vec<Ratio>,
    /// The tables of the results; without any, one line per figure.
    pub matrices: Vec<Matrix>,
    /// Published results, and whether they hold here.
    pub claims: Vec<Claim>,
    /// Scatter charts of two metrics.
    pub tradeoffs: Vec<Tradeoff>,
    /// The metrics that are drawn; without any, all of them.
    pub drawn: Vec<&'static str>,
}

/// A scatter chart of two metrics of the same variants, where more of one costs some of the other. The
/// variants that no other beats in both are marked.
#[derive(Clone, Debug)]
pub struct Tradeoff {
    /// The heading of the chart.
    pub title: String,
    /// The metric along the horizontal axis; its unit says which direction is better.
    pub across: &'static str,
    /// The metric along the vertical axis.
    pub up: &'static str,
    /// The variant to point out.
    pub chosen: Option<String>,
}

/// One variant's figure in one case.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// `CORPUS/ALGORITHM/CASE`, unique together with variant and metric.
    pub case: String,
    /// The side that was measured: uzram, or a peer.
    pub variant: String,
    /// The name of the measure, in words joined by underscores.
    pub metric: &'static str,
    /// The unit of the figures; it says which direction is better.
    pub unit: &'static str,
    /// The figures of all runs.
    #[serde(flatten)]
    pub spread: Spread,
    /// Size of the data that was worked on, in bytes.
    pub working_set_bytes: u64,
    /// The CPUs that the measured threads were pinned to, as a list like `0,1`.
    pub pinned: Option<String>,
}

/// One figure over another, pair by pair.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// The case of both sides.
    pub case: String,
    /// The variant above the line.
    pub numerator: String,
    /// The variant below it.
    pub denominator: String,
    /// The metric of both.
    pub metric: &'static str,
    /// The ratios of all runs.
    #[serde(flatten)]
    pub spread: Spread,
    /// The value to reach, if there is one.
    #[serde(skip)]
    pub aim: Option<Aim>,
}

/// The value that a ratio should reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
    /// More than this.
    MoreThan(f64),
    /// One, give or take this much.
    Within(f64),
}

impl Aim {
    /// Whether the median meets the aim.
    pub fn is_met(self, spread: Spread) -> bool {
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
    pub fn of(
        case: &str,
        metric: &'static str,
        (numerator, top): (&str, &Series),
        (denominator, bottom): (&str, &Series),
    ) -> Option<Ratio> {
        let spread = top.over(bottom).spread()?;
        Some(Ratio {
            case: case.to_owned(),
            numerator: numerator.to_owned(),
            denominator: denominator.to_owned(),
            metric,
            spread,
            aim: None,
        })
    }
}

/// Whether `ratio` stands in the line of `measured`, the peer: the side that is not uzram.
pub fn belongs(ratio: &Ratio, measured: &Measured) -> bool {
    let subject = |name: &str| name.starts_with(SUBJECT);
    let peer = if subject(&ratio.numerator) {
        &ratio.denominator
    } else {
        &ratio.numerator
    };
    ratio.case == measured.case && ratio.metric == measured.metric && *peer == measured.variant
}

/// The revision this was built from, `unknown` outside a checkout.
const GIT: &str = env!("UZRAM_BUILD_GIT");
/// The cargo profile this was built with.
const PROFILE: &str = env!("UZRAM_BUILD_PROFILE");

/// Whether the compiler optimised: figures of a build without are worth nothing.
pub fn is_optimised() -> bool {
    env!("UZRAM_BUILD_OPTIMISED") == "true"
}
