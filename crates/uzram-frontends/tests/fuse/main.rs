//! Tests of the FUSE frontend over real mounts. Where nothing may be mounted each says so in a line
//! and passes.
#![allow(clippy::unwrap_used)]

#[path = "../it/device.rs"]
mod device;

mod conformance;
mod faults;
mod file;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use uzram::BlockDevice;
use uzram_frontends::fuse::{Mount, Options};

/// `O_DIRECT` on all architectures that FUSE is tested on.
const O_DIRECT: i32 = 0o40000;

/// A device mounted as `disk` in a directory of its own; unmounted, then removed.
struct Mounted {
    mount: Mount,
    directory: tempfile::TempDir,
}

impl Mounted {
    /// `None`, with a line that says so, where this process cannot mount.
    fn new(device: Arc<dyn BlockDevice>) -> Option<Mounted> {
        if !can_mount() {
            eprintln!("left out: mounts need root and /dev/fuse");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let mount = Mount::new(device, "disk", directory.path(), Options::default()).unwrap();
        Some(Mounted { mount, directory })
    }

    fn open(&self) -> File {
        self.open_with(0)
    }

    fn open_with(&self, flags: i32) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags);
        options.open(self.mount.path()).unwrap()
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("disk")
    }
}

fn can_mount() -> bool {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.is_ok() && rustix::process::geteuid().is_root()
}

fn read(file: &File, offset: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let mut buffer = vec![0xee; length];
    file.read_exact_at(&mut buffer, offset)?;
    Ok(buffer)
}

/// The lines of this process's mount table about `directory`.
fn mounts_at(directory: &std::path::Path) -> usize {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = format!(" {} ", directory.display());
    table.lines().filter(|line| line.contains(&place)).count()
}
