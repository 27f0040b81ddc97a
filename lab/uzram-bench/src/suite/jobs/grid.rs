//! Published tables as jobs: which rows, which sizes, and what stands beside them.

use std::sync::Arc;

use crate::error::Result;
use crate::job::buffers::Pages;
use crate::job::{Calls, Job, Sharing, fio, iozone};
use crate::published::Table;
use crate::suite::rows::Row;

const KIB_A_MIB: f64 = 1024.0;
/// A page, in bytes.
const PAGE_BYTES: u64 = 4096;
/// The disk of the two tables with 1 to 10 rows, in MiB.
const DISK_MIB: u64 = 3 << 10;
/// Work of a case at least, in bytes, over all workers: some ten milliseconds. With --quick the second.
const WORK_MIN_BYTES: [u64; 2] = [64 << 20, 16 << 20];
/// With --quick sizes are so many times smaller again.
const QUICK_SCALE: u64 = 8;
/// Rows that are measured with --quick.
const QUICK_ROWS: [u32; 4] = [1, 2, 4, 10];
/// fio's four jobs on a device of 10 MB so that they collide: published loops, and by how much more
/// than sizes they are scaled, as the device itself stays as it is.
const COLLIDING_LOOPS: u64 = 3000;
const LOOPS_SCALE: u64 = 20;

/// A published column's field in the data, and its name as a variant of the report.
type Column = (&'static str, &'static str);

const STREAM_COLUMNS: [Column; 3] = [
    ("max_streams_4", "published-4-streams"),
    ("max_streams_8", "published-8-streams"),
    ("per_cpu_streams", "published-per-cpu"),
];
const LOCK_COLUMNS: [Column; 5] = [
    ("base_rwlock_table_kbps", "published-table-rwlock"),
    ("cas_kbps", "published-cas"),
    ("spinlock_kbps", "published-spinlock"),
    ("rwlock_kbps", "published-rwlock"),
    ("bit_spinlock_kbps", "published-bit-spinlock"),
];
const INTERFACE_COLUMNS: [Column; 2] = [
    ("base_mibps", "published-base"),
    ("crypto_api_mibps", "published-crypto-api"),
];

/// A table.
#[derive(Debug)]
pub(super) struct Grid {
    pub(super) title: String,
    pub(super) notes: Vec<String>,
    /// The beginning of the names of all its cases.
    pub(super) front: String,
    pub(super) algorithm: String,
    pub(super) rows: Vec<Row>,
    pub(super) published: Vec<Published>,
    pub(super) shape: Shape,
}

/// A published figure.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) case: String,
    pub(super) column: &'static str,
    pub(super) mebibytes_per_second: f64,
}

/// How a grid is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A table for each test, a line for each row; for 1 to 10 threads or jobs.
    Scaling,
    /// One table, a line for each test.
    Single,
    /// A line for each figure.
    Own,
}

impl Grid {
    fn new(title: String, front: String, algorithm: &str, shape: Shape) -> Grid {
        Grid {
            title,
            notes: Vec::new(),
            front,
            algorithm: algorithm.to_owned(),
            rows: Vec::new(),
            published: Vec::new(),
            shape,
        }
    }

    /// How large a device must be, in bytes.
    pub(super) fn device_bytes(&self) -> u64 {
        self.rows.iter().map(Row::device_bytes).max().unwrap_or(0)
    }
}

/// How much is done.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    scale: u64,
    work_min_bytes: u64,
    /// Threads or jobs of the rows.
    rows: Vec<u32>,
    /// Of the device on which jobs collide: 10 MB.
    colliding_bytes: u64,
}

impl Sizes {
    pub(super) fn new(scale: u32, quick: bool) -> Sizes {
        let scale = u64::from(scale);
        Sizes {
            scale: if quick { scale * QUICK_SCALE } else { scale },
            work_min_bytes: WORK_MIN_BYTES[usize::from(quick)],
            rows: if quick {
                QUICK_ROWS.to_vec()
            } else {
                (1..=10).collect()
            },
            colliding_bytes: 10 << 20,
        }
    }

    /// Milliseconds, for tests.
    #[cfg(test)]
    pub(super) fn tiny() -> Sizes {
        Sizes {
            scale: 1 << 20,
            work_min_bytes: 256 << 10,
            rows: vec![1, 2, 10],
            colliding_bytes: 256 << 10,
        }
    }

    /// One worker's part of `published_mib` each, scaled, in whole blocks.
    fn each(&self, published_mib: u64, workers: u32, block_bytes: u64) -> u64 {
        let scaled = (published_mib << 20) / self.scale;
        let least = self.work_min_bytes / u64::from(workers);
        scaled.max(least).div_ceil(block_bytes).max(1) * block_bytes
    }

    fn note(&self) -> String {
        format!(
            "sizes are the published ones over {}, and {} MiB a case at least; each row begins on an \
             empty device",
            self.scale,
            self.work_min_bytes >> 20
        )
    }
}

const BESIDE: &str =
    "published figures are the kernel's zram on other machines: compare orders and shapes";
const CALLS: &str = "uzram is called in this process, the kernel's device by a system call a block, which costs it some \
                     microseconds; fwrite and fread there go to the page cache, and like blocks of 4K are not compared";

/// iozone with 1 to 10 threads: streams.
pub(super) fn streams(
    corpus: &str,
    algorithm: &str,
    pages: &Arc<Pages>,
    sizes: &Sizes,
) -> Result<Grid> {
    let mut grid = Grid::new(
        format!(
            "iozone, 1 to 10 threads, {algorithm}: -t T -r (8*T)K -I -+Z with {corpus}; not pinned"
        ),
        format!("{corpus}/{algorithm}/iozone"),
        algorithm,
        Shape::Scaling,
    );
    grid.notes = vec![sizes.note(), CALLS.to_owned(), BESIDE.to_owned()];
    let ten = "published T=10 ran with files of 0 MB; here they have the least size";
    grid.notes.push(ten.to_owned());
    let table = Table::streams();
    for &threads in &sizes.rows {
        let row_of = threads.to_string();
        let keys = [("threads", row_of.as_str())];
        let files_mib = table.find(&keys, ["file_mib"]);
        let record_bytes = u64::from(8 * threads) << 10;
        let setup = iozone::Setup {
            threads,
            record_bytes,
            file_bytes: sizes.each(files_mib[0][0] as u64, threads, record_bytes),
            is_direct: true,
            pages: Arc::clone(pages),
            groups: Vec::new(),
        };
        let row = grid.row(&format!("T={threads}"), setup.jobs()?);
        grid.add(row, STREAM_COLUMNS, &table, &keys, KIB_A_MIB);
    }
    Ok(grid)
}

/// iozone with 4 threads: slot locks.
pub(super) fn locks_iozone(
    corpus: &str,
    algorithm: &str,
    pages: &Arc<Pages>,
    sizes: &Sizes,
) -> Result<Grid> {
    const FILE_MIB: u64 = 200;
    let record_bytes = 16 << 10;
    let setup = iozone::Setup {
        threads: 4,
        record_bytes,
        file_bytes: sizes.each(FILE_MIB, 4, record_bytes),
        is_direct: true,
        pages: Arc::clone(pages),
        groups: Vec::new(),
    };
    let mut grid = Grid::new(
        format!("iozone, 4 threads, {algorithm}: -t 4 -r 16K -I -+Z with {corpus}; not pinned"),
        format!("{corpus}/{algorithm}/iozone-16K"),
        algorithm,
        Shape::Single,
    );
    grid.notes = vec![sizes.note(), CALLS.to_owned(), BESIDE.to_owned()];
    let row = grid.row("", setup.jobs()?);
    grid.add(row, LOCK_COLUMNS, &Table::locks_iozone(), &[], KIB_A_MIB);
    Ok(grid)
}

/// fio's four jobs that collide on a small device: slot locks.
pub(super) fn locks_fio(algorithm: &str, sizes: &Sizes) -> Result<Grid> {
    let loops = (COLLIDING_LOOPS / (sizes.scale * LOOPS_SCALE)).max(1);
    let words = format!(
        "bs=32k randseed=100 refill_buffers scramble_buffers=1 direct=1 numjobs=4 size={} loops={loops}",
        sizes.colliding_bytes
    );
    let tests: Result<Vec<Job>> = ["write", "read", "rw", "randrw"]
        .iter()
        .map(|test| fio::parse(&format!("rw={test} {words}")))
        .collect();
    let jobs = tests?;
    let mut grid = Grid::new(
        format!(
            "fio, 4 jobs on one device of 10 MB, {algorithm}: bs=32k numjobs=4 refill_buffers; not pinned"
        ),
        format!("fio-10M/{algorithm}"),
        algorithm,
        Shape::Single,
    );
    grid.notes = vec![
        CALLS.to_owned(),
        format!(
            "{loops} loops instead of {COLLIDING_LOOPS}; buffers are random, so pages are kept raw"
        ),
        BESIDE.to_owned(),
    ];
    let row = grid.row("", jobs);
    grid.add(row, LOCK_COLUMNS, &Table::locks_fio(), &[], KIB_A_MIB);
    Ok(grid)
}

/// fio with 1 to 10 jobs and a static pattern: the compression interface.
pub(super) fn api_fio(algorithm: &str, sizes: &Sizes) -> Result<Grid> {
    let mut grid = Grid::new(
        format!(
            "fio, 1 to 10 jobs, {algorithm}: bs=4k, a pattern of 5 bytes, each job its part; not pinned"
        ),
        format!("fio/{algorithm}"),
        algorithm,
        Shape::Scaling,
    );
    grid.notes = vec![sizes.note(), CALLS.to_owned(), BESIDE.to_owned()];
    for &workers in &sizes.rows {
        let each = sizes.each(DISK_MIB / u64::from(workers), workers, 4096);
        let words = format!("bs=4k size={each} numjobs={workers} buffer_pattern=\"uzram\"");
        let jobs: Result<Vec<Job>> = fio::TESTS
            .iter()
            .map(|test| {
                let job = fio::parse(&format!("rw={} {words}", test.0))?;
                Ok(Job {
                    sharing: Sharing::Apart,
                    ..job
                })
            })
            .collect();
        let jobs = jobs?;
        let row = grid.row(&format!("jobs={workers}"), jobs);
        let row_of = workers.to_string();
        let keys = [("jobs", row_of.as_str())];
        grid.add(row, INTERFACE_COLUMNS, &Table::interface(), &keys, 1.0);
    }
    Ok(grid)
}

/// Somebody's own jobs.
pub(super) fn own(title: &str, front: &str, algorithm: &str, jobs: Vec<Job>) -> Grid {
    let title = format!("{algorithm}: {title}; not pinned");
    let mut grid = Grid::new(title, front.to_owned(), algorithm, Shape::Own);
    let row = grid.row("", jobs);
    grid.rows.push(row);
    grid
}

/// A job that writes first, where the first job would read blocks that were never written.
fn fill(jobs: &[Job]) -> Option<Job> {
    let first = jobs.first()?;
    let (name, order, mix) = fio::TESTS[2];
    let fill = Job {
        name: name.to_owned(),
        order,
        mix,
        loops: 1,
        starts_fresh: true,
        ..first.clone()
    };
    (!first.starts_fresh).then_some(fill)
}

impl Grid {
    fn row(&self, label: &str, jobs: Vec<Job>) -> Row {
        let case = |job: &Job| match label {
            "" => format!("{}/{}", self.front, job.name),
            label => format!("{}/{}-{label}", self.front, job.name),
        };
        Row {
            label: label.to_owned(),
            fill: fill(&jobs),
            jobs: jobs.into_iter().map(|job| (case(&job), job)).collect(),
            all: None,
        }
    }

    /// Adds a row with what was published of its first tests: the lines of `table` with these keys, in
    /// their order, in units of which `a_mebibyte` are one.
    fn add<const C: usize>(
        &mut self,
        row: Row,
        columns: [Column; C],
        table: &Table,
        keys: &[(&str, &str)],
        a_mebibyte: f64,
    ) {
        let published = table.find(keys, columns.map(|column| column.0));
        for ((case, _), figures) in row.jobs.iter().zip(published) {
            let beside = columns.iter().zip(figures);
            self.published
                .extend(beside.map(|((_, column), figure)| Published {
                    case: case.clone(),
                    column,
                    mebibytes_per_second: figure / a_mebibyte,
                }));
        }
        self.rows.push(row);
    }
}

/// Whether a job's figures on a device compare with those of the engine in this process: streams of the
/// C library go to the page cache there, and with single pages the system call is as long as the work.
pub(super) fn compares(job: &Job) -> bool {
    job.calls != Calls::Buffered && job.block_bytes > PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Mix;

    fn pages() -> Arc<Pages> {
        Arc::new(Pages::random().unwrap())
    }

    #[test]
    fn the_tables_have_their_published_rows_and_columns() {
        let sizes = Sizes::new(16, false);
        let grid = streams("x", "lzo", &pages(), &sizes).unwrap();
        assert_eq!(grid.rows.len(), 10);
        assert_eq!(grid.published.len(), 10 * 13 * 3);
        let found = grid.published.iter().find(|one| {
            one.case == "x/lzo/iozone/rewrite-T=2" && one.column == "published-per-cpu"
        });
        assert_eq!(found.unwrap().mebibytes_per_second, 3_681_559.0 / 1024.0);
        let fourth = &grid.rows[3].jobs[0].1;
        assert_eq!((fourth.workers, fourth.block_bytes), (4, 32 << 10));
        assert!(fourth.size_bytes.abs_diff((460 << 20) / 16) < 32 << 10);
        // The least that is measured, where the published size came out as nothing.
        assert!(grid.rows[9].device_bytes() >= 64 << 20);
        let grid = locks_fio("lzo", &sizes).unwrap();
        assert_eq!(grid.published.len(), 4 * 5);
        assert_eq!(grid.device_bytes(), 10 << 20, "jobs collide");
        assert_eq!(grid.rows[0].jobs[0].1.loops, 9);
        let grid = api_fio("lzo", &sizes).unwrap();
        assert_eq!(grid.published.len(), 10 * 6 * 2);
        assert!(grid.device_bytes() <= 200 << 20, "each has its part");
        let grid = locks_iozone("x", "lzo", &pages(), &sizes).unwrap();
        assert_eq!(grid.published.len(), 11 * 5);
        assert!(grid.rows[0].fill.is_none(), "iozone makes its files");
    }

    #[test]
    fn what_reads_first_is_filled_first() {
        let job = fio::parse("rw=randread size=1m loops=7").unwrap();
        let grid = own("x", "x", "lzo", vec![job]);
        let fill = grid.rows[0].fill.as_ref().unwrap();
        assert!(fill.starts_fresh && fill.mix == Mix::Writes && fill.loops == 1);
    }
}
