//! iozone's throughput mode: its thirteen tests and the words of its command line.

use std::sync::Arc;

use super::buffers::{Buffers, Pages};
use super::{Calls, Clock, Job, Mix, Order, Sharing, Test, Words, parse_number, parse_size};
use crate::error::{Error, Result};

const WORDS: Words = Words {
    block: "-r",
    size: "-s",
    workers: "-t",
};
/// Numbers alone count these.
const KIB: u64 = 1 << 10;
const RECORD_BYTES: u64 = 4 << 10;
const FILE_BYTES: u64 = 512 << 10;

const fn test(name: &'static str, group: u32, order: Order, mix: Mix, calls: Calls) -> (u32, Test) {
    let test = Test {
        name,
        order,
        mix,
        calls,
    };
    (group, test)
}

/// The tests, in the order in which iozone runs them, each with what `-i` calls the group that it is in.
pub(crate) const TESTS: [(u32, Test); 13] = {
    use Calls::{Buffered, Positioned, Seek};
    use Mix::{ByWorker, Reads, Writes};
    use Order::{Backward, Forward, Random, Strided};
    [
        test("initial-write", 0, Forward, Writes, Seek),
        test("rewrite", 0, Forward, Writes, Seek),
        test("read", 1, Forward, Reads, Seek),
        test("re-read", 1, Forward, Reads, Seek),
        test("reverse-read", 3, Backward, Reads, Seek),
        test("stride-read", 5, Strided, Reads, Seek),
        test("random-read", 2, Random, Reads, Seek),
        test("mixed-workload", 8, Random, ByWorker, Seek),
        test("random-write", 2, Random, Writes, Seek),
        test("pwrite", 9, Forward, Writes, Positioned),
        test("pread", 10, Forward, Reads, Positioned),
        test("fwrite", 6, Forward, Writes, Buffered),
        test("fread", 7, Forward, Reads, Buffered),
    ]
};

/// The numbers of a throughput run.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// `-t`
    pub(crate) threads: u32,
    /// `-r`
    pub(crate) record_bytes: u64,
    /// `-s`
    pub(crate) file_bytes: u64,
    /// `-I`
    pub(crate) is_direct: bool,
    pub(crate) pages: Arc<Pages>,
    /// Groups of `-i`; all for none. The first is always run, as it makes the files.
    pub(crate) groups: Vec<u32>,
}

impl Setup {
    /// The jobs, in their order.
    ///
    /// # Errors
    /// [`Error::Usage`] for numbers that cannot be.
    pub(crate) fn jobs(&self) -> Result<Vec<Job>> {
        let wanted =
            |group: &u32| self.groups.is_empty() || *group == 0 || self.groups.contains(group);
        let jobs = TESTS.iter().enumerate();
        let jobs = jobs.filter(|(_, (group, _))| wanted(group));
        jobs.map(|(nth, (_, test))| {
            let job = Job {
                name: test.name.to_owned(),
                order: test.order,
                mix: test.mix,
                calls: test.calls,
                block_bytes: self.record_bytes,
                size_bytes: self.file_bytes,
                workers: self.threads,
                sharing: Sharing::Apart,
                loops: 1,
                // Each test writes other content than the one before.
                seed: nth as u64 + 1,
                buffers: Buffers::Pages(Arc::clone(&self.pages)),
                is_direct: self.is_direct,
                clock: Clock::FirstDone,
                starts_fresh: nth == 0,
            };
            job.checked(WORDS)
        })
        .collect()
    }
}

/// The jobs of a command line's words: `-t 4 -R -r 16K -s 200M -I -+Z`.
///
/// `mixed` are the pages that `-+Z` stands for; without it the data is random.
///
/// # Errors
/// [`Error::Usage`] for a word that is not known here, or a number that cannot be.
pub(crate) fn parse(text: &str, mixed: &Arc<Pages>) -> Result<Vec<Job>> {
    let mut setup = Setup {
        threads: 1,
        record_bytes: RECORD_BYTES,
        file_bytes: FILE_BYTES,
        is_direct: false,
        pages: Arc::clone(mixed),
        groups: Vec::new(),
    };
    let mut is_mixed = false;
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        // `-t4` is as good as `-t 4`.
        let (flag, attached) = match word.get(..2) {
            Some(flag @ ("-t" | "-r" | "-s" | "-i")) => (flag, &word[2..]),
            _ => (word, ""),
        };
        let mut value = || {
            let next = match attached {
                "" => words.next(),
                attached => Some(attached),
            };
            next.ok_or_else(|| Error::Usage(format!("iozone {flag}: a value is missing")))
        };
        match flag {
            "-t" => setup.threads = parse_number("-t", value()?)?,
            "-r" => setup.record_bytes = parse_size("-r", value()?, KIB)?,
            "-s" => setup.file_bytes = parse_size("-s", value()?, KIB)?,
            "-i" => setup.groups.push(group(value()?)?),
            "-I" => setup.is_direct = true,
            "-+Z" | "+Z" => is_mixed = true,
            // A report for spreadsheets: this one has a report of its own.
            "-R" => {}
            _ => {
                let known = "-t N, -r SIZE, -s SIZE, -i GROUP, -I, -+Z, -R";
                let text = format!("iozone {word:?}: not known here; known are {known}");
                return Err(Error::Usage(text));
            }
        }
    }
    if !is_mixed {
        setup.pages = Arc::new(Pages::random()?);
    }
    setup.jobs()
}

fn group(text: &str) -> Result<u32> {
    let number = parse_number("-i", text)?;
    if TESTS.iter().any(|(group, _)| *group == number) {
        return Ok(number);
    }
    // Group 4, a record rewritten for ever, is not one of the thirteen.
    let text = format!("-i {number}: unknown; one of 0 to 3 and 5 to 10");
    Err(Error::Usage(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed() -> Arc<Pages> {
        Arc::new(Pages::random().unwrap())
    }

    #[test]
    fn a_published_command_line_is_understood() {
        let jobs = parse("-t 4 -R -r 16K -s 200M -I +Z", &mixed()).unwrap();
        let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, TESTS.each_ref().map(|(_, test)| test.name));
        for job in &jobs {
            assert_eq!((job.workers, job.block_bytes), (4, 16 << 10));
            assert_eq!(job.device_bytes(), 800 << 20);
            assert!(job.is_direct && job.clock == Clock::FirstDone);
        }
        assert!(jobs[0].starts_fresh && !jobs[1].starts_fresh);
    }

    #[test]
    fn groups_choose_tests_and_files_are_always_made() {
        let jobs = parse("-t2 -r64 -s 1m -i 2 -i 8", &mixed()).unwrap();
        let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        let expected = [
            "initial-write",
            "rewrite",
            "random-read",
            "mixed-workload",
            "random-write",
        ];
        assert_eq!(names, expected);
        assert_eq!(jobs[0].block_bytes, 64 << 10, "a number alone counts KiB");
    }

    #[test]
    fn what_is_not_iozones_is_refused_in_a_line() {
        for (words, said) in [
            ("-t", "iozone -t: a value is missing"),
            ("-t 65", "-t 65: 1 to 64"),
            ("-t x", "-t \"x\": not a whole number"),
            ("-r 0", "-r 0: 1 byte"),
            ("-s 1K -r 4K", "-s 1024: at least one block of 4096"),
            ("-a", "iozone \"-a\": not known here; known are -t N"),
            ("-i 4", "-i 4: unknown; one of 0 to 3"),
            ("-r 999999999999999g", "-r \"999999999999999g\": not a size"),
            ("\u{e9}\u{e9}", "not known here"),
        ] {
            let text = parse(words, &mixed()).unwrap_err().to_string();
            assert!(text.contains(said) && !text.contains('\n'), "{text}");
        }
    }
}
