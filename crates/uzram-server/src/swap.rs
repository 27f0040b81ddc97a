//! Swapping to a device of ours: the header of a swap area, and the properties of a process on
//! which the kernel can rely while it frees memory.
//!
//! A page is written to swap because memory is short. If serving that write needs memory that only
//! another write to swap would free, nothing moves any more. So a server for swap
//!
//! - is locked in memory and never swapped out itself: its code and everything that exists at the
//!   start at once, the rest page by page as it is touched;
//! - asks the kernel for no memory while it serves a write, nor for a change of its memory map:
//!   the thread that refills the spare waits for memory with the map locked;
//! - is marked an I/O flusher in every thread: the kernel's allocations for it never wait for
//!   writeback or swap, and may use reserves;
//! - is the last choice of the out-of-memory killer;
//! - runs before other programs: a thread that waits for a page waits for the server's turn on a
//!   CPU. Its nice value says so, and that of its session, where the kernel shares the CPUs out
//!   among sessions first.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::num::ParseIntError;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, getpriority_process, getrlimit, setpriority_process};
use rustix::thread::CapabilitySet;
use uzram::{BlockDevice, ErrorKind};

use crate::error::{Error, Result};
use crate::system;

/// Offset of the header's fields, in bytes: the space before is for a boot loader.
const HEADER_OFFSET: usize = 1024;
const HEADER_VERSION: u32 = 1;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";
/// Fewest pages of a swap area, its header included: `swapon` refuses fewer.
const PAGES_MIN: u64 = 10;
/// Looks at new threads until they map nothing more, and the pause between the looks.
const SETTLE_TRIES: u32 = 50;
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
/// Looks without a change that count as the end: on a busy machine a thread may take time to
/// start.
const SETTLE_STEADY: u32 = 5;
/// The wanted distance of the kernel's watermarks, in bytes, and the largest factor: a tenth of
/// RAM.
const WATERMARK_GAP_BYTES: u64 = 256 << 20;
const WATERMARK_FACTOR_MAX: u32 = 1000;
const SCALE_SETTING: &str = "/proc/sys/vm/watermark_scale_factor";
const BOOST_SETTING: &str = "/proc/sys/vm/watermark_boost_factor";
const MIN_FREE_SETTING: &str = "/proc/sys/vm/min_free_kbytes";
/// Memory that the kernel keeps from usual programs for the take-over of a disk that is swapped to: a share of RAM, as a
/// divisor, and its most, in KiB. Of its whole reserve [urgent](be_urgent) threads get half.
const TAKE_OVER_SHARE: u64 = 16;
const TAKE_OVER_KIB_MAX: u64 = 32 << 10;
/// Memory that malloc has ready for a device: a share of its size, as a divisor, and a least
/// amount for all devices together, in bytes. A disk full of pages that do not compress takes a
/// five-hundredth for its blocks' entries, and up to as much again for their holes.
const HEAP_SHARE: u64 = 256;
const HEAP_BYTES_MIN: u64 = 4 << 20;
/// Memory kept in reserve for a device: a fiftieth of its size, and at least this many bytes,
/// unless the device is smaller.
const SPARE_SHARE: u64 = 50;
const SPARE_BYTES_MIN: u64 = 64 << 20;
/// Never taken by the out-of-memory killer.
const OOM_SCORE_ADJ: &str = "-1000";

/// The wanted nice value: the kernel's lowest, at which a thread that wakes runs next.
const NICE: i32 = -20;
/// The value from which a limit on nice values counts down.
const NICE_LIMIT_BASE: u64 = 20;
/// The nice value of this session as a whole (`CONFIG_SCHED_AUTOGROUP`, sched(7)).
const SESSION_NICE: &str = "/proc/self/autogroup";
const OWN_STAT: &str = "/proc/self/stat";
/// Whether the kernel shares the CPUs out among sessions.
const SESSIONS_SHARE: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Set by [`prepare_process`].
static IS_PREPARED: AtomicBool = AtomicBool::new(false);
/// Set there if all later mappings are locked, too.
static IS_LOCKED: AtomicBool = AtomicBool::new(false);
/// The bytes that malloc is to have ready for all devices.
static HEAP_BYTES: AtomicU64 = AtomicU64::new(HEAP_BYTES_MIN);

/// Makes this process fit to serve swap. It holds for threads that are started afterwards, so call
/// it before any.
///
/// Returns the system's refusals, one line each, with the missing privilege and the consequence.
/// Containers often lack one, and swap within a memory cgroup works all the same.
pub fn prepare_process() -> Vec<String> {
    system::keep_heap();
    system::fill_heap(HEAP_BYTES_MIN as usize);
    let mut refused = Vec::new();
    let mut note = |done: io::Result<()>, what: &str| {
        if let Err(error) = done {
            refused.push(format!("for-swap: {what} ({error})"));
        }
    };
    note(
        rustix::process::configure_io_flusher_behavior(true).map_err(Into::into),
        "not marked as an I/O flusher, which needs CAP_SYS_RESOURCE and Linux 5.6: if the whole machine \
         runs out of memory it may stall; limit the programs that swap with a memory cgroup",
    );
    let locked = lock_memory();
    IS_LOCKED.store(locked.is_ok(), Ordering::Relaxed);
    note(
        locked,
        "memory not locked, which needs CAP_IPC_LOCK or ulimit -l unlimited: the server may be swapped \
         out to itself; do not swap without",
    );
    note(
        std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ),
        "not spared by the out-of-memory killer, which needs CAP_SYS_RESOURCE",
    );
    let hastened = hasten();
    note(
        hastened,
        &format!(
            "runs at nice {}, for {NICE} needs CAP_SYS_NICE: beside busy programs swap is slow",
            niceness()
        ),
    );
    note(
        hasten_session(),
        "its session has no turn before others: let it lead one (uzram up, setsid) with CAP_SYS_NICE, or set \
         kernel.sched_autogroup_enabled=0; beside busy programs of other sessions swap is slow",
    );
    IS_PREPARED.store(true, Ordering::Relaxed);
    refused
}

/// Lowers the nice value as far as permitted, whatever it was at the start.
fn hasten() -> io::Result<()> {
    let Err(error) = setpriority_process(None, NICE) else {
        return Ok(());
    };
    let limit = getrlimit(Resource::Nice).current.unwrap_or(u64::MAX);
    let permitted = NICE_LIMIT_BASE as i32 - limit.min(2 * NICE_LIMIT_BASE) as i32;
    if permitted < niceness() {
        // Refused where the limit says more than holds: nothing has changed then.
        let _ = setpriority_process(None, permitted);
    }
    Err(error.into())
}

/// Lowers the nice value of this process's session, if it has one to itself: a nice value counts
/// among the tasks of a session only, and each session has the same share of a CPU otherwise.
///
/// In a CPU cgroup of its own, as a service of systemd, the group's weight counts and this says
/// nothing.
fn hasten_session() -> io::Result<()> {
    let sharing = std::fs::read_to_string(SESSIONS_SHARE).unwrap_or_default();
    if sharing.trim() != "1" {
        return Ok(());
    }
    let stat = std::fs::read_to_string(OWN_STAT)?;
    if !leads_session(&stat) {
        return Err(Errno::PERM.into());
    }
    std::fs::write(SESSION_NICE, NICE.to_string())
}

/// Whether the process of `stat`, the text of proc_pid_stat(5), leads its session.
///
/// `getsid` cannot say: it is 0 where the leader is outside this PID namespace, as in a container.
fn leads_session(stat: &str) -> bool {
    let Some((pid, (_name, after_name))) = stat
        .split_once(' ')
        .and_then(|(pid, rest)| Some((pid, rest.rsplit_once(')')?)))
    else {
        return false;
    };
    // State, parent, process group, session.
    after_name.split_whitespace().nth(3) == Some(pid)
}

/// The nice value of this thread and of those that it starts.
#[must_use]
pub fn niceness() -> i32 {
    getpriority_process(None).unwrap_or(0)
}

/// Locks all existing memory, the program's code above all, and later memory as it is touched:
/// reserved addresses, as a pool's, take nothing.
fn lock_memory() -> io::Result<()> {
    // Below a limit this would succeed, and the next thread's stack be refused.
    if !may_lock_any() {
        return Err(Errno::PERM.into());
    }
    rustix::mm::mlockall(MlockAllFlags::CURRENT)?;
    Ok(rustix::mm::mlockall(
        MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT,
    )?)
}

/// Whether locked memory has no limit: reserved addresses count in full.
fn may_lock_any() -> bool {
    let has_right = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    has_right || getrlimit(Resource::Memlock).current.is_none()
}

/// Serves `device` by `start`; if it is swapped to, with all memory at hand that this takes.
pub(crate) fn started<T>(
    is_for_swap: bool,
    device: Arc<dyn BlockDevice>,
    start: impl FnOnce(Arc<dyn BlockDevice>) -> T,
) -> T {
    let size_bytes = device.geometry().size_bytes;
    match is_for_swap {
        false => start(device),
        true => resident(size_bytes, || start(device)),
    }
}

/// Runs `start`, which maps memory and starts threads that map more for a device of `size_bytes`.
/// Afterwards all of it is resident, and so is the memory that malloc will need: a worker that
/// first touches its buffer when a large write comes would wait for memory.
fn resident<T>(size_bytes: u64, start: impl FnOnce() -> T) -> T {
    let lock = |how| {
        if IS_LOCKED.load(Ordering::Relaxed) {
            // What was allowed once is again.
            let _ = rustix::mm::mlockall(how);
        }
    };
    // Only what is new: a pool's addresses are far more than memory.
    lock(MlockAllFlags::FUTURE);
    let started = start();
    let (mut before, mut steady) = (0, 0);
    for _ in 0..SETTLE_TRIES {
        std::thread::sleep(SETTLE_PAUSE);
        let now = resident_kib();
        steady = if now == before { steady + 1 } else { 0 };
        if steady == SETTLE_STEADY {
            break;
        }
        before = now;
    }
    lock(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
    // Last: what was set up does not use it up. Of devices that have gone it stays.
    let share_bytes = size_bytes / HEAP_SHARE;
    let heap_bytes = HEAP_BYTES.fetch_add(share_bytes, Ordering::Relaxed) + share_bytes;
    system::fill_heap(usize::try_from(heap_bytes).unwrap_or(usize::MAX));
    started
}

/// Makes this thread, and the processes and threads that it starts, real-time ones: while memory is short, the system gives
/// such ones a part of what it refuses to others. It is for a holder, and for its next server until that serves. Where it
/// takes CAP_SYS_NICE, all stays as it is.
pub fn be_urgent() {
    let _ = system::set_urgent(0, true);
}

/// Makes every thread of this process a usual one, also one that an urgent thread starts meanwhile.
pub(crate) fn be_usual() {
    let mut known = BTreeSet::new();
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
        let names = tasks.filter_map(|task| task.ok()?.file_name().into_string().ok());
        let all: BTreeSet<i32> = names.filter_map(|name| name.parse().ok()).collect();
        if all.is_subset(&known) {
            return;
        }
        for thread in all.difference(&known) {
            // One that has just ended needs nothing.
            let _ = system::set_urgent(*thread, false);
        }
        known.extend(all);
    }
}

/// The memory of this process that is resident, in KiB; 0 where /proc does not say.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Whether [`prepare_process`] was called.
#[must_use]
pub fn is_process_prepared() -> bool {
    IS_PREPARED.load(Ordering::Relaxed)
}

/// Memory kept ready for a device of this size that is swapped to, in bytes, so that a write waits
/// for none. A burst of swapping lasts until the maintenance thread has made more; it looks every
/// few milliseconds.
#[must_use]
pub fn spare_bytes(size_bytes: u64) -> u64 {
    let share = size_bytes / SPARE_SHARE;
    share.max(SPARE_BYTES_MIN).min(size_bytes)
}

/// Makes a swap area of all of `device`, as mkswap does, for pages of this machine's size.
///
/// The format is that of `union swap_header` in linux/swap.h.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a device that is too small, [`ErrorKind::Io`].
pub fn make_area(device: &Path, size_bytes: u64) -> Result<()> {
    let page_bytes = uzram::system_page::size_bytes();
    let header = header(page_bytes, size_bytes)?;
    let failed = |error: io::Error| {
        let text = format!("{}: cannot be made a swap area", device.display());
        Error::new(ErrorKind::Io, text).with_source(error)
    };
    let file = OpenOptions::new()
        .write(true)
        .open(device)
        .map_err(failed)?;
    file.write_all_at(&header, 0).map_err(failed)?;
    file.sync_all().map_err(failed)
}

/// The kernel's settings of how much memory it keeps free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// vm.watermark_scale_factor
    scale: u32,
    /// vm.watermark_boost_factor
    boost: u32,
    /// vm.min_free_kbytes
    min_free_kib: u64,
}

impl Watermarks {
    /// The settings as `text` has them, one after the other.
    #[must_use]
    pub fn parse(text: &str) -> Option<Watermarks> {
        let mut words = text.trim().split(' ');
        let watermarks = Watermarks {
            scale: words.next()?.parse().ok()?,
            boost: words.next()?.parse().ok()?,
            min_free_kib: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(watermarks)
    }

    /// The settings as they are now.
    ///
    /// # Errors
    /// If /proc/sys cannot be read.
    pub fn read() -> io::Result<Watermarks> {
        Ok(Watermarks {
            scale: read_setting(SCALE_SETTING)?,
            boost: read_setting(BOOST_SETTING)?,
            min_free_kib: read_setting(MIN_FREE_SETTING)?,
        })
    }

    /// With `in_time`, the settings by which the kernel starts to swap while more memory is free; none if they are so
    /// already. To be [set](Watermarks::set) once the present ones are noted somewhere.
    ///
    /// FUSE and the loop driver allocate memory to pass a page on, and nothing reserves it for
    /// them. By default the kernel starts to swap when nearly nothing is left, and a machine that
    /// is short as a whole then stops: seen on 384 MiB of RAM, within seconds. With this setting
    /// it does not. The kernel answers to fragmented memory with a boost, which also raises the
    /// amount kept from allocations without reserves, and only a thread that frees memory takes it
    /// back: seen with 21 MiB free, of which FUSE got none.
    ///
    /// If the disk `outlives` its server, more of the lowest amount is kept as well, for the server that takes it over when
    /// nothing can be swapped: without it that one was seen to wait for ever.
    ///
    #[must_use]
    pub fn raised(self, ram_bytes: u64, in_time: bool, outlives: bool) -> Option<Watermarks> {
        let before = self;
        let mut wanted = before;
        if in_time {
            wanted.scale = before.scale.max(watermark_factor(ram_bytes));
            wanted.boost = 0;
        }
        if outlives {
            wanted.min_free_kib = before.min_free_kib.max(take_over_kib(ram_bytes));
        }
        (before != wanted).then_some(wanted)
    }

    /// Sets the values, those that differ.
    ///
    /// # Errors
    /// If /proc/sys cannot be written, as in most containers.
    pub fn set(self) -> io::Result<()> {
        std::fs::write(SCALE_SETTING, self.scale.to_string())?;
        std::fs::write(BOOST_SETTING, self.boost.to_string())?;
        // Once it is written, the kernel does not choose it by itself any more.
        if read_setting::<u64>(MIN_FREE_SETTING)? != self.min_free_kib {
            std::fs::write(MIN_FREE_SETTING, self.min_free_kib.to_string())?;
        }
        Ok(())
    }
}

fn take_over_kib(ram_bytes: u64) -> u64 {
    (ram_bytes / (TAKE_OVER_SHARE << 10)).min(TAKE_OVER_KIB_MAX)
}

impl fmt::Display for Watermarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.scale, self.boost, self.min_free_kib)
    }
}

fn read_setting<T: FromStr<Err = ParseIntError>>(path: &str) -> io::Result<T> {
    let text = std::fs::read_to_string(path)?;
    text.trim().parse().map_err(io::Error::other)
}

/// The distance of the kernel's watermarks in ten-thousandths of RAM, as the setting has it.
fn watermark_factor(ram_bytes: u64) -> u32 {
    let factor = WATERMARK_GAP_BYTES
        .saturating_mul(10_000)
        .div_ceil(ram_bytes.max(1));
    u32::try_from(factor).map_or(WATERMARK_FACTOR_MAX, |factor| {
        factor.min(WATERMARK_FACTOR_MAX)
    })
}

fn header(page_bytes: usize, size_bytes: u64) -> Result<Vec<u8>> {
    let pages = size_bytes / page_bytes as u64;
    if pages < PAGES_MIN {
        let least = PAGES_MIN * page_bytes as u64;
        let text = format!("size {size_bytes}: too small for swap, which takes {least} bytes");
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    let last_page = u32::try_from(pages - 1).unwrap_or(u32::MAX);
    let mut header = vec![0; page_bytes];
    let fields = [HEADER_VERSION, last_page, 0];
    for (field, value) in header[HEADER_OFFSET..].chunks_exact_mut(4).zip(fields) {
        field.copy_from_slice(&value.to_ne_bytes());
    }
    header[page_bytes - MAGIC.len()..].copy_from_slice(MAGIC);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_told_from_others() {
        for (stat, leads) in [
            ("7 (uzram) S 1 7 7 0 -1 4194560", true),
            ("7 (u) 8 S (7 8) S 1 7 7 0 -1", true),
            ("7 (uzram) S 1 7 6 0 -1 4194560", false),
            // The leader is outside this PID namespace.
            ("1 (uzram) S 0 0 0 0 -1 4194560", false),
            ("7 (uzram) S 1 7", false),
            ("7", false),
            ("", false),
        ] {
            assert_eq!(leads_session(stat), leads, "{stat:?}");
        }
    }

    #[test]
    fn watermarks_are_a_tenth_of_ram_at_most() {
        assert_eq!(take_over_kib(256 << 20), 16 << 10);
        assert_eq!(take_over_kib(32 << 30), 32 << 10);
        assert_eq!(watermark_factor(384 << 20), 1000);
        assert_eq!(watermark_factor(32 << 30), 79);
        assert_eq!(watermark_factor(0), 1000);
    }

    #[test]
    fn watermarks_are_read_as_they_are_written() {
        let watermarks = Watermarks {
            scale: 10,
            boost: 15_000,
            min_free_kib: 45_056,
        };
        assert_eq!(
            Watermarks::parse(&format!("{watermarks}\n")),
            Some(watermarks)
        );
        for hostile in [
            "",
            "10",
            "10 ",
            " 15000",
            "10 15000",
            "10 15000 1 1",
            "-1 0 1",
        ] {
            assert_eq!(Watermarks::parse(hostile), None, "{hostile:?}");
        }
    }

    #[test]
    fn a_header_is_what_mkswap_writes() {
        let header = header(4096, 1 << 20).unwrap();
        assert_eq!(header[1024..1028], 1u32.to_ne_bytes());
        assert_eq!(header[1028..1032], 255u32.to_ne_bytes());
        assert_eq!(header[1032..1036], [0; 4]);
        assert_eq!(&header[4086..], b"SWAPSPACE2");
        let kind = super::header(4096, 4096 * 9).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::InvalidInput);
        assert!(super::header(65536, u64::MAX).is_ok());
    }
}
