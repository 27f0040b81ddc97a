//! The state directory: which names are served, by which process, and where to talk to it.
//!
//! ```text
//! DIR/            0700, owned by the user; refused if it is anything else
//!   NAME.lock     flock'ed for as long as NAME is served; holds {"pid":…,"control":"…"}
//!   NAME.control  the control socket of the server whose first device is NAME
//!   NAME.nbd      the default NBD socket of NAME
//! ```
//!
//! A name belongs to whoever holds the lock on the file that `NAME.lock` *names at that moment*: the
//! holder may unlink it, so a lock won on an unlinked file counts for nothing. The kernel drops the
//! lock with the process, so the files of a killed server are leftovers, not an obstacle; only a
//! holder of the lock removes them.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uzram::{Error, ErrorKind, Result};

/// Longest device name, in bytes; leaves room for the directory in a socket's path.
pub const NAME_BYTES_MAX: usize = 32;
/// Longest path of a Unix socket, in bytes: `sun_path` less its terminating zero.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Devices that a state directory holds, at most.
pub const NAMES_MAX: usize = 1024;

/// Files looked at in a state directory, at most: three a name and strangers.
const ENTRIES_MAX: usize = 8 * NAMES_MAX;
/// Bytes read of a lock file.
const OWNER_BYTES_MAX: u64 = 4096;
/// A name that is held is tried again this often: `list` holds a dead server's lock for an instant.
const CLAIM_TRIES: u32 = 20;
const CLAIM_PAUSE: Duration = Duration::from_millis(5);
/// Each turn lost means that another process removed the file in between.
const UNLINK_RACES_MAX: u32 = 100;

const LOCK_SUFFIX: &str = "lock";
const CONTROL_SUFFIX: &str = "control";
const NBD_SUFFIX: &str = "nbd";

/// Where the state lives for a user with this `$XDG_RUNTIME_DIR`.
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

/// Refuses a name that could not be a file name in the state directory or reads badly.
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

/// Who serves a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The server's process id, as it sees itself.
    pub pid: u32,
    /// The server's control socket.
    pub control: PathBuf,
}

/// A name found in the state directory and held by a living process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The device's name.
    pub name: String,
    /// Its server; `None` while that is still starting.
    pub owner: Option<Owner>,
}

/// A state directory that exists and is safe to use.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// The default one, made if it is missing. See [`default_path`].
    ///
    /// # Errors
    /// As [`StateDir::open`].
    pub fn open_default() -> Result<StateDir> {
        let xdg = std::env::var_os("XDG_RUNTIME_DIR");
        StateDir::open(default_path(xdg.as_deref(), own_uid()))
    }

    /// The one at `path`, made with mode 0700 if it is missing (and `/run`, which an initramfs may
    /// lack).
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be made or is not a directory that this user alone can use.
    pub fn open(path: impl Into<PathBuf>) -> Result<StateDir> {
        let path = path.into();
        if path.starts_with("/run") {
            make_dir(Path::new("/run"), 0o755)?;
        }
        make_dir(&path, 0o700)?;
        let refuse = |why: String| {
            let text = format!("state directory {}: {why}", path.display());
            Error::new(ErrorKind::Io, text)
        };
        // Not following a link: in /tmp it could be somebody else's.
        let found = fs::symlink_metadata(&path).map_err(|e| refuse(e.to_string()))?;
        if !found.is_dir() {
            return Err(refuse(
                "not a directory; remove it or set XDG_RUNTIME_DIR".into(),
            ));
        }
        if found.uid() != own_uid() {
            let (owner, uid) = (found.uid(), own_uid());
            return Err(refuse(format!(
                "belongs to user {owner} and not to {uid}; set XDG_RUNTIME_DIR to a directory of yours"
            )));
        }
        if found.mode() & 0o077 != 0 {
            let mode = found.mode() & 0o777;
            return Err(refuse(format!(
                "mode {mode:04o} lets others in; chmod 700 it"
            )));
        }
        Ok(StateDir { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The default path of the NBD socket of `name`.
    #[must_use]
    pub fn nbd_socket(&self, name: &str) -> PathBuf {
        self.file(name, NBD_SUFFIX)
    }

    /// The path of the control socket of a server whose first device is `name`.
    #[must_use]
    pub fn control_socket(&self, name: &str) -> PathBuf {
        self.file(name, CONTROL_SUFFIX)
    }

    /// Takes `name` for this process and removes what a dead server of that name left.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a bad name or a directory too deep for sockets,
    /// [`ErrorKind::Busy`] if the name is taken, [`ErrorKind::Io`] if the system refuses.
    pub fn claim(&self, name: &str) -> Result<Claim> {
        check_name(name)?;
        check_socket_path(&self.control_socket(name))?;
        for _ in 0..CLAIM_TRIES {
            if let Some(claim) = self.try_claim(name)? {
                return Ok(claim);
            }
            std::thread::sleep(CLAIM_PAUSE);
        }
        let holder = match self.owner(name) {
            Some(owner) => format!(" by process {}", owner.pid),
            None => String::new(),
        };
        Err(Error::new(
            ErrorKind::Busy,
            format!(
                "name {name}: already served{holder}; choose another --name or end that server"
            ),
        ))
    }

    /// Takes the first free name of `uzram0`, `uzram1`, …
    ///
    /// # Errors
    /// As [`StateDir::claim`]; [`ErrorKind::Busy`] if all [`NAMES_MAX`] are taken.
    pub fn claim_free(&self) -> Result<Claim> {
        for number in 0..NAMES_MAX {
            let name = format!("uzram{number}");
            check_socket_path(&self.control_socket(&name))?;
            if let Some(claim) = self.try_claim(&name)? {
                return Ok(claim);
            }
        }
        let text = format!(
            "{}: uzram0 to uzram{} are all taken",
            self.path.display(),
            NAMES_MAX - 1
        );
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// The names that living processes hold, sorted (`uzram2` before `uzram10`). Removes the
    /// leftovers of dead ones.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the directory cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let listing = fs::read_dir(&self.path).map_err(|e| self.io_error(&self.path, e))?;
        for file in listing.take(ENTRIES_MAX).flatten() {
            let file_name = file.file_name();
            let name = file_name
                .to_str()
                .and_then(|text| text.strip_suffix(".lock"));
            let Some(name) = name.filter(|name| check_name(name).is_ok()) else {
                continue;
            };
            if let Some(entry) = self.entry(name) {
                entries.push(entry);
            }
        }
        entries.sort_by_key(|entry| natural_key(&entry.name));
        Ok(entries)
    }

    /// The living holder of `name`, if there is one. Removes the leftovers of a dead one.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<Entry> {
        // Only an existing file is tried: asking about a name must not make it.
        if let Ok(file) = File::open(self.file(name, LOCK_SUFFIX)) {
            match file.try_lock() {
                Ok(()) => {
                    if self.names(name, &file) {
                        self.remove_files(name);
                    }
                    return None;
                }
                Err(TryLockError::WouldBlock) => {
                    let owner = self.owner(name);
                    return Some(Entry {
                        name: name.to_owned(),
                        owner,
                    });
                }
                Err(TryLockError::Error(_)) => return None,
            }
        }
        None
    }

    fn try_claim(&self, name: &str) -> Result<Option<Claim>> {
        let path = self.file(name, LOCK_SUFFIX);
        for _ in 0..UNLINK_RACES_MAX {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600);
            let file = options.open(&path).map_err(|e| self.io_error(&path, e))?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(e)) => return Err(self.io_error(&path, e)),
                Ok(()) if !self.names(name, &file) => {}
                Ok(()) => {
                    file.set_len(0).map_err(|e| self.io_error(&path, e))?;
                    self.remove_sockets(name);
                    return Ok(Some(Claim {
                        dir: self.clone(),
                        name: name.to_owned(),
                        file,
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Whether the lock file of `name` is, at this moment, `file`.
    fn names(&self, name: &str, file: &File) -> bool {
        let named = fs::symlink_metadata(self.file(name, LOCK_SUFFIX));
        match (named, file.metadata()) {
            (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
            _ => false,
        }
    }

    fn owner(&self, name: &str) -> Option<Owner> {
        let file = File::open(self.file(name, LOCK_SUFFIX)).ok()?;
        let mut text = String::new();
        file.take(OWNER_BYTES_MAX).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// For holders of the lock only.
    fn remove_files(&self, name: &str) {
        self.remove_sockets(name);
        let _ = fs::remove_file(self.file(name, LOCK_SUFFIX));
    }

    fn remove_sockets(&self, name: &str) {
        for path in [self.control_socket(name), self.nbd_socket(name)] {
            if is_leftover(&path) {
                let _ = fs::remove_file(&path);
            }
        }
    }

    fn file(&self, name: &str, suffix: &str) -> PathBuf {
        self.path.join(format!("{name}.{suffix}"))
    }

    fn io_error(&self, path: &Path, error: std::io::Error) -> Error {
        Error::new(ErrorKind::Io, path.display().to_string()).with_source(error)
    }
}

/// A name that this process serves. Dropped, it removes the name's files and gives it back.
#[derive(Debug)]
pub struct Claim {
    dir: StateDir,
    name: String,
    file: File,
}

impl Claim {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory that it was claimed in.
    #[must_use]
    pub fn dir(&self) -> &StateDir {
        &self.dir
    }

    /// Tells others who serves the name.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn publish(&mut self, owner: &Owner) -> Result<()> {
        let text = serde_json::to_string(owner)
            .map_err(|e| Error::new(ErrorKind::Io, "state file").with_source(e))?;
        let written = self
            .file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .and_then(|()| self.file.write_all(text.as_bytes()));
        let path = self.dir.file(&self.name, LOCK_SUFFIX);
        written.map_err(|e| self.dir.io_error(&path, e))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The lock goes with the file, after the files: nobody can hold the name in between.
        self.dir.remove_files(&self.name);
    }
}

/// Whether `path` is a socket that nobody listens on. Somebody may: `--socket` takes any path.
fn is_leftover(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    is_socket
        && UnixStream::connect(path)
            .is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Creates `path` unless it is there. Its parent must exist.
fn make_dir(path: &Path, mode: u32) -> Result<()> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => {
            let text = format!(
                "state directory {}: cannot be made; set XDG_RUNTIME_DIR to a directory of yours",
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
    use std::time::Instant;

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
    fn entries_show_owners_and_sweep_leftovers() {
        let (_temp, dir) = state();
        let mut claim = dir.claim("alive").unwrap();
        let owner = Owner {
            pid: 7,
            control: dir.control_socket("alive"),
        };
        let _starting = dir.claim("starting").unwrap();
        claim.publish(&owner).unwrap();
        // What a killed server leaves: files, and no lock on them.
        fs::write(
            dir.path().join("dead.lock"),
            "{\"pid\":1,\"control\":\"/x\"}",
        )
        .unwrap();
        drop(UnixListener::bind(dir.control_socket("dead")).unwrap());
        drop(UnixListener::bind(dir.nbd_socket("dead")).unwrap());
        fs::write(dir.path().join("stranger"), "").unwrap();

        let entries = dir.entries().unwrap();
        assert_eq!(entries.len(), 2, "{entries:?}");
        assert_eq!(
            entries[0],
            Entry {
                name: "alive".into(),
                owner: Some(owner)
            }
        );
        assert_eq!(entries[1].owner, None);
        for gone in ["dead.lock", "dead.control", "dead.nbd"] {
            assert!(!dir.path().join(gone).exists(), "{gone}");
        }
        assert!(dir.path().join("stranger").exists());
    }

    #[test]
    fn a_claim_sweeps_sockets_but_never_a_file_nor_a_living_one() {
        let (_temp, dir) = state();
        let _living = UnixListener::bind(dir.nbd_socket("other")).unwrap();
        drop(dir.claim("other").unwrap());
        assert!(dir.nbd_socket("other").exists());
        drop(UnixListener::bind(dir.control_socket("disk")).unwrap());
        fs::write(dir.nbd_socket("disk"), "not a socket").unwrap();
        let _claim = dir.claim("disk").unwrap();
        assert!(!dir.control_socket("disk").exists());
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
                        if let Some(claim) = dir.try_claim("disk").unwrap() {
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
