//! `uzram serve --config`.

use std::path::PathBuf;

use crate::support::{Home, Served, eventually};

fn written(home: &Home, text: &str) -> PathBuf {
    let path = home.dir.path().join("uzram.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn served(home: &Home, text: &str) -> Served {
    let path = written(home, text);
    home.serve(&["--config", path.to_str().unwrap()])
}

#[test]
fn sections_are_disks_with_our_keys_and_zram_generators() {
    let home = Home::new();
    let _served = served(
        &home,
        "[server]\nlog-level = \"error\"\n\
         [zram0]\nzram-size = \"min(ram / 2, 64) - 2 * 8\"\nzram-resident-limit = 4\n\
         compression-algorithm = \"zstd(level=1)\"\nhost-memory-limit = \"none\"\n\
         [scratch]\nsize = 16777216\nalgorithm = \"lz4\"\nunit = \"16K\"\nchecksum = true\n\
         [too-small]\nhost-memory-limit = 1\nzram-size = 8\n\
         [default]\n",
    );
    let disks = home.json(&["stat", "--json"]);
    let disk = |name: &str| {
        let found = disks
            .as_array()
            .unwrap()
            .iter()
            .find(|disk| disk["name"] == name);
        found
            .unwrap_or_else(|| panic!("no {name}: {disks}"))
            .clone()
    };
    let zram0 = disk("zram0");
    assert_eq!(
        (&zram0["disksize"], &zram0["mem_limit"]),
        (&(48 << 20).into(), &(4 << 20).into())
    );
    assert_eq!(zram0["comp_algorithm"], "zstd");
    let scratch = disk("scratch");
    assert_eq!(
        (&scratch["unit"], &scratch["checksum"]),
        (&16384.into(), &1.into())
    );
    assert_eq!(scratch["log_level"], "error");
    assert!(disk("default")["disksize"].as_u64().unwrap() <= 4 << 30);
    assert_eq!(
        disks.as_array().unwrap().len(),
        3,
        "this machine has more than 1 MiB"
    );
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let home = Home::new();
    for (text, said) in [
        (
            "[d]\nsise = \"1G\"\n",
            ":2: [d] sise: unknown key; did you mean size?",
        ),
        (
            "[d]\nalogrithm = \"lz4\"\n",
            "[d] alogrithm: unknown key; did you mean algorithm?",
        ),
        ("[d]\nzram-sise = 1\n", "did you mean zram-size?"),
        (
            "[d]\ncolour = 1\n",
            "[d] colour: unknown key; known are: size, ",
        ),
        (
            "\n\n[d]\nsize = \"0\"\n",
            ":4: [d] size: size \"0\": nothing",
        ),
        ("[d]\nsize = [1]\n", "[d] size: is array; must be a string"),
        (
            "[d]\nsize = 1.5\n",
            "[d] size: size \"1.5\": a fraction of a byte",
        ),
        (
            "[d]\nsize = \"1G\"\nchecksum = \"maybe\"\n",
            ":3: [d] checksum: \"maybe\": write yes or no",
        ),
        (
            "[d]\nsize = \"1G\"\nunit = 5000\n",
            "[d] unit: unit 5000: must be",
        ),
        (
            "[d]\nsize = \"1G\"\nzram-size = 5\n",
            "size is given twice, under two names",
        ),
        ("[d]\nzram-size = \"rma / 2\"\n", "did you mean ram?"),
        ("[d]\nzram-size = \"ram / 0\"\n", "gives inf MiB"),
        ("[d]\nname = \"e\"\n", "rename the section"),
        (
            "[d]\nwriteback-device = \"/dev/sdb\"\n",
            "pages are not written back",
        ),
        (
            "[d]\nswap-priority = 100\n",
            "makes no swap area; remove the line, and use uzram up --swap",
        ),
        ("[d]\nmount-point = \"/mnt\"\n", "mounts nothing"),
        ("[d]\nfs-type = \"ext4\"\n", "mounts nothing"),
        (
            "[d]\noptions = \"discard\"\n",
            "nothing is mounted or swapped on",
        ),
        (
            "[d]\nzram-fraction = 0.5\n",
            "write zram-size = \"ram * FRACTION\"",
        ),
        (
            "[d]\ncompression-algorithm = \"lzo-rle zstd(level=3)\"\n",
            "not recompressed",
        ),
        (
            "[d]\ncompression-algorithm = \"zstd(level=3\"\n",
            "write NAME or NAME(level=N)",
        ),
        (
            "[d]\ncompression-algorithm = \"zstd(speed=3)\"\n",
            "[d] compression-algorithm: ",
        ),
        ("[d]\n\"set!x\" = \"reboot\"\n", "runs no programs"),
        ("[\"a/b\"]\nsize = 4096\n", "name \"a/b\": must be"),
        (
            "[d]\nlisten = \"0.0.0.0:1\"\nsize = \"1M\"\n",
            "[d]: listen: 0.0.0.0:1: other machines",
        ),
        ("[d]\nsocket = \"relative\"\n", "must be an absolute path"),
        (
            "[d]\nsize = \"1M\"\nsocket = \"/x\"\nlisten = \"[::1]:1\"\n",
            ":4: [d] listen: socket and listen exclude each other",
        ),
        (
            "[server]\nlog-levle = 1\n",
            "[server] log-levle: unknown; did you mean log-level?",
        ),
        (
            "[server]\nlog-level = \"loud\"\n",
            ":2: [server] log-level: log level \"loud\": write off",
        ),
        (
            "[server]\nsandbox = \"x\"\n",
            "[server] sandbox: \"x\": write yes, no or log",
        ),
        ("size = \"1G\"\n", "a key outside of a section"),
        ("[d]\n[d]\n", ":2: duplicate key"),
        ("[d\n", ":1: "),
        ("not toml", ":1: "),
    ] {
        let path = written(&home, text);
        home.run(&["serve", "--config", path.to_str().unwrap()])
            .refused(2, said);
    }
    assert!(!home.state().exists() || home.files().is_empty());
    let path = written(
        &home,
        "[a]\nsize = \"1M\"\n[b]\nsize = \"1M\"\nalgorithm = \"lz5\"\n",
    );
    home.run(&["serve", "--config", path.to_str().unwrap()])
        .refused(2, "b: ");
    assert!(home.files().is_empty(), "a went with b: {:?}", home.files());
}

#[test]
fn files_that_are_none_and_options_beside_one() {
    let home = Home::new();
    let missing = home.dir.path().join("missing.toml");
    home.run(&["serve", "--config", missing.to_str().unwrap()])
        .refused(1, "No such file");
    home.run(&["serve", "--config", home.dir.path().to_str().unwrap()])
        .refused(1, "not a regular file");
    let binary = written(&home, "");
    std::fs::write(&binary, [0xff; 100]).unwrap();
    home.run(&["serve", "--config", binary.to_str().unwrap()])
        .refused(1, "UTF-8");
    std::fs::write(&binary, "#".repeat(2 << 20)).unwrap();
    home.run(&["serve", "--config", binary.to_str().unwrap()])
        .refused(1, "over 1048576 bytes");
    std::fs::write(&binary, "[".repeat(1 << 19)).unwrap();
    home.run(&["serve", "--config", binary.to_str().unwrap()])
        .refused(2, ":1: ");
    let fine = written(&home, "[d]\nsize = \"1M\"\n");
    home.run(&["serve", "--config", fine.to_str().unwrap(), "--size", "1M"])
        .refused(2, "--size: a disk's options come from --config");
}

#[test]
fn a_hangup_reads_it_again_and_removes_nothing() {
    let home = Home::new();
    let mut served = served(&home, "[a]\nsize = \"1M\"\n[b]\nsize = \"1M\"\n");
    let limit = |home: &Home| home.json(&["stat", "a", "--json"])["mem_limit"].clone();
    written(
        &home,
        "[a]\nsize = \"1M\"\nmem-limit = \"64K\"\n[c]\nsize = \"1M\"\n[b]\nsize = \"2M\"\n",
    );
    served.signal("HUP");
    eventually("c is there", || home.run(&["stat", "c"]).status == 0);
    eventually("a has its limit", || limit(&home) == 64 << 10);
    assert_eq!(
        home.json(&["stat", "b", "--json"])["disksize"],
        1 << 20,
        "b is as it was"
    );
    // A file that is wrong, and one that was put in place of the other as editors do.
    written(&home, "[a]\nsize = \"1M\"\nmem-limit = \"oops\"\n");
    served.signal("HUP");
    let new = home.dir.path().join("new.toml");
    std::fs::write(&new, "[a]\nsize = \"1M\"\nmem-limit = \"32K\"\n").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(limit(&home), 64 << 10);
    std::fs::rename(&new, home.dir.path().join("uzram.toml")).unwrap();
    served.signal("HUP");
    eventually("a has its new limit", || limit(&home) == 32 << 10);
    assert_eq!(home.json(&["list", "--json"]).as_array().unwrap().len(), 3);
    served.ends();
    let log = served.stderr();
    assert!(log.contains("error: b: only mem-limit can change"), "{log}");
    assert!(
        log.contains("uzram.toml:3: [a] mem-limit: size \"oops\": not a number; write bytes"),
        "{log}"
    );
    assert!(log.contains("nothing was changed"), "{log}");
}

#[test]
fn a_hangup_without_a_file_ends_the_server_in_order() {
    let home = Home::new();
    let mut served = home.serve(&["--size", "1M"]);
    served.signal("HUP");
    assert_eq!(served.wait(), Some(0));
    assert!(home.files().is_empty(), "{:?}", home.files());
}

#[test]
fn a_file_without_disks_makes_a_server_that_waits_for_some() {
    let home = Home::new();
    let served = served(&home, "");
    assert!(
        served.said.contains("uzram add --size 1G"),
        "{}",
        served.said
    );
    let none = home.run(&["list"]).stdout;
    assert!(none.contains("uzram add --size 1G"), "{none}");
    assert_eq!(home.run(&["add", "--size", "1M"]).status, 0);
    assert_eq!(
        home.json(&["stat", "uzram0", "--json"])["pid"],
        served.child.id()
    );
}
