//! Ways to a device that the kernel of this machine opens itself: a FUSE file, and a loop device
//! over it.
//!
//! ```text
//! usage         who uses what, by the kernel's own tables
//! loop_device   a loop device over a file
//! ```
//!
//! The file of device NAME is `NAME.fuse/NAME` in the state directory. What a killed server leaves
//! (a file system that answers `ENOTCONN`, a loop device whose reads fail) is found through that path,
//! by [`Leftovers`]: no record of ours could be as true as what the kernel has.

mod loop_device;
pub mod usage;

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mount::UnmountFlags;
use uzram::{BlockDevice, Error, ErrorKind, Result};
use uzram_frontends::fuse::{Mount, Options};

use crate::sandbox;
use crate::state::StateDir;
use loop_device::LoopDevice;

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
}

impl Attach {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Attach::Nbd => "nbd",
            Attach::Fuse => "fuse",
            Attach::Loop => "loop",
        }
    }

    /// The best that this machine offers this process, and why not a better one: a block device, or
    /// else a file, or else a socket.
    #[must_use]
    pub fn auto() -> (Attach, String) {
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
    /// From the top down: what was set up last goes first.
    parts: Mutex<Parts>,
    path: PathBuf,
}

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
    ) -> Result<Attachment> {
        if sandbox::is_on() {
            let text = "this server is in a sandbox, where nothing can be mounted; start another one \
                        with --attach";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Leftovers::of(state, name).remove()?;
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
        let mount = Mount::new(device, name, &parts.directory, Options::default())?;
        let mut path = mount.path().to_owned();
        parts.mount = Some(mount);
        if attach == Attach::Loop {
            let loop_device = LoopDevice::new(&path)?;
            path = loop_device.path().to_owned();
            parts.loop_device = Some(loop_device);
        }
        Ok(Attachment {
            parts: Mutex::new(parts),
            path,
        })
    }

    /// The file, or the block device.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Programs that have the file open; for a loop device, 1 if it is mounted or swapped to.
    pub(crate) fn users(&self) -> u64 {
        let parts = self.lock();
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
        let parts = self.lock();
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
        self.lock().detach()
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            directory,
        }
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.loops.is_empty() && self.mounts_count == 0 && !self.directory.exists()
    }

    /// The block devices.
    pub fn devices(&self) -> impl Iterator<Item = &Path> {
        self.loops.iter().map(LoopDevice::path)
    }

    /// Takes it away, if nobody serves or uses it.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with who uses it, [`ErrorKind::Io`].
    pub fn remove(&self) -> Result<()> {
        for device in &self.loops {
            device.clear().map_err(|error| match error.kind() {
                ErrorKind::Busy => {
                    let text = format!("left by a server that was killed: {error}: uzram down");
                    Error::new(ErrorKind::Busy, text)
                }
                _ => error,
            })?;
        }
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
