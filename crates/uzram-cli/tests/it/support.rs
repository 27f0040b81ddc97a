//! A home for servers: a state directory, commands in it, and servers that end with the test.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for a server. Only one that hangs takes longer.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The time limit of a command, in seconds: `advise` measures, and may get a tenth of a CPU.
const RUN_SECONDS_MAX: &str = "300";

/// Errors of a thread's files once it has ended.
const ENOENT: i32 = 2;
const ESRCH: i32 = 3;

pub use uzram_testkit::noise;

pub struct Home {
    pub dir: tempfile::TempDir,
}

impl Home {
    pub fn new() -> Home {
        Home {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub fn state(&self) -> PathBuf {
        self.dir.path().join("uzram")
    }

    /// The names in the state directory, sorted.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.state()).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub fn command(&self, args: &[&str]) -> Command {
        self.prepared(Command::new(env!("CARGO_BIN_EXE_uzram")), args)
    }

    fn prepared(&self, mut command: Command, args: &[&str]) -> Command {
        command.args(args).env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }

    /// Runs a command. A time limit ends one that serves where it should have been refused.
    pub fn run(&self, args: &[&str]) -> Ran {
        let mut command = Command::new("timeout");
        // Killed in the end: what hangs may take no other signal.
        command.args(["-k", "5", RUN_SECONDS_MAX, env!("CARGO_BIN_EXE_uzram")]);
        Ran::of(&self.prepared(command, args).output().unwrap())
    }

    /// Starts a server and waits until it is ready.
    pub fn serve(&self, args: &[&str]) -> Served {
        let mut served = self.start(args);
        served.wait_until_ready();
        served
    }

    /// Starts a server.
    pub fn start(&self, args: &[&str]) -> Served {
        let command = Command::new(env!("CARGO_BIN_EXE_uzram"));
        self.start_by(command, &[&["serve"], args].concat())
    }

    /// Starts a server by a program that becomes one, as `command` with `args`.
    pub fn start_by(&self, command: Command, args: &[&str]) -> Served {
        let mut command = self.prepared(command, args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Served::of(command.spawn().unwrap())
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let ran = self.run(args);
        assert_eq!(ran.status, 0, "{ran:?}");
        serde_json::from_str(&ran.stdout).unwrap()
    }
}

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(output: &Output) -> Ran {
        Ran {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout.clone()).unwrap(),
            stderr: String::from_utf8(output.stderr.clone()).unwrap(),
        }
    }

    /// It said why in one line and made nothing.
    #[track_caller]
    pub fn refused(&self, status: i32, said: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(self.stderr.starts_with("uzram: "), "{self:?}");
        assert_eq!(
            self.stderr.matches('\n').count(),
            1,
            "not one line: {self:?}"
        );
        assert!(self.stderr.contains(said), "expected {said:?}: {self:?}");
    }
}

/// A server, killed at the latest when the test ends.
pub struct Served {
    pub child: Child,
    stdout: BufReader<ChildStdout>,
    pub said: String,
}

impl Served {
    /// A server that was started with its output in pipes.
    pub fn of(mut child: Child) -> Served {
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Served {
            child,
            stdout,
            said: String::new(),
        }
    }

    /// Reads up to the last line of the welcome; panics with what was said if there is none.
    pub fn wait_until_ready(&mut self) {
        if !self.is_ready() {
            panic!("no server: {}", self.stderr());
        }
    }

    /// Whether it became a server, or else ended.
    pub fn is_ready(&mut self) -> bool {
        while self.stdout.read_line(&mut self.said).unwrap() > 0 {
            let last = self.said.lines().next_back().unwrap_or_default();
            if last.starts_with("Ctrl-C or SIGTERM ends it") {
                return true;
            }
        }
        false
    }

    pub fn stderr(&mut self) -> String {
        let mut text = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        text
    }

    /// The value of a line `  what  value` of the welcome.
    pub fn fact(&self, what: &str) -> &str {
        let line = self
            .said
            .lines()
            .find(|line| line.trim_start().starts_with(what));
        line.unwrap()
            .trim_start()
            .strip_prefix(what)
            .unwrap()
            .trim()
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Ends it, as whoever runs it would.
    #[track_caller]
    pub fn ends(&mut self) {
        self.signal("TERM");
        assert_eq!(self.wait(), Some(0));
    }

    /// The exit status; `None` if a signal killed it.
    #[track_caller]
    pub fn wait(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < until, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tries until `done` or out of patience.
#[track_caller]
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The value of a line `KEY:  value` of a thread's status.
#[track_caller]
pub fn field<'a>(status: &'a str, key: &str) -> &'a str {
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {key}: {status}")).trim()
}

/// The status of each thread that does not end meanwhile, as one that answers a request does.
pub fn statuses(served: &Served) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", served.child.id())).unwrap();
    let statuses = tasks.filter_map(|task| {
        let path = task.unwrap().path().join("status");
        match std::fs::read_to_string(&path) {
            Ok(status) => Some(status),
            Err(error) if matches!(error.raw_os_error(), Some(ENOENT | ESRCH)) => None,
            Err(error) => panic!("{path:?}: {error}"),
        }
    });
    statuses.collect()
}

/// Whether this process is root, as only root can become somebody else.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Whether a process has ended. Its parent may have, too, and then init waits for it or nobody: a zombie is as good as gone.
pub fn has_ended(pid: impl std::fmt::Display) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
}

/// A process that has ended and is not waited for.
pub fn zombie() -> Child {
    let ended = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
    let stat = format!("/proc/{}/stat", ended.id());
    eventually("a zombie", || {
        std::fs::read_to_string(&stat).unwrap().contains(") Z ")
    });
    ended
}
