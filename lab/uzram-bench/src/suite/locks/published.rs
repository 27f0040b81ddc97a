//! The published tables as this suite's rows: what came of it when zram's table lock went into its entries.

use crate::job::Test;
use crate::published;
use crate::report::Measured;
use crate::suite::contention::published::Columns;

/// iozone's file.
pub(super) const IOZONE_BYTES: u64 = 200 << 20;
pub(super) const FIO_DEVICE_BYTES: u64 = 10 << 20;

/// The locks of the tables, as our variants are called; the first is the base.
pub(super) const COLUMNS: Columns<5> = Columns {
    fields: [
        "base_rwlock_table_kbps",
        "cas_kbps",
        "spinlock_kbps",
        "rwlock_kbps",
        "bit_spinlock_kbps",
    ],
    names: ["table-rwlock", "cas", "spinlock", "rwlock", "bit-spinlock"],
};

/// One of the two published tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Iozone,
    Fio,
}

impl Table {
    /// KB/s of a test, in the order of [`COLUMNS`].
    pub(super) fn of(self, test: &str) -> Option<[f64; 5]> {
        let data = match self {
            Table::Iozone => published::Table::locks_iozone(),
            Table::Fio => published::Table::locks_fio(),
        };
        COLUMNS.of(&data, &[("test", test)])
    }

    /// The table as rows of a report.
    pub(super) fn rows(self, tests: &[Test]) -> Vec<Measured> {
        let of_test = |test: &Test| {
            let figures = self.of(test.title);
            figures.map(|kbps| COLUMNS.rows(&case(self, test.name), kbps, 0))
        };
        tests.iter().filter_map(of_test).flatten().collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::contention::{FIO, iozone_tests};

    #[test]
    fn the_tables_have_every_test() {
        for test in iozone_tests() {
            assert!(Table::Iozone.of(test.title).is_some(), "{}", test.name);
        }
        for test in &FIO {
            assert!(Table::Fio.of(test.title).is_some(), "{}", test.name);
        }
        let rewrite = Table::Iozone.of("Rewrite").map(|row| (row[0], row[4]));
        assert_eq!(rewrite, Some((1_529_479.0, 1_654_910.0)));
    }
}
