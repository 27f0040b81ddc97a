//! Threads at work on a disk, test after test, and the check of what they leave there.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::content::{Content, Known};
use super::disk::Disk;
use super::patterns::{Action, Test};
use super::usage::Usage;
use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::mapping::{Backing, Mapping};
use crate::rng::Rng;
use crate::stop::Stop;

/// How many threads do what to which part of the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) threads: usize,
    pub(crate) record_bytes: usize,
    /// Records of a file.
    pub(crate) records: u32,
    /// Times that a test goes over its file.
    pub(crate) loops: u32,
    /// The same of tests that only read.
    pub(crate) read_loops: u32,
    /// Whether all threads use the same file, or each has one of its own.
    pub(crate) is_shared: bool,
}

impl Layout {
    pub(crate) fn file_bytes(&self) -> u64 {
        u64::from(self.records) * self.record_bytes as u64
    }

    fn loops_of(&self, test: &Test) -> u32 {
        match test.action {
            Action::Read => self.read_loops,
            _ => self.loops,
        }
    }

    /// The disk's size.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let files = if self.is_shared { 1 } else { self.threads };
        self.file_bytes() * files as u64
    }
}

/// What a test took, all threads together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slice {
    pub(crate) bytes: u64,
    pub(crate) written_pages: u64,
    /// From the first thread's start to the last one's end.
    pub(crate) elapsed: Duration,
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    /// The longest that one record took.
    pub(crate) worst: Duration,
    pub(crate) slow_path_writes: Option<u64>,
    pub(crate) sleeps: Option<u64>,
}

impl Slice {
    /// Adds a test that ran after this one.
    pub(crate) fn then(&mut self, next: &Slice) {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one.unwrap_or(0) + other?);
        self.bytes += next.bytes;
        self.written_pages += next.written_pages;
        self.elapsed += next.elapsed;
        self.user += next.user;
        self.system += next.system;
        self.worst = self.worst.max(next.worst);
        self.slow_path_writes = sum(self.slow_path_writes, next.slow_path_writes);
        self.sleeps = sum(self.sleeps, next.sleeps);
    }
}

/// Threads with a disk.
pub(crate) struct Crew<'a> {
    disk: &'a dyn Disk,
    content: &'a Content,
    layout: Layout,
    workers: Vec<Worker>,
}

/// What a thread has for itself between tests.
struct Worker {
    thread: usize,
    /// First byte of its file.
    base: u64,
    buffer: Mapping,
    rng: Rng,
    /// Times that it has written its file.
    generation: u32,
}

/// What a thread did in a test.
struct Done {
    started: Instant,
    ended: Instant,
    written_pages: u64,
    /// CPU time in user space and in the kernel.
    used: [Duration; 2],
    worst: Duration,
}

impl<'a> Crew<'a> {
    /// # Errors
    /// [`Error::Failed`] without memory for the threads' buffers.
    pub(crate) fn new(
        disk: &'a dyn Disk,
        content: &'a Content,
        layout: Layout,
    ) -> Result<Crew<'a>> {
        let workers = (0..layout.threads).map(|thread| Worker::new(thread, &layout));
        let workers = workers.collect::<Result<Vec<Worker>>>()?;
        Ok(Crew {
            disk,
            content,
            layout,
            workers,
        })
    }

    /// Runs one test.
    pub(crate) fn run(&mut self, test: &Test, stop: &Stop) -> Result<Slice> {
        let (slow_before, sleeps_before) = (self.disk.slow_path_writes(), self.disk.sleeps());
        let done = self.all_at_once(test, stop)?;
        let since = |before: Option<u64>, now: Option<u64>| Some(now? - before?);
        let first = done.iter().map(|done| done.started).min();
        let last = done.iter().map(|done| done.ended).max();
        let elapsed = last
            .zip(first)
            .map_or(Duration::ZERO, |(last, first)| last - first);
        let loops = u64::from(self.layout.loops_of(test));
        Ok(Slice {
            bytes: self.layout.file_bytes() * loops * done.len() as u64,
            written_pages: done.iter().map(|done| done.written_pages).sum(),
            elapsed,
            user: done.iter().map(|done| done.used[0]).sum(),
            system: done.iter().map(|done| done.used[1]).sum(),
            worst: done.iter().map(|done| done.worst).max().unwrap_or_default(),
            slow_path_writes: since(slow_before, self.disk.slow_path_writes()),
            sleeps: since(sleeps_before, self.disk.sleeps()),
        })
    }

    fn all_at_once(&mut self, test: &Test, stop: &Stop) -> Result<Vec<Done>> {
        let start = Barrier::new(self.workers.len());
        let (disk, content, layout) = (self.disk, self.content, self.layout);
        thread::scope(|scope| {
            let start = &start;
            let threads: Vec<_> = self
                .workers
                .iter_mut()
                .map(|worker| {
                    scope.spawn(move || {
                        let places = test.order.places(layout.records, &mut worker.rng);
                        start.wait();
                        worker.run(disk, content, &layout, test, &places, stop)
                    })
                })
                .collect();
            let died = |_| Err(Error::Failed("a measuring thread panicked".to_owned()));
            let joined = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(died));
            joined.collect()
        })
    }

    /// Reads everything back: each thread's file is what it wrote last; in a shared file each page is whole.
    ///
    /// # Errors
    /// [`Error::Failed`] with the first page that is not.
    pub(crate) fn verify(&mut self) -> Result<()> {
        let known = self.layout.is_shared.then(|| self.content.known());
        let files = if self.layout.is_shared {
            1
        } else {
            self.workers.len()
        };
        for worker in &mut self.workers[..files] {
            for record in 0..self.layout.records {
                let offset = worker.base + u64::from(record) * self.layout.record_bytes as u64;
                self.disk.read(offset, &mut worker.buffer)?;
                let is_right = match &known {
                    Some(known) => is_whole(&worker.buffer, known),
                    None => worker.buffer[..] == *worker.last_written(self.content, record),
                };
                if !is_right {
                    return Err(Error::Failed(format!(
                        "a record at byte {offset} is not what was written: the figures are worth nothing"
                    )));
                }
            }
        }
        Ok(())
    }
}

fn is_whole(record: &[u8], known: &Known) -> bool {
    let mut pages = record.chunks_exact(PAGE_BYTES);
    pages.all(|page| known.has(page) || page.iter().all(|byte| *byte == 0))
}

impl Worker {
    fn new(thread: usize, layout: &Layout) -> Result<Worker> {
        let buffer = Mapping::new(layout.record_bytes, Backing::Default);
        let mut buffer = buffer.map_err(|error| Error::io("memory for reads", error))?;
        buffer.fill(1);
        let file = if layout.is_shared { 0 } else { thread as u64 };
        Ok(Worker {
            thread,
            base: file * layout.file_bytes(),
            buffer,
            rng: Rng::new(thread as u64),
            generation: 0,
        })
    }

    fn run(
        &mut self,
        disk: &dyn Disk,
        content: &Content,
        layout: &Layout,
        test: &Test,
        places: &[u32],
        stop: &Stop,
    ) -> Result<Done> {
        let bytes = layout.record_bytes;
        let (mut written, mut worst) = (0, Duration::ZERO);
        let used = Usage::of_thread();
        let started = Instant::now();
        let mut now = started;
        for _ in 0..layout.loops_of(test) {
            self.generation += u32::from(test.action.writes(self.thread));
            for &place in places {
                let offset = self.base + u64::from(place) * bytes as u64;
                if self.writes_now(test.action) {
                    let data = content.record(self.thread, place, self.generation, bytes);
                    disk.write(offset, data)?;
                    written += 1;
                } else {
                    disk.read(offset, &mut self.buffer)?;
                }
                let before = std::mem::replace(&mut now, Instant::now());
                worst = worst.max(now - before);
                stop.check()?;
            }
        }
        Ok(Done {
            started,
            ended: now,
            written_pages: written * (bytes / PAGE_BYTES) as u64,
            used: Usage::of_thread().since(used),
            worst,
        })
    }

    fn writes_now(&mut self, action: Action) -> bool {
        match action {
            Action::ByOperation => self.rng.next() & 1 == 1,
            action => action.writes(self.thread),
        }
    }

    fn last_written<'a>(&self, content: &'a Content, record: u32) -> &'a [u8] {
        content.record(self.thread, record, self.generation, self.buffer.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::suite::contention::patterns::{FIO, IOZONE};

    /// Plain memory that counts what is asked of it.
    struct Plain {
        bytes: Mutex<Vec<u8>>,
        /// Bytes written and read.
        moved: Mutex<[u64; 2]>,
    }

    impl Disk for Plain {
        fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
            let at = offset as usize;
            self.bytes.lock().unwrap()[at..at + data.len()].copy_from_slice(data);
            self.moved.lock().unwrap()[0] += data.len() as u64;
            Ok(())
        }

        fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
            let at = offset as usize;
            buffer.copy_from_slice(&self.bytes.lock().unwrap()[at..at + buffer.len()]);
            self.moved.lock().unwrap()[1] += buffer.len() as u64;
            Ok(())
        }
    }

    fn plain(layout: &Layout) -> Plain {
        Plain {
            bytes: Mutex::new(vec![0; layout.disk_bytes() as usize]),
            moved: Mutex::new([0; 2]),
        }
    }

    fn content() -> Content {
        Content::mixed(&crate::corpus::Corpus::synthetic()).unwrap()
    }

    #[test]
    fn iozones_tests_move_what_they_say_and_leave_what_they_wrote() {
        let layout = Layout {
            threads: 3,
            record_bytes: 8192,
            records: 20,
            loops: 1,
            read_loops: 1,
            is_shared: false,
        };
        let (disk, content) = (plain(&layout), content());
        let mut crew = Crew::new(&disk, &content, layout).unwrap();
        for test in &IOZONE {
            *disk.moved.lock().unwrap() = [0; 2];
            let slice = crew.run(test, &Stop::default()).unwrap();
            let moved = *disk.moved.lock().unwrap();
            let all = layout.disk_bytes();
            let expected = match test.action {
                Action::Read => [0, all],
                Action::ByThread => [all / 3, all / 3 * 2],
                _ => [all, 0],
            };
            assert_eq!(moved, expected, "{}", test.name);
            assert_eq!((slice.bytes, slice.written_pages * 4096), (all, moved[0]));
            assert!(slice.elapsed >= slice.worst && slice.worst > Duration::ZERO);
        }
        crew.verify().unwrap();
        disk.bytes.lock().unwrap()[layout.disk_bytes() as usize - 1] ^= 1;
        let error = crew.verify().unwrap_err().to_string();
        assert!(
            error.starts_with("a record at byte 483328 is not"),
            "{error}"
        );
    }

    #[test]
    fn a_shared_file_holds_whole_pages_of_somebody() {
        let layout = Layout {
            threads: 4,
            record_bytes: 32768,
            records: 10,
            loops: 3,
            read_loops: 5,
            is_shared: true,
        };
        let (disk, content) = (plain(&layout), content());
        let mut crew = Crew::new(&disk, &content, layout).unwrap();
        for test in &FIO {
            let slice = crew.run(test, &Stop::default()).unwrap();
            let loops = if test.action == Action::Read { 5 } else { 3 };
            assert_eq!(slice.bytes, 4 * loops * layout.disk_bytes());
            let part = slice.written_pages as f64 * 4096.0 / slice.bytes as f64;
            match test.action {
                Action::ByOperation => assert!((0.3..0.7).contains(&part), "{part}"),
                action => assert_eq!(part > 0.5, action == Action::Write),
            }
        }
        crew.verify().unwrap();
        disk.bytes.lock().unwrap()[5000] ^= 1;
        assert!(crew.verify().is_err());
    }

    #[test]
    fn a_signal_ends_a_test() {
        let layout = Layout {
            threads: 2,
            record_bytes: 4096,
            records: 10,
            loops: 1,
            read_loops: 1,
            is_shared: false,
        };
        let (disk, content, stop) = (plain(&layout), content(), Stop::default());
        stop.raise();
        let mut crew = Crew::new(&disk, &content, layout).unwrap();
        assert!(matches!(
            crew.run(&IOZONE[0], &stop),
            Err(Error::Interrupted)
        ));
    }
}
