//! Folders that are locked as long as their run lives, and the end of those that a killed run left.
//!
//! The lock goes with the process, whatever ends it. A folder of this name without a lock is therefore
//! a dead run's, also where process ids were used again or are another container's.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::command;
use crate::error::{Error, Result};
use crate::peers::kernel_zram::Kernel;
use crate::suite::SUBJECT;

/// The beginning of all names.
const PREFIX: &str = "uzram-bench.";
/// Names of the disks of our servers, each of which has a folder of its own for its state.
pub(crate) const DISKS: [&str; 2] = ["bench", "bench-swap"];
/// Where memory cgroups are, and the file of their limit: version 1, then version 2.
pub(crate) const GROUPS: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("/sys/fs/cgroup", "memory.max"),
];
/// The setting of the system that a run may change: the file in its folder that has what was before, and the setting's.
pub(crate) const PAGE_CLUSTER: (&str, &str) = ("page-cluster", "/proc/sys/vm/page-cluster");
/// How long the kernel may take to let go of something whose last user has ended, or a child to leave.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// A folder of mode 0700 that is ours alone. It stays when this is dropped.
#[derive(Debug)]
struct Locked {
    path: PathBuf,
    _lock: OwnedFd,
}

impl Locked {
    fn new(root: &Path) -> io::Result<Locked> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = root.join(format!("{PREFIX}{}.{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            // Another run may have taken it for a dead one's before it was locked.
            if let Some(locked) = Locked::take(&path)? {
                return Ok(locked);
            }
        }
    }

    /// The folder, unless somebody has it locked or it is gone. Anything else of that name, a pipe for
    /// instance, is an error at once.
    fn take(path: &Path) -> io::Result<Option<Locked>> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened?,
        };
        let is_ours = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        Ok((is_ours && path.exists()).then(|| Locked {
            path: path.to_owned(),
            _lock: lock,
        }))
    }

    /// The folders of this user's dead runs: everybody may make folders of any name in `/tmp`.
    fn dead(root: &Path) -> Vec<Locked> {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        let named = entries.filter(|entry| {
            let name = entry.file_name();
            let own = rustix::process::geteuid().as_raw();
            name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
                && entry.metadata().is_ok_and(|entry| entry.uid() == own)
        });
        let taken = named.filter_map(|entry| Locked::take(&entry.path()).ok().flatten());
        taken.collect()
    }
}

/// A folder that goes with its owner, with all that is in it.
#[derive(Debug)]
pub(crate) struct Folder {
    locked: Locked,
    stays: bool,
}

impl Folder {
    pub(crate) fn new() -> Result<Folder> {
        let root = std::env::temp_dir();
        let locked = Locked::new(&root);
        let locked = locked.map_err(|error| Error::io(root.display(), error))?;
        Ok(Folder::of(locked))
    }

    fn of(locked: Locked) -> Folder {
        let stays = false;
        Folder { locked, stays }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.locked.path
    }

    /// Leaves it to whoever takes down what could not be taken down.
    pub(crate) fn stay(&mut self) {
        self.stays = true;
    }

    /// Takes down what a dead run left in it: servers, loop devices that are swap or not, mounts.
    fn undo(&self) {
        if self.path().join(SUBJECT).exists() {
            for name in DISKS {
                let mut down = Command::new(command::beside(SUBJECT));
                // Fails where there is no disk of this name.
                let _ = run(down
                    .env("XDG_RUNTIME_DIR", self.path())
                    .args(["down", name]));
            }
        }
        if let Ok(before) = fs::read_to_string(self.path().join(PAGE_CLUSTER.0)) {
            let _ = fs::write(PAGE_CLUSTER.1, before);
        }
        for device in loops_over(self.path()) {
            // Fails where it is no swap.
            let _ = run(Command::new("swapoff").arg(&device));
            take_down(Command::new("losetup").arg("-d").arg(&device));
        }
        for place in mounts_in(self.path()) {
            take_down(Command::new("umount").arg(place));
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is mounted there still must not be removed.
        if !self.stays && mounts_in(self.path()).is_empty() {
            let _ = fs::remove_dir_all(self.path());
        }
    }
}

/// A memory cgroup; dropping it removes it.
#[derive(Debug)]
pub(crate) struct Group(Locked);

impl Group {
    /// A group below `root` whose processes together have this much memory, by the file `limit`.
    pub(crate) fn below(root: &Path, limit: &str, limit_bytes: u64) -> io::Result<Group> {
        let group = Group(Locked::new(root)?);
        // Only the kernel makes the file: where it is not there, nothing would be limited.
        let file = fs::OpenOptions::new()
            .write(true)
            .open(group.0.path.join(limit));
        file.and_then(|mut file| {
            io::Write::write_all(&mut file, limit_bytes.to_string().as_bytes())
        })?;
        Ok(group)
    }

    /// The file that takes processes into it.
    pub(crate) fn processes(&self) -> PathBuf {
        self.0.path.join("cgroup.procs")
    }

    /// Ends the programs of a dead run, which nobody waits for any more.
    fn undo(&self) {
        let processes = fs::read_to_string(self.processes()).unwrap_or_default();
        for pid in processes.lines().filter_map(|line| line.parse().ok()) {
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = retry(|| fs::remove_dir(&self.0.path)) {
            let path = self.0.path.display();
            eprintln!("uzram-bench: left behind: {path}: {error}");
        }
    }
}

/// Undoes what runs left behind that were killed: programs that swap first, for their pages are in the swap
/// that goes next.
pub(crate) fn undo_dead_runs() {
    let tell = |path: &Path| {
        let path = path.display();
        eprintln!("uzram-bench: undoing what a run that was killed left in {path}");
    };
    for group in GROUPS
        .into_iter()
        .flat_map(|(root, _)| Locked::dead(root.as_ref()))
    {
        tell(&group.path);
        Group(group).undo();
    }
    for folder in Locked::dead(&std::env::temp_dir()) {
        tell(&folder.path);
        Folder::of(folder).undo();
    }
    for device in Kernel::default().dead_swaps() {
        tell(&device.path());
        // Fails where the run came no further than to the label.
        let _ = run(Command::new("swapoff").arg(device.path()));
    }
    // Their swap is reset by now.
    for told in Kernel::default().remove_dead() {
        eprintln!("uzram-bench: {told}");
    }
}

/// The loop devices over files in `folder`.
fn loops_over(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let file = fs::read_to_string(entry.path().join("loop/backing_file"));
        file.is_ok_and(|file| Path::new(&file).starts_with(folder))
    });
    ours.map(|entry| Path::new("/dev").join(entry.file_name()))
        .collect()
}

/// The mounts on `folder` and below it.
fn mounts_in(folder: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    let ours = places
        .map(PathBuf::from)
        .filter(|place| place.starts_with(folder));
    ours.collect()
}

/// Runs a command to its end: what it says.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output();
    let output = output.map_err(|error| Error::io(&program, error))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Error::Failed(format!("{program}: {}", said.trim())))
        }
    }
}

/// The kernel lets go of a device a moment after its last user has ended, so this is tried for a while.
pub(crate) fn take_down(command: &mut Command) {
    if let Err(error) = retry(|| run(command).map(drop)) {
        eprintln!("uzram-bench: left behind: {error}");
    }
}

/// Waits for a child that was told to leave, and kills it where it does not.
pub(crate) fn end_child(child: &mut Child) {
    let deadline = Instant::now() + LEAVE_LIMIT;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(PAUSE);
    }
    // Both do nothing to a child that has left.
    let _ = child.kill();
    let _ = child.wait();
}

fn retry<E>(mut attempt: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    let deadline = Instant::now() + LEAVE_LIMIT;
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_a_dead_run_s_once_nobody_has_it_locked() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("uzram-bench-of-somebody")).unwrap();
        let [live, dead] = [(); 2].map(|()| Locked::new(root.path()).unwrap());
        assert!(Locked::dead(root.path()).is_empty());
        let path = dead.path.clone();
        // As after a SIGKILL: the lock goes, the folder stays.
        drop(dead);
        let found = Locked::dead(root.path());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, path);
        assert!(Locked::dead(root.path()).is_empty(), "one run undoes it");
        found
            .into_iter()
            .map(Folder::of)
            .for_each(|folder| folder.undo());
        assert!(!path.exists() && live.path.exists());
    }

    #[test]
    fn what_is_no_folder_of_this_user_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join(format!("{PREFIX}pipe"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RWXU).unwrap();
        std::os::unix::fs::symlink("/tmp", root.path().join(format!("{PREFIX}link"))).unwrap();
        assert!(Locked::dead(root.path()).is_empty());
        let foreign = root.path().join(format!("{PREFIX}foreign"));
        fs::create_dir(&foreign).unwrap();
        if std::os::unix::fs::chown(&foreign, Some(65534), None).is_ok() {
            assert!(Locked::dead(root.path()).is_empty());
        }
    }

    #[test]
    fn a_folder_without_a_limit_is_no_group() {
        let root = tempfile::tempdir().unwrap();
        assert!(Group::below(root.path(), "memory.max", 1 << 20).is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
