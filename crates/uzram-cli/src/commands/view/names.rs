//! The disks of a view by the kernel's names, as they come and go.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, major, minor};
use rustix::mount::UnmountFlags;
use uzram_server::state::{NUMBERED, StateDir};

use super::devices::{is_zram, node};
use super::scratch::{Scratch, failed, link, link_all, put_over, tmpfs};
use crate::commands::{disk, plain};
use crate::failure::Result;

/// The disks.
pub(super) struct Names {
    state: StateDir,
    tree: PathBuf,
    real_sys: PathBuf,
    real_dev: PathBuf,
    /// Where links to the disks' directories are.
    block: PathBuf,
    /// A place to put an overlay together.
    overlays: PathBuf,
    covers_devices: bool,
    /// Directories that were covered, by disks' numbers.
    known: BTreeMap<u32, Option<PathBuf>>,
}

impl Names {
    /// With the disks that there are. With `covers_devices` their files lie over their devices'.
    pub(super) fn new(
        scratch: &Scratch,
        state: StateDir,
        tree: &Path,
        covers_devices: bool,
    ) -> Result<Names> {
        let block = scratch.directory("block")?;
        let real_sys = scratch.real("/sys");
        link_all(&real_sys.join("block"), &block, |name| !is_zram(name))?;
        put_over(&block, Path::new("/sys/block"))?;
        let mut names = Names {
            state,
            tree: tree.to_owned(),
            real_sys,
            real_dev: scratch.real("/dev"),
            block,
            overlays: scratch.directory("overlays")?,
            covers_devices,
            known: BTreeMap::new(),
        };
        names.update()?;
        Ok(names)
    }

    /// Adds and takes away what has come and gone.
    pub(super) fn update(&mut self) -> Result {
        let present = self.present();
        let gone = self.known.keys().filter(|number| !present.contains(number));
        for number in gone.copied().collect::<Vec<_>>() {
            self.remove(number);
        }
        for number in present {
            if !self.known.contains_key(&number) {
                self.add(number)?;
            }
        }
        Ok(())
    }

    /// The numbers of the tree's disks.
    fn present(&self) -> Vec<u32> {
        let entries = fs::read_dir(self.tree.join("block")).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix(NUMBERED)?.parse().ok();
        names.filter_map(number).collect()
    }

    fn add(&mut self, number: u32) -> Result {
        let name = format!("{NUMBERED}{number}");
        let files = self.tree.join("block").join(&name);
        let covered = match self.device(&name)? {
            Some(device) => {
                node(&own_node(number), FileType::BlockDevice, device, 0o660)?;
                match self.covers_devices {
                    true => Some(self.cover(number, device, &files)?),
                    false => None,
                }
            }
            None => None,
        };
        let shown = covered.as_ref().unwrap_or(&files);
        link(shown, &self.block.join(format!("zram{number}")))?;
        self.known.insert(number, covered);
        Ok(())
    }

    /// The number of a disk's block device, if it has one.
    fn device(&self, name: &str) -> Result<Option<u64>> {
        let attributes = disk(&self.state, name)?;
        let path = attributes.get("endpoint").map(plain).unwrap_or_default();
        let Some(path) = path.strip_prefix("/dev/") else {
            return Ok(None);
        };
        // One that was made later is not in the view's /dev.
        let found = fs::metadata(self.real_dev.join(path));
        let device = found
            .ok()
            .filter(|found| found.file_type().is_block_device());
        Ok(device.map(|found| found.rdev()))
    }

    /// Puts a disk's files over those of its device; those that only the kernel has are seen through.
    fn cover(&self, number: u32, device: u64, files: &Path) -> Result<PathBuf> {
        let numbers = format!("dev/block/{}:{}", major(device), minor(device));
        let real = self.real_sys.join(&numbers);
        let real = fs::canonicalize(&real).map_err(|e| failed(&real, e))?;
        let seen = Path::new("/sys").join(&numbers);
        let covered = fs::canonicalize(&seen).map_err(|e| failed(&seen, e))?;
        let overlay = self.overlays.join(number.to_string());
        fs::create_dir_all(&overlay).map_err(|e| failed(&overlay, e))?;
        tmpfs(&overlay)?;
        link_all(files, &overlay, |name| {
            !matches!(name, "size" | "ro" | "stat" | "inflight")
        })?;
        link_all(&real, &overlay, |_| true)?;
        put_over(&overlay, &covered)?;
        Ok(covered)
    }

    fn remove(&mut self, number: u32) {
        let _ = fs::remove_file(own_node(number));
        let _ = fs::remove_file(self.block.join(format!("zram{number}")));
        if let Some(Some(covered)) = self.known.remove(&number) {
            let _ = rustix::mount::unmount(&covered, UnmountFlags::DETACH);
            let overlay = self.overlays.join(number.to_string());
            let _ = rustix::mount::unmount(&overlay, UnmountFlags::DETACH);
        }
    }
}

fn own_node(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/zram{number}"))
}
