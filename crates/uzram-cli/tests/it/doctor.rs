//! `uzram doctor` on this machine: all facts are there, whoever asks and whatever is hidden from it.

use std::process::Command;

use crate::support::{Home, Ran, is_root};

const SUBJECTS: [&str; 11] = [
    "zram",
    "zswap",
    "swap",
    "ublk",
    "nbd",
    "fuse",
    "loop",
    "userfaultfd",
    "move",
    "cgroup",
    "psi",
];
const STATES: [&str; 5] = ["yes", "off", "refused", "no", "unknown"];
const COLUMNS: usize = 80;

#[test]
fn each_fact_has_a_line_that_fits_a_terminal() {
    let home = Home::new();
    let output = home
        .command(&["doctor"])
        .env("COLUMNS", COLUMNS.to_string())
        .output();
    let ran = Ran::of(&output.unwrap());
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{ran:?}");
    assert!(ran.stdout.starts_with("Linux "), "{ran:?}");
    for subject in SUBJECTS {
        let line = |line: &&str| line.split_whitespace().next() == Some(subject);
        let found = ran.stdout.lines().filter(line).count();
        assert_eq!(found, 1, "{subject}: {}", ran.stdout);
    }
    let advice = ran.stdout.split_once("Best here: ").unwrap().1;
    assert!(advice.contains("\nprice "), "{advice}");
    // But for the command, which is one line to copy.
    for line in ran.stdout.lines().filter(|line| !line.starts_with("  ")) {
        assert!(line.chars().count() <= COLUMNS, "{line:?}");
    }
    // It makes no state directory.
    assert!(!home.state().exists());
}

#[test]
fn the_same_as_json() {
    let said = Home::new().json(&["doctor", "--json"]);
    check(&said);
    assert!(
        said["kernel"].is_string() && said["ram_bytes"].as_u64() > Some(0),
        "{said}"
    );
}

#[test]
fn nothing_is_guessed_for_who_sees_nothing() {
    if !is_root() {
        return eprintln!("left out: only root hides /proc and /sys from a process");
    }
    let home = Home::new();
    let hide = "mount -t tmpfs none /proc && mount -t tmpfs none /sys && mount -t tmpfs none /dev && exec \"$0\" \
                doctor --json";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", hide, env!("CARGO_BIN_EXE_uzram")]);
    let ran = Ran::of(
        &command
            .env("XDG_RUNTIME_DIR", home.dir.path())
            .output()
            .unwrap(),
    );
    if ran.stderr.contains("Operation not permitted") {
        return eprintln!("left out: this root may not mount: {}", ran.stderr);
    }
    assert_eq!(ran.status, 0, "{ran:?}");
    let said: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    check(&said);
    for name in [
        "zram", "zswap", "swap", "ublk", "nbd", "fuse", "loop", "cgroup", "psi",
    ] {
        assert_eq!(state(&said, name), "unknown", "{name}: {said}");
    }
    assert_eq!(said["advice"]["command"], "uzram serve --size 1G", "{said}");
}

#[test]
fn a_user_without_rights_is_told_so() {
    if !is_root() {
        return eprintln!("left out: only root can become somebody else");
    }
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--no-new-privs",
    ]);
    let ran = Ran::of(
        &command
            .args([env!("CARGO_BIN_EXE_uzram"), "doctor", "--json"])
            .output()
            .unwrap(),
    );
    if ran.status == 126 || ran.status == 127 {
        return eprintln!("left out: nobody may not reach the program: {}", ran.stderr);
    }
    assert_eq!(ran.status, 0, "{ran:?}");
    let said: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    check(&said);
    assert_eq!(said["rights"]["root"], false, "{said}");
    let command = said["advice"]["command"].as_str().unwrap_or_default();
    assert!(
        !command.contains("up ") && !command.contains("swapon"),
        "{said}"
    );
}

/// Every subject has one fact, and the advice has its price.
fn check(said: &serde_json::Value) {
    let facts = said["facts"].as_array().unwrap();
    let names: Vec<&str> = facts
        .iter()
        .map(|fact| fact["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, SUBJECTS);
    for fact in facts {
        assert!(STATES.contains(&fact["state"].as_str().unwrap()), "{fact}");
        let is_said = |key: &str| fact[key].as_str().is_some_and(|text| !text.is_empty());
        assert!(is_said("detail") && is_said("source"), "{fact}");
    }
    assert!(
        said["advice"]["price"].is_string() && said["advice"]["goal"].is_string(),
        "{said}"
    );
}

fn state<'a>(said: &'a serde_json::Value, name: &str) -> &'a str {
    let mut facts = said["facts"].as_array().unwrap().iter();
    facts.find(|fact| fact["name"] == name).unwrap()["state"]
        .as_str()
        .unwrap()
}
