//! Disks for swap that outlive their server: their memory stays locked, and the next server waits beside.

use std::collections::BTreeMap;
use std::time::Duration;
use std::{fs, io, thread};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::support::{Home, eventually, has_ended, noise};
use crate::survive::{
    Holder, client, crash_until_nobody_serves, ends_cleanly, send, server_of, survivor,
};

const MIB: u64 = 1 << 20;
const CONTENT_BYTES: u64 = 24 * MIB;
/// The process that keeps the memory.
const KEEPER: &str = "uzram-memory";

/// The children of a process for which it has not waited.
fn all_children(pid: u32) -> Vec<u64> {
    let all = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let pids = all.split_whitespace().map(|pid| pid.parse().unwrap());
    pids.collect()
}

/// The living children of a process, each with its name.
fn children(pid: u32) -> BTreeMap<u64, String> {
    let all = all_children(pid).into_iter();
    all.filter_map(|pid| Some((pid, living(pid)?))).collect()
}

/// Children that have ended, and for which nobody has waited.
fn dead(pid: u32) -> usize {
    let all = all_children(pid).into_iter();
    all.filter(|pid| has_ended(pid)).count()
}

/// The name of a process that lives.
fn living(pid: u64) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (!has_ended(pid)).then(|| name.trim().to_owned())
}

/// A size of a process in bytes.
fn status(pid: u64, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// The one process that keeps the memory of a server of this holder.
#[track_caller]
fn keeper(holder: u32) -> u64 {
    let all = children(holder).into_iter();
    let keepers: Vec<u64> = all
        .filter_map(|(pid, name)| (name == KEEPER).then_some(pid))
        .collect();
    assert_eq!(keepers.len(), 1, "{:?}", children(holder));
    keepers[0]
}

/// The server that waits.
fn standby(home: &Home, holder: u32) -> Option<u64> {
    let server = server_of(home, "d");
    let all = children(holder).into_iter();
    let mut others = all.filter(|(pid, name)| name != KEEPER && *pid != server);
    others.next().map(|(pid, _)| pid)
}

fn swap_disk(home: &Home) -> Holder {
    let served = survivor(home, &["--for-swap", "--no-sandbox"]);
    let holder = served.child.id();
    eventually("a server waits", || standby(home, holder).is_some());
    served
}

/// Writes what does not compress to the disk's start.
fn fill(home: &Home) -> Vec<u8> {
    let content = noise(7, CONTENT_BYTES as usize);
    let mut disk = client(home, "d");
    for (number, part) in content.chunks(MIB as usize).enumerate() {
        disk.write(number as u64 * MIB, part).unwrap();
    }
    content
}

/// Without it the system could swap the disk's memory out, to the very disk.
#[test]
fn memory_stays_locked_while_nobody_serves() {
    let home = Home::new();
    let mut served = swap_disk(&home);
    let holder = served.child.id();
    let content = fill(&home);
    let first = keeper(holder);
    let server = server_of(&home, "d");
    let may_lock = status(server, "VmLck").is_some_and(|bytes| bytes > 0);
    send(holder.into(), "STOP");
    send(server, "KILL");
    eventually("the server's end", || has_ended(server));
    assert_eq!(living(first).as_deref(), Some(KEEPER));
    assert!(status(first, "VmRSS").unwrap() > CONTENT_BYTES);
    if may_lock {
        assert!(status(first, "VmLck").unwrap() > CONTENT_BYTES);
    }
    // It reads its own mappings for a moment. More would keep a lock of the dead.
    eventually("two descriptors at most", || {
        fs::read_dir(format!("/proc/{first}/fd")).unwrap().count() <= 2
    });
    send(holder.into(), "CONT");
    eventually("a successor", || server_of(&home, "d") != server);
    eventually("the first one's end", || has_ended(first));
    assert!(keeper(holder) != first);
    let mut disk = client(&home, "d");
    for (number, part) in content.chunks(MIB as usize).enumerate() {
        assert_eq!(disk.read(number as u64 * MIB, MIB as u32).unwrap(), part);
    }
    // All of it is mapped by the successor too, before anybody reads it.
    assert!(status(server_of(&home, "d"), "VmRSS").unwrap() > CONTENT_BYTES);
    let all: Vec<u64> = children(holder).into_keys().collect();
    ends_cleanly(&home, &mut served);
    eventually("all have ended", || all.iter().all(has_ended));
}

#[test]
fn the_next_server_is_the_one_that_waited() {
    let home = Home::new();
    let mut served = swap_disk(&home);
    let holder = served.child.id();
    for _ in 0..3 {
        let next = standby(&home, holder).unwrap();
        send(server_of(&home, "d"), "KILL");
        eventually("the one that waited", || server_of(&home, "d") == next);
        eventually("another one waits", || {
            standby(&home, holder).is_some_and(|now| now != next)
        });
    }
    eventually("the dead are collected", || dead(holder) <= 1);
    // One that died is no successor.
    let dead = standby(&home, holder).unwrap();
    send(dead, "KILL");
    eventually("it has ended", || has_ended(dead));
    eventually("it is collected, and nobody follows at once", || {
        !all_children(holder).contains(&dead)
    });
    let before = server_of(&home, "d");
    send(before, "KILL");
    eventually("a successor", || server_of(&home, "d") != before);
    // An upgrade replaces it: it would be of the old program.
    let old = standby(&home, holder);
    assert_eq!(home.run(&["upgrade", "d"]).status, 0);
    eventually("another one waits", || {
        let now = standby(&home, holder);
        now.is_some() && now != old
    });
    ends_cleanly(&home, &mut served);
}

/// The process that keeps the memory locked may be killed too. The disk goes on, and the next server has it locked again.
#[test]
fn a_disk_goes_on_without_the_process_that_kept_its_memory() {
    let home = Home::new();
    let mut served = swap_disk(&home);
    let holder = served.child.id();
    let first = keeper(holder);
    send(first, "KILL");
    eventually("it is collected", || !all_children(holder).contains(&first));
    client(&home, "d").write(0, &noise(1, 4096)).unwrap();
    let before = server_of(&home, "d");
    send(before, "KILL");
    eventually("a successor", || server_of(&home, "d") != before);
    assert!(keeper(holder) != first);
    assert_eq!(client(&home, "d").read(0, 4096).unwrap(), noise(1, 4096));
    ends_cleanly(&home, &mut served);
}

/// A signal to the server that waits is no request to the disk that it will serve.
#[test]
fn whoever_ends_the_server_that_waits_ends_no_disk() {
    let home = Home::new();
    let mut served = swap_disk(&home);
    let holder = served.child.id();
    client(&home, "d").write(0, &noise(1, 4096)).unwrap();
    send(standby(&home, holder).unwrap(), "TERM");
    let before = server_of(&home, "d");
    send(before, "KILL");
    eventually("a successor", || server_of(&home, "d") != before);
    assert_eq!(client(&home, "d").read(0, 4096).unwrap(), noise(1, 4096));
    assert!(served.child.try_wait().unwrap().is_none());
    ends_cleanly(&home, &mut served);
}

/// Servers are urgent until they serve, and usual then, in a sandbox too.
#[test]
fn no_server_stays_urgent() {
    const POLICY: usize = 40;
    let home = Home::new();
    let mut served = survivor(&home, &["--for-swap"]);
    let policies = || {
        let server = server_of(&home, "d");
        let tasks = fs::read_dir(format!("/proc/{server}/task")).unwrap();
        let stat = |task: io::Result<fs::DirEntry>| {
            fs::read_to_string(task.ok()?.path().join("stat")).ok()
        };
        let all: Vec<String> = tasks.filter_map(stat).collect();
        let policy = |stat: &String| {
            // Behind the name, which may have blanks: fields from the third on.
            let (_, fields) = stat.rsplit_once(')').unwrap();
            fields
                .split_whitespace()
                .nth(POLICY - 2)
                .unwrap()
                .to_owned()
        };
        all.iter().map(policy).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        let all = policies();
        assert!(
            !all.is_empty() && all.iter().all(|policy| policy == "0"),
            "{all:?}"
        );
        let before = server_of(&home, "d");
        send(before, "KILL");
        eventually("a successor", || server_of(&home, "d") != before);
    }
    ends_cleanly(&home, &mut served);
}

/// Whoever swaps to the disk waits for nobody else, so a successor without memory tries again, and is not replaced.
#[test]
fn a_successor_waits_for_memory() {
    const SHORT: Duration = Duration::from_secs(1);
    let home = Home::new();
    let mut served = swap_disk(&home);
    client(&home, "d").write(0, &noise(1, 4096)).unwrap();
    let next = standby(&home, served.child.id()).unwrap();
    // No address more than it has.
    limit_addresses(next, status(next, "VmSize"));
    let server = server_of(&home, "d");
    send(server, "KILL");
    eventually("the server's end", || has_ended(server));
    thread::sleep(SHORT);
    assert!(!has_ended(next));
    limit_addresses(next, None);
    eventually("the one that waited", || server_of(&home, "d") == next);
    assert_eq!(client(&home, "d").read(0, 4096).unwrap(), noise(1, 4096));
    ends_cleanly(&home, &mut served);
}

fn limit_addresses(pid: u64, bytes: Option<u64>) {
    let pid = Pid::from_raw(pid.try_into().unwrap());
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    prlimit(pid, Resource::As, limit).unwrap();
}

/// A disk is dropped that nobody serves. The process that keeps its memory lives on, for the other disks.
#[test]
fn memory_of_a_disk_that_was_dropped_goes_back() {
    let home = Home::new();
    let mut served = swap_disk(&home);
    let holder = served.child.id();
    assert_eq!(home.run(&["add", "--size", "1M", "--name", "e"]).status, 0);
    fill(&home);
    crash_until_nobody_serves(&home);
    let keeper = keeper(holder);
    let kept_bytes = || status(keeper, "RssShmem").unwrap();
    assert!(kept_bytes() > CONTENT_BYTES);
    assert_eq!(home.run(&["down", "d"]).status, 0);
    assert!(kept_bytes() < CONTENT_BYTES, "{}", kept_bytes());
    assert_eq!(home.run(&["upgrade", "e"]).status, 0);
    assert_eq!(client(&home, "e").read(0, 4096).unwrap(), [0; 4096]);
    ends_cleanly(&home, &mut served);
}

/// Whatever ends, nobody is left.
#[test]
fn nothing_is_left_when_the_holder_is_killed() {
    let home = Home::new();
    let served = swap_disk(&home);
    let holder = served.child.id();
    let all: Vec<u64> = children(holder).into_keys().collect();
    let server = server_of(&home, "d");
    send(holder.into(), "KILL");
    eventually("the others have ended", || {
        let mut others = all.iter().filter(|pid| **pid != server);
        others.all(has_ended)
    });
    let mut disk = client(&home, "d");
    disk.write(0, &noise(1, 4096)).unwrap();
    send(server, "TERM");
    eventually("the server has ended", || has_ended(server));
    drop(served);
}
