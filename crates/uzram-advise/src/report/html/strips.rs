//! Charts of rows: a label, a strip with a bar and its error bar, a number.
//!
//! Strips are SVG with places in percent and lengths in pixels, so a page needs no script to fit
//! a phone: the strip shrinks, its text does not.

use maud::{Markup, html};

use super::axis::{Axis, number, ratio as ratio_text};
use super::chart::Chart;
use super::names::{case_label, words};
use crate::report::SUBJECT;
use crate::report::better::{Better, Verdict, judges_denominator};
use crate::report::{Aim, Block, Measured, Ratio};
use crate::sample::Spread;

/// Rows of one chart at most: about a screen.
const ROWS_MAX: usize = 36;

/// One row: what is drawn, and what is written beside it.
struct Row {
    label: String,
    spread: Spread,
    class: &'static str,
    value: String,
    /// The places of an aim's limits, and whether it is met.
    aim: Option<(Vec<f64>, bool)>,
}

/// Rows under a common heading.
struct Group {
    heading: Option<String>,
    rows: Vec<Row>,
}

/// Bars from zero: one chart for each metric that has more than one figure; one for each case where
/// that would be more rows than can be seen at once.
pub(super) fn amounts(results: &[&Measured]) -> Vec<Chart> {
    let mut metrics: Vec<(&str, &str)> = Vec::new();
    for measured in results {
        let metric = (measured.metric, measured.unit);
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    let charts = metrics.into_iter().flat_map(|(metric, unit)| {
        let of_metric = |of: &&Measured| (of.metric, of.unit) == (metric, unit);
        let figures: Vec<&Measured> = results.iter().copied().filter(of_metric).collect();
        match figures.len() {
            0..=1 => Vec::new(),
            2..=ROWS_MAX => vec![amounts_chart(words(metric), unit, &figures)],
            _ => by_case(metric, unit, &figures),
        }
    });
    charts.collect()
}

/// A chart for each case that is not too long for one either.
fn by_case(metric: &str, unit: &str, figures: &[&Measured]) -> Vec<Chart> {
    let cases = figures.chunk_by(|one, other| one.case == other.case);
    let short = cases.filter(|figures| (2..=ROWS_MAX).contains(&figures.len()));
    let charts = short.map(|figures| {
        let title = format!("{}, {}", case_label(&figures[0].case), words(metric));
        amounts_chart(title, unit, figures)
    });
    charts.collect()
}

fn amounts_chart(title: String, unit: &str, figures: &[&Measured]) -> Chart {
    let (low, high) = range(figures.iter().map(|measured| measured.spread));
    let axis = Axis::for_bars(low, high);
    let base = (!axis.is_logarithmic()).then_some(0.0);
    let better = match Better::of_unit(unit) {
        Some(Better::Less) => ", less is better",
        Some(Better::More) => ", more is better",
        None => "",
    };
    let scale = if axis.is_logarithmic() {
        "; logarithmic"
    } else {
        ""
    };
    Chart {
        title,
        subtitle: format!("{unit}{better}{scale}"),
        body: strips(&grouped(figures), &axis, base, "amounts"),
    }
}

/// Bars from one: one chart for each pair of sides and metric, or as many as have room for them all.
pub(super) fn ratios(block: &Block) -> Vec<Chart> {
    let mut pairs: Vec<(&str, &str, &str)> = Vec::new();
    for ratio in &block.ratios {
        let pair = pair(ratio);
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    let charts = pairs.into_iter().flat_map(|wanted| {
        let of_pair = block.ratios.iter().filter(|ratio| pair(ratio) == wanted);
        let ratios: Vec<&Ratio> = of_pair.collect();
        let (low, high) = range_with_aims(&ratios);
        let axis = Axis::for_ratios(low, high);
        let count = ratios.len().div_ceil(ROWS_MAX);
        let parts = ratios.chunks(ratios.len().div_ceil(count));
        let charts = parts.enumerate().map(|(nth, part)| {
            let title = match count {
                1 => String::new(),
                _ => format!(", {} of {count}", nth + 1),
            };
            ratios_chart(&title, part, &axis, block)
        });
        charts.collect::<Vec<Chart>>()
    });
    charts.collect()
}

/// A chart of ratios of one pair; there is one at least.
fn ratios_chart(title: &str, ratios: &[&Ratio], axis: &Axis, block: &Block) -> Chart {
    let (numerator, denominator, metric) = pair(ratios[0]);
    let better = Better::of_ratio(ratios[0], block);
    let side = match (better, judges_denominator(ratios[0])) {
        (None, _) => "",
        (Some(Better::Less), false) | (Some(Better::More), true) => "; left of 1 is better",
        (Some(Better::More), false) | (Some(Better::Less), true) => "; right of 1 is better",
    };
    let rows = ratios.iter().map(|ratio| ratio_row(ratio, better));
    let group = Group {
        heading: None,
        rows: rows.collect(),
    };
    Chart {
        title: format!("{numerator} / {denominator}{title}"),
        subtitle: format!("{}{side}", words(metric)),
        body: strips(&[group], axis, Some(1.0), "ratios"),
    }
}

fn pair(ratio: &Ratio) -> (&str, &str, &str) {
    (&ratio.numerator, &ratio.denominator, ratio.metric)
}

fn ratio_row(ratio: &Ratio, better: Option<Better>) -> Row {
    let class = match Verdict::of(ratio, better) {
        Verdict::Better => "good",
        Verdict::Worse => "bad",
        Verdict::Open => "open",
    };
    let aim = ratio.aim.map(|aim| (limits(aim), aim.is_met(ratio.spread)));
    Row {
        label: case_label(&ratio.case).to_owned(),
        spread: ratio.spread,
        class,
        value: ratio_text(ratio.spread.median),
        aim,
    }
}

/// The range of the ratios and their aims. An aim so far off that the ratios could not be told apart is left out.
fn range_with_aims(ratios: &[&Ratio]) -> (f64, f64) {
    const FAR: f64 = 2.0;
    let (low, high) = range(ratios.iter().map(|ratio| ratio.spread));
    let limits = ratios.iter().filter_map(|ratio| ratio.aim).flat_map(limits);
    let near = limits.filter(|limit| *limit > low / FAR && *limit < high * FAR);
    near.fold((low, high), |(low, high), limit| {
        (low.min(limit), high.max(limit))
    })
}

fn limits(aim: Aim) -> Vec<f64> {
    match aim {
        Aim::AtMost(limit) | Aim::AtLeast(limit) | Aim::MoreThan(limit) => vec![limit],
        Aim::Within(tolerance) => vec![1.0 - tolerance, 1.0 + tolerance],
    }
}

/// Figures by case; a case that has one figure only needs no heading over it.
fn grouped(figures: &[&Measured]) -> Vec<Group> {
    let variants_differ = figures
        .iter()
        .any(|figure| figure.variant != figures[0].variant);
    let mut groups: Vec<Group> = Vec::new();
    let mut last = None;
    for figure in figures {
        let row = |label: &str| Row {
            label: label.to_owned(),
            spread: figure.spread,
            class: if figure.variant.starts_with(SUBJECT) {
                "ours"
            } else {
                "theirs"
            },
            value: number(figure.spread.median),
            aim: None,
        };
        let case = case_label(&figure.case);
        match (variants_differ, last == Some(case), groups.last_mut()) {
            (false, _, Some(group)) => group.rows.push(row(case)),
            (false, _, None) => groups.push(Group {
                heading: None,
                rows: vec![row(case)],
            }),
            (true, true, Some(group)) => group.rows.push(row(&figure.variant)),
            (true, _, _) => groups.push(Group {
                heading: Some(case.to_owned()),
                rows: vec![row(&figure.variant)],
            }),
        }
        last = Some(case);
    }
    groups
}

/// The least and the greatest value of all.
pub(super) fn range(spreads: impl Iterator<Item = Spread>) -> (f64, f64) {
    spreads.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), spread| {
        (low.min(spread.min), high.max(spread.max))
    })
}

/// `base` is the value that bars start from; without one there are no bars, only points.
fn strips(groups: &[Group], axis: &Axis, base: Option<f64>, class: &str) -> Markup {
    let has_aims = groups
        .iter()
        .flat_map(|group| &group.rows)
        .any(|row| row.aim.is_some());
    let is_base = |at: f64| base.is_some_and(|base| (axis.percent(base) - at).abs() < 0.01);
    let kept = axis.ticks().position(|(at, _)| is_base(at)).unwrap_or(0);
    html! {
        div class={ "strips " (class) } {
            @for group in groups {
                @if let Some(heading) = &group.heading {
                    div class="heading" { (heading) }
                }
                @for row in &group.rows {
                    div class="label" { (row.label) }
                    (strip(row, axis, base))
                    div class="value" {
                        (row.value)
                        @if has_aims { (mark(row)) }
                    }
                }
            }
            div {}
            svg class="scale" aria-hidden="true" {
                // Where there is no room every other one is left out, but not that of the base.
                @for (nth, (at, text)) in axis.ticks().enumerate() {
                    text class=[(nth.abs_diff(kept) % 2 == 1).then_some("other")] x={ (at) "%" } y="11"
                        text-anchor=(anchor(at)) { (text) }
                }
            }
            div {}
        }
    }
}

fn mark(row: &Row) -> Markup {
    html! {
        @match &row.aim {
            Some((_, true)) => span class="mark met" title="aim met" { "\u{2713}" },
            Some((_, false)) => span class="mark missed" title="aim missed" { "\u{2717}" },
            None => span class="mark" {},
        }
    }
}

fn strip(row: &Row, axis: &Axis, base: Option<f64>) -> Markup {
    let place = |value| axis.percent(value);
    let (low, middle, high) = (
        place(row.spread.min),
        place(row.spread.median),
        place(row.spread.max),
    );
    let says = format!(
        "{}: median {}, {} to {} in {} runs",
        row.label,
        row.value,
        ratio_text(row.spread.min),
        ratio_text(row.spread.max),
        row.spread.runs
    );
    html! {
        svg class={ "strip " (row.class) } role="img" aria-label=(says) {
            title { (says) }
            @for (at, _) in axis.ticks() {
                line class="grid" x1={ (at) "%" } x2={ (at) "%" } y1="0" y2="100%" {}
            }
            @if let Some(base) = base.map(place) {
                rect class="bar" x={ (base.min(middle)) "%" } y="6" height="10"
                    width={ (((middle - base).abs() * 100.0).round() / 100.0) "%" } {}
                line class="base" x1={ (base) "%" } x2={ (base) "%" } y1="0" y2="100%" {}
            }
            @for limit in row.aim.iter().flat_map(|(limits, _)| limits) {
                @let at = place(*limit);
                @if axis.holds(*limit) {
                    line class="aim" x1={ (at) "%" } x2={ (at) "%" } y1="3" y2="19" {}
                }
            }
            line class="whisker" x1={ (low) "%" } x2={ (high) "%" } y1="11" y2="11" {}
            @for end in [low, high] {
                line class="whisker" x1={ (end) "%" } x2={ (end) "%" } y1="8" y2="14" {}
            }
            circle class="dot" cx={ (middle) "%" } cy="11" r="3" {}
        }
    }
}

/// Keeps the outermost texts within the chart.
pub(super) fn anchor(at: f64) -> &'static str {
    match at {
        at if at < 3.0 => "start",
        at if at > 97.0 => "end",
        _ => "middle",
    }
}
