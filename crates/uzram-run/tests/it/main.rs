//! Whole runs of programs that check every byte of their memory, under less than half of it.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod behaviours;
mod fence;
mod places;
mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use support::{
    Holding, can_run, check, command, example, first_line, has_ended, output_in_time, processes_of,
    run, until,
};

/// The example's own `arguments` are right under a budget of 64 MiB, and many pages have to leave for it.
fn many_leave(arguments: &[&str]) {
    if !can_run() {
        return;
    }
    let left = check(64, "budget", arguments).left;
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
    let me = example("budget");
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
    let run = check(512, "budget", &["churn", "160", "3000", "4"]);
    assert_eq!(run.left, 0);
    assert!(run.peak_bytes > 64 << 20, "{}", run.peak_bytes);
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
    let me = example("budget");
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

#[test]
fn a_killed_server_ends_all_with_a_message() {
    if !can_run() {
        return;
    }
    let holding = Holding::new();
    let program = holding.program;
    kill(Pid::from_raw(holding.server()), Signal::SIGKILL).unwrap();
    let (status, told) = holding.end();
    assert_eq!(status, Some(125), "{told}");
    assert!(has_ended(program));
    assert!(told.contains("the server was killed"), "{told}");
}

#[test]
fn a_server_that_is_told_to_end_outlives_the_program() {
    if !can_run() {
        return;
    }
    let mut holding = Holding::new();
    let server = holding.server();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        kill(Pid::from_raw(server), signal).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!has_ended(server) && holding.run.try_wait().unwrap().is_none());
    kill(Pid::from_raw(holding.program), Signal::SIGTERM).unwrap();
    assert_eq!(holding.end().0, Some(128 + 15));
}

#[test]
fn a_killed_front_ends_all() {
    if !can_run() {
        return;
    }
    let mut holding = Holding::new();
    let (program, server) = (holding.program, holding.server());
    holding.run.kill().unwrap();
    holding.end();
    until("the program ends", || has_ended(program));
    until("the server ends", || has_ended(server));
}

#[test]
fn a_killed_agent_costs_nothing() {
    if !can_run() {
        return;
    }
    let holding = Holding::new();
    let program = holding.program;
    let agents = || processes_of("uzram-agent", program as u32);
    for _ in 0..3 {
        until("an agent", || !agents().is_empty());
        for agent in agents() {
            kill(Pid::from_raw(agent), Signal::SIGKILL).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!has_ended(program));
    }
    kill(Pid::from_raw(program), Signal::SIGKILL).unwrap();
    assert_eq!(holding.end().0, Some(128 + 9));
}
