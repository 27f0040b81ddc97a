//! Mounting the file system, and taking it away again.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use rustix::mount::{MountFlags, UnmountFlags};
use uzram::{BlockDevice, Error, ErrorKind, Result};

use super::disk::{Disk, Gate, ReadBuffers};
use super::{END_TIMEOUT, THREADS_MAX};

/// Longest file name, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// What `statfs` says of a FUSE file system, from `linux/magic.h`.
const FUSE_MAGIC: rustix::fs::FsWord = 0x6573_5546;
const END_PAUSE: Duration = Duration::from_millis(2);

/// How a device is mounted.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Worker threads, 1 to [`THREADS_MAX`]. With fewer than two, a lone request waits for an idle
    /// CPU to wake.
    pub threads: usize,
}

impl Default for Options {
    /// A worker for each CPU, but at least two and at most eight.
    fn default() -> Options {
        let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Options {
            threads: cpus.clamp(2, 8),
        }
    }
}

/// A mounted device. Dropped, it is unmounted; where that is refused because a program uses it, it
/// is detached, and the last close ends it.
#[derive(Debug)]
pub struct Mount {
    directory: PathBuf,
    path: PathBuf,
    /// The mount's own file system, so that nobody else's is ever unmounted.
    device_number: u64,
    gate: Arc<Gate>,
    /// `None` once unmounted.
    session: Option<BackgroundSession>,
}

impl Mount {
    /// Mounts `device` over `directory`, which exists, as the file `name` in it.
    ///
    /// Root mounts by itself; anybody else needs the program `fusermount3`. Only the user who
    /// mounts can open the file (mode 0600).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a name that is no file name or a number of threads outside
    /// its range, [`ErrorKind::Io`] with the remedy if the system refuses. Nothing is left behind.
    pub fn new(
        device: Arc<dyn BlockDevice>,
        name: &str,
        directory: &Path,
        options: Options,
    ) -> Result<Mount> {
        check(name, options)?;
        let geometry = device.geometry();
        let gate = Arc::new(Gate::default());
        let disk = Disk {
            device,
            name: name.into(),
            size_bytes: geometry.size_bytes,
            block_bytes: geometry.preferred_block_bytes,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            made: SystemTime::now(),
            gate: Arc::clone(&gate),
            buffers: ReadBuffers::new(options.threads),
        };
        let mut config = Config::default();
        config.n_threads = Some(options.threads);
        config.clone_fd = true;
        let refused = |error: io::Error| refused(directory, error);
        let session = start(disk, directory, config).map_err(refused)?;
        let mut mount = Mount {
            path: directory.join(name),
            directory: directory.to_owned(),
            device_number: 0,
            gate,
            session: Some(session),
        };
        // Asks the new workers, so that a mount which cannot serve fails here and is taken away.
        mount.device_number = fs::metadata(directory).map_err(refused)?.dev();
        Ok(mount)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How often it is open now; a loop device over it counts as one.
    #[must_use]
    pub fn opens(&self) -> u64 {
        self.gate.opens()
    }

    /// Runs `work` while nobody has the file open or can open it (`EBUSY`).
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while it is open, else what `work` says.
    pub fn exclusively<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.gate.shut() {
            return Err(self.busy());
        }
        let outcome = work();
        self.gate.reopen();
        outcome
    }

    /// Whether the kernel still has it: somebody else may have unmounted it.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        let ended = |session: &BackgroundSession| session.guard.is_finished();
        !self.session.as_ref().is_none_or(ended)
    }

    /// Unmounts it and ends its workers. Done already, by whomever, it does nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a program uses it, which may be tried again, [`ErrorKind::Io`].
    pub fn unmount(&mut self) -> Result<()> {
        if self.session.is_some() && self.is_ours_there() {
            self.unmount_with(UnmountFlags::empty())?;
        }
        self.end();
        Ok(())
    }

    fn is_ours_there(&self) -> bool {
        // The number alone would not do: a new mount takes that of one that has gone.
        match rustix::fs::statfs(&self.directory) {
            Ok(found) if found.f_type == FUSE_MAGIC => fs::metadata(&self.directory)
                .is_ok_and(|found| [found.dev(), 0].contains(&self.device_number)),
            // Nobody serves it any more, not even we.
            Err(rustix::io::Errno::NOTCONN) => !self.is_mounted(),
            _ => false,
        }
    }

    fn unmount_with(&self, flags: UnmountFlags) -> Result<()> {
        let shown = self.directory.display();
        match rustix::mount::unmount(&self.directory, flags) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::BUSY) => Err(self.busy()),
            // Not root: fusermount3 mounted it, and has to be asked to undo it.
            Err(rustix::io::Errno::PERM) => fusermount_unmount(&self.directory),
            Err(error) => {
                let text = format!("{shown}: cannot be unmounted");
                Err(Error::new(ErrorKind::Io, text).with_source(error))
            }
        }
    }

    /// Waits for the workers, which the kernel ends with the last use of the file system.
    fn end(&mut self) {
        let deadline = Instant::now() + END_TIMEOUT;
        while self.is_mounted() && Instant::now() < deadline {
            std::thread::sleep(END_PAUSE);
        }
        match self.session.take() {
            // What it returns was of interest while it was mounted.
            Some(session) if session.guard.is_finished() => drop(session.join()),
            // A detached mount that is still open: its workers live until the last close.
            Some(session) => std::mem::forget(session),
            None => {}
        }
    }

    fn busy(&self) -> Error {
        let text = match self.opens() {
            0 => "a program uses it; end that first".to_owned(),
            1 => "open in 1 place; close it first".to_owned(),
            opens => format!("open in {opens} places; close them first"),
        };
        Error::new(ErrorKind::Busy, format!("{}: {text}", self.path.display()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.session.is_none() || self.unmount().is_ok() {
            return;
        }
        // The last close unmounts it. No wait: that may be any time.
        let _ = self.unmount_with(UnmountFlags::DETACH);
        if let Some(session) = self.session.take() {
            std::mem::forget(session);
        }
    }
}

/// Mounts and starts the workers; nothing is mounted after an error.
fn start(disk: Disk, directory: &Path, mut config: Config) -> io::Result<BackgroundSession> {
    let source = format!("uzram:{}", disk.name.display());
    if !rustix::process::geteuid().is_root() {
        config.mount_options = vec![
            MountOption::FSName(source),
            MountOption::Subtype("uzram".into()),
            MountOption::DefaultPermissions,
            MountOption::NoExec,
        ];
        return Session::new(disk, directory, &config)?.spawn();
    }
    // Not through the library: on its way out it would unmount whatever is there by then.
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")?;
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        disk.uid,
        disk.gid
    );
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    let data = CString::new(data)?;
    rustix::mount::mount(source, directory, "fuse.uzram", flags, data.as_c_str())?;
    let session = Session::from_fd(disk, device.into(), SessionACL::Owner, config);
    session.and_then(Session::spawn).inspect_err(|_| {
        // What fails here has said why; a mount that is left would only say that it is dead.
        let _ = rustix::mount::unmount(directory, UnmountFlags::DETACH);
    })
}

fn check(name: &str, options: Options) -> Result<()> {
    let is_name = !name.contains(['/', '\0']) && !matches!(name, "." | "..");
    if !is_name || !(1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("name {name:?}: not a file name of 1 to {NAME_BYTES_MAX} bytes"),
        ));
    }
    if !(1..=THREADS_MAX).contains(&options.threads) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("{} threads: must be 1 to {THREADS_MAX}", options.threads),
        ));
    }
    Ok(())
}

fn fusermount_unmount(directory: &Path) -> Result<()> {
    let failed = |why: String| {
        let text = format!("{}: fusermount3 -u: {why}", directory.display());
        Error::new(ErrorKind::Busy, text)
    };
    let output = std::process::Command::new("fusermount3")
        .args(["-u", "--"])
        .arg(directory)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
    }
}

/// Says what is missing instead of which call failed.
fn refused(directory: &Path, error: io::Error) -> Error {
    let shown = directory.display();
    let device = Path::new("/dev/fuse");
    let remedy = if !device.exists() {
        "this kernel offers no /dev/fuse; load the module `fuse`, or pass the device into the container"
    } else if fs::File::open(device).is_err() {
        "/dev/fuse may not be opened; be root, or pass --device /dev/fuse to the container"
    } else if !directory.is_dir() {
        "not a directory; create it"
    } else if !rustix::process::geteuid().is_root() {
        "mounting without being root needs fusermount3; install the package fuse3"
    } else {
        "cannot mount there; a container needs the capability SYS_ADMIN for it"
    };
    Error::new(ErrorKind::Io, format!("FUSE mount at {shown}: {remedy}")).with_source(error)
}
