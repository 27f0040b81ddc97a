//! What was published when zram's streams became per-CPU.
//!
//! Source: S. Senozhatsky, "zram: user per-cpu compression streams", linux-kernel, March and May 2016: zram of
//! 3 GB with lzo, ext4, 4 x86-64 CPUs, a fresh device for each run of
//! `iozone -t T -R -r (8*T)K -s ((3G/T - 10%)/1M)M -I +Z`.

use crate::report::Measured;
use crate::sample::Series;
use crate::suite::contention::cells::THROUGHPUT;

/// The published disk.
pub(super) const DISK_BYTES: u64 = 3 << 30;
/// In front of `T=N` in the names of published cases.
pub(super) const PREFIX: &str = "published-";

/// Columns of the table, with the policy that each stands for.
pub(super) const COLUMNS: [&str; 3] = ["4 streams", "8 streams", "per-CPU"];
pub(super) const PER_CPU_COLUMN: usize = 2;

/// The published table.
#[derive(Debug)]
pub(super) struct Published {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    threads: usize,
    test: &'static str,
    /// KB/s; seconds for the times of the whole run.
    values: [f64; 3],
}

impl Published {
    pub(super) fn parse() -> Published {
        let lines = include_str!("published.csv").lines().skip(1);
        Published {
            rows: lines.filter_map(Row::parse).collect(),
        }
    }

    /// The figures of a row of the table, in the order of [`COLUMNS`].
    pub(super) fn of(&self, test: &str, threads: usize) -> Option<[f64; 3]> {
        let is_it = |row: &&Row| row.threads == threads && row.test == test;
        self.rows.iter().find(is_it).map(|row| row.values)
    }

    /// A test's throughput as rows of a report.
    pub(super) fn rows(&self, name: &str, test: &str, threads: &[usize]) -> Vec<Measured> {
        let known = threads
            .iter()
            .filter_map(|threads| Some((*threads, self.of(test, *threads)?)));
        let figures = known.flat_map(|(threads, values)| {
            let columns = COLUMNS.into_iter().zip(values);
            columns.map(move |(column, value)| (threads, column, value))
        });
        let rows = figures.filter_map(|(threads, column, value)| {
            Some(Measured {
                case: format!("{name}/{PREFIX}T={threads}"),
                variant: column.to_owned(),
                metric: THROUGHPUT.0,
                unit: THROUGHPUT.1,
                spread: Series::from(vec![value / 1024.0]).spread()?,
                working_set_bytes: DISK_BYTES,
                pinned: None,
            })
        });
        rows.collect()
    }
}

impl Row {
    fn parse(line: &'static str) -> Option<Row> {
        let fields: Vec<&'static str> = line.split(',').collect();
        let [threads, _, _, test, _, four, eight, per_cpu] = fields[..] else {
            return None;
        };
        Some(Row {
            threads: threads.parse().ok()?,
            test,
            values: [
                four.parse().ok()?,
                eight.parse().ok()?,
                per_cpu.parse().ok()?,
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::contention::patterns::IOZONE;

    #[test]
    fn the_table_has_every_test_for_1_to_10_threads() {
        let published = Published::parse();
        for threads in 1..=10 {
            for test in &IOZONE {
                let values = published.of(test.published, threads);
                assert!(values.is_some(), "{} {threads}", test.published);
            }
            assert!(published.of("time_sys", threads).is_some());
        }
        let rewrite = published.of("Rewrite", 3);
        assert_eq!(rewrite, Some([3_402_447.88, 3_415_685.88, 5_054_705.38]));
        assert_eq!(published.of("Rewrite", 11), None);
    }
}
