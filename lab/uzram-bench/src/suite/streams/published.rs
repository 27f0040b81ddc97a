//! The published table as this suite's rows: [`Table::streams`].

use crate::published::Table;
use crate::report::Measured;
use crate::suite::contention::published::Columns;

/// The published disk.
pub(super) const DISK_BYTES: u64 = 3 << 30;
/// In front of `T=N` in the names of published cases.
pub(super) const PREFIX: &str = "published-";

/// The policies of the table.
pub(super) const COLUMNS: Columns<3> = Columns {
    fields: ["max_streams_4", "max_streams_8", "per_cpu_streams"],
    names: ["4 streams", "8 streams", "per-CPU"],
};
pub(super) const PER_CPU_COLUMN: usize = 2;

/// KB/s of a test in the order of [`COLUMNS`]; seconds for the times of the whole run.
pub(super) fn of(published: &Table, test: &str, threads: usize) -> Option<[f64; 3]> {
    let threads = threads.to_string();
    COLUMNS.of(published, &[("threads", &threads), ("test", test)])
}

/// A test's throughput as rows of a report.
pub(super) fn rows(published: &Table, name: &str, test: &str, threads: &[usize]) -> Vec<Measured> {
    let of_threads = |&threads: &usize| {
        let case = format!("{name}/{PREFIX}T={threads}");
        let figures = of(published, test, threads);
        figures.map(|kbps| COLUMNS.rows(&case, kbps, DISK_BYTES))
    };
    threads.iter().filter_map(of_threads).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::contention::iozone_tests;

    #[test]
    fn the_table_has_every_test_for_1_to_10_threads() {
        let published = Table::streams();
        for threads in 1..=10 {
            for test in iozone_tests() {
                assert!(
                    of(&published, test.title, threads).is_some(),
                    "{}",
                    test.title
                );
            }
            assert!(of(&published, "time_sys", threads).is_some());
        }
        assert_eq!(of(&published, "Rewrite", 11), None);
    }
}
