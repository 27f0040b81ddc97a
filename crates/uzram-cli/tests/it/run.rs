//! `uzram run` as its user types it. What it does to programs is tested in its own crate.

use crate::support::{Home, is_root};

#[test]
fn wrong_options_are_named_with_a_remedy() {
    let home = Home::new();
    let refused = |arguments: &[&str], status, said: &str| {
        let ran = home.run(&[&["run"], arguments].concat());
        assert_eq!(ran.status, status, "{ran:?}");
        assert!(ran.stderr.contains(said), "{said}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    };
    refused(&["--memory", "64M"], 2, "<PROGRAM>");
    refused(&["--", "true"], 2, "--memory");
    refused(&["--memory", "1M", "--", "true"], 2, "give at least 16M");
    refused(&["--memory", "much", "--", "true"], 2, "much");
    let directory = home.dir.path().to_str().unwrap();
    let arguments = ["--memory", "64M", "--spill", directory, "--", "true"];
    refused(&arguments, 125, "name a file or a block device");
    let arguments = ["--memory", "64M", "--spill", "/none/spill", "--", "true"];
    refused(&arguments, 125, "--spill /none/spill: No such file");
    let status = if is_root() {
        "unknown algorithm"
    } else {
        "root"
    };
    refused(
        &["--memory", "64M", "--algorithm", "none", "--", "true"],
        125,
        status,
    );
}

#[test]
fn a_program_ends_as_it_would_and_its_figures_are_told() {
    let home = Home::new();
    let ran = home.run(&[
        "run", "--memory", "512M", "--stats", "--", "sh", "-c", "exit 3",
    ]);
    if ran.status == 125 {
        return eprintln!("left out: {}", ran.stderr);
    }
    assert_eq!(ran.status, 3, "{ran:?}");
    assert!(ran.stderr.contains("of a budget of 512 MiB"), "{ran:?}");
    assert!(ran.stderr.contains("nothing was compressed"), "{ran:?}");
}

#[test]
fn its_server_is_not_for_terminals_or_strangers() {
    let home = Home::new();
    // Standard input is no socket.
    let ran = home.run(&["run-server"]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(ran.stderr.contains("the front does not answer"), "{ran:?}");
}
