//! The program that needs more memory than it may have: strings in a memory cgroup.
//!
//! It is this very program, started again, and joins its cgroup before it allocates anything. Each
//! string counts its references in its own memory, as those of Python do, so a scan that holds each
//! of them for a moment reads a page and writes it.

use std::fs::OpenOptions;
use std::hint::black_box;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::job::fio_program::output_unless_stopped;
use crate::stop::Stop;
use uzram_testkit::Rng;

/// Bytes of a string, its number in front included.
const STRING_BYTES: usize = 1000;
const NUMBER_BYTES: usize = 8;
/// Bytes that a string takes: the two counts of its references, and what malloc adds.
const PLACE_BYTES: u64 = STRING_BYTES as u64 + 16 + 8;
/// Strings touched at random.
const TOUCHES: usize = 20_000;
/// Where swap stands still the program ends by itself.
const LIMIT: Duration = Duration::from_secs(300);
/// Strings between two looks at the clock.
const LOOK_AFTER: usize = 256;

/// Seconds of its three parts: allocation, two scans, touches at random.
pub(super) type Seconds = [f64; 3];

/// Runs the program with `bytes` of strings in the cgroup that has this file of processes.
///
/// # Errors
/// Its message, or how it ended; [`Error::Interrupted`].
pub(super) fn run(bytes: u64, processes: &Path, stop: &Stop) -> Result<Seconds> {
    let own = std::env::current_exe().map_err(|error| Error::io("own program", error))?;
    let mut command = Command::new(own);
    command
        .args(["devices", "--swap-program"])
        .arg(format!("{bytes}:{}", processes.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command
        .spawn()
        .map_err(|error| Error::io("swapping program", error))?;
    let output = output_unless_stopped(child, stop);
    stop.check()?;
    let output = output.map_err(|error| Error::io("swapping program", error))?;
    let said = String::from_utf8_lossy(&output.stdout);
    parse(&said)
        .filter(|_| output.status.success())
        .ok_or_else(|| {
            let errors = String::from_utf8_lossy(&output.stderr);
            let last = errors.lines().next_back().unwrap_or_default();
            Error::Failed(format!("swapping program: {}: {last}", output.status))
        })
}

fn parse(said: &str) -> Option<Seconds> {
    let mut numbers = said.split_whitespace().map(|word| word.parse().ok());
    let mut next = || numbers.next().flatten();
    Some([next()?, next()?, next()?])
}

/// Runs as the hidden option says: `BYTES:FILE`, the file that makes a process a cgroup's.
///
/// # Errors
/// [`Error::Failed`] if it cannot join the cgroup, or a string is not what it was.
pub(super) fn child(text: &str) -> Result<()> {
    let parts = text.split_once(':');
    let parts = parts.and_then(|(bytes, file)| Some((bytes.parse::<u64>().ok()?, file)));
    let (bytes, file) =
        parts.ok_or_else(|| Error::Usage(format!("swap-program {text:?}: BYTES:FILE")))?;
    join(file).map_err(|error| Error::io(file, error))?;
    let [allocation, scans, touches] = work((bytes / PLACE_BYTES) as usize, LIMIT)?;
    println!("{allocation} {scans} {touches}");
    Ok(())
}

/// Makes this process one of the cgroup's. Only the kernel makes such a file.
fn join(processes: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(processes)?;
    file.write_all(std::process::id().to_string().as_bytes())
}

fn work(count: usize, limit: Duration) -> Result<Seconds> {
    let text = text();
    let started = Instant::now();
    let lap = |since: Instant| (since.elapsed().as_secs_f64(), Instant::now());
    let in_time = |step: usize| match step.is_multiple_of(LOOK_AFTER) && started.elapsed() > limit {
        true => Err(Error::Failed(format!("not done in {} s", limit.as_secs()))),
        false => Ok(()),
    };
    let mut strings: Vec<Rc<str>> = Vec::with_capacity(count);
    for number in 0..count {
        in_time(number)?;
        let start = number * 7919 % (text.len() - STRING_BYTES);
        let rest = &text[start..][..STRING_BYTES - NUMBER_BYTES];
        strings.push(format!("{number:0NUMBER_BYTES$x}{rest}").into());
    }
    let (allocation, since) = lap(started);
    for number in (0..count).chain(0..count) {
        in_time(number)?;
        look(&strings, number)?;
    }
    let (scans, since) = lap(since);
    let mut rng = Rng::new(5);
    for step in 0..TOUCHES {
        in_time(step)?;
        look(&strings, rng.below(count))?;
    }
    let (touches, _) = lap(since);
    // Their end is nobody's business: it would read all of them once more.
    std::mem::forget(strings);
    Ok([allocation, scans, touches])
}

/// Words, so that pages compress as text does.
fn text() -> String {
    let [(_, pages), ..] = uzram_testkit::pages::synthetic();
    String::from_utf8_lossy(&pages).into_owned()
}

/// Holds a string for a moment, which writes to it, and looks whether it is the one that it was.
fn look(strings: &[Rc<str>], number: usize) -> Result<()> {
    let held = black_box(Rc::clone(&strings[number]));
    match usize::from_str_radix(&held[..NUMBER_BYTES], 16) {
        Ok(found) if found == number => Ok(()),
        _ => Err(Error::Failed(format!("string {number} is not what it was"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_says_three_times_or_why_not() {
        let seconds = work(2000, LIMIT).unwrap();
        assert!(seconds.iter().all(|seconds| *seconds > 0.0), "{seconds:?}");
        let late = work(2000, Duration::ZERO).unwrap_err().to_string();
        assert_eq!(late, "not done in 0 s");
        assert_eq!(parse("1.5 2 0.25\n"), Some([1.5, 2.0, 0.25]));
        assert_eq!(parse("1.5 2\n"), None);
    }

    #[test]
    fn a_string_that_changed_is_noticed() {
        let strings: [Rc<str>; 2] = ["00000000 a".into(), "00000002 b".into()];
        assert!(look(&strings, 0).is_ok());
        assert!(look(&strings, 1).is_err());
    }

    #[test]
    fn without_a_cgroup_nothing_is_allocated() {
        let error = child("1000000000000:/nowhere/cgroup.procs").unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/cgroup.procs: "));
        assert_eq!(child("1:").unwrap_err().exit_status(), 1);
        assert_eq!(child("x:y").unwrap_err().exit_status(), 2);
    }
}
