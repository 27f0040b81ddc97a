//! `uzram up --config` with zram-generator's file.

use std::fs;
use std::path::Path;

use crate::attach::{Machine, run};
use crate::support::{Home, Ran};

fn written(home: &Home, text: &str) -> String {
    let path = home.dir.path().join("zram-generator.conf");
    fs::write(&path, text).unwrap();
    path.into_os_string().into_string().unwrap()
}

fn up(home: &Home, text: &str) -> Ran {
    home.run(&["up", "--config", &written(home, text)])
}

#[track_caller]
fn goes_down(machine: &Machine, name: &str) {
    let down = machine.home.run(&["down", name]);
    assert_eq!(
        (down.status, down.stdout),
        (0, format!("{name} is down.\n")),
        "{}",
        down.stderr
    );
}

#[test]
fn every_section_becomes_what_the_generator_makes_of_it() {
    let Some(machine) = Machine::with(&["mkfs.ext2", "mkfs.ext4", "findmnt"]) else {
        return;
    };
    let second = machine.directory.join("not/there/yet");
    let text = format!(
        "# comment\n[zram0]\nzram-size = min(ram / 2, 60 + 2*2)\nzram-resident-limit = 32\n\
         compression-algorithm = zstd(level=1) lz4\nswap-priority = 7\n\n\
         [zram1]\nzram-size = 32\nmount-point = {}\noptions = discard,noexec\n\
         [zram2]\nzram-size = 32\nmount-point = {}/\nfs-type = ext4\noptions =\n\
         [zram3]\nhost-memory-limit = 1\n[other]\nx = y\n",
        machine.directory.display(),
        second.display(),
    );
    // The second lies in the first, so the order counts.
    let ran = up(&machine.home, &text);
    assert_eq!(ran.status, 0, "{ran:?}");
    for said in [
        "zram0 is up: 64 MiB of swap at /dev/loop",
        ", priority 7, ",
        "zram1 is up: 32 MiB of ext2 on ",
        "zram2 is up: 32 MiB of ext4 on ",
    ] {
        assert!(ran.stdout.contains(said), "{said}: {ran:?}");
    }
    for said in [
        "zram-generator.conf:5: [zram0] compression-algorithm: lz4 left out",
        "zram-generator.conf:19: [other]: no [zramN]",
        "zram-generator.conf:17: [zram3]: left out; the machine has ",
    ] {
        assert!(ran.stderr.contains(said), "{said}: {ran:?}");
    }
    let swap = machine.home.json(&["stat", "zram0", "--json"]);
    assert_eq!(swap["mem_limit"], 32 << 20, "{swap}");
    assert_eq!(swap["comp_algorithm"], "zstd", "{swap}");
    assert_eq!(swap["algorithm_params"], "level=1", "{swap}");
    let options = |directory: &Path| {
        let directory = directory.to_str().unwrap();
        run("findmnt", &["-no", "FSTYPE,OPTIONS", directory])
    };
    let first = options(&machine.directory);
    assert!(first.starts_with("ext2") && first.contains("noexec") && first.contains("discard"));
    let other = options(&second);
    assert!(other.starts_with("ext4") && !other.contains("discard") && !other.contains("noexec"));
    let again = up(&machine.home, &text);
    assert_eq!(again.status, 0, "{again:?}");
    assert_eq!(
        again.stdout.matches(" is up already").count(),
        3,
        "{again:?}"
    );
    for name in ["zram2", "zram1", "zram0"] {
        goes_down(&machine, name);
    }
    machine.is_clean();
}

#[test]
fn a_disk_that_fails_keeps_no_other_from_coming_up() {
    let Some(machine) = Machine::with(&["mkfs.ext2"]) else {
        return;
    };
    let text = format!(
        "[zram7]\nzram-size = 16\nmount-point = /proc\n[zram8]\nzram-size = 16\nmount-point = {}\n",
        machine.directory.display()
    );
    let ran = up(&machine.home, &text);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(ran.stderr.contains("zram7: --mount /proc: busy"), "{ran:?}");
    assert!(ran.stdout.contains("zram8 is up"), "{ran:?}");
    goes_down(&machine, "zram8");
    machine.is_clean();
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_made() {
    let home = Home::new();
    for (text, said) in [
        (
            "[zram0]\nzram-size = ram /\n",
            ".conf:2: [zram0] zram-size: ",
        ),
        ("[zram0\n", ".conf:1: write [SECTION]"),
        (
            "[zram0]\nmount-point = /mnt\nfs-type = f2fs\n",
            ".conf:1: [zram0] fs-type: \"f2fs\": uzram up makes none; known are: ext2, ext4",
        ),
        (
            "[scratch]\nsize = \"4G\"\n",
            "uzram serve --config reads such a file",
        ),
    ] {
        up(&home, text).refused(2, said);
    }
    let path = &written(&home, "[zram0]\nzram-size = min(ram / 2, 4096)\n");
    home.run(&["up", "--config", path, "--size", "1G"])
        .refused(2, "--size: a disk's options come from --config");
    for other in ["--swap", "--mount=/mnt", "--fs=ext4", "--priority=1"] {
        let ran = home.run(&["up", "--config", path, other]);
        assert_eq!(ran.status, 2, "{other}: {ran:?}");
    }
    home.run(&["up", "--config", "/nowhere/conf"])
        .refused(1, "/nowhere/conf: No such file");
    home.run(&["serve", "--config", path])
        .refused(2, "zram-generator's is read by uzram up --config");
    assert!(!home.state().exists() || home.files().is_empty());
}
