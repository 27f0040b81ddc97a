//! The growth that a memory cgroup's limit leaves to this process.
//!
//! The system does not refuse memory beyond a group's limit: it kills a process of the group. So
//! all growth asks here first, and is refused before a margin is used up, which stacks, heaps and
//! page tables need. One reading serves for an eighth of what it left, [`READING_BYTES_MAX`] at
//! most, and for [`READING_AGE_MAX`], because other processes of the group grow too. Admitted
//! growth counts as taken until the [`Admitted`] is dropped. By then the system counts it.
//!
//! There is one account for the process. Its lock is a leaf, and no hot path takes it.

use std::time::{Duration, Instant};

use crate::cgroup::{CgroupLimit, CgroupRoom, Cgroups};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{ProcessMutex, lock_process};

/// Most growth that one reading serves for.
const READING_BYTES_MAX: u64 = 64 << 20;
const READING_AGE_MAX: Duration = Duration::from_millis(100);

/// The share of the memory left that one reading serves for, as a divisor.
const READING_PART: u64 = 8;

/// The share of a limit that is kept free, as a divisor, and its bounds.
const MARGIN_PART: u64 = 32;
const MARGIN_BYTES_MIN: u64 = 1 << 20;
const MARGIN_BYTES_MAX: u64 = 32 << 20;

static ACCOUNT: ProcessMutex<Account> = ProcessMutex::new(Account::new());

struct Account {
    cgroups: Option<Cgroups>,
    /// Growth that may be admitted without reading.
    granted_bytes: u64,
    read_at: Option<Instant>,
    /// Growth that is admitted and perhaps not yet counted by the system.
    pending_bytes: u64,
}

/// Admitted growth. The memory may be taken while this value lives.
#[must_use = "what it stands for is taken while it lives"]
pub(crate) struct Admitted {
    bytes: u64,
}

/// Finds the groups. Call it before a sandbox forbids that, and where memory may be taken.
pub(crate) fn prepare() {
    // A model has no system around it.
    if !cfg!(uzram_shuttle) {
        lock_process(&ACCOUNT).cgroups();
    }
}

/// Asks for `bytes` more.
///
/// # Errors
/// [`ErrorKind::NoMemory`] if that would come too close to a group's limit.
pub(crate) fn admit(bytes: usize) -> Result<Admitted> {
    let bytes = if cfg!(uzram_shuttle) { 0 } else { bytes as u64 };
    if bytes > 0 && !lock_process(&ACCOUNT).take(bytes) {
        return Err(Error::new(
            ErrorKind::NoMemory,
            "the memory cgroup has no room for more; raise its limit, discard, or set a mem_limit below it",
        ));
    }
    Ok(Admitted { bytes })
}

/// The smallest limit of a memory cgroup on this process, if it can see one.
#[must_use]
pub fn cgroup_limit() -> Option<CgroupLimit> {
    let mut account = lock_process(&ACCOUNT);
    let cgroups = account.cgroups();
    cgroups.follow();
    cgroups.limit()
}

/// The room that the tightest memory cgroup leaves this process, if one limits it.
#[must_use]
pub fn cgroup_room() -> Option<CgroupRoom> {
    let mut account = lock_process(&ACCOUNT);
    let cgroups = account.cgroups();
    cgroups.follow();
    cgroups.rooms(u64::MAX).min_by_key(|room| room.free_bytes)
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if self.bytes > 0 {
            lock_process(&ACCOUNT).pending_bytes -= self.bytes;
        }
    }
}

impl Account {
    const fn new() -> Account {
        Account {
            cgroups: None,
            granted_bytes: 0,
            read_at: None,
            pending_bytes: 0,
        }
    }

    fn cgroups(&mut self) -> &mut Cgroups {
        self.cgroups.get_or_insert_with(Cgroups::find)
    }

    fn take(&mut self, bytes: u64) -> bool {
        let is_old = self
            .read_at
            .is_none_or(|read_at| read_at.elapsed() > READING_AGE_MAX);
        if is_old || self.granted_bytes < bytes {
            let left = self.read();
            if left < bytes {
                self.granted_bytes = 0;
                return false;
            }
            self.granted_bytes = (left / READING_PART).min(READING_BYTES_MAX).max(bytes);
            self.read_at = Some(Instant::now());
        }
        self.granted_bytes -= bytes;
        self.pending_bytes += bytes;
        true
    }

    /// The memory that the groups leave, in bytes.
    fn read(&mut self) -> u64 {
        let pending_bytes = self.pending_bytes;
        let cgroups = self.cgroups();
        cgroups.follow();
        let rooms = cgroups.rooms(READING_PART * READING_BYTES_MAX);
        let left = rooms.map(|room| {
            let margin = room.limit_bytes / MARGIN_PART;
            let margin = margin.clamp(MARGIN_BYTES_MIN, MARGIN_BYTES_MAX);
            room.free_bytes.saturating_sub(margin)
        });
        let left = left.min().unwrap_or(u64::MAX);
        left.saturating_sub(pending_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const MIB: u64 = 1 << 20;

    /// A process in a group with a limit of 64 MiB, of which 2 are the margin.
    fn account(folder: &Path, used_bytes: u64) -> Account {
        std::fs::write(folder.join("own"), "0::/\n").unwrap();
        std::fs::write(folder.join("memory.max"), (64 * MIB).to_string()).unwrap();
        use_bytes(folder, used_bytes);
        let mounts = format!("1 2 0:3 / {} rw - cgroup2 none rw", folder.display());
        let mut account = Account::new();
        account.cgroups = Some(Cgroups::of(&folder.join("own"), mounts));
        account
    }

    fn use_bytes(folder: &Path, bytes: u64) {
        std::fs::write(folder.join("memory.current"), bytes.to_string()).unwrap();
    }

    #[test]
    fn what_is_admitted_counts_before_the_system_counts_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut account = account(folder.path(), 0);
        assert!(account.take(40 * MIB));
        assert!(!account.take(30 * MIB), "70 of 64");
        assert!(account.take(22 * MIB));
        assert!(!account.take(1), "the margin");
        use_bytes(folder.path(), 40 * MIB);
        account.pending_bytes -= 40 * MIB;
        assert!(!account.take(1), "the same, counted");
        use_bytes(folder.path(), 0);
        account.pending_bytes -= 22 * MIB;
        assert!(account.take(62 * MIB));
    }

    #[test]
    fn one_reading_serves_for_a_part_of_what_is_left_and_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let mut account = account(folder.path(), 14 * MIB);
        assert!(
            account.take(MIB),
            "a reading: 48 are left, 6 of them granted"
        );
        use_bytes(folder.path(), 64 * MIB);
        account.read_at = Some(Instant::now() + Duration::from_secs(3600));
        let more = (0..100).take_while(|_| account.take(MIB)).count();
        assert_eq!(more, 5);
        use_bytes(folder.path(), 14 * MIB);
        assert!(account.take(MIB));
        use_bytes(folder.path(), 64 * MIB);
        account.read_at = Instant::now().checked_sub(READING_AGE_MAX * 2);
        assert!(!account.take(MIB), "an old reading");
    }

    #[test]
    fn without_a_limit_all_is_admitted() {
        let folder = tempfile::tempdir().unwrap();
        let mut account = account(folder.path(), 64 * MIB);
        std::fs::remove_file(folder.path().join("memory.max")).unwrap();
        assert!(account.take(1 << 40));
        assert!(account.take(1));
    }
}
