//! A budget that follows the memory that the system leaves.
//!
//! The policy decides from numbers. A thread reads them a few times a second and sets the budget. It touches no byte of the
//! range.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use uzram::{CgroupRoom, Error, ErrorKind, Result};

/// From one look at the system to the next.
const PAUSE: Duration = Duration::from_millis(200);
/// The share of the memory that is left free, as a divisor.
const FREE_PART: u64 = 8;
/// The share of a look's time in which some thread waited for memory, in thousandths: from here on the budget does not grow, and
/// from there on it shrinks.
const STALL_GROWS_NOT: u64 = 10;
const STALL_SHRINKS: u64 = 100;
/// The part of its pages that a memory gives up at a look with such waits, as a divisor.
const SHRINK_PART: u64 = 8;
/// The part of a budget by which it must change, as a divisor: each change wakes the pager.
const CHANGE_PART: u64 = 64;

/// The system at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    limit_bytes: u64,
    /// Left of the limit.
    free_bytes: u64,
    /// In thousandths of the time since the look before.
    stalled: u64,
}

/// The budget for memory of which `resident_bytes` are not compressed: what it has and what is left, but for a reserve.
fn decide(least_bytes: u64, resident_bytes: u64, look: Look) -> u64 {
    let reserve = look.limit_bytes / FREE_PART;
    let fits = (resident_bytes + look.free_bytes).saturating_sub(reserve);
    let most = match look.stalled {
        ..STALL_GROWS_NOT => look.limit_bytes,
        STALL_GROWS_NOT..STALL_SHRINKS => resident_bytes,
        _ => resident_bytes - resident_bytes / SHRINK_PART,
    };
    fits.min(most).max(least_bytes)
}

/// Where the system tells about memory.
#[derive(Debug)]
struct Sources {
    pressure: PathBuf,
    meminfo: PathBuf,
    /// Waits until the look before, in microseconds, and when that was.
    before: Option<(u64, Instant)>,
}

impl Sources {
    /// Those below `root`, for a process whose tightest group has its files in `group`.
    fn of(root: &Path, group: Option<&Path>) -> Sources {
        // Version 1 of groups has none.
        let own = group.map(|group| group.join("memory.pressure"));
        Sources {
            pressure: own
                .filter(|path| path.exists())
                .unwrap_or_else(|| root.join("proc/pressure/memory")),
            meminfo: root.join("proc/meminfo"),
            before: None,
        }
    }

    /// The tightest of the group's room and the machine's. `None` where the system tells nothing.
    fn look(&mut self, group: Option<CgroupRoom>, now: Instant) -> Option<Look> {
        let rooms = group.map(|room| (room.free_bytes, room.limit_bytes));
        let (free_bytes, limit_bytes) = rooms.into_iter().chain(self.machine()).min()?;
        Some(Look {
            limit_bytes,
            free_bytes,
            stalled: self.stalled(now).unwrap_or(0),
        })
    }

    fn machine(&self) -> Option<(u64, u64)> {
        let text = fs::read_to_string(&self.meminfo).ok()?;
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        Some((bytes("MemAvailable:")?, bytes("MemTotal:")?))
    }

    fn stalled(&mut self, now: Instant) -> Option<u64> {
        let text = fs::read_to_string(&self.pressure).ok()?;
        let line = text.lines().find(|line| line.starts_with("some "))?;
        let total: u64 = line.rsplit_once("total=")?.1.parse().ok()?;
        let (before, at) = self.before.replace((total, now))?;
        let elapsed = now.saturating_duration_since(at).as_micros().max(1) as u64;
        Some(total.saturating_sub(before).saturating_mul(1000) / elapsed)
    }
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Auto {
    /// Dropped first, which is the sign to end.
    sign: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Auto {
    /// Sets budgets from `least_bytes` on with `set`, for memory of which `resident` bytes are not compressed.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the system does not tell how much memory is left; [`ErrorKind::NoMemory`].
    pub(crate) fn start(
        least_bytes: u64,
        resident: impl Fn() -> u64 + Send + 'static,
        set: impl Fn(u64) + Send + 'static,
    ) -> Result<Auto> {
        let group = uzram::cgroup_limit();
        let group = group.as_ref().and_then(|limit| limit.path.parent());
        let mut sources = Sources::of(Path::new("/"), group);
        if sources.look(uzram::cgroup_room(), Instant::now()).is_none() {
            let text = "the system does not tell how much memory is left; give a budget in bytes";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let (sign, signs) = channel();
        let body = move || {
            let mut budget = 0;
            while signs.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                let Some(look) = sources.look(uzram::cgroup_room(), Instant::now()) else {
                    continue;
                };
                let wanted = decide(least_bytes, resident(), look);
                if wanted.abs_diff(budget) > budget / CHANGE_PART {
                    budget = wanted;
                    set(budget);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("uzram-budget".into())
            .spawn(body);
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::NoMemory, "no thread for the budget").with_source(error)
        })?;
        Ok(Auto {
            sign: Some(sign),
            thread: Some(thread),
        })
    }

    /// Leaves a thread alone that a child after a fork does not have.
    pub(crate) fn forget(mut self) {
        std::mem::forget(self.thread.take());
    }
}

impl Drop for Auto {
    fn drop(&mut self) {
        self.sign = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_budget_takes_what_is_left_and_gives_up_what_others_need() {
        let look = |free: u64, stalled| Look {
            limit_bytes: 800 * MIB,
            free_bytes: free * MIB,
            stalled,
        };
        let decided = |free, stalled| decide(MIB, 300 * MIB, look(free, stalled)) / MIB;
        // 100 MiB stay free.
        assert_eq!(decided(250, 0), 450);
        assert_eq!(decided(100, 0), 300);
        assert_eq!(decided(40, 0), 240);
        assert_eq!(decided(0, 0), 200);
        // While threads wait for memory it does not grow, or shrinks.
        assert_eq!(decided(250, STALL_GROWS_NOT), 300);
        assert_eq!(decided(250, STALL_SHRINKS), 262);
        assert_eq!(decided(0, STALL_SHRINKS), 200);
        assert_eq!(decide(7, 0, look(0, 1000)), 7, "never below the least");
    }

    #[test]
    fn the_tightest_limit_and_the_waits_since_the_look_before_are_seen() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let start = Instant::now();
        let mut sources = Sources::of(root.path(), None);
        assert_eq!(sources.look(None, start), None, "nothing is told");
        write(
            "proc/meminfo",
            "MemTotal:  4096 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n",
        );
        let pressure = |total: u64| {
            format!(
                "some avg10=0.00 avg60=0.03 avg300=0.02 total={total}\nfull avg10=0.00 total=7\n"
            )
        };
        write("proc/pressure/memory", &pressure(5_000_000));
        let machine = Look {
            limit_bytes: 4 * MIB,
            free_bytes: MIB,
            stalled: 0,
        };
        assert_eq!(
            sources.look(None, start),
            Some(machine),
            "there was no look before"
        );
        write("proc/pressure/memory", &pressure(5_050_000));
        let next = start + Duration::from_millis(200);
        let stalled = Look {
            stalled: 250,
            ..machine
        };
        assert_eq!(sources.look(None, next), Some(stalled));
        let room = |free_bytes| CgroupRoom {
            limit_bytes: 2 * MIB,
            free_bytes,
        };
        let group = Look {
            limit_bytes: 2 * MIB,
            free_bytes: 5,
            stalled: 0,
        };
        let next = next + Duration::from_millis(200);
        assert_eq!(sources.look(Some(room(5)), next), Some(group));
        assert_eq!(sources.look(Some(room(3 * MIB)), next), Some(machine));

        // A group of version 2 has its own.
        write("group/memory.pressure", &pressure(1_000));
        let mut own = Sources::of(root.path(), Some(&root.path().join("group")));
        own.look(None, start);
        write("group/memory.pressure", &pressure(1_400));
        assert_eq!(own.look(None, next).unwrap().stalled, 1);
        write("group/memory.pressure", "nonsense\n");
        assert_eq!(own.look(None, next).unwrap().stalled, 0);
    }
}
