//! Machines and places where a run is refused, or is all the same to it.

use std::fs;
use std::process::{Command, Output};

use uzram_testkit::make_program;

use crate::support::{can_run, check, example, output_in_time, right, run};

/// A run of the example's `arguments` behind `script`, in mounts of its own. None where nothing can be mounted.
fn in_mounts(script: &str, arguments: &[&str]) -> Option<Output> {
    if !can_run() {
        return None;
    }
    let mut command = Command::new("unshare");
    let script = format!("{script} || exit 99; exec \"$@\"");
    let budget = example("budget");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &script,
        "sh",
    ]);
    command
        .arg(&budget)
        .args(["run", "64", "--"])
        .args(arguments);
    let output = output_in_time(&mut command);
    if output.status.code() == Some(99) {
        eprintln!("left out: nothing can be mounted");
        return None;
    }
    Some(output)
}

#[test]
fn a_run_without_proc_is_refused() {
    let Some(output) = in_mounts("mount -t tmpfs none /proc", &["true"]) else {
        return;
    };
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{told}");
    assert!(told.contains("mount -t proc"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

#[test]
fn a_root_that_cannot_be_written_is_enough() {
    let program = example("budget");
    let arguments = [program.to_str().unwrap(), "churn", "160", "6000", "9"];
    let script = "mount -o remount,bind,ro /";
    if let Some(output) = in_mounts(script, &arguments) {
        assert!(right(&output).left > 10_000);
    }
}

#[test]
fn a_program_of_another_machine_is_not_executable() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    let mut bytes = fs::read("/proc/self/exe").unwrap();
    // The machine, which no processor is.
    bytes[18..20].copy_from_slice(&[0xEE, 0xEE]);
    make_program(&program, &bytes);
    let output = run(64, &[program.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(126), "{told}");
    assert!(told.contains("Exec format error"), "{told}");
}

#[test]
fn as_process_1_it_reaps_and_passes_signals_on() {
    if !can_run() {
        return;
    }
    // An orphan ends, and is no zombie then. Process 1 is told to end, and the program ends as it likes.
    let script = "(sleep 0.1 &); sleep 0.5; grep -l '^State:.Z' /proc/[0-9]*/status && exit 9
        trap 'exit 42' TERM; kill -TERM 1; while :; do sleep 0.05; done";
    let mut command = Command::new("unshare");
    command.args(["--mount-proc", "--pid", "--fork", "--kill-child"]);
    command.arg(example("budget"));
    let output = output_in_time(command.args(["run", "64", "--", "sh", "-c", script]));
    assert_eq!(output.status.code(), Some(42), "{output:?}");
}

/// A budget below a page per thread cannot be kept, and the program ends all the same.
#[test]
fn a_budget_that_is_far_too_small_hangs_nobody() {
    if can_run() {
        assert!(check(1, "budget", &["churn", "160", "3000", "3"]).left > 1000);
        assert!(check(1, "budget", &["threads", "96", "2"]).left > 1000);
    }
}
