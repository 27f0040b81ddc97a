//! A loop device over a file of ours: a block device that mkfs, mount and swapon take.
//!
//! It carries a label, the end of the file's path. A killed server leaves such devices, and the
//! kernel shows the path of a file whose mount has gone in no recognizable form.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use uzram::ErrorKind;

use super::block;
use crate::error::{Error, Result};
use crate::system::{self, LABEL_BYTES};

/// The loop device's smallest unit and alignment, in bytes.
const BLOCK_BYTES: u32 = 4096;
/// Tries to get a free device: another program may take it first.
const TRIES: u32 = 32;
/// Entries of /dev looked at, at most.
const ENTRIES_MAX: usize = 1 << 16;

/// A loop device over a file of ours. Dropping this leaves it.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    path: PathBuf,
    label: [u8; LABEL_BYTES],
}

impl LoopDevice {
    /// Puts `file` under a free loop device.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] with the remedy.
    pub(crate) fn new(file: &Path) -> Result<LoopDevice> {
        let failed = |remedy: &str, error: io::Error| {
            let text = format!("loop device for {}: {remedy}", file.display());
            Error::new(ErrorKind::Io, text).with_source(error)
        };
        let control = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/loop-control")
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => failed(
                    "no /dev/loop-control; load the module `loop`, or serve with --attach fuse",
                    error,
                ),
                _ => failed("be root, or serve with --attach fuse", error),
            })?;
        let backing = OpenOptions::new().read(true).write(true).open(file);
        let backing = backing.map_err(|error| failed("cannot be opened", error))?;
        let label = label(file);
        for _ in 0..TRIES {
            let number = system::loop_free(&control)
                .map_err(|error| failed("no free loop device; free one (losetup -a)", error))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(true).open(&path);
            let device = device.map_err(|error| {
                let remedy = format!(
                    "{} cannot be opened; pass it into the container, or mknod it",
                    path.display()
                );
                failed(&remedy, error)
            })?;
            match system::loop_configure(&device, &backing, BLOCK_BYTES, &label) {
                Ok(()) => return Ok(LoopDevice { path, label }),
                Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
                Err(error) => return Err(failed("cannot be set up (Linux 5.8 can)", error)),
            }
        }
        let error = io::Error::from(Errno::BUSY);
        Err(failed("others take every free one; try again", error))
    }

    /// The loop devices over `file`, also those over the file of a killed server.
    pub(crate) fn over(file: &Path) -> Vec<LoopDevice> {
        let label = label(file);
        let Ok(entries) = fs::read_dir("/dev") else {
            return Vec::new();
        };
        let paths = entries
            .take(ENTRIES_MAX)
            .flatten()
            .map(|entry| entry.path());
        paths
            .filter(|path| is_loop(path))
            .filter(|path| {
                let device = File::open(path).and_then(|device| system::loop_label(&device));
                device.is_ok_and(|found| found == label)
            })
            .map(|path| LoopDevice { path, label })
            .collect()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the kernel still has it with our file.
    pub(crate) fn is_there(&self) -> bool {
        let label = File::open(&self.path).and_then(|device| system::loop_label(&device));
        label.is_ok_and(|label| label == self.label)
    }

    /// Gives the device the size that its file has now, as far as the kernel knows.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub(crate) fn resized(&self) -> Result<()> {
        let told = File::open(&self.path).and_then(|device| system::loop_resize(&device));
        told.map_err(|error| {
            let text = format!("{}: cannot take another size", self.path.display());
            Error::new(ErrorKind::Io, text).with_source(error)
        })
    }

    /// Runs `work` while the device is not in use, as [`block::exclusively`].
    ///
    /// # Errors
    /// As that.
    pub(crate) fn exclusively<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        block::exclusively(&self.path, work)
    }

    /// Takes the file away, unless the device is in use. If this was done already, it does
    /// nothing.
    ///
    /// # Errors
    /// As [`block::open_exclusively`].
    pub(crate) fn clear(&self) -> Result<()> {
        if !self.is_there() {
            return Ok(());
        }
        let device = block::open_exclusively(&self.path)?;
        self.clear_with(&device)
    }

    /// Takes the file away as soon as the device is not in use any more.
    pub(crate) fn clear_when_unused(&self) {
        if self.is_there()
            && let Ok(device) = File::open(&self.path)
        {
            let _ = self.clear_with(&device);
        }
    }

    fn clear_with(&self, device: &File) -> Result<()> {
        match system::loop_clear(device) {
            Ok(()) => Ok(()),
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Ok(()),
            Err(error) => {
                let text = format!("{}: cannot be taken down", self.path.display());
                Err(Error::new(ErrorKind::Io, text).with_source(error))
            }
        }
    }
}

/// The last bytes of the path, which differ most.
fn label(file: &Path) -> [u8; LABEL_BYTES] {
    let bytes = file.as_os_str().as_bytes();
    let tail = &bytes[bytes.len().saturating_sub(LABEL_BYTES - 1)..];
    let mut label = [0; LABEL_BYTES];
    label[..tail.len()].copy_from_slice(tail);
    label
}

fn is_loop(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.strip_prefix("loop"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_the_end_of_a_path() {
        assert!(label(Path::new("/run/uzram/a.fuse/a")).starts_with(b"/run/uzram/a.fuse/a\0"));
        let long = format!("/{}/tail", "x".repeat(200));
        let label = label(Path::new(&long));
        assert_eq!(label[LABEL_BYTES - 1], 0);
        assert!(label[..LABEL_BYTES - 1].ends_with(b"/tail"));
    }

    #[test]
    fn loop_devices_are_known_by_name() {
        for (name, is) in [
            ("loop0", true),
            ("loop12", true),
            ("loop", false),
            ("loop-control", false),
            ("loop0p1", false),
        ] {
            assert_eq!(is_loop(&Path::new("/dev").join(name)), is, "{name}");
        }
    }
}
