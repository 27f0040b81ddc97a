//! `serve --device` with memory and files, and `btt`.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::nbd_client::NbdClient;
use crate::support::{Home, eventually};

const FLUSH: u16 = 3;

fn connect(home: &Home, name: &str) -> NbdClient {
    let socket = home.state().join(format!("{name}.nbd"));
    NbdClient::connect(&socket, name).unwrap()
}

#[test]
fn every_kind_of_device_is_served_and_files_keep_their_content() {
    let home = Home::new();
    let file = home.dir.path().join("disk");
    let table = home.dir.path().join("table");
    let (file, table) = (file.to_str().unwrap(), table.to_str().unwrap());
    let made = home.run(&[
        "btt",
        "create",
        table,
        "--size",
        "17M",
        "--sector-size",
        "512",
    ]);
    assert_eq!(made.status, 0, "{made:?}");
    assert!(
        made.stdout
            .contains(&format!("uzram serve --device btt --path {table}")),
        "{made:?}"
    );
    let kinds: [(&str, &[&str]); 4] = [
        ("zram", &["--size", "4M"]),
        ("brd", &["--size", "4M"]),
        ("pmem", &["--size", "4M", "--path", file]),
        ("btt", &["--path", table]),
    ];
    for (kind, options) in kinds {
        for round in 0..2 {
            let args = [&["--name", "d", "--device", kind], options].concat();
            let mut served = home.serve(&args);
            let mut client = connect(&home, "d");
            let keeps = round == 1 && ["pmem", "btt"].contains(&kind);
            let held = client.read(12_345, 4).unwrap();
            assert_eq!(held == b"kept", keeps, "{kind}");
            assert_eq!(client.write(12_345, b"kept").unwrap(), 0);
            client.request(FLUSH, 0, 0, &[]).unwrap();
            drop(client);
            let stat = home.json(&["stat", "d", "--json"]);
            assert_eq!(stat["device"], kind, "{stat}");
            let used = stat["mem_used_total"].as_u64().unwrap();
            assert_eq!(used > 0, ["zram", "brd"].contains(&kind), "{stat}");
            let listed = home.run(&["list"]).stdout;
            assert!(
                listed.contains(if kind == "zram" { "auto" } else { kind }),
                "{listed}"
            );
            let end = if keeps || ["pmem", "btt"].contains(&kind) {
                "stays in its file"
            } else {
                "is lost"
            };
            assert!(served.said.contains(end), "{}", served.said);
            if kind == "brd" {
                eventually("an empty disk", || home.run(&["reset", "d"]).status == 0);
                let stat = home.json(&["stat", "d", "--json"]);
                assert_eq!(stat["mem_used_total"], 0);
            } else if kind != "zram" {
                eventually("a refusal", || {
                    let ran = home.run(&["reset", "d"]);
                    assert_eq!(ran.status, 1);
                    ran.stderr.contains("its data is in a file")
                });
                home.run(&["set", "d", "mem_limit", "1M"])
                    .refused(1, "does not compress");
            }
            served.ends();
        }
    }
    let sound = home.run(&["btt", "check", table]);
    assert_eq!(sound.status, 0, "{sound:?}");
}

#[test]
fn options_that_mean_nothing_for_a_kind_are_refused() {
    let home = Home::new();
    let missing = home.dir.path().join("missing");
    let missing = missing.to_str().unwrap();
    let refused = |args: &[&str], said: &str| {
        let args = [&["serve", "--name", "d"], args].concat();
        home.run(&args).refused(2, said);
    };
    refused(
        &["--device", "floppy", "--size", "1M"],
        "not a kind of device",
    );
    refused(&["--device", "pmem", "--size", "1M"], "--path: missing");
    refused(
        &["--device", "brd", "--size", "1M", "--path", missing],
        "--path: means nothing for brd",
    );
    refused(&["--device", "brd"], "--size: missing");
    refused(
        &["--device", "brd", "--size", "1M", "--algorithm", "lz4"],
        "--algorithm: means nothing",
    );
    refused(
        &["--device", "btt", "--path", missing, "--pool", "zbud"],
        "--pool: means nothing",
    );
    refused(&["--device", "btt", "--path", missing], "uzram btt create");
    refused(&["--device", "pmem", "--path", missing], "give --size");
    let folder = home.dir.path().to_str().unwrap().to_owned();
    let ran = home.run(&["serve", "--device", "pmem", "--path", &folder]);
    ran.refused(1, "directory");
    let foreign = home.dir.path().join("foreign");
    std::fs::write(&foreign, vec![1; 1 << 20]).unwrap();
    let foreign = foreign.to_str().unwrap();
    home.run(&["serve", "--device", "btt", "--path", foreign])
        .refused(1, "Sig");
    refused(
        &["--device", "pmem", "--path", foreign, "--size", "2M"],
        "offers 1048576 bytes",
    );
}

#[test]
fn a_file_is_served_once() {
    let home = Home::new();
    let file = home.dir.path().join("disk");
    let file = file.to_str().unwrap();
    let args = ["--device", "pmem", "--size", "1M", "--path", file];
    let _first = home.serve(&args);
    home.run(&[&["serve"], &args[..]].concat())
        .refused(1, "in use already");
    home.run(&["btt", "check", file])
        .refused(1, "in use already");
}

/// The server lives on when its file is cut off, and clients get errors.
#[test]
fn a_file_that_is_cut_off_is_an_error_of_its_clients() {
    let home = Home::new();
    let file = home.dir.path().join("disk");
    let path = file.to_str().unwrap();
    let _served = home.serve(&[
        "--name", "d", "--device", "pmem", "--size", "1M", "--path", path,
    ]);
    let mut client = connect(&home, "d");
    assert_eq!(client.write(500_000, b"lost").unwrap(), 0);
    std::fs::OpenOptions::new()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(8192)
        .unwrap();
    assert_eq!(client.write(500_000, b"lost").unwrap(), 5, "EIO");
    assert_eq!(client.write(0, b"kept").unwrap(), 0);
    assert_eq!(client.read(0, 4).unwrap(), b"kept");
    assert_eq!(home.run(&["stat", "d"]).status, 0);
}

fn flip(path: &Path, at: u64) {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0xff], at).unwrap();
}

#[test]
fn a_table_is_checked_and_repaired() {
    let home = Home::new();
    let path = home.dir.path().join("table");
    let table = path.to_str().unwrap();
    let create = ["btt", "create", table, "--size", "17M"];
    assert_eq!(home.run(&create).status, 0);
    home.run(&create).refused(2, "leave it out");
    home.run(&["btt", "create", table]).refused(1, "--force");
    let again = home.run(&[
        "btt",
        "create",
        table,
        "--force",
        "--layout",
        "2.0",
        "--sector-size",
        "512",
    ]);
    assert_eq!(again.status, 0, "{again:?}");
    let report = home.json(&["btt", "check", table, "--json"]);
    assert_eq!(
        (&report["layout"], &report["sector_bytes"]),
        (&"2.0".into(), &512.into())
    );
    assert_eq!(report["problem_count"], 0);
    let said = home.run(&["btt", "repair", table]).stdout;
    assert!(said.contains("nothing to do"), "{said}");

    // Byte 7 of a lane's flog entry is a part of its free block's number.
    let file = std::fs::File::open(&path).unwrap();
    let mut flog = [0; 8];
    file.read_exact_at(&mut flog, 104).unwrap();
    flip(&path, u64::from_le_bytes(flog) + 6);
    let checked = home.run(&["btt", "check", table]);
    assert_eq!(checked.status, 1);
    assert!(
        checked.stdout.contains("Flog[0] names block"),
        "{checked:?}"
    );
    assert!(checked.stderr.contains("`uzram btt repair"), "{checked:?}");
    home.run(&["serve", "--device", "btt", "--path", table])
        .refused(1, "Flog[0]");
    let mended = home.run(&["btt", "repair", table]);
    assert!(
        mended.stdout.contains("1 lanes got a free block"),
        "{mended:?}"
    );
    assert_eq!(home.run(&["btt", "check", table]).status, 0);

    flip(&path, 200);
    let report = home.json(&["btt", "check", table, "--json"]);
    assert_eq!(
        (&report["damaged_info_blocks"], &report["problem_count"]),
        (&1.into(), &0.into())
    );
    drop(home.serve(&["--device", "btt", "--path", table]));
    let report = home.json(&["btt", "check", table, "--json"]);
    assert_eq!(report["damaged_info_blocks"], 0);
}

#[test]
fn tables_that_cannot_be_are_refused() {
    let home = Home::new();
    let path = home.dir.path().join("table");
    let table = path.to_str().unwrap();
    let refused = |args: &[&str], status, said: &str| {
        home.run(&[&["btt", "create", table], args].concat())
            .refused(status, said);
        assert!(!path.exists());
    };
    refused(&[], 2, "give --size");
    refused(&["--size", "17M", "--sector-size", "520"], 2, "512 or 4K");
    refused(&["--size", "8M"], 2, "at least");
    refused(&["--size", "8191P"], 2, "must be from 4096");
    refused(&["--size", "1000001"], 2, "multiple of 4096");
    home.run(&["btt", "check", table])
        .refused(1, "No such file");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    home.run(&["btt", "check", table])
        .refused(1, "Sig is not BTT_ARENA_INFO");
    home.run(&["btt", "repair", table])
        .refused(1, "Sig is not BTT_ARENA_INFO");
}
