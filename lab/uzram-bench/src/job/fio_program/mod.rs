//! fio itself, the load that everybody knows: started as a process, its report read as JSON.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::Job;
use super::fio;
use super::run::Outcome;
use crate::corpus::PAGE_BYTES;
use crate::cpu_time::CpuTime;
use crate::error::{Error, Result};
use crate::stop::Stop;

/// Length to which fio's message of a failure is shown, in characters.
const WORDS_MAX: usize = 300;
/// How often a running fio is looked at.
const LOOK_AFTER: Duration = Duration::from_millis(10);

/// Why fio cannot be used here.
pub(crate) fn missing() -> Option<String> {
    let found = Command::new("fio").arg("--version").output();
    found
        .err()
        .map(|error| format!("fio: {error}; apt install fio"))
}

/// Has fio do `job`, which came from fio's words, on the file or device at `path`.
///
/// # Errors
/// fio's message, in a line; [`Error::Interrupted`].
pub(crate) fn run(job: &Job, path: &Path, stop: &Stop) -> Result<Outcome> {
    let mut command = on(path);
    command.args(fio::arguments(job));
    command.args(["--name=job", "--group_reporting"]);
    let report = finish(command, stop)?;
    outcome(&report["jobs"][0], job).ok_or_else(|| {
        let path = path.display();
        Error::Failed(format!("fio: a report without figures of {path}"))
    })
}

/// fio, told where and how to report.
pub(crate) fn on(path: &Path) -> Command {
    let mut command = Command::new("fio");
    // fio takes a colon in a name for a list.
    let escaped = path.to_string_lossy().replace(':', "\\:");
    command
        .arg(format!("--filename={escaped}"))
        .arg("--output-format=json")
        .stdin(Stdio::null());
    command
}

/// Runs it to its end, or until a signal: the report.
pub(crate) fn finish(mut command: Command, stop: &Stop) -> Result<Value> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| Error::io("fio", error))?;
    let output = output_unless_stopped(child, stop);
    stop.check()?;
    let output = output.map_err(|error| Error::io("fio", error))?;
    let failed = |why: &str| {
        let words: Vec<&str> = why.split_whitespace().collect();
        let words: String = words.join(" ").chars().take(WORDS_MAX).collect();
        Error::Failed(format!("fio: {words}"))
    };
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr)));
    }
    // Warnings may come before the report.
    let text = String::from_utf8_lossy(&output.stdout);
    let report = text
        .find('{')
        .map(|start| &text[start..])
        .unwrap_or_default();
    serde_json::from_str(report).map_err(|error| failed(&error.to_string()))
}

/// Waits for a child, and ends it when a signal comes to us alone.
pub(crate) fn output_unless_stopped(child: Child, stop: &Stop) -> io::Result<Output> {
    let pid = Pid::from_raw(child.id() as i32);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| child.wait_with_output());
        while !waiter.is_finished() {
            if let (Err(_), Some(pid)) = (stop.check(), pid) {
                // It has not been waited for, so the number is still its own.
                let _ = kill_process(pid, Signal::TERM);
            }
            thread::sleep(LOOK_AFTER);
        }
        let died = |_| Err(io::Error::other("the thread that waits for it panicked"));
        waiter.join().unwrap_or_else(died)
    })
}

/// The outcome in a group's report; `None` for a report of another form.
fn outcome(group: &Value, job: &Job) -> Option<Outcome> {
    let operations = |side: &str| group[side]["total_ios"].as_u64();
    let rate = |side: &str| group[side]["iops"].as_f64();
    let worst = |side: &str| group[side]["lat_ns"]["max"].as_u64();
    // Percentages of the time that the jobs took, added up.
    let time_ms = group["job_runtime"].as_f64()?;
    let cpu = |of: &str| {
        let share = group[of].as_f64()? / 100.0;
        Some(Duration::from_secs_f64((share * time_ms / 1e3).max(0.0)))
    };
    let (reads, writes) = (operations("read")?, operations("write")?);
    // Each direction has a rate of its own: the time in which all would have been done at both.
    let rates = rate("read")? + rate("write")?;
    let elapsed = Duration::try_from_secs_f64((reads + writes) as f64 / rates);
    Some(Outcome {
        reads,
        writes,
        bytes: (reads + writes) * job.block_bytes,
        elapsed: elapsed.unwrap_or_default(),
        written_pages: writes * job.block_bytes.div_ceil(PAGE_BYTES as u64),
        cpu: CpuTime {
            user: cpu("usr_cpu")?,
            system: cpu("sys_cpu")?,
        },
        worst_ns: worst("read")?.max(worst("write")?),
        ..Outcome::default()
    })
}

#[cfg(test)]
mod tests;
