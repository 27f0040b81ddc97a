//! Runs of the programs beside, and processes looked at from outside.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Time of a run on a machine that does many other things.
pub const RUN_TIME_MAX: Duration = Duration::from_secs(90);

/// An example, which cargo builds with the tests.
pub fn example(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples").join(name)
}

/// False where a machine cannot: without root, or before Linux 6.8.
pub fn can_run() -> bool {
    let output = run(64, &["true"]);
    match output.status.code() {
        Some(0) => true,
        code => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(code, Some(125), "{said}");
            assert!(
                said.contains("use Linux") || said.contains("root"),
                "{said}"
            );
            eprintln!("left out: {said}");
            false
        }
    }
}

/// A run of `program` under a budget.
pub fn command(mib: u64, program: &[&str]) -> Command {
    let mut command = Command::new(example("budget"));
    command.args(["run", &mib.to_string(), "--"]).args(program);
    command
}

/// The same, to its end.
pub fn run(mib: u64, program: &[&str]) -> Output {
    output_in_time(&mut command(mib, program))
}

/// A run that has begun, and whose outputs are read here.
pub fn started(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The output of a run that has ended.
pub fn output_in_time(command: &mut Command) -> Output {
    end_in_time(started(command))
}

/// A run that hangs is ended, and fails.
pub fn end_in_time(mut child: Child) -> Output {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > RUN_TIME_MAX {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// A run whose program was right.
pub struct Right {
    /// Pages that left.
    pub left: u64,
    /// Bytes that were in memory at most.
    pub peak_bytes: u64,
    /// The lines of both, but for the figures.
    pub told: String,
}

/// Runs an example under a budget, and checks that it ends well and says that it is right.
pub fn check(mib: u64, name: &str, arguments: &[&str]) -> Right {
    let program = example(name);
    let output = run(mib, &[&[program.to_str().unwrap()], arguments].concat());
    right(&output)
}

/// Checks that a run has ended well, and that its program has said that it is right.
pub fn right(output: &Output) -> Right {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}{told}");
    assert!(said.ends_with("right\n"), "{said}{told}");
    let figures = told
        .lines()
        .find(|line| line.starts_with("left "))
        .expect(&told);
    let figures: Vec<u64> = figures
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    Right {
        left: figures[0],
        peak_bytes: figures[2],
        told: said + &told,
    }
}

/// The next line of its output.
pub fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let output = child.stdout.as_mut().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    line
}

/// Children of `parent` whose name or command line has this in it.
pub fn processes_of(name: &str, parent: u32) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let its_parent = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split(' ').nth(2));
        let is_child = its_parent.and_then(|word| word.parse().ok()) == Some(parent);
        if is_child && (stat.contains(name) || line.contains(name)) {
            found.push(pid);
        }
    }
    found
}

/// A run of a program that checks its memory until it is killed, some of which is compressed.
pub struct Holding {
    pub run: Child,
    pub program: i32,
    /// The line that the program has said.
    pub line: String,
}

impl Holding {
    /// Begins one by `command`, whose program has `verb` in its command line.
    pub fn begin(command: &mut Command, verb: &str) -> Holding {
        let mut run = started(command);
        let line = first_line(&mut run);
        assert!(line.starts_with("holds"), "{line}");
        let program = processes_of(verb, run.id())[0];
        Holding { run, program, line }
    }

    /// One of 160 MiB, of which 64 may be in memory.
    pub fn new() -> Holding {
        let me = example("budget");
        let program = [me.to_str().unwrap(), "holds", "160"];
        Holding::begin(&mut command(64, &program), "holds")
    }

    /// The server of the run.
    pub fn server(&self) -> i32 {
        processes_of("serve", self.run.id())[0]
    }

    /// Waits for the end of the run. Its status, and what it has told; the program has found nothing wrong.
    pub fn end(mut self) -> (Option<i32>, String) {
        let status = self.run.wait().unwrap().code();
        let (mut said, mut told) = (String::new(), String::new());
        let (out, err) = (self.run.stdout.take(), self.run.stderr.take());
        out.unwrap().read_to_string(&mut said).unwrap();
        err.unwrap().read_to_string(&mut told).unwrap();
        assert!(!said.contains("wrong"), "{said}{told}");
        (status, told)
    }
}

/// Whether a process has ended.
pub fn has_ended(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
