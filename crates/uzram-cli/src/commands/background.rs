//! A server in the background: `serve --fork`, and `serve --run COMMAND`, as nbdkit has them.
//!
//! A server that serves runs nothing and starts nobody (its sandbox), so another process of this program
//! starts it, waits until it is ready, and goes away, or runs the command and then ends it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{StateAt, down, plain, stat};
use crate::failure::{Failure, Result};
use crate::output::{print, warn};
use crate::signals::Signals;

/// The beginning of the last line of a server that is ready.
const READY: &str = "Ctrl-C or SIGTERM ends it";
/// The beginning of its lines on standard error, which are passed on.
const LOG: &str = "uzram: ";
/// Longest output until then, in bytes: 1024 disks have a line each.
const READY_BYTES_MAX: u64 = 1 << 20;
/// Pause between two looks at a program.
const PAUSE: Duration = Duration::from_millis(20);
/// A shell's status of a program that a signal ended is this and the signal's number.
const SIGNALLED: i32 = 128;

/// A server that is ready. Dropping it leaves it alone.
pub struct Background {
    child: Child,
    /// The lines that it said, without the last one.
    said: String,
}

impl Background {
    /// Starts `uzram serve` with `arguments` and waits until it is ready. If it fails, it has said why
    /// itself, and this process ends with its status.
    pub fn start(arguments: Vec<OsString>) -> Result<Background> {
        let failed = |error: std::io::Error| Failure::Failed(format!("serve: {error}"));
        let program = std::env::current_exe().map_err(failed)?;
        // One pipe for both, and no thread: the kernel tells a server of the end of each thread here.
        let (output, writer) = std::io::pipe().map_err(failed)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .arg("--own-session")
            .stdin(Stdio::null())
            .stdout(writer.try_clone().map_err(failed)?)
            .stderr(writer);
        let mut child = command.spawn().map_err(failed)?;
        // It holds the ends of the pipe that only the server should have.
        drop(command);
        // Whatever it says until it is ready; later nobody reads, so that no terminal is held.
        let mut said = String::new();
        let mut is_ready = false;
        for line in BufReader::new(output.take(READY_BYTES_MAX)).lines() {
            let line = line.map_err(failed)?;
            is_ready = line.starts_with(READY);
            match line.strip_prefix(LOG) {
                _ if is_ready => break,
                Some(logged) => warn(logged),
                None => said.push_str(&format!("{line}\n")),
            }
        }
        if !is_ready {
            let status = child.wait().map_err(failed)?;
            std::process::exit(code(status));
        }
        Ok(Background { child, said })
    }

    /// Its lines, for whoever started it.
    pub fn welcome(&self) -> Result {
        let pid = self.child.id();
        print(&format!(
            "{}kill {pid} ends it, and what it holds in memory is lost.\n",
            self.said
        ))
    }

    /// Runs `command` by the shell, with the first disk's address as `$uri` and its name as `$name`, and
    /// ends the server with it. Returns the command's status.
    pub fn run(mut self, state: StateAt<'_>, command: &str) -> Result<i32> {
        let mut signals = Signals::catch(false)?;
        let outcome = self.first_disk(state).and_then(|(name, uri)| {
            let shell = Command::new("/bin/sh")
                .args(["-c", command])
                .env("uri", uri)
                .env("name", name)
                .spawn();
            shell.map_err(|error| Failure::Failed(format!("--run: /bin/sh: {error}")))
        });
        let status = outcome.and_then(|mut shell| wait(&mut shell, &mut signals));
        down::end(&mut self.child);
        status.map(code)
    }

    /// The name and the address of its first disk.
    pub fn first_disk(&self, state: StateAt<'_>) -> Result<(String, String)> {
        let state = state.open_to_ask()?;
        let pid = self.child.id();
        let mut entries = state.entries()?.into_iter();
        let of_it =
            entries.find(|entry| entry.owner.as_ref().is_some_and(|owner| owner.is_of(pid)));
        let Some(entry) = of_it else {
            return Ok((String::new(), String::new()));
        };
        let uri = stat(&state, &entry)?.get("endpoint").map(plain);
        Ok((entry.name, uri.unwrap_or_default()))
    }
}

/// Waits for `shell`; a signal to this process is one to it.
fn wait(shell: &mut Child, signals: &mut Signals) -> Result<ExitStatus> {
    loop {
        let ended = shell.try_wait();
        let ended = ended.map_err(|error| Failure::Failed(format!("--run: {error}")))?;
        if let Some(status) = ended {
            return Ok(status);
        }
        if signals.is_ending() {
            let _ = kill_process(Pid::from_child(shell), Signal::TERM);
        }
        thread::sleep(PAUSE);
    }
}

/// As a shell tells it.
fn code(status: ExitStatus) -> i32 {
    let signalled = || SIGNALLED + status.signal().unwrap_or(0);
    status.code().unwrap_or_else(signalled)
}
