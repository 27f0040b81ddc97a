//! The state directory: the names that are served, their processes and their control sockets.
//!
//! ```text
//! DIR/            0700, owned by the user; refused if it is anything else
//!   NAME.lock     flock'ed for as long as device NAME is served; holds {"pid":…,"control":"…"}
//!   NAME.nbd      the default NBD socket of NAME
//!   NAME.vhost    the default socket of NAME for virtual machines
//!   NAME.fuse/    where NAME is mounted as the file NAME, if it is attached that way
//!   NAME.ublk     there while NAME is attached as a disk of the kernel's driver; empty
//!   NAME.log      what a server in the background says on stderr
//!   NAME.up       what `up` uses NAME for; removed when a server takes the name afresh
//!   NAME.watermark  the kernel's watermark settings before NAME was swapped to
//!   NAME.zswap    the settings of zswap before it was put in front of NAME
//!   NAME.run      flock'ed for as long as the program NAME of `uzram run` runs; holds the same
//!   NAME.run-control  the control socket of that run
//!   N.server      flock'ed for as long as server N (0, 1, …) runs; holds the same
//!   N.control     its control socket
//!   N.holder      the socket of the process that holds what it has, if one does
//!   up.turn       flock'ed while `up` or `down` of any name is at work
//! ```
//!
//! A name belongs to the holder of the lock on the file that `NAME.lock` *names at that moment*.
//! The holder may unlink the file, so a lock won on an unlinked file counts for nothing. The
//! kernel drops the lock with the process. So the files of a killed server are leftovers and no
//! obstacle: they tell that the device was served, until the name is taken or cleaned up. Only a
//! holder of the lock removes them. A server has a number of its own because its devices come and
//! go.

mod claims;
mod dead;
mod notes;
mod turn;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use uzram::ErrorKind;

use crate::error::{Error, Result};
use crate::system;

pub use claims::Claim;

/// Longest device name, in bytes; leaves room for the directory in a socket's path.
pub const NAME_BYTES_MAX: usize = 32;
/// Longest path of a Unix socket, in bytes: `sun_path` less its terminating zero.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Devices that a state directory holds, at most.
pub const NAMES_MAX: usize = 1024;
/// The names of devices that are given none: this and a number.
pub const NUMBERED: &str = "uzram";

/// Most files looked at in a state directory: three per name, and strangers.
const ENTRIES_MAX: usize = 8 * NAMES_MAX;
/// Bytes read of a lock file.
const OWNER_BYTES_MAX: u64 = 4096;

const CONTROL_SUFFIX: &str = "control";
const HOLDER_SUFFIX: &str = "holder";
const RUN_CONTROL_SUFFIX: &str = "run-control";
const NBD_SUFFIX: &str = "nbd";
const VHOST_SUFFIX: &str = "vhost";

/// The kind of a name in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Device,
    Run,
    Server,
    Turn,
}

impl Kind {
    const fn lock_suffix(self) -> &'static str {
        match self {
            Kind::Device => "lock",
            Kind::Run => "run",
            Kind::Server => "server",
            Kind::Turn => "turn",
        }
    }

    /// Suffixes of the sockets that may lie beside the lock.
    const fn socket_suffixes(self) -> &'static [&'static str] {
        match self {
            Kind::Device => &[NBD_SUFFIX, VHOST_SUFFIX],
            Kind::Run => &[RUN_CONTROL_SUFFIX],
            Kind::Server => &[CONTROL_SUFFIX],
            Kind::Turn => &[],
        }
    }
}

/// The directory of the state for a user with this `$XDG_RUNTIME_DIR`.
///
/// 1. `$XDG_RUNTIME_DIR/uzram` if the variable is set to an absolute path;
/// 2. `/run/uzram` for root;
/// 3. `/tmp/uzram-UID` for everybody else.
#[must_use]
pub fn default_path(xdg_runtime_dir: Option<&OsStr>, uid: u32) -> PathBuf {
    match xdg_runtime_dir.map(Path::new) {
        Some(dir) if dir.is_absolute() => dir.join("uzram"),
        _ if uid == 0 => PathBuf::from("/run/uzram"),
        _ => PathBuf::from(format!("/tmp/uzram-{uid}")),
    }
}

/// The effective user id of this process.
#[must_use]
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Refuses a name that could not be a file name in the state directory, or is hard to read.
///
/// # Errors
/// [`ErrorKind::InvalidInput`].
pub fn check_name(name: &str) -> Result<()> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let starts_well = name
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric());
    if starts_well && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain) {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_BYTES_MAX + 8).collect();
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!(
            "name {shown:?}: must be 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ - and start with a letter or digit"
        ),
    ))
}

/// Refuses a path that does not fit the address of a Unix socket.
///
/// # Errors
/// [`ErrorKind::InvalidInput`].
pub fn check_socket_path(path: &Path) -> Result<()> {
    let bytes = path.as_os_str().len();
    if bytes == 0 || bytes > SOCKET_PATH_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "socket path {}: {bytes} bytes; must be 1 to {SOCKET_PATH_BYTES_MAX}, choose a shorter one",
                path.display()
            ),
        ));
    }
    Ok(())
}

/// The server of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The server's process id, as it sees itself.
    pub pid: u32,
    /// The server's control socket.
    pub control: PathBuf,
    /// The process that holds what the server has, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<u32>,
}

impl Owner {
    /// Whether the process `pid` is the server, or has started it.
    #[must_use]
    pub fn is_of(&self, pid: u32) -> bool {
        self.pid == pid || self.holder == Some(pid)
    }

    /// The socket of the process that holds what the server has.
    #[must_use]
    pub fn holder_socket(&self) -> Option<PathBuf> {
        self.holder?;
        Some(self.control.with_extension(HOLDER_SUFFIX))
    }
}

/// A name in the state directory that a living process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The device's name, or the server's number.
    pub name: String,
    /// Its server; `None` while that is still starting.
    pub owner: Option<Owner>,
    kind: Kind,
}

/// A state directory that exists and is safe to use.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
    /// Whether leftovers may be removed: root may not in another user's directory.
    is_own: bool,
}

impl StateDir {
    /// The directory of a server: made with mode 0700 if it is missing (and `/run`, which an
    /// initramfs may lack).
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be made or is not a directory that this user alone can use.
    pub fn open(path: impl Into<PathBuf>) -> Result<StateDir> {
        let path = path.into();
        make_state_dir(&path)?;
        StateDir::checked(path, own_uid())
    }

    /// The same for a program that only asks servers: root may ask other users' servers.
    ///
    /// # Errors
    /// As [`StateDir::open`].
    pub fn open_to_ask(path: impl Into<PathBuf>) -> Result<StateDir> {
        let path = path.into();
        make_state_dir(&path)?;
        let owner = fs::symlink_metadata(&path).map_or(own_uid(), |found| found.uid());
        match own_uid() {
            0 => StateDir::checked(path, owner),
            uid => StateDir::checked(path, uid),
        }
    }

    fn checked(path: PathBuf, owner_wanted: u32) -> Result<StateDir> {
        let refuse = |why: String| {
            let text = format!("state directory {}: {why}", path.display());
            Error::new(ErrorKind::Io, text)
        };
        // Not following a link: in /tmp it could be somebody else's.
        let found = fs::symlink_metadata(&path).map_err(|e| refuse(e.to_string()))?;
        if !found.is_dir() {
            return Err(refuse(
                "not a directory; remove it or choose another with --control-dir".into(),
            ));
        }
        if found.uid() != owner_wanted {
            let (owner, uid) = (found.uid(), own_uid());
            if system::is_in_user_namespace() == Some(true) {
                return Err(refuse(
                    "belongs to a user outside of this user namespace; choose a directory of yours \
                     with --control-dir or XDG_RUNTIME_DIR"
                        .into(),
                ));
            }
            return Err(refuse(format!(
                "belongs to user {owner} and not to {uid}; choose one of yours with --control-dir \
                 or XDG_RUNTIME_DIR"
            )));
        }
        if found.mode() & 0o077 != 0 {
            let mode = found.mode() & 0o777;
            return Err(refuse(format!(
                "mode {mode:04o} lets others in; chmod 700 it"
            )));
        }
        let is_own = found.uid() == own_uid();
        Ok(StateDir { path, is_own })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The default path of the NBD socket of `name`.
    #[must_use]
    pub fn nbd_socket(&self, name: &str) -> PathBuf {
        self.file(name, NBD_SUFFIX)
    }

    /// The default path of the socket of `name` for virtual machines.
    #[must_use]
    pub fn vhost_socket(&self, name: &str) -> PathBuf {
        self.file(name, VHOST_SUFFIX)
    }

    /// The names of devices that are or were attached: mounted as files, or disks of the kernel's driver.
    #[must_use]
    pub fn attached_names(&self) -> Vec<String> {
        self.names_with(&[".fuse", ".ublk"])
    }

    fn names_with(&self, suffixes: &[&str]) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.path) else {
            return Vec::new();
        };
        let names = entries.take(ENTRIES_MAX).flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let stem = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            stem.map(str::to_owned)
        });
        names.filter(|name| check_name(name).is_ok()).collect()
    }

    /// The directory in which the device `name` is mounted as a file.
    #[must_use]
    pub fn fuse_directory(&self, name: &str) -> PathBuf {
        self.file(name, "fuse")
    }

    /// The file that exists while the device `name` is a disk of the kernel's driver.
    #[must_use]
    pub fn ublk_marker(&self, name: &str) -> PathBuf {
        self.file(name, "ublk")
    }

    /// The path of the control socket of the program `name` under a budget.
    #[must_use]
    pub fn run_control_socket(&self, name: &str) -> PathBuf {
        self.file(name, RUN_CONTROL_SUFFIX)
    }

    /// The path of the control socket of the server `number`.
    #[must_use]
    pub fn control_socket(&self, number: &str) -> PathBuf {
        self.file(number, CONTROL_SUFFIX)
    }

    /// The path of the socket of the process that holds what the server `number` has.
    #[must_use]
    pub fn holder_socket(&self, number: &str) -> PathBuf {
        self.file(number, HOLDER_SUFFIX)
    }

    /// The devices that living processes serve, sorted by name (`uzram2` before `uzram10`).
    /// Removes the dead servers' own files; their devices stay, see [`StateDir::dead`]. Sockets that have no lock any
    /// more go too.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the directory cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        self.remove_lone_sockets();
        // For the leftovers of servers that had no device, and of `up`.
        self.living(Kind::Server)?;
        self.living(Kind::Turn)?;
        self.living(Kind::Device)
    }

    /// The programs that run under a budget, sorted by name. Removes the files of those that were killed.
    ///
    /// # Errors
    /// As [`StateDir::entries`].
    pub fn runs(&self) -> Result<Vec<Entry>> {
        self.living(Kind::Run)
    }

    /// The program that runs under a budget as `name`.
    #[must_use]
    pub fn run(&self, name: &str) -> Option<Entry> {
        self.living_entry(Kind::Run, name)
    }

    /// The servers that run, with and without devices, sorted by number.
    ///
    /// # Errors
    /// As [`StateDir::entries`].
    pub fn servers(&self) -> Result<Vec<Entry>> {
        self.living(Kind::Server)
    }

    fn living(&self, kind: Kind) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let listing = fs::read_dir(&self.path).map_err(|e| self.io_error(&self.path, e))?;
        for file in listing.take(ENTRIES_MAX).flatten() {
            let path = PathBuf::from(file.file_name());
            let (stem, suffix) = (path.file_stem(), path.extension());
            let name = stem
                .and_then(OsStr::to_str)
                .filter(|n| check_name(n).is_ok());
            if suffix != Some(OsStr::new(kind.lock_suffix())) {
                continue;
            }
            if let Some(entry) = name.and_then(|name| self.living_entry(kind, name)) {
                entries.push(entry);
            }
        }
        entries.sort_by_key(|entry| natural_key(&entry.name));
        Ok(entries)
    }

    /// The living holder of the device `name`, if there is one.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<Entry> {
        self.living_entry(Kind::Device, name)
    }

    /// Whether the process that held `entry` still does.
    #[must_use]
    pub fn is_held(&self, entry: &Entry) -> bool {
        let now = self.living_entry(entry.kind, &entry.name);
        now.is_some_and(|now| now.owner == entry.owner)
    }

    fn living_entry(&self, kind: Kind, name: &str) -> Option<Entry> {
        // Only an existing file is tried: asking about a name must not make it.
        let file = self.open_lock(kind, name).ok()?;
        // Shared: others that only look are no obstacle, and are not taken for a server.
        match file.try_lock_shared() {
            Ok(()) => {
                // A device that was served stays for people to see, one that never was does not. Its
                // sockets go either way: a server in a sandbox that takes the name could not remove them.
                let is_seen = kind == Kind::Device && self.owner(kind, name).is_some();
                if self.is_own && self.names(kind, name, &file) {
                    match is_seen {
                        true => self.remove_sockets(kind, name),
                        // Alone, or two could remove a file that has another by then.
                        false if file.try_lock().is_ok() => self.remove_files(kind, name),
                        false => {}
                    }
                }
                None
            }
            Err(TryLockError::WouldBlock) => Some(Entry {
                name: name.to_owned(),
                owner: self.owner(kind, name),
                kind,
            }),
            Err(TryLockError::Error(_)) => None,
        }
    }

    /// It is opened for reading, and never through a link that the directory's owner may have made
    /// for root.
    fn open_lock(&self, kind: Kind, name: &str) -> std::io::Result<File> {
        let no_follow = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(no_follow);
        options.open(self.file(name, kind.lock_suffix()))
    }

    /// Whether the lock file of `name` is, at this moment, `file`.
    fn names(&self, kind: Kind, name: &str, file: &File) -> bool {
        let Ok(named) = self.open_lock(kind, name) else {
            return false;
        };
        match (rustix::fs::fstat(&named), rustix::fs::fstat(file)) {
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        }
    }

    fn owner(&self, kind: Kind, name: &str) -> Option<Owner> {
        let file = self.open_lock(kind, name).ok()?;
        let mut text = String::new();
        file.take(OWNER_BYTES_MAX).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn file(&self, name: &str, suffix: &str) -> PathBuf {
        self.path.join(format!("{name}.{suffix}"))
    }

    fn io_error(&self, path: &Path, error: std::io::Error) -> Error {
        Error::new(ErrorKind::Io, path.display().to_string()).with_source(error)
    }
}

fn make_state_dir(path: &Path) -> Result<()> {
    if path.starts_with("/run") {
        make_dir(Path::new("/run"), 0o755)?;
    }
    make_dir(path, 0o700)
}

/// Creates `path` unless it is there. Its parent must exist.
fn make_dir(path: &Path, mode: u32) -> Result<()> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => {
            let text = format!(
                "state directory {}: cannot be made; set XDG_RUNTIME_DIR to a directory of yours, or --control-dir",
                path.display()
            );
            Err(Error::new(ErrorKind::Io, text).with_source(e))
        }
    }
}

/// Sorts the number at the end of a name as a number.
fn natural_key(name: &str) -> (String, u64, String) {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (stem, number) = name.split_at(name.len() - digits);
    (
        stem.to_owned(),
        number.parse().unwrap_or(u64::MAX),
        name.to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    fn state() -> (tempfile::TempDir, StateDir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = StateDir::open(temp.path().join("uzram")).unwrap();
        (temp, dir)
    }

    #[test]
    fn the_place_follows_the_rules() {
        let place = |xdg: Option<&str>, uid| default_path(xdg.map(OsStr::new), uid);
        assert_eq!(
            place(Some("/run/user/7"), 7),
            Path::new("/run/user/7/uzram")
        );
        assert_eq!(place(Some("/x"), 0), Path::new("/x/uzram"));
        assert_eq!(place(None, 0), Path::new("/run/uzram"));
        assert_eq!(place(Some(""), 0), Path::new("/run/uzram"));
        assert_eq!(place(Some("relative"), 7), Path::new("/tmp/uzram-7"));
    }

    #[test]
    fn names_are_checked() {
        for name in ["uzram0", "a", "A.b_c-9", &"x".repeat(NAME_BYTES_MAX)] {
            check_name(name).unwrap();
        }
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", "-x", "a/b", "a b", "a\n", "ä", "a\0", &long] {
            assert_eq!(
                check_name(name).unwrap_err().kind(),
                ErrorKind::InvalidInput,
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_directory_that_others_can_use_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("uzram");
        let dir = StateDir::open(&path).unwrap();
        assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(
            StateDir::open(&path)
                .unwrap_err()
                .to_string()
                .contains("chmod 700")
        );
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(temp.path(), &path).unwrap();
        assert!(
            StateDir::open(&path)
                .unwrap_err()
                .to_string()
                .contains("not a directory")
        );
        assert!(StateDir::open(temp.path().join("missing/uzram")).is_err());
    }

    #[test]
    fn a_name_has_one_holder_and_comes_back() {
        let (_temp, dir) = state();
        let claim = dir.claim("disk").unwrap();
        let error = dir.claim("disk").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("name disk: already served"));
        drop(claim);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        dir.claim("disk").unwrap();
    }

    #[test]
    fn free_names_are_counted_up_and_reused() {
        let (_temp, dir) = state();
        let claims: Vec<_> = (0..12).map(|_| dir.claim_free().unwrap()).collect();
        let names: Vec<_> = claims.iter().map(|claim| claim.name().to_owned()).collect();
        assert_eq!(
            names,
            (0..12).map(|n| format!("uzram{n}")).collect::<Vec<_>>()
        );
        let listed: Vec<_> = dir.entries().unwrap().into_iter().map(|e| e.name).collect();
        assert_eq!(listed, names, "2 comes before 10");
        let mut claims = claims;
        claims.remove(3);
        assert_eq!(dir.claim_free().unwrap().name(), "uzram3");
    }

    #[test]
    fn servers_have_numbers_that_no_device_takes() {
        let (_temp, dir) = state();
        let first = dir.claim_server().unwrap();
        let second = dir.claim_server().unwrap();
        let _device = dir.claim("0").unwrap();
        assert_eq!((first.name(), second.name()), ("0", "1"));
        let numbers = |dir: &StateDir| dir.servers().unwrap().len();
        assert_eq!((numbers(&dir), dir.entries().unwrap().len()), (2, 1));
        drop(first);
        assert_eq!((numbers(&dir), dir.entries().unwrap().len()), (1, 1));
        assert_eq!(dir.claim_server().unwrap().name(), "0");
    }

    /// Commands look at the same time. None may take the look of another for a server.
    #[test]
    fn those_who_look_do_not_see_each_other() {
        let temp = tempfile::tempdir().unwrap();
        let dir = StateDir::open(temp.path().join("uzram")).unwrap();
        let owner = "{\"pid\":1,\"control\":\"/x\"}";
        fs::write(dir.path().join("dead.lock"), owner).unwrap();
        let look = || {
            for _ in 0..2000 {
                assert!(dir.entry("dead").is_none());
                assert!(dir.dead_entry("dead").is_some());
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(look);
            }
        });
    }

    #[test]
    fn entries_show_owners_and_the_dead_stay_until_they_are_swept() {
        let (_temp, dir) = state();
        let mut claim = dir.claim("alive").unwrap();
        let owner = Owner {
            pid: 7,
            holder: None,
            control: dir.control_socket("0"),
        };
        let _starting = dir.claim("starting").unwrap();
        claim.publish(&owner).unwrap();
        // What a killed server leaves: files, and no lock on them.
        fs::write(
            dir.path().join("dead.lock"),
            "{\"pid\":1,\"control\":\"/x\"}",
        )
        .unwrap();
        drop(UnixListener::bind(dir.nbd_socket("dead")).unwrap());
        drop(UnixListener::bind(dir.vhost_socket("dead")).unwrap());
        fs::write(dir.path().join("7.server"), "").unwrap();
        drop(UnixListener::bind(dir.control_socket("7")).unwrap());
        fs::write(dir.path().join("stranger"), "").unwrap();

        let entries = dir.entries().unwrap();
        assert_eq!(entries.len(), 2, "{entries:?}");
        assert_eq!(
            entries[0],
            Entry {
                name: "alive".into(),
                owner: Some(owner),
                kind: Kind::Device
            }
        );
        assert_eq!(entries[1].owner, None);
        let is_there = |file: &str| dir.path().join(file).exists();
        for server in ["7.server", "7.control"] {
            assert!(!is_there(server), "{server}");
        }
        let dead = dir.dead();
        assert_eq!(dead.len(), 1, "{dead:?}");
        assert_eq!(
            (&*dead[0].name, dead[0].owner.as_ref().unwrap().pid),
            ("dead", 1)
        );
        assert!(is_there("dead.lock"));
        for socket in ["dead.nbd", "dead.vhost"] {
            assert!(!is_there(socket), "{socket}");
        }
        for name in ["alive", "starting", "dead", "nobody"] {
            dir.sweep(name);
        }
        assert!(!is_there("dead.lock"));
        assert!(is_there("alive.lock") && is_there("starting.lock") && is_there("stranger"));
        assert_eq!(dir.dead(), []);
    }

    #[test]
    fn a_claim_sweeps_sockets_but_never_a_file_nor_a_living_one() {
        let (_temp, dir) = state();
        let _living = UnixListener::bind(dir.nbd_socket("other")).unwrap();
        drop(dir.claim("other").unwrap());
        assert!(dir.nbd_socket("other").exists());
        drop(UnixListener::bind(dir.nbd_socket("left")).unwrap());
        fs::write(dir.nbd_socket("disk"), "not a socket").unwrap();
        let _claims = [dir.claim("left").unwrap(), dir.claim("disk").unwrap()];
        assert!(!dir.nbd_socket("left").exists());
        assert!(dir.nbd_socket("disk").exists());
    }

    /// Claims and drops race with each other and with `entry`, which also unlinks: two holders
    /// at once mean that a lock on an unlinked file counted.
    #[test]
    fn claims_that_race_never_both_win() {
        let (_temp, dir) = state();
        let holders = AtomicU32::new(0);
        let wins = AtomicU32::new(0);
        let until = Instant::now() + Duration::from_secs(1);
        let is_going = || Instant::now() < until && holders.load(Ordering::SeqCst) < 2;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while is_going() {
                        if let Some(claim) = dir.try_claim(Kind::Device, "disk").unwrap() {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                            wins.fetch_add(1, Ordering::SeqCst);
                            std::thread::yield_now();
                            holders.fetch_sub(1, Ordering::SeqCst);
                            drop(claim);
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while is_going() {
                        let _ = dir.entry("disk");
                    }
                });
            }
        });
        assert!(wins.load(Ordering::SeqCst) > 0);
    }
}
