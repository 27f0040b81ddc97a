//! The model process: threads do random things to compressed memory that a program and the system may do, and compare it
//! with a copy in plain memory. A short form runs with the tests; `cargo xtask soak pager` runs ten minutes.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use uzram::Store;
use uzram_pager::CompressedMemory;
use uzram_testkit::Rng;

use super::{PAGE, apart, die_of_segv, discard, mark, memory, serves_the_system, with_spill};

/// Seconds of a run, for longer ones than the tests'.
const SECONDS: &str = "UZRAM_PAGER_SOAK_SECONDS";
const SECONDS_SHORT: u64 = 3;
/// The seed of the first round; each round has the next.
const SEED: &str = "UZRAM_PAGER_SOAK_SEED";
const THREADS: usize = 3;
/// Steps of a thread in a round.
const STEPS: usize = 1500;
/// Most pages of one step.
const COUNT_MAX: usize = 48;
/// Pages at the end, which the program maps anew.
const REPLACED: usize = 32;
/// Longest time that a buffer stays pinned, in steps.
const PINNED_STEPS: usize = 20;

#[test]
fn random_programs_find_what_they_wrote() {
    apart("soak::random_programs_find_what_they_wrote", || {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
        let end = Instant::now() + Duration::from_secs(number(SECONDS).unwrap_or(SECONDS_SHORT));
        if number(SECONDS).is_some() {
            std::thread::spawn(move || migrate(end));
        }
        let mut seed = number(SEED).unwrap_or(1);
        loop {
            if !round(seed, end) {
                return;
            }
            if Instant::now() > end {
                break;
            }
            seed += 1;
        }
        println!("the last seed was {seed}");
    });
}

/// Lets the system migrate pages under the program, as root: requests of userfaultfd have to try again then.
fn migrate(end: Instant) {
    while Instant::now() < end && std::fs::write("/proc/sys/vm/compact_memory", "1").is_ok() {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A program of some threads, from its start to the end of its memory, or to `end`. False: this system has no userfaultfd.
fn round(seed: u64, end: Instant) -> bool {
    let mut rng = Rng::new(seed);
    let part = 60 + rng.below(400);
    let budget = 64 + rng.below(60);
    // Every third round has a file, and a store that is too small: but for planted bugs, which are none of the file's.
    let pages = THREADS * part + REPLACED;
    let made = match seed % 3 {
        0 if !cfg!(uzram_plant) => {
            with_spill(pages, budget, Store::builder().mem_limit(512 << 10)).map(|made| made.0)
        }
        _ => memory(pages, budget),
    };
    let Some(mut memory) = made else {
        return false;
    };
    let is_over = AtomicBool::new(false);
    let (parts, replaced) = split(&mut memory, part);
    std::thread::scope(|scope| {
        let (memory, is_over) = (&memory, &is_over);
        scope.spawn(move || change_budget(seed, memory, is_over));
        let workers: Vec<_> = parts
            .into_iter()
            .zip(1..)
            .map(|(part, nth)| scope.spawn(move || Worker::new(seed * 10 + nth, part).run(end)))
            .collect();
        scope.spawn(move || replace(seed, replaced, is_over));
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok), "seed {seed}");
    });
    let statistics = memory.statistics();
    assert!(!statistics.has_failed, "seed {seed}: {statistics:?}");
    assert_eq!(statistics.pages_poisoned, 0, "seed {seed}: {statistics:?}");
    true
}

/// The threads' parts, and what is mapped anew. Nobody uses `memory` as a slice while they are in use.
fn split(
    memory: &mut CompressedMemory,
    part: usize,
) -> (Vec<&'static mut [u8]>, &'static mut [u8]) {
    let (at, length) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: the memory outlives the threads that use the parts, which `round` joins.
    let whole = unsafe { std::slice::from_raw_parts_mut(at, length) };
    let (parts, replaced) = whole.split_at_mut(THREADS * part * PAGE);
    (parts.chunks_exact_mut(part * PAGE).collect(), replaced)
}

fn change_budget(seed: u64, memory: &CompressedMemory, is_over: &AtomicBool) {
    let mut rng = Rng::new(seed ^ 0xb0d);
    while !is_over.load(Ordering::Relaxed) {
        let most = [20, 20, 400][rng.below(3)];
        memory.set_budget((64 + rng.below(most)) * PAGE).unwrap();
        std::thread::sleep(Duration::from_micros(200 + rng.below(5000) as u64));
    }
}

/// Maps other memory over pages that have left, again and again. It must stay as it is.
fn replace(seed: u64, range: &mut [u8], is_over: &AtomicBool) {
    let mut rng = Rng::new(seed ^ 0x3e3);
    for page in range.chunks_exact_mut(PAGE) {
        mark(page, 77);
    }
    std::thread::sleep(Duration::from_millis(rng.below(30) as u64));
    let (at, length) = (range.as_mut_ptr(), range.len());
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if rng.below(2) == 0 {
        // SAFETY: new memory.
        let to = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
        assert_ne!(to, libc::MAP_FAILED);
        // The old range stays mapped, empty: else another thread's memory could come there before ours.
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: replaces the new mapping; nobody touches the old range before the next call.
        let moved = unsafe { libc::mremap(at.cast(), length, length, how, to) };
        assert_eq!(moved, to);
        // SAFETY: what was moved is this function's.
        assert_eq!(unsafe { libc::munmap(to, length) }, 0);
    }
    let (mut byte, mut copy) = (0u8, vec![0u8; length]);
    loop {
        // SAFETY: replaces pages that are this function's.
        let new = unsafe { libc::mmap(at.cast(), length, access, flags | libc::MAP_FIXED, -1, 0) };
        assert_eq!(new, at.cast());
        assert!(range.iter().all(|byte| *byte == 0), "seed {seed}: new");
        byte = byte.wrapping_add(1);
        copy.fill(byte);
        range.copy_from_slice(&copy);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_micros(300));
            assert!(*range == *copy, "seed {seed}: other memory has changed");
        }
        if is_over.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// A thread with its part of the memory, and the copy.
struct Worker {
    seed: u64,
    rng: Rng,
    part: &'static mut [u8],
    copy: Vec<u8>,
    file: File,
    direct: Option<File>,
}

impl Worker {
    fn new(seed: u64, part: &'static mut [u8]) -> Worker {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("direct");
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        Worker {
            seed,
            rng: Rng::new(seed),
            copy: vec![0; part.len()],
            part,
            file: tempfile::tempfile().unwrap(),
            // Not every file system has it.
            direct: options.custom_flags(libc::O_DIRECT).open(path).ok(),
        }
    }

    fn run(mut self, end: Instant) {
        for step in 0..STEPS {
            if Instant::now() > end {
                break;
            }
            self.step(step);
        }
        self.check(0..self.part.len(), STEPS);
    }

    fn step(&mut self, step: usize) {
        let range = self.range();
        let one = range.start..range.start + PAGE;
        match self.rng.below(100) {
            0..=29 => self.check(one, step),
            30..=34 => self.check(range, step),
            35..=54 => self.fill(one, step),
            55..=72 => {
                let at = one.start + self.rng.below(PAGE);
                assert_eq!(
                    self.part[at], self.copy[at],
                    "{}: step {step}, byte {at}",
                    self.seed
                );
                self.part[at] = step as u8;
                self.copy[at] = step as u8;
            }
            73..=74 => self.fill(range, step),
            75..=79 => {
                discard(&mut self.part[range.clone()], libc::MADV_DONTNEED);
                self.copy[range.clone()].fill(0);
                self.check(range, step);
            }
            80 => {
                discard(&mut self.part[one.clone()], libc::MADV_FREE);
                self.fill(one, step);
            }
            81 => self.advise(range, step),
            82..=83 => self.protect(range, step),
            84..=86 if serves_the_system() => self.through_a_file(range, step),
            87..=88 if serves_the_system() => self.direct(range, step),
            89 => self.pin(range, step),
            90..=91 => self.fork(range, step),
            92..=93 => self.short_thread(range, step),
            94..=96 => {
                let to = self.rng.below(self.part.len() - range.len() + 1);
                self.part.copy_within(range.clone(), to);
                self.copy.copy_within(range, to);
            }
            _ => {
                // A neighbour in the address space comes and goes.
                drop(std::hint::black_box(vec![1u8; 1 << 20]));
            }
        }
    }

    /// Some whole pages.
    fn range(&mut self) -> std::ops::Range<usize> {
        let pages = self.part.len() / PAGE;
        let page = self.rng.below(pages);
        let count = (1 + self.rng.below(COUNT_MAX)).min(pages - page);
        page * PAGE..(page + count) * PAGE
    }

    fn check(&self, range: std::ops::Range<usize>, step: usize) {
        let (page, count) = (range.start / PAGE, range.len() / PAGE);
        let seed = self.seed;
        assert!(
            self.part[range.clone()] == self.copy[range],
            "seed {seed}, step {step}: {count} pages at {page}"
        );
    }

    fn fill(&mut self, range: std::ops::Range<usize>, step: usize) {
        let bytes = |all| -> std::slice::ChunksExactMut<'_, u8> {
            let all: &mut [u8] = all;
            all.chunks_exact_mut(PAGE)
        };
        bytes(&mut self.part[range.clone()]).for_each(|page| mark(page, step as u64));
        bytes(&mut self.copy[range]).for_each(|page| mark(page, step as u64));
    }

    /// Advice that changes no content.
    fn advise(&mut self, range: std::ops::Range<usize>, step: usize) {
        let all = [
            libc::MADV_COLD,
            libc::MADV_WILLNEED,
            libc::MADV_SEQUENTIAL,
            libc::MADV_NORMAL,
            libc::MADV_POPULATE_READ,
            libc::MADV_POPULATE_WRITE,
        ];
        // The last two touch pages for the program.
        let count = all.len() - if serves_the_system() { 0 } else { 2 };
        discard(&mut self.part[range.clone()], all[self.rng.below(count)]);
        self.check(range, step);
    }

    /// Locks pages, or lets nobody write them, for the time of some touches.
    fn protect(&mut self, range: std::ops::Range<usize>, step: usize) {
        let at = self.part[range.clone()].as_mut_ptr().cast();
        let length = range.len();
        let other = self.range();
        if self.rng.below(2) == 0 {
            // SAFETY: locking changes no content. It may be refused beyond the limit of locked memory, and where the system's
            // touches fail. Then some pages may be locked all the same.
            let is_locked = unsafe { libc::mlock(at, length) } == 0;
            self.check(other, step);
            self.fill(range, step);
            // SAFETY: as above.
            let is_unlocked = unsafe { libc::munlock(at, length) } == 0;
            assert!(is_unlocked || !is_locked);
        } else {
            // SAFETY: nobody writes to the pages meanwhile.
            assert_eq!(unsafe { libc::mprotect(at, length, libc::PROT_READ) }, 0);
            self.check(other, step);
            self.check(range, step);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: as it was.
            assert_eq!(unsafe { libc::mprotect(at, length, access) }, 0);
        }
    }

    fn through_a_file(&mut self, range: std::ops::Range<usize>, step: usize) {
        self.file
            .write_all_at(&self.part[range.clone()], 0)
            .unwrap();
        let to = self.other_of(range.len());
        self.file
            .read_exact_at(&mut self.part[to.clone()], 0)
            .unwrap();
        self.copy.copy_within(range, to.start);
        self.check(to, step);
    }

    /// The same without the page cache: the device reads and writes the pages themselves.
    fn direct(&mut self, range: std::ops::Range<usize>, step: usize) {
        let Some(file) = &self.direct else {
            return;
        };
        let file = file.try_clone().unwrap();
        file.write_all_at(&self.part[range.clone()], 0).unwrap();
        let to = self.other_of(range.len());
        file.read_exact_at(&mut self.part[to.clone()], 0).unwrap();
        self.copy.copy_within(range, to.start);
        self.check(to, step);
    }

    fn other_of(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.rng.below((self.part.len() - length) / PAGE + 1) * PAGE;
        start..start + length
    }

    /// Gives pages to the system as a buffer, goes on for a while, and lets it write there.
    fn pin(&mut self, range: std::ops::Range<usize>, step: usize) {
        let Ok(mut ring) = IoUring::new(2) else {
            return;
        };
        // Pages must be present to be pinned, where the system's touches fail.
        self.check(range.clone(), step);
        let at = self.part[range.clone()].as_mut_ptr();
        let buffer = libc::iovec {
            iov_base: at.cast(),
            iov_len: range.len(),
        };
        // SAFETY: the memory outlives the ring.
        if unsafe { ring.submitter().register_buffers(&[buffer]) }.is_err() {
            // Beyond the limit of locked memory, or a page has left again.
            return;
        }
        for _ in 0..self.rng.below(PINNED_STEPS) {
            let other = self.range();
            self.check(other.clone(), step);
            self.fill(other, step);
        }
        let mut bytes = vec![0; range.len()];
        bytes
            .chunks_exact_mut(PAGE)
            .for_each(|page| mark(page, step as u64 + 7));
        self.file.write_all_at(&bytes, 0).unwrap();
        let fd = types::Fd(self.file.as_raw_fd());
        let read = opcode::ReadFixed::new(fd, at, range.len() as u32, 0).build();
        // SAFETY: the buffer is registered, and nobody touches it before the read is complete.
        unsafe { ring.submission().push(&read) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        assert_eq!(
            ring.completion().next().unwrap().result(),
            range.len() as i32
        );
        self.copy[range.clone()].copy_from_slice(&bytes);
        self.check(range, step);
    }

    /// A child has the copy and not the memory; the parent has both as they were.
    fn fork(&mut self, range: std::ops::Range<usize>, step: usize) {
        let first = self.copy[range.start];
        // SAFETY: the child compares bytes, touches one, and ends.
        match unsafe { libc::fork() } {
            0 => {
                die_of_segv();
                let is_same = self.copy[range.start] == first;
                // SAFETY: asks the system for no memory file of a child that dies by its touch.
                unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
                if is_same {
                    std::hint::black_box(std::hint::black_box(&*self.part)[range.start]);
                }
                // SAFETY: ends the child.
                unsafe { libc::_exit(3) }
            }
            child => {
                assert!(child > 0);
                self.check(range.clone(), step);
                self.fill(range, step);
                let mut status = 0;
                // SAFETY: waits for the child made above.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                let is_refused =
                    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV;
                assert!(is_refused, "seed {}, step {step}: {status:#x}", self.seed);
            }
        }
    }

    /// A thread that touches some pages and ends.
    fn short_thread(&mut self, range: std::ops::Range<usize>, step: usize) {
        std::thread::scope(|scope| {
            scope.spawn(|| self.fill(range.clone(), step));
        });
        self.check(range, step);
    }
}
