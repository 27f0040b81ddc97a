//! Uses of devices and files: the kernel's tables of mounts and swap devices, and the files that
//! processes hold. Everything is read anew each time: the kernel is the only record.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, makedev};
use rustix::io::Errno;
use uzram::ErrorKind;

use crate::error::{Error, Result};

/// Processes named as users of a directory, at most.
const HOLDERS_MAX: usize = 5;
/// Processes and files of each that are looked at, at most.
const PROCESSES_MAX: usize = 1 << 16;
const FILES_MAX: usize = 1 << 12;

/// A line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// The mount point.
    pub directory: PathBuf,
    /// The file system's name.
    pub kind: String,
    /// The source: a device, or the file system's own name.
    pub source: PathBuf,
}

/// The mounts in this process's view, in the order in which they were made.
#[must_use]
pub fn mounts() -> Vec<MountPoint> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let lines = table.split(|byte| *byte == b'\n');
    lines.filter_map(mount_point).collect()
}

/// Whether `device` is swapped to.
#[must_use]
pub fn is_swap(device: &Path) -> bool {
    swaps().any(|found| found == device)
}

/// Whether `device` was swapped to when its server died and it vanished. Its content is lost, and
/// the kernel keeps it in its table of swap for ever, because it cannot be opened to take it out.
#[must_use]
pub fn is_dead_swap(device: &Path) -> bool {
    let mut dead = device.as_os_str().to_owned();
    dead.push(" (deleted)");
    swaps().any(|found| found == dead)
}

/// The priority of `device` among swap devices, if it is swapped to.
#[must_use]
pub fn swap_priority(device: &Path) -> Option<i32> {
    let table = fs::read_to_string("/proc/swaps").ok()?;
    let mut lines = table.lines().skip(1).map(str::split_whitespace);
    let mut fields = lines.find_map(|mut fields| {
        let is_it = fields
            .next()
            .map(|name| unescaped(name.as_bytes()))
            .as_deref()
            == Some(device);
        is_it.then_some(fields)
    })?;
    fields.next_back()?.parse().ok()
}

fn swaps() -> impl Iterator<Item = PathBuf> {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let devices = table.lines().skip(1);
    let devices = devices.filter_map(|line| line.split_whitespace().next());
    let devices = devices.map(|device| unescaped(device.as_bytes()));
    devices.collect::<Vec<_>>().into_iter()
}

/// Where a block device is mounted.
#[must_use]
pub fn mounts_of(device: &Path) -> Vec<PathBuf> {
    let all = mounts().into_iter();
    let of_it = all.filter(|mount| mount.source == device);
    of_it.map(|mount| mount.directory).collect()
}

/// The use of a block device, for people.
pub(crate) fn of_device(device: &Path) -> Vec<String> {
    let mounted = mounts_of(device).into_iter();
    let mounted = mounted.map(|directory| format!("mounted on {}", directory.display()));
    let swap = is_swap(device).then(|| "swapped to".to_owned());
    mounted.chain(swap).collect()
}

/// Checks that a block device that is neither mounted nor swapped to here is free. A file system
/// that was unmounted lazily, or is mounted in another container, may hold it.
///
/// # Errors
/// [`ErrorKind::Busy`] with the user.
pub fn check_unused(device: &Path) -> Result<()> {
    let flags = OFlags::EXCL | OFlags::NONBLOCK;
    let opened = rustix::fs::open(device, flags, Mode::empty());
    if opened.err() != Some(Errno::BUSY) {
        // One that cannot be opened at all is of a server that is gone.
        return Ok(());
    }
    let number = rustix::fs::stat(device).map(|found| found.st_rdev);
    let holders = number.map(|number| processes(|link| holds_of(link, number)));
    let who = match holders.unwrap_or_default() {
        holders if holders.is_empty() => {
            "a file system of another mount namespace, or the kernel".to_owned()
        }
        holders => holders.join(", "),
    };
    let text = format!("{}: in use by {who}; end that first", device.display());
    Err(Error::new(ErrorKind::Busy, text))
}

/// Refuses while another process has a block device open, or a file on it. User space sees no count of
/// openers: one that opens it a moment later is not seen.
///
/// # Errors
/// [`ErrorKind::Busy`] with the processes.
pub(crate) fn check_not_open(device: &Path) -> Result<()> {
    let Ok(number) = rustix::fs::stat(device).map(|found| found.st_rdev) else {
        return Ok(());
    };
    let holders = processes(|link| holds_of(link, number));
    match holders.is_empty() {
        true => Ok(()),
        false => {
            let text = format!(
                "{}: open in {}; end that first",
                device.display(),
                holders.join(", ")
            );
            Err(Error::new(ErrorKind::Busy, text))
        }
    }
}

/// Whether the file behind `link` is the block device of this number, or lies in a file system on
/// it. Only the kernel is asked, because a file's server may hang.
fn holds_of(link: &Path, number: u64) -> bool {
    let wanted = StatxFlags::TYPE;
    let found = rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC, wanted);
    found.is_ok_and(|found| {
        makedev(found.stx_dev_major, found.stx_dev_minor) == number
            || makedev(found.stx_rdev_major, found.stx_rdev_minor) == number
    })
}

/// Processes that hold a file within `directory`, as `name (pid)`; at most a handful.
#[must_use]
pub fn holders(directory: &Path) -> Vec<String> {
    processes(|link| fs::read_link(link).is_ok_and(|to| to.starts_with(directory)))
}

/// Processes of which a directory or an open file `is_it`, as `name (pid)`; at most a handful.
fn processes(is_it: impl Fn(&Path) -> bool) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let processes = processes.take(PROCESSES_MAX).flatten();
    let numbered = processes.filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    });
    numbered
        .filter(|entry| holds(&entry.path(), &is_it))
        .take(HOLDERS_MAX)
        .map(|entry| {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            format!("{} ({})", name.trim(), entry.file_name().display())
        })
        .collect()
}

fn holds(process: &Path, is_it: impl Fn(&Path) -> bool) -> bool {
    if ["cwd", "root", "exe"]
        .iter()
        .any(|link| is_it(&process.join(link)))
    {
        return true;
    }
    let Ok(files) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    files
        .take(FILES_MAX)
        .flatten()
        .any(|file| is_it(&file.path()))
}

/// `36 35 98:0 /root /directory options optional… - kind source options`, in which paths need not be UTF-8.
fn mount_point(line: &[u8]) -> Option<MountPoint> {
    let mut words = line.split(|byte| *byte == b' ');
    let directory = unescaped(words.nth(4)?);
    let mut rest = words.skip_while(|word| *word != b"-").skip(1);
    Some(MountPoint {
        directory,
        kind: String::from_utf8_lossy(rest.next()?).into_owned(),
        source: unescaped(rest.next()?),
    })
}

/// The kernel writes spaces and such as a backslash and three octal digits.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let octal = (first == b'\\').then(|| after.first_chunk::<3>()).flatten();
        let value = octal.and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        match value {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_mount_table_are_read() {
        let line =
            br"42 27 7:0 / /mnt/a\040b\134c rw,relatime shared:1 master:2 - ext4 /dev/loop0 rw";
        let mount = mount_point(line).unwrap();
        assert_eq!(mount.directory, Path::new(r"/mnt/a b\c"));
        assert_eq!(
            (mount.kind.as_str(), mount.source.as_path()),
            ("ext4", Path::new("/dev/loop0"))
        );
        for hostile in ["", " - ", "a b c d e - ", "1 2 3 4", r"1 2 3 4 \9 - x \0"] {
            let _ = mount_point(hostile.as_bytes());
        }
        assert_eq!(unescaped(br"a\04"), Path::new(r"a\04"));
        assert_eq!(unescaped(br"a\777"), Path::new(r"a\777"));
        let odd = mount_point(b"1 2 3 4 /\xff rw - tmpfs x rw").unwrap();
        assert_eq!(odd.directory.as_os_str().as_encoded_bytes(), b"/\xff");
    }

    #[test]
    fn this_process_has_mounts_and_holds_its_directory() {
        assert!(
            mounts()
                .iter()
                .any(|mount| mount.directory == Path::new("/"))
        );
        let held = tempfile::tempdir().unwrap();
        let file = fs::File::create(held.path().join("file")).unwrap();
        let pid = format!("({})", std::process::id());
        assert!(
            holders(held.path())
                .iter()
                .any(|holder| holder.ends_with(&pid))
        );
        drop(file);
        assert_eq!(holders(held.path()), Vec::<String>::new());
    }
}
