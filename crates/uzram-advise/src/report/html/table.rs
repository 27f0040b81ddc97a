//! A block's figures as tables: the same rows as in the terminal. Where a suite has laid them out, all
//! figures with their spreads stand behind that, folded up.

use maud::{Markup, html};

use super::axis::{number, ratio as ratio_text};
use super::names::{case_label, words};
use crate::report::better::{Better, Verdict};
use crate::report::{Aim, Block, Matrix, Measured, Ratio, belongs};

pub(super) fn figures(block: &Block) -> Markup {
    if block.results.is_empty() {
        return html! {};
    }
    if block.matrices.is_empty() {
        return all(block);
    }
    html! {
        @for matrix in &block.matrices { (self::matrix(matrix, block)) }
        details {
            summary { "All figures" }
            (all(block))
        }
    }
}

/// A table as its suite laid it out.
fn matrix(matrix: &Matrix, block: &Block) -> Markup {
    html! {
        div class="scroll" tabindex="0" {
            table class="matrix" {
                thead { tr {
                    th { (matrix.title) }
                    @for column in &matrix.columns { th class="n" { (column.head) } }
                } }
                tbody {
                    @for (name, cells) in matrix.rows(block) {
                        tr {
                            td { (name) }
                            @for cell in cells {
                                td class=(class(cell.verdict)) { (cell.text) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn class(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        Some(Verdict::Better) => "n good",
        Some(Verdict::Worse) => "n bad",
        Some(Verdict::Open) | None => "n",
    }
}

/// Every figure, a line each.
fn all(block: &Block) -> Markup {
    if !block.tradeoffs.is_empty() && block.ratios.is_empty() {
        return by_variant(block);
    }
    let columns = Columns::of(block);
    let mut previous = ("", "");
    html! {
        div class="scroll" tabindex="0" {
            table {
                thead { tr {
                    th { "case" } th { "variant" }
                    @if columns.metrics { th { "metric" } }
                    th class="n" { "median" } th { "unit" }
                    th class="n" { "min" } th class="n" { "max" } th class="n" { "runs" }
                    @if columns.ratios {
                        th class="n apart" { "ratio" } th class="n" { "min" } th class="n" { "max" }
                        th { "of" }
                    }
                    @if columns.aims { th { "aim" } }
                } }
                tbody {
                    @for measured in &block.results {
                        @let own = (measured.case.as_str(), measured.variant.as_str());
                        @let before = std::mem::replace(&mut previous, own);
                        (rows(block, measured, (own.0 != before.0, own != before), columns))
                    }
                }
            }
        }
    }
}

/// One row a variant, its metrics beside each other: medians only.
fn by_variant(block: &Block) -> Markup {
    let mut metrics: Vec<(&str, &str)> = Vec::new();
    let mut variants: Vec<(&str, &str)> = Vec::new();
    for measured in &block.results {
        let metric = (measured.metric, measured.unit);
        let variant = (measured.case.as_str(), measured.variant.as_str());
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
        if !variants.contains(&variant) {
            variants.push(variant);
        }
    }
    let find = |(case, variant): (&str, &str), metric: &str| {
        let is_it =
            |of: &&Measured| of.case == case && of.variant == variant && of.metric == metric;
        block.results.iter().find(is_it)
    };
    let is_chosen = |variant: &str| {
        let mut chosen = block
            .tradeoffs
            .iter()
            .filter_map(|one| one.chosen.as_deref());
        chosen.any(|chosen| chosen == variant)
    };
    html! {
        div class="scroll" tabindex="0" {
            table {
                thead { tr {
                    th { "variant" }
                    @for (metric, unit) in &metrics { th class="n" { (words(metric)) ", " (unit) } }
                } }
                tbody {
                    @for &variant in &variants {
                        tr class=[is_chosen(variant.1).then_some("chosen")] {
                            td {
                                (variant.1)
                                @if is_chosen(variant.1) { " " span class="badge" { "recommended" } }
                            }
                            @for (metric, _) in &metrics {
                                td class="n" {
                                    @if let Some(measured) = find(variant, metric) {
                                        (number(measured.spread.median))
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The columns that a block needs besides the others.
#[derive(Clone, Copy)]
struct Columns {
    metrics: bool,
    ratios: bool,
    aims: bool,
}

impl Columns {
    fn of(block: &Block) -> Columns {
        let mut metrics = block.results.iter().map(|measured| measured.metric);
        let first = metrics.next();
        Columns {
            metrics: metrics.any(|metric| Some(metric) != first),
            ratios: !block.ratios.is_empty(),
            aims: block.ratios.iter().any(|ratio| ratio.aim.is_some()),
        }
    }
}

/// A figure's row, and one more for every further ratio of it.
fn rows(
    block: &Block,
    measured: &Measured,
    (is_new_case, is_new_variant): (bool, bool),
    columns: Columns,
) -> Markup {
    let spread = measured.spread;
    let ours: Vec<&Ratio> = block
        .ratios
        .iter()
        .filter(|ratio| belongs(ratio, measured))
        .collect();
    html! {
        tr class=[is_new_case.then_some("first")] {
            td { @if is_new_case { (case_label(&measured.case)) } }
            td { @if is_new_variant { (measured.variant) } }
            @if columns.metrics { td { (words(measured.metric)) } }
            td class="n" { b { (number(spread.median)) } }
            td class="unit" { (measured.unit) }
            td class="n" { (number(spread.min)) }
            td class="n" { (number(spread.max)) }
            td class="n" { (spread.runs) }
            @if columns.ratios { (cells(block, ours.first().copied(), columns.aims)) }
        }
        @for ratio in ours.iter().skip(1) {
            tr {
                td colspan=(7 + usize::from(columns.metrics)) {}
                (cells(block, Some(ratio), columns.aims))
            }
        }
    }
}

fn cells(block: &Block, ratio: Option<&Ratio>, aims: bool) -> Markup {
    let Some(ratio) = ratio else {
        return html! { td colspan=(if aims { 5 } else { 4 }) {} };
    };
    let class = match Verdict::of(ratio, Better::of_ratio(ratio, block)) {
        Verdict::Better => "n apart good",
        Verdict::Worse => "n apart bad",
        Verdict::Open => "n apart",
    };
    html! {
        td class=(class) { (ratio_text(ratio.spread.median)) }
        td class="n" { (ratio_text(ratio.spread.min)) }
        td class="n" { (ratio_text(ratio.spread.max)) }
        td { (ratio.numerator) " / " (ratio.denominator) }
        @if aims { td { @if let Some(aim) = ratio.aim { (self::aim(ratio, aim)) } } }
    }
}

fn aim(ratio: &Ratio, aim: Aim) -> Markup {
    html! {
        span class="bound" { (bound(aim)) } " "
        @if aim.is_met(ratio.spread) { span class="met" { "met" } }
        @else { b class="missed" { "missed" } }
    }
}

/// An aim in signs.
pub(super) fn bound(aim: Aim) -> String {
    match aim {
        Aim::AtMost(limit) => format!("\u{2264} {limit}"),
        Aim::AtLeast(limit) => format!("\u{2265} {limit}"),
        Aim::MoreThan(limit) => format!("> {limit}"),
        Aim::Within(tolerance) => format!("1 \u{b1} {tolerance}"),
    }
}
