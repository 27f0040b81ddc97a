//! A disk of the kernel's driver for block devices in user space.
//!
//! The kernel keeps a word with each such device, its label. Ours is made of the path of the
//! device's marker in the state directory. So it identifies server and device, also after the
//! server was killed. The marker, an empty file, only lists names to look for.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uzram::{BlockDevice, ErrorKind};
use uzram_frontends::ublk::{self, Disk, Options};

use super::{block, usage};
use crate::error::{Error, Result};
use crate::swap;

/// Queues, and requests at once in each, of a disk that is swapped to: all of their buffers are resident,
/// 4 MiB per queue.
const SWAP_QUEUES_MAX: u16 = 4;
const SWAP_DEPTH: u16 = 32;

/// A device of ours as a disk. Dropping it takes the disk away, and its users get errors.
pub(super) struct UblkDisk {
    /// `None` once it was dropped.
    disk: Option<Disk>,
    marker: PathBuf,
}

impl UblkDisk {
    /// Makes a disk, whose name's marker is at `marker`. Nothing is left after an error. With `outlives` it can be
    /// [resumed](UblkDisk::resume) when this process has died.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] by an old driver, [`ErrorKind::Io`] with the remedy.
    pub(super) fn new(
        device: Arc<dyn BlockDevice>,
        marker: PathBuf,
        is_for_swap: bool,
        outlives: bool,
    ) -> Result<UblkDisk> {
        File::create(&marker).map_err(|error| {
            let text = format!("{}: cannot be made", marker.display());
            Error::new(ErrorKind::Io, text).with_source(error)
        })?;
        let usual = Options {
            label: label(&marker),
            outlives,
            ..Options::default()
        };
        let options = match is_for_swap {
            false => usual,
            true => Options {
                queues: usual.queues.min(SWAP_QUEUES_MAX),
                depth: SWAP_DEPTH,
                ..usual
            },
        };
        let made = swap::started(is_for_swap, device, |device| Disk::new(device, options));
        let disk = made.inspect_err(|_| {
            let _ = fs::remove_file(&marker);
        })?;
        Ok(UblkDisk::of(disk, marker))
    }

    /// Takes over the disk of a dead server; makes one if it died before it had.
    ///
    /// # Errors
    /// As [`UblkDisk::new`], and those of [`Disk::resume`]. The disk stays.
    pub(super) fn resume(
        device: Arc<dyn BlockDevice>,
        marker: PathBuf,
        is_for_swap: bool,
    ) -> Result<UblkDisk> {
        let label = label(&marker);
        let devices = ublk::devices(label);
        let Some(left) = devices.first() else {
            return UblkDisk::new(device, marker, is_for_swap, true);
        };
        let resume = |device| Disk::resume(device, left, label);
        Ok(UblkDisk::of(
            swap::started(is_for_swap, device, resume)?,
            marker,
        ))
    }

    fn of(disk: Disk, marker: PathBuf) -> UblkDisk {
        if !disk.is_io_flusher() {
            log::warn!(
                "{}: its threads are not marked as I/O flushers, which needs CAP_SYS_RESOURCE: a machine \
                 that runs out of memory may stall on it",
                disk.path().display()
            );
        }
        UblkDisk {
            disk: Some(disk),
            marker,
        }
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.disk.as_ref().map(Disk::path)
    }

    /// Takes it away, unless it is in use; may be tried again.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with the user, [`ErrorKind::Io`].
    pub(super) fn detach(&self) -> Result<()> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        if disk.path().exists() {
            // Held until the disk has gone, so that nobody can begin to use it; no longer, as the number
            // is not free while it is open.
            let _held = block::open_exclusively(disk.path())?;
            disk.stop()?;
        }
        disk.remove()?;
        match fs::remove_file(&self.marker) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let text = format!("{}: cannot be removed", self.marker.display());
                Err(Error::new(ErrorKind::Io, text).with_source(error))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for UblkDisk {
    fn drop(&mut self) {
        if self.detach().is_ok() {
            return;
        }
        // Somebody uses it. What the kernel has of it stays, so that it can be found and taken away.
        if let Some(disk) = self.disk.take() {
            let _ = disk.stop();
            std::mem::forget(disk);
        }
    }
}

/// The driver's leftovers of a name whose server is gone.
#[derive(Debug)]
pub(super) struct UblkLeftovers {
    marker: PathBuf,
    devices: Vec<(PathBuf, ublk::Device)>,
}

impl UblkLeftovers {
    pub(super) fn of(marker: PathBuf) -> UblkLeftovers {
        let devices = ublk::devices(label(&marker)).into_iter();
        UblkLeftovers {
            devices: devices.map(|device| (device.path(), device)).collect(),
            marker,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty() && !self.marker.exists()
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.devices.iter().map(|(path, _)| path.as_path())
    }

    /// Takes it away, if it is neither served nor in use. The caller holds the name, so no server
    /// is starting it.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with the user, [`ErrorKind::Io`].
    pub(super) fn remove(&self) -> Result<()> {
        for (path, device) in &self.devices {
            let users = usage::of_device(path);
            if !users.is_empty() {
                let text = format!("{}: {}; end that first", path.display(), users.join(", "));
                return Err(Error::new(ErrorKind::Busy, text));
            }
            device.remove(label(&self.marker))?;
        }
        // Not there is fine; anything else shows when it is made.
        let _ = fs::remove_file(&self.marker);
        Ok(())
    }
}

/// Two fixed letters, and 48 bits of the path's FNV-1a sum.
fn label(marker: &Path) -> u64 {
    const OURS: u64 = 0x757a;
    const START: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    let bytes = marker.as_os_str().as_bytes().iter();
    let sum = bytes.fold(START, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(PRIME)
    });
    OURS << 48 | sum >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_tell_names_and_directories_apart() {
        let of = |path: &str| label(Path::new(path));
        assert_eq!(of("/run/uzram/a.ublk"), of("/run/uzram/a.ublk"));
        assert_ne!(of("/run/uzram/a.ublk"), of("/run/uzram/b.ublk"));
        assert_ne!(of("/run/uzram/a.ublk"), of("/run/user/1/uzram/a.ublk"));
        assert_eq!(of("") >> 48, 0x757a);
    }
}
