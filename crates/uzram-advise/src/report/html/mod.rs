//! The report as one HTML page that needs nothing else: no script, no font, no picture from outside.
//!
//! It says first what came out, then shows each block's figures as charts and as a table. Charts
//! follow from the figures and their names (`strips`, `series`), so a suite gets them without code of
//! its own; only a scatter chart is asked for ([`Tradeoff`](crate::report::Tradeoff)). Every text from
//! outside, such as a corpus's name, goes through the escaping of the template.

mod axis;
mod chart;
mod names;
mod plots;
mod series;
mod strips;
mod summary;
mod table;

use std::path::Path;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{Block, Built, Claim, CorpusFacts, Measured, Report, Standing};
use crate::error::{Error, Result};
use crate::machine::Machine;
use chart::Chart;
use names::{anchor, title_parts};

/// Charts of a block at most; the table beside them has every figure.
const CHARTS_MAX: usize = 40;
/// Blocks from which on the page has a list of them.
const CONTENTS_FROM: usize = 3;

/// The report as one HTML page with charts, which needs nothing else.
#[must_use]
pub fn html(report: &Report) -> String {
    page(report).into_string()
}

/// Writes what [`html()`] makes of it to `path`.
///
/// # Errors
/// [`Error::Failed`] if the file cannot be written.
pub fn write(report: &Report, path: &Path) -> Result<()> {
    let written = std::fs::write(path, html(report));
    written.map_err(|error| Error::io(format!("report {}", path.display()), error))
}

fn page(report: &Report) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "uzram: " (report.suite) " report" }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                main {
                    (head(report))
                    (warnings(report))
                    (summary::section(report))
                    @if report.blocks.len() >= CONTENTS_FROM { (contents(&report.blocks)) }
                    @for (n, block) in report.blocks.iter().enumerate() { (section(n, block)) }
                    (how_to_read(report))
                }
            }
        }
    }
}

fn head(report: &Report) -> Markup {
    html! {
        header {
            @match &report.headline {
                Some(headline) => {
                    p class="eyebrow" { "uzram \u{b7} " (report.suite) }
                    h1 { (headline.title) }
                }
                None => {
                    p class="eyebrow" { "uzram \u{b7} benchmark report" }
                    h1 { "Suite " (report.suite) }
                }
            }
            pre class="command" { code { (report.command) } }
            (machine(&report.machine, &report.built))
        }
    }
}

fn machine(machine: &Machine, built: &Built) -> Markup {
    let wakeup = |ns: Option<u64>| match ns {
        Some(ns) => format!("{:.1} \u{b5}s", ns as f64 / 1e3),
        None => "\u{2013}".to_owned(),
    };
    let memory = machine.memory_bytes as f64 / f64::from(1u32 << 30);
    let facts = [
        ("CPU", machine.model.clone()),
        ("CPUs", machine.cpus.to_string()),
        ("Memory", format!("{memory:.1} GiB")),
        ("Kernel", format!("Linux {}", machine.kernel)),
        ("Wake-up, same CPU", wakeup(machine.wakeup_same_cpu_ns)),
        ("Wake-up, other CPU", wakeup(machine.wakeup_cross_cpu_ns)),
        ("Revision", built.git.clone()),
        ("Profile", built.profile.clone()),
    ];
    html! {
        dl class="facts" {
            @for (name, value) in facts { div { dt { (name) } dd { (value) } } }
        }
    }
}

fn warnings(report: &Report) -> Markup {
    html! {
        @if let Some(reason) = &report.stopped {
            p class="warning" { strong { "Only a part of what was asked for. " } (reason) }
        }
        @if !super::is_optimised() {
            p class="warning" {
                strong { "Built without optimisation: " } "these figures mean nothing."
            }
        }
    }
}

fn contents(blocks: &[Block]) -> Markup {
    html! {
        nav aria-label="Contents" {
            ul {
                @for (n, block) in blocks.iter().enumerate() {
                    li { a href={ "#" (anchor(n)) } { (title_parts(block).0) } }
                }
            }
        }
    }
}

fn section(n: usize, block: &Block) -> Markup {
    let (title, details) = title_parts(block);
    html! {
        section id=(anchor(n)) {
            h2 { (title) }
            @if !details.is_empty() { p class="details" { (details) } }
            @for note in &block.notes {
                p class=(if note.starts_with("BUSY") { "warning" } else { "note" }) { (note) }
            }
            (claims(&block.claims))
            @let (wide, narrow) = charts(block);
            @for chart in &wide { (chart.figure("chart wide")) }
            @if !narrow.is_empty() {
                div class="charts" { @for chart in &narrow { (chart.figure("chart")) } }
            }
            (table::figures(block))
        }
    }
}

/// The claims and aims, each with its standing and the reason.
fn claims(claims: &[Claim]) -> Markup {
    html! {
        @if !claims.is_empty() {
            ul class="claims" {
                @for (n, claim) in claims.iter().enumerate() {
                    // A reason of several claims in a row stands with the first.
                    @let said = n.checked_sub(1).map(|before| &claims[before].why);
                    @let why = if said == Some(&claim.why) { "" } else { claim.why.as_str() };
                    @let class = match claim.standing {
                        Standing::Held => "good",
                        Standing::NotHeld => "bad",
                        Standing::WithinSpread => "open",
                    };
                    li {
                        b class=(class) { (claim.standing.name()) } ": " (claim.claim) ": "
                        (claim.measured) ". " (why)
                    }
                }
            }
        }
    }
}

/// The charts that take a whole line of a large screen, and the others. Of metrics that are shown in
/// two dimensions, bars would only say it again.
fn charts(block: &Block) -> (Vec<Chart>, Vec<Chart>) {
    let tradeoffs = block.tradeoffs.iter();
    let wide = tradeoffs.filter_map(|tradeoff| plots::tradeoff(block, tradeoff));
    let mut narrow = strips::ratios(block);
    let (series, in_a_line) = series::of_block(block);
    narrow.extend(series.iter().map(plots::lines));
    let traded = |measured: &Measured| {
        let mut metrics = block.tradeoffs.iter().flat_map(|one| [one.across, one.up]);
        metrics.any(|metric| metric == measured.metric)
    };
    let lines = in_a_line.iter().zip(&block.results);
    let is_drawn =
        |measured: &Measured| block.drawn.is_empty() || block.drawn.contains(&measured.metric);
    let left = lines
        .filter(|(in_a_line, measured)| !**in_a_line && !traded(measured) && is_drawn(measured));
    let left: Vec<&Measured> = left.map(|(_, measured)| measured).collect();
    narrow.extend(strips::amounts(&left));
    narrow.truncate(CHARTS_MAX);
    (wide.collect(), narrow)
}

fn how_to_read(report: &Report) -> Markup {
    html! {
        footer {
            @if !report.corpora.is_empty() { (corpora(&report.corpora)) }
            h2 { "How to read it" }
            p {
                "A figure is the median of its runs; the thin line with two ends reaches from the \
                 least to the greatest run. Both sides of a ratio run in turn within one process, \
                 and the ratio is taken run by run. "
                b class="good" { "Better" } " and " b class="bad" { "worse" }
                " are said only where every single run agrees. An aim is judged by the median; a \
                 small upright mark shows it in the chart."
            }
        }
    }
}

fn corpora(corpora: &[CorpusFacts]) -> Markup {
    html! {
        h2 { "Pages" }
        div class="scroll" tabindex="0" {
            table class="small" {
                thead { tr {
                    th { "corpus" } th class="n" { "pages of 4 KiB" } th class="n" { "same-filled" }
                } }
                tbody {
                    @for corpus in corpora {
                        tr {
                            td { (corpus.name) }
                            td class="n" { (axis::number(corpus.pages as f64)) }
                            td class="n" { (axis::number(corpus.same_filled_pages as f64)) }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
