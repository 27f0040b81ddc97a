//! `uzram bench` hands over to a program of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use uzram_testkit::{copy_program, make_program};

use crate::support::Home;

/// A copy of `uzram` in a folder in which nothing else lies.
fn alone(home: &Home) -> PathBuf {
    let folder = home.dir.path().join("bin");
    fs::create_dir(&folder).unwrap();
    let program = folder.join("uzram");
    copy_program(env!("CARGO_BIN_EXE_uzram"), &program);
    program
}

/// A program that says how it was called, and ends with status 7.
fn stand_in(folder: &Path, name: &str) {
    let script = format!("#!/bin/sh\nprintf '%s\\n' {name} \"$@\"\nexit 7\n");
    make_program(&folder.join("uzram-bench"), script.as_bytes());
}

#[test]
fn all_arguments_and_the_exit_status_pass() {
    let home = Home::new();
    let uzram = alone(&home);
    let elsewhere = home.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let path = format!("{}:/usr/bin:/bin", elsewhere.display());
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&uzram);
        command.arg("bench").args(arguments).env("PATH", &path);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    stand_in(&elsewhere, "in-path");
    assert_eq!(run(&[]), "in-path\n");
    stand_in(uzram.parent().unwrap(), "beside");
    let said = run(&["store", "--json", "a b", "--help", "-V", "--", "-x"]);
    assert_eq!(said, "beside\nstore\n--json\na b\n--help\n-V\n--\n-x\n");
    assert_eq!(run(&["--help"]), "beside\n--help\n");
}

#[test]
fn where_it_is_missing_a_line_says_how_to_get_it() {
    let home = Home::new();
    let uzram = alone(&home);
    for arguments in [&["--help"][..], &["store", "--quick"]] {
        let mut command = Command::new(&uzram);
        command.arg("bench").args(arguments);
        let output = command.env("PATH", "/nowhere").output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.starts_with("uzram: uzram-bench: "), "{errors}");
        assert!(errors.contains("cargo install --locked --path lab/uzram-bench"));
        assert_eq!(errors.matches('\n').count(), 1, "{errors}");
    }
}
