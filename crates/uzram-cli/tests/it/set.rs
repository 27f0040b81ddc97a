//! `uzram set`: a wrong name, type, range or moment.

use crate::nbd_client::NbdClient;
use crate::support::{Home, eventually};

#[test]
fn what_may_change_changes() {
    let home = Home::new();
    let _served = home.serve(&["--size", "8M", "--name", "d"]);
    for (attribute, value, now) in [
        ("mem_limit", "1M", "1048576"),
        ("mem_limit", "none", "0"),
        ("mem_limit", "0", "0"),
        ("read_only", "yes", "1"),
        ("read_only", "off", "0"),
        ("log_level", "debug", "debug"),
        ("log_level", "WARN", "warn"),
        ("mem_used_max", "0", "0"),
    ] {
        let ran = home.run(&["set", "d", attribute, value]);
        let said = format!("d: {attribute} is {now}\n");
        assert_eq!((ran.status, ran.stdout), (0, said), "{attribute} {value}");
    }
    assert_eq!(home.run(&["set", "d", "reset", "1"]).status, 0);
}

#[test]
fn a_disk_is_there_before_it_has_a_size_and_after() {
    let home = Home::new();
    let _served = home.serve(&["--size", "8M", "--name", "d", "--mem-limit", "1M"]);
    let socket = home.state().join("d.nbd");
    let set = |attribute: &str, value: &str| {
        let ran = home.run(&["set", "d", attribute, value]);
        assert_eq!(ran.status, 0, "{attribute} {value}: {ran:?}");
    };
    set("reset", "1");
    let stat = home.json(&["stat", "d", "--json"]);
    assert_eq!(
        (&stat["disksize"], &stat["initstate"]),
        (&0.into(), &0.into())
    );
    assert_eq!(stat["mem_limit"], 0, "it went with the reset");
    assert!(
        NbdClient::connect(&socket, "d").is_err(),
        "there is nothing"
    );
    home.run(&["set", "d", "compact", "1"])
        .refused(1, "d: has no size; give it one first");
    set("comp_algorithm", "zstd");
    home.run(&["set", "d", "algorithm_params", "algo=lz4 level=1"])
        .refused(1, "the codec of priority 0 is zstd; write comp_algorithm");
    set("algorithm_params", "algo=zstd priority=0 level=1");
    set("mem_limit", "2M");
    set("disksize", "5000");
    let stat = home.json(&["stat", "d", "--json"]);
    assert_eq!(stat["disksize"], 8192, "rounded up to whole pages");
    assert_eq!(stat["comp_algorithm"], "zstd");
    assert_eq!(stat["algorithm_params"], "level=1");
    assert_eq!(stat["mem_limit"], 2 << 20);
    let mut client = NbdClient::connect(&socket, "d").unwrap();
    assert_eq!(client.write(4096, &[7; 4096]).unwrap(), 0);
    assert_eq!(client.read(4096, 4096).unwrap(), vec![7; 4096]);
    home.run(&["set", "d", "reset", "1"])
        .refused(1, "d: 1 client is connected");
}

#[test]
fn the_level_of_the_log_is_the_servers_and_needs_no_disk() {
    let home = Home::new();
    let config = home.dir.path().join("uzram.toml");
    std::fs::write(&config, "").unwrap();
    let empty = home.serve(&["--config", config.to_str().unwrap()]);
    let level = |args: &[&str]| {
        let ran = home.run(&[&["set"], args].concat());
        assert_eq!(ran.status, 0, "{ran:?}");
        ran.stdout
    };
    assert_eq!(level(&["log_level", "DEBUG"]), "log_level is debug\n");
    home.run(&["set", "log_level", "loud"])
        .refused(1, "write off, error, warn, info, debug or trace");
    for half in [["mem_limit", "1M"], ["disk", "log_level"]] {
        home.run(&["set", half[0], half[1]])
            .refused(2, "uzram set NAME ATTRIBUTE VALUE");
    }
    // Of several servers one is named.
    let _other = home.serve(&["--size", "1M", "--name", "d"]);
    home.run(&["set", "log_level", "info"])
        .refused(2, "2 servers run; choose one with --server NAME or PID");
    let pid = empty.child.id().to_string();
    level(&["log_level", "error", "--server", &pid]);
    level(&["log_level", "info", "--server", "d"]);
    assert_eq!(home.json(&["stat", "d", "--json"])["log_level"], "info");
    assert_eq!(level(&["d", "log_level", "warn"]), "d: log_level is warn\n");
    home.run(&["set", "d", "log_level", "warn", "--server", "d"])
        .refused(2, "--server: the disk d says which server");
}

#[test]
fn wrong_names_are_answered_with_the_nearest_one() {
    let home = Home::new();
    let _served = home.serve(&["--size", "8M", "--name", "disk"]);
    for (attribute, said) in [
        (
            "memlimit",
            "no attribute \"memlimit\"; did you mean mem_limit?",
        ),
        ("mem-limit", "did you mean mem_limit?"),
        ("disksise", "did you mean disksize?"),
        (
            "colour",
            "writable are: disksize, reset, empty, compact, comp_algorithm, algorithm_params, recomp_algorithm,",
        ),
        ("", "writable are: "),
        ("\u{1b}[31m", "no attribute \"\\u{1b}[31m\""),
    ] {
        home.run(&["set", "disk", attribute, "1"]).refused(1, said);
    }
    home.run(&["set", "disc", "mem_limit", "1"])
        .refused(1, "did you mean disk?");
    home.run(&["set", "a/b", "mem_limit", "1"])
        .refused(2, "name \"a/b\"");
}

#[test]
fn what_is_fixed_says_why() {
    let home = Home::new();
    let _served = home.serve(&["--size", "8M", "--name", "d"]);
    for (attribute, said) in [
        ("name", "clients know the disk by it"),
        ("unit", "it was fixed when the disk was made"),
        ("checksum", "it was fixed when the disk was made"),
        ("pid", "it is its server's"),
        ("sandbox", "it is its server's"),
        ("connections", "it counts clients"),
        ("initstate", "a disk is ready once it has a size"),
        (
            "orig_data_size",
            "it says what the disk holds; uzram reset empties it",
        ),
        (
            "compr_ratio",
            "it says what the disk holds; uzram reset empties it",
        ),
        (
            "failed_writes",
            "it counts what happened; uzram reset starts it afresh",
        ),
    ] {
        home.run(&["set", "d", attribute, "1"])
            .refused(1, &format!("attribute {attribute} is read-only: {said}"));
    }
}

#[test]
fn wrong_values_are_refused_and_change_nothing() {
    let home = Home::new();
    let _served = home.serve(&["--size", "8M", "--name", "d", "--mem-limit", "1M"]);
    let before = home.json(&["stat", "d", "--json"]);
    for (attribute, value, said) in [
        ("mem_limit", "lots", "not a number"),
        ("mem_limit", "", "empty"),
        ("mem_limit", "-1", "negative"),
        ("mem_limit", "1.5X", "unknown suffix"),
        ("mem_limit", "16E", "over 2^64"),
        ("mem_limit", "1GB", "powers of 10 or of 2"),
        ("mem_used_max", "1", "only 0 can be written"),
        ("read_only", "maybe", "write yes or no"),
        ("read_only", "2", "write yes or no"),
        (
            "log_level",
            "loud",
            "write off, error, warn, info, debug or trace",
        ),
        ("reset", "0", "write 1"),
        ("reset", "yes", "write a whole number"),
        ("reset", "65536", "at most 65535"),
        (
            "disksize",
            "1G",
            "d: has a size, 8388608 bytes; reset it first",
        ),
        ("comp_algorithm", "lz4", "d: has a size"),
        ("comp_algorithm", "lz5", "did you mean lzo?"),
        ("algorithm_params", "level=1", "d: has a size"),
    ] {
        home.run(&["set", "d", attribute, "--", value])
            .refused(1, said);
    }
    assert_eq!(home.json(&["stat", "d", "--json"]), before);
}

#[test]
fn a_disk_in_use_keeps_what_its_clients_were_told() {
    let home = Home::new();
    let _served = home.serve(&["--size", "8M", "--name", "d"]);
    let socket = home.state().join("d.nbd");
    let mut client = NbdClient::connect(&socket, "d").unwrap();
    home.run(&["set", "d", "read_only", "1"])
        .refused(1, "d: 1 client is connected");
    home.run(&["set", "d", "reset", "1"])
        .refused(1, "d: 1 client is connected");
    assert_eq!(
        client.write(0, &[7; 4096]).unwrap(),
        0,
        "it still takes writes"
    );
    assert_eq!(
        home.run(&["set", "d", "mem_limit", "1M"]).status,
        0,
        "this may change any time"
    );
    drop(client);
    eventually("the client is gone", || {
        home.run(&["set", "d", "read_only", "1"]).status == 0
    });
    let mut client = NbdClient::connect(&socket, "d").unwrap();
    assert_eq!(client.write(0, &[8; 4096]).unwrap(), 1, "EPERM");
    assert_eq!(client.read(0, 4096).unwrap(), vec![7; 4096]);
}

/// The server is in its sandbox, so it can open neither.
#[test]
fn files_that_a_value_names_are_passed() {
    let home = Home::new();
    let served = home.serve(&["--size", "1M", "--name", "d"]);
    assert_ne!(home.json(&["stat", "d", "--json"])["sandbox"], "off");
    let path = |name: &str| home.dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("dict"), uzram_testkit::noise(1, 4096)).unwrap();
    std::fs::write(path("backing"), "").unwrap();
    let set = |attribute: &str, value: &str| {
        let ran = home.run(&["set", "d", attribute, value]);
        assert_eq!(ran.status, 0, "{attribute} {value}: {ran:?}");
    };
    set("reset", "1");
    set("comp_algorithm", "zstd");
    set("algorithm_params", &format!("dict={}", path("dict")));
    set("backing_dev", &path("backing"));
    home.run(&["set", "d", "backing_dev", &path("missing")])
        .refused(1, "No such file");
    home.run(&["set", "d", "backing_dev", "/dev/null"])
        .refused(1, "neither a block device nor a file");
    set("disksize", "1M");
    let mut client = NbdClient::connect(&home.state().join("d.nbd"), "d").unwrap();
    let noise = uzram_testkit::noise(2, 4096);
    client.write(0, &noise).unwrap();
    set("writeback", "huge");
    let stat = home.json(&["stat", "d", "--json"]);
    assert_eq!(
        (&stat["bd_count"], &stat["bd_writes"]),
        (&1.into(), &1.into())
    );
    assert!(client.read(0, 4096).unwrap() == noise);
    client.write(0, &[0; 4096]).unwrap();
    drop((client, served));
}
