//! Ways in which this machine's kernel opens a device itself: a FUSE file, a loop device over it,
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
//! The file of device NAME is `NAME.fuse/NAME` in the state directory. [`Leftovers`] finds by that
//! path what a killed server left: a file system that answers `ENOTCONN`, a loop device whose
//! reads fail. The kernel's own tables are truer than any record of ours.

mod block;
mod loop_device;
mod ublk;
pub mod usage;
mod vhost_user;

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use uzram::{BlockDevice, ErrorKind};
use uzram_frontends::fuse::{Mount, MountRemains, Options, unmount_as_user};

use crate::error::{Error, Result};
use crate::sandbox;
use crate::state::StateDir;
use crate::swap;
use loop_device::LoopDevice;
use ublk::{UblkDisk, UblkLeftovers};
pub(crate) use vhost_user::GuestSocket;

/// Workers for a device that is swapped to. Each has all of its buffer resident, 1 MiB.
const SWAP_THREADS_MAX: usize = 4;

/// The way in which clients reach a device.
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
    const ALL: [Attach; 5] = [
        Attach::Nbd,
        Attach::Fuse,
        Attach::Loop,
        Attach::Ublk,
        Attach::VhostUser,
    ];

    /// The way of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Attach> {
        Attach::ALL.into_iter().find(|attach| attach.name() == name)
    }

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

    /// The best way that this machine offers this process, and the reasons against better ones: a
    /// block device, or else a file, or else a socket.
    #[must_use]
    pub fn auto() -> (Attach, String) {
        if Attach::block_device() == Attach::Ublk {
            return (Attach::Ublk, "the kernel's driver is here".to_owned());
        }
        let root = Path::new("/");
        if let Err(why) = fuse_is_here(root) {
            return (Attach::Nbd, format!("no FUSE file: {why}"));
        }
        match loop_is_here(root) {
            Ok(()) => (Attach::Loop, "FUSE and loop devices are here".to_owned()),
            Err(why) => (Attach::Fuse, format!("no loop device: {why}")),
        }
    }
}

/// Whether this process may mount a FUSE file system of the machine whose files are below `root`.
pub(crate) fn fuse_is_here(root: &Path) -> Result<(), String> {
    openable(root, "/dev/fuse")?;
    let helper = ["bin", "usr/bin"].map(|dir| root.join(dir).join("fusermount3").exists());
    match rustix::process::geteuid().is_root() || helper.contains(&true) {
        true => Ok(()),
        false => Err("not root, and fusermount3 (package fuse3) is not installed".to_owned()),
    }
}

/// Whether this process may make a loop device.
pub(crate) fn loop_is_here(root: &Path) -> Result<(), String> {
    openable(root, "/dev/loop-control")
}

fn openable(root: &Path, device: &str) -> Result<(), String> {
    let path = root.join(device.trim_start_matches('/'));
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{device} does not exist"),
        io::ErrorKind::PermissionDenied => format!("{device} may not be opened"),
        _ => format!("{device}: {error}"),
    })
}

/// A device that is attached. Dropping it detaches it; its users get errors.
pub(crate) struct Attachment {
    way: Way,
    path: PathBuf,
}

enum Way {
    Fuse(Box<Mutex<Parts>>),
    Ublk(Box<UblkDisk>),
}

/// From the top down: the last layer that was set up goes first.
struct Parts {
    loop_device: Option<LoopDevice>,
    /// `None` once detached.
    mount: Option<Mount>,
    directory: PathBuf,
}

impl Attachment {
    /// Attaches `device` under `name`, which this process has claimed, with `outlives` so that another process can take it over.
    /// Nothing is left after an error.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while the leftovers of a killed server of this name are in use,
    /// [`ErrorKind::Io`] with the remedy.
    pub(crate) fn new(
        attach: Attach,
        device: Arc<dyn BlockDevice>,
        name: &str,
        state: &StateDir,
        is_for_swap: bool,
        outlives: bool,
    ) -> Result<Attachment> {
        if sandbox::is_on() {
            let text = "this server is in a sandbox, where nothing can be mounted; start another one \
                        with --attach";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Leftovers::of(state, name).remove()?;
        if attach == Attach::Ublk {
            let disk = UblkDisk::new(device, state.ublk_marker(name), is_for_swap, outlives)?;
            return Ok(Attachment::of_ublk(disk));
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
        let mut options = Options::default();
        if is_for_swap {
            options.threads = options.threads.min(SWAP_THREADS_MAX);
        }
        let mount = swap::started(is_for_swap, device, |device| {
            Mount::new(device, name, &parts.directory, options)
        })?;
        let mut path = mount.path().to_owned();
        parts.mount = Some(mount);
        if attach == Attach::Loop {
            let loop_device = LoopDevice::new(&path)?;
            path = loop_device.path().to_owned();
            parts.loop_device = Some(loop_device);
        }
        Ok(Attachment {
            way: Way::Fuse(Box::new(Mutex::new(parts))),
            path,
        })
    }

    fn of_ublk(disk: UblkDisk) -> Attachment {
        Attachment {
            path: disk.path().map(Path::to_owned).unwrap_or_default(),
            way: Way::Ublk(Box::new(disk)),
        }
    }

    /// Takes over the disk of the kernel's driver that a dead server had under `name`.
    ///
    /// # Errors
    /// As [`Attachment::new`]. Everything stays as it is.
    pub(crate) fn resume_ublk(
        device: Arc<dyn BlockDevice>,
        name: &str,
        state: &StateDir,
        is_for_swap: bool,
    ) -> Result<Attachment> {
        let disk = UblkDisk::resume(device, state.ublk_marker(name), is_for_swap)?;
        Ok(Attachment::of_ublk(disk))
    }

    /// Takes over what a dead server attached under `name`: its mount, and the loop device over it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], [`ErrorKind::InvalidInput`] if `remains` are of something else. Everything stays as it is.
    pub(crate) fn resume(
        device: Arc<dyn BlockDevice>,
        name: &str,
        state: &StateDir,
        remains: MountRemains,
        attach: Attach,
        is_for_swap: bool,
    ) -> Result<Attachment> {
        let directory = state.fuse_directory(name);
        let mount = swap::started(is_for_swap, device, |device| {
            Mount::resume(device, name, &directory, remains)
        })?;
        let mut path = mount.path().to_owned();
        let mut loop_device = None;
        if attach == Attach::Loop {
            // It may have died before it made one.
            let there = LoopDevice::over(&path).into_iter().next();
            match there.map_or_else(|| LoopDevice::new(&path), Ok) {
                Ok(device) => {
                    path = device.path().to_owned();
                    loop_device = Some(device);
                }
                Err(error) => {
                    // Dropping it would unmount it.
                    std::mem::forget(mount);
                    return Err(error);
                }
            }
        }
        let parts = Parts {
            loop_device,
            mount: Some(mount),
            directory,
        };
        Ok(Attachment {
            way: Way::Fuse(Box::new(Mutex::new(parts))),
            path,
        })
    }

    /// The files that a process which outlives this one has to keep; none if the kernel keeps it itself.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no more descriptors may be had.
    pub(crate) fn remains(&self) -> Result<Option<MountRemains>> {
        let Way::Fuse(parts) = &self.way else {
            return Ok(None);
        };
        let parts = lock(parts);
        Ok(parts.mount.as_ref().map(Mount::remains).transpose()?)
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

    /// Requests that the dead server had taken, and this one answered as it took over. The driver of ublk does not tell.
    pub(crate) fn replayed(&self) -> u64 {
        match &self.way {
            Way::Fuse(parts) => lock(parts).mount.as_ref().map_or(0, Mount::replayed),
            Way::Ublk(_) => 0,
        }
    }

    /// Runs `work` while the device is not in use.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with the user, and the errors of `work`.
    pub(crate) fn exclusively<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let Way::Fuse(parts) = &self.way else {
            return block::exclusively(&self.path, work);
        };
        let parts = lock(parts);
        match (&parts.loop_device, &parts.mount) {
            (Some(device), _) => device.exclusively(work),
            (None, Some(mount)) => mount.exclusively(|| Ok(work()))?,
            (None, None) => work(),
        }
    }

    /// Tells the kernel that the device has another size.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub(crate) fn resized(&self) -> Result<()> {
        let Way::Fuse(parts) = &self.way else {
            return Ok(());
        };
        let parts = lock(parts);
        if let Some(mount) = &parts.mount {
            mount.resized()?;
        }
        match &parts.loop_device {
            Some(device) => device.resized(),
            None => Ok(()),
        }
    }

    /// Refuses while a process has it open. A mounted file counts by itself who has.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with the processes.
    pub(crate) fn check_not_open(&self) -> Result<()> {
        let is_file = matches!(&self.way, Way::Fuse(parts) if lock(parts).loop_device.is_none());
        match is_file {
            true => Ok(()),
            false => usage::check_not_open(&self.path),
        }
    }

    /// Detaches it, unless it is in use; may be tried again.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with the user, [`ErrorKind::Io`].
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
            done => return Ok(done?),
        }
    }
    Ok(mount.unmount()?)
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

/// The kernel's leftovers of a device NAME whose server is gone.
#[derive(Debug)]
pub struct Leftovers {
    directory: PathBuf,
    loops: Vec<LoopDevice>,
    mounts_count: usize,
    ublk: UblkLeftovers,
}

impl Leftovers {
    /// The leftovers of `name` now. Of a device that is served, they are the device itself.
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

    /// Whether there are none.
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

    /// Takes them away, if they are neither served nor in use.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with the user, [`ErrorKind::Io`].
    pub fn remove(&self) -> Result<()> {
        for device in &self.loops {
            device.clear().map_err(left)?;
        }
        self.ublk.remove().map_err(left)?;
        self.unmount()
    }

    /// Takes away at once as much as possible, also in use: the users get errors, and the kernel
    /// takes the rest away with the last use. For a server that is told to end without delay.
    pub fn abandon(&self) {
        for device in &self.loops {
            device.clear_when_unused();
        }
        let _ = self.unmount();
    }

    fn unmount(&self) -> Result<()> {
        for _ in 0..self.mounts_count {
            // Dead, or held by a process that gets nothing but errors from it.
            match rustix::mount::unmount(&self.directory, UnmountFlags::DETACH) {
                Ok(()) => {}
                Err(Errno::PERM) => unmount_as_user(&self.directory, true)?,
                Err(error) => {
                    let text = format!("{}: cannot be unmounted", self.directory.display());
                    return Err(Error::new(ErrorKind::Io, text).with_source(error));
                }
            }
        }
        // Not there is fine; anything else shows when the directory is made.
        let _ = fs::remove_dir(&self.directory);
        Ok(())
    }
}

/// Adds the owner to an error about something in use.
fn left(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Busy => {
            let text = format!("left by a server that was killed: {error}: uzram down");
            Error::new(ErrorKind::Busy, text)
        }
        _ => error,
    }
}
