//! External commands. Each runs in a process group of its own and has a time limit. It is killed
//! with its children at the limit, or when this program is asked to stop.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Bytes of a command's output that are kept. The rest is dropped.
const OUTPUT_MAX_BYTES: usize = 64 << 20;
/// Time for output that arrives after the command itself has ended.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two looks at a running command.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Process groups to end when this program is asked to stop, and how.
static GROUPS: Mutex<Vec<(Pid, Signal)>> = Mutex::new(Vec::new());

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    TimedOut(Duration),
}

/// A command that ended, with its output.
pub struct Finished {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

/// The handling of the output while the command runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Standard output is shown and kept; standard error is shown.
    Shown,
    /// Both are kept.
    Kept,
}

/// Runs `command` to its end, or kills it and all its children after `limit`.
///
/// # Errors
/// One line that names the program, if it cannot be started.
pub fn run(command: &mut Command, limit: Duration, output: Output) -> Result<Finished, String> {
    command.stdout(Stdio::piped());
    command.stderr(match output {
        Output::Shown => Stdio::inherit(),
        Output::Kept => Stdio::piped(),
    });
    let mut running = Running::start(command)?;
    let stdout = collect(running.child.stdout.take(), output == Output::Shown);
    let stderr = collect(running.child.stderr.take(), false);
    let exit = match running.wait(limit) {
        Some(status) => status.into(),
        None => {
            running.kill();
            Exit::TimedOut(limit)
        }
    };
    Ok(Finished {
        exit,
        stdout: stdout.recv_timeout(DRAIN_LIMIT).unwrap_or_default(),
        stderr: stderr.recv_timeout(DRAIN_LIMIT).unwrap_or_default(),
    })
}

/// Like [`run`] with its output kept. An end other than status 0 is an error that quotes the
/// command and its last lines.
///
/// # Errors
/// If the command cannot be started, fails, or runs past `limit`.
pub fn succeed(command: &mut Command, limit: Duration) -> Result<Finished, String> {
    let finished = run(command, limit, Output::Kept)?;
    match finished.exit {
        Exit::Code(0) => Ok(finished),
        _ => Err(failure(command, &finished)),
    }
}

/// One failed command in words.
pub fn failure(command: &Command, finished: &Finished) -> String {
    format!(
        "`{}` {}\n{}{}",
        line(command),
        finished.exit,
        tail(&finished.stdout),
        tail(&finished.stderr)
    )
}

/// The command as text to type.
pub fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name();
    let words = program.into_iter().chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// A command in its own process group; killed when dropped.
pub struct Running {
    child: Child,
    group: Pid,
    end: Signal,
}

impl Running {
    /// Starts `command` in a process group of its own.
    ///
    /// # Errors
    /// One line that names the program.
    pub fn start(command: &mut Command) -> Result<Running, String> {
        Running::start_ended_by(Signal::KILL, command)
    }

    /// Starts this program again. It is asked to end and not killed, because it has commands of its own to kill.
    ///
    /// # Errors
    /// One line that names the program.
    pub fn start_again(command: &mut Command) -> Result<Running, String> {
        Running::start_ended_by(Signal::TERM, command)
    }

    fn start_ended_by(end: Signal, command: &mut Command) -> Result<Running, String> {
        let child = command
            .process_group(0)
            .spawn()
            .map_err(|error| format!("`{}` did not start: {error}", line(command)))?;
        let group = Pid::from_child(&child);
        groups().push((group, end));
        Ok(Running { child, group, end })
    }

    /// The status, or `None` if the command still runs after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Asks the command to end.
    pub fn terminate(&self) {
        // The child is not reaped yet, so the group cannot be somebody else's.
        let _ = kill_process_group(self.group, Signal::TERM);
    }

    /// Kills the command and its children, and reaps it.
    pub fn kill(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(self.group, self.end);
            let _ = self.child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        groups().retain(|(group, _)| *group != self.group);
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Exit {
        match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => Exit::Code(-1),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "ended with status {code}"),
            Exit::Signal(signal) => write!(f, "was killed by signal {signal}"),
            Exit::TimedOut(limit) => write!(f, "ran past its {} s limit", limit.as_secs()),
        }
    }
}

/// From now on, a signal that asks this program to stop kills every running command first.
pub fn die_with_children_on_signals() {
    let Ok(mut signals) = Signals::new([SIGHUP, SIGINT, SIGTERM]) else {
        return; // Without the handler the default action ends us alone.
    };
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            for (group, end) in groups().iter() {
                let _ = kill_process_group(*group, *end);
            }
            std::process::exit(128 + signal);
        }
    });
}

fn groups() -> std::sync::MutexGuard<'static, Vec<(Pid, Signal)>> {
    GROUPS
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Reads a pipe to its end on a thread, so that a child never blocks on it; optionally shows it.
fn collect(pipe: Option<impl Read + Send + 'static>, show: bool) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let mut line = Vec::new();
        let mut reader = pipe.map(BufReader::new);
        while let Some(reader) = &mut reader {
            line.clear();
            if !matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
                break;
            }
            if show {
                let _ = std::io::stdout().write_all(&line);
            }
            if kept.len() + line.len() <= OUTPUT_MAX_BYTES {
                kept.extend_from_slice(&line);
            }
        }
        // The receiver may have given up; then nobody wants the text.
        let _ = sender.send(String::from_utf8_lossy(&kept).into_owned());
    });
    receiver
}

/// The last lines of a text, indented.
fn tail(text: &str) -> String {
    const LINES: usize = 15;
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(LINES);
    lines[first..]
        .iter()
        .fold(String::new(), |tail, line| tail + "    " + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_past_its_limit_dies_with_its_children() {
        let started = Instant::now();
        // The shell's child holds the pipe open for as long as it lives.
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; sleep 30 & sleep 30"]);
        let finished = run(&mut command, Duration::from_millis(300), Output::Kept).unwrap();
        assert_eq!(finished.exit, Exit::TimedOut(Duration::from_millis(300)));
        assert_eq!(finished.stdout, "begun\n");
        // Had the grandchild survived, the pipe would have stayed open for DRAIN_LIMIT.
        assert!(started.elapsed() < DRAIN_LIMIT);
    }

    #[test]
    fn failures_quote_the_command_and_its_last_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let message = succeed(&mut command, Duration::from_secs(10))
            .err()
            .unwrap();
        assert!(message.contains("exit 3` ended with status 3"), "{message}");
        assert!(
            message.contains("    out\n") && message.contains("    err\n"),
            "{message}"
        );
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let message = succeed(&mut Command::new("no-such-program"), DRAIN_LIMIT)
            .err()
            .unwrap();
        assert!(
            message.starts_with("`no-such-program` did not start"),
            "{message}"
        );
    }
}
