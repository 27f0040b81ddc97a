//! The jobs of a block of the report.

use crate::job::{Job, fio};
use crate::suite::grid::Grid;
use crate::suite::rows::Row;

/// Jobs to run, checked: a block of the report.
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) algorithm: String,
    pub(super) rows: Vec<Row>,
    /// Of a published table.
    pub(super) grid: Option<Grid>,
}

impl Plan {
    /// How large a device must be, in bytes.
    pub(super) fn device_bytes(&self) -> u64 {
        self.rows.iter().map(Row::device_bytes).max().unwrap_or(0)
    }
}

/// A row of jobs, on what the first would read.
pub(super) fn row(jobs: Vec<(String, Job)>) -> Row {
    let first = jobs.first().filter(|(_, job)| !job.starts_fresh);
    let fill = first.map(|(_, first)| Job {
        name: fio::WRITE.name.to_owned(),
        order: fio::WRITE.order,
        mix: fio::WRITE.mix,
        loops: 1,
        starts_fresh: true,
        ..first.clone()
    });
    let all = None;
    Row { fill, jobs, all }
}
