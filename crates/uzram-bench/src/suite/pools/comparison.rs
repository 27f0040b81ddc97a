//! The published comparison, run by run, and its tables: published figures beside measured ones.

use super::clock::Clock;
use super::heap::Variant;
use super::published::{self, Outcome, PUBLISHED, Streams};
use super::{Scale, claims, row};
use crate::error::Result;
use crate::progress::Progress;
use crate::report::{Block, Column, Findings, Matrix, Measured};
use crate::sample::Series;
use crate::stop::Stop;

/// The case name of figures that were published and not measured here.
pub(super) const PUBLISHED_CASE: &str = "published";
const MICROSECOND_NS: f64 = 1e3;

/// A figure of the comparison: its metric, its unit, its column's head, and where it comes from.
pub(super) struct Figure {
    pub(super) metric: &'static str,
    unit: &'static str,
    pub(super) head: &'static str,
    pub(super) measured: fn(&Outcome, Clock) -> f64,
    pub(super) published: Option<fn(&published::Published) -> f64>,
}

/// Where the density stands in [`FIGURES`].
pub(super) const DENSITY_FIGURE: usize = 7;

pub(super) const FIGURES: [Figure; 8] = [
    Figure {
        metric: "insert_mean",
        unit: "us",
        head: "insert us",
        measured: |outcome, clock| clock.costs(&outcome.insert).mean / MICROSECOND_NS,
        published: Some(|facts| facts.malloc_us),
    },
    Figure {
        metric: "remove_mean",
        unit: "us",
        head: "remove us",
        measured: |outcome, clock| clock.costs(&outcome.remove).mean / MICROSECOND_NS,
        published: Some(|facts| facts.free_us),
    },
    Figure {
        metric: "access_mean",
        unit: "us",
        head: "access us",
        measured: |outcome, clock| clock.costs(&outcome.access).mean / MICROSECOND_NS,
        published: Some(|facts| facts.map_us + facts.unmap_us),
    },
    Figure {
        metric: "worst",
        unit: "us",
        head: "worst us",
        measured: |outcome, _| outcome.operations().worst_ns as f64 / MICROSECOND_NS,
        published: Some(|facts| facts.worst_us),
    },
    Figure {
        metric: "over_1ms",
        unit: "operations",
        head: "> 1 ms",
        measured: |outcome, _| outcome.operations().over_1ms as f64,
        published: Some(|facts| facts.over_1ms),
    },
    Figure {
        metric: "empty_loop_over_1ms",
        unit: "operations",
        head: "empty",
        measured: |outcome, _| outcome.idle.over_1ms as f64 * outcome.longer_than_idle(),
        published: None,
    },
    Figure {
        metric: "over_100us",
        unit: "operations",
        head: "> 100 us",
        measured: |outcome, _| outcome.operations().over_100us as f64,
        published: None,
    },
    Figure {
        metric: "pool_bytes_per_stored_byte",
        unit: "bytes/byte",
        head: "pool/stored",
        measured: |outcome, _| outcome.density,
        published: None,
    },
];

/// A block a disk.
pub(super) fn measure(
    findings: &mut Findings,
    variants: &[Variant],
    scale: &Scale,
    cpus: &[usize],
    stop: &Stop,
    progress: &mut Progress,
) -> Result<()> {
    let streams = Streams::new()?;
    let clock = Clock::calibrate();
    for &pages in &scale.disk_pages {
        let mut outcomes: Vec<(Variant, Vec<Outcome>)> = variants
            .iter()
            .map(|&variant| (variant, Vec::new()))
            .collect();
        for run in 0..scale.runs {
            // Each run begins with another variant, so that none always follows the same one.
            for turn in 0..variants.len() {
                let (variant, found) = &mut outcomes[(turn + run) % variants.len()];
                progress.at(&format!("{} MiB disk, {}", pages >> 8, variant.name()), 0.0);
                stop.check()?;
                found.push(published::run(*variant, &streams, pages, cpus, stop)?);
                progress.step();
            }
        }
        findings
            .blocks
            .push(block(pages, scale, &outcomes, clock, cpus));
    }
    Ok(())
}

fn block(
    pages: usize,
    scale: &Scale,
    outcomes: &[(Variant, Vec<Outcome>)],
    clock: Clock,
    cpus: &[usize],
) -> Block {
    let mebibytes = pages >> 8;
    let case = format!("disk-{mebibytes}M");
    let pinned = format!("{},{}", cpus[0], cpus[cpus.len() - 1]);
    let mut results: Vec<Measured> = Vec::new();
    for (variant, runs) in outcomes {
        for figure in &FIGURES {
            let values: Vec<f64> = runs
                .iter()
                .map(|run| (figure.measured)(run, clock))
                .collect();
            let metric = (figure.metric, figure.unit);
            let series = Series::from(values);
            let bytes = (pages as u64) << 12;
            results.extend(row(
                &case,
                variant.name(),
                metric,
                &series,
                bytes,
                Some(&pinned),
            ));
        }
    }
    results.extend(published_rows());
    let smaller = match scale.disk_divisor {
        1 => String::new(),
        divisor => format!(", {divisor} times smaller than published"),
    };
    Block {
        title: format!(
            "published comparison, disk of {mebibytes} MiB{smaller}: two streams at once, pages that \
             compress by 50 and 70 %, {} runs",
            scale.runs
        ),
        notes: vec![
            "publ.: ztree's authors, linux-mm, March 2022; kernel, arm64 virtual machine. access is \
             map + unmap."
                .to_owned(),
        ],
        claims: claims::of_the_comparison(&case, outcomes, clock),
        matrices: vec![matrix(&case)],
        results,
        ..Block::default()
    }
}

fn published_rows() -> impl Iterator<Item = Measured> {
    let pairs = PUBLISHED
        .iter()
        .flat_map(|facts| FIGURES.iter().map(move |figure| (facts, figure)));
    pairs.filter_map(|(facts, figure)| {
        let value = figure.published?(facts);
        let series = Series::from(vec![value]);
        let metric = (figure.metric, figure.unit);
        row(PUBLISHED_CASE, facts.allocator, metric, &series, 0, None)
    })
}

fn matrix(case: &str) -> Matrix {
    let columns = FIGURES.iter().flat_map(|figure| {
        let measured = Column::median(figure.head, case, figure.metric);
        let published = figure
            .published
            .map(|_| Column::median("publ.", PUBLISHED_CASE, figure.metric));
        std::iter::once(measured).chain(published)
    });
    Matrix {
        title: "mean".to_owned(),
        columns: columns.collect(),
        ..Matrix::default()
    }
}
