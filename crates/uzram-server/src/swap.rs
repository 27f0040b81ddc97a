//! Swapping to a device of ours: the header of a swap area, and what a process must be so that the
//! kernel can wait for it while it makes memory free.
//!
//! A page is written to swap because memory is short; if serving that write needs memory that is
//! only got by writing another page to swap, nothing moves any more. So a server for swap
//!
//! - is locked in memory, never swapped out itself: its code and what it has at the start at once, the rest page
//!   by page as it is touched;
//! - asks the kernel for no memory while it serves a write, nor for a change of its memory map: the
//!   thread that refills the spare waits for memory with the map locked;
//! - is marked an I/O flusher in every thread: what the kernel allocates for it never waits for
//!   writeback or swap, and it may use reserves;
//! - is the last that the out-of-memory killer takes.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;
use uzram::{Error, ErrorKind, Result};

use crate::system;

/// Where the header's fields start, in bytes: the space before is for a boot loader.
const HEADER_OFFSET: usize = 1024;
const HEADER_VERSION: u32 = 1;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";
/// Fewest pages of a swap area, its header included: `swapon` refuses fewer.
const PAGES_MIN: u64 = 10;
/// How often, and how far apart, new threads are looked at until they map nothing more.
const SETTLE_TRIES: u32 = 50;
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
/// Looks without a change that count as the end: on a busy machine a thread may take its time to start.
const SETTLE_STEADY: u32 = 5;
/// How far apart the kernel's watermarks are to be, in bytes, and the most that it takes: a tenth.
const WATERMARK_GAP_BYTES: u64 = 256 << 20;
const WATERMARK_FACTOR_MAX: u32 = 1000;
const SCALE_SETTING: &str = "/proc/sys/vm/watermark_scale_factor";
const BOOST_SETTING: &str = "/proc/sys/vm/watermark_boost_factor";
/// Memory that malloc has ready for a device: a share of its size, as a divisor, above what all together have
/// at least, in bytes. A disk that is full of pages that do not compress takes a five-hundredth for its
/// blocks' entries, and up to as much again for their holes.
const HEAP_SHARE: u64 = 256;
const HEAP_BYTES_MIN: u64 = 4 << 20;
/// Never taken by the out-of-memory killer.
const OOM_SCORE_ADJ: &str = "-1000";

/// Set by [`prepare_process`].
static IS_PREPARED: AtomicBool = AtomicBool::new(false);
/// Set there if all that is mapped later is locked, too.
static IS_LOCKED: AtomicBool = AtomicBool::new(false);
/// What malloc is to have ready for all devices, in bytes.
static HEAP_BYTES: AtomicU64 = AtomicU64::new(HEAP_BYTES_MIN);

/// Makes this process fit to serve swap. It holds for the threads that are started afterwards, so
/// it comes before any.
///
/// Returns what the system refused, a line each, with the privilege that is missing and what may happen
/// without it: containers often lack one, and swap within a memory cgroup works all the same.
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
    IS_PREPARED.store(true, Ordering::Relaxed);
    refused
}

/// Locks all that there is, the program's code above all, and from then on what is touched: what is reserved,
/// as a pool's addresses, takes nothing.
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

/// Whether locked memory has no limit: what is reserved counts in full.
fn may_lock_any() -> bool {
    let has_right = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    has_right || getrlimit(Resource::Memlock).current.is_none()
}

/// Runs `start`, which maps memory and starts threads that map more for a device of `size_bytes`, so that
/// all of it is resident afterwards, and so is what malloc will be asked for: a worker that touches its
/// buffer for the first time when a large write comes would wait for memory.
pub(crate) fn resident<T>(size_bytes: u64, start: impl FnOnce() -> T) -> T {
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

/// Makes a swap area of all of `device`, as mkswap does, for pages of this machine's size.
///
/// The format is that of `union swap_header` in linux/swap.h.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a device that is too small, [`ErrorKind::Io`].
pub fn make_area(device: &Path, size_bytes: u64) -> Result<()> {
    let page_bytes = rustix::param::page_size();
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
}

impl Watermarks {
    /// The settings as `text` has them, one after the other.
    #[must_use]
    pub fn parse(text: &str) -> Option<Watermarks> {
        let (scale, boost) = text.trim().split_once(' ')?;
        Some(Watermarks {
            scale: scale.parse().ok()?,
            boost: boost.parse().ok()?,
        })
    }

    /// Makes the kernel start to swap while this much more memory is free, in bytes, and returns what the
    /// settings were if that changed them.
    ///
    /// FUSE and the loop driver allocate to pass a page on, and nothing keeps memory for them. If the
    /// kernel starts to swap when nearly nothing is left, as it does by default, a machine that is short as a
    /// whole comes to a stop: seen, on 384 MiB of RAM, within seconds. With this it does not. A boost, by
    /// which the kernel answers to fragmented memory, also raises what it keeps from whoever has no reserves,
    /// and only who frees memory takes it back: seen with 21 MiB free, of which FUSE got none.
    ///
    /// # Errors
    /// Where /proc/sys may not be written, as in most containers.
    pub fn raise(ram_bytes: u64) -> io::Result<Option<Watermarks>> {
        let before = Watermarks {
            scale: read_setting(SCALE_SETTING)?,
            boost: read_setting(BOOST_SETTING)?,
        };
        let wanted = Watermarks {
            scale: before.scale.max(watermark_factor(ram_bytes)),
            boost: 0,
        };
        if before == wanted {
            return Ok(None);
        }
        wanted.set()?;
        Ok(Some(before))
    }

    /// Sets what [`Watermarks::raise`] changed.
    ///
    /// # Errors
    /// Where /proc/sys may not be written.
    pub fn set(self) -> io::Result<()> {
        std::fs::write(SCALE_SETTING, self.scale.to_string())?;
        std::fs::write(BOOST_SETTING, self.boost.to_string())
    }
}

impl fmt::Display for Watermarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.scale, self.boost)
    }
}

fn read_setting(path: &str) -> io::Result<u32> {
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
    fn watermarks_are_a_tenth_of_ram_at_most() {
        assert_eq!(watermark_factor(384 << 20), 1000);
        assert_eq!(watermark_factor(32 << 30), 79);
        assert_eq!(watermark_factor(0), 1000);
    }

    #[test]
    fn watermarks_are_read_as_they_are_written() {
        let watermarks = Watermarks {
            scale: 10,
            boost: 15_000,
        };
        assert_eq!(
            Watermarks::parse(&format!("{watermarks}\n")),
            Some(watermarks)
        );
        for hostile in ["", "10", "10 ", " 15000", "10 15000 1", "-1 0"] {
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
