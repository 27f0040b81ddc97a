//! `uzram run` as its user types it. What it does to programs is tested in its own crate.

use crate::support::{Home, PATIENCE, is_root};

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

#[test]
fn a_run_has_a_name_figures_and_another_budget() {
    let home = Home::new();
    let mut command = home.command(&["run", "--memory", "64M", "--name", "job", "--", "cat"]);
    let piped = std::process::Stdio::piped;
    let mut child = command.stdin(piped()).stderr(piped()).spawn().unwrap();
    let begin = std::time::Instant::now();
    while !home.run(&["stat", "job"]).stdout.contains("program: cat") {
        if child
            .try_wait()
            .unwrap()
            .is_some_and(|status| status.code() == Some(125))
        {
            return eprintln!("left out: nothing can be run");
        }
        assert!(begin.elapsed() < PATIENCE, "it is never listed");
    }
    let listed = home.run(&["list"]).stdout;
    let row = listed.lines().nth(1).unwrap();
    assert!(
        row.starts_with("job ") && row.contains("64 MiB"),
        "{listed}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&home.run(&["list", "--json"]).stdout).unwrap();
    let (run, pid) = (&json[0], &json[0]["pid"]);
    assert_eq!((&run["name"], &run["kind"]), (&"job".into(), &"run".into()));
    assert_eq!(&run["processes"][0]["pid"], pid, "{run}");
    assert_eq!(run["processes"][0]["name"], "cat", "{run}");
    // Another budget, and what is none.
    let ran = home.run(&["set", "job", "memory", "32M"]);
    assert_eq!(
        (ran.status, &*ran.stdout),
        (0, "job: memory is 33554432\n"),
        "{ran:?}"
    );
    let refused = |words: &[&str], said: &str| {
        let ran = home.run(words);
        assert!(
            ran.status != 0 && ran.stderr.contains(said),
            "{words:?}: {ran:?}"
        );
    };
    refused(&["set", "job", "memory", "1M"], "at least 16M");
    refused(&["set", "job", "memory", "much"], "much");
    refused(&["set", "job", "mem_limit", "1G"], "one attribute to set");
    refused(&["remove", "job"], "no disk");
    refused(&["reset", "job"], "no disk");
    refused(&["down", "job"], "to end it: kill");
    refused(&["stat", "job", "--raw"], "under a budget");
    refused(&["stat", "job", "--watch"], "under a budget");
    refused(
        &["serve", "--size", "1M", "--name", "job"],
        "already served",
    );
    let again = home.run(&["run", "--memory", "64M", "--name", "job", "--", "true"]);
    assert!(
        again.status == 125 && again.stderr.contains("already served"),
        "{again:?}"
    );
    // Its name ends with it.
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(home.run(&["list"]).stdout.contains("No disk is served"));
    assert_eq!(home.files(), Vec::<String>::new());
}

#[test]
fn a_killed_run_leaves_no_name() {
    let home = Home::new();
    let mut child = home
        .command(&["run", "--memory", "64M", "--", "sleep", "100"])
        .spawn()
        .unwrap();
    let begin = std::time::Instant::now();
    while !home.run(&["list"]).stdout.contains("sleep 100") {
        if child
            .try_wait()
            .unwrap()
            .is_some_and(|status| status.code() == Some(125))
        {
            return eprintln!("left out: nothing can be run");
        }
        assert!(begin.elapsed() < PATIENCE, "it is never listed");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(home.run(&["list"]).stdout.contains("No disk is served"));
    assert_eq!(home.files(), Vec::<String>::new());
}

#[test]
fn a_run_without_a_state_directory_is_a_run() {
    let home = Home::new();
    // A directory that others may look into is refused.
    let arguments = [
        "--control-dir",
        "/",
        "run",
        "--memory",
        "64M",
        "--",
        "sh",
        "-c",
        "exit 4",
    ];
    let ran = home.run(&arguments);
    assert!([4, 125].contains(&ran.status), "{ran:?}");
    assert!(ran.status == 125 || ran.stderr.is_empty(), "{ran:?}");
    let named = home.run(&[
        "--control-dir",
        "/",
        "run",
        "--memory",
        "64M",
        "--name",
        "a",
        "--",
        "true",
    ]);
    assert!(
        named.status == 125 && named.stderr.contains("mode 0755"),
        "{named:?}"
    );
}
