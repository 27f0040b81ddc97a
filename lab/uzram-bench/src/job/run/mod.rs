//! A job's workers at work, and what they did in which time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::buffers::{Buffers, Source};
use super::target::{Channel, Counts, Target};
use super::{Clock, Job, Mix, Order, Sharing};
use crate::corpus::PAGE_BYTES;
use crate::cpu_time::CpuTime;
use crate::error::{Error, Result};
use crate::mapping::{Backing, Mapping};
use crate::stop::Stop;
use crate::suite::together::at_once;
use uzram_testkit::Rng;

/// Blocks of a worker that are read back and compared after a job, at most: all of them but of large jobs.
const CHECKED_MAX: u64 = 16_384;

/// The operations of a job while its clock ran.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Reads and writes until the clock stopped.
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    /// Bytes read and written until the clock stopped.
    pub(crate) bytes: u64,
    /// The time until then.
    pub(crate) elapsed: Duration,
    /// Pages written in all, also after the clock had stopped.
    pub(crate) written_pages: u64,
    /// CPU time of this process, and of a server that the target knows of, in all.
    pub(crate) cpu: CpuTime,
    pub(crate) worst_ns: u64,
    /// How the target's counters changed, in all.
    pub(crate) counts: Counts,
}

impl Outcome {
    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub(crate) fn operations_per_second(&self) -> f64 {
        (self.reads + self.writes) as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// So many of a thousand written pages; `None` where nobody counts, or none was written.
    pub(crate) fn of_1000_written_pages(&self, count: Option<u64>) -> Option<f64> {
        let count = count.filter(|_| self.written_pages > 0)?;
        Some(count as f64 * 1e3 / self.written_pages as f64)
    }

    /// Adds what a job did after this one.
    pub(crate) fn then(&mut self, next: &Outcome) {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one.unwrap_or(0) + other?);
        self.reads += next.reads;
        self.writes += next.writes;
        self.bytes += next.bytes;
        self.elapsed += next.elapsed;
        self.written_pages += next.written_pages;
        self.cpu = self.cpu.plus(next.cpu);
        self.worst_ns = self.worst_ns.max(next.worst_ns);
        self.counts = Counts {
            compressed_bytes: next.counts.compressed_bytes,
            slow_path_writes: sum(self.counts.slow_path_writes, next.counts.slow_path_writes),
            sleeps: sum(self.counts.sleeps, next.counts.sleeps),
        };
    }
}

/// Does `job` on `target`.
///
/// # Errors
/// The first error of a worker, also for content that reads back wrong; [`Error::Interrupted`].
pub(crate) fn run(job: &Job, target: &mut dyn Target, stop: &Stop) -> Result<Outcome> {
    if job.device_bytes() > target.size_bytes() {
        let (wanted, has) = (job.device_bytes(), target.size_bytes());
        let name = target.name();
        return Err(Error::Usage(format!(
            "{name}: {has} bytes; {} needs {wanted}: smaller sizes, or a larger device",
            job.name
        )));
    }
    if job.starts_fresh {
        target.make_fresh()?;
    }
    let target = &*target;
    let workers: Result<Vec<Worker<'_>>> = (0..job.workers)
        .map(|number| Worker::new(job, number, target, stop))
        .collect();
    let mut workers = workers?;
    let counts = target.counts()?;
    let cpu = CpuTime::now()?.plus(target.cpu_elsewhere());
    run_workers(&mut workers)?;
    let cpu_after = CpuTime::now()?.plus(target.cpu_elsewhere());
    let mut outcome = Outcome {
        cpu: cpu_after.since(cpu),
        counts: target.counts()?.since(counts),
        ..Outcome::default()
    };
    for worker in &workers {
        outcome.worst_ns = outcome.worst_ns.max(worker.worst_ns);
        outcome.written_pages += worker.writes_in_all * job.block_bytes.div_ceil(PAGE_BYTES as u64);
        outcome.reads += worker.reads;
        outcome.writes += worker.writes;
    }
    outcome.bytes = (outcome.reads + outcome.writes) * job.block_bytes;
    outcome.elapsed = elapsed(job, &workers);
    workers.iter_mut().try_for_each(Worker::check)?;
    Ok(outcome)
}

fn run_workers(workers: &mut [Worker<'_>]) -> Result<()> {
    let (started, done) = (&OnceLock::new(), &AtomicBool::new(false));
    let works = workers.iter_mut().map(|worker| {
        move || {
            // The first to run starts the clock of all.
            let started = *started.get_or_init(Instant::now);
            let ended = worker.work(started, done);
            // Who fails stops the others' clocks too; they go on to their ends.
            done.store(true, Ordering::Release);
            ended
        }
    });
    at_once(works).map(drop)
}

/// From the common start until the job's clock stopped. A worker's own time would say nothing where there are
/// more of them than CPUs: each runs alone for a while, at full speed.
fn elapsed(job: &Job, workers: &[Worker<'_>]) -> Duration {
    let times = workers.iter().map(|worker| worker.time);
    let time = match job.clock {
        Clock::FirstDone => times.min(),
        Clock::LastDone => times.max(),
    };
    time.unwrap_or_default()
}

/// One worker of a job.
struct Worker<'a> {
    job: &'a Job,
    number: u32,
    channel: Box<dyn Channel + 'a>,
    source: Source<'a>,
    /// Where reads go.
    sink: Mapping,
    stop: &'a Stop,
    /// Operations until the clock stopped, and that moment.
    reads: u64,
    writes: u64,
    time: Duration,
    worst_ns: u64,
    writes_in_all: u64,
}

impl<'a> Worker<'a> {
    fn new(
        job: &'a Job,
        number: u32,
        target: &'a dyn Target,
        stop: &'a Stop,
    ) -> Result<Worker<'a>> {
        let length = job.block_bytes as usize;
        let mapped = Mapping::new(length, Backing::Default);
        let mut sink = mapped.map_err(|error| Error::io("memory for reads", error))?;
        // Touched here, so that no read pays for it.
        sink.fill(1);
        Ok(Worker {
            job,
            number,
            channel: target.open(job)?,
            source: Source::new(&job.buffers, length, content_seed(job, number), number)?,
            sink,
            stop,
            reads: 0,
            writes: 0,
            time: Duration::ZERO,
            worst_ns: 0,
            writes_in_all: 0,
        })
    }

    /// All passes; counts until the clock stops, for good at the end or when another is done.
    fn work(&mut self, started: Instant, done: &AtomicBool) -> Result<()> {
        let mut is_timed = true;
        let mut cursors = [0; 2];
        let mut coin = Rng::new(self.job.seed ^ 0xc01 ^ u64::from(self.number) << 32);
        for pass in 0..self.job.loops {
            let seed = self.job.seed ^ u64::from(self.number) << 40 ^ u64::from(pass) << 8;
            let order = self.job.order.pass(self.job.blocks(), seed);
            for nth in 0..self.job.blocks() {
                self.stop.check()?;
                let is_write = self.writes_next(&mut coin);
                let block = match (self.job.mix, self.job.order) {
                    (Mix::Half, Order::Forward) => self.step(&mut cursors[usize::from(is_write)]),
                    _ => order.block(nth),
                };
                let latency = self.operate(block, is_write)?;
                self.writes_in_all += u64::from(is_write);
                self.worst_ns = self.worst_ns.max(latency.as_nanos() as u64);
                // What ends after the first was done does not count.
                if is_timed && self.job.clock == Clock::FirstDone && done.load(Ordering::Acquire) {
                    is_timed = false;
                    self.time = started.elapsed();
                }
                if is_timed {
                    self.reads += u64::from(!is_write);
                    self.writes += u64::from(is_write);
                }
            }
        }
        self.channel.finish()?;
        if is_timed {
            self.time = started.elapsed();
        }
        Ok(())
    }

    /// In sequential mixed jobs reads and writes each go on from where they were, as fio's do.
    fn step(&self, cursor: &mut u64) -> u64 {
        let block = *cursor;
        *cursor = (block + 1) % self.job.blocks();
        block
    }

    fn writes_next(&self, coin: &mut Rng) -> bool {
        match self.job.mix {
            Mix::Reads => false,
            Mix::Writes => true,
            Mix::Half => coin.next() >> 63 == 1,
            Mix::ByWorker => self.number % 2 == 1,
        }
    }

    #[inline]
    fn operate(&mut self, block: u64, is_write: bool) -> Result<Duration> {
        let offset = self.job.base(self.number) + block * self.job.block_bytes;
        if is_write {
            let data = self.source.next(offset);
            let begin = Instant::now();
            self.channel.write(offset, data)?;
            Ok(begin.elapsed())
        } else {
            let begin = Instant::now();
            self.channel.read(offset, &mut self.sink)?;
            Ok(begin.elapsed())
        }
    }

    /// Reads what was written back, where it is known what must be there: a worker's own blocks as it wrote
    /// them last, in shared ones whole pages of somebody's.
    fn check(&mut self) -> Result<()> {
        let Buffers::Pages(pages) = &self.job.buffers else {
            return Ok(());
        };
        let wrote_all = match self.job.mix {
            Mix::Writes => true,
            Mix::ByWorker => self.number % 2 == 1,
            Mix::Reads | Mix::Half => false,
        };
        let is_shared = self.job.sharing == Sharing::Together;
        // One worker looks for all.
        let looks = match is_shared {
            true => self.job.writes() && self.number == 0,
            false => wrote_all,
        };
        if !looks {
            return Ok(());
        }
        let seed = content_seed(self.job, self.number);
        let blocks = self.job.blocks();
        let step = blocks.div_ceil(CHECKED_MAX);
        for block in (0..blocks).step_by(step as usize) {
            self.stop.check()?;
            let offset = self.job.base(self.number) + block * self.job.block_bytes;
            self.channel.read(offset, &mut self.sink)?;
            let is_right = match is_shared {
                true => pages.are_known(&self.sink),
                false => *pages.block(offset, seed, self.sink.len()) == self.sink[..],
            };
            if !is_right {
                return Err(Error::Failed(format!(
                    "{}: wrong data at offset {offset}",
                    self.job.name
                )));
            }
        }
        Ok(())
    }
}

/// Of what a worker writes: no two write the same to the same place.
fn content_seed(job: &Job, worker: u32) -> u64 {
    match (&job.buffers, job.sharing) {
        (Buffers::Pages(_), Sharing::Together) => job.seed.wrapping_add(u64::from(worker) * 31),
        _ => job.seed,
    }
}

#[cfg(test)]
mod tests;
