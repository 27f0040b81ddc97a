//! The table by which zram's move to the kernel's compression interface was judged: fio's tests with 1 to 10 jobs and
//! a static pattern.

use super::plan::{Plan, row};
use crate::error::Result;
use crate::job::{Job, Sharing, fio};
use crate::published::Table;
use crate::suite::grid::{Grid, Published};

/// The disk, in bytes.
const DISK_BYTES: u64 = 3 << 30;
const BLOCK_BYTES: u64 = 4096;

const PUBLISHED: Published = Published {
    table: Table::INTERFACE,
    columns: &[("base_mibps", "base"), ("crypto_api_mibps", "crypto-api")],
    a_mebibyte: 1.0,
    why: |_| "",
};

/// How much is done.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    /// The published sizes are divided by this.
    scale: u64,
    /// Work of a case at least, over all jobs: some ten milliseconds.
    work_min_bytes: u64,
    /// Numbers of jobs.
    jobs: Vec<usize>,
}

impl Sizes {
    pub(super) fn new(scale: u32, quick: bool) -> Sizes {
        let scale = u64::from(scale);
        match quick {
            false => Sizes {
                scale,
                work_min_bytes: 64 << 20,
                jobs: (1..=10).collect(),
            },
            true => Sizes {
                scale: scale * 8,
                work_min_bytes: 16 << 20,
                jobs: vec![1, 2, 4, 10],
            },
        }
    }

    /// Milliseconds, for tests.
    #[cfg(test)]
    pub(super) fn tiny() -> Sizes {
        Sizes {
            scale: 1 << 20,
            work_min_bytes: 256 << 10,
            jobs: vec![1, 2, 10],
        }
    }

    /// Each job's part, in whole blocks.
    fn each(&self, jobs: u64) -> u64 {
        let scaled = DISK_BYTES / jobs / self.scale;
        scaled.max(self.work_min_bytes / jobs).div_ceil(BLOCK_BYTES) * BLOCK_BYTES
    }
}

/// The table as jobs.
pub(super) fn plan(algorithm: &str, sizes: &Sizes) -> Result<Plan> {
    let grid = Grid {
        title: format!("fio, {algorithm}: bs=4k, a pattern of 5 bytes, each job its part; not pinned"),
        notes: vec![
            format!(
                "sizes are the published ones over {}, and {} MiB a case at least; each row begins on an empty device",
                sizes.scale,
                sizes.work_min_bytes >> 20
            ),
            "published figures are the kernel's zram on other machines: compare orders and shapes".to_owned(),
            "uzram is called in this process, the kernel's device by a system call a block, which costs it some \
             microseconds: they are not compared"
                .to_owned(),
        ],
        front: format!("{algorithm}/"),
        label: "jobs=",
        threads: sizes.jobs.clone(),
        tests: fio::TESTS.iter().map(|test| test.name).collect(),
        published: PUBLISHED,
        pairs: |_, _| false,
    };
    let mut rows = Vec::new();
    for &jobs in &sizes.jobs {
        let size = sizes.each(jobs as u64);
        let words = format!("bs={BLOCK_BYTES} size={size} numjobs={jobs} buffer_pattern=\"uzram\"");
        let tests = fio::TESTS.iter().map(|test| {
            let job = fio::parse(&format!("rw={} {words}", test.name))?;
            let sharing = Sharing::Apart;
            Ok((grid.case(test.name, jobs), Job { sharing, ..job }))
        });
        rows.push(row(tests.collect::<Result<_>>()?));
    }
    Ok(Plan {
        name: format!("fio/{algorithm}"),
        algorithm: algorithm.to_owned(),
        rows,
        grid: Some(grid),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_scaled_down_to_what_a_clock_can_tell() {
        let sizes = Sizes::new(16, false);
        assert_eq!(sizes.each(1), DISK_BYTES / 16);
        assert_eq!(Sizes::new(1024, false).each(4), 16 << 20);
        assert_eq!(
            Sizes::new(1024, true).each(3),
            (16 << 20) / 3 / 4096 * 4096 + 4096
        );
        let plan = plan("lzo", &sizes).unwrap();
        assert_eq!(plan.rows.len(), 10);
        let row = &plan.rows[3];
        assert_eq!(row.jobs[5].0, "lzo/randrw/jobs=4");
        assert_eq!(row.device_bytes(), DISK_BYTES / 16);
        assert_eq!(row.fill.as_ref().unwrap().name, "write");
    }
}
