//! Processes, as `/proc` tells of them: who belongs to the tree, what memory they have, and where.
//!
//! Everything that is read here may have changed when it is used, and a process may be gone: then there is no answer.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::units::{PAGE_BYTES, Range};

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub range: Range,
    pub name: String,
    /// Private, writable, of no file, and without a property that forbids taking its pages.
    pub is_eligible: bool,
    /// Absent pages are served by a userfaultfd.
    pub is_registered: bool,
}

/// The flags in `smaps` of mappings whose pages must stay: locked, for devices, shared, wiped in a child, of huge
/// page files, growing stacks, shadow stacks.
const STAYS: &[&str] = &["lo", "io", "pf", "sh", "ms", "wf", "ht", "gd", "ss"];

/// Time until all processes must have ended that were killed, and between two looks for them.
const KILL_TIME_MAX: Duration = Duration::from_secs(5);
const KILL_PAUSE: Duration = Duration::from_millis(2);

/// The parents of all processes.
pub(crate) fn parents() -> BTreeMap<i32, i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return BTreeMap::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| Some((pid, parent(pid)?)))
        .collect()
}

/// `roots`, and who descends from them.
pub(crate) fn descendants(roots: &BTreeSet<i32>) -> BTreeSet<i32> {
    let parents = parents();
    let mut found: BTreeSet<i32> = roots
        .iter()
        .copied()
        .filter(|pid| parents.contains_key(pid))
        .collect();
    loop {
        let before = found.len();
        for (pid, parent) in &parents {
            if found.contains(parent) || roots.contains(parent) {
                found.insert(*pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// The fields of `/proc/PID/stat` behind the name, which may hold anything: the first is the state.
fn status_fields(path: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(path).ok()?;
    let rest = &text[text.rfind(')')? + 1..];
    Some(rest.split_whitespace().map(String::from).collect())
}

/// The process that began it, or has adopted it.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    status_fields(&format!("/proc/{pid}/stat"))?
        .get(1)?
        .parse()
        .ok()
}

/// The threads of a process.
pub(crate) fn threads(pid: i32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// A thread of the process that runs or sleeps, so that it can be stopped at once.
pub(crate) fn thread_to_stop(pid: i32) -> Option<i32> {
    threads(pid).into_iter().find(|thread| {
        let fields = status_fields(&format!("/proc/{pid}/task/{thread}/stat"));
        fields.is_some_and(|fields| matches!(fields.first().map(String::as_str), Some("R" | "S")))
    })
}

/// Anonymous bytes of a process that are in memory. What it shares with a child is counted for both.
pub(crate) fn anonymous_bytes(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut pages = text.split_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some(resident.saturating_sub(shared) * PAGE_BYTES as u64)
}

/// Anonymous bytes of a process that are in memory, of shared pages its part only. The system walks all pages for it.
pub(crate) fn anonymous_part_bytes(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Pss_Anon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Number and filters of the process's seccomp mode. More filters than ours may forbid what an agent calls.
pub(crate) fn filters(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp_filters:"))?;
    line.trim().parse().ok()
}

/// The program that a process runs, for messages.
pub(crate) fn name(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_string()
}

/// The mappings of a process, in the order of their addresses.
pub(crate) fn areas(pid: i32) -> Vec<Area> {
    let text = fs::read(format!("/proc/{pid}/smaps")).unwrap_or_default();
    parse_areas(&String::from_utf8_lossy(&text))
}

/// The mapping that holds the process's vdso.
pub(crate) fn vdso(pid: i32) -> Option<Range> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let line = text.lines().find(|line| line.ends_with("[vdso]"))?;
    parse_range(line.split_whitespace().next()?)
}

fn parse_areas(text: &str) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for line in text.lines() {
        if let Some(area) = parse_head(line) {
            areas.push(area);
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            let stays = flags.split_whitespace().any(|flag| STAYS.contains(&flag));
            if let Some(area) = areas.last_mut() {
                area.is_eligible &= !stays;
                area.is_registered = flags.split_whitespace().any(|flag| flag == "um");
            }
        }
    }
    areas
}

fn parse_head(line: &str) -> Option<Area> {
    let mut words = line.split_whitespace();
    let range = parse_range(words.next()?)?;
    let (access, _offset, _device, inode) =
        (words.next()?, words.next()?, words.next()?, words.next()?);
    let name = words.next().unwrap_or_default().to_string();
    let is_named_memory = name == "[heap]" || name.starts_with("[anon:");
    let is_anonymous = inode == "0" && (name.is_empty() || is_named_memory);
    Some(Area {
        range,
        is_eligible: access == "rw-p" && is_anonymous,
        is_registered: false,
        name,
    })
}

fn parse_range(text: &str) -> Option<Range> {
    let (start, end) = text.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

/// How many of `wanted` pages from `address` on, at least one, process `pid` has before a guard (`MADV_GUARD_INSTALL`). The kernel tells
/// of guards since Linux 6.15, and has them since 6.13.
pub(crate) fn pages_before_guard(pid: i32, address: u64, wanted: usize) -> usize {
    const GUARD: u64 = 1 << 58;
    let mut words = vec![[0; 8]; wanted];
    let at = address / PAGE_BYTES as u64 * 8;
    let pagemap = File::open(format!("/proc/{pid}/pagemap"));
    if pagemap
        .and_then(|file| file.read_exact_at(words.as_flattened_mut(), at))
        .is_err()
    {
        return 1;
    }
    let is_guard = |word: &[u8; 8]| u64::from_ne_bytes(*word) & GUARD != 0;
    words.iter().position(is_guard).unwrap_or(wanted).max(1)
}

/// Where thread `thread` keeps its list of robust locks: beside what the kernel writes when the thread ends.
pub(crate) fn robust_list(thread: i32) -> Option<u64> {
    let (mut head, mut length) = (0_u64, 0_usize);
    let (at, length_at) = (
        std::ptr::from_mut(&mut head),
        std::ptr::from_mut(&mut length),
    );
    // SAFETY: the call writes a pointer and a length to these places, and no more.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, at, length_at) };
    (result == 0 && head != 0).then_some(head)
}

/// Whether two processes have one address space, as after vfork.
pub(crate) fn share_memory(one: i32, other: i32) -> bool {
    const KCMP_VM: i32 = 1;
    // SAFETY: the call compares, and touches no memory of this process.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0_u64, 0_u64) };
    order == 0
}

/// Has a process that only ever does what others wait for run before programs, if this one may decide that.
pub(crate) fn hurry(pid: i32) {
    // SAFETY: all zeroes is a sched_param, whatever else a C library has in it.
    let mut priority: libc::sched_param = unsafe { std::mem::zeroed() };
    priority.sched_priority = 1;
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    let at = std::ptr::from_ref(&priority);
    // SAFETY: the kernel reads one sched_param.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, pid, policy, at) };
}

/// Allows this process as many descriptors as it may have: one for each process that it serves. What it starts later has the same.
pub(crate) fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Whoever runs out of them says so.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Kills a process. False if there is none.
pub(crate) fn kill(pid: i32) -> bool {
    use nix::sys::signal::{Signal, kill};
    kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).is_ok() && !has_ended(pid)
}

/// Kills the processes that `find` finds, over and over, for they may have begun others meanwhile: until there are none, or
/// [`KILL_TIME_MAX`] has passed.
pub(crate) fn kill_all(mut find: impl FnMut() -> BTreeSet<i32>) {
    let begin = Instant::now();
    while begin.elapsed() < KILL_TIME_MAX {
        if find().into_iter().filter(|pid| kill(*pid)).count() == 0 {
            return;
        }
        std::thread::sleep(KILL_PAUSE);
    }
}

/// Whether a process has ended, though nobody may have asked for its status yet.
pub(crate) fn has_ended(pid: i32) -> bool {
    let fields = status_fields(&format!("/proc/{pid}/stat"));
    fields.is_none_or(|fields| matches!(fields.first().map(String::as_str), Some("Z" | "X")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
555500000000-555500100000 rw-p 00000000 00:00 0                          [heap]
Size:               1024 kB
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
VmFlags: rd wr mr mw me lo ac sd
7f0000400000-7f0000500000 rw-p 00000000 00:00 0                          [anon:name of it]
VmFlags: rd wr mr mw me ac um sd
7f0000500000-7f0000600000 rw-p 00000000 08:01 77                         /usr/lib/a b.so
VmFlags: rd wr mr mw me ac sd
7f0000600000-7f0000700000 ---p 00000000 00:00 0
VmFlags: mr mw me sd
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
VmFlags: rd wr mr mw me gd ac
nonsense
";

    #[test]
    fn only_plain_private_memory_is_eligible() {
        let areas = parse_areas(SMAPS);
        let eligible: Vec<bool> = areas.iter().map(|area| area.is_eligible).collect();
        assert_eq!(eligible, [true, false, true, false, false, false]);
        assert!(areas[2].is_registered && !areas[0].is_registered);
        assert_eq!(areas[0].range, 0x5555_0000_0000..0x5555_0010_0000);
    }

    #[test]
    fn this_process_is_seen() {
        let me = std::process::id() as i32;
        assert!(anonymous_bytes(me).unwrap() > 0);
        assert!(anonymous_part_bytes(me).unwrap() > 0);
        assert!(vdso(me).is_some());
        assert!(thread_to_stop(me).is_some());
        assert!(robust_list(me).is_some());
        assert!(
            areas(me)
                .iter()
                .any(|area| area.name == "[stack]" && !area.is_eligible)
        );
        let parent = BTreeSet::from([parent(me).unwrap()]);
        assert!(descendants(&parent).contains(&me));
    }
}
