//! `uzram capture`: real pages of a process or a file into a corpus.
//!
//! A corpus is a plain concatenation of 4 KiB pages. The process is not stopped, so a page that it
//! writes meanwhile may be half old and half new; as data to compress that does not matter.

mod maps;
mod plan;
mod progress;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::args::CaptureArgs;
use crate::failure::{Failure, Result};
use crate::output::{print, warn};
use crate::signals::Signals;
use plan::{PAGE_BYTES, RUN_PAGES, Segment};
use progress::Progress;
use uzram_server::size::human;

/// Most pages that one corpus takes: 64 GiB.
pub const PAGES_MAX: u64 = 1 << 24;
/// Bytes read of `/proc/N/maps`: far more mappings than a process may have by default.
const MAPS_BYTES_MAX: u64 = 64 << 20;
/// Address space looked through for touched pages; a larger mapping (a sanitizer's shadow) is left
/// out and said so.
const SCAN_BYTES_MAX: u64 = 1 << 38;

/// Runs the command.
pub fn run(args: &CaptureArgs) -> Result {
    if args.pages_max == 0 || args.pages_max > PAGES_MAX {
        let text = format!("--pages-max {}: must be 1 to {PAGES_MAX}", args.pages_max);
        return Err(Failure::Usage(text));
    }
    let source = match (args.pid, &args.file) {
        (Some(pid), _) => Source::of_process(pid)?,
        (None, Some(path)) => Source::of_file(path)?,
        (None, None) => return Err(Failure::Usage("name a source: --pid N or --file P".into())),
    };
    let runs = plan::plan(&source.segments, args.pages_max);
    if runs.is_empty() {
        return Err(Failure::Failed(format!(
            "{}: no pages to take{}",
            source.name, source.why_empty
        )));
    }
    // From here on there is something to clean up.
    let signals = Signals::catch(false)?;
    let mut corpus = Corpus::create(&args.out)?;
    if args.pid.is_some() {
        warn(&format!(
            "warning: {} will hold memory of {}: passwords, keys, whatever it had; mind who reads it",
            args.out.display(),
            source.name
        ));
    }
    let counts = copy(&source, &runs, &mut corpus, &|| signals.is_ending())?;
    if counts.taken == 0 {
        let text = format!(
            "{}: none of its pages could be read; nothing was kept",
            source.name
        );
        return Err(Failure::Failed(text));
    }
    corpus.keep();
    report(args, &source, &counts)
}

#[derive(Default)]
struct Counts {
    taken: u64,
    zero: u64,
    unreadable: u64,
}

fn copy(
    source: &Source,
    runs: &[Segment],
    corpus: &mut Corpus,
    is_ending: &dyn Fn() -> bool,
) -> Result<Counts> {
    let total: u64 = runs.iter().map(|run| run.bytes / PAGE_BYTES).sum();
    let mut progress = Progress::new(total);
    let mut counts = Counts::default();
    let mut buffer = vec![0; (RUN_PAGES * PAGE_BYTES) as usize];
    for run in runs {
        if is_ending() {
            let text = format!("interrupted after {} pages; nothing was kept", counts.taken);
            return Err(Failure::Failed(text));
        }
        let pages = &mut buffer[..run.bytes as usize];
        let count = run.bytes / PAGE_BYTES;
        if source.read(run.start, pages, counts.taken)? {
            corpus.write(pages)?;
            let zero = pages
                .chunks(PAGE_BYTES as usize)
                .filter(|page| page.iter().all(|&b| b == 0));
            counts.zero += zero.count() as u64;
            counts.taken += count;
        } else {
            counts.unreadable += count;
        }
        progress.advance(count);
    }
    Ok(counts)
}

fn report(args: &CaptureArgs, source: &Source, counts: &Counts) -> Result {
    let out = args.out.display();
    let available: u64 = source.segments.iter().map(|s| s.bytes / PAGE_BYTES).sum();
    let mut text = format!(
        "{out}: {} pages ({}) of the {available} of {}, in runs of {RUN_PAGES}; {} of them zero\n",
        counts.taken,
        human(counts.taken * PAGE_BYTES),
        source.name,
        counts.zero,
    );
    if counts.unreadable > 0 {
        text.push_str(&format!(
            "{} pages could not be read and were left out\n",
            counts.unreadable
        ));
    }
    text.push_str(&format!("Next: uzram bench store --corpus {out}\n"));
    print(&text)
}

/// Where pages come from.
struct Source {
    name: String,
    file: File,
    is_process: bool,
    segments: Vec<Segment>,
    why_empty: &'static str,
}

impl Source {
    fn of_process(pid: u32) -> Result<Source> {
        let name = format!("process {pid}");
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let refused =
            |e: io::Error| Failure::Failed(format!("{name}: {}", process_error(&directory, &e)));
        let mut maps = Vec::new();
        let file = File::open(directory.join("maps")).map_err(refused)?;
        file.take(MAPS_BYTES_MAX)
            .read_to_end(&mut maps)
            .map_err(refused)?;
        let file = File::open(directory.join("mem")).map_err(refused)?;
        let segments = touched(
            &name,
            &directory,
            maps::anonymous(&String::from_utf8_lossy(&maps)),
        );
        let why_empty = "; it has no memory of its own, as a kernel thread";
        Ok(Source {
            name,
            file,
            is_process: true,
            segments,
            why_empty,
        })
    }

    fn of_file(path: &Path) -> Result<Source> {
        let name = path.display().to_string();
        let refused = |e: io::Error| Failure::Failed(format!("{name}: {e}"));
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
            return Err(Failure::Failed(format!(
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
            why_empty: "; it is empty",
        })
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
                    return Err(Failure::Failed(format!(
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
                Err(e) => return Err(Failure::Failed(format!("{}: {e}", self.name))),
            }
        }
        Ok(true)
    }

    fn ended(&self, taken: u64) -> Failure {
        Failure::Failed(format!(
            "{}: ended after {taken} pages; nothing was kept",
            self.name
        ))
    }
}

const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// What of `mappings` the process has touched, or all of it where the system does not say.
fn touched(name: &str, directory: &Path, mappings: Vec<Segment>) -> Vec<Segment> {
    let Ok(pagemap) = File::open(directory.join("pagemap")) else {
        warn(&format!(
            "note: {name}: no page map; pages that it never touched count as zero pages"
        ));
        return mappings;
    };
    let page_bytes = rustix::param::page_size() as u64;
    let mut scanned = 0;
    let mut left_out = 0;
    let mut parts = Vec::new();
    for mapping in mappings {
        if mapping.bytes > SCAN_BYTES_MAX - scanned {
            left_out += mapping.bytes;
            continue;
        }
        scanned += mapping.bytes;
        // A failure means that the process is ending, which the first read will say.
        parts.extend(maps::touched(&pagemap, mapping, page_bytes).unwrap_or_default());
    }
    if left_out > 0 {
        let (left_out, most) = (human(left_out), human(SCAN_BYTES_MAX));
        warn(&format!(
            "note: {name}: {left_out} of mappings left out, as over {most} is too much to look through"
        ));
    }
    parts
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

/// Whether the process has ended and only waits to be waited for. Of such a one even its own user
/// is refused the memory, so the refusal alone would mislead.
fn is_zombie(directory: &Path) -> bool {
    let stat = std::fs::read_to_string(directory.join("stat")).unwrap_or_default();
    // The name before it may hold anything, parentheses too.
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('Z' | 'X'))
}

/// The file being written; removed again unless it is kept.
struct Corpus<'a> {
    path: &'a Path,
    file: File,
    is_kept: bool,
}

impl<'a> Corpus<'a> {
    fn create(path: &'a Path) -> Result<Corpus<'a>> {
        // create_new: never through a link that somebody laid, never into a file of other modes.
        let created = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        let file = created.map_err(|e| {
            let remedy = match e.kind() {
                io::ErrorKind::AlreadyExists => "; remove it or choose another --out",
                io::ErrorKind::NotFound => "; create its directory",
                _ => "",
            };
            Failure::Failed(format!("{}: {e}{remedy}", path.display()))
        })?;
        Ok(Corpus {
            path,
            file,
            is_kept: false,
        })
    }

    fn write(&mut self, pages: &[u8]) -> Result {
        self.file
            .write_all(pages)
            .map_err(|e| Failure::Failed(format!("{}: {e}; nothing was kept", self.path.display())))
    }

    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Corpus<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_that_ends_meanwhile_is_an_error_and_leaves_nothing() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let runs = loop {
            // Until the child has become sleep and has a heap.
            let source = Source::of_process(child.id()).unwrap();
            let runs = plan::plan(&source.segments, 1000);
            if runs.len() > 1 {
                break (source, runs);
            }
        };
        let (source, runs) = runs;
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("out");
        let mut corpus = Corpus::create(&path).unwrap();
        copy(&source, &runs[..1], &mut corpus, &|| false).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let error = copy(&source, &runs, &mut corpus, &|| false)
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("ended after 0 pages; nothing was kept"),
            "{error}"
        );
        assert!(path.exists());
        drop(corpus);
        assert!(!path.exists());
    }
}
