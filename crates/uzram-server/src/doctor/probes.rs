//! One probe per subject. A probe reads, and never writes. A thing that it cannot see is unknown, not absent.

use std::io;

use super::fact::{Fact, State, Subject};
use super::machine::{ENTRIES_MAX, Machine, Opened, Seen, Way};
use crate::attachment::{fuse_is_here, loop_is_here};
use crate::size::human;
use crate::zswap::{self, Zswap};

// From linux/userfaultfd.h.
const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
const FEATURE_WRITE_PROTECT_UNPOPULATED: u64 = 1 << 13;
const FEATURE_MOVE: u64 = 1 << 16;

const MODULES_LOADED: &str = "/proc/modules";
const ZRAM_CONTROL: &str = "/sys/class/zram-control";
const SWAPS: &str = "/proc/swaps";
const FILE_SYSTEMS: &str = "/proc/filesystems";
const USERFAULTFD_SETTING: &str = "/proc/sys/vm/unprivileged_userfaultfd";
const CONTROLLERS: &str = "/sys/fs/cgroup/cgroup.controllers";
const CGROUPS: &str = "/proc/cgroups";
const PRESSURE: &str = "/proc/pressure/memory";

type Found = (State, String);

/// All facts, in the order in which they are listed.
pub(super) fn all(machine: &Machine) -> Vec<Fact> {
    let fact = |subject, (state, detail), source| Fact {
        subject,
        state,
        detail,
        source,
    };
    vec![
        fact(
            Subject::Zram,
            zram(machine),
            "/sys/class/zram-control, /proc/modules",
        ),
        fact(Subject::Zswap, zswap(machine), zswap::DIRECTORY),
        fact(Subject::Swap, swap(machine), SWAPS),
        fact(
            Subject::Ublk,
            ublk(machine),
            "/dev/ublk-control, /proc/modules",
        ),
        fact(Subject::Nbd, nbd(machine), "/sys/block/nbd0, /proc/modules"),
        fact(Subject::Fuse, fuse(machine), "/dev/fuse, /proc/filesystems"),
        fact(Subject::Loop, loop_device(machine), "/dev/loop-control"),
        fact(Subject::Userfaultfd, userfaultfd(machine), "userfaultfd(2)"),
        fact(Subject::Move, move_pages(machine), "UFFDIO_API"),
        fact(
            Subject::Cgroup,
            cgroup(machine),
            "/proc/cgroups, /sys/fs/cgroup",
        ),
        fact(Subject::Psi, psi(machine), PRESSURE),
    ]
}

fn zram(machine: &Machine) -> Found {
    match machine.find(ZRAM_CONTROL) {
        Seen::Here(()) => (State::Yes, zram_devices(machine)),
        Seen::Missing => not_active(machine, "zram"),
        Seen::Hidden => unknown("/sys is not shown here"),
    }
}

/// Their number, and the number of those without a size, which nobody uses.
fn zram_devices(machine: &Machine) -> String {
    let Ok(entries) = std::fs::read_dir(machine.at("/sys/block")) else {
        return "its devices are not shown here".into();
    };
    let names = entries.take(ENTRIES_MAX).flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let devices: Vec<String> = names.filter(|name| name.starts_with("zram")).collect();
    let is_free = |name: &&String| {
        let size = machine.read(&format!("/sys/block/{name}/disksize"));
        matches!(size, Seen::Here(text) if text.trim() == "0")
    };
    let free = devices.iter().filter(is_free).count();
    format!("{}, {free} unused", counted(devices.len(), "device"))
}

fn zswap(machine: &Machine) -> Found {
    let Some(settings) = Zswap::read_from(&machine.at(zswap::DIRECTORY)) else {
        return match machine.find(zswap::DIRECTORY) {
            Seen::Missing => (State::No, "not in this kernel".into()),
            Seen::Here(()) | Seen::Hidden => unknown("its settings are not shown here"),
        };
    };
    let compressor = settings.value("compressor").unwrap_or("?");
    let pool = settings.value("zpool").map(|pool| format!(" in {pool}"));
    let detail = format!("{compressor}{}", pool.unwrap_or_default());
    match settings.is_on() {
        true => (State::Yes, detail),
        false => (
            State::Off,
            format!("{detail}; uzram up --swap --zswap turns it on"),
        ),
    }
}

fn swap(machine: &Machine) -> Found {
    match machine.read(SWAPS) {
        Seen::Here(table) => (State::Yes, swap_areas(&table)),
        Seen::Missing => (State::No, "this kernel is built without swap".into()),
        Seen::Hidden => unknown("/proc is not shown here"),
    }
}

/// The areas of a table as /proc/swaps has it, whose sizes are in KiB.
fn swap_areas(table: &str) -> String {
    let area = |line: &str| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?.to_owned();
        let mut kib = fields.skip(1).map_while(|field| field.parse::<u64>().ok());
        Some((name, kib.next()?, kib.next()?))
    };
    let areas: Vec<(String, u64, u64)> = table.lines().skip(1).filter_map(area).collect();
    let bytes = |kib: u64| human(kib.saturating_mul(1 << 10));
    match areas.as_slice() {
        [] => "no area in use".into(),
        [(name, size, used)] => format!("{name}, {}, {} of it used", bytes(*size), bytes(*used)),
        areas => {
            let size = areas
                .iter()
                .fold(0, |sum: u64, area| sum.saturating_add(area.1));
            let used = areas
                .iter()
                .fold(0, |sum: u64, area| sum.saturating_add(area.2));
            format!(
                "{} areas, {}, {} of it used",
                areas.len(),
                bytes(size),
                bytes(used)
            )
        }
    }
}

/// Whether an area of swap is on the kernel's zram.
pub(super) fn is_zram_swap(machine: &Machine) -> bool {
    matches!(machine.read(SWAPS), Seen::Here(table)
        if table.lines().any(|line| line.starts_with("/dev/zram")))
}

fn ublk(machine: &Machine) -> Found {
    match (&machine.ublk, machine.has("/dev/ublk-control")) {
        (Ok(()), _) => (State::Yes, "the driver answers".into()),
        (Err(why), true) => (State::Refused, without_prefix(why)),
        (Err(_), false) => match machine.find("/sys/class/ublk-char") {
            Seen::Here(()) => (
                State::Refused,
                "the driver is loaded, and /dev/ublk-control is not here".into(),
            ),
            Seen::Missing => not_active(machine, "ublk_drv"),
            Seen::Hidden => unknown("neither /dev/ublk-control nor /sys is shown here"),
        },
    }
}

fn without_prefix(why: &str) -> String {
    why.strip_prefix("ublk: ").unwrap_or(why).to_owned()
}

fn nbd(machine: &Machine) -> Found {
    match machine.find("/sys/block/nbd0") {
        Seen::Here(()) => (
            State::Yes,
            "nbd-client attaches what uzram serve offers".into(),
        ),
        Seen::Missing => not_active(machine, "nbd"),
        Seen::Hidden => unknown("/sys is not shown here"),
    }
}

fn fuse(machine: &Machine) -> Found {
    let why = match fuse_is_here(&machine.root) {
        Ok(()) => return (State::Yes, "uzram serve --attach fuse makes a file".into()),
        Err(why) => why,
    };
    if machine.has("/dev/fuse") {
        return (State::Refused, why);
    }
    match machine.read(FILE_SYSTEMS) {
        Seen::Here(names) if names.lines().any(|name| name.trim() == "nodev\tfuse") => (
            State::Refused,
            "/dev/fuse is not here; a container gets it by --device /dev/fuse".into(),
        ),
        Seen::Here(_) | Seen::Missing => not_active(machine, "fuse"),
        Seen::Hidden => unknown("neither /dev/fuse nor /proc is shown here"),
    }
}

fn loop_device(machine: &Machine) -> Found {
    let why = match loop_is_here(&machine.root) {
        Ok(()) => return (State::Yes, "a block device over any file".into()),
        Err(why) => why,
    };
    if machine.has("/dev/loop-control") {
        return (State::Refused, why);
    }
    match machine.find("/sys/module/loop") {
        Seen::Here(()) => (State::Refused, why),
        Seen::Missing => not_active(machine, "loop"),
        Seen::Hidden => unknown("neither /dev/loop-control nor /sys is shown here"),
    }
}

fn userfaultfd(machine: &Machine) -> Found {
    match &machine.userfaultfd {
        Ok(opened) => (State::Yes, userfaultfd_detail(*opened)),
        Err(kind) => userfaultfd_refused(machine, *kind),
    }
}

fn userfaultfd_detail(opened: Opened) -> String {
    let way = match opened.way {
        Way::Call => "for faults of all code",
        Way::Device => "by /dev/userfaultfd, for faults of all code",
        Way::UserMode => {
            "for faults outside of system calls only; more needs CAP_SYS_PTRACE or \
             vm.unprivileged_userfaultfd=1"
        }
    };
    let has = |feature| opened.features & feature != 0;
    let protection = match (
        has(FEATURE_WRITE_PROTECT),
        has(FEATURE_WRITE_PROTECT_UNPOPULATED),
    ) {
        (false, _) => "no write protection",
        (true, false) => "write protection",
        (true, true) => "write protection, also of pages that are not there",
    };
    format!("{way}; {protection}")
}

/// A filter of system calls can answer as a kernel does that lacks the call, so only a kernel that
/// has no setting for it lacks it.
fn userfaultfd_refused(machine: &Machine, kind: io::ErrorKind) -> Found {
    let status = machine.read("/proc/self/status");
    let is_filtered = matches!(&status, Seen::Here(status) if has_filter(status));
    match (machine.find(USERFAULTFD_SETTING), kind) {
        (Seen::Here(()), _) if is_filtered => (
            State::Refused,
            "by the filter of system calls (seccomp) of this process, it seems; a container gets it by \
             --device /dev/userfaultfd, or by a profile that allows userfaultfd"
                .into(),
        ),
        (Seen::Here(()), _) => (
            State::Refused,
            "needs CAP_SYS_PTRACE, or sysctl vm.unprivileged_userfaultfd=1".into(),
        ),
        (Seen::Missing, io::ErrorKind::Unsupported) => (State::No, "not in this kernel".into()),
        (Seen::Missing, _) if !is_filtered => (State::Refused, "needs CAP_SYS_PTRACE".into()),
        (Seen::Missing | Seen::Hidden, _) => unknown("it was refused, and /proc does not say why"),
    }
}

/// Whether a thread's status tells of a filter of system calls.
fn has_filter(status: &str) -> bool {
    let mut lines = status.lines();
    lines.any(|line| line.split_whitespace().eq(["Seccomp:", "2"]))
}

fn move_pages(machine: &Machine) -> Found {
    match &machine.userfaultfd {
        Ok(opened) if opened.features & FEATURE_MOVE != 0 => (
            State::Yes,
            "takes a page out of a mapping without a copy".into(),
        ),
        Ok(_) => (State::No, "not in this kernel (Linux 6.8)".into()),
        Err(_) => match userfaultfd(machine).0 {
            State::No => (State::No, "no userfaultfd".into()),
            _ => unknown("only an open userfaultfd tells"),
        },
    }
}

fn cgroup(machine: &Machine) -> Found {
    let limit = machine.memory_limit.as_ref();
    let limit = limit.map(|limit| format!("; {} for this process", human(limit.bytes)));
    let limit = limit.unwrap_or_default();
    let controllers = machine.read(CONTROLLERS);
    let is_unified = matches!(&controllers, Seen::Here(names)
        if names.split_whitespace().any(|name| name == "memory"));
    if is_unified {
        return (State::Yes, format!("memory controller, version 2{limit}"));
    }
    if machine.has("/sys/fs/cgroup/memory/memory.limit_in_bytes") {
        return (State::Yes, format!("memory controller, version 1{limit}"));
    }
    match (machine.read(CGROUPS), controllers) {
        (Seen::Here(table), controllers) => match (memory_row(&table), controllers) {
            (Some(true), _) => (
                State::Off,
                format!(
                    "the kernel has the memory controller, which is not in /sys/fs/cgroup{limit}"
                ),
            ),
            (Some(false), _) => (
                State::Off,
                "turned off at boot (cgroup_disable=memory)".into(),
            ),
            (None, Seen::Here(_)) => (State::No, "no memory controller".into()),
            (None, _) => unknown("no table names the memory controller"),
        },
        (Seen::Missing, _) => (
            State::No,
            "this kernel is built without control groups".into(),
        ),
        (Seen::Hidden, _) => unknown("neither /proc nor /sys/fs/cgroup is shown here"),
    }
}

/// Whether the memory controller is on, by a table as /proc/cgroups has it.
fn memory_row(table: &str) -> Option<bool> {
    let mut rows = table.lines().map(str::split_whitespace);
    let mut row = rows.find_map(|mut row| (row.next() == Some("memory")).then_some(row))?;
    Some(row.nth(2)? == "1")
}

fn psi(machine: &Machine) -> Found {
    match machine.read(PRESSURE) {
        Seen::Here(text) => {
            let some = text.lines().next().unwrap_or_default();
            let average = some
                .split_whitespace()
                .find_map(|word| word.strip_prefix("avg10="));
            let average = average.unwrap_or("?");
            (
                State::Yes,
                format!("memory held some task up for {average} % of the last 10 s"),
            )
        }
        Seen::Missing => (
            State::No,
            "not in this kernel, or off (boot with psi=1)".into(),
        ),
        Seen::Hidden if machine.has(PRESSURE) => (State::Off, "off (boot with psi=1)".into()),
        Seen::Hidden => unknown("/proc is not shown here"),
    }
}

/// A driver that is not active: a module that could be loaded, or none.
fn not_active(machine: &Machine, module: &str) -> Found {
    let list = format!("/lib/modules/{}/modules.dep", machine.release);
    match (machine.find(MODULES_LOADED), machine.read(&list)) {
        (Seen::Missing, _) => (
            State::No,
            "not in this kernel, which takes no modules".into(),
        ),
        (_, Seen::Here(modules)) if names_module(&modules, module) => (
            State::Off,
            format!("a module that is not loaded: modprobe {module}"),
        ),
        (_, Seen::Here(_)) => (
            State::No,
            "neither in this kernel nor among its modules".into(),
        ),
        (_, Seen::Missing | Seen::Hidden) => (
            State::Unknown,
            format!("not loaded; {list} is not here, so a module may exist"),
        ),
    }
}

/// Whether a list as modules.dep names a module: `kernel/drivers/block/zram/zram.ko.xz: …`.
fn names_module(list: &str, module: &str) -> bool {
    let name = |line: &str| {
        let path = line.split(':').next()?;
        let file = path.rsplit('/').next()?;
        Some(file.split('.').next()?.replace('-', "_"))
    };
    list.lines()
        .any(|line| name(line).as_deref() == Some(module))
}

fn unknown(why: &str) -> Found {
    (State::Unknown, why.to_owned())
}

fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
