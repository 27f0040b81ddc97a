//! The results in sentences: one for each pair of sides, then the aims and the missing peers.

use maud::{Markup, html};

use super::names::{anchor, case_label, title_parts, words};
use super::table;
use crate::report::better::{Better, Verdict, judges_denominator};
use crate::report::{Block, Ratio, Report};
use crate::sample::{Series, Spread};

/// Pairs of sides in the summary at most.
const PAIRS_MAX: usize = 24;
/// Missed aims that are listed at most.
const MISSED_MAX: usize = 12;
/// Ratios this close to one are called the same.
const SAME: f64 = 0.005;

/// All ratios of one side over one other, of one metric.
struct Pair<'a> {
    subject: &'a str,
    peer: &'a str,
    metric: &'a str,
    better: Option<Better>,
    /// The medians, always of the subject over the peer.
    medians: Vec<f64>,
    verdicts: Vec<Verdict>,
}

pub(super) fn section(report: &Report) -> Markup {
    let pairs = pairs(report);
    let ratios = || {
        let of = |block| std::iter::repeat(block);
        let blocks = report.blocks.iter().enumerate();
        blocks.flat_map(move |(n, block)| of((n, block)).zip(&block.ratios))
    };
    let aims = ratios().filter_map(|((n, block), ratio)| Some((n, block, ratio, ratio.aim?)));
    let aims: Vec<_> = aims.collect();
    let missed: Vec<_> = aims
        .iter()
        .filter(|(_, _, ratio, aim)| !aim.is_met(ratio.spread))
        .collect();
    html! {
        section class="summary" {
            h2 { "In short" }
            @if let Some(headline) = &report.headline {
                p class="headline" { (headline.sentence) }
                @if let Some(command) = &headline.command {
                    pre class="command" { code { (command) } }
                }
            }
            @if pairs.is_empty() && report.blocks.iter().all(|block| block.results.is_empty()) {
                p { "Nothing was measured." }
            }
            @if !pairs.is_empty() {
                ul class="pairs" {
                    @for pair in pairs.iter().take(PAIRS_MAX) { li { (pair.sentence()) } }
                }
            }
            @if !aims.is_empty() {
                p class="aims" {
                    b { (aims.len() - missed.len()) " of " (aims.len()) }
                    (if aims.len() == 1 { " aim met." } else { " aims met." })
                }
            }
            @if !missed.is_empty() {
                ul class="missed-aims" {
                    @for (n, block, ratio, aim) in missed.iter().take(MISSED_MAX) {
                        li {
                            b class="missed" { "missed" } " "
                            a href={ "#" (anchor(*n)) } { (title_parts(block).0) }
                            ", " (case_label(&ratio.case)) ": "
                            (ratio.numerator) " / " (ratio.denominator) " is "
                            (super::axis::ratio(ratio.spread.median)) ", wanted " (table::bound(*aim))
                        }
                    }
                    @if missed.len() > MISSED_MAX { li { "and " (missed.len() - MISSED_MAX) " more" } }
                }
            }
            @for missing in &report.missing {
                p class="absent" { b { (missing.peer) } " was not measured: " (missing.reason) }
            }
        }
    }
}

fn pairs(report: &Report) -> Vec<Pair<'_>> {
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for block in &report.blocks {
        for ratio in &block.ratios {
            add(&mut pairs, block, ratio);
        }
    }
    pairs
}

fn add<'a>(pairs: &mut Vec<Pair<'a>>, block: &'a Block, ratio: &'a Ratio) {
    let (numerator, denominator) = (ratio.numerator.as_str(), ratio.denominator.as_str());
    let (subject, peer, median) = match judges_denominator(ratio) {
        true => (denominator, numerator, 1.0 / ratio.spread.median),
        false => (numerator, denominator, ratio.spread.median),
    };
    let better = Better::of_ratio(ratio, block);
    let verdict = Verdict::of(ratio, better);
    let metric = ratio.metric;
    let is_same =
        |pair: &&mut Pair<'_>| (pair.subject, pair.peer, pair.metric) == (subject, peer, metric);
    match pairs.iter_mut().find(is_same) {
        Some(pair) => {
            pair.better = pair.better.or(better);
            pair.medians.push(median);
            pair.verdicts.push(verdict);
        }
        None => pairs.push(Pair {
            subject,
            peer,
            metric,
            better,
            medians: vec![median],
            verdicts: vec![verdict],
        }),
    }
}

impl Pair<'_> {
    /// `uzram needs 7 % more time per page than raw-codec …`
    fn sentence(&self) -> Markup {
        let medians = Series::from(self.medians.clone()).spread();
        let Some(Spread {
            min: low,
            median: middle,
            max: high,
            ..
        }) = medians
        else {
            return html! {};
        };
        let count = |wanted| {
            self.verdicts
                .iter()
                .filter(|verdict| **verdict == wanted)
                .count()
        };
        let class = match (self.better, middle) {
            (Some(Better::Less), m) if m < 1.0 - SAME => "good",
            (Some(Better::More), m) if m > 1.0 + SAME => "good",
            (Some(_), m) if (m - 1.0).abs() > SAME => "bad",
            _ => "open",
        };
        let verb = match self.better {
            Some(Better::Less) => "needs",
            Some(Better::More) => "reaches",
            None => "has",
        };
        html! {
            span class="subject" { (self.subject) }
            " " (verb) " " b class=(class) { (amount(middle)) } " " (words(self.metric))
            (if (middle - 1.0).abs() <= SAME { " as " } else if is_multiple(middle) { " of " } else { " than " })
            span class="peer" { (self.peer) }
            span class="extent" {
                @if self.medians.len() > 1 {
                    "over " (self.medians.len()) " cases \u{d7}"
                    (super::axis::ratio(low)) " to \u{d7}" (super::axis::ratio(high))
                } @else { "\u{d7}" (super::axis::ratio(middle)) }
                @if self.better.is_some() {
                    @let (better, worse) = (count(Verdict::Better), count(Verdict::Worse));
                    "; " (better) " better, " (worse) " worse, "
                    (self.verdicts.len() - better - worse) " within the spread"
                }
            }
        }
    }
}

/// Whether a factor is said as a multiple instead of as a percentage.
fn is_multiple(factor: f64) -> bool {
    factor >= 2.0
}

fn amount(factor: f64) -> String {
    match factor {
        f if (f - 1.0).abs() <= SAME => "the same".to_owned(),
        f if is_multiple(f) => format!("{f:.1} times the"),
        f if f > 1.0 => format!("{:.0} % more", ((f - 1.0) * 100.0).max(1.0)),
        f => format!("{:.0} % less", ((1.0 - f) * 100.0).max(1.0)),
    }
}
