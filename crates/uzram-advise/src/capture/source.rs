//! The sources of pages: the memory of a process that goes on running, or a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::maps;
use super::plan::{self, PAGE_BYTES, RUN_PAGES, Segment};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Bytes read of `/proc/N/maps`: far more mappings than a process may have by default.
const MAPS_BYTES_MAX: u64 = 64 << 20;
/// Address space looked through for touched pages; a larger mapping (a sanitizer's shadow) is left
/// out and said so.
pub const SCAN_BYTES_MAX: u64 = 1 << 38;

/// The result of copying, in pages.
#[derive(Default)]
pub struct Counts {
    /// Pages that were copied.
    pub taken: u64,
    /// Pages of zeroes among them.
    pub zero: u64,
    /// Pages that the system could not read.
    pub unreadable: u64,
}

/// The gaps in the choice of a process's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// The system does not tell which pages the process has touched: those that it never touched
    /// count as pages of zeroes.
    pub has_no_page_map: bool,
    /// Mappings that are beyond [`SCAN_BYTES_MAX`] together and were left out, in bytes.
    pub left_out_bytes: u64,
}

/// A source of pages.
pub struct Source {
    /// For people: `process 1234`, or the file's path.
    pub name: String,
    file: File,
    is_process: bool,
    segments: Vec<Segment>,
    /// The reasons why the choice of pages is not exact.
    pub doubts: Doubts,
    why_empty: &'static str,
}

impl Source {
    /// Memory of its own that the process `pid` has touched.
    ///
    /// # Errors
    /// [`Error::Failed`] if there is no such process, or its memory may not be read.
    pub fn of_process(pid: u32) -> Result<Source> {
        let name = format!("process {pid}");
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let refused =
            |e: io::Error| Error::Failed(format!("{name}: {}", process_error(&directory, &e)));
        let mut maps = Vec::new();
        let file = File::open(directory.join("maps")).map_err(refused)?;
        file.take(MAPS_BYTES_MAX)
            .read_to_end(&mut maps)
            .map_err(refused)?;
        let file = File::open(directory.join("mem")).map_err(refused)?;
        let mappings = maps::anonymous(&String::from_utf8_lossy(&maps));
        let (segments, doubts) = touched(&directory, mappings);
        let why_empty = "; it has no memory of its own, as a kernel thread";
        Ok(Source {
            name,
            file,
            is_process: true,
            segments,
            doubts,
            why_empty,
        })
    }

    /// The content of a regular file.
    ///
    /// # Errors
    /// [`Error::Failed`] if there is none.
    pub fn of_file(path: &Path) -> Result<Source> {
        let name = path.display().to_string();
        let refused = |e: io::Error| Error::Failed(format!("{name}: {e}"));
        // Without O_NONBLOCK a FIFO would hold us up before we can see that it is one.
        let mut options = OpenOptions::new();
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = options
            .read(true)
            .custom_flags(nonblocking)
            .open(path)
            .map_err(refused)?;
        let found = file.metadata().map_err(refused)?;
        if !found.is_file() {
            return Err(Error::Failed(format!(
                "{name}: not a regular file; copy it into one first"
            )));
        }
        // The page cache pads the last page with zeroes, and so do we.
        let bytes = found.len().div_ceil(PAGE_BYTES) * PAGE_BYTES;
        let segments = vec![Segment { start: 0, bytes }];
        Ok(Source {
            name,
            file,
            is_process: false,
            segments,
            doubts: Doubts::default(),
            why_empty: "; it is empty",
        })
    }

    /// Pages of the source.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.segments.iter().map(|s| s.bytes / PAGE_BYTES).sum()
    }

    /// At most `pages_max` of them, in runs.
    ///
    /// # Errors
    /// [`Error::Failed`] if there are none.
    pub fn plan(&self, pages_max: u64) -> Result<Vec<Segment>> {
        let runs = plan::plan(&self.segments, pages_max);
        match runs.is_empty() {
            true => Err(Error::Failed(format!(
                "{}: no pages to take{}",
                self.name, self.why_empty
            ))),
            false => Ok(runs),
        }
    }

    /// Hands the pages of each run to `take`.
    ///
    /// # Errors
    /// [`Error::Failed`] if none could be read or the source ended; the errors of `take`.
    pub fn copy(
        &self,
        runs: &[Segment],
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<Counts> {
        let total: u64 = runs.iter().map(|run| run.bytes / PAGE_BYTES).sum();
        let what = format!("{total} pages");
        let mut progress = Progress::new(1);
        let mut counts = Counts::default();
        let mut buffer = vec![0; (RUN_PAGES * PAGE_BYTES) as usize];
        for run in runs {
            let pages = &mut buffer[..run.bytes as usize];
            let count = run.bytes / PAGE_BYTES;
            if self.read(run.start, pages, counts.taken)? {
                take(pages)?;
                let zero = pages
                    .chunks(PAGE_BYTES as usize)
                    .filter(|page| page.iter().all(|&b| b == 0));
                counts.zero += zero.count() as u64;
                counts.taken += count;
            } else {
                counts.unreadable += count;
            }
            let done = counts.taken + counts.unreadable;
            progress.at(&what, done as f64 / total as f64);
        }
        match counts.taken {
            0 => Err(Error::Failed(format!(
                "{}: none of its pages could be read; nothing was kept",
                self.name
            ))),
            _ => Ok(counts),
        }
    }

    /// Fills `pages` from `start`; false if the system cannot read them.
    fn read(&self, start: u64, pages: &mut [u8], taken: u64) -> Result<bool> {
        let mut filled = 0;
        while filled < pages.len() {
            match self
                .file
                .read_at(&mut pages[filled..], start + filled as u64)
            {
                Ok(0) if self.is_process => return Err(self.ended(taken)),
                Ok(0) if filled == 0 => {
                    return Err(Error::Failed(format!(
                        "{}: shrank while it was read",
                        self.name
                    )));
                }
                Ok(0) => {
                    pages[filled..].fill(0);
                    break;
                }
                Ok(count) => filled += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if self.is_process && e.raw_os_error() == Some(ESRCH) => {
                    return Err(self.ended(taken));
                }
                // A page that went away or cannot be had, as with memory of a device.
                Err(_) if self.is_process => return Ok(false),
                Err(e) => return Err(Error::Failed(format!("{}: {e}", self.name))),
            }
        }
        Ok(true)
    }

    fn ended(&self, taken: u64) -> Error {
        Error::Failed(format!(
            "{}: ended after {taken} pages; nothing was kept",
            self.name
        ))
    }
}

const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// The part of `mappings` that the process has touched, or all of it if the system does not tell.
fn touched(directory: &Path, mappings: Vec<Segment>) -> (Vec<Segment>, Doubts) {
    let mut doubts = Doubts::default();
    let Ok(pagemap) = File::open(directory.join("pagemap")) else {
        doubts.has_no_page_map = true;
        return (mappings, doubts);
    };
    let page_bytes = uzram::system_page::size_bytes() as u64;
    let mut scanned = 0;
    let mut parts = Vec::new();
    for mapping in mappings {
        if mapping.bytes > SCAN_BYTES_MAX - scanned {
            doubts.left_out_bytes += mapping.bytes;
            continue;
        }
        scanned += mapping.bytes;
        // A failure means that the process is ending, which the first read will say.
        parts.extend(maps::touched(&pagemap, mapping, page_bytes).unwrap_or_default());
    }
    (parts, doubts)
}

fn process_error(directory: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound if !Path::new("/proc/self").exists() => {
            "no /proc here; mount it: mount -t proc proc /proc".into()
        }
        io::ErrorKind::NotFound => "no such process".into(),
        _ if error.raw_os_error() == Some(ESRCH) || is_zombie(directory) => {
            "no memory of its own; it has ended, or is a kernel thread".into()
        }
        io::ErrorKind::PermissionDenied => {
            "permission refused; run as its user or as root (and see kernel.yama.ptrace_scope)"
                .into()
        }
        _ => format!("{}: {error}", directory.display()),
    }
}

/// Whether the process has ended and only waits to be reaped. Even its own user may not read its
/// memory then, so the refusal alone would mislead.
fn is_zombie(directory: &Path) -> bool {
    let stat = std::fs::read_to_string(directory.join("stat")).unwrap_or_default();
    // The name before it may hold anything, parentheses too.
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('Z' | 'X'))
}
