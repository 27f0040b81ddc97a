//! The published comparison, run by run, and its tables: published figures beside measured ones.

use super::claims;
use super::clock::Clock;
use super::figures::{ALLOCATORS, FIGURES, Found};
use super::heap::Variant;
use super::published::{self, Streams};
use super::scope::Scale;
use crate::error::Result;
use crate::figures::Cell;
use crate::progress::Progress;
use crate::report::{Block, Column, Findings, Matrix, Measured};
use crate::sample::Series;
use crate::suite::Options;
use crate::suite::turns::{Runs, Turns};

/// The case name of figures that were published and not measured here.
pub(super) const PUBLISHED_CASE: &str = "published";

/// A block a disk.
pub(super) fn measure(
    findings: &mut Findings,
    variants: &[Variant],
    scale: &Scale,
    cpus: &[usize],
    options: &Options,
    progress: &mut Progress,
) -> Result<()> {
    let streams = Streams::new()?;
    let clock = Clock::calibrate();
    for &pages in &scale.disk_pages {
        let what = format!("{} MiB disk", pages >> 8);
        let turns = Turns {
            warms_up: false,
            ..Turns::of(&what, variants.len(), Runs::Exactly(scale.runs))
        };
        let figures = turns.take(options, progress, |turn| {
            let variant = variants[turn.side];
            let outcome = published::run(variant, &streams, pages, cpus, &options.stop)?;
            Ok(FIGURES.map(|figure| (figure.measured)(&outcome, clock)))
        })?;
        let names = variants.iter().map(|variant| variant.name());
        let figures: Vec<Found> = names.zip(figures).collect();
        findings.blocks.push(block(pages, scale, &figures, cpus));
    }
    Ok(())
}

fn block(pages: usize, scale: &Scale, found: &[Found], cpus: &[usize]) -> Block {
    let mebibytes = pages >> 8;
    let case = format!("disk-{mebibytes}M");
    let mut block = Block::default();
    for (at, figure) in FIGURES.iter().enumerate() {
        let metric = (figure.metric, figure.unit);
        let cell = Cell::new(case.as_str(), metric, (pages as u64) << 12);
        let cell = cell.pinned(&[cpus[0], cpus[cpus.len() - 1]]);
        for (variant, series) in found {
            cell.add(variant, &series[at], &mut block);
        }
    }
    block.results.extend(published_rows());
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
        claims: claims::of_the_comparison(&case, found),
        matrices: vec![matrix(&case)],
        ..block
    }
}

fn published_rows() -> impl Iterator<Item = Measured> {
    let pairs = ALLOCATORS
        .into_iter()
        .flat_map(|allocator| FIGURES.iter().map(move |figure| (allocator, figure)));
    pairs.filter_map(|(allocator, figure)| {
        let series = Series::from(vec![figure.published_of(allocator)?]);
        let metric = (figure.metric, figure.unit);
        Cell::new(PUBLISHED_CASE, metric, 0).row(allocator, &series)
    })
}

fn matrix(case: &str) -> Matrix {
    let columns = FIGURES.iter().flat_map(|figure| {
        let measured = Column::median(figure.head, case, figure.metric);
        let published = (!figure.published.is_empty())
            .then(|| Column::median("publ.", PUBLISHED_CASE, figure.metric));
        std::iter::once(measured).chain(published)
    });
    Matrix::of("mean", columns)
}
