//! Persistent memory that is a file: on DAX, on a disk, in a tmpfs, or a DAX device.
//!
//! The file is mapped shared and accessed by the guarded routines of `guard`. So a truncated file,
//! a full disk and a bad line of memory are I/O errors. On other CPUs than x86-64 and aarch64 each access is a
//! system call, which reports the same as errors and costs two to three times as much. The file's
//! blocks are allocated when it is opened, so a full disk shows up then.

#![cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    allow(unsafe_code)
)]

use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use uzram::{Error, ErrorKind, Result};

use super::Medium;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::guard;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::mapping::Mapping;
use crate::sync::{AtomicU64, Ordering};

/// Sizes are multiples of this, in bytes.
pub(super) const GRANULE_BYTES: u64 = 4096;

/// Largest file that is mapped, in bytes: half of a process's address space.
const FILE_BYTES_MAX: u64 = 1 << 46;

/// The step that makes a store durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// The CPU: a store that is written back and fenced is in the power-fail domain (DAX).
    Cpu,
    /// The operating system: once `fdatasync` returned (a file on a disk).
    System,
    /// No step does: the memory outlives the process, but not the power (tmpfs).
    Never,
}

/// A file, block device or DAX device that serves as persistent memory.
///
/// While it is open no other [`PmemFile`] opens it, in any process, unless both only read.
#[derive(Debug)]
pub struct PmemFile {
    path: PathBuf,
    file: OwnedFd,
    access: Access,
    size_bytes: u64,
    is_read_only: bool,
    persistence: Persistence,
    /// Whether `st_blocks` tells that the file was truncated and has grown again.
    counts_blocks: bool,
    /// Not 0 once a write-back failed: everything written before it is in doubt for ever.
    in_doubt: AtomicU64,
}

/// The way to the bytes.
#[derive(Debug)]
enum Access {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    Mapped(Mapping),
    #[cfg_attr(any(target_arch = "x86_64", target_arch = "aarch64"), allow(dead_code))]
    Calls,
}

impl PmemFile {
    /// Opens the file at `path` for reading and writing and allocates its blocks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for another kind of file or a size that is not in whole pages
    /// of 4096 bytes, [`ErrorKind::Busy`] if it is open elsewhere, [`ErrorKind::NoSpace`] if the
    /// disk cannot hold all of it, [`ErrorKind::ReadOnly`], [`ErrorKind::Io`].
    pub fn open(path: &Path) -> Result<PmemFile> {
        let file = open(path, OFlags::RDWR, "open")?;
        PmemFile::with_file(path, file, false)
    }

    /// Opens the file at `path` for reading.
    ///
    /// # Errors
    /// As for [`PmemFile::open`].
    pub fn open_read_only(path: &Path) -> Result<PmemFile> {
        let file = open(path, OFlags::RDONLY, "open")?;
        PmemFile::with_file(path, file, true)
    }

    /// Makes a file of `size_bytes` zeroes at `path`, where nothing may exist.
    ///
    /// # Errors
    /// As for [`PmemFile::open`]; the file does not exist then.
    pub fn create(path: &Path, size_bytes: u64) -> Result<PmemFile> {
        check_size(path, size_bytes)?;
        let file = open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, "make")?;
        let made = rustix::fs::ftruncate(&file, size_bytes)
            .map_err(|errno| refused(path, "cannot be made that large", errno))
            .and_then(|()| PmemFile::with_file(path, file, false));
        if made.is_err() {
            let _ = rustix::fs::unlink(path);
        }
        made
    }

    /// The same, with the caller's word on what makes stores durable: memory with a battery needs
    /// nothing, and a measurement may want every step.
    #[must_use]
    pub fn with_persistence(mut self, persistence: Persistence) -> PmemFile {
        self.persistence = persistence;
        self
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes, a multiple of 4096.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The step that makes a store durable.
    #[must_use]
    pub fn persistence(&self) -> Persistence {
        self.persistence
    }

    fn with_file(path: &Path, file: OwnedFd, is_read_only: bool) -> Result<PmemFile> {
        let lock = match is_read_only {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        rustix::fs::flock(&file, lock).map_err(|errno| match errno {
            Errno::WOULDBLOCK => Error::new(
                ErrorKind::Busy,
                format!(
                    "{}: in use already, as another disk or by another process; end that first",
                    path.display()
                ),
            ),
            errno => refused(path, "cannot be locked", errno),
        })?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| refused(path, "no size", errno))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let size_bytes = match kind {
            FileType::RegularFile => stat.st_size as u64,
            FileType::BlockDevice => rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
                .map_err(|errno| refused(path, "no size", errno))?,
            FileType::CharacterDevice => dax_bytes(path, stat.st_rdev)?,
            _ => {
                return Err(invalid(
                    path,
                    "neither a file nor a block or DAX device; name one",
                ));
            }
        };
        check_size(path, size_bytes)?;
        let is_allocated = kind == FileType::RegularFile && !is_read_only;
        if is_allocated {
            allocate(path, &file, size_bytes)?;
        }
        let (access, persistence) = attach(path, &file, kind, size_bytes, !is_read_only)?;
        Ok(PmemFile {
            counts_blocks: is_allocated && counts_blocks(&file, size_bytes),
            path: path.to_owned(),
            file,
            access,
            size_bytes,
            is_read_only,
            persistence,
            in_doubt: AtomicU64::new(0),
        })
    }

    /// Fails if the file was truncated. A truncated file reads as an error where it ends, but its
    /// last page reads as zeroes past the end, and all of it does once the file has grown again.
    fn check_whole(&self) -> Result<()> {
        let stat =
            rustix::fs::fstat(&self.file).map_err(|errno| refused(&self.path, "no size", errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let is_cut = (stat.st_size as u64) < self.size_bytes;
        let has_holes = self.counts_blocks && allocated_bytes(&stat) < self.size_bytes;
        if is_cut || has_holes {
            return Err(self.failed(
                "was cut off while in use: what it held there is lost; restore it from a copy",
            ));
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        if self.in_doubt.load(Ordering::Relaxed) != 0 {
            return Err(self.failed(
                "a write-back failed before: what was written since is in doubt; reopen it and check",
            ));
        }
        rustix::fs::fdatasync(&self.file).map_err(|errno| {
            self.in_doubt.store(1, Ordering::Relaxed);
            self.failed("cannot be written back; free its disk, reopen it and check")
                .with_source(errno)
        })
    }

    /// Refuses a range that does not lie inside.
    fn check(&self, offset: u64, length: u64) -> Result<()> {
        uzram::device::check_range(offset, length, self.size_bytes)
    }

    fn check_writable(&self) -> Result<()> {
        match self.is_read_only {
            true => Err(Error::new(
                ErrorKind::ReadOnly,
                format!("{}: open for reading only", self.path.display()),
            )),
            false => Ok(()),
        }
    }

    fn failed(&self, what: &str) -> Error {
        Error::new(ErrorKind::Io, format!("{}: {what}", self.path.display()))
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn vanished(&self, offset: u64) -> Error {
        self.failed(&format!(
            "offset {offset}: cut off, its disk is full, or the medium is bad here; restore the file or \
             replace the medium"
        ))
    }

    fn read_by_call(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            match rustix::io::pread(&self.file, &mut buffer[done..], at) {
                Ok(0) => return Err(self.failed(&format!("offset {at}: cut off; restore it"))),
                Ok(length) => done += length,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(self
                        .failed(&format!("offset {at}: cannot be read"))
                        .with_source(errno));
                }
            }
        }
        Ok(())
    }

    fn write_by_call(&self, offset: u64, data: &[u8]) -> Result<()> {
        // A write past the end would make a file that was cut off grow again, with a hole.
        self.check_whole()?;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            match rustix::io::pwrite(&self.file, &data[done..], at) {
                Ok(length) if length > 0 => done += length,
                Err(Errno::INTR) => {}
                result => {
                    let error = self.failed(&format!("offset {at}: cannot be written"));
                    return Err(match result {
                        Ok(_) => error,
                        Err(errno) => error.with_source(errno),
                    });
                }
            }
        }
        Ok(())
    }
}

impl Medium for PmemFile {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn waits_for_disk(&self) -> bool {
        self.persistence == Persistence::System
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check(offset, buffer.len() as u64)?;
        match &self.access {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Access::Mapped(mapping) => {
                let from = mapping.pointer(offset as usize, buffer.len());
                // SAFETY: inside the mapping, which hands out no references.
                unsafe { guard::read(from, buffer) }.map_err(|_| self.vanished(offset))
            }
            Access::Calls => self.read_by_call(offset, buffer),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        self.check(offset, data.len() as u64)?;
        match &self.access {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Access::Mapped(mapping) => {
                let to = mapping.pointer(offset as usize, data.len());
                // SAFETY: as in `read`, and the mapping is writable.
                unsafe { guard::write(to, data, self.persistence == Persistence::Cpu) }
                    .map_err(|_| self.vanished(offset))
            }
            Access::Calls => self.write_by_call(offset, data),
        }
    }

    fn zero(&self, offset: u64, length: u64) -> Result<()> {
        self.check_writable()?;
        self.check(offset, length)?;
        match &self.access {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Access::Mapped(mapping) => {
                let to = mapping.pointer(offset as usize, length as usize);
                let write_back = self.persistence == Persistence::Cpu;
                // SAFETY: as in `write`.
                unsafe { guard::zero(to, length as usize, write_back) }
                    .map_err(|_| self.vanished(offset))
            }
            Access::Calls => {
                const ZEROES: [u8; 4096] = [0; 4096];
                let mut at = offset;
                while at < offset + length {
                    let part = (offset + length - at).min(ZEROES.len() as u64);
                    self.write_by_call(at, &ZEROES[..part as usize])?;
                    at += part;
                }
                Ok(())
            }
        }
    }

    fn load_u32(&self, offset: u64) -> Result<u32> {
        self.check(offset, 4)?;
        check_aligned(offset, 4);
        match &self.access {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Access::Mapped(mapping) => {
                let from = mapping.pointer(offset as usize, 4);
                // SAFETY: as in `read`; aligned, for mappings are and `offset` is.
                unsafe { guard::load_u32(from) }
                    .map(u32::from_le)
                    .map_err(|_| self.vanished(offset))
            }
            Access::Calls => {
                let mut word = [0; 4];
                self.read_by_call(offset, &mut word)?;
                Ok(u32::from_le_bytes(word))
            }
        }
    }

    fn store_u32(&self, offset: u64, word: u32) -> Result<()> {
        self.check_writable()?;
        self.check(offset, 4)?;
        check_aligned(offset, 4);
        match &self.access {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Access::Mapped(mapping) => {
                let to = mapping.pointer(offset as usize, 4);
                let write_back = self.persistence == Persistence::Cpu;
                // SAFETY: as in `write`; aligned.
                unsafe { guard::store_u32(to, word.to_le(), write_back) }
                    .map_err(|_| self.vanished(offset))
            }
            Access::Calls => self.write_by_call(offset, &word.to_le_bytes()),
        }
    }

    fn store_pair(&self, offset: u64, words: [u64; 2]) -> Result<()> {
        self.check_writable()?;
        self.check(offset, 16)?;
        check_aligned(offset, 16);
        match &self.access {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Access::Mapped(mapping) => {
                let to = mapping.pointer(offset as usize, 16);
                let write_back = self.persistence == Persistence::Cpu;
                // SAFETY: as in `write`; aligned.
                unsafe { guard::store_pair(to, words.map(u64::to_le), write_back) }
                    .map_err(|_| self.vanished(offset))
            }
            Access::Calls => words
                .iter()
                .zip([offset, offset + 8])
                .try_for_each(|(word, at)| self.write_by_call(at, &word.to_le_bytes())),
        }
    }

    fn publish(&self) {
        // Without it a store can be seen after what this thread stores next.
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        guard::fence();
    }

    fn fence(&self) -> Result<()> {
        self.publish();
        match self.persistence {
            Persistence::System => self.sync(),
            Persistence::Cpu | Persistence::Never => Ok(()),
        }
    }

    fn flush(&self) -> Result<()> {
        self.fence()?;
        self.check_whole()
    }
}

/// Checks the alignment. The engine's own requests are aligned; without it a word would not be
/// stored in one piece.
fn check_aligned(offset: u64, length: u64) {
    assert!(
        offset.is_multiple_of(length),
        "offset {offset}: not aligned to {length}"
    );
}

fn open(path: &Path, flags: OFlags, what: &str) -> Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    // A FIFO that is opened for reading would wait for a writer.
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, mode).map_err(|errno| match errno {
        Errno::ROFS | Errno::ACCESS | Errno::PERM => Error::new(
            ErrorKind::ReadOnly,
            format!("{}: cannot be opened for writing; change its mode or file system, or open it for reading", path.display()),
        )
        .with_source(errno),
        errno => refused(path, &format!("cannot {what} it"), errno),
    })
}

fn check_size(path: &Path, size_bytes: u64) -> Result<()> {
    if size_bytes == 0 || size_bytes > FILE_BYTES_MAX {
        let text = format!("size {size_bytes}: must be from 4096 to {FILE_BYTES_MAX} bytes");
        return Err(invalid(path, &text));
    }
    if !size_bytes.is_multiple_of(GRANULE_BYTES) {
        let fits = size_bytes.next_multiple_of(GRANULE_BYTES);
        let text = format!(
            "size {size_bytes}: not a multiple of 4096 bytes, was it cut off? `truncate -s {fits}` makes it one"
        );
        return Err(invalid(path, &text));
    }
    Ok(())
}

/// The size of a DAX device, which only sysfs tells.
fn dax_bytes(path: &Path, device: u64) -> Result<u64> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let size = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size"));
    let size = size.ok().and_then(|text| text.trim().parse().ok());
    size.ok_or_else(|| {
        invalid(
            path,
            "not a DAX device; name one, or a file or block device",
        )
    })
}

/// Allocates all blocks now: a store into a hole of a full disk would be a fault.
fn allocate(path: &Path, file: &OwnedFd, size_bytes: u64) -> Result<()> {
    // Asking for too much would fill the disk before it is refused.
    let had = rustix::fs::fstat(file).map_or(0, |stat| allocated_bytes(&stat));
    let room = rustix::fs::fstatvfs(file)
        .map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    if size_bytes.saturating_sub(had) > room {
        return Err(no_space(path, size_bytes, Errno::NOSPC));
    }
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, size_bytes) {
        // Where the file system cannot, a full disk is an error of the write that meets it.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
            Err(no_space(path, size_bytes, errno))
        }
        Err(errno) => Err(refused(path, "cannot allocate its blocks", errno)),
    }
}

fn no_space(path: &Path, size_bytes: u64, errno: Errno) -> Error {
    Error::new(
        ErrorKind::NoSpace,
        format!(
            "{}: its disk cannot hold {size_bytes} bytes; free some or choose another",
            path.display()
        ),
    )
    .with_source(errno)
}

/// Whether `st_blocks` counts allocated blocks truly on this file system, and does now.
fn counts_blocks(file: &OwnedFd, size_bytes: u64) -> bool {
    const EXT4: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    let honest =
        file_system(file).is_some_and(|magic| magic == EXT4 || magic == XFS || is_memory(magic));
    honest && rustix::fs::fstat(file).is_ok_and(|stat| allocated_bytes(&stat) >= size_bytes)
}

fn allocated_bytes(stat: &rustix::fs::Stat) -> u64 {
    stat.st_blocks as u64 * 512
}

fn file_system(file: &OwnedFd) -> Option<i64> {
    rustix::fs::fstatfs(file).ok().map(|stat| stat.f_type)
}

/// tmpfs, ramfs, hugetlbfs.
fn is_memory(magic: i64) -> bool {
    [0x0102_1994, 0x8584_58f6, 0x9584_58f6].contains(&magic)
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn attach(
    path: &Path,
    file: &OwnedFd,
    kind: FileType,
    size_bytes: u64,
    is_writable: bool,
) -> Result<(Access, Persistence)> {
    guard::install()
        .map_err(|error| invalid(path, "SIGBUS cannot be caught here").with_source(error))?;
    let map = |is_synchronous| {
        Mapping::of_file(file, size_bytes as usize, is_writable, is_synchronous).map(Access::Mapped)
    };
    if kind == FileType::CharacterDevice {
        let access = map(false).map_err(|errno| refused(path, "cannot be mapped", errno))?;
        return Ok((access, Persistence::Cpu));
    }
    if let Ok(access) = map(true) {
        return Ok((access, Persistence::Cpu));
    }
    let access = map(false).map_err(|errno| refused(path, "cannot be mapped", errno))?;
    Ok((access, without_dax(file)))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn attach(
    path: &Path,
    file: &OwnedFd,
    kind: FileType,
    _size_bytes: u64,
    _is_writable: bool,
) -> Result<(Access, Persistence)> {
    match kind {
        FileType::CharacterDevice => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: DAX devices are used on x86-64 and aarch64 only; make a file on it",
                path.display()
            ),
        )),
        _ => Ok((Access::Calls, without_dax(file))),
    }
}

fn without_dax(file: &OwnedFd) -> Persistence {
    match file_system(file) {
        Some(magic) if is_memory(magic) => Persistence::Never,
        _ => Persistence::System,
    }
}

fn invalid(path: &Path, what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("{}: {what}", path.display()),
    )
}

fn refused(path: &Path, what: &str, errno: Errno) -> Error {
    Error::new(ErrorKind::Io, format!("{}: {what}", path.display())).with_source(errno)
}
