//! Who uses what: the kernel's tables of mounts and swap devices, and the files that processes hold.
//! Everything here is asked anew each time: the kernel is the only record of what is set up.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Processes named as users of a directory, at most.
const HOLDERS_MAX: usize = 5;
/// Processes and files of each that are looked at, at most.
const PROCESSES_MAX: usize = 1 << 16;
const FILES_MAX: usize = 1 << 12;

/// A line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Where.
    pub directory: PathBuf,
    /// The file system's name.
    pub kind: String,
    /// What is mounted: a device, or what the file system calls itself.
    pub source: PathBuf,
}

/// What is mounted, in this process's view, in the order in which it was.
#[must_use]
pub fn mounts() -> Vec<MountPoint> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(mount_point).collect()
}

/// Whether `device` is swapped to.
#[must_use]
pub fn is_swap(device: &Path) -> bool {
    swaps().any(|found| found == device)
}

/// Whether `device` was swapped to when its server died and it vanished: what it held is lost, and the
/// kernel keeps it in its table of swap for ever, as nobody can open it to take it out.
#[must_use]
pub fn is_dead_swap(device: &Path) -> bool {
    let mut dead = device.as_os_str().to_owned();
    dead.push(" (deleted)");
    swaps().any(|found| found == dead)
}

fn swaps() -> impl Iterator<Item = PathBuf> {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let devices = table.lines().skip(1);
    let devices = devices.filter_map(|line| line.split_whitespace().next().map(unescaped));
    devices.collect::<Vec<_>>().into_iter()
}

/// Where a block device is mounted.
#[must_use]
pub fn mounts_of(device: &Path) -> Vec<PathBuf> {
    let all = mounts().into_iter();
    let of_it = all.filter(|mount| mount.source == device);
    of_it.map(|mount| mount.directory).collect()
}

/// What uses a block device, for people.
pub(crate) fn of_device(device: &Path) -> Vec<String> {
    let mounted = mounts_of(device).into_iter();
    let mounted = mounted.map(|directory| format!("mounted on {}", directory.display()));
    let swap = is_swap(device).then(|| "swapped to".to_owned());
    mounted.chain(swap).collect()
}

/// Processes that hold something within `directory`, as `name (pid)`; at most a handful.
#[must_use]
pub fn holders(directory: &Path) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let processes = processes.take(PROCESSES_MAX).flatten();
    let numbered = processes.filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    });
    numbered
        .filter(|entry| holds(&entry.path(), directory))
        .take(HOLDERS_MAX)
        .map(|entry| {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            format!("{} ({})", name.trim(), entry.file_name().display())
        })
        .collect()
}

fn holds(process: &Path, directory: &Path) -> bool {
    let is_within = |link: &Path| fs::read_link(link).is_ok_and(|to| to.starts_with(directory));
    if ["cwd", "root", "exe"]
        .iter()
        .any(|link| is_within(&process.join(link)))
    {
        return true;
    }
    let Ok(files) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    files
        .take(FILES_MAX)
        .flatten()
        .any(|file| is_within(&file.path()))
}

/// `36 35 98:0 /root /directory options optional… - kind source options`
fn mount_point(line: &str) -> Option<MountPoint> {
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    Some(MountPoint {
        directory: unescaped(left.split(' ').nth(4)?),
        kind: right.next()?.to_owned(),
        source: unescaped(right.next()?),
    })
}

/// The kernel writes spaces and such as a backslash and three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
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
            r"42 27 7:0 / /mnt/a\040b\134c rw,relatime shared:1 master:2 - ext4 /dev/loop0 rw";
        let mount = mount_point(line).unwrap();
        assert_eq!(mount.directory, Path::new(r"/mnt/a b\c"));
        assert_eq!(
            (mount.kind.as_str(), mount.source.as_path()),
            ("ext4", Path::new("/dev/loop0"))
        );
        for hostile in ["", " - ", "a b c d e - ", "1 2 3 4", r"1 2 3 4 \9 - x \0"] {
            let _ = mount_point(hostile);
        }
        assert_eq!(unescaped(r"a\04"), Path::new(r"a\04"));
        assert_eq!(unescaped(r"a\777"), Path::new(r"a\777"));
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
