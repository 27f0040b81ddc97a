//! Ways to a device that the kernel of this machine opens itself: a FUSE file, a loop device over it,
//! and a disk of its driver for block devices in user space.
//!
//! ```text
//! usage         who uses what, by the kernel's own tables
//! block         block devices that nobody uses
//! loop_device   a loop device over a file
//! ublk          a disk of the kernel's driver for user space
//! vhost_user    a socket for virtual machines
//! ```
//!
//! The file of device NAME is `NAME.fuse/NAME` in the state directory. What a killed server leaves
//! (a file system that answers `ENOTCONN`, a loop device whose reads fail) is found through that path,
//! by [`Leftovers`]: no record of ours could be as true as what the kernel has.

mod block;
mod loop_device;
mod ublk;
pub mod usage;
mod vhost_user;

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mount::UnmountFlags;
use uzram::{BlockDevice, Error, ErrorKind, Result};
use uzram_frontends::fuse::{Mount, Options};

use crate::sandbox;
use crate::state::StateDir;
use crate::swap;
use loop_device::LoopDevice;
use ublk::{UblkDisk, UblkLeftovers};
pub(crate) use vhost_user::GuestSocket;

/// Workers for a device that is swapped to: each has all of its receive buffer resident, 16 MiB.
const SWAP_THREADS_MAX: usize = 4;

/// How clients reach a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attach {
    /// Network Block Device, over a socket.
    #[default]
    Nbd,
    /// One file, through the kernel's FUSE.
    Fuse,
    /// A loop device over that file: a block device.
    Loop,
    /// A disk of the kernel's driver for user space: a block device, and the fastest way.
    Ublk,
    /// A disk of virtual machines, over a socket.
    VhostUser,
}

impl Attach {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Attach::Nbd => "nbd",
            Attach::Fuse => "fuse",
            Attach::Loop => "loop",
            Attach::Ublk => "ublk",
            Attach::VhostUser => "vhost-user",
        }
    }

    /// The best block device that this machine offers this process.
    #[must_use]
    pub fn block_device() -> Attach {
        match uzram_frontends::ublk::check() {
            Ok(()) => Attach::Ublk,
            Err(_) => Attach::Loop,
        }
    }

    /// Whether clients connect to a socket, and nothing is set up outside of this process.
    #[must_use]
    pub fn is_socket(self) -> bool {
        matches!(self, Attach::Nbd | Attach::VhostUser)
    }

    /// The best that this machine offers this process, and why not a better one: a block device, or
    /// else a file, or else a socket.
    #[must_use]
    pub fn auto() -> (Attach, String) {
        if Attach::block_device() == Attach::Ublk {
            return (Attach::Ublk, "the kernel's driver is here".to_owned());
        }
        if let Err(why) = fuse_is_here() {
            return (Attach::Nbd, format!("no FUSE file: {why}"));
        }
        match loop_is_here() {
            Ok(()) => (Attach::Loop, "FUSE and loop devices are here".to_owned()),
            Err(why) => (Attach::Fuse, format!("no loop device: {why}")),
        }
    }
}

fn fuse_is_here() -> Result<(), String> {
    openable("/dev/fuse")?;
    let helper = ["/bin", "/usr/bin"].map(|dir| Path::new(dir).join("fusermount3").exists());
    match rustix::process::geteuid().is_root() || helper.contains(&true) {
        true => Ok(()),
        false => Err("not root, and fusermount3 (package fuse3) is not installed".to_owned()),
    }
}

fn loop_is_here() -> Result<(), String> {
    openable("/dev/loop-control")
}

fn openable(device: &str) -> Result<(), String> {
    let opened = OpenOptions::new().read(true).write(true).open(device);
    opened.map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{device} does not exist"),
        io::ErrorKind::PermissionDenied => format!("{device} may not be opened"),
        _ => format!("{device}: {error}"),
    })
}

/// A device that is attached. Dropped, it is detached; what still uses it gets errors.
pub(crate) struct Attachment {
    way: Way,
    path: PathBuf,
}

enum Way {
    Fuse(Mutex<Parts>),
    Ublk(UblkDisk),
}

/// From the top down: what was set up last goes first.
struct Parts {
    loop_device: Option<LoopDevice>,
    /// `None` once detached.
    mount: Option<Mount>,
    directory: PathBuf,
}

impl Attachment {
    /// Attaches `device` under `name`, which this process has claimed. Nothing is left after an error.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while somebody uses what a killed server of this name left,
    /// [`ErrorKind::Io`] with the remedy.
    pub(crate) fn new(
        attach: Attach,
        device: Arc<dyn BlockDevice>,
        name: &str,
        state: &StateDir,
        is_for_swap: bool,
    ) -> Result<Attachment> {
        if sandbox::is_on() {
            let text = "this server is in a sandbox, where nothing can be mounted; start another one \
                        with --attach";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Leftovers::of(state, name).remove()?;
        if attach == Attach::Ublk {
            let disk = UblkDisk::new(device, state.ublk_marker(name), is_for_swap)?;
            return Ok(Attachment {
                path: disk.path().map(Path::to_owned).unwrap_or_default(),
                way: Way::Ublk(disk),
            });
        }
        let directory = state.fuse_directory(name);
        fs::create_dir(&directory).map_err(|error| {
            let text = format!("directory {}: cannot be made", directory.display());
            Error::new(ErrorKind::Io, text).with_source(error)
        })?;
        // Its destructor takes away whatever there is at the time of an error.
        let mut parts = Parts {
            loop_device: None,
            mount: None,
            directory,
        };
        let usual = Options::default().threads;
        let mount = match is_for_swap {
            false => Mount::new(device, name, &parts.directory, Options { threads: usual }),
            true => {
                let threads = usual.min(SWAP_THREADS_MAX);
                let options = Options { threads };
                let size_bytes = device.geometry().size_bytes;
                swap::resident(size_bytes, || {
                    Mount::new(device, name, &parts.directory, options)
                })
            }
        }?;
        let mut path = mount.path().to_owned();
        parts.mount = Some(mount);
        if attach == Attach::Loop {
            let loop_device = LoopDevice::new(&path)?;
            path = loop_device.path().to_owned();
            parts.loop_device = Some(loop_device);
        }
        Ok(Attachment {
            way: Way::Fuse(Mutex::new(parts)),
            path,
        })
    }

    /// The file, or the block device.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Programs that have the file open; for a block device, 1 if it is mounted or swapped to.
    pub(crate) fn users(&self) -> u64 {
        let Way::Fuse(parts) = &self.way else {
            return usage::of_device(&self.path).len() as u64;
        };
        let parts = lock(parts);
        match (&parts.loop_device, &parts.mount) {
            (Some(device), _) => usage::of_device(device.path()).len() as u64,
            (None, Some(mount)) => mount.opens(),
            (None, None) => 0,
        }
    }

    /// Runs `work` while nobody uses the device.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with who does, else what `work` says.
    pub(crate) fn exclusively<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let Way::Fuse(parts) = &self.way else {
            return block::exclusively(&self.path, work);
        };
        let parts = lock(parts);
        match (&parts.loop_device, &parts.mount) {
            (Some(device), _) => device.exclusively(work),
            (None, Some(mount)) => mount.exclusively(work),
            (None, None) => work(),
        }
    }

    /// Detaches it, unless somebody uses it; may be tried again.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with who does, [`ErrorKind::Io`].
    pub(crate) fn detach(&self) -> Result<()> {
        match &self.way {
            Way::Fuse(parts) => lock(parts).detach(),
            Way::Ublk(disk) => disk.detach(),
        }
    }
}

fn lock(parts: &Mutex<Parts>) -> MutexGuard<'_, Parts> {
    parts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Parts {
    fn detach(&mut self) -> Result<()> {
        if let Some(device) = &self.loop_device {
            device.clear()?;
            self.loop_device = None;
        }
        if let Some(mount) = &mut self.mount {
            unmount(mount)?;
            self.mount = None;
        }
        match fs::remove_dir(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let text = format!("directory {}: cannot be removed", self.directory.display());
                Err(Error::new(ErrorKind::Io, text).with_source(error))
            }
            _ => Ok(()),
        }
    }
}

/// Unmounts, with patience for the loop driver, which lets go of its file a moment after it says so.
fn unmount(mount: &mut Mount) -> Result<()> {
    const TRIES: u32 = 100;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);
    for _ in 1..TRIES {
        match mount.unmount() {
            Err(error) if error.kind() == ErrorKind::Busy => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
    mount.unmount()
}

impl Drop for Parts {
    fn drop(&mut self) {
        if self.detach().is_ok() {
            return;
        }
        // Somebody uses it. The loop device goes with its last user, and so does the file system.
        if let Some(device) = &self.loop_device {
            device.clear_when_unused();
        }
        self.mount = None;
        let _ = fs::remove_dir(&self.directory);
    }
}

/// What the kernel has of a device NAME that nobody serves any more.
#[derive(Debug)]
pub struct Leftovers {
    directory: PathBuf,
    loops: Vec<LoopDevice>,
    mounts_count: usize,
    ublk: UblkLeftovers,
}

impl Leftovers {
    /// What there is of `name` now. Of a device that is served, this is the device.
    #[must_use]
    pub fn of(state: &StateDir, name: &str) -> Leftovers {
        let directory = state.fuse_directory(name);
        let is_ours = |mount: &usage::MountPoint| {
            mount.directory == directory && mount.kind.starts_with("fuse")
        };
        Leftovers {
            loops: LoopDevice::over(&directory.join(name)),
            mounts_count: usage::mounts().into_iter().filter(is_ours).count(),
            ublk: UblkLeftovers::of(state.ublk_marker(name)),
            directory,
        }
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let has_file = self.mounts_count > 0 || self.directory.exists();
        self.loops.is_empty() && !has_file && self.ublk.is_empty()
    }

    /// The block devices.
    pub fn devices(&self) -> impl Iterator<Item = &Path> {
        let loops = self.loops.iter().map(LoopDevice::path);
        loops.chain(self.ublk.paths())
    }

    /// Takes it away, if nobody serves or uses it.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with who uses it, [`ErrorKind::Io`].
    pub fn remove(&self) -> Result<()> {
        for device in &self.loops {
            device.clear().map_err(left)?;
        }
        self.ublk.remove().map_err(left)?;
        for _ in 0..self.mounts_count {
            // Dead, or held by a process that gets nothing but errors from it.
            rustix::mount::unmount(&self.directory, UnmountFlags::DETACH).map_err(|error| {
                let text = format!("{}: cannot be unmounted", self.directory.display());
                Error::new(ErrorKind::Io, text).with_source(error)
            })?;
        }
        // Not there is fine; anything else shows when the directory is made.
        let _ = fs::remove_dir(&self.directory);
        Ok(())
    }
}

/// Says of something in use whose it is.
fn left(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Busy => {
            let text = format!("left by a server that was killed: {error}: uzram down");
            Error::new(ErrorKind::Busy, text)
        }
        _ => error,
    }
}
