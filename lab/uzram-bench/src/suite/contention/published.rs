//! Published tables of throughput as rows of a report, beside what was measured.

use crate::figures::Cell;
use crate::published::Table;
use crate::report::Measured;
use crate::sample::Series;
use crate::suite::rows::THROUGHPUT;

/// A table's fields, and what they are called in the report.
pub(crate) struct Columns<const N: usize> {
    pub(crate) fields: [&'static str; N],
    pub(crate) names: [&'static str; N],
}

impl<const N: usize> Columns<N> {
    /// The figures of the line with these keys, in the table's own unit.
    pub(crate) fn of(&self, table: &Table, keys: &[(&str, &str)]) -> Option<[f64; N]> {
        table.find(keys, self.fields).pop()
    }

    /// A line of KB/s as rows of the case.
    pub(crate) fn rows(&self, case: &str, kbps: [f64; N], disk_bytes: u64) -> Vec<Measured> {
        let cell = Cell::new(case, THROUGHPUT, disk_bytes);
        let figures = self.names.iter().zip(kbps);
        let row = |(name, kbps): (&&str, f64)| cell.row(name, &Series::from(vec![kbps / 1024.0]));
        figures.filter_map(row).collect()
    }
}
