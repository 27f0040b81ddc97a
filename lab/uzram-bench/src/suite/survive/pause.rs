//! A server with a holder, killed again and again.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command;
use crate::error::{Error, Result};
use crate::sample::Series;
use crate::suite::nbd::client::{Connection, Line, REQUEST_MAX_BYTES};
use crate::suite::nbd::server::Server;
use crate::suite::nbd::start_uzram;
use crate::suite::{Options, SUBJECT};
use crate::workload::Workload;

/// Longest time for a successor.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Time for the maintenance to make huge pages, at most.
const SETTLE_TIME: Duration = Duration::from_secs(60);
/// Looks without a change of the system's count after which it is done.
const SETTLED_LOOKS: u32 = 4;
/// Time between two kills.
const SERVE_TIME: Duration = Duration::from_millis(500);
/// The words of `last_end` before its time in milliseconds.
const BEFORE_TIME: &str = "nobody served for ";

/// A disk of a server that is killed.
struct Disk {
    /// The folder of its state.
    folder: PathBuf,
    name: String,
}

/// The pauses of `kills` servers, in milliseconds, of a disk that holds `bytes` of the workload's pages.
pub(super) fn measure(
    options: &Options,
    workload: &Workload,
    algorithm: &str,
    bytes: u64,
    kills: u32,
) -> Result<Series> {
    let server = start_uzram(algorithm, bytes, &["--survive", "--no-sandbox"])?;
    let disk = Disk {
        folder: server.socket().with_file_name(""),
        name: server.export.clone(),
    };
    fill(&server, workload, bytes)?;
    disk.settle()?;
    let mut pauses = Series::default();
    for _ in 0..kills {
        options.stop.check()?;
        let before = disk.told()?;
        let pid = before["pid"].as_i64().unwrap_or_default();
        kill(pid)?;
        pauses.push(disk.pause_after(pid)?);
        thread::sleep(SERVE_TIME);
    }
    Ok(pauses)
}

fn fill(server: &Server, workload: &Workload, bytes: u64) -> Result<()> {
    let mut connection = Connection::open(&server.socket(), &server.export)?;
    let pieces = workload.input().chunks_exact(REQUEST_MAX_BYTES).cycle();
    let offsets = (0..bytes).step_by(REQUEST_MAX_BYTES);
    for (offset, piece) in offsets.zip(pieces) {
        connection.write(0, offset, piece);
        connection.send()?;
        let mut is_answered = false;
        while !is_answered {
            connection.receive(&|cookie| (cookie == 0).then_some(0), &mut |_| {
                is_answered = true;
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn kill(pid: i64) -> Result<()> {
    let killed = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let killed =
        killed.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
    match killed {
        Some(Ok(())) => Ok(()),
        _ => Err(Error::Failed(format!("process {pid} cannot be killed"))),
    }
}

impl Disk {
    /// Waits until the system counts no more huge pages than before.
    fn settle(&self) -> Result<()> {
        let until = Instant::now() + SETTLE_TIME;
        let (mut before, mut steady) = (String::new(), 0);
        while steady < SETTLED_LOOKS && Instant::now() < until {
            thread::sleep(SERVE_TIME);
            let pid = self.told()?["pid"].as_u64().unwrap_or_default();
            let file = format!("/proc/{pid}/smaps_rollup");
            let text = std::fs::read_to_string(&file).map_err(|error| Error::io(&file, error))?;
            let lines = text.lines().filter(|line| line.contains("PmdMapped"));
            let now: String = lines.collect();
            steady = if now == before { steady + 1 } else { 0 };
            before = now;
        }
        Ok(())
    }

    /// The attributes of the disk, once somebody tells.
    fn told(&self) -> Result<Value> {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut stat = Command::new(command::beside(SUBJECT));
            stat.env("XDG_RUNTIME_DIR", &self.folder);
            stat.args(["stat", &self.name, "--json"])
                .stderr(Stdio::null());
            let output = stat
                .output()
                .map_err(|error| Error::io("uzram stat", error))?;
            if let Ok(told) = serde_json::from_slice(&output.stdout) {
                return Ok(told);
            }
            if Instant::now() > until {
                return Err(Error::Failed("no server follows the killed one".into()));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// The pause after the death of `pid`, in milliseconds.
    fn pause_after(&self, pid: i64) -> Result<f64> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let told = self.told()?;
            let last_end = told["last_end"].as_str().unwrap_or_default();
            if last_end.starts_with(&format!("process {pid} "))
                && let Some((_, time)) = last_end.split_once(BEFORE_TIME)
                && let Some(Ok(ms)) = time.split(' ').next().map(str::parse)
            {
                return Ok(ms);
            }
            thread::sleep(LOOK_AGAIN);
        }
        Err(Error::Failed("no server tells of the killed one".into()))
    }
}
