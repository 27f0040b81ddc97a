//! A `/dev` of the view's own: the same nodes and directories, without the kernel's zram. The real one is the
//! same for all namespaces, so nothing can be added to it unseen.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::mount_bind_recursive;

use super::scratch::{Scratch, failed, link, put_over, tmpfs};
use crate::failure::Result;

/// Puts it in place.
pub(super) fn put(scratch: &Scratch) -> Result {
    let own = scratch.directory("dev")?;
    tmpfs(&own)?;
    let real = scratch.real("/dev");
    for entry in fs::read_dir(&real).map_err(|e| failed(&real, e))?.flatten() {
        let name = entry.file_name();
        if !is_zram(&name.to_string_lossy()) {
            copy(&entry.path(), &own.join(&name))?;
        }
    }
    // With what is mounted in it.
    mount_bind_recursive(&own, "/dev").map_err(|e| failed(Path::new("/dev"), e))
}

/// Whether this is a disk of the kernel's, which a disk of the view may be called as.
pub(super) fn is_zram(name: &str) -> bool {
    let number = name.strip_prefix("zram");
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

fn copy(from: &Path, to: &Path) -> Result {
    let Ok(found) = fs::symlink_metadata(from) else {
        return Ok(());
    };
    let kind = found.file_type();
    if kind.is_symlink() {
        let target = fs::read_link(from).map_err(|e| failed(from, e))?;
        return link(&target, to);
    }
    if kind.is_dir() {
        fs::create_dir(to).map_err(|e| failed(to, e))?;
        return mount_bind_recursive(from, to).map_err(|e| failed(to, e));
    }
    if kind.is_block_device() || kind.is_char_device() {
        return node(
            to,
            FileType::from_raw_mode(found.mode()),
            found.rdev(),
            found.mode(),
        );
    }
    // A socket, as that of a system's log.
    fs::write(to, "").map_err(|e| failed(to, e))?;
    put_over(from, to)
}

/// A node that stands for device `number`.
pub(super) fn node(path: &Path, kind: FileType, number: u64, mode: u32) -> Result {
    let mode = Mode::from_raw_mode(mode & 0o777);
    mknodat(CWD, path, kind, mode, number).map_err(|e| failed(path, e))
}
