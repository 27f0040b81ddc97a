//! Habits of zramctl and nbdkit: short flags, columns by name, `zramctl`, `serve --fork` and `--run`.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::attach::Machine;
use crate::support::{Home, Ran, eventually};

#[test]
fn columns_are_chosen_and_scripts_can_split_them() {
    let home = Home::new();
    assert_eq!(home.run(&["list", "-n", "--raw"]).stdout, "");
    let served = home.serve(&["-s", "64M", "-a", "zstd", "-p", "level=1", "--name", "d"]);
    let pid = served.child.id();
    let listed = home.run(&["list", "-bn", "--raw", "-o", "NAME,disksize,ALGORITHM,PID"]);
    assert_eq!(listed.stdout, format!("d 67108864 zstd {pid}\n"));
    let stat = home.json(&["stat", "d", "--json"]);
    assert_eq!(stat["algorithm_params"], "level=1");
    let text = home.run(&["list", "-o", "+MOUNTPOINT"]).stdout;
    assert!(text.starts_with("NAME  ALGORITHM  DISKSIZE"), "{text}");
    assert_eq!(
        text.lines().next().unwrap().split_whitespace().last(),
        Some("MOUNTPOINT")
    );
    home.run(&["list", "-o", "SIZE"])
        .refused(2, "--output: no column \"SIZE\"");
    home.run(&["list", "--json", "-b"]).refused(2, "--json");
    let all = home.run(&["zramctl", "--output-all"]).stdout;
    assert!(all.contains("COMP-RATIO"), "{all}");
    // Cut and not wrapped.
    let mut narrow = home.command(&["list", "--output-all"]);
    let narrow = Ran::of(&narrow.env("COLUMNS", "30").output().unwrap()).stdout;
    assert_eq!(narrow.lines().count(), 2, "{narrow}");
    assert!(
        narrow.lines().all(|line| line.chars().count() <= 30),
        "{narrow}"
    );
    assert_eq!(home.run(&["add", "-s", "1M", "-a", "lz4"]).status, 0);
    // Called as zramctl.
    let mut called = Command::new(env!("CARGO_BIN_EXE_uzram"));
    called.arg0("/sbin/zramctl").args(["-n", "-o", "NAME", "d"]);
    called.env("XDG_RUNTIME_DIR", home.dir.path());
    assert_eq!(Ran::of(&called.output().unwrap()).stdout, "d\n");
}

#[test]
fn zramctl_is_told_what_does_not_go_together() {
    let home = Home::new();
    assert_eq!(home.run(&["zramctl"]).stdout, "");
    for (arguments, status, said) in [
        (&["-f"][..], 2, "add --size 1G"),
        (&["-a", "zstd", "d"], 2, "needs --size"),
        (
            &["-s", "1G"],
            2,
            "name one device, or have --find choose one",
        ),
        (&["-s", "1G", "a", "b"], 2, "name one device"),
        (&["-r"], 2, "name a device"),
        (&["-r", "nosuch"], 1, "no disk \"nosuch\""),
        (&["nosuch"], 1, "no disk \"nosuch\""),
        (&["-r", "-f", "a"], 2, "cannot be used with"),
        (&["-o", "SIZE", "-s", "1"], 2, "name one device"),
    ] {
        let ran = home.run(&[&["zramctl"], arguments].concat());
        ran.refused(status, said);
    }
    let version = home.run(&["zramctl", "-V"]);
    assert_eq!(version.status, 0, "{version:?}");
}

#[test]
fn zramctl_makes_a_block_device_and_ends_it() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let made = machine
        .home
        .run(&["zramctl", "-f", "-s", "16M", "-a", "zstd", "-t", "4"]);
    assert_eq!(made.status, 0, "{made:?}");
    let device = made.stdout.trim();
    assert!(
        device.starts_with("/dev/loop") && Path::new(device).exists(),
        "{made:?}"
    );
    assert!(made.stderr.contains("--streams: left out"), "{made:?}");
    let named = machine.home.run(&["zramctl", "zram7", "--size", "16M"]);
    assert_eq!((named.status, named.stdout.as_str()), (0, ""), "{named:?}");
    let shown = machine.home.run(&[
        "zramctl",
        "-nb",
        "--raw",
        "-o",
        "NAME,ALGORITHM,DISKSIZE",
        device,
    ]);
    assert_eq!(shown.stdout, "uzram0 zstd 16777216\n", "{shown:?}");
    let reset = machine.home.run(&["zramctl", "-r", device, "/dev/zram7"]);
    assert_eq!(reset.status, 0, "{reset:?}");
    assert_eq!(machine.home.run(&["zramctl"]).stdout, "");
    machine.is_clean();
}

#[test]
fn a_server_runs_a_command_and_ends_with_it() {
    let home = Home::new();
    let command = "echo \"$name $uri\"; exit 7";
    let ran = home.run(&["serve", "-s", "1M", "--name", "d", "--run", command]);
    assert_eq!(ran.status, 7, "{ran:?}");
    let socket = home.state().join("d.nbd");
    let said = format!("d nbd+unix:///d?socket={}\n", socket.display());
    assert_eq!(ran.stdout, said);
    assert!(home.files().is_empty(), "{:?}", home.files());
    // It is served meanwhile.
    let uzram = env!("CARGO_BIN_EXE_uzram");
    let command = format!("{uzram} list -n --raw -o NAME; kill -9 $$");
    let ran = home.run(&["serve", "-s", "1M", &format!("--run={command}")]);
    assert_eq!(
        (ran.status, ran.stdout.as_str()),
        (128 + 9, "uzram0\n"),
        "{ran:?}"
    );
    assert!(home.files().is_empty(), "{:?}", home.files());
    // One that does not start says why, once, and nothing is run.
    let ran = home.run(&["serve", "-s", "1M", "-a", "lz5", "--run", "echo run"]);
    ran.refused(2, "lz5");
    home.run(&["serve", "-s", "1M", "--fork", "--run", "true"])
        .refused(2, "--fork");
}

#[test]
fn a_command_is_ended_by_the_signal_that_ends_its_server() {
    let home = Home::new();
    let ready = home.dir.path().join("ready");
    let command = format!("touch {}; exec sleep 1000", ready.display());
    let mut served = home.start(&["-s", "1M", "--run", &command]);
    eventually("the command runs", || ready.exists());
    served.signal("TERM");
    assert_eq!(served.wait(), Some(128 + 15));
    assert!(home.files().is_empty(), "{:?}", home.files());
    // Killed, it takes its server along.
    std::fs::remove_file(&ready).unwrap();
    let mut killed = home.start(&["-s", "1M", "--run", "exec sleep 5"]);
    eventually("the disk is there", || {
        home.run(&["stat", "uzram0"]).status == 0
    });
    killed.signal("KILL");
    killed.wait();
    eventually("its server ends", || home.files().is_empty());
}

#[test]
fn a_server_goes_to_the_background_once_it_is_ready() {
    let home = Home::new();
    let forked = home.run(&["serve", "-s", "1M", "--fork", "--name", "d"]);
    assert_eq!(forked.status, 0, "{forked:?}");
    let stat = home.json(&["stat", "d", "--json"]);
    let pid = stat["pid"].to_string();
    assert!(
        forked.stdout.contains(&format!("kill {pid} ends it")),
        "{forked:?}"
    );
    assert!(
        forked.stdout.contains("d is a compressed RAM disk"),
        "{forked:?}"
    );
    home.run(&["serve", "-s", "1M", "--fork", "--name", "d"])
        .refused(1, "d");
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    eventually("it ends", || home.files().is_empty());
}
