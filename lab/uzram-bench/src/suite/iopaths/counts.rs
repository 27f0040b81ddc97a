//! How many instructions a path takes, by callgrind: this program runs itself under it, twice a path with
//! different numbers of calls, and takes the difference.

use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::swap::IoPath;
use uzram::{
    Bio, BioPool, BlockDevice, Direction, EndIo, PageBuffer, PageIndex, PageTransfer, Waiter,
};

use super::devices::Nothing;
use crate::error::{Error, Result};

/// Calls of the two runs.
const CALLS: [u64; 2] = [1_000, 11_000];

/// Hands `device` a page `calls` times by `path`, for the time of the way alone.
pub(super) fn call(device: &dyn BlockDevice, path: IoPath, calls: u64) -> Result<()> {
    let mut buffer: PageBuffer = Box::new([1; 4096]);
    let pool = BioPool::new(16)?;
    let waiter = Arc::new(Waiter::default());
    for call in 0..calls {
        let page = PageIndex(call % 1024);
        match path {
            IoPath::RwPage => device.rw_page(page, PageTransfer::Write(&buffer))?,
            IoPath::OnStackBio => device.submit(Bio::Write {
                offset: page.0 * 4096,
                data: &buffer[..],
            })?,
            IoPath::AllocatedBio => {
                let end = Arc::clone(&waiter) as Arc<dyn EndIo>;
                device.queue(pool.allocate(page, Direction::Write, buffer, end));
                let done = waiter.wait();
                done.result?;
                buffer = done.buffer;
            }
        }
    }
    Ok(())
}

/// Carries out the hidden option `PATH:CALLS`, PATH a number.
pub(super) fn child(text: &str) -> Result<()> {
    let wrong = || Error::Usage(format!("count-calls {text:?}: PATH:CALLS"));
    let (path, calls) = text.split_once(':').ok_or_else(wrong)?;
    let path: usize = path.parse().map_err(|_| wrong())?;
    let calls = calls.parse().map_err(|_| wrong())?;
    call(&Nothing, *IoPath::ALL.get(path).ok_or_else(wrong)?, calls)
}

/// Instructions of one call by each path.
///
/// # Errors
/// Why there are no counts, in a line.
pub(super) fn instructions() -> Result<[f64; 3], String> {
    let mut counts = [0.0; 3];
    for (path, count) in counts.iter_mut().enumerate() {
        let [few, many] = CALLS;
        let difference = collected(path, many)?.saturating_sub(collected(path, few)?);
        *count = difference as f64 / (many - few) as f64;
    }
    Ok(counts)
}

/// Instructions of a run.
fn collected(path: usize, calls: u64) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["iopaths", "--count-calls", &format!("{path}:{calls}")])
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| format!("valgrind: {error}; apt-get install valgrind"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let count = said
        .lines()
        .find_map(|line| line.split_once("Collected : "));
    let count = count.and_then(|(_, count)| count.trim().parse().ok());
    count.ok_or_else(|| {
        let last = said.lines().next_back().unwrap_or_default();
        format!("valgrind counted nothing ({}): {last}", output.status)
    })
}
