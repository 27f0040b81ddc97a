//! Published tables, done again: tests over numbers of threads, a variant beside the others, and what was published
//! of them. A suite says which tests run on which sides; the report of all of them is made here.
//!
//! Published figures have the names of our variants, in cases with [`published::PREFIX`].

use crate::figures::{Cell, Metric};
use crate::published::{self, Table};
use crate::report::{Block, Claim, Column, Matrix, Measured};
use crate::sample::Series;
use crate::suite::orderings::{Orders, common_ratio};
use crate::suite::rows::{CPU, Cells, SLEEPS, SLOW_PATH, THROUGHPUT, WORST};

/// The case of all tests of a row together.
pub(crate) const ALL_TESTS: &str = "all-tests";
/// The throughput of the most threads over that of two.
const OVER_TWO: Metric = ("throughput_over_two_threads", "x");
/// The tables of a test: their titles and metrics.
const SHOWN: [(&str, Metric); 5] = [
    ("MiB/s", THROUGHPUT),
    ("CPU ms", CPU),
    ("worst record ms", WORST),
    ("slow path of 1000 writes", SLOW_PATH),
    ("sleeps of 1000 writes", SLEEPS),
];

/// A published table's report.
pub(crate) struct Grid {
    pub(crate) title: String,
    /// Stand in the first block.
    pub(crate) notes: Vec<String>,
    /// In front of all cases, with a slash at its end; may be empty.
    pub(crate) front: String,
    /// In front of a number of threads: `T=` for iozone's, `jobs=` for fio's.
    pub(crate) label: &'static str,
    pub(crate) threads: Vec<usize>,
    /// Names of the tests, in the data and in cases.
    pub(crate) tests: Vec<&'static str>,
    pub(crate) published: Published,
    /// Whether the first variant is compared with the second.
    pub(crate) pairs: fn(&str, &str) -> bool,
}

/// The published figures.
#[derive(Clone, Copy)]
pub(crate) struct Published {
    pub(crate) table: Table,
    /// Fields of the table, and the variants that they are of.
    pub(crate) columns: &'static [(&'static str, &'static str)],
    /// How many of the table's units are a mebibyte a second.
    pub(crate) a_mebibyte: f64,
    /// Why the order of a test does or does not carry over.
    pub(crate) why: fn(&str) -> &'static str,
}

impl Published {
    /// A line of the table, in its own unit.
    fn find(&self, test: &str, threads: usize) -> Option<Vec<f64>> {
        let (table, threads) = (self.table, threads.to_string());
        let keys = [("test", test), ("threads", threads.as_str())];
        let of = |field| table.find(&keys, [field]).pop().map(|[figure]| figure);
        self.columns.iter().map(|(field, _)| of(*field)).collect()
    }

    /// The figures by which variants are ordered: throughput, of all tests together the seconds of CPU time.
    fn ordered(&self, test: &str, threads: usize) -> Option<Vec<f64>> {
        if test != ALL_TESTS {
            return self.find(test, threads);
        }
        let (user, system) = (
            self.find("time_user", threads)?,
            self.find("time_sys", threads)?,
        );
        let sums = user.iter().zip(system);
        Some(sums.map(|(user, system)| user + system).collect())
    }
}

impl Grid {
    /// The case of a test with so many threads.
    pub(crate) fn case(&self, test: &str, threads: usize) -> String {
        format!("{}{test}/{}{threads}", self.front, self.label)
    }

    fn published_case(&self, test: &str, threads: usize) -> String {
        let (front, label) = (&self.front, self.label);
        format!("{front}{test}/{}-{label}{threads}", published::PREFIX)
    }

    /// A block for each test that has figures.
    pub(crate) fn blocks(&self, cells: &Cells) -> Vec<Block> {
        let tests = [ALL_TESTS].into_iter().chain(self.tests.iter().copied());
        let mut blocks: Vec<Block> = tests.filter_map(|test| self.block(test, cells)).collect();
        if let Some(first) = blocks.first_mut() {
            first.notes.clone_from(&self.notes);
        }
        blocks
    }

    fn block(&self, test: &str, cells: &Cells) -> Option<Block> {
        let threads = self.threads.iter();
        let cases: Vec<String> = threads.map(|&n| self.case(test, n)).collect();
        let mut block = Block {
            title: format!("{test}: {}", self.title),
            results: cells.results(|case| cases.iter().any(|known| known == case)),
            claims: self.ordering(test, cells).into_iter().collect(),
            drawn: SHOWN.iter().map(|(_, metric)| metric.0).collect(),
            ..Block::default()
        };
        if block.results.is_empty() {
            return None;
        }
        let has = |metric: Metric| block.results.iter().any(|row| row.metric == metric.0);
        for (title, metric) in SHOWN.into_iter().filter(|(_, metric)| has(*metric)) {
            let matrix = self.matrix(title, metric, |n| self.case(test, n));
            block.matrices.push(matrix);
        }
        let published = self.published_rows(test);
        if !published.is_empty() {
            let case = |threads| self.published_case(test, threads);
            let matrix = self.matrix("published MiB/s", THROUGHPUT, case);
            block.matrices.insert(1, matrix);
        }
        block.results.extend(published);
        self.add_over_two(test, cells, &mut block);
        for case in &cases {
            cells.compare_all(case, self.pairs, &mut block);
        }
        Some(block)
    }

    fn matrix(&self, title: &str, metric: Metric, case: impl Fn(usize) -> String) -> Matrix {
        let columns = self.threads.iter().map(|&threads| {
            let head = format!("{}{threads}", self.label);
            Column::median(&head, &case(threads), metric.0)
        });
        Matrix::of(title, columns)
    }

    /// Adds the throughput of each variant with the most threads over that with two.
    fn add_over_two(&self, test: &str, cells: &Cells, block: &mut Block) {
        let Some(&most) = self.threads.last().filter(|threads| **threads > 2) else {
            return;
        };
        let (two, most) = (self.case(test, 2), self.case(test, most));
        for variant in cells.variants(&most) {
            let of = |case: &str| cells.series(case, variant, THROUGHPUT);
            if let (Some(top), Some(bottom)) = (of(&most), of(&two)) {
                let ratio = common_ratio(&top, &bottom);
                Cell::new(most.as_str(), OVER_TWO, 0).add(variant, &ratio, block);
            }
        }
    }

    fn published_rows(&self, test: &str) -> Vec<Measured> {
        let mut rows = Vec::new();
        for &threads in &self.threads {
            let figures = self.published.find(test, threads).unwrap_or_default();
            let cell = Cell::new(self.published_case(test, threads), THROUGHPUT, 0);
            for ((_, variant), figure) in self.published.columns.iter().zip(figures) {
                let series = Series::from(vec![figure / self.published.a_mebibyte]);
                rows.extend(cell.row(variant, &series));
            }
        }
        rows
    }

    /// The published order of the variants, by the numbers of threads.
    fn ordering(&self, test: &str, cells: &Cells) -> Option<Claim> {
        let (what, metric) = match test {
            ALL_TESTS => ("CPU time", CPU),
            _ => (test, THROUGHPUT),
        };
        let mut orders = Orders::default();
        for &threads in &self.threads {
            let case = self.case(test, threads);
            let figures = self.published.ordered(test, threads).unwrap_or_default();
            let sides = self.published.columns.iter().zip(figures);
            let sides = sides.map(|((_, variant), figure)| {
                Some((*variant, figure, cells.series(&case, variant, metric)?))
            });
            let sides: Vec<_> = sides.collect::<Option<_>>().unwrap_or_default();
            if !sides.is_empty() {
                orders.add(Some(threads), sides);
            }
        }
        let case = format!("{}{test}", self.front);
        orders.claim(&case, what, self.label, (self.published.why)(test))
    }
}
