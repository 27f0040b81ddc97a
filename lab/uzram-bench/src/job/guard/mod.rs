//! Keeps jobs off what somebody uses or needs.
//!
//! A benchmark overwrites what it is pointed at. So a block device passes only if nobody uses it: not
//! mounted, no swap, nothing stacked on it, opened by nobody else exclusively, each also true of its
//! partitions. And only if it holds no data: what is looked at reads as zeroes, the first and last
//! 4 MiB and 4 KiB of each of up to 4096 parts between. A file passes if it is new or empty.
//!
//! `--destroy` permits the loss of a device's *data*. A device in use is refused all the same, because writing
//! under a mounted file system destroys more than its data.
//!
//! From then on the device is held open exclusively, so the kernel refuses mounts and swapon until the
//! claim is dropped. A device whose data was not there before is left empty; so a second run passes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::disk::{Disk, discard};
use crate::error::{Error, Result};

/// At both ends of a device all is looked at for so long, in bytes: labels and tables are there.
const ENDS_BYTES: u64 = 4 << 20;
/// Places between the ends that are looked at.
const SAMPLES: u64 = 4096;
const LOOK_BYTES: usize = 4096;
/// Partitions of a device that are looked at.
const PARTITIONS_MAX: usize = 1024;

/// Where the kernel says who uses what.
#[derive(Clone, Debug)]
pub(crate) struct System {
    sys: PathBuf,
    proc: PathBuf,
}

impl Default for System {
    fn default() -> System {
        System {
            sys: "/sys".into(),
            proc: "/proc".into(),
        }
    }
}

/// A path that is ours until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    disk: Disk,
    size_bytes: u64,
    /// Held for the exclusive opening; `None` only while the claim is being dropped.
    held: Option<File>,
    /// Whether there was nothing in it, so that nothing should be left.
    was_empty: bool,
    is_new: bool,
}

/// Claims `path`; `destroy` are the paths whose data may go.
///
/// # Errors
/// [`Error::Usage`] for what is refused: the path, the reason, the remedy.
pub(crate) fn claim(path: &Path, destroy: &[PathBuf], system: &System) -> Result<Claim> {
    let shown = path.display();
    let may_go = destroy.iter().any(|named| is_same(named, path));
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => new_file(path),
        Err(error) => Err(Error::Usage(format!("on {shown}: {error}"))),
        Ok(metadata) if metadata.file_type().is_block_device() => {
            block_device(path, metadata.rdev(), may_go, system)
        }
        Ok(metadata) if metadata.is_file() => file(path, metadata.len(), may_go),
        Ok(_) => {
            let kinds = "neither a block device nor a file";
            Err(Error::Usage(format!("on {shown}: {kinds}")))
        }
    }
}

impl Claim {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn disk(&self) -> Disk {
        self.disk
    }

    /// Makes a device read as zeroes.
    pub(crate) fn discard(&self) -> rustix::io::Result<()> {
        let held = self.held.as_ref();
        held.map_or(Ok(()), |device| discard(device, self.size_bytes))
    }

    /// Of a device; a file is as large as somebody makes it.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        match self.disk {
            Disk::Block if self.was_empty => {
                // Where a device cannot discard, its data stays, and the next run asks for --destroy.
                let _ = self.discard();
            }
            Disk::Block => {}
            Disk::File if self.is_new => {
                let _ = fs::remove_file(&self.path);
            }
            Disk::File => {
                let _ = self.held.take().map(|file| file.set_len(0));
            }
        }
    }
}

fn is_same(named: &Path, path: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real(named) == real(path)
}

fn new_file(path: &Path) -> Result<Claim> {
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    let failed = |error| Error::Usage(format!("on {}: {error}", path.display()));
    Ok(Claim {
        path: path.to_owned(),
        disk: Disk::File,
        size_bytes: 0,
        held: Some(made.map_err(failed)?),
        was_empty: true,
        is_new: true,
    })
}

fn file(path: &Path, length_bytes: u64, may_go: bool) -> Result<Claim> {
    let shown = path.display();
    if length_bytes > 0 && !may_go {
        return Err(refused(path, &format!("a file of {length_bytes} bytes")));
    }
    let opened = OpenOptions::new().write(true).open(path);
    let held = opened.map_err(|error| Error::Usage(format!("on {shown}: {error}")))?;
    Ok(Claim {
        path: path.to_owned(),
        disk: Disk::File,
        size_bytes: 0,
        held: Some(held),
        was_empty: length_bytes == 0,
        is_new: false,
    })
}

fn block_device(path: &Path, device: u64, may_go: bool, system: &System) -> Result<Claim> {
    let shown = path.display();
    let number = (rustix::fs::major(device), rustix::fs::minor(device));
    if let Some(user) = system.user_of(number) {
        let remedy = "take it out of use first, or name another device";
        return Err(Error::Usage(format!(
            "on {shown}: in use: {user}; {remedy}"
        )));
    }
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::EXCL.bits() as i32)
        .open(path);
    let held = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            let why = "in use: another program has it open exclusively";
            Error::Usage(format!("on {shown}: {why}; name another device"))
        }
        _ => Error::Usage(format!("on {shown}: {error}")),
    })?;
    let failed = |error| Error::Usage(format!("on {shown}: {error}"));
    let size_bytes = io::Seek::seek(&mut &held, io::SeekFrom::End(0)).map_err(failed)?;
    let data = first_data(size_bytes, |offset, buffer| {
        let read = held.read_exact_at(buffer, offset);
        read.map_err(|error| Error::io(&shown, error))
    })?;
    if let (Some(what), false) = (&data, may_go) {
        return Err(refused(path, what));
    }
    Ok(Claim {
        path: path.to_owned(),
        disk: Disk::Block,
        size_bytes,
        held: Some(held),
        was_empty: data.is_none(),
        is_new: false,
    })
}

fn refused(path: &Path, what: &str) -> Error {
    let shown = path.display();
    Error::Usage(format!(
        "on {shown}: holds data ({what}); if it may be lost, add --destroy {shown}"
    ))
}

/// A description of the data on a device of `size_bytes`, as far as it is looked at; `None` if all of that is zero.
///
/// # Errors
/// Those of `read`.
pub(crate) fn first_data(
    size_bytes: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<Option<String>> {
    let mut buffer = vec![0; LOOK_BYTES];
    for offset in looked_at(size_bytes) {
        let length = (size_bytes - offset).min(LOOK_BYTES as u64) as usize;
        let part = &mut buffer[..length];
        read(offset, part)?;
        if let Some(at) = part.iter().position(|&byte| byte != 0) {
            let what = match signature(offset, part) {
                Some(name) => name.to_owned(),
                None => format!("not zero at byte {}", offset + at as u64),
            };
            return Ok(Some(what));
        }
    }
    Ok(None)
}

/// The offsets of the pieces that are looked at, in rising order.
fn looked_at(size_bytes: u64) -> impl Iterator<Item = u64> {
    let look = LOOK_BYTES as u64;
    let last = size_bytes.saturating_sub(ENDS_BYTES).max(ENDS_BYTES) / look * look;
    let (first, between) = (ENDS_BYTES.min(size_bytes), last.min(size_bytes));
    let gap = ((between - first.min(between)) / SAMPLES).max(look) / look * look;
    let head = (0..first).step_by(LOOK_BYTES);
    let middle = (first..between).step_by(gap as usize);
    let tail = (between..size_bytes).step_by(LOOK_BYTES);
    head.chain(middle).chain(tail)
}

/// The name of a well-known format by its first bytes, which tells more than an offset. It does not decide
/// whether there is data.
fn signature(offset: u64, piece: &[u8]) -> Option<&'static str> {
    let has = |at: usize, magic: &[u8]| piece.get(at..at + magic.len()) == Some(magic);
    if offset != 0 {
        return None;
    }
    let known: [(&'static str, usize, &[u8]); 10] = [
        ("a LUKS volume", 0, b"LUKS\xba\xbe"),
        ("an XFS file system", 0, b"XFSB"),
        ("swap space", 4086, b"SWAPSPACE2"),
        ("an ext2, ext3 or ext4 file system", 0x438, b"\x53\xef"),
        ("an LVM volume", 512, b"LABELONE"),
        ("a GPT partition table", 512, b"EFI PART"),
        ("an F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
        ("an NTFS file system", 3, b"NTFS    "),
        ("a squashfs file system", 0, b"hsqs"),
        ("a partition table or boot sector", 510, b"\x55\xaa"),
    ];
    let mut found = known.into_iter().filter(|(_, at, magic)| has(*at, magic));
    found.next().map(|(name, ..)| name)
}

impl System {
    /// The user of a device or of one of its partitions, in words.
    pub(crate) fn user_of(&self, device: (u32, u32)) -> Option<String> {
        let folder = self.folder(device);
        let parts = self.partitions(&folder);
        let used = std::iter::once((device, folder)).chain(parts);
        used.into_iter().find_map(|(number, folder)| {
            let name = folder
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            let name = name.unwrap_or_default();
            self.mounted(number)
                .map(|at| format!("{name} is mounted at {at}"))
                .or_else(|| {
                    self.is_swap(number, &name)
                        .then(|| format!("{name} is swap"))
                })
                .or_else(|| holder(&folder).map(|by| format!("{by} stands on {name}")))
        })
    }

    /// The kernel's own folder of a device.
    fn folder(&self, (major, minor): (u32, u32)) -> PathBuf {
        let link = self.sys.join(format!("dev/block/{major}:{minor}"));
        fs::canonicalize(&link).unwrap_or(link)
    }

    fn partitions(&self, folder: &Path) -> Vec<((u32, u32), PathBuf)> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let parts = entries.map(|entry| entry.path());
        let parts = parts.filter(|path| path.join("partition").exists());
        let numbered = parts.filter_map(|path| Some((number_in(&path)?, path)));
        numbered.take(PARTITIONS_MAX).collect()
    }

    /// Where a device is mounted in any of our mount namespace's places.
    fn mounted(&self, (major, minor): (u32, u32)) -> Option<String> {
        let table = fs::read_to_string(self.proc.join("self/mountinfo")).unwrap_or_default();
        let number = format!("{major}:{minor}");
        let mut fields = table
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let line = fields.find(|fields| fields.get(2) == Some(&number.as_str()))?;
        line.get(4).map(|&place| place.to_owned())
    }

    fn is_swap(&self, number: (u32, u32), name: &str) -> bool {
        let table = fs::read_to_string(self.proc.join("swaps")).unwrap_or_default();
        let files = table
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next());
        files.into_iter().any(|file| {
            let by_number = fs::metadata(file).is_ok_and(|found| {
                let device = found.rdev();
                let is_block = found.file_type().is_block_device();
                is_block && (rustix::fs::major(device), rustix::fs::minor(device)) == number
            });
            by_number || Path::new(file).file_name().is_some_and(|file| file == name)
        })
    }
}

/// A device that stands on the one of `folder`.
fn holder(folder: &Path) -> Option<String> {
    let mut entries = fs::read_dir(folder.join("holders")).ok()?;
    let entry = entries.next()?.ok()?;
    Some(entry.file_name().to_string_lossy().into_owned())
}

/// Major and minor number out of a folder's `dev`.
fn number_in(folder: &Path) -> Option<(u32, u32)> {
    let text = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests;
