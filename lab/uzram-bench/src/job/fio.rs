//! fio's words: a job as its job files and its command line say it, and back.

use super::buffers::{Buffers, Filled};
use super::{Calls, Clock, Job, Mix, Order, Sharing, Test, Words, parse_number, parse_size};
use crate::error::{Error, Result};

pub(super) const WORDS: Words = Words {
    block: "bs",
    size: "size",
    workers: "numjobs",
};
const BLOCK_BYTES: u64 = 4 << 10;
/// Longest `buffer_pattern`, in bytes: fio's own limit.
const PATTERN_MAX_BYTES: usize = 512;
const KNOWN: &str = "rw, bs, size, numjobs, loops, randseed, refill_buffers, scramble_buffers, \
                     buffer_compress_percentage, buffer_pattern, direct";

/// fio's six tests, by their names.
pub(crate) const TESTS: [Test; 6] = [
    test("read", Order::Forward, Mix::Reads),
    test("randread", Order::Random, Mix::Reads),
    WRITE,
    test("randwrite", Order::Random, Mix::Writes),
    test("rw", Order::Forward, Mix::Half),
    test("randrw", Order::Random, Mix::Half),
];
pub(crate) const WRITE: Test = test("write", Order::Forward, Mix::Writes);

/// A test of fio's.
pub(crate) const fn test(name: &'static str, order: Order, mix: Mix) -> Test {
    Test {
        name,
        order,
        mix,
        calls: Calls::Positioned,
    }
}

/// The job that `text` describes: words as `rw=randrw bs=32k size=10m numjobs=4 loops=3`, each with or
/// without two dashes in front.
///
/// Words about fio itself (the name, a synchronous engine, the form of its report) are accepted and mean
/// nothing here.
///
/// # Errors
/// [`Error::Usage`] for a word that is not known here, or a value that cannot be.
pub(crate) fn parse(text: &str) -> Result<Job> {
    let mut test = TESTS[0];
    let mut block_bytes = BLOCK_BYTES;
    let mut size_bytes = None;
    let (mut workers, mut loops, mut seed) = (1, 1, 0);
    let mut is_direct = true;
    let mut filled = Filled::default();
    for word in text.split_whitespace() {
        let word = word.trim_start_matches("--");
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let text = value.unwrap_or_default();
        match name {
            "rw" | "readwrite" => test = test_of(text)?,
            "bs" | "blocksize" => block_bytes = parse_size("bs", text, 1)?,
            "size" => size_bytes = Some(parse_size("size", text, 1)?),
            "numjobs" => workers = parse_number(name, text)?,
            "loops" => loops = parse_number(name, text)?,
            "randseed" => seed = parse_number(name, text)?,
            "direct" => is_direct = parse_bool(name, value)?,
            "refill_buffers" => filled.is_refilled = parse_bool(name, value)?,
            "scramble_buffers" => filled.is_scrambled = parse_bool(name, value)?,
            "buffer_compress_percentage" => {
                filled.compress_percentage = Some(parse_number(name, text)?);
            }
            "buffer_pattern" => filled.pattern = pattern(text)?,
            "ioengine" if ["sync", "psync", "pvsync", "pvsync2"].contains(&text) => {}
            "iodepth" if text == "1" => {}
            "name" | "randrepeat" | "group_reporting" | "thread" | "stonewall" => {}
            _ => {
                let text = format!("fio {word:?}: not known here; known are {KNOWN}");
                return Err(Error::Usage(text));
            }
        }
    }
    let missing = || Error::Usage("fio size: missing; say how much a job covers".to_owned());
    // A percentage other than 100 turns refilling on, as fio's manual says.
    filled.is_refilled |= filled.compress_percentage.is_some_and(|of| of != 100);
    let job = Job {
        name: test.name.to_owned(),
        order: test.order,
        mix: test.mix,
        calls: test.calls,
        block_bytes,
        size_bytes: size_bytes.ok_or_else(missing)?,
        workers,
        sharing: Sharing::Together,
        loops,
        seed,
        buffers: Buffers::Filled(filled),
        is_direct,
        clock: Clock::LastDone,
        starts_fresh: false,
    };
    job.checked(WORDS)
}

/// The words for fio itself to do `job`, which came from [`parse`]; without the file's name.
pub(crate) fn arguments(job: &Job) -> Vec<String> {
    let mut words = vec![
        format!("--rw={}", job.name),
        format!("--bs={}", job.block_bytes),
        format!("--size={}", job.size_bytes),
        format!("--numjobs={}", job.workers),
        format!("--loops={}", job.loops),
        format!("--randseed={}", job.seed),
        format!("--direct={}", u8::from(job.is_direct)),
        "--ioengine=psync".to_owned(),
        "--thread".to_owned(),
    ];
    if let Buffers::Filled(filled) = &job.buffers {
        words.push(format!("--refill_buffers={}", u8::from(filled.is_refilled)));
        words.push(format!(
            "--scramble_buffers={}",
            u8::from(filled.is_scrambled)
        ));
        let percentage = filled.compress_percentage;
        words.extend(percentage.map(|of| format!("--buffer_compress_percentage={of}")));
        if !filled.pattern.is_empty() {
            let digits = filled.pattern.iter().map(|byte| format!("{byte:02x}"));
            words.push(format!("--buffer_pattern=0x{}", digits.collect::<String>()));
        }
    }
    words
}

fn test_of(name: &str) -> Result<Test> {
    let name = if name == "readwrite" { "rw" } else { name };
    let found = TESTS.into_iter().find(|test| test.name == name);
    found.ok_or_else(|| {
        let known = TESTS.map(|test| test.name).join(", ");
        Error::Usage(format!("rw {name:?}: unknown; one of {known}"))
    })
}

fn parse_bool(name: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(other) => Err(Error::Usage(format!("{name} {other:?}: 0 or 1"))),
    }
}

/// Bytes of a pattern: hexadecimal digits behind `0x`, text between double quotes, any number of both.
fn pattern(text: &str) -> Result<Vec<u8>> {
    let refused = || {
        let forms = "hexadecimal as 0xdeadface, or \"text\"";
        Error::Usage(format!("buffer_pattern {text:?}: {forms}"))
    };
    let mut bytes = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("0x") {
            let digits = after.len()
                - after
                    .trim_start_matches(|c: char| c.is_ascii_hexdigit())
                    .len();
            if digits == 0 || digits % 2 != 0 {
                return Err(refused());
            }
            let pairs = (0..digits).step_by(2).map(|at| &after[at..at + 2]);
            let parsed = pairs.map(|pair| u8::from_str_radix(pair, 16));
            bytes.extend(
                parsed
                    .collect::<Result<Vec<u8>, _>>()
                    .map_err(|_| refused())?,
            );
            rest = &after[digits..];
        } else {
            let quoted = rest.strip_prefix('"').and_then(|rest| rest.split_once('"'));
            let (inside, after) = quoted.ok_or_else(refused)?;
            bytes.extend_from_slice(inside.as_bytes());
            rest = after;
        }
    }
    match bytes.len() {
        1..=PATTERN_MAX_BYTES => Ok(bytes),
        _ => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Filled {
        match parse(text).unwrap().buffers {
            Buffers::Filled(filled) => filled,
            Buffers::Pages(_) => panic!("pages"),
        }
    }

    #[test]
    fn a_published_job_is_understood_and_said_back() {
        let words = "--bs=32k --randrepeat=1 --randseed=100 --refill_buffers --scramble_buffers=1 \
                     --direct=1 --loops=3000 --numjobs=4 --rw=randrw --size=10m";
        let job = parse(words).unwrap();
        assert_eq!(job.name, "randrw");
        assert_eq!((job.block_bytes, job.size_bytes), (32 << 10, 10 << 20));
        assert_eq!((job.workers, job.loops, job.seed), (4, 3000, 100));
        assert_eq!(job.device_bytes(), 10 << 20, "all on the same blocks");
        let said = arguments(&job).join(" ");
        assert_eq!(parse(&said).unwrap(), job);
    }

    #[test]
    fn buffers_are_as_the_manual_says() {
        let plain = filled("size=1m");
        assert!(plain.is_scrambled && !plain.is_refilled, "fio's defaults");
        assert!(!filled("size=1m scramble_buffers=0").is_scrambled);
        assert!(filled("size=1m refill_buffers").is_refilled);
        let half = filled("size=1m buffer_compress_percentage=50");
        assert!(half.is_refilled, "turned on by the percentage");
        assert_eq!(half.compress_percentage, Some(50));
        let pattern = filled("size=1m buffer_pattern=0xDEADface\"ab\"").pattern;
        assert_eq!(pattern, b"\xde\xad\xfa\xceab");
        let said = parse("size=1m buffer_pattern=\"uzram\" rw=write").unwrap();
        assert_eq!(parse(&arguments(&said).join(" ")).unwrap(), said);
    }

    #[test]
    fn what_is_not_fios_is_refused_in_a_line() {
        for (words, said) in [
            ("rw=write", "fio size: missing"),
            (
                "rw=trim size=1m",
                "rw \"trim\": unknown; one of read, randread",
            ),
            ("size=1m bs=x", "bs \"x\": not a size"),
            ("size=1m numjobs=65", "numjobs 65: 1 to 64"),
            ("size=1m numjobs=-1", "numjobs \"-1\": not a whole number"),
            ("size=1m iodepth=4", "fio \"iodepth=4\": not known here"),
            (
                "size=1m ioengine=libaio",
                "not known here; known are rw, bs",
            ),
            ("size=1m refill_buffers=2", "refill_buffers \"2\": 0 or 1"),
            (
                "size=1m buffer_pattern=0xabc",
                "buffer_pattern \"0xabc\": hexadecimal",
            ),
            ("size=1m buffer_pattern=", "buffer_pattern \"\""),
            ("size=1m buffer_pattern=-12", "buffer_pattern \"-12\""),
            (
                "size=1m buffer_compress_percentage=101",
                "buffer_compress_percentage 101",
            ),
            ("size=1m bs=1k direct=0 loops=0", "loops 0: 1 to"),
        ] {
            let text = parse(words).unwrap_err().to_string();
            assert!(text.contains(said) && !text.contains('\n'), "{text}");
        }
    }
}
