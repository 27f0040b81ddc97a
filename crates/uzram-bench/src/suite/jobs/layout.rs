//! A grid's figures as a block of the report: tables with what was published beside, charts over the
//! number of threads, and what the figures say.

use super::grid::{Grid, Row, Shape, compares};
use super::measure::{
    COMPRESSED, Cells, IOPS, METRICS, Metric, SLOW, SYSTEM, THROUGHPUT, USER, WORST,
};
use super::sides::Side;
use crate::job::Job;
use crate::report::{Aim, Block, Claim, Column, Figure, Lines, Matrix, Measured, Ratio, Standing};
use crate::sample::{Series, Spread};
use crate::suite::SUBJECT;

/// Threads of the two rows that scaling is judged by, and what part of the first the second must keep.
const SCALING_ROWS: [&str; 2] = ["T=2", "T=10"];
const SCALING_PART: f64 = 0.9;
/// fio's rate over ours on the same device.
const AGREEMENT: f64 = 0.1;

pub(super) fn block(grid: &Grid, sides: &[Side], cells: &Cells) -> Block {
    let mut block = Block {
        title: grid.title.clone(),
        notes: grid.notes.clone(),
        ..Block::default()
    };
    for (test, at) in tests(grid) {
        for &(row, job) in &at {
            add_figures(grid, sides, cells, (row, job), &mut block);
        }
        match grid.shape {
            Shape::Scaling => block.matrices.push(over_rows(grid, sides, test, &at)),
            Shape::Own => block.matrices.push(of_job(grid, at[0])),
            Shape::Single => {}
        }
    }
    match grid.shape {
        Shape::Single => block.matrices.push(over_tests(grid, sides)),
        Shape::Scaling => block.claims = scaling(grid, sides, cells),
        Shape::Own => {}
    }
    if grid.shape != Shape::Own {
        block.drawn.push(THROUGHPUT.0);
    }
    block
}

/// Each test with the cells that are its, as row and job.
fn tests(grid: &Grid) -> Vec<(&str, Vec<(usize, usize)>)> {
    let mut tests: Vec<(&str, Vec<(usize, usize)>)> = Vec::new();
    for (row, jobs) in grid.rows.iter().enumerate() {
        for (job, of) in jobs.jobs.iter().enumerate() {
            match tests.iter_mut().find(|(name, _)| *name == of.name) {
                Some((_, at)) => at.push((row, job)),
                None => tests.push((&of.name, vec![(row, job)])),
            }
        }
    }
    tests
}

fn add_figures(grid: &Grid, sides: &[Side], cells: &Cells, at: (usize, usize), block: &mut Block) {
    let row = &grid.rows[at.0];
    let job = &row.jobs[at.1];
    let case = grid.case(row, job);
    for (nth, side) in sides.iter().enumerate() {
        for metric in shown(grid.shape) {
            let spread = cells.series(at, nth, metric).spread();
            block
                .results
                .extend(spread.map(|spread| measured(&case, &side.variant, metric, spread, job)));
        }
    }
    for published in grid.published.iter().filter(|one| one.case == case) {
        let figure = Series::from(vec![published.mebibytes_per_second]);
        let spread = figure.spread();
        block.results.extend(
            spread.map(|spread| measured(&case, published.column, THROUGHPUT, spread, job)),
        );
    }
    for (numerator, denominator, aim) in pairs(sides, job) {
        let of = |nth: usize| cells.series(at, nth, THROUGHPUT);
        let (top, bottom) = alike(&of(numerator), &of(denominator));
        let names = (&sides[numerator].variant, &sides[denominator].variant);
        let (top, bottom) = ((names.0.as_str(), &top), (names.1.as_str(), &bottom));
        block
            .ratios
            .extend(Ratio::of(&case, THROUGHPUT.0, top, bottom, aim));
    }
}

/// Tables show a rate in one unit; the others are for somebody's own jobs.
fn shown(shape: Shape) -> Vec<Metric> {
    match shape {
        Shape::Own => vec![THROUGHPUT, IOPS, USER, SYSTEM, WORST, SLOW, COMPRESSED],
        _ => METRICS
            .into_iter()
            .filter(|metric| ![IOPS, COMPRESSED].contains(metric))
            .collect(),
    }
}

fn measured(case: &str, variant: &str, metric: Metric, spread: Spread, job: &Job) -> Measured {
    Measured {
        case: case.to_owned(),
        variant: variant.to_owned(),
        metric: metric.0,
        unit: metric.1,
        spread,
        working_set_bytes: job.device_bytes(),
        pinned: None,
    }
}

/// Which sides are compared: ours with others, and fio with us on the same device.
fn pairs(sides: &[Side], job: &Job) -> Vec<(usize, usize, Option<Aim>)> {
    let is_ours = |side: &Side| side.variant.starts_with(SUBJECT);
    let mut pairs = Vec::new();
    for (at, side) in sides.iter().enumerate() {
        if let Some(by_us) = side.driven_by_us() {
            let other = sides.iter().position(|other| other.variant == by_us);
            pairs.extend(other.map(|other| (at, other, Some(Aim::Within(AGREEMENT)))));
        } else if !is_ours(side) && compares(job) {
            let ours = sides.iter().enumerate().filter(|(_, other)| is_ours(other));
            pairs.extend(ours.map(|(ours, _)| (ours, at, None)));
        }
    }
    pairs
}

/// The runs that both have: after Ctrl-C one may lack its last.
fn alike(one: &Series, other: &Series) -> (Series, Series) {
    let runs = one.len().min(other.len());
    let first = |series: &Series| Series::from(series.values()[..runs].to_vec());
    (first(one), first(other))
}

/// A test's table: a line for each row of the grid.
fn over_rows(grid: &Grid, sides: &[Side], test: &str, at: &[(usize, usize)]) -> Matrix {
    let lines = at.iter().map(|&(row, job)| {
        let row = &grid.rows[row];
        (row.label.clone(), grid.case(row, &row.jobs[job]))
    });
    Matrix {
        title: format!("{test}, MiB/s"),
        lines: Lines::Cases(lines.collect()),
        columns: columns(grid, sides, &grid.rows[at[0].0].jobs[at[0].1]),
    }
}

/// The grid's only table: a line for each test.
fn over_tests(grid: &Grid, sides: &[Side]) -> Matrix {
    let row = &grid.rows[0];
    let lines = row.jobs.iter();
    let lines = lines.map(|job| (job.name.clone(), grid.case(row, job)));
    Matrix {
        title: "MiB/s".to_owned(),
        lines: Lines::Cases(lines.collect()),
        columns: columns(grid, sides, &row.jobs[0]),
    }
}

/// The table of one of somebody's own jobs: a line for each side.
fn of_job(grid: &Grid, (row, job): (usize, usize)) -> Matrix {
    let row = &grid.rows[row];
    let case = grid.case(row, &row.jobs[job]);
    let of = || case.clone();
    let column = |head: &str, figure| Column {
        head: head.to_owned(),
        figure,
    };
    let metric = THROUGHPUT.0;
    let metrics = [USER.0, SYSTEM.0];
    Matrix {
        title: row.jobs[job].name.clone(),
        columns: vec![
            Column::median("MiB/s", &case, metric),
            column("min .. max", Figure::Range { of: of(), metric }),
            Column::median("IOPS", &case, IOPS.0),
            column("user + sys s", Figure::Sum { of: of(), metrics }),
            Column::median("slow %", &case, SLOW.0),
            Column::median("worst us", &case, WORST.0),
            Column::median("compressed MiB", &case, COMPRESSED.0),
            column("ratio", Figure::RatioBeside { of: of(), metric }),
        ],
        ..Matrix::default()
    }
}

fn columns(grid: &Grid, sides: &[Side], job: &Job) -> Vec<Column> {
    let column = |head: &str, figure| Column {
        head: head.to_owned(),
        figure,
    };
    let mut columns = Vec::new();
    for side in sides {
        let of = || side.variant.clone();
        let metric = THROUGHPUT.0;
        columns.push(Column::median(&side.variant, &side.variant, metric));
        columns.push(column("min .. max", Figure::Range { of: of(), metric }));
        let metrics = [USER.0, SYSTEM.0];
        columns.push(column("user + sys s", Figure::Sum { of: of(), metrics }));
        if side.variant.starts_with(SUBJECT) && job.writes() {
            columns.push(Column::median("slow %", &side.variant, SLOW.0));
        }
    }
    for (numerator, denominator, _) in pairs(sides, job) {
        let figure = Figure::Ratio {
            numerator: sides[numerator].variant.clone(),
            denominator: sides[denominator].variant.clone(),
            metric: THROUGHPUT.0,
        };
        columns.push(column("ratio", figure));
    }
    let mut seen: Vec<&str> = Vec::new();
    for published in &grid.published {
        if !seen.contains(&published.column) {
            seen.push(published.column);
            let head = published.column.trim_start_matches("published-");
            let head = format!("publ. {head}");
            columns.push(Column::median(&head, published.column, THROUGHPUT.0));
        }
    }
    columns
}

/// Whether more threads than CPUs keep up what two do; only of what was measured in both rows.
fn scaling(grid: &Grid, sides: &[Side], cells: &Cells) -> Vec<Claim> {
    let row_of = |label: &str| grid.rows.iter().position(|row: &Row| row.label == label);
    let [Some(two), Some(ten)] = SCALING_ROWS.map(row_of) else {
        return Vec::new();
    };
    let ours = sides.iter().enumerate();
    let ours = ours.filter(|(_, side)| side.variant.starts_with(SUBJECT));
    let mut claims = Vec::new();
    for (nth, side) in ours {
        for (job, of) in grid.rows[two].jobs.iter().enumerate() {
            let at = |row| cells.series((row, job), nth, THROUGHPUT);
            let (top, bottom) = alike(&at(ten), &at(two));
            let worst = cells.series((ten, job), nth, WORST).spread();
            let both = top.over(&bottom).spread().zip(worst);
            claims.extend(both.map(|(ratio, worst)| Claim {
                case: format!("{}/{}", grid.front, of.name),
                claim: format!(
                    "{}, {}: 10 threads keep {SCALING_PART} of what 2 do",
                    side.variant, of.name
                ),
                measured: format!(
                    "{:.2} ({:.2} .. {:.2}); worst latency {:.1} ms",
                    ratio.median,
                    ratio.min,
                    ratio.max,
                    worst.max / 1e3
                ),
                standing: Standing::at_least(SCALING_PART, ratio),
                why: String::new(),
            }));
        }
    }
    claims
}
