//! What was published when zram's table lock went into its entries.
//!
//! Source: W. Yang, "zram: use entry-level locks" (later "replace global tb_lock with fine grain lock"),
//! linux-kernel, 2014: a Core2 Q8400, 4 streams, lzo; zram of 1 GB with ext4 under
//! `iozone -t 4 -R -r 16K -s 200M -I +Z`, and a raw device of 10 MB under fio with `bs=32k randrepeat=1
//! randseed=100 refill_buffers scramble_buffers=1 direct=1 loops=3000 numjobs=4`; means of 10 runs.

use crate::report::Measured;
use crate::sample::Series;
use crate::suite::contention::cells::THROUGHPUT;
use crate::suite::contention::patterns::Test;

/// iozone's file.
pub(super) const IOZONE_BYTES: u64 = 200 << 20;
pub(super) const FIO_DEVICE_BYTES: u64 = 10 << 20;

/// The table's columns, as our variants are called; the first is the base.
pub(super) const COLUMNS: [&str; 5] = ["table-rwlock", "cas", "spinlock", "rwlock", "bit-spinlock"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Iozone,
    Fio,
}

/// The published tables.
#[derive(Debug)]
pub(super) struct Published {
    rows: Vec<(Table, &'static str, [f64; 5])>,
}

impl Published {
    pub(super) fn parse() -> Published {
        let tables = [
            (Table::Iozone, include_str!("iozone.csv")),
            (Table::Fio, include_str!("fio.csv")),
        ];
        let rows = tables.into_iter().flat_map(|(table, text)| {
            let lines = text.lines().skip(1).filter_map(parse_row);
            lines.map(move |(test, values)| (table, test, values))
        });
        Published {
            rows: rows.collect(),
        }
    }

    /// KB/s of a test, in the order of [`COLUMNS`].
    pub(super) fn of(&self, table: Table, test: &str) -> Option<[f64; 5]> {
        let is_it = |row: &&(Table, &str, [f64; 5])| row.0 == table && row.1 == test;
        self.rows.iter().find(is_it).map(|row| row.2)
    }

    /// A table as rows of a report.
    pub(super) fn rows(&self, table: Table, tests: &[Test]) -> Vec<Measured> {
        let known = tests
            .iter()
            .filter_map(|test| Some((test.name, self.of(table, test.published)?)));
        let figures = known.flat_map(|(test, values)| {
            let columns = COLUMNS.into_iter().zip(values);
            columns.map(move |(column, value)| (test, column, value))
        });
        let rows = figures.filter_map(|(test, column, value)| {
            Some(Measured {
                case: case(table, test),
                variant: column.to_owned(),
                metric: THROUGHPUT.0,
                unit: THROUGHPUT.1,
                spread: Series::from(vec![value / 1024.0]).spread()?,
                working_set_bytes: 0,
                pinned: None,
            })
        });
        rows.collect()
    }
}

/// The case of a published figure.
pub(super) fn case(table: Table, test: &str) -> String {
    format!("published/{}", beside(table, test))
}

/// The case of the figure measured as it was.
pub(super) fn beside(table: Table, test: &str) -> String {
    match table {
        Table::Iozone => format!("iozone/{test}"),
        Table::Fio => format!("fio/{test}"),
    }
}

fn parse_row(line: &'static str) -> Option<(&'static str, [f64; 5])> {
    let mut fields = line.split(',');
    let test = fields.next()?;
    let values: Option<Vec<f64>> = fields.map(|field| field.parse().ok()).collect();
    Some((test, values?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::contention::patterns::{FIO, IOZONE};

    #[test]
    fn the_tables_have_every_test() {
        let published = Published::parse();
        for test in &IOZONE {
            assert!(
                published.of(Table::Iozone, test.published).is_some(),
                "{}",
                test.name
            );
        }
        for test in &FIO {
            assert!(
                published.of(Table::Fio, test.published).is_some(),
                "{}",
                test.name
            );
        }
        let rewrite = published
            .of(Table::Iozone, "Rewrite")
            .map(|row| (row[0], row[4]));
        assert_eq!(rewrite, Some((1_529_479.0, 1_654_910.0)));
    }
}
