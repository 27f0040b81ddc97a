//! An ext4 image of a real tree, and incompressible data.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::{process, workspace};

/// The source of the real tree.
const SOURCE: &str = "/usr";
/// Content of the tree in the full suite, in bytes.
const CONTENT_FULL_BYTES: u64 = 512 << 20;
/// Content of the tree in the quick suite, in bytes.
const CONTENT_QUICK_BYTES: u64 = 24 << 20;
const MKFS_LIMIT: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;

/// An ext4 image in a directory that is removed with it.
pub struct Image {
    pub path: PathBuf,
    pub size_mib: u64,
    /// Room for the copies that are read back.
    pub dir: TempDir,
}

/// Makes an ext4 image that holds a part of `/usr`.
///
/// # Errors
/// If the tree cannot be copied or mkfs.ext4 fails.
pub fn make(quick: bool) -> Result<Image, String> {
    let content_bytes = if quick {
        CONTENT_QUICK_BYTES
    } else {
        CONTENT_FULL_BYTES
    };
    let io_error = |error: io::Error| format!("image of {SOURCE}: {error}");
    fs::create_dir_all(workspace::target_dir()).map_err(io_error)?;
    let dir = tempfile::tempdir_in(workspace::target_dir()).map_err(io_error)?;
    let tree = dir.path().join("tree");
    let mut copy = TreeCopy {
        left_bytes: content_bytes,
        files: 0,
    };
    copy.directory(Path::new(SOURCE), &tree).map_err(io_error)?;
    let copied_bytes = content_bytes - copy.left_bytes;
    // Inodes, the journal, block rounding, and some free space as real disks have.
    let size_mib = (copied_bytes + copied_bytes / 4 + copy.files * 8192) / MIB + 64;
    let path = dir.path().join("image");
    let mut mkfs = workspace::command("mkfs.ext4");
    mkfs.args(["-q", "-F", "-d"])
        .arg(&tree)
        .arg(&path)
        .arg(format!("{size_mib}M"));
    process::succeed(&mut mkfs, MKFS_LIMIT)?;
    fs::remove_dir_all(&tree).map_err(io_error)?;
    Ok(Image {
        path,
        size_mib,
        dir,
    })
}

/// Bytes that no codec makes smaller.
///
/// # Errors
/// If the system's random numbers cannot be read or the file cannot be written.
pub fn write_random_file(path: &Path, size_bytes: u64) -> Result<(), String> {
    let copy = || -> io::Result<()> {
        let mut random = fs::File::open("/dev/urandom")?.take(size_bytes);
        let mut file = fs::File::create(path)?;
        io::copy(&mut random, &mut file)?;
        file.flush()
    };
    copy().map_err(|error| format!("{}: {error}", path.display()))
}

/// Copies a tree in the order of its names until the bytes are used up.
struct TreeCopy {
    left_bytes: u64,
    files: u64,
}

impl TreeCopy {
    fn directory(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::create_dir_all(to)?;
        let Ok(entries) = fs::read_dir(from) else {
            return Ok(()); // Not ours to read.
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            if self.left_bytes == 0 {
                break;
            }
            self.entry(&path, &to.join(path.file_name().unwrap_or_default()))?;
        }
        Ok(())
    }

    fn entry(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let kind = fs::symlink_metadata(from)?.file_type();
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(from)?, to)?;
        } else if kind.is_dir() {
            self.directory(from, to)?;
        } else if kind.is_file()
            && let Ok(file) = fs::File::open(from)
        {
            self.files += 1;
            let copied = io::copy(&mut file.take(self.left_bytes), &mut fs::File::create(to)?)?;
            self.left_bytes -= copied;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_copied_up_to_its_byte_limit() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("b")).unwrap();
        fs::write(from.join("a"), [1; 60]).unwrap();
        fs::write(from.join("b/c"), [2; 60]).unwrap();
        fs::write(from.join("d"), [3; 60]).unwrap();
        let mut copy = TreeCopy {
            left_bytes: 100,
            files: 0,
        };
        copy.directory(&from, &to).unwrap();
        assert_eq!((copy.left_bytes, copy.files), (0, 2));
        assert_eq!(fs::read(to.join("b/c")).unwrap(), [2; 40]);
        assert!(!to.join("d").exists());
    }
}
