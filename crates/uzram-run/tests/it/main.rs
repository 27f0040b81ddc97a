//! Whole runs of programs that check every byte of their memory, under less than half of it.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod fence;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Time of a run on a machine that does many other things.
const RUN_TIME_MAX: Duration = Duration::from_secs(90);

/// The example, which cargo builds with the tests.
fn budget() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples/budget")
}

/// False where a machine cannot: without root, or before Linux 6.8.
fn can_run() -> bool {
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

fn command(mib: u64, program: &[&str]) -> Command {
    let mut command = Command::new(budget());
    command.args(["run", &mib.to_string(), "--"]).args(program);
    command
}

fn run(mib: u64, program: &[&str]) -> Output {
    output_in_time(&mut command(mib, program))
}

fn started(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn output_in_time(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    end_in_time(command.spawn().unwrap())
}

/// A run that hangs is ended, and fails.
fn end_in_time(mut child: Child) -> Output {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > RUN_TIME_MAX {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Runs the example's own `arguments` under a budget. Pages that left, the peak, and both outputs.
fn check(mib: u64, arguments: &[&str]) -> (u64, u64) {
    let me = budget();
    let program = [&[me.to_str().unwrap()], arguments].concat();
    let output = run(mib, &program);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}{told}");
    assert!(said.contains("right"), "{said}{told}");
    let figures = told
        .lines()
        .find(|line| line.starts_with("left "))
        .expect(&told);
    let figures: Vec<u64> = figures
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    (figures[0], figures[2])
}

/// The example's own `arguments` are right under a budget of 64 MiB, and many pages have to leave for it.
fn many_leave(arguments: &[&str]) {
    if !can_run() {
        return;
    }
    let (left, _) = check(64, arguments);
    assert!(left > 10_000, "{left} pages left");
}

#[test]
fn random_changes_of_memory_are_followed() {
    for seed in ["1", "2", "3"] {
        many_leave(&["churn", "160", "6000", seed]);
    }
}

#[test]
fn parents_and_children_have_their_own_bytes() {
    many_leave(&["forks", "112", "4"]);
}

#[test]
fn threads_come_and_go() {
    many_leave(&["threads", "160", "4"]);
}

#[test]
fn what_is_discarded_does_not_come_back() {
    many_leave(&["discards", "64", "30"]);
}

#[test]
fn a_process_becomes_another_program() {
    many_leave(&["becomes", "160"]);
}

#[test]
fn memory_that_does_not_compress_is_kept() {
    many_leave(&["noise", "160"]);
}

/// Bytes of memory that compressed pages took at most, with a file for what does not compress, and what was told.
fn spill(file: &Path) -> (u64, String) {
    let me = budget();
    let mut command = command(64, &[me.to_str().unwrap(), "noise", "320"]);
    let output = output_in_time(command.env("SPILL", file));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "right\n");
    let store = told.rsplit_once(" store ").expect(&told).1;
    (store.trim().parse().unwrap(), told)
}

#[test]
fn memory_that_does_not_compress_goes_to_a_file() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("spill");
    let (store_bytes, told) = spill(&file);
    // 256 MiB went, and 64 MiB may wait.
    assert!(store_bytes < 128 << 20, "{told}");
    assert!(!file.exists());
    // One that was there is used, and stays.
    fs::File::create(&file).unwrap();
    let (store_bytes, told) = spill(&file);
    assert!(store_bytes < 128 << 20 && file.exists(), "{told}");
    // Other people's bytes are not overwritten.
    fs::write(&file, "letters").unwrap();
    let output = output_in_time(command(64, &["true"]).env("SPILL", &file));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{told}");
    assert_eq!(fs::read(&file).unwrap(), b"letters", "{told}");
}

#[test]
fn a_full_disk_leaves_memory_where_it_is() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8m", "small", at])
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        return eprintln!("left out: nothing can be mounted");
    }
    let ran = std::panic::catch_unwind(|| spill(&directory.path().join("spill")));
    Command::new("umount").arg(at).status().unwrap();
    let (store_bytes, told) = ran.unwrap();
    assert!(store_bytes > 128 << 20, "{told}");
    let warnings = told
        .matches("what does not compress stays in memory")
        .count();
    assert_eq!(warnings, 1, "{told}");
}

#[test]
fn nothing_is_done_to_a_program_that_fits() {
    if !can_run() {
        return;
    }
    let (left, peak) = check(512, &["churn", "160", "3000", "4"]);
    assert_eq!(left, 0);
    assert!(peak > 64 << 20, "{peak}");
}

#[test]
fn a_run_ends_as_its_program_does() {
    if !can_run() {
        return;
    }
    let status = |program: &[&str]| run(64, program).status.code();
    assert_eq!(status(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(status(&["sh", "-c", "kill -TERM $$"]), Some(128 + 15));
    assert_eq!(status(&["/etc/passwd"]), Some(126));
    assert_eq!(status(&["/there/is/none"]), Some(127));
    let me = budget();
    let nested = run(64, &[me.to_str().unwrap(), "run", "64", "--", "true"]);
    assert_eq!(nested.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&nested.stderr).contains("within another"));
}

#[test]
fn signals_reach_the_program() {
    if !can_run() {
        return;
    }
    let script = "trap 'exit 42' TERM; echo up; while :; do sleep 0.05; done";
    let mut child = command(64, &["sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    first_line(&mut child);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(42));
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let output = child.stdout.as_mut().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    line
}

fn processes_of(name: &str, parent: u32) -> Vec<i32> {
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

/// A program that holds more than its budget, once some of it is compressed.
fn holding() -> (Child, i32) {
    let me = budget();
    let mut child = started(command(64, &[me.to_str().unwrap(), "holds", "160"]));
    assert_eq!(first_line(&mut child), "holds\n");
    let program = processes_of("holds", child.id())[0];
    (child, program)
}

fn has_ended(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_killed_server_ends_all_with_a_message() {
    if !can_run() {
        return;
    }
    let (mut child, program) = holding();
    let server = processes_of("serve", child.id())[0];
    kill(Pid::from_raw(server), Signal::SIGKILL).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(125));
    assert!(has_ended(program));
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(said.contains("the server was killed"), "{said}");
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    assert!(!out.contains("wrong"), "{out}");
}

#[test]
fn a_killed_front_ends_all() {
    if !can_run() {
        return;
    }
    let (mut child, program) = holding();
    let server = processes_of("serve", child.id())[0];
    child.kill().unwrap();
    child.wait().unwrap();
    until("the program ends", || has_ended(program));
    until("the server ends", || has_ended(server));
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    assert!(!out.contains("wrong"), "{out}");
}

#[test]
fn a_killed_agent_costs_nothing() {
    if !can_run() {
        return;
    }
    let (mut child, program) = holding();
    for _ in 0..3 {
        until("an agent", || {
            !processes_of("uzram-agent", program as u32).is_empty()
        });
        for agent in processes_of("uzram-agent", program as u32) {
            kill(Pid::from_raw(agent), Signal::SIGKILL).unwrap();
        }
        std::thread::sleep(Duration::from_millis(300));
        assert!(!has_ended(program));
    }
    kill(Pid::from_raw(program), Signal::SIGKILL).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9));
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    assert!(!out.contains("wrong"), "{out}");
}
