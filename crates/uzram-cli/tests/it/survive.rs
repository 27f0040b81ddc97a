//! `serve --survive`: servers are killed, crash and are replaced, and their disks stay.

use std::fs::{File, OpenOptions};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use uzram_testkit::{Rng, copy_program};

use crate::nbd_client::NbdClient;
use crate::support::{Home, PATIENCE, Served, eventually, has_ended, is_root, noise};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 64 * MIB;
const SUPERBLOCK_BYTES: u64 = 20 << 10;
/// Servers that crash in a row before no more are started.
const CRASHES_MAX: usize = 5;
/// Kills under load, unless this variable says more.
const KILLS: &str = "UZRAM_TEST_KILLS";
const KILLS_USUAL: u64 = 20;

fn kills() -> u64 {
    std::env::var(KILLS).map_or(KILLS_USUAL, |text| text.parse().unwrap())
}

/// The report of `stat` on the disk `name`, once somebody answers.
pub(crate) fn told(home: &Home, name: &str) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let asked = home.run(&["stat", name, "--json"]);
        if asked.status == 0 {
            return serde_json::from_str(&asked.stdout).unwrap();
        }
        assert!(Instant::now() < until, "{asked:?}");
    }
}

pub(crate) fn server_of(home: &Home, name: &str) -> u64 {
    told(home, name)["pid"].as_u64().unwrap()
}

pub(crate) fn send(pid: u64, signal: &str) {
    let pid = pid.to_string();
    let sent = Command::new("kill").args(["-s", signal, &pid]).status();
    assert!(sent.unwrap().success());
}

/// Ends the server of `name` by a signal, and waits until another one answers.
#[track_caller]
pub(crate) fn end_by(home: &Home, name: &str, signal: &str) {
    let before = server_of(home, name);
    send(before, signal);
    eventually("a successor", || server_of(home, name) != before);
}

/// A holder with its servers, all killed at the latest when the test ends.
pub(crate) struct Holder(Served);

impl Deref for Holder {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.0
    }
}

impl DerefMut for Holder {
    fn deref_mut(&mut self) -> &mut Served {
        &mut self.0
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let pid = self.0.child.id();
        let servers = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let _ = self.0.child.kill();
        for server in servers.unwrap_or_default().split_whitespace() {
            let _ = Command::new("kill").args(["-9", server]).status();
        }
    }
}

/// Each server of the disk `d` crashes, until none follows.
#[track_caller]
pub(crate) fn crash_until_nobody_serves(home: &Home) {
    for _ in 1..CRASHES_MAX {
        end_by(home, "d", "ABRT");
    }
    send(server_of(home, "d"), "ABRT");
    eventually("nobody serves", || {
        home.run(&["stat", "d"])
            .stderr
            .contains("its servers failed")
    });
}

/// As many servers as were killed had a successor, and no page of `d` was lost. How the last one ended.
#[track_caller]
fn followed(home: &Home, kills: u64) -> Value {
    let now = told(home, "d");
    assert_eq!(
        (&now["take_overs"], &now["lost_pages"]),
        (&kills.into(), &0.into())
    );
    now["last_end"].clone()
}

#[track_caller]
pub(crate) fn ends_cleanly(home: &Home, served: &mut Holder) {
    served.ends();
    assert_eq!(home.files(), [""; 0], "left behind");
}

/// A server with a holder, and its disk `d`.
pub(crate) fn survivor(home: &Home, more: &[&str]) -> Holder {
    let usual = ["--survive", "--size", "64M", "--name", "d"];
    Holder(home.serve(&[&usual, more].concat()))
}

pub(crate) fn client(home: &Home, name: &str) -> NbdClient {
    let socket = home.state().join(format!("{name}.nbd"));
    NbdClient::connect(&socket, name).unwrap()
}

/// The files of memory that a holder has, of this length.
fn memory_files(holder: u32, length_bytes: u64) -> Vec<PathBuf> {
    let files = std::fs::read_dir(format!("/proc/{holder}/fd")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let is_it = |path: &PathBuf| {
        let target = std::fs::read_link(path).unwrap_or_default();
        target.starts_with("/memfd:uzram (deleted)")
            && std::fs::metadata(path).is_ok_and(|found| found.len() == length_bytes)
    };
    paths.filter(is_it).collect()
}

/// Changes the byte at `offset` of a file of memory.
fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
}

#[test]
fn what_was_written_is_there_after_each_kill_and_nothing_is_left_at_the_end() {
    let home = Home::new();
    let mut served = survivor(&home, &["--checksum"]);
    let (first, last) = (noise(1, MIB as usize), noise(2, 4096));
    assert_eq!(client(&home, "d").write(0, &first).unwrap(), 0);
    let before = told(&home, "d");
    assert_eq!(
        (&before["take_overs"], &before["last_end"]),
        (&0.into(), &"".into())
    );
    for round in 1..=3 {
        end_by(&home, "d", "KILL");
        let mut after = client(&home, "d");
        assert_eq!(after.read(0, MIB as u32).unwrap(), first, "{round}");
        assert_eq!(after.write(DISK_BYTES - 4096, &last).unwrap(), 0);
        assert_eq!(after.read(DISK_BYTES - 4096, 4096).unwrap(), last);
        let now = told(&home, "d");
        assert_eq!(now["take_overs"], round);
        assert_eq!(now["holder"], served.child.id());
        assert_eq!(now["endpoint"], before["endpoint"]);
        assert_eq!(now["orig_data_size"], MIB + 4096);
        let how = now["last_end"].as_str().unwrap();
        let is_told = how.contains("killed by signal 9 (KILL); nobody served for ");
        assert!(is_told && how.ends_with(" ms"), "{how}");
    }
    ends_cleanly(&home, &mut served);
    let said = served.stderr();
    assert_eq!(said.matches("killed by signal 9").count(), 3, "{said}");
}

/// Disks that are changed while they are served, and disks that come and go: the last state is what the next server has.
#[test]
fn a_successor_has_what_the_last_server_had() {
    let home = Home::new();
    let mut served = survivor(&home, &[]);
    let add = |args: &[&str]| {
        let ran = home.run(&[&["add"], args].concat());
        assert_eq!(ran.status, 0, "{ran:?}");
    };
    add(&["--size", "1M", "--name", "gone"]);
    add(&[
        "--size",
        "8M",
        "--name",
        "more",
        "--algorithm",
        "zstd",
        "--listen",
        "127.0.0.1:0",
    ]);
    let set = |name: &str, attribute: &str, value: &str| {
        let ran = home.run(&["set", name, attribute, value]);
        assert_eq!(ran.status, 0, "{ran:?}");
    };
    assert_eq!(home.run(&["remove", "gone"]).status, 0);
    set("more", "mem_limit", "5M");
    set("d", "reset", "1");
    set("d", "comp_algorithm", "lz4");
    set("d", "recomp_algorithm", "algo=zstd priority=1");
    set("d", "disksize", "32M");
    client(&home, "d").write(4096, &noise(3, 4096)).unwrap();
    set("d", "read_only", "1");
    let of = |name: &str| {
        let told = told(&home, name);
        let facts = [
            "disksize",
            "comp_algorithm",
            "recomp_algorithm",
            "mem_limit",
            "read_only",
            "endpoint",
            "orig_data_size",
            "compr_data_size",
            "mem_used_total",
        ];
        facts.map(|fact| (fact, told[fact].clone()))
    };
    let before = (of("d"), of("more"));
    end_by(&home, "d", "KILL");
    assert_eq!((of("d"), of("more")), before);
    assert_eq!(client(&home, "d").read(4096, 4096).unwrap(), noise(3, 4096));
    let names = home.json(&["list", "--json"]);
    assert_eq!(names.as_array().unwrap().len(), 2, "{names}");
    // A name that was given back is free, and those that are not are taken while nobody serves.
    add(&["--size", "1M", "--name", "gone"]);
    ends_cleanly(&home, &mut served);
}

/// A page's number in an area, and how often it was written.
fn content(page: u64, version: u64) -> Vec<u8> {
    let mut bytes = noise(page << 32 | version, 4096);
    // Some compress, some do not, and some are filled with one word.
    match version % 3 {
        0 => {}
        1 => bytes[1000..].fill(page as u8),
        _ => bytes
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&(page << 20 | version).to_ne_bytes())),
    }
    if version % 3 != 2 {
        bytes[..8].copy_from_slice(&version.to_ne_bytes());
        bytes[8..16].copy_from_slice(&page.to_ne_bytes());
    }
    bytes
}

/// Writes pages of its own and reads them back, connecting again whenever a server is gone. What was answered is
/// never lost: a page has the last version that was answered, or the one after it, whose answer did not come.
fn write_and_verify(home: &Home, name: &str, first: u64, pages: u64, stop: &AtomicBool) -> u64 {
    let mut rng = Rng::new(first);
    let mut answered = vec![0u64; pages as usize];
    let mut begun = vec![0u64; pages as usize];
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let socket = home.state().join(format!("{name}.nbd"));
        let Ok(mut client) = NbdClient::connect(&socket, name) else {
            continue;
        };
        let mut step = || -> std::io::Result<()> {
            let page = rng.below(pages as usize) as u64;
            let at = page as usize;
            let offset = (first + page) * 4096;
            if rng.below(3) == 0 {
                let found = client.read(offset, 4096)?;
                let mut may_be = answered[at]..=begun[at];
                let is_right = |version: u64| match version {
                    0 => found.iter().all(|byte| *byte == 0),
                    _ => found == content(first + page, version),
                };
                let version = may_be.find(|version| is_right(*version));
                let version = version.unwrap_or_else(|| {
                    panic!("page {page}: none of {} to {}", answered[at], begun[at])
                });
                // The server has it: from now on it must stay.
                (answered[at], begun[at]) = (version, version);
            } else {
                begun[at] += 1;
                let bytes = content(first + page, begun[at]);
                assert_eq!(client.write(offset, &bytes)?, 0, "a write failed");
                answered[at] = begun[at];
            }
            done += 1;
            Ok(())
        };
        while !stop.load(Ordering::Relaxed) && step().is_ok() {}
    }
    done
}

/// Kills at any moment, under several clients that connect again.
fn kills_under_load(kills: u64, options: &[&str]) {
    const CLIENTS: u64 = 4;
    const PAGES: u64 = 1000;
    let home = Home::new();
    let mut served = survivor(&home, options);
    let stop = AtomicBool::new(false);
    let load = |number| write_and_verify(&home, "d", number * PAGES, PAGES, &stop);
    let load = &load;
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || load(number)))
            .collect();
        let mut rng = Rng::new(kills);
        let mut killed = 0;
        while killed < kills && !loads.iter().any(|load| load.is_finished()) {
            std::thread::sleep(Duration::from_micros(rng.below(100_000) as u64));
            end_by(&home, "d", "KILL");
            killed += 1;
        }
        stop.store(true, Ordering::Relaxed);
        let done: Vec<u64> = loads.into_iter().map(|load| load.join().unwrap()).collect();
        assert!(done.iter().all(|done| *done > kills), "{done:?}");
        println!("{options:?}: {kills} kills, {done:?} requests answered");
    });
    followed(&home, kills);
    ends_cleanly(&home, &mut served);
}

#[test]
fn no_answered_write_is_lost_by_kills_under_load() {
    let pools = uzram::pools();
    for (number, pool) in pools.iter().enumerate() {
        let mut options = vec!["--pool", *pool];
        options.extend((number % 2 == 0).then_some("--checksum"));
        kills_under_load(kills() / pools.len() as u64, &options);
    }
}

/// As a shell's background command may be, and a daemon of a careless parent.
#[test]
fn a_holder_whose_parent_ignored_its_children_waits_for_its_own() {
    let home = Home::new();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_uzram"));
    let mut served = home.start_by(
        command,
        &["serve", "--survive", "--size", "64M", "--name", "d"],
    );
    served.wait_until_ready();
    let mut served = Holder(served);
    client(&home, "d").write(0, &noise(1, 4096)).unwrap();
    end_by(&home, "d", "KILL");
    assert_eq!(client(&home, "d").read(0, 4096).unwrap(), noise(1, 4096));
    ends_cleanly(&home, &mut served);
}

/// Kept disks are served, whatever the file says meanwhile, and a later one is read again.
#[test]
fn a_configuration_that_broke_stops_no_successor() {
    let home = Home::new();
    let file = home.dir.path().join("disks.toml");
    let disk = |name: &str| format!("[{name}]\nsize = \"64M\"\n");
    std::fs::write(&file, disk("d")).unwrap();
    let mut served = Holder(home.serve(&["--survive", "--config", file.to_str().unwrap()]));
    client(&home, "d").write(0, &noise(1, 4096)).unwrap();
    std::fs::write(&file, "[d").unwrap();
    end_by(&home, "d", "KILL");
    std::fs::remove_file(&file).unwrap();
    end_by(&home, "d", "KILL");
    assert_eq!(client(&home, "d").read(0, 4096).unwrap(), noise(1, 4096));
    std::fs::write(&file, [disk("d"), disk("e")].concat()).unwrap();
    served.signal("HUP");
    eventually("the second disk", || home.run(&["stat", "e"]).status == 0);
    ends_cleanly(&home, &mut served);
}

#[test]
fn servers_that_crash_in_a_row_are_not_followed_and_their_disks_can_be_got_at() {
    let home = Home::new();
    let mut served = survivor(&home, &["--checksum"]);
    assert_eq!(home.run(&["add", "--size", "1M", "--name", "e"]).status, 0);
    client(&home, "d")
        .write(8 * MIB, &noise(7, MIB as usize))
        .unwrap();
    let image = home.dir.path().join("image");
    let image = image.to_str().unwrap();
    home.run(&["survive", "export", "d", image])
        .refused(1, "it is served");
    crash_until_nobody_serves(&home);
    assert!(
        served.child.try_wait().unwrap().is_none(),
        "the holder is gone"
    );
    // The names are still taken.
    let mut other = home.start(&["--size", "1M", "--name", "e"]);
    assert!(!other.is_ready());
    assert!(other.stderr().contains("already served"));
    home.run(&["survive", "export", "x", image]).refused(1, "x");
    let ran = home.run(&["survive", "export", "d", image]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let bytes = std::fs::read(image).unwrap();
    assert_eq!(bytes.len() as u64, DISK_BYTES);
    assert!(bytes[8 * MIB as usize..9 * MIB as usize] == noise(7, MIB as usize));
    assert!(bytes[..8 * MIB as usize].iter().all(|byte| *byte == 0));
    let mode = std::fs::metadata(image).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    home.run(&["survive", "export", "d", image])
        .refused(1, "exists");
    // Another program may do better, and another try is one.
    let ran = home.run(&["upgrade", "d"]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert_eq!(
        client(&home, "d").read(8 * MIB, MIB as u32).unwrap(),
        noise(7, MIB as usize)
    );
    crash_until_nobody_serves(&home);
    for name in ["d", "e"] {
        let ran = home.run(&["down", name]);
        assert_eq!(ran.status, 0, "{ran:?}");
    }
    served.wait();
    assert_eq!(home.files(), [""; 0], "left behind");
}

#[test]
fn an_upgrade_keeps_the_disks_and_a_program_that_does_not_serve_changes_nothing() {
    let home = Home::new();
    let mut served = survivor(&home, &[]);
    client(&home, "d")
        .write(0, &noise(1, MIB as usize))
        .unwrap();
    let program = home.dir.path().join("uzram-new");
    copy_program(env!("CARGO_BIN_EXE_uzram"), &program);
    let upgrade = |what: &str| {
        let mut command = Command::new(&program);
        command
            .args(["upgrade", what])
            .env("XDG_RUNTIME_DIR", home.dir.path());
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let failed = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said + &failed)
    };
    let runs = |file: &Path| {
        let path = format!("/proc/{}/exe", server_of(&home, "d"));
        std::fs::read_link(path).unwrap() == file
    };
    for what in ["d", "--all"] {
        let (status, said) = upgrade(what);
        assert_eq!(status, Some(0), "{said}");
        assert!(
            said.starts_with("d: served by uzram ") && said.contains("nobody served for "),
            "{said}"
        );
        assert!(runs(&program));
        assert_eq!(
            client(&home, "d").read(0, MIB as u32).unwrap(),
            noise(1, MIB as usize)
        );
    }
    let socket = home.state().join("0.holder");
    let bad = File::open("/bin/false").unwrap();
    let refused = uzram_server::survive::upgrade(&socket, &bad)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("the old one does again"), "{refused}");
    let none = home.dir.path().join("no-program");
    std::fs::write(&none, "nothing").unwrap();
    let refused = uzram_server::survive::upgrade(&socket, &File::open(&none).unwrap());
    assert!(refused.is_err());
    assert!(runs(&program));
    assert_eq!(
        client(&home, "d").read(0, MIB as u32).unwrap(),
        noise(1, MIB as usize)
    );
    // A program that was removed is started again from its open file.
    std::fs::remove_file(&program).unwrap();
    end_by(&home, "d", "KILL");
    assert_eq!(
        client(&home, "d").read(0, MIB as u32).unwrap(),
        noise(1, MIB as usize)
    );
    ends_cleanly(&home, &mut served);

    let mut plain = home.serve(&["--size", "1M", "--name", "p"]);
    home.run(&["upgrade", "p"]).refused(1, "--survive");
    home.run(&["upgrade", "x"]).refused(1, "x");
    home.run(&["upgrade"]).refused(2, "--all");
    assert_eq!(home.run(&["upgrade", "--all"]).status, 0);
    plain.ends();
}

#[test]
fn a_server_whose_holder_was_killed_goes_on_and_says_so() {
    let home = Home::new();
    let mut served = survivor(&home, &[]);
    client(&home, "d").write(0, &noise(1, 4096)).unwrap();
    let server = server_of(&home, "d");
    served.signal("KILL");
    served.wait();
    eventually("the holder is missed", || told(&home, "d")["holder"] == 0);
    assert_eq!(client(&home, "d").read(0, 4096).unwrap(), noise(1, 4096));
    assert_eq!(home.run(&["add", "--size", "1M", "--name", "e"]).status, 0);
    home.run(&["upgrade", "d"])
        .refused(1, "the holder's socket");
    for name in ["e", "d"] {
        let ran = home.run(&["down", name]);
        assert_eq!(ran.status, 0, "{ran:?}");
    }
    eventually("the server has ended", || has_ended(server));
    home.run(&["list"]);
    assert_eq!(home.files(), [""; 0], "left behind");
}

/// Of two disks one has a damaged superblock: the other one is served, and nothing of either is lost.
#[test]
fn a_damaged_disk_is_kept_and_the_others_are_served() {
    let home = Home::new();
    let mut served = survivor(&home, &["--checksum"]);
    client(&home, "d")
        .write(0, &noise(1, MIB as usize))
        .unwrap();
    let holder = served.child.id();
    let superblock = memory_files(holder, SUPERBLOCK_BYTES);
    let [superblock] = superblock.as_slice() else {
        panic!("{superblock:?}");
    };
    assert_eq!(home.run(&["add", "--size", "8M", "--name", "e"]).status, 0);
    client(&home, "e").write(0, &noise(2, 4096)).unwrap();
    // Its two copies.
    [520, 2312].iter().for_each(|at| flip(superblock, *at));
    end_by(&home, "e", "KILL");
    assert_eq!(client(&home, "e").read(0, 4096).unwrap(), noise(2, 4096));
    home.run(&["stat", "d"]).refused(1, "d");
    let list = home.json(&["list", "--json"]);
    println!("{list}");
    [520, 2312].iter().for_each(|at| flip(superblock, *at));
    end_by(&home, "e", "KILL");
    assert_eq!(
        client(&home, "d").read(0, MIB as u32).unwrap(),
        noise(1, MIB as usize)
    );

    // A damaged word costs its page, which is an error and no zeroes.
    let table = memory_files(holder, DISK_BYTES / 4096 * 8);
    let [table] = table.as_slice() else {
        panic!("{table:?}");
    };
    flip(table, 8 * 3 + 7);
    flip(table, 8 * 3 + 6);
    end_by(&home, "d", "KILL");
    assert_eq!(told(&home, "d")["lost_pages"], 1);
    assert_ne!(client(&home, "d").read_fails(3 * 4096, 4096).unwrap(), 0);
    assert_eq!(
        client(&home, "d").read(4 * 4096, 4096).unwrap()[..],
        noise(1, MIB as usize)[4 * 4096..][..4096]
    );
    client(&home, "d").write(3 * 4096, &noise(9, 4096)).unwrap();
    assert_eq!(
        client(&home, "d").read(3 * 4096, 4096).unwrap(),
        noise(9, 4096)
    );
    ends_cleanly(&home, &mut served);
    let said = served.stderr();
    assert!(
        said.contains("d: not taken over, and kept as it is"),
        "{said}"
    );
}

/// Some 90 KiB of lines, more than a pipe holds, that nobody reads.
#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let home = Home::new();
    let served = survivor(&home, &["--log-level", "info"]);
    client(&home, "d").write(0, &noise(1, 4096)).unwrap();
    for _ in 0..300 {
        end_by(&home, "d", "KILL");
    }
    assert_eq!(client(&home, "d").read(0, 4096).unwrap(), noise(1, 4096));
    drop(served);
}

#[test]
fn what_cannot_outlive_its_server_is_refused() {
    let home = Home::new();
    let tree = home.dir.path().join("tree");
    let tree = tree.to_str().unwrap();
    for (options, why) in [
        (&["--device", "brd"][..], "brd"),
        (&["--tree", tree][..], "--tree"),
    ] {
        let mut served = home.start(&[&["--survive", "--size", "1M"], options].concat());
        assert!(!served.is_ready());
        let said = served.stderr();
        assert!(said.contains(why), "{said}");
        assert_ne!(served.wait(), Some(0));
    }
    assert_eq!(home.files(), [""; 0], "left behind");
}

/// A server without descriptors refuses a disk that it could not hand on, and what it has stays.
#[test]
fn a_server_out_of_descriptors_refuses_what_could_not_be_kept() {
    let home = Home::new();
    let mut command = Command::new("prlimit");
    command.args(["--nofile=48:48", env!("CARGO_BIN_EXE_uzram")]);
    let options = ["serve", "--survive", "--size", "64M", "--name", "d"];
    let mut served = Holder(home.start_by(command, &options));
    served.wait_until_ready();
    client(&home, "d").write(0, &noise(1, 4096)).unwrap();
    let is_refused = |number: &u32| {
        let name = format!("e{number}");
        home.run(&["add", "--size", "1M", "--name", &name]).status != 0
    };
    let refused = (0..20).find(is_refused);
    assert!(refused.is_some_and(|number| number > 0), "{refused:?}");
    end_by(&home, "d", "KILL");
    assert_eq!(client(&home, "d").read(0, 4096).unwrap(), noise(1, 4096));
    ends_cleanly(&home, &mut served);
}

/// As a service manager tells all processes of a unit: the holder passes it on, and two signals are no wish to be cut short.
#[test]
fn a_server_that_is_told_twice_at_once_ends_well() {
    let home = Home::new();
    for _ in 0..5 {
        let mut served = survivor(&home, &[]);
        let mut busy = client(&home, "d");
        busy.write(0, &noise(1, 4096)).unwrap();
        let pids = [server_of(&home, "d"), served.child.id().into()].map(|pid| pid.to_string());
        let sent = Command::new("kill").arg("-TERM").args(&pids).status();
        assert!(sent.unwrap().success());
        assert_eq!(served.wait(), Some(0), "{}", served.stderr());
        assert_eq!(home.files(), [""; 0], "left behind");
    }
}

/// A client of its own making would prove little: QEMU's connects again and repeats what was not answered.
#[test]
fn qemus_client_connects_again() {
    if !is_here("qemu-img") {
        return;
    }
    let home = Home::new();
    let mut served = survivor(&home, &["--checksum"]);
    let socket = home.state().join("d.nbd");
    let image = format!(
        "driver=nbd,server.type=unix,server.path={},export=d,reconnect-delay=20,open-timeout=20",
        socket.display()
    );
    let mut load = Command::new("timeout");
    load.args([
        "60",
        "qemu-img",
        "bench",
        "-w",
        "--pattern=7",
        "-c",
        "20000",
        "-d",
        "8",
        "-s",
        "4096",
    ]);
    load.args(["-S", "4096", "-t", "none", "--image-opts", &image]);
    let mut load = load.stdout(Stdio::null()).spawn().unwrap();
    let mut kills = 0;
    let status = loop {
        if let Some(status) = load.try_wait().unwrap() {
            break status;
        }
        end_by(&home, "d", "KILL");
        kills += 1;
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success() && kills > 1, "{status}, {kills} kills");
    let mut after = client(&home, "d");
    for offset in (0..DISK_BYTES).step_by(MIB as usize) {
        assert!(
            after
                .read(offset, MIB as u32)
                .unwrap()
                .iter()
                .all(|byte| *byte == 7),
            "at {offset}"
        );
    }
    served.ends();
}

/// Kills servers of a disk that is attached, while `load` runs on it.
/// The kills, and the requests that successors answered for the dead.
fn kills_while(load: &mut Command, home: &Home) -> (u64, u64) {
    let mut load = load.stdout(Stdio::null()).spawn().unwrap();
    let mut rng = Rng::new(7);
    let (mut kills, mut replayed) = (0, 0);
    let status = loop {
        if let Some(status) = load.try_wait().unwrap() {
            break status;
        }
        end_by(home, "d", "KILL");
        kills += 1;
        replayed += told(home, "d")["replayed"].as_u64().unwrap();
        std::thread::sleep(Duration::from_micros(rng.below(100_000) as u64));
    };
    assert!(status.success(), "{status} after {kills} kills");
    (kills, replayed)
}

/// The path of the disk `d`, attached in this way; none where it cannot be.
fn attached(home: &Home, attach: &str, more: &[&str]) -> Option<(Holder, PathBuf)> {
    let options = [
        "--survive",
        "--size",
        "64M",
        "--name",
        "d",
        "--attach",
        attach,
    ];
    let mut served = Holder(home.start(&[&options, more].concat()));
    if !served.is_ready() {
        println!("skipped: {}", served.stderr());
        return None;
    }
    let path = told(home, "d")["endpoint"].as_str().unwrap().into();
    Some((served, path))
}

fn is_here(program: &str) -> bool {
    let is_here = Command::new(program).arg("--version").output().is_ok();
    if !is_here {
        println!("skipped: no {program}");
    }
    is_here
}

/// fio reads back all that it was told is written, and knows nothing of us.
#[test]
fn files_and_block_devices_lose_nothing_by_kills_under_fio() {
    if !is_here("fio") {
        return;
    }
    for (attach, more) in [("fuse", &[][..]), ("loop", &["--checksum"])] {
        let home = Home::new();
        let Some((mut served, path)) = attached(&home, attach, more) else {
            return;
        };
        // One that hangs ends by this; without the last requests' answers it would run for ever.
        let fio_seconds = (kills() / 3).max(6);
        let mut fio = Command::new("timeout");
        fio.current_dir(home.dir.path());
        fio.args([
            "-k",
            "5",
            &(fio_seconds + 60).to_string(),
            "fio",
            "--name=v",
            "--rw=randrw",
            "--bsrange=4k-64k",
            "--direct=1",
        ]);
        fio.args([
            "--ioengine=libaio",
            "--iodepth=16",
            "--size=48M",
            "--verify=crc32c",
        ]);
        fio.args([
            "--verify_fatal=1",
            "--randrepeat=0",
            "--verify_backlog=512",
            "--time_based",
        ]);
        // Three kills a second are few.
        fio.arg(format!("--runtime={fio_seconds}"));
        fio.arg("--verify_state_save=0");
        fio.arg(format!("--filename={}", path.display()));
        let (kills, replayed) = kills_while(&mut fio, &home);
        assert!(kills >= self::kills() / 2, "{kills} kills");
        assert!(replayed > 0, "no kill met a request under way");
        let last = followed(&home, kills);
        println!("{attach}: {kills} kills, {replayed} requests answered for the dead, {last}");
        ends_cleanly(&home, &mut served);
    }
}

/// A file that is in use keeps its server from ending, also one that has just been started.
#[test]
fn a_successor_that_is_told_to_end_before_it_serves_is_no_end_of_a_disk_in_use() {
    let home = Home::new();
    let Some((mut served, path)) = attached(&home, "fuse", &[]) else {
        return;
    };
    let holder = served.child.id().into();
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.unwrap();
    file.write_all_at(&noise(4, 4096), 4096).unwrap();
    for round in 0..12 {
        let before = server_of(&home, "d");
        send(before, "KILL");
        std::thread::sleep(Duration::from_micros(500 * round));
        send(holder, "TERM");
        eventually("a successor", || server_of(&home, "d") != before);
        let mut page = vec![0; 4096];
        file.read_exact_at(&mut page, 4096).unwrap();
        assert!(page == noise(4, 4096));
    }
    assert!(served.child.try_wait().unwrap().is_none());
    drop(file);
    ends_cleanly(&home, &mut served);
}

/// A file system and its journal: what was synced is there, and the check finds nothing.
#[test]
fn a_file_system_is_whole_after_kills() {
    if !is_here("mkfs.ext4") || !is_root() {
        return;
    }
    let home = Home::new();
    let Some((mut served, path)) = attached(&home, "loop", &[]) else {
        return;
    };
    let run = |program: &str, args: &[&str]| {
        let ran = Command::new(program).args(args).output().unwrap();
        assert!(
            ran.status.success(),
            "{program}: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
    };
    let device = path.to_str().unwrap();
    run("mkfs.ext4", &["-q", "-F", device]);
    let directory = home.dir.path().join("mnt");
    std::fs::create_dir(&directory).unwrap();
    let shown = directory.to_str().unwrap();
    run("mount", &[device, shown]);
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let path = directory.join(format!("f{}", number % 50));
                let file = File::create(&path).unwrap();
                file.write_all_at(&noise(number, 50_000), 0).unwrap();
                file.sync_all().unwrap();
                number += 1;
            }
            number
        });
        for _ in 0..kills() {
            end_by(&home, "d", "KILL");
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    run("umount", &[shown]);
    run("e2fsck", &["-f", "-n", device]);
    run("mount", &["-o", "ro", device, shown]);
    for number in written.saturating_sub(50)..written {
        let bytes = std::fs::read(directory.join(format!("f{}", number % 50))).unwrap();
        assert!(bytes == noise(number, 50_000), "file {number} of {written}");
    }
    run("umount", &[shown]);
    println!("{written} files, {}", told(&home, "d")["last_end"]);
    ends_cleanly(&home, &mut served);
}
