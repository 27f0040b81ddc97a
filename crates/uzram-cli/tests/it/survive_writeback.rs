//! Disks whose pages are in a file outlive their servers, and so does what they were told before they had a size.

use std::fs::File;

use crate::support::{Home, eventually, noise};
use crate::survive::{
    client, crash_until_nobody_serves, end_by, ends_cleanly, server_of, survivor, told,
};

const MIB: u64 = 1 << 20;
const PAGE_BYTES: usize = 4096;

/// Sets an attribute of the disk `d`.
fn set(home: &Home, attribute: &str, value: &str) {
    let ran = home.run(&["set", "d", attribute, value]);
    assert_eq!(ran.status, 0, "{attribute} {value}: {ran:?}");
}

/// Makes the disk `d` anew, with pages in this file.
fn make_anew(home: &Home, path: &str) {
    set(home, "reset", "1");
    set(home, "backing_dev", path);
    set(home, "disksize", "64M");
}

/// An empty file.
fn backing_file(home: &Home) -> String {
    let path = home.dir.path().join("backing");
    File::create(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn pages_in_the_file_are_there_after_each_kill_and_an_upgrade() {
    let home = Home::new();
    let mut served = survivor(&home, &["--checksum"]);
    let path = backing_file(&home);
    set(&home, "reset", "1");
    set(&home, "backing_dev", &path);
    set(&home, "writeback_limit", "400");
    set(&home, "writeback_limit_enable", "1");
    set(&home, "mem_limit", "32M");
    // Who dies before it has a size has told its holder.
    end_by(&home, "d", "KILL");
    let now = told(&home, "d");
    assert_eq!(now["backing_dev"], path);
    assert_eq!(now["writeback_limit"], 400);
    set(&home, "disksize", "64M");

    let content = noise(1, MIB as usize);
    client(&home, "d").write(0, &content).unwrap();
    set(&home, "writeback", "page_indexes=0-99");
    let is_whole = |kills: u64| {
        let now = told(&home, "d");
        assert_eq!(
            (&now["bd_count"], &now["lost_pages"]),
            (&100.into(), &0.into())
        );
        assert_eq!(now["writeback_limit"], 300, "{kills}");
        assert_eq!(now["mem_limit"], 32 * MIB);
        assert_eq!(now["take_overs"], kills);
        let read = client(&home, "d").read(0, MIB as u32).unwrap();
        assert!(read == content, "{kills}");
    };
    for kills in 2..=4 {
        end_by(&home, "d", "KILL");
        is_whole(kills);
    }
    let before = server_of(&home, "d");
    assert_eq!(home.run(&["upgrade", "d"]).status, 0);
    assert!(server_of(&home, "d") != before);
    is_whole(5);
    // Other pages take no block of theirs, and those that are written leave the file.
    set(&home, "writeback", "page_indexes=100-255");
    client(&home, "d")
        .write(0, &content[..10 * PAGE_BYTES])
        .unwrap();
    end_by(&home, "d", "KILL");
    assert_eq!(told(&home, "d")["bd_count"], 246);
    assert!(client(&home, "d").read(0, MIB as u32).unwrap() == content);
    // What the limit has left is less than the rest.
    client(&home, "d")
        .write(MIB, &noise(2, 4 * MIB as usize))
        .unwrap();
    home.run(&["set", "d", "writeback", "huge"])
        .refused(1, "limit");
    assert_eq!(told(&home, "d")["writeback_limit"], 0);
    make_anew(&home, &path);
    ends_cleanly(&home, &mut served);
    // Nobody has the file any more.
    let mut other = home.serve(&["--size", "64M", "--name", "d"]);
    make_anew(&home, &path);
    other.ends();
}

/// While nobody serves the disk its file is nobody else's, and its pages can be got at.
#[test]
fn a_disk_that_nobody_serves_keeps_its_file() {
    let home = Home::new();
    let mut served = survivor(&home, &[]);
    let path = backing_file(&home);
    make_anew(&home, &path);
    let content = noise(3, MIB as usize);
    client(&home, "d").write(0, &content).unwrap();
    set(&home, "writeback", "huge");
    crash_until_nobody_serves(&home);
    let image = home.dir.path().join("image");
    for round in 0..2 {
        let taken = Home::new();
        let mut other = taken.serve(&["--size", "64M", "--name", "d"]);
        set(&taken, "reset", "1");
        set(&taken, "backing_dev", &path);
        taken
            .run(&["set", "d", "disksize", "64M"])
            .refused(1, "in use by another store");
        other.ends();
        let ran = home.run(&["survive", "export", "d", image.to_str().unwrap()]);
        assert_eq!(ran.status, 0, "{round}: {ran:?}");
        assert!(std::fs::read(&image).unwrap()[..MIB as usize] == content);
        std::fs::remove_file(&image).unwrap();
    }
    assert_eq!(home.run(&["upgrade", "d"]).status, 0);
    eventually("a server", || home.run(&["stat", "d"]).status == 0);
    assert!(client(&home, "d").read(0, MIB as u32).unwrap() == content);
    ends_cleanly(&home, &mut served);
}
