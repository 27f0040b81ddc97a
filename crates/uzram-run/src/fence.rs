//! The control group of a run's processes, of version 2: a second fence around them.
//!
//! The kernel stops them there while pages leave, if they fill memory faster than that; it ends them there, and nothing else, if
//! what cannot leave grows beyond [`LIMIT_PARTS`] budgets; and all of them are killed there at once.
//!
//! Agents are in the server's group, for they must run on while the program is stopped.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The group's limit, in budgets. The files that its programs use are in it.
const LIMIT_PARTS: u64 = 2;
/// The same for small budgets: so many bytes more than one.
const LIMIT_BYTES: u64 = 256 << 20;
/// Attempts to remove a group, whose last processes may be ending.
const REMOVE_TRIES: usize = 20;
const REMOVE_PAUSE: Duration = Duration::from_millis(5);

/// The process that writes it.
const THIS: &str = "0";

/// The group, and the one of who made it.
#[derive(Debug)]
pub(crate) struct Fence {
    own: PathBuf,
    group: PathBuf,
}

impl Fence {
    /// A new group below the one of this process, which it will not be in.
    ///
    /// # Errors
    /// The system's: there is no such hierarchy, or it may not be written.
    pub(crate) fn make() -> io::Result<Fence> {
        let own = own_group()?;
        let group = own.join(format!("uzram-run-{}", std::process::id()));
        // Of a run that was killed, with the same number: it is empty, or stays.
        let _ = fs::remove_dir(&group);
        fs::create_dir(&group)?;
        let fence = Fence { own, group };
        // Who may not come back to its own group must not leave it.
        fs::write(fence.own.join("cgroup.procs"), THIS).inspect_err(|_| fence.remove())?;
        Ok(fence)
    }

    /// The group at `path`, made by another process in the group of this one.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn at(group: PathBuf) -> io::Result<Fence> {
        let own = own_group()?;
        Ok(Fence { own, group })
    }

    /// A directory in place of a group, for tests.
    #[cfg(test)]
    pub(crate) fn of_directory(group: PathBuf) -> Fence {
        let own = group.clone();
        Fence { own, group }
    }

    /// The path of the group.
    pub(crate) fn path(&self) -> &Path {
        &self.group
    }

    /// This process is in the group from now on, with all that it begins, until [`leave`](Fence::leave).
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn enter(&self) -> io::Result<()> {
        fs::write(self.group.join("cgroup.procs"), THIS)
    }

    /// This process is again where it was, and what it has begun stays.
    pub(crate) fn leave(&self) {
        // That it may was seen when the group was made.
        let _ = fs::write(self.own.join("cgroup.procs"), THIS);
    }

    /// Has the kernel end processes of the group beyond what a budget allows. Without the controller nothing is done.
    pub(crate) fn limit(&self, budget_bytes: u64) {
        let bytes = limit_bytes(budget_bytes);
        // Not there, unless the group above lets its groups have limits.
        let _ = fs::write(self.group.join("memory.max"), bytes.to_string());
    }

    /// Moves a process to the group of this one.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn take_out(&self, pid: i32) -> io::Result<()> {
        fs::write(self.own.join("cgroup.procs"), pid.to_string())
    }

    /// Stops all processes of the group, or lets them run on.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn freeze(&self, freezes: bool) -> io::Result<()> {
        let word = if freezes { "1" } else { "0" };
        fs::write(self.group.join("cgroup.freeze"), word)
    }

    /// Kills all processes of the group, if the kernel has a word for that.
    pub(crate) fn kill(&self) {
        let _ = fs::write(self.group.join("cgroup.kill"), "1");
    }

    /// Processes of the group that the kernel has ended for want of memory.
    pub(crate) fn killed(&self) -> u64 {
        let text = fs::read_to_string(self.group.join("memory.events")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Removes the group, unless a process or another group is in it.
    pub(crate) fn remove(&self) {
        for _ in 0..REMOVE_TRIES {
            match fs::remove_dir(&self.group) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(REMOVE_PAUSE);
                }
                _ => return,
            }
        }
    }
}

/// Bytes that the kernel lets the processes of a run have, for a budget.
pub(crate) fn limit_bytes(budget_bytes: u64) -> u64 {
    let parts = budget_bytes.saturating_mul(LIMIT_PARTS);
    parts.max(budget_bytes.saturating_add(LIMIT_BYTES))
}

/// The directory of this process's group.
fn own_group() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    group_of(&mounts, &groups).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn group_of(mounts: &str, groups: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let mut words = mount.split(' ').skip(3);
    let (root, at) = (words.next()?, words.next()?);
    // A group above the mount cannot be named.
    let below = Path::new(group).strip_prefix(root).ok()?;
    Some(Path::new(at).join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
24 1 0:22 / /proc rw - proc proc rw
32 31 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
41 31 0:38 /a /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn a_group_is_found_below_the_mount() {
        let of = |groups| group_of(MOUNTS, groups);
        let at = |path| Some(PathBuf::from(path));
        assert_eq!(of("1:cpu:/x\n0::/a/b\n"), at("/sys/fs/cgroup/unified/b"));
        assert_eq!(of("0::/a\n"), at("/sys/fs/cgroup/unified/"));
        assert_eq!(of("0::/../c\n"), None);
        assert_eq!(of("1:cpu:/x\n"), None);
        assert_eq!(group_of("", "0::/a\n"), None);
    }

    #[test]
    fn the_limit_leaves_room_for_files() {
        assert_eq!(limit_bytes(64 << 20), 320 << 20);
        assert_eq!(limit_bytes(1 << 30), 2 << 30);
        assert_eq!(limit_bytes(u64::MAX), u64::MAX);
    }
}
