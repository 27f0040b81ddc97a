//! A grid's figures as a block of the report: tables with what was published beside, charts over the
//! number of threads, and what the figures say.

use super::grid::{Grid, Shape, compares};
use super::measure::{COMPRESSED, FIGURES, IOPS, SLOW, SYSTEM, USER, WORST};
use super::sides::driven_by_us;
use crate::figures::{Cell, Metric};
use crate::job::Job;
use crate::report::{Block, Claim, Column, Figure, Lines, Matrix, Standing};
use crate::sample::Series;
use crate::side::Side;
use crate::suite::orderings::{self, common_ratio};
use crate::suite::rows::{Cells, Place, Row, THROUGHPUT};

/// Threads of the two rows that scaling is judged by, and what part of the first the second must keep.
const SCALING_ROWS: [&str; 2] = ["T=2", "T=10"];
const SCALING_PART: f64 = 0.9;

pub(super) fn block(grid: &Grid, sides: &[Side<Place>], cells: &Cells) -> Block {
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
        for (job, (_, of)) in jobs.jobs.iter().enumerate() {
            match tests.iter_mut().find(|(name, _)| *name == of.name) {
                Some((_, at)) => at.push((row, job)),
                None => tests.push((&of.name, vec![(row, job)])),
            }
        }
    }
    tests
}

fn add_figures(
    grid: &Grid,
    sides: &[Side<Place>],
    cells: &Cells,
    at: (usize, usize),
    block: &mut Block,
) {
    let (case, job) = &grid.rows[at.0].jobs[at.1];
    let cell = |metric| Cell::new(case.as_str(), metric, job.device_bytes());
    for side in sides {
        for metric in shown(grid.shape) {
            if let Some(series) = cells.series(case, &side.name, metric) {
                cell(metric).add(&side.name, &series, block);
            }
        }
    }
    for published in grid.published.iter().filter(|one| one.case == *case) {
        let figure = Series::from(vec![published.mebibytes_per_second]);
        cell(THROUGHPUT).add(published.column, &figure, block);
    }
    for (top, bottom) in pairs(sides, job) {
        cells.compare(case, top, bottom, block);
    }
}

/// Tables show a rate in one unit; the others are for somebody's own jobs.
fn shown(shape: Shape) -> impl Iterator<Item = Metric> {
    let is_shown = move |metric: &Metric| match shape {
        Shape::Own => true,
        _ => ![IOPS, COMPRESSED].contains(metric),
    };
    FIGURES.into_iter().map(|figure| figure.0).filter(is_shown)
}

/// The pairs of sides to compare: ours with others, and fio with us on the same device.
fn pairs<'a>(sides: &'a [Side<Place>], job: &Job) -> Vec<(&'a str, &'a str)> {
    let mut pairs = Vec::new();
    for side in sides {
        let name = side.name.as_str();
        if let Some(by_us) = driven_by_us(name) {
            pairs.push((name, by_us));
        } else if !side.is_ours() && compares(job) {
            let ours = sides.iter().filter(|other| other.is_ours());
            pairs.extend(ours.map(|ours| (ours.name.as_str(), name)));
        }
    }
    pairs
}

/// A test's table: a line for each row of the grid.
fn over_rows(grid: &Grid, sides: &[Side<Place>], test: &str, at: &[(usize, usize)]) -> Matrix {
    let lines = at.iter().map(|&(row, job)| {
        let row = &grid.rows[row];
        (row.label.clone(), row.jobs[job].0.clone())
    });
    Matrix {
        title: format!("{test}, MiB/s"),
        lines: Lines::Cases(lines.collect()),
        columns: columns(grid, sides, &grid.rows[at[0].0].jobs[at[0].1].1),
    }
}

/// The grid's only table: a line for each test.
fn over_tests(grid: &Grid, sides: &[Side<Place>]) -> Matrix {
    let row = &grid.rows[0];
    let lines = row.jobs.iter();
    let lines = lines.map(|(case, job)| (job.name.clone(), case.clone()));
    Matrix {
        title: "MiB/s".to_owned(),
        lines: Lines::Cases(lines.collect()),
        columns: columns(grid, sides, &row.jobs[0].1),
    }
}

/// The table of one of somebody's own jobs: a line for each side.
fn of_job(grid: &Grid, (row, job): (usize, usize)) -> Matrix {
    let (case, job) = &grid.rows[row].jobs[job];
    let of = || case.clone();
    let column = |head: &str, figure| Column {
        head: head.to_owned(),
        figure,
    };
    let metric = THROUGHPUT.0;
    let metrics = [USER.0, SYSTEM.0];
    let columns = [
        Column::median("MiB/s", case, metric),
        column("min .. max", Figure::Range { of: of(), metric }),
        Column::median("IOPS", case, IOPS.0),
        column("user + sys s", Figure::Sum { of: of(), metrics }),
        Column::median("slow %", case, SLOW.0),
        Column::median("worst us", case, WORST.0),
        Column::median("compressed MiB", case, COMPRESSED.0),
        column("ratio", Figure::RatioBeside { of: of(), metric }),
    ];
    Matrix::of(&job.name, columns)
}

fn columns(grid: &Grid, sides: &[Side<Place>], job: &Job) -> Vec<Column> {
    let column = |head: &str, figure| Column {
        head: head.to_owned(),
        figure,
    };
    let mut columns = Vec::new();
    for side in sides {
        let of = || side.name.clone();
        let metric = THROUGHPUT.0;
        columns.push(Column::median(&side.name, &side.name, metric));
        columns.push(column("min .. max", Figure::Range { of: of(), metric }));
        let metrics = [USER.0, SYSTEM.0];
        columns.push(column("user + sys s", Figure::Sum { of: of(), metrics }));
        if side.is_ours() && job.writes() {
            columns.push(Column::median("slow %", &side.name, SLOW.0));
        }
    }
    for (numerator, denominator) in pairs(sides, job) {
        let figure = Figure::Ratio {
            numerator: numerator.to_owned(),
            denominator: denominator.to_owned(),
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
fn scaling(grid: &Grid, sides: &[Side<Place>], cells: &Cells) -> Vec<Claim> {
    let row_of = |label: &str| grid.rows.iter().position(|row: &Row| row.label == label);
    let [Some(two), Some(ten)] = SCALING_ROWS.map(row_of) else {
        return Vec::new();
    };
    let mut claims = Vec::new();
    for side in sides.iter().filter(|side| side.is_ours()) {
        for ((case_two, of), (case_ten, _)) in grid.rows[two].jobs.iter().zip(&grid.rows[ten].jobs)
        {
            let at = |case: &str| cells.series(case, &side.name, THROUGHPUT);
            let worst = cells.spread(case_ten, &side.name, WORST);
            let ratio = at(case_ten).zip(at(case_two));
            let ratio = ratio.and_then(|(ten, two)| common_ratio(&ten, &two));
            claims.extend(ratio.zip(worst).map(|(ratio, worst)| {
                let (side, job) = (&side.name, &of.name);
                let claim = format!("{side}, {job}: 10 threads keep {SCALING_PART} of what 2 do");
                let worst_ms = worst.max / 1e3;
                let measured = format!(
                    "{}; worst latency {worst_ms:.1} ms",
                    orderings::shown(ratio)
                );
                let standing = Standing::at_least(SCALING_PART, ratio);
                Claim::aim(format!("{}/{job}", grid.front), claim, measured, standing)
            }));
        }
    }
    claims
}
