//! Mounting and unmounting the file system.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use uzram::{BlockDevice, Error, ErrorKind, Result};

use super::disk::Disk;
use super::gate::Gate;
use super::mounted::{Mounted, To};
use super::slots::{Slot, Slots};
use super::worker;
use super::{REQUEST_BYTES_MAX, THREADS_MAX};

/// Longest file name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The options of a mount.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Worker threads, 1 to [`THREADS_MAX`]. With only one, a lone request waits for an idle CPU
    /// to wake.
    pub threads: usize,
}

impl Default for Options {
    /// One worker per CPU, but at least two and at most eight.
    fn default() -> Options {
        let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Options {
            threads: cpus.clamp(2, 8),
        }
    }
}

/// A mounted device. Dropping it unmounts it. If that is refused because a program uses it, it is
/// detached, and the last close ends it.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    gate: Arc<Gate>,
    kept: Arc<Slots>,
    device: OwnedFd,
    mounted: Mounted,
}

/// All that is needed to take a mount over from a process that died.
#[derive(Debug)]
pub struct MountRemains {
    /// The kernel's end of the mount. While a process has it open, requests wait.
    pub device: OwnedFd,
    /// A file of memory with the requests that workers had taken.
    pub requests: OwnedFd,
}

impl Mount {
    /// Mounts `device` over `directory`, which exists, as the file `name` in it.
    ///
    /// Root mounts directly; other users need the program `fusermount3`. Only the user who mounts
    /// can open the file (mode 0600).
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
        let gate = Arc::new(Gate::default());
        let disk = Disk::new(device, name, Arc::clone(&gate));
        let slots = worker::slots(&disk, options.threads)?;
        let kept = Arc::clone(slots[0].of());
        let to = To {
            source: &format!("uzram:{name}"),
            directory,
            is_for_all: false,
        };
        let (mounted, device) = Mounted::new(Arc::new(disk), &to, slots)?;
        Ok(Mount {
            path: directory.join(name),
            gate,
            kept,
            device,
            mounted,
        })
    }

    /// The files that a process which outlives this one has to keep, so that another one can [resume](Mount::resume) the mount.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no more descriptors may be had.
    pub fn remains(&self) -> Result<MountRemains> {
        Ok(MountRemains {
            device: self.device.try_clone().map_err(no_descriptor)?,
            requests: self.kept.file().map_err(no_descriptor)?,
        })
    }

    /// Takes over a mount whose process has died: the file `name` over `directory`, which shows `device` from now on. Requests that
    /// the dead process had taken are answered first. Nothing is negotiated again, and there are as many workers as it had.
    ///
    /// That process must have ended with all its threads. A request that it had carried out and not answered may be
    /// carried out twice; one that was answered is not.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for descriptors that are not a mount's, [`ErrorKind::Io`] if nobody can serve it. The mount
    /// stays.
    pub fn resume(
        device: Arc<dyn BlockDevice>,
        name: &str,
        directory: &Path,
        remains: MountRemains,
    ) -> Result<Mount> {
        check(name, Options::default())?;
        let buffer_bytes = worker::buffer_bytes(REQUEST_BYTES_MAX as usize);
        let slots = Slots::resume(remains.requests, buffer_bytes).map_err(|error| {
            let text = format!("mount at {}", directory.display());
            Error::new(ErrorKind::InvalidInput, text).with_source(error)
        })?;
        let slots = Slot::all(slots);
        let kept = Arc::clone(slots[0].of());
        let gate = Arc::new(Gate::of(kept.opens()));
        let disk = Disk::new(device, name, Arc::clone(&gate));
        let another = remains.device.try_clone().map_err(no_descriptor)?;
        let mounted = Mounted::resume(Arc::new(disk), directory, remains.device, slots)?;
        Ok(Mount {
            path: directory.join(name),
            gate,
            kept,
            device: another,
            mounted,
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of times that it is open now. A loop device over it counts as one.
    #[must_use]
    pub fn opens(&self) -> u64 {
        self.gate.opens()
    }

    /// Requests that a dead process had taken, and that were answered when this one [took the mount over](Mount::resume).
    #[must_use]
    pub fn replayed(&self) -> u64 {
        self.mounted.replayed()
    }

    /// Runs `work` while the file is not open and cannot be opened (`EBUSY`).
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while it is open, and the errors of `work`.
    pub fn exclusively<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.gate.shut() {
            return Err(self.busy());
        }
        let outcome = work();
        self.gate.reopen();
        outcome
    }

    /// Has the kernel ask for the file's size, which it remembers: the device has another one now.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn resized(&self) -> Result<()> {
        let flags = AtFlags::STATX_FORCE_SYNC;
        let asked = rustix::fs::statx(CWD, &self.path, flags, StatxFlags::BASIC_STATS);
        asked.map(drop).map_err(|error| {
            let text = format!("{}: its size is not seen", self.path.display());
            Error::new(ErrorKind::Io, text).with_source(error)
        })
    }

    /// Whether the kernel still has it: another program may have unmounted it.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        self.mounted.is_mounted()
    }

    /// Unmounts it and ends its workers. If it is unmounted already, it does nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a program uses it, which may be tried again, [`ErrorKind::Io`].
    pub fn unmount(&mut self) -> Result<()> {
        self.mounted.unmount().map_err(|error| match error.kind() {
            ErrorKind::Busy => self.busy(),
            _ => error,
        })
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

fn no_descriptor(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "descriptors of a mount").with_source(error)
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
