//! The machine as this process sees it: the files below a root directory, and the answers of a few
//! system calls. Tests put a directory in place of `/` and answers of their own in place of the calls.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::thread::CapabilitySet;
use uzram::CgroupLimit;

use crate::size::ram_bytes;
use crate::system;

/// The longest file that is read, in bytes: a distribution's list of modules has some 600 KiB.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Entries of a directory that are looked at.
pub(super) const ENTRIES_MAX: usize = 1 << 14;
/// Files that exist wherever a file system of the kernel's is mounted whole, as not in a container
/// that shows only processes.
const MARKS: [(&str, &str); 2] = [("/proc/", "/proc/filesystems"), ("/sys/", "/sys/module")];

/// The machine.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) root: PathBuf,
    /// The kernel's version, as `uname -r` prints it.
    pub release: String,
    /// The machine's architecture, as `uname -m` prints it.
    pub architecture: String,
    /// RAM in bytes.
    pub ram_bytes: u64,
    /// The rights of this process.
    pub rights: Rights,
    pub(super) ublk: Result<(), String>,
    pub(super) userfaultfd: Result<Opened, io::ErrorKind>,
    pub(super) memory_limit: Option<CgroupLimit>,
}

/// The rights of this process, as far as setting a block device up depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Whether its user is root.
    pub is_root: bool,
    /// Whether it has `CAP_SYS_ADMIN`.
    pub has_sys_admin: bool,
    /// Whether it is in a user namespace of its own; `None` where /proc does not say.
    pub is_in_user_namespace: Option<bool>,
}

impl Rights {
    /// Whether it may swap to a device and mount one.
    #[must_use]
    pub fn may_set_up(self) -> bool {
        self.is_root && self.has_sys_admin && self.is_in_user_namespace == Some(false)
    }

    /// In words.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match (self.is_root, self.has_sys_admin, self.is_in_user_namespace) {
            (false, ..) => "not root: no swapon, no mount",
            (true, false, _) => "root without CAP_SYS_ADMIN: no swapon, no mount",
            (true, true, Some(true)) => "root of a user namespace: no swapon, no mount of a device",
            (true, true, Some(false)) => "root",
            (true, true, None) => "root, perhaps of a user namespace only (/proc does not say)",
        }
    }
}

/// A userfaultfd that could be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    pub way: Way,
    /// The bits that `UFFDIO_API` returns, of linux/userfaultfd.h.
    pub features: u64,
}

/// A way to open a userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// userfaultfd(2), for faults in system calls too.
    Call,
    /// `/dev/userfaultfd`, for faults in system calls too.
    Device,
    /// userfaultfd(2), for faults of the program's own code only.
    UserMode,
}

/// A file that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen<T> {
    Here(T),
    Missing,
    /// It may not be read, or its file system is not mounted here.
    Hidden,
}

impl Machine {
    /// This machine. Nothing is changed: a descriptor that is opened is closed again.
    #[must_use]
    pub fn here() -> Machine {
        let name = rustix::system::uname();
        let root = Path::new("/");
        let capabilities = rustix::thread::capabilities(None);
        Machine {
            root: root.to_owned(),
            release: name.release().to_string_lossy().into_owned(),
            architecture: name.machine().to_string_lossy().into_owned(),
            ram_bytes: ram_bytes(),
            rights: Rights {
                is_root: rustix::process::geteuid().is_root(),
                has_sys_admin: capabilities
                    .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN)),
                is_in_user_namespace: system::is_in_user_namespace(),
            },
            ublk: uzram_frontends::ublk::check().map_err(|error| error.to_string()),
            userfaultfd: open_userfaultfd(&root.join("dev/userfaultfd")),
            memory_limit: uzram::cgroup_limit(),
        }
    }

    /// `path`, which is absolute, below the root.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether there is such a file.
    pub(super) fn find(&self, path: &str) -> Seen<()> {
        self.seen(path, fs::metadata(self.at(path)).map(drop))
    }

    /// Whether it is here: not missing and not hidden.
    pub(super) fn has(&self, path: &str) -> bool {
        self.find(path) == Seen::Here(())
    }

    /// The content of a file.
    pub(super) fn read(&self, path: &str) -> Seen<String> {
        let read = || {
            let mut text = String::new();
            let file = File::open(self.at(path))?;
            file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
            Ok(text)
        };
        self.seen(path, read())
    }

    /// A file that is missing says something only where others of its file system are seen.
    fn seen<T>(&self, path: &str, found: io::Result<T>) -> Seen<T> {
        let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        match found {
            Ok(found) => Seen::Here(found),
            Err(error) if is_missing(&error) && self.is_mounted(path) => Seen::Missing,
            Err(_) => Seen::Hidden,
        }
    }

    fn is_mounted(&self, path: &str) -> bool {
        let mut marks = MARKS.iter();
        let mark = marks.find(|(prefix, _)| path.starts_with(prefix));
        mark.is_none_or(|(_, mark)| self.at(mark).exists())
    }
}

/// Opens a userfaultfd in the first way that this process may use.
fn open_userfaultfd(device: &Path) -> Result<Opened, io::ErrorKind> {
    let refused = match system::userfaultfd(false) {
        Ok(opened) => return features(Way::Call, &opened),
        Err(refused) => refused.kind(),
    };
    if let Ok(opened) = system::userfaultfd_of(device) {
        return features(Way::Device, &opened);
    }
    match system::userfaultfd(true) {
        Ok(opened) => features(Way::UserMode, &opened),
        Err(_) => Err(refused),
    }
}

fn features(way: Way, opened: &impl std::os::fd::AsFd) -> Result<Opened, io::ErrorKind> {
    let features = system::userfaultfd_features(opened.as_fd());
    let opened = features.map(|features| Opened { way, features });
    opened.map_err(|error| error.kind())
}
