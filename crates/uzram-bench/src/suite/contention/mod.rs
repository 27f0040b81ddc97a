//! Many threads on one small disk: what the suites `streams` and `locks` share.
//!
//! A *test* is one of iozone's or fio's: an order of places and what is done there. A *layout* says how many
//! threads do it, in which records, each to a file of its own or all to the same one. A *round* gives each
//! variant a fresh disk and runs all tests on it, as the published comparisons did; variants take turns, another
//! one first in each round, and only whole rounds count. Nothing is pinned, and there are more threads
//! than CPUs: what happens to who holds something then is the question.
//!
//! Whatever was written is read back and compared after each round.

pub(crate) mod cells;
pub(crate) mod claims;
pub(crate) mod content;
pub(crate) mod crew;
pub(crate) mod disk;
pub(crate) mod patterns;
pub(crate) mod rounds;
#[allow(unsafe_code)]
mod usage;

use crate::error::{Error, Result};
use crate::machine;

/// Threads up to which the matrices go where nothing else is said, as published.
pub(crate) const THREADS: usize = 10;
/// The codec of all published comparisons of streams and locks.
pub(crate) const ALGORITHM: &str = "lzo";
/// How many times smaller than published a disk can be made.
const SCALE_MAX: u32 = 512;
/// The part of the memory that the system can still give that a disk may take, were nothing compressed.
const MEMORY_PART: u64 = 2;

/// What the two suites take.
#[derive(Clone, Debug, clap::Args)]
pub struct ContentionArgs {
    /// What every suite takes
    #[command(flatten)]
    pub suite: crate::cli::SuiteArgs,
    /// Disks and files so many times smaller than published, 1 to 512. Default: streams 64, with
    /// --quick 256; locks 16, with --quick 64
    #[arg(long, value_name = "N")]
    pub scale: Option<u32>,
}

/// The scale asked for, or `default`, of a suite that takes `published_bytes` at scale 1.
///
/// # Errors
/// [`Error::Usage`] if it is none, or memory does not suffice.
pub(crate) fn scale(asked: Option<u32>, default: u32, published_bytes: u64) -> Result<u32> {
    let scale = asked.unwrap_or(default);
    if !(1..=SCALE_MAX).contains(&scale) {
        return Err(Error::Usage(format!("scale {scale}: 1 to {SCALE_MAX}")));
    }
    let bytes = published_bytes / u64::from(scale);
    let available_bytes = machine::available_memory_bytes().unwrap_or(u64::MAX);
    if bytes > available_bytes / MEMORY_PART {
        let least = published_bytes.div_ceil((available_bytes / MEMORY_PART).max(1));
        return Err(Error::Usage(format!(
            "scale {scale}: a disk of {} MiB is more than half of the memory that is free; take {least} or more",
            bytes >> 20
        )));
    }
    Ok(scale)
}

/// The numbers of threads of a matrix: all up to `most`, for a quick look a few of them.
pub(crate) fn matrix_threads(most: usize, is_quick: bool) -> Vec<usize> {
    let all = 1..=most;
    match is_quick {
        true => all.filter(|n| [1, 2, 4, most].contains(n)).collect(),
        false => all.collect(),
    }
}

/// A list of numbers in words: `1-3, 5`.
pub(crate) fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => runs.push((number, number)),
        }
    }
    let words = runs.iter().map(|(start, end)| match start == end {
        true => start.to_string(),
        false => format!("{start}-{end}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Two runs of everything on synthetic pages, for the suites' tests.
#[cfg(test)]
pub(crate) fn two_runs(threads: usize) -> crate::suite::Options {
    crate::suite::Options {
        corpora: crate::corpus::Corpus::synthetic(),
        peers: Vec::new(),
        algorithms: vec!["lz4".to_owned()],
        threads,
        schedule: crate::suite::Schedule {
            at_least: std::time::Duration::ZERO,
            runs_min: 2,
        },
        quick: false,
        stop: crate::stop::Stop::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_within_its_limits_and_the_memory() {
        assert_eq!(scale(None, 64, 1 << 30).unwrap(), 64);
        assert_eq!(scale(Some(512), 64, 1 << 30).unwrap(), 512);
        for (asked, said) in [(0, "scale 0: 1 to 512"), (513, "scale 513: 1 to 512")] {
            let error = scale(Some(asked), 64, 1 << 30).unwrap_err();
            assert_eq!((error.exit_status(), error.to_string().as_str()), (2, said));
        }
        let error = scale(Some(1), 64, 1 << 50).unwrap_err().to_string();
        assert!(
            error.starts_with("scale 1: a disk of 1073741824 MiB"),
            "{error}"
        );
        assert!(error.contains("; take "), "{error}");
    }

    #[test]
    fn a_quick_matrix_has_the_ends_and_some_between() {
        assert_eq!(matrix_threads(10, true), [1, 2, 4, 10]);
        assert_eq!(matrix_threads(2, true), [1, 2]);
        assert_eq!(matrix_threads(3, false), [1, 2, 3]);
    }

    #[test]
    fn numbers_are_named_by_their_runs() {
        assert_eq!(ranges(&[1, 2, 3, 5, 7, 8]), "1-3, 5, 7-8");
        assert_eq!(ranges(&[]), "");
    }
}
