//! Refusals: the value, the reason and the remedy in one line, and the right exit status.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::{Home, is_root};

#[test]
fn sizes() {
    let home = Home::new();
    for (size, said) in [
        ("0", "--size: size \"0\": nothing"),
        ("", "--size: size \"\": empty"),
        ("lots", "not a number"),
        ("1.5X", "unknown suffix \"X\""),
        ("1GB", "powers of 10 or of 2"),
        ("16E", "over 2^64"),
        ("99999999999999999999999999999999999999", "over 2^64"),
        (
            "8E",
            "over the address space of a process; a device is at most 128T",
        ),
        ("129T", "over the address space of a process"),
    ] {
        home.run(&["serve", "--size", size]).refused(2, said);
    }
    home.run(&["serve", "--size=-1G"]).refused(2, "negative");
    home.run(&["serve", "--size", "1M", "--mem-limit", "x"])
        .refused(2, "--mem-limit: size \"x\"");
    home.run(&["serve", "--size", "1M", "--unit", "5K"])
        .refused(2, "--unit: unit 5120: must be");
    home.run(&["serve", "--size", "1M", "--unit", "x"])
        .refused(2, "--unit: size \"x\"");
    assert!(!home.state().exists() || home.files().is_empty());
}

#[test]
fn names_of_codecs_pools_and_disks() {
    let home = Home::new();
    let refused = |option: &str, value: &str, said: &str| {
        home.run(&["serve", "--size", "1M", option, value])
            .refused(2, said);
    };
    refused("--algorithm", "lz5", "lz4, zstd");
    refused("--pool", "slab", "zsmalloc");
    refused("--algorithm", "two\nlines\u{1b}[31m", "lz4, zstd");
    refused("--name", "../x", "--name: name \"../x\"");
    refused("--name", "", "--name: name \"\"");
    refused("--attach", "scsi", "possible values: nbd, fuse, loop, ublk");
    home.run(&["stat", "a/b"]).refused(2, "name \"a/b\"");
    home.run(&["reset", "nosuch"])
        .refused(1, "no disk \"nosuch\"");
}

#[test]
fn parameters_of_codecs() {
    let home = Home::new();
    for (algorithm, parameters, said) in [
        ("lz4", "level=0", "level 0: lz4 takes 1 to 65537"),
        ("lz4", "level=65538", "level 65538: lz4 takes 1 to 65537"),
        ("lz4hc", "level=13", "level 13: lz4hc takes 2 to 12"),
        ("zstd", "level=23", "level 23: zstd takes -131072 to 22"),
        ("zstd", "level=-131073", "level -131073: zstd takes"),
        ("deflate", "level=13", "level 13: deflate takes 1 to 12"),
        (
            "deflate",
            "deflate.winbits=16",
            "deflate.winbits 16: deflate takes -15 to -12",
        ),
        ("lzo", "level=1", "level 1: lzo has no such parameter"),
        ("842", "level=1", "level 1: 842 has no such parameter"),
        ("zstd", "level=x", "must be a whole number"),
        ("zstd", "depth=3", "known are level=N, dict=FILE"),
        ("zstd", "level=1,level=2", "given twice"),
        (
            "zstd",
            "dict=/nonexistent",
            "dict /nonexistent: No such file",
        ),
        ("deflate", "dict=/etc/passwd", "zstd, lz4 and lz4hc do"),
    ] {
        let device = ["--size", "1M", "--algorithm", algorithm];
        home.run(&[&["serve", "--algorithm-params", parameters], &device[..]].concat())
            .refused(2, said);
    }
}

#[test]
fn usage() {
    let home = Home::new();
    home.run(&["serve"])
        .refused(2, "--size: missing; say how large");
    home.run(&["captur"])
        .refused(2, "a similar subcommand exists: 'capture'");
    home.run(&["list", "x"]).refused(2, "see uzram list --help");
    home.run(&["serve", "--size", "1M", "--insecure"])
        .refused(2, "insecure: only means something with listen");
    home.run(&["stat", "--raw", "--json"])
        .refused(2, "cannot be used with");
    home.run(&["capture", "--out", "x"])
        .refused(2, "--pid <N>|--file <P>");
    let alone = home.run(&[]);
    assert_eq!(alone.status, 2);
    assert!(
        alone.stderr.contains("Commands:") && alone.stderr.contains("serve"),
        "{alone:?}"
    );
    for command in [
        "serve", "add", "remove", "list", "stat", "set", "reset", "capture",
    ] {
        let help = home.run(&[command, "--help"]);
        assert_eq!((help.status, help.stderr.as_str()), (0, ""));
        assert!(
            help.stdout.contains("Example"),
            "{command} --help teaches nothing"
        );
    }
}

#[test]
fn sockets() {
    let home = Home::new();
    let refused = |path: &str, status, said: &str| {
        home.run(&["serve", "--size", "1M", "--socket", path])
            .refused(status, said);
    };
    let at = |name: &str| home.dir.path().join(name).to_str().unwrap().to_owned();
    refused(&at(&"x".repeat(120)), 2, "must be 1 to 107");
    refused(
        &at("missing/x.sock"),
        1,
        "its directory does not exist; create it",
    );
    std::fs::write(at("file"), "precious").unwrap();
    refused(&at("file"), 1, "is not a socket");
    assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "precious");

    let mut first = home.serve(&["--size", "1M", "--socket", &at("taken.sock")]);
    refused(&at("taken.sock"), 1, "a server is listening there");
    assert_eq!(
        home.files(),
        ["0.control", "0.server", "uzram0.lock"],
        "the refused one left something"
    );
    first.signal("KILL");
    first.wait();
    home.serve(&["--size", "1M", "--socket", &at("taken.sock")]);
}

#[test]
fn a_state_directory_too_deep_for_sockets() {
    let home = Home::new();
    let deep = home.dir.path().join("d".repeat(100));
    std::fs::create_dir(&deep).unwrap();
    let mut command = home.command(&["serve", "--size", "1M"]);
    let output = command.env("XDG_RUNTIME_DIR", &deep).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("must be 1 to 107"), "{text}");

    let mut command = home.command(&["list"]);
    let output = command
        .env("XDG_RUNTIME_DIR", home.dir.path().join("no"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("cannot be made; set XDG_RUNTIME_DIR"),
        "{text}"
    );
}

#[test]
fn addresses() {
    let home = Home::new();
    let refused = |address: &str, status, said: &str| {
        home.run(&["serve", "--size", "1M", "--listen", address])
            .refused(status, said);
    };
    refused("10809", 2, "write IP:PORT");
    refused("nowhere.example:1", 2, "write IP:PORT");
    for open in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
        refused(open, 2, "other machines could read and write the disk");
    }
    home.run(&[
        "serve",
        "--size",
        "1M",
        "--listen",
        "192.0.2.1:0",
        "--insecure",
    ])
    .refused(2, "choose an address of this machine");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    refused(
        &taken.local_addr().unwrap().to_string(),
        1,
        "choose another port",
    );

    let served = home.serve(&["--size", "1M", "--listen", "localhost:0"]);
    assert!(
        served.fact("URI").starts_with("nbd://127.0.0.1:"),
        "{}",
        served.said
    );
}

#[test]
fn an_insecure_address_is_served_with_a_warning() {
    let home = Home::new();
    let mut served = home.serve(&["--size", "1M", "--listen", "0.0.0.0:0", "--insecure"]);
    served.signal("TERM");
    served.wait();
    assert!(
        served
            .stderr()
            .contains("warning: insecure: whoever reaches nbd://0.0.0.0:")
    );
}

#[test]
fn a_port_without_permission() {
    const NOBODY: u32 = 65534;
    let first_free = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    if first_free.is_ok_and(|port| port.trim() == "0") {
        return eprintln!("left out: every port is free for all here");
    }
    let home = Home::new();
    let mut command = home.command(&["serve", "--size", "1M", "--listen", "127.0.0.1:1"]);
    if is_root() {
        std::os::unix::fs::chown(home.dir.path(), Some(NOBODY), None).unwrap();
        command.uid(NOBODY);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("ports below 1024 need privileges"), "{text}");
}

#[test]
fn a_fifo_in_place_of_a_file_holds_nobody_up() {
    let home = Home::new();
    let path = home.dir.path().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&path)
            .status()
            .unwrap()
            .success()
    );
    let fifo = path.to_str().unwrap();
    let dictionary = format!("dict={fifo}");
    fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["serve", "--size", "1M"], more].concat()
    }
    for (args, status) in [
        (
            with(&["--algorithm", "lz4", "--algorithm-params", &dictionary]),
            2,
        ),
        #[cfg(feature = "tls")]
        (with(&["--tls-cert", fifo, "--tls-key", fifo]), 1),
        (vec!["serve", "--config", fifo], 1),
        (vec!["capture", "--file", fifo, "--out", "/nowhere/out"], 1),
    ] {
        home.run(&args).refused(status, "not a regular file");
    }
    for args in [
        vec!["btt", "check", fifo],
        vec!["btt", "create", fifo],
        with(&["--device", "pmem", "--path", fifo]),
        vec!["advise", "--corpus", fifo, "--quick"],
    ] {
        let ran = home.run(&args);
        assert!(ran.status == 1 || ran.status == 2, "{args:?}: {ran:?}");
    }
}

#[test]
fn a_fifo_in_place_of_a_note_about_a_disk_does_not_hold_down_up() {
    for suffix in ["up", "watermark", "zswap", "lock", "log"] {
        let home = Home::new();
        let state = home.dir.path();
        std::fs::set_permissions(state, Permissions::from_mode(0o700)).unwrap();
        let path = state.join(format!("a.{suffix}"));
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let mut down = Command::new("timeout");
        down.args(["-k1", "20", env!("CARGO_BIN_EXE_uzram"), "down", "a"]);
        down.arg("--control-dir").arg(state);
        let output = down.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{suffix}: {output:?}");
    }
}
