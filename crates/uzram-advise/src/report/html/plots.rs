//! Charts in two dimensions: lines over a number, latency by percentile, one metric against
//! another.
//!
//! As in the strips, places are in percent and marks in pixels.

use maud::{Markup, PreEscaped, html};

use super::axis::{Axis, number};
use super::chart::Chart;
use super::names::words;
use super::series::{Point, Series};
use super::strips::anchor;

use crate::report::better::Better;
use crate::report::{Block, Measured, Tradeoff, front};

/// Colours, dashes and shapes there are; further lines use them again.
const STYLES: usize = 8;
/// Characters by which the labels of a vertical axis are wide, at most.
const LABEL_WIDTH_MAX: f64 = 8.0;
/// Room beside the outermost points of a line, in percent of the chart's width: half of `99.99 %` where two charts
/// stand beside each other on paper.
const MARGIN: f64 = 9.0;
/// Points of a front that are listed; more could not be told apart.
const NUMBERS_MAX: usize = 24;
/// Numbered points are at least so far apart, in percent of the chart's width or of its height.
const APART: (f64, f64) = (4.0, 8.0);

/// Lines with error bars, a variant each.
pub(super) fn lines(series: &Series<'_>) -> Chart {
    let spreads = || series.lines.iter().flat_map(|line| &line.points);
    let (low, high) = super::strips::range(spreads().map(|point| point.spread));
    let up = Axis::for_points(low, high);
    let places = horizontal_places(series);
    let at = |x: f64| {
        let found = places.iter().find(|(place, _, _)| *place == x);
        found.map_or(0.0, |(_, at, _)| *at)
    };
    let body = html! {
        (frame(&up, &places.iter().map(|(_, at, text)| (*at, text.clone())).collect::<Vec<_>>(), html! {
            @for (n, line) in series.lines.iter().enumerate() {
                g class={ "line c" (n % STYLES) } {
                    @for pair in line.points.windows(2) {
                        line class="stroke" x1={ (at(pair[0].x)) "%" } x2={ (at(pair[1].x)) "%" }
                            y1={ (down(&up, pair[0].spread.median)) "%" }
                            y2={ (down(&up, pair[1].spread.median)) "%" } {}
                    }
                    @for point in &line.points {
                        (error_bar(&up, at(point.x), point))
                        (shape(n, at(point.x), down(&up, point.spread.median), &format!(
                            "{}, {} {}: {} ({} to {})", line.variant, series.across, point.text,
                            number(point.spread.median), number(point.spread.min),
                            number(point.spread.max)
                        )))
                    }
                }
            }
        }))
        div class="across" { (series.across) }
        @if series.lines.len() > 1 {
            ul class="legend" {
                @for (n, line) in series.lines.iter().enumerate() {
                    li { (swatch(n)) (line.variant) }
                }
            }
        }
    };
    let scale = if up.is_logarithmic() {
        ", logarithmic"
    } else {
        ""
    };
    Chart {
        title: series.title.clone(),
        subtitle: format!("{}{scale}", series.unit),
        body,
    }
}

/// Each value along the axis, its place in percent and its text.
fn horizontal_places(series: &Series<'_>) -> Vec<(f64, f64, String)> {
    let mut values: Vec<(f64, String)> = Vec::new();
    for point in series.lines.iter().flat_map(|line| &line.points) {
        if !values.iter().any(|(x, _)| *x == point.x) {
            values.push((point.x, point.text.clone()));
        }
    }
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (Some(first), Some(last)) = (values.first(), values.last()) else {
        return Vec::new();
    };
    let (low, high) = (first.0, last.0);
    let is_even = series.is_ordinal || (low > 0.0 && high / low > 16.0);
    let last = (values.len() - 1).max(1) as f64;
    let place = |(n, (x, text)): (usize, (f64, String))| {
        let part = match is_even {
            true => n as f64 / last,
            false => (x - low) / (high - low).max(f64::MIN_POSITIVE),
        };
        let at = MARGIN + (100.0 - 2.0 * MARGIN) * part;
        (x, (at * 100.0).round() / 100.0, text)
    };
    values.into_iter().enumerate().map(place).collect()
}

/// One metric against another; the variants that no other beats in both are joined and numbered.
pub(super) fn tradeoff(block: &Block, wanted: &Tradeoff) -> Option<Chart> {
    let mut points = points_of(block, wanted);
    let (across, up) = (points.first()?.across, points.first()?.up);
    let goals = (Better::of_unit(across.unit), Better::of_unit(up.unit));
    mark_front(&mut points, goals);
    points.sort_by(|a, b| a.across.spread.median.total_cmp(&b.across.spread.median));
    let across_range = super::strips::range(points.iter().map(|point| point.across.spread));
    let up_range = super::strips::range(points.iter().map(|point| point.up.spread));
    let x = Axis::logarithmic(across_range.0, across_range.1);
    let y = Axis::around(up_range.0, up_range.1);
    let is_chosen = |point: &Pair<'_>| wanted.chosen.as_ref() == Some(&point.across.variant);
    let place = |point: &Pair<'_>| {
        (
            x.percent(point.across.spread.median),
            down(&y, point.up.spread.median),
        )
    };
    let best: Vec<&Pair<'_>> = points.iter().filter(|point| point.is_on_front).collect();
    // The chosen one is listed also where noise has put it behind the front.
    let is_listed = |point: &&Pair<'_>| point.is_on_front || is_chosen(point);
    let listed: Vec<&Pair<'_>> = points.iter().filter(is_listed).collect();
    let chosen = listed.iter().position(|point| is_chosen(point));
    let places: Vec<(f64, f64)> = listed.iter().map(|point| place(point)).collect();
    let numbered = far_enough(&places, chosen);
    let body = html! {
        (frame(&y, &x.ticks().collect::<Vec<_>>(), html! {
            @for pair in best.windows(2) {
                @let ((x1, y1), (x2, y2)) = (place(pair[0]), place(pair[1]));
                line class="front" x1={ (x1) "%" } x2={ (x2) "%" } y1={ (y1) "%" } y2={ (y1) "%" } {}
                line class="front" x1={ (x2) "%" } x2={ (x2) "%" } y1={ (y1) "%" } y2={ (y2) "%" } {}
            }
            @for point in points.iter().filter(|point| !is_listed(point)) {
                @let (cx, cy) = place(point);
                circle class="off" cx={ (cx) "%" } cy={ (cy) "%" } r="3.5" {
                    title { (point.says()) }
                }
            }
            // The chosen one last, over all others.
            @for n in (0..listed.len()).filter(|n| Some(*n) != chosen).chain(chosen) {
                (numbered_mark(n, listed[n], places[n], numbered.contains(&n), Some(n) == chosen))
            }
        }))
        div class="across" { (words(across.metric)) ", " (across.unit) ", logarithmic" }
        ol class="front-list" {
            @for (n, point) in listed.iter().enumerate().take(NUMBERS_MAX) {
                li class=[(Some(n) == chosen).then_some("chosen")] {
                    span class="name" {
                        (point.across.variant)
                        @if Some(n) == chosen { " " span class="badge" { "recommended" } }
                    }
                    span class="figures" {
                        (number(point.up.spread.median)) " " (up.unit) " \u{b7} "
                        (number(point.across.spread.median)) " " (across.unit)
                    }
                }
            }
        }
    };
    Some(Chart {
        title: wanted.title.clone(),
        subtitle: format!("{}, {}", words(up.metric), up.unit),
        body,
    })
}

/// A listed point: a circle, with its number where there is room; the chosen one is larger, has a ring
/// and says that it is recommended.
fn numbered_mark(
    n: usize,
    point: &Pair<'_>,
    (x, y): (f64, f64),
    has_number: bool,
    is_chosen: bool,
) -> Markup {
    let (radius, class) = match (is_chosen, has_number) {
        (true, _) => ("11", "on chosen"),
        (false, true) => ("9", "on"),
        (false, false) => ("4", "on"),
    };
    let (end, away) = if x > 70.0 {
        ("end", -20)
    } else {
        ("start", 20)
    };
    html! {
        g class=(class) {
            title { (point.says()) }
            circle cx={ (x) "%" } cy={ (y) "%" } r=(radius) {}
            @if has_number {
                text x={ (x) "%" } y={ (y) "%" } dy="3.5" text-anchor="middle" { (n + 1) }
            }
            @if is_chosen {
                circle class="ring" cx={ (x) "%" } cy={ (y) "%" } r="16" {}
                text class="says" x={ (x) "%" } y={ (y) "%" } dx=(away) dy="22" text-anchor=(end) {
                    "recommended"
                }
            }
        }
    }
}

/// The indexes of the places that can carry a number without covering another, `first` among them.
fn far_enough(places: &[(f64, f64)], first: Option<usize>) -> Vec<usize> {
    let mut kept: Vec<usize> = Vec::new();
    for n in first.into_iter().chain(0..places.len().min(NUMBERS_MAX)) {
        let is_near = |other: &usize| {
            let (one, two) = (places[n], places[*other]);
            (one.0 - two.0).abs() < APART.0 && (one.1 - two.1).abs() < APART.1
        };
        if !kept.iter().any(is_near) {
            kept.push(n);
        }
    }
    kept
}

/// A variant with both its figures.
struct Pair<'a> {
    across: &'a Measured,
    up: &'a Measured,
    is_on_front: bool,
}

impl Pair<'_> {
    fn says(&self) -> String {
        format!(
            "{}: {} {}, {} {}",
            self.across.variant,
            number(self.up.spread.median),
            self.up.unit,
            number(self.across.spread.median),
            self.across.unit
        )
    }
}

fn points_of<'a>(block: &'a Block, wanted: &Tradeoff) -> Vec<Pair<'a>> {
    let of = |metric: &'static str| block.results.iter().filter(move |one| one.metric == metric);
    let pairs = of(wanted.across).filter_map(|across| {
        let up = of(wanted.up).find(|up| up.variant == across.variant)?;
        let is_on_front = false;
        Some(Pair {
            across,
            up,
            is_on_front,
        })
    });
    pairs.collect()
}

fn mark_front(points: &mut [Pair<'_>], goals: (Option<Better>, Option<Better>)) {
    let cost = |value: f64, goal| match goal {
        Some(Better::More) => -value,
        Some(Better::Less) | None => value,
    };
    let costs = points.iter().map(|point| {
        (
            cost(point.across.spread.median, goals.0),
            cost(point.up.spread.median, goals.1),
        )
    });
    let costs: Vec<(f64, f64)> = costs.collect();
    for (point, is_on_front) in points.iter_mut().zip(front(&costs)) {
        point.is_on_front = is_on_front;
    }
}

/// Percent from the top.
fn down(axis: &Axis, value: f64) -> f64 {
    ((100.0 - axis.percent(value)) * 100.0).round() / 100.0
}

/// The width of a text in digits: an M takes almost two.
fn width(text: &str) -> f64 {
    let widths = text
        .chars()
        .map(|c| if c.is_alphabetic() { 1.75 } else { 1.0 });
    widths.sum()
}

fn error_bar(up: &Axis, at: f64, point: &Point) -> Markup {
    let (low, high) = (down(up, point.spread.min), down(up, point.spread.max));
    html! {
        line class="error" x1={ (at) "%" } x2={ (at) "%" } y1={ (low) "%" } y2={ (high) "%" } {}
    }
}

/// The frame of a plot: labels on the left, texts below, lines behind what is drawn.
fn frame(up: &Axis, across: &[(f64, String)], drawn: Markup) -> Markup {
    let ticks: Vec<(f64, String)> = up.ticks().collect();
    let width = ticks
        .iter()
        .map(|(_, text)| width(text))
        .fold(1.0, f64::max);
    let width = width.min(LABEL_WIDTH_MAX);
    html! {
        div class="plot" {
            svg class="upright" aria-hidden="true" style={ "width:" (width) "ch" } {
                @for (at, text) in &ticks {
                    text x="100%" y={ (100.0 - at) "%" } dy="4" text-anchor="end" { (text) }
                }
            }
            svg class="area" {
                @for (at, _) in &ticks {
                    line class="grid" x1="0" x2="100%" y1={ (100.0 - at) "%" } y2={ (100.0 - at) "%" } {}
                }
                (drawn)
            }
            svg class="below" aria-hidden="true" {
                @for (at, text) in across {
                    text x={ (at) "%" } y="12" text-anchor=(anchor(*at)) { (text) }
                }
            }
        }
    }
}

/// A mark that differs from its neighbours' in shape as well as in colour.
fn shape(n: usize, x: f64, y: f64, says: &str) -> Markup {
    html! {
        svg class="mark" x={ (x) "%" } y={ (y) "%" } width="1" height="1" overflow="visible" {
            title { (says) }
            path d=(outline(n)) {}
        }
    }
}

fn swatch(n: usize) -> Markup {
    html! {
        svg class={ "swatch line c" (n % STYLES) } width="26" height="12" aria-hidden="true" {
            line class="stroke" x1="0" x2="26" y1="6" y2="6" {}
            (PreEscaped("<svg x=\"13\" y=\"6\" width=\"1\" height=\"1\" overflow=\"visible\">"))
            path d=(outline(n)) {}
            (PreEscaped("</svg>"))
        }
    }
}

fn outline(n: usize) -> &'static str {
    const CIRCLE: &str = "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0";
    const OUTLINES: [&str; 4] = [
        CIRCLE,
        "M-3.5,-3.5h7v7h-7z",
        "M0,-5l4.5,8h-9z",
        "M0,-5l5,5l-5,5l-5,-5z",
    ];
    OUTLINES[n % OUTLINES.len()]
}
