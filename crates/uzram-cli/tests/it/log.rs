//! The log: what is in it, and that no request ever is.

use crate::nbd_client::NbdClient;
use crate::support::{Home, eventually};

#[test]
fn requests_are_never_logged_not_even_those_that_fail() {
    let home = Home::new();
    let args = [
        "--size",
        "8M",
        "--name",
        "d",
        "--mem-limit",
        "64K",
        "--log-level",
        "trace",
    ];
    let mut served = home.serve(&args);
    let socket = home.state().join("d.nbd");
    // Outside of requests it may log as it likes: mark where they begin and end.
    assert_eq!(home.run(&["set", "d", "mem_used_max", "0"]).status, 0);
    let mut client = NbdClient::connect(&socket, "d").unwrap();
    let mut refused = 0;
    for round in 0..500u64 {
        let page = uzram_testkit::noise(round, 4096);
        let same_filled = [round as u8; 4096];
        assert_eq!(
            client.write(0, &same_filled).unwrap(),
            0,
            "it takes no memory"
        );
        refused += u32::from(client.write((1 + round) * 4096, &page).unwrap() != 0);
        client.read((1 + round) * 4096, 4096).unwrap();
    }
    assert!(refused > 400, "the limit was not reached: {refused}");
    assert_ne!(
        client.write(1 << 40, &[0; 4096]).unwrap(),
        0,
        "past the end"
    );
    drop(client);
    eventually("the client is gone", || {
        home.json(&["stat", "d", "--json"])["connections"] == 0
    });
    assert_eq!(home.run(&["set", "d", "log_level", "info"]).status, 0);
    served.ends();
    let log = served.stderr();
    let lines: Vec<&str> = log.lines().collect();
    let at = |text: &str| {
        let found = lines.iter().position(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("no {text:?} in the log: {log}"))
    };
    let between = &lines[at("mem_used_max set to")..at("log_level set to")];
    // A connection may be told of, and what was asked of the control socket.
    assert!(between.len() < 20, "{between:#?}");
}

#[test]
fn levels_are_kept_and_wrong_ones_refused() {
    let home = Home::new();
    home.run(&["serve", "--size", "1M", "--log-level", "loud"])
        .refused(2, "--log-level: log level \"loud\": write off, error");
    for (level, is_logged) in [("info", true), ("warn", false), ("off", false)] {
        let mut served = home.serve(&["--size", "1M", "--log-level", level]);
        served.ends();
        let log = served.stderr();
        assert_eq!(
            log.contains("uzram: uzram0: 1 MiB, auto, at nbd+unix:"),
            is_logged,
            "{level}: {log}"
        );
        assert_eq!(log.contains("sandbox: "), is_logged, "{level}: {log}");
    }
}

#[test]
fn the_journal_gets_priorities() {
    use std::os::unix::fs::MetadataExt;
    let home = Home::new();
    let path = home.dir.path().join("journal");
    let journal = std::fs::File::create(&path).unwrap();
    let found = journal.metadata().unwrap();
    let mut command = home.command(&["serve", "--size", "1M"]);
    command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
    let mut child = command
        .stderr(journal)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let log = || std::fs::read_to_string(&path).unwrap();
    eventually("it serves", || log().contains("sandbox"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(log().starts_with("<6>uzram0: 1 MiB"), "{}", log());
}
