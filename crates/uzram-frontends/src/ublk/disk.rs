//! A disk of this machine, and the disks that killed servers have left.

use std::fmt;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use uzram::{BlockDevice, Error, ErrorKind, Result};

use super::kernel::Kernel;
use super::lifecycle::{self, Served, Wish};
use super::protocol::{FEATURE_UNPRIVILEGED, State};

/// Most queues of a disk by default. With more CPUs than these, some share a queue.
const QUEUES_DEFAULT_MAX: usize = 16;
/// Longest wait for the node of a disk that was started.
const DISK_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for a device to be dead once its server died.
const DEATH_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);
/// Entries of /dev looked at, at most.
const ENTRIES_MAX: usize = 1 << 16;

/// The options of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Queues, each with a thread: 1 to [`QUEUES_MAX`](super::QUEUES_MAX). The kernel takes no
    /// more than it has CPUs.
    pub queues: u16,
    /// Requests at once in each queue: 1 to [`DEPTH_MAX`](super::DEPTH_MAX).
    pub depth: u16,
    /// A word that the kernel keeps with the disk, by which [`devices`] finds it again.
    pub label: u64,
    /// Whether the disk outlives its server: when this process dies, requests wait until
    /// [`Disk::resume`] in another one, for as long as that takes. Only for a device whose content
    /// outlives the process too.
    pub outlives: bool,
}

impl Default for Options {
    /// One queue per CPU, 16 at most, 128 requests deep, without a label.
    fn default() -> Options {
        let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Options {
            queues: cpus.min(QUEUES_DEFAULT_MAX) as u16,
            depth: 128,
            label: 0,
            outlives: false,
        }
    }
}

/// A device as a disk of this machine, /dev/ublkbN. Dropping it takes the disk away, and programs
/// that have it open get errors.
pub struct Disk {
    served: Mutex<Served<Kernel>>,
    path: PathBuf,
    is_io_flusher: bool,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({})", self.path.display())
    }
}

impl Disk {
    /// Makes a disk that `device` serves, under a number of the kernel's choice.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for options outside their ranges or a size that is no multiple of 512 bytes,
    /// [`ErrorKind::Unsupported`] by an old driver, [`ErrorKind::Io`] with the remedy if the system refuses.
    /// Nothing is left behind.
    pub fn new(device: Arc<dyn BlockDevice>, options: Options) -> Result<Disk> {
        let wish = Wish {
            queues: options.queues,
            depth: options.depth,
            label: options.label,
            outlives: options.outlives,
        };
        Disk::of(Served::start(Kernel::open()?, &device, wish)?)
    }

    /// Takes over the disk of a dead server, which was made with [`Options::outlives`] and
    /// `label`, with its own count of queues and their depth. `device` must hold what the dead
    /// server's did. Requests that the dead server had taken and not answered come again, so a
    /// write may be carried out twice.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the disk has another label or was not made so, [`ErrorKind::Busy`] if it
    /// is served, [`ErrorKind::Unsupported`] by an old driver, [`ErrorKind::Io`]. The disk stays, for another
    /// successor once this process has ended.
    pub fn resume(device: Arc<dyn BlockDevice>, disk: &Device, label: u64) -> Result<Disk> {
        Disk::of(Served::resume(Kernel::open()?, &device, disk.id, label)?)
    }

    fn of(served: Served<Kernel>) -> Result<Disk> {
        let path = disk_path(served.id());
        let deadline = Instant::now() + DISK_TIMEOUT;
        while !path.exists() {
            if Instant::now() >= deadline {
                let shown = path.display();
                let text = format!("ublk: no {shown}; mount devtmpfs on /dev, or mknod it");
                return Err(Error::new(ErrorKind::Io, text));
            }
            thread::sleep(PAUSE);
        }
        Ok(Disk {
            is_io_flusher: served.is_io_flusher(),
            served: Mutex::new(served),
            path,
        })
    }

    /// The block device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether every queue's thread is marked as one that memory is freed through
    /// (`PR_SET_IO_FLUSHER`, which takes `CAP_SYS_RESOURCE`). Otherwise a machine that runs out of
    /// memory may stall on the disk.
    #[must_use]
    pub fn is_io_flusher(&self) -> bool {
        self.is_io_flusher
    }

    /// Takes the disk away, even if programs have it open, and leaves its number and label in the
    /// kernel. If this was done already, it does nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; it may be tried again.
    pub fn stop(&self) -> Result<()> {
        self.lock().stop()
    }

    /// Takes all of it away, even if programs have it open. If this was done already, it does
    /// nothing. The number is free on return, unless a program still has the disk open.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; it may be tried again.
    pub fn remove(&self) -> Result<()> {
        self.lock().remove()
    }

    fn lock(&self) -> MutexGuard<'_, Served<Kernel>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this process can have disks of this kind.
///
/// # Errors
/// As [`Disk::new`], naming the missing thing.
pub fn check() -> Result<()> {
    let mut kernel = Kernel::open()?;
    let features = lifecycle::features(&mut kernel)?;
    match rustix::process::geteuid().is_root() || features & FEATURE_UNPRIVILEGED != 0 {
        true => Ok(()),
        false => {
            let text = "ublk: this driver has no devices for users without privileges; be root";
            Err(Error::new(ErrorKind::Unsupported, text))
        }
    }
}

/// A device of the driver, made by any process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    id: u32,
    is_dead: bool,
}

/// The devices that carry `label`: those that are served and those whose server has died. Without
/// the driver, or without the permission to ask it, there are none.
#[must_use]
pub fn devices(label: u64) -> Vec<Device> {
    let Ok(entries) = fs::read_dir("/dev") else {
        return Vec::new();
    };
    let names = entries.take(ENTRIES_MAX).flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut ids: Vec<u32> = names.filter_map(|name| device_id(&name)).collect();
    if ids.is_empty() {
        return Vec::new();
    }
    let Ok(mut kernel) = Kernel::open() else {
        return Vec::new();
    };
    ids.sort_unstable();
    let asked = ids.into_iter().filter_map(|id| {
        let info = lifecycle::info(&mut kernel, id).ok()?;
        (info.label == label).then_some(Device {
            id,
            is_dead: matches!(info.state, State::Dead | State::Quiesced),
        })
    });
    asked.collect()
}

impl Device {
    /// The block device. It is gone if its server has died.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        disk_path(self.id)
    }

    /// Makes the kernel forget the device. Its server must have died, and the caller vouches that
    /// no server of this label is starting, because that looks the same. A server that is just
    /// dying is given a moment.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is served, [`ErrorKind::Io`].
    pub fn remove(&self, label: u64) -> Result<()> {
        let mut kernel = Kernel::open()?;
        let deadline = Instant::now() + DEATH_TIMEOUT;
        let info = loop {
            let Ok(info) = lifecycle::info(&mut kernel, self.id) else {
                return Ok(());
            };
            if info.label != label {
                // Gone, and the number is somebody else's.
                return Ok(());
            }
            if matches!(info.state, State::Dead | State::Quiesced) {
                break info;
            }
            if Instant::now() >= deadline {
                let text = format!("{}: served; end its server first", self.path().display());
                return Err(Error::new(ErrorKind::Busy, text));
            }
            thread::sleep(PAUSE);
        };
        let by_path = info.features & FEATURE_UNPRIVILEGED != 0;
        lifecycle::delete(&mut kernel, self.id, by_path).map_err(|error| {
            let text = format!("/dev/ublkc{}: cannot be deleted", self.id);
            Error::new(ErrorKind::Io, text).with_source(error)
        })
    }

    /// Whether its server has died, or has not started it yet.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.is_dead
    }
}

fn disk_path(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{id}"))
}

fn device_id(name: &str) -> Option<u32> {
    let number = name.strip_prefix("ublkc")?;
    let is_plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| number.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_known_by_name() {
        assert_eq!(device_id("ublkc12"), Some(12));
        for other in ["ublkc", "ublk-control", "ublkb1", "ublkc1p1", "ublkc+1"] {
            assert_eq!(device_id(other), None, "{other}");
        }
        assert_eq!(device_id("ublkc99999999999"), None);
    }
}
