//! The program with more pages than memory: `uzram-bench` itself, started again for each turn.
//!
//! All that it needs besides its pages is in memory before it joins its cgroup, so that the cgroup's limit is the pages'
//! alone. A page begins with its number, which each touch compares.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use uzram::Store;
use uzram_pager::{CompressedMemory, FaultHandler};
use uzram_testkit::Rng;

use super::patterns::Pattern;
use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::job::fio_program::output_unless_stopped;
use crate::machine;
use crate::mapping::{Backing, Mapping};
use crate::stop::Stop;
use crate::suite::together;

/// Where a page has its number, and where touches are counted.
const NUMBER: std::ops::Range<usize> = 0..8;
const COUNT: std::ops::Range<usize> = 8..16;
/// The smallest budget that compressed memory takes.
const BUDGET_BYTES_MIN: usize = 256 << 10;
/// A scan with gaps touches one page of so many.
pub(super) const STRIDE: usize = 4;
/// Of a pattern's touches so many come before those that are measured: one of these.
const WARM_UP_PART: usize = 5;
/// Where pages do not leave, the program ends by itself.
const LIMIT: Duration = Duration::from_secs(60);
const LOOK_AFTER: Duration = Duration::from_micros(200);
/// Pages that may stay where all were to leave, in parts of a hundred.
const STAY_PERCENT: usize = 5;
/// Of swapped pages so much may be in memory, too.
const SWAP_CACHE_BYTES_MAX: u64 = 64 << 10;

/// The memory of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Memory {
    Compressed,
    /// The same, with faults answered in the thread that touches.
    CompressedBySigbus,
    /// Swapped by the kernel to whatever is swapped to.
    Swapped,
    Small,
    Huge,
}

/// The part of the suite that it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Work {
    Faults,
    Patterns { touches: usize },
    Fits { touches: usize },
}

/// The program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) memory: Memory,
    pub(super) algorithm: String,
    pub(super) work: Work,
    pub(super) pages: usize,
    /// Pages of compressed memory that stay as they are. Swapped memory has the cgroup's limit.
    pub(super) budget_pages: usize,
    pub(super) threads: usize,
    /// The file that makes a process a cgroup's.
    pub(super) group: Option<PathBuf>,
}

/// Figures of [`Work::Faults`], in microseconds.
pub(super) const FAULTS: usize = 7;
/// Figures of [`Work::Patterns`], in microseconds: mean and p99 of each pattern.
pub(super) const PATTERNS: usize = 2 * Pattern::ALL.len();
/// Figures of [`Work::Fits`], in nanoseconds.
pub(super) const FITS: usize = 2;

/// Runs the program with the pages of `source` over and over: its figures, or none if it was killed, as the kernel does
/// where it finds no page of a cgroup to swap.
///
/// # Errors
/// Its message, or how it ended; [`Error::Interrupted`].
pub(super) fn run<const N: usize>(
    plan: &Plan,
    source: &[u8],
    stop: &Stop,
) -> Result<Option<[f64; N]>> {
    let failed = |error: io::Error| Error::io("program with more pages than memory", error);
    let own = std::env::current_exe().map_err(failed)?;
    let text = serde_json::to_string(plan).expect("a plan is made of names and numbers");
    let mut command = Command::new(own);
    let command = command.args(["pager", "--program", &text]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // One that ended says itself why.
        let _ = input.write_all(source);
    }
    let output = output_unless_stopped(child, stop);
    stop.check()?;
    let output = output.map_err(failed)?;
    if output.status.signal() == Some(Signal::KILL.as_raw()) {
        return Ok(None);
    }
    let figures = serde_json::from_slice::<Vec<f64>>(&output.stdout).ok();
    let figures = figures.and_then(|figures| figures.try_into().ok());
    let figures = figures.filter(|_| output.status.success());
    figures.map(Some).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().next_back().unwrap_or_default();
        let status = output.status;
        Error::Failed(format!(
            "program with more pages than memory: {status}: {last}"
        ))
    })
}

/// Is the program, by the plan in `text` and with the pages of standard input.
///
/// # Errors
/// The step that failed, or that a page is not what it was.
pub(super) fn child(text: &str) -> Result<()> {
    let plan = serde_json::from_str::<Plan>(text);
    let plan = plan.map_err(|error| Error::Usage(format!("program {text:?}: {error}")))?;
    let mut source = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut source);
    read.map_err(|error| Error::io("standard input", error))?;
    let figures = plan.figures(&source)?;
    println!("{}", serde_json::json!(figures));
    Ok(())
}

impl Plan {
    fn figures(&self, source: &[u8]) -> Result<Vec<f64>> {
        if source.is_empty() || !source.len().is_multiple_of(PAGE_BYTES) || self.pages == 0 {
            let bytes = source.len();
            return Err(Error::Usage(format!("program: {bytes} bytes of pages")));
        }
        let mut range = Range::new(self)?;
        match self.work {
            Work::Faults => self.faults(&mut range, source),
            Work::Patterns { touches } => self.patterns(&mut range, source, touches),
            Work::Fits { touches } => self.fits(&mut range, source, touches),
        }
    }

    /// Nothing but single touches of pages that are elsewhere, while there is memory for all.
    fn faults(&self, range: &mut Range, source: &[u8]) -> Result<Vec<f64>> {
        let mut places: Vec<u32> = (0..self.pages as u32).collect();
        let scan = places.clone();
        let strided: Vec<u32> = scan.iter().copied().step_by(STRIDE).collect();
        Rng::new(7).shuffle(&mut places);
        let mut times = vec![u32::MAX; self.pages];
        self.join()?;
        fill(range.bytes(), source);
        let page_out = self.push_out(range)?.as_secs_f64() * 1e6 / self.pages as f64;
        self.timed(range, &places, &mut times)?;
        let mut figures = summary(&mut times).to_vec();
        for places in [&scan, &strided] {
            self.push_out(range)?;
            let times = &mut times[..places.len()];
            let took = self.timed(range, places, times)?;
            figures.push(took.as_secs_f64() * 1e6 / places.len() as f64);
        }
        figures.push(page_out);
        Ok(figures)
    }

    /// Makes all pages leave: how long it took.
    fn push_out(&self, range: &mut Range) -> Result<Duration> {
        let took = range.push_out()?;
        self.group.as_deref().map_or(Ok(()), drop_swap_cache)?;
        Ok(took)
    }

    /// Reads a page of each place, each timed, on a CPU of its own: how long it took in all.
    fn timed(&self, range: &mut Range, places: &[u32], times: &mut [u32]) -> Result<Duration> {
        let (cpus, bytes) = (machine::allowed_cpus(), range.bytes());
        let body = || {
            machine::pin_to(cpus[0])?;
            let began = Instant::now();
            walk(bytes, places, times, |_| false)?;
            Ok(began.elapsed())
        };
        let took = together::at_once([body].into_iter())?;
        Ok(took[0])
    }

    /// The patterns one after another, by each thread on a part of its own.
    fn patterns(&self, range: &mut Range, source: &[u8], touches: usize) -> Result<Vec<f64>> {
        let part = self.pages / self.threads;
        let each = touches / self.threads;
        let lists = Pattern::ALL.map(|pattern| -> Vec<Vec<u32>> {
            let seeds = 0..self.threads as u64;
            seeds
                .map(|seed| pattern.touches(part, each + each / WARM_UP_PART, seed))
                .collect()
        });
        let mut times = vec![u32::MAX; self.threads * each];
        self.join()?;
        fill(range.bytes(), source);
        let cpus = machine::allowed_cpus();
        let mut figures = Vec::new();
        for lists in &lists {
            let parts = range.bytes().chunks_exact_mut(part * PAGE_BYTES);
            let works = parts.zip(lists).zip(times.chunks_exact_mut(each));
            let works: Vec<_> = works.collect();
            let bodies = works.into_iter().enumerate();
            let bodies = bodies.map(|(at, ((bytes, list), times))| {
                let cpu = cpus[at % cpus.len()];
                move || {
                    machine::pin_to(cpu)?;
                    let (before, measured) = list.split_at(list.len() - each);
                    walk_untimed(bytes, before)?;
                    walk(bytes, measured, times, |touch| touch % 2 == 1)
                }
            });
            let bodies: Vec<_> = bodies.collect();
            together::at_once(bodies.into_iter())?;
            let [mean, _, p99, _] = summary(&mut times);
            figures.extend([mean, p99]);
        }
        Ok(figures)
    }

    /// First touches, and touches at random where everything fits.
    fn fits(&self, range: &mut Range, source: &[u8], touches: usize) -> Result<Vec<f64>> {
        let places = Pattern::Uniform.touches(self.pages, touches, 5);
        let bytes = range.bytes();
        let cpus = machine::allowed_cpus();
        let body = || {
            machine::pin_to(cpus[0])?;
            let began = Instant::now();
            fill(bytes, source);
            let filled = began.elapsed();
            walk_untimed(bytes, &places)?;
            let began = Instant::now();
            walk_untimed(bytes, &places)?;
            Ok([filled, began.elapsed()])
        };
        let took = together::at_once([body].into_iter())?;
        let [filled, touched] = took[0].map(|took| took.as_secs_f64() * 1e9);
        Ok(vec![touched / touches as f64, filled / self.pages as f64])
    }

    fn join(&self) -> Result<()> {
        match &self.group {
            Some(group) => join(group).map_err(|error| Error::io(group.display(), error)),
            None => Ok(()),
        }
    }
}

/// Makes this process one of the cgroup's. Only the kernel makes such a file.
fn join(processes: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(processes)?;
    file.write_all(std::process::id().to_string().as_bytes())
}

/// The pages.
enum Range {
    Compressed {
        memory: Box<CompressedMemory>,
        budget_bytes: usize,
    },
    Plain(Mapping),
}

impl Range {
    fn new(plan: &Plan) -> Result<Range> {
        let bytes = plan.pages * PAGE_BYTES;
        let handler = match plan.memory {
            Memory::CompressedBySigbus => FaultHandler::FaultingThread,
            _ => FaultHandler::OwnThread,
        };
        let backing = match plan.memory {
            Memory::Compressed | Memory::CompressedBySigbus => {
                let budget_bytes = plan.budget_pages * PAGE_BYTES;
                let store = Store::builder().algorithm(plan.algorithm.as_str());
                let builder = CompressedMemory::builder(bytes, budget_bytes).store(store);
                let memory = builder.fault_handler(handler).build();
                let memory = Box::new(memory.map_err(|error| Error::Failed(error.to_string()))?);
                return Ok(Range::Compressed {
                    memory,
                    budget_bytes,
                });
            }
            Memory::Swapped | Memory::Small => Backing::Small,
            Memory::Huge => Backing::Huge,
        };
        let mapping = Mapping::new(bytes, backing);
        let mapping = mapping.map_err(|error| Error::io("memory", error))?;
        Ok(Range::Plain(mapping))
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Range::Compressed { memory, .. } => memory,
            Range::Plain(mapping) => mapping,
        }
    }

    /// Makes all pages leave: how long it took.
    fn push_out(&mut self) -> Result<Duration> {
        let began = Instant::now();
        match self {
            Range::Compressed {
                memory,
                budget_bytes,
            } => {
                let set = |bytes| memory.set_budget(bytes);
                let failed = |error: uzram::Error| Error::Failed(error.to_string());
                set(BUDGET_BYTES_MIN).map_err(failed)?;
                while memory.statistics().resident_bytes > BUDGET_BYTES_MIN as u64 {
                    in_time(began)?;
                    std::thread::sleep(LOOK_AFTER);
                }
                let took = began.elapsed();
                set(*budget_bytes).map_err(failed)?;
                Ok(took)
            }
            Range::Plain(mapping) => {
                // Those stay that a CPU has just added to its list, and where many are written at once.
                let enough = mapping.len() / 100 * (100 - STAY_PERCENT);
                while swapped_bytes() < enough {
                    in_time(began)?;
                    let paged_out = mapping.page_out();
                    paged_out.map_err(|error| Error::io("MADV_PAGEOUT", error))?;
                }
                Ok(began.elapsed())
            }
        }
    }
}

/// Waits until swap that is written behind the program's back has all pages, and memory has none of them: a touch would
/// find it there.
fn drop_swap_cache(processes: &Path) -> Result<()> {
    let (began, group) = (Instant::now(), processes.parent().unwrap_or(processes));
    let stat = group.join("memory.stat");
    loop {
        // Version 1 has the one file, version 2 the other. It fails where some pages do not leave.
        let _ = fs::write(group.join("memory.force_empty"), "0");
        let _ = fs::write(group.join("memory.reclaim"), usize::MAX.to_string());
        let text = fs::read_to_string(&stat).map_err(|error| Error::io(stat.display(), error))?;
        let cached = text
            .lines()
            .find_map(|line| line.strip_prefix("swapcached "));
        if cached.and_then(|bytes| bytes.parse().ok()).unwrap_or(0) < SWAP_CACHE_BYTES_MAX {
            return Ok(());
        }
        in_time(began)?;
        std::thread::sleep(LOOK_AFTER);
    }
}

fn in_time(began: Instant) -> Result<()> {
    match began.elapsed() > LIMIT {
        true => Err(Error::Failed(format!("not done in {} s", LIMIT.as_secs()))),
        false => Ok(()),
    }
}

/// Memory of this process that is swapped, in bytes.
fn swapped_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSwap:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.unwrap_or(0) << 10
}

/// Fills pages with those of `source`, their numbers in front.
fn fill(bytes: &mut [u8], source: &[u8]) {
    let pages = bytes.chunks_exact_mut(PAGE_BYTES).enumerate();
    for ((number, page), from) in pages.zip(source.chunks_exact(PAGE_BYTES).cycle()) {
        page.copy_from_slice(from);
        page[NUMBER].copy_from_slice(&(number as u64).to_le_bytes());
    }
}

/// Touches pages and notes how long each took, in nanoseconds.
fn walk(
    bytes: &mut [u8],
    places: &[u32],
    times: &mut [u32],
    is_write: impl Fn(usize) -> bool,
) -> Result<()> {
    let first = number(bytes, 0);
    let mut before = Instant::now();
    for (at, (place, time)) in places.iter().zip(times).enumerate() {
        touch(bytes, *place as usize, first, is_write(at))?;
        let now = Instant::now();
        *time = (now - before).as_nanos().min(u128::from(u32::MAX)) as u32;
        before = now;
    }
    Ok(())
}

/// The same without a clock; each second touch writes.
fn walk_untimed(bytes: &mut [u8], places: &[u32]) -> Result<()> {
    let first = number(bytes, 0);
    for (at, place) in places.iter().enumerate() {
        touch(bytes, *place as usize, first, at % 2 == 1)?;
    }
    Ok(())
}

fn number(bytes: &[u8], page: usize) -> u64 {
    let at = page * PAGE_BYTES;
    u64::from_le_bytes(bytes[at..][NUMBER].try_into().expect("eight bytes"))
}

/// Looks whether a page is the one that it was, and counts the touch in it. `first` is the number of the first page.
#[inline]
fn touch(bytes: &mut [u8], page: usize, first: u64, is_write: bool) -> Result<()> {
    let found = number(bytes, page);
    if found != first + page as u64 {
        return Err(Error::Failed(format!("page {page} came back as {found}")));
    }
    if is_write {
        let count = &mut bytes[page * PAGE_BYTES..][COUNT];
        let more = u64::from_le_bytes((&*count).try_into().expect("eight bytes")) + 1;
        count.copy_from_slice(&more.to_le_bytes());
    }
    Ok(())
}

/// Mean, p50, p99 and the greatest of some times, in microseconds.
fn summary(times: &mut [u32]) -> [f64; 4] {
    times.sort_unstable();
    let mean = times.iter().map(|time| f64::from(*time)).sum::<f64>() / times.len() as f64;
    let at = |part: f64| f64::from(times[((times.len() - 1) as f64 * part) as usize]);
    [mean, at(0.5), at(0.99), at(1.0)].map(|ns| ns / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(work: Work) -> Plan {
        Plan {
            memory: Memory::Small,
            algorithm: "lz4".into(),
            work,
            pages: 100,
            budget_pages: 100,
            threads: 2,
            group: None,
        }
    }

    #[test]
    fn plain_memory_has_figures_of_all_but_faults() {
        let source = [5; 3 * PAGE_BYTES];
        let patterns = plan(Work::Patterns { touches: 200 });
        let figures = patterns.figures(&source).unwrap();
        assert_eq!(figures.len(), PATTERNS);
        assert!(figures.iter().all(|figure| *figure > 0.0), "{figures:?}");
        let fits = plan(Work::Fits { touches: 200 });
        assert_eq!(fits.figures(&source).unwrap().len(), FITS);
    }

    #[test]
    fn a_page_that_changed_is_noticed() {
        let mut bytes = vec![0; 4 * PAGE_BYTES];
        fill(&mut bytes, &[1; PAGE_BYTES]);
        walk_untimed(&mut bytes, &[3, 1, 2]).unwrap();
        assert_eq!(
            bytes[PAGE_BYTES..][COUNT],
            0x0101_0101_0101_0102_u64.to_le_bytes()
        );
        bytes[2 * PAGE_BYTES] = 9;
        let said = walk_untimed(&mut bytes, &[3, 2]).unwrap_err().to_string();
        assert_eq!(said, "page 2 came back as 9");
    }

    #[test]
    fn times_are_summed_up() {
        let mut times: Vec<u32> = (1..=100).rev().map(|us| us * 1000).collect();
        assert_eq!(summary(&mut times), [50.5, 50.0, 99.0, 100.0]);
    }

    #[test]
    fn a_program_that_cannot_be_is_refused() {
        assert_eq!(child("{}").unwrap_err().exit_status(), 2);
        let nowhere = Plan {
            group: Some("/nowhere/cgroup.procs".into()),
            ..plan(Work::Faults)
        };
        let error = nowhere.figures(&[5; PAGE_BYTES]).unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/cgroup.procs: "));
        assert!(nowhere.figures(&[5; 7]).is_err());
    }
}
