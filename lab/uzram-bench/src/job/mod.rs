//! Jobs: the workloads that iozone and fio made common, against anything that holds blocks.
//!
//! - `iozone` and `fio` read the words of the two programs into [`Job`]s.
//! - `order` says in which order blocks are visited, `buffers` what is written.
//! - `target/` is what a job runs on: the engine in this process, an NBD export, a block device, a file.
//! - `run` starts a job's workers and takes their times; `fio_program` has fio itself do the job.
//! - `guard` keeps all of them off devices that are in use or hold data.
//!
//! Each worker has one request under way at a time, as iozone's children and fio's synchronous
//! engines have. Facts about iozone are from its documentation ("Iozone Filesystem Benchmark",
//! iozone.org), those about fio from its manual page.

pub(crate) mod buffers;
pub(crate) mod disk;
pub(crate) mod fio;
pub(crate) mod fio_program;
pub(crate) mod guard;
pub(crate) mod iozone;
mod order;
mod run;
pub(crate) mod target;

pub(crate) use order::Order;
pub(crate) use run::{Outcome, run};

use crate::error::{Error, Result};
use buffers::{BLOCK_MAX_BYTES, Buffers};

/// Workers of a job at most.
pub(crate) const WORKERS_MAX: u32 = 64;
/// Loops of a job at most.
const LOOPS_MAX: u32 = 1_000_000;
/// Most bytes that one worker works on.
const SIZE_MAX_BYTES: u64 = 1 << 44;
/// Blocks of direct I/O are multiples of this, in bytes.
const SECTOR_BYTES: u64 = 512;

/// A job that was checked: the blocks of every worker, their order, and their content.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    /// The test's name: `rewrite`, `randrw`.
    pub(crate) name: String,
    pub(crate) order: Order,
    pub(crate) mix: Mix,
    pub(crate) calls: Calls,
    pub(crate) block_bytes: u64,
    /// Bytes that one worker works on: its file, or its part of a device. Whole blocks.
    pub(crate) size_bytes: u64,
    pub(crate) workers: u32,
    pub(crate) sharing: Sharing,
    /// How often each worker does it all.
    pub(crate) loops: u32,
    pub(crate) seed: u64,
    pub(crate) buffers: Buffers,
    /// Past the page cache, where there is one.
    pub(crate) is_direct: bool,
    pub(crate) clock: Clock,
    /// Whether what is there must be thrown away first.
    pub(crate) starts_fresh: bool,
}

/// One of the tests of either program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Test {
    /// In names of cases, and in the data.
    pub(crate) name: &'static str,
    pub(crate) order: Order,
    pub(crate) mix: Mix,
    pub(crate) calls: Calls,
}

/// The choice of blocks that are read and that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    Reads,
    Writes,
    /// Each block by a toss of a coin.
    Half,
    /// Every other worker writes, the first one reads.
    ByWorker,
}

/// By which calls a file or device is used; elsewhere there is one way only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// `lseek`, then `read` or `write`.
    Seek,
    /// `pread` and `pwrite`.
    Positioned,
    /// Through a buffer of the program's, as `fread` and `fwrite` do.
    Buffered,
}

/// The blocks of a worker in relation to the others'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Each has a file or part of its own.
    Apart,
    /// All have the same.
    Together,
}

/// When the clock stops that starts with the first worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// All stop with the first that is done, the others finish unmeasured: iozone's.
    FirstDone,
    /// All that was done over the time until the last is done: fio's.
    LastDone,
}

impl Job {
    /// The job, if its numbers can be.
    ///
    /// # Errors
    /// [`Error::Usage`], with the word that `words` uses for what is wrong.
    pub(crate) fn checked(self, words: Words) -> Result<Job> {
        let refused = |text: String| Err(Error::Usage(text));
        let Job {
            block_bytes: block,
            size_bytes: size,
            ..
        } = self;
        if block == 0 || block > BLOCK_MAX_BYTES {
            let most = BLOCK_MAX_BYTES >> 20;
            return refused(format!("{} {block}: 1 byte to {most} MiB", words.block));
        }
        if self.is_direct && !block.is_multiple_of(SECTOR_BYTES) {
            let text = "direct I/O takes multiples of 512 bytes";
            return refused(format!("{} {block}: {text}", words.block));
        }
        if size < block || size > SIZE_MAX_BYTES {
            let text = format!("at least one block of {block} bytes and at most 16T");
            return refused(format!("{} {size}: {text}", words.size));
        }
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            let workers = self.workers;
            let text = format!("{} {workers}: 1 to {WORKERS_MAX}", words.workers);
            return refused(text);
        }
        if !(1..=LOOPS_MAX).contains(&self.loops) {
            return refused(format!("loops {}: 1 to {LOOPS_MAX}", self.loops));
        }
        self.buffers.check()?;
        Ok(Job {
            size_bytes: size - size % block,
            ..self
        })
    }

    /// How large a device must be for it, in bytes.
    pub(crate) fn device_bytes(&self) -> u64 {
        match self.sharing {
            Sharing::Together => self.size_bytes,
            Sharing::Apart => self.size_bytes * u64::from(self.workers),
        }
    }

    /// The first byte of a worker's part.
    fn base(&self, worker: u32) -> u64 {
        match self.sharing {
            Sharing::Together => 0,
            Sharing::Apart => self.size_bytes * u64::from(worker),
        }
    }

    fn blocks(&self) -> u64 {
        self.size_bytes / self.block_bytes
    }

    pub(crate) fn writes(&self) -> bool {
        self.mix != Mix::Reads
    }
}

/// The words of fio or iozone for the numbers of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    block: &'static str,
    size: &'static str,
    workers: &'static str,
}

/// A size as both programs take it: a number with `k`, `m` or `g`, times 1024 each, in either case;
/// `unit` is what a number alone counts, in bytes.
///
/// # Errors
/// [`Error::Usage`], naming `what`.
fn parse_size(what: &str, text: &str, unit: u64) -> Result<u64> {
    let letters = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &text[..text.len() - letters.len()];
    let scale = match letters.to_ascii_lowercase().as_str() {
        "" => Some(unit),
        "k" => Some(1 << 10),
        "m" => Some(1 << 20),
        "g" => Some(1 << 30),
        _ => None,
    };
    let number = digits.parse::<u64>().ok();
    let size = number
        .zip(scale)
        .and_then(|(number, scale)| number.checked_mul(scale));
    size.ok_or_else(|| {
        let text = format!("{what} {text:?}: not a size; a number with k, m or g");
        Error::Usage(text)
    })
}

/// A plain number.
///
/// # Errors
/// [`Error::Usage`], naming `what`.
fn parse_number<N: std::str::FromStr>(what: &str, text: &str) -> Result<N> {
    let parsed = text.parse();
    parsed.map_err(|_| Error::Usage(format!("{what} {text:?}: not a whole number")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_in_either_case() {
        let parse = |text| parse_size("bs", text, 1);
        assert_eq!(parse("4k").unwrap(), 4096);
        assert_eq!(parse("32K").unwrap(), 32 << 10);
        assert_eq!(parse("10m").unwrap(), 10 << 20);
        assert_eq!(parse_size("-s", "7", 1024).unwrap(), 7 << 10);
        for bad in [
            "",
            "k",
            "4x",
            "-4k",
            "4kk",
            "99999999999999999999",
            "18446744073709551615g",
        ] {
            let text = parse(bad).unwrap_err().to_string();
            assert!(text.starts_with("bs ") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn a_job_that_cannot_be_is_refused_in_the_programs_words() {
        let job = fio::parse("rw=write bs=4k size=1m").unwrap();
        let refused = |job: Job| job.checked(fio::WORDS).unwrap_err().to_string();
        let with = |change: fn(&mut Job)| {
            let mut job = job.clone();
            change(&mut job);
            job
        };
        assert_eq!(refused(with(|job| job.workers = 65)), "numjobs 65: 1 to 64");
        assert_eq!(refused(with(|job| job.workers = 0)), "numjobs 0: 1 to 64");
        assert_eq!(refused(with(|job| job.loops = 0)), "loops 0: 1 to 1000000");
        assert_eq!(
            refused(with(|job| job.block_bytes = 100)),
            "bs 100: direct I/O takes multiples of 512 bytes"
        );
        assert!(refused(with(|job| job.block_bytes = 0)).starts_with("bs 0: 1 byte to 16 MiB"));
        assert!(refused(with(|job| job.size_bytes = 512)).starts_with("size 512: at least one"));
        let odd = with(|job| job.size_bytes = 10_000).checked(fio::WORDS);
        assert_eq!(odd.unwrap().size_bytes, 8192, "whole blocks");
    }
}
