//! The sandbox of a server that serves: its rights, seen from outside and tried from inside.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use crate::support::{Home, Served, field, is_root, statuses};

const NOBODY: u32 = 65534;

#[test]
fn no_thread_has_privileges_or_can_gain_any() {
    let home = Home::new();
    let served = home.serve(&["--size", "1M"]);
    assert_eq!(
        home.run(&["add", "--size", "1M"]).status,
        0,
        "with a thread of its own"
    );
    let statuses = statuses(&served);
    assert!(statuses.len() >= 5, "{statuses:?}");
    for status in &statuses {
        let mut keys = vec!["CapEff", "CapPrm", "CapInh", "CapAmb"];
        if is_root() {
            keys.push("CapBnd");
        }
        for key in keys {
            assert_eq!(field(status, key), "0000000000000000", "{key}: {status}");
        }
        assert_eq!(field(status, "NoNewPrivs"), "1", "{status}");
    }
    let said = home.json(&["stat", "uzram0", "--json"])["sandbox"].clone();
    let said = said.as_str().unwrap();
    assert!(
        said.contains("no_new_privs, no capabilities, no dumps"),
        "{said}"
    );
}

#[test]
fn its_memory_is_nobodys_to_look_into() {
    let home = Home::new();
    let owner_of = |args: &[&str]| {
        let mut command = home.command(&["serve", "--size", "1M"]);
        command.args(args).stdout(std::process::Stdio::piped());
        if is_root() {
            // Of root's processes /proc shows root as the owner either way.
            std::os::unix::fs::chown(home.dir.path(), Some(NOBODY), None).unwrap();
            command.uid(NOBODY);
        }
        let mut served = Served::of(command.spawn().unwrap());
        served.wait_until_ready();
        std::fs::metadata(format!("/proc/{}/mem", served.child.id()))
            .unwrap()
            .uid()
    };
    assert_eq!(owner_of(&[]), 0, "what is not dumpable is root's");
    assert_ne!(owner_of(&["--no-sandbox"]), 0);
}

#[test]
fn paths_are_out_of_reach_but_for_its_own() {
    let home = Home::new();
    let other = tempfile::tempdir().unwrap();
    let inside = home.dir.path().join("inside.sock");
    let outside = other.path().join("outside.sock");
    let [inside, outside] = [&inside, &outside].map(|path| path.to_str().unwrap());
    let _served = home.serve(&["--size", "1M", "--socket", inside]);
    let said = home.json(&["stat", "uzram0", "--json"])["sandbox"].clone();
    if !said.as_str().unwrap().contains("landlock") {
        return eprintln!("left out: this kernel has no landlock: {said}");
    }
    home.run(&["add", "--size", "1M", "--socket", outside])
        .refused(1, "this server's sandbox lets it make sockets in ");
    assert!(!Path::new(outside).exists());
    assert_eq!(
        home.files(),
        ["0.control", "0.server", "uzram0.lock"],
        "nothing was made"
    );
    let beside = home.dir.path().join("beside.sock");
    let beside = beside.to_str().unwrap();
    assert_eq!(
        home.run(&["add", "--size", "1M", "--socket", beside])
            .status,
        0
    );
    assert_eq!(home.run(&["remove", "uzram1"]).status, 0);
    assert!(!Path::new(beside).exists(), "its own sockets it can remove");
}

#[test]
fn files_are_read_from_where_it_may_read() {
    let home = Home::new();
    let other = tempfile::tempdir().unwrap();
    let dictionary = |dir: &Path| {
        let path = dir.join("d.dict");
        std::fs::write(&path, "pages look like this ".repeat(100)).unwrap();
        path
    };
    let config = home.dir.path().join("uzram.toml");
    std::fs::write(&config, "").unwrap();
    let (beside, outside) = (dictionary(home.dir.path()), dictionary(other.path()));
    let _served = home.serve(&["--config", config.to_str().unwrap()]);
    let add = |path: &Path, directory: &Path| {
        let parameters = format!("level=1,dict={}", path.display());
        let args = [
            "add",
            "--size",
            "1M",
            "--algorithm",
            "lz4",
            "--algorithm-params",
            &parameters,
        ];
        let mut command = home.command(&args);
        command.current_dir(directory).output().unwrap()
    };
    assert!(add(&beside, Path::new("/")).status.success());
    assert!(
        add(Path::new("d.dict"), home.dir.path()).status.success(),
        "a relative path"
    );
    let said = home.json(&["stat", "uzram0", "--json"])["sandbox"].clone();
    if said.as_str().unwrap().contains("landlock") {
        let refused = add(&outside, Path::new("/"));
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(
            text.contains("sandbox lets it read beside its configuration"),
            "{text}"
        );
        if cfg!(feature = "tls") {
            let file = outside.to_str().unwrap();
            let args = ["add", "--size", "1M", "--listen", "127.0.0.1:0"];
            let tls = ["--tls-cert", file, "--tls-key", file];
            home.run(&[&args[..], &tls].concat())
                .refused(1, "sandbox lets it read beside its configuration");
        }
    }
}

#[test]
fn without_the_sandbox_all_is_as_it_was() {
    let home = Home::new();
    let other = tempfile::tempdir().unwrap();
    let outside = other.path().join("outside.sock");
    let served = home.serve(&["--size", "1M", "--no-sandbox"]);
    assert_eq!(home.json(&["stat", "uzram0", "--json"])["sandbox"], "off");
    let added = home.run(&["add", "--size", "1M", "--socket", outside.to_str().unwrap()]);
    assert_eq!(added.status, 0, "{added:?}");
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let statuses = statuses(&served);
    assert!(!statuses.is_empty());
    for status in statuses {
        assert_eq!(field(&status, "NoNewPrivs"), field(&own, "NoNewPrivs"));
    }
}

#[test]
fn each_thread_has_a_filter_of_system_calls() {
    let home = Home::new();
    let served = home.serve(&["--size", "1M"]);
    assert_eq!(home.run(&["add", "--size", "1M"]).status, 0);
    let said = home.json(&["stat", "uzram0", "--json"])["sandbox"].clone();
    if !said.as_str().unwrap().contains("seccomp") {
        return eprintln!("left out: this kernel has no seccomp: {said}");
    }
    for status in statuses(&served) {
        assert_eq!(field(&status, "Seccomp"), "2", "{status}");
    }
}

#[test]
fn calls_are_logged_instead_where_that_is_asked_for() {
    let home = Home::new();
    let config = home.dir.path().join("uzram.toml");
    std::fs::write(&config, "[server]\nsandbox = \"log\"\n[d]\nsize = \"1M\"\n").unwrap();
    let by_file: &[&str] = &["--config", config.to_str().unwrap()];
    for args in [by_file, &["--size", "1M", "--name", "d", "--sandbox-log"]] {
        let mut served = home.serve(args);
        let said = home.json(&["stat", "d", "--json"])["sandbox"].clone();
        if !said.as_str().unwrap().contains("seccomp") {
            return eprintln!("left out: this kernel has no seccomp: {said}");
        }
        assert!(
            said.as_str().unwrap().contains("seccomp (logs only)"),
            "{said}"
        );
        served.ends();
    }
    home.run(&["serve", "--size", "1M", "--sandbox-log", "--no-sandbox"])
        .refused(2, "cannot be used with");
}
