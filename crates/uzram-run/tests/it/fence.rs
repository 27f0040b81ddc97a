//! The group around a run's processes, and programs of other users in it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use uzram_testkit::copy_program;

use crate::support::{
    Holding, RUN_TIME_MAX, can_run, command, end_in_time, example, first_line, has_ended,
    output_in_time, processes_of, right, started, until,
};

/// The group of process `pid`, if it is one that a run has made.
fn group_of(pid: i32) -> Option<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let at = PathBuf::from(mount.split(' ').nth(4)?).join(group);
    let name = at.file_name()?.to_str()?;
    (name.starts_with("uzram-run-") && at.is_dir()).then_some(at)
}

/// A program that fills memory as fast as it can, over and over until its input ends, and its group.
fn filling() -> Option<(Child, PathBuf)> {
    let me = example("budget");
    let mut run = command(64, &[me.to_str().unwrap(), "fills", "256"]);
    let mut child = started(run.stdin(Stdio::piped()));
    assert_eq!(first_line(&mut child), "fills\n");
    let program = processes_of("fills", child.id())[0];
    match group_of(program) {
        Some(group) => Some((child, group)),
        None => {
            child.kill().unwrap();
            child.wait().unwrap();
            eprintln!("left out: no group can be made");
            None
        }
    }
}

/// Waits until the programs of the group are stopped. False if the run ends before.
fn until_stopped(child: &mut Child, group: &std::path::Path) -> bool {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < RUN_TIME_MAX, "the run does not end");
        let word = fs::read_to_string(group.join("cgroup.freeze")).unwrap_or_default();
        if word.trim() == "1" {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
fn programs_are_stopped_while_pages_leave_and_run_on() {
    if !can_run() {
        return;
    }
    let Some((mut child, group)) = filling() else {
        return;
    };
    assert!(until_stopped(&mut child, &group), "they were never stopped");
    drop(child.stdin.take());
    let output = end_in_time(child);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    until("the group is gone", || !group.exists());
}

#[test]
fn a_server_killed_while_programs_are_stopped_ends_all() {
    if !can_run() {
        return;
    }
    let Some((mut child, group)) = filling() else {
        return;
    };
    let program = processes_of("fills", child.id())[0];
    let server = processes_of("serve", child.id())[0];
    assert!(until_stopped(&mut child, &group), "they were never stopped");
    kill(Pid::from_raw(server), Signal::SIGKILL).unwrap();
    assert_eq!(end_in_time(child).status.code(), Some(125));
    assert!(has_ended(program));
    until("the group is gone", || !group.exists());
}

#[test]
fn a_front_killed_ends_all_and_leaves_no_group() {
    if !can_run() {
        return;
    }
    let mut holding = Holding::new();
    let group = group_of(holding.program);
    holding.run.kill().unwrap();
    holding.run.wait().unwrap();
    until("the program ends", || has_ended(holding.program));
    if let Some(group) = group {
        until("the group is gone", || !group.exists());
    }
}

#[test]
fn programs_of_other_users_are_served() {
    if !can_run() {
        return;
    }
    // Nobody may look into the directory that the tests are built in.
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("budget");
    copy_program(example("budget"), &program);
    let nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let churn = [program.to_str().unwrap(), "churn", "160", "6000", "6"];
    let output = output_in_time(&mut command(64, &[&nobody[..], &churn].concat()));
    let right = right(&output);
    assert!(!right.told.contains("left alone"), "{}", right.told);
    assert!(right.left > 10_000, "{} pages left", right.left);
}
