//! Somebody's own jobs as a block of the report: a table for each job, with a line for each side.

use super::plan::Plan;
use super::sides::driven_by_us;
use crate::corpus::PAGE_BYTES;
use crate::job::{Calls, Job};
use crate::report::{Block, Column, Figure, Matrix};
use crate::side::is_ours;
use crate::suite::rows::{COMPRESSED, CPU, Cells, IOPS, SLOW_PATH, THROUGHPUT, WORST};

pub(super) fn block(plan: &Plan, cells: &Cells) -> Block {
    let jobs = || plan.rows.iter().flat_map(|row| &row.jobs);
    let mut block = Block {
        title: format!("{}: {}; not pinned", plan.algorithm, plan.name),
        results: cells.results(|case| jobs().any(|(known, _)| known == case)),
        ..Block::default()
    };
    for (case, job) in jobs() {
        cells.compare_all(
            case,
            |top, bottom| are_compared(top, bottom, job),
            &mut block,
        );
        block.matrices.push(table(case, job));
    }
    block
}

/// Ours with others, and fio with us on the same device.
fn are_compared(top: &str, bottom: &str, job: &Job) -> bool {
    match driven_by_us(top) {
        Some(by_us) => by_us == bottom,
        None => {
            let theirs = !is_ours(bottom) && driven_by_us(bottom).is_none();
            is_ours(top) && theirs && compares(job)
        }
    }
}

/// Whether a job's figures on a device compare with those of the engine in this process: streams of the
/// C library go to the page cache there, and with single pages the system call is as long as the work.
fn compares(job: &Job) -> bool {
    job.calls != Calls::Buffered && job.block_bytes > PAGE_BYTES as u64
}

fn table(case: &str, job: &Job) -> Matrix {
    let of = || case.to_owned();
    let column = |head: &str, figure| Column {
        head: head.to_owned(),
        figure,
    };
    let metric = THROUGHPUT.0;
    let columns = [
        Column::median("MiB/s", case, metric),
        column("min .. max", Figure::Range { of: of(), metric }),
        Column::median("IOPS", case, IOPS.0),
        Column::median("CPU ms", case, CPU.0),
        Column::median("slow of 1000", case, SLOW_PATH.0),
        Column::median("worst ms", case, WORST.0),
        Column::median("compressed MiB", case, COMPRESSED.0),
        column("ratio", Figure::RatioBeside { of: of(), metric }),
    ];
    Matrix::of(&job.name, columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::fio;

    #[test]
    fn ours_are_compared_with_others_and_fio_with_us() {
        let job = |words: &str| fio::parse(words).unwrap();
        let (large, small) = (job("bs=16k size=1m"), job("bs=4k size=1m"));
        for (top, bottom, job, expected) in [
            ("uzram-lzo", "/dev/x", &large, true),
            ("uzram-lzo", "/dev/x", &small, false),
            ("uzram-lzo", "uzram-lzo-nbd", &large, false),
            ("/dev/x", "uzram-lzo", &large, false),
            ("/dev/x-by-fio", "/dev/x", &small, true),
            ("/dev/x-by-fio", "uzram-lzo", &large, false),
            ("uzram-lzo", "/dev/x-by-fio", &large, false),
        ] {
            assert_eq!(are_compared(top, bottom, job), expected, "{top} {bottom}");
        }
        let buffered = Job {
            calls: Calls::Buffered,
            ..large
        };
        assert!(!are_compared("uzram-lzo", "/dev/x", &buffered));
    }
}
