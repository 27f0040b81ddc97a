//! What the kernel may ask: a directory with one file, whose bytes are the device's.

use std::ffi::{OsStr, OsString};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use uzram::{Bio, BlockDevice, Zeroing};

use super::{BACKGROUND_MAX, REQUEST_BYTES_MAX};

/// Nothing about the file ever changes, so the kernel may remember it for as long as it likes.
const VALID: Duration = Duration::from_secs(24 * 3600);
const DIRECTORY: INodeNo = INodeNo::ROOT;
const FILE: INodeNo = INodeNo(2);
const ONLY_GENERATION: Generation = Generation(0);

/// Bits of `fallocate`'s mode, from `linux/falloc.h`.
const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;

/// Where workers gather what they read: one for each worker, so that there is always one free.
pub(super) struct ReadBuffers(Box<[Mutex<Vec<u8>>]>);

impl ReadBuffers {
    pub fn new(count: usize) -> ReadBuffers {
        // Not zeroes, which would be memory in name only: reading must not have to wait for any.
        let buffer = |_| Mutex::new(vec![1; REQUEST_BYTES_MAX as usize]);
        ReadBuffers((0..count).map(buffer).collect())
    }

    fn take(&self) -> Option<MutexGuard<'_, Vec<u8>>> {
        self.0.iter().find_map(|buffer| buffer.try_lock().ok())
    }
}

/// The device as a file.
pub(super) struct Disk {
    pub device: Arc<dyn BlockDevice>,
    pub name: OsString,
    pub size_bytes: u64,
    pub block_bytes: u32,
    pub uid: u32,
    pub gid: u32,
    pub made: SystemTime,
    pub gate: Arc<Gate>,
    pub buffers: ReadBuffers,
}

/// Counts opens, and can be shut while there are none.
#[derive(Debug, Default)]
pub(super) struct Gate(AtomicU64);

impl Gate {
    const SHUT: u64 = u64::MAX;

    pub fn opens(&self) -> u64 {
        match self.0.load(Ordering::Acquire) {
            Gate::SHUT => 0,
            opens => opens,
        }
    }

    /// Refuses further opens; false if there are some now.
    pub fn shut(&self) -> bool {
        let shut = self
            .0
            .compare_exchange(0, Gate::SHUT, Ordering::AcqRel, Ordering::Acquire);
        matches!(shut, Ok(_) | Err(Gate::SHUT))
    }

    pub fn reopen(&self) {
        // Fails where it is not shut, and there is nothing to do then.
        let _ = self
            .0
            .compare_exchange(Gate::SHUT, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    fn enter(&self) -> bool {
        let one_more = |opens: u64| (opens < Gate::SHUT - 1).then(|| opens + 1);
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .is_ok()
    }

    fn leave(&self) {
        let one_less = |opens: u64| (1..Gate::SHUT).contains(&opens).then(|| opens - 1);
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
    }
}

impl Disk {
    fn directory(&self) -> FileAttr {
        FileAttr {
            ino: DIRECTORY,
            size: 0,
            blocks: 0,
            kind: FileType::Directory,
            perm: 0o700,
            nlink: 2,
            ..self.file()
        }
    }

    fn file(&self) -> FileAttr {
        FileAttr {
            ino: FILE,
            size: self.size_bytes,
            blocks: self.size_bytes.div_ceil(512),
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            crtime: self.made,
            kind: FileType::RegularFile,
            perm: 0o600,
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: self.block_bytes,
            flags: 0,
        }
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        match inode {
            DIRECTORY => Some(self.directory()),
            FILE => Some(self.file()),
            _ => None,
        }
    }

    /// How much of `length` bytes from `offset` on lies within the file.
    fn within(&self, offset: u64, length: u64) -> u64 {
        length.min(self.size_bytes.saturating_sub(offset))
    }

    /// Hands a request to the device. One that panics fails, and takes no worker with it.
    fn submit(&self, bio: Bio<'_>) -> Result<(), Errno> {
        match catch_unwind(AssertUnwindSafe(|| self.device.submit(bio))) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Errno::from_i32(error.errno())),
            Err(_panic) => Err(Errno::EIO),
        }
    }

    fn allocate(&self, offset: u64, length: u64, mode: i32) -> Result<(), Errno> {
        let end = offset.checked_add(length).ok_or(Errno::EINVAL)?;
        let is_inside = end <= self.size_bytes;
        let length = self.within(offset, length);
        let zero = |zeroing| {
            let bio = Bio::Zero {
                offset,
                length,
                zeroing,
            };
            match length {
                0 => Ok(()),
                _ => self.submit(bio),
            }
        };
        match mode & !KEEP_SIZE {
            // A hole reads as zeroes to its last byte, so it is more than a trim, which would leave
            // pages alone that it covers in part.
            PUNCH_HOLE if mode & KEEP_SIZE != 0 => zero(Zeroing::MayPunch),
            ZERO_RANGE if is_inside || mode & KEEP_SIZE != 0 => zero(Zeroing::NoHole),
            // Room for compressed pages cannot be promised, as their size is not known.
            0 if is_inside || mode & KEEP_SIZE != 0 => Ok(()),
            ZERO_RANGE | 0 => Err(Errno::ENOSPC),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

impl Filesystem for Disk {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Older kernels lack some: then they are slower, and right all the same.
        for wish in [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            let _ = config.add_capabilities(wish);
        }
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_readahead(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_congestion_threshold(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == DIRECTORY && name == self.name {
            reply.entry(&VALID, &self.file(), ONLY_GENERATION);
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&VALID, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Size 0 is what `O_TRUNC` asks for, and leaves a block device as it is; times are not kept.
    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size_bytes: Option<u64>,
        _accessed: Option<TimeOrNow>,
        _modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed_as_told: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(attributes) = self.attributes(inode) else {
            return reply.error(Errno::ENOENT);
        };
        if size_bytes.is_some_and(|size| size != 0 && size != self.size_bytes) {
            return reply.error(Errno::EINVAL);
        }
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        reply.attr(&VALID, &attributes);
    }

    fn open(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if inode != FILE {
            return reply.error(Errno::ENOENT);
        }
        if !self.gate.enter() {
            return reply.error(Errno::EBUSY);
        }
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn release(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.gate.leave();
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size_bytes: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // A short reply would be taken for the end of the file.
        if size_bytes > REQUEST_BYTES_MAX {
            return reply.error(Errno::EINVAL);
        }
        let length = self.within(offset, size_bytes.into()) as usize;
        if length == 0 {
            // At or past the end, where a device has nothing to be asked for.
            return reply.data(&[]);
        }
        let Some(mut buffer) = self.buffers.take() else {
            return reply.error(Errno::EIO); // No more workers than buffers: cannot be.
        };
        let buffer = &mut buffer[..length];
        match self.submit(Bio::Read { offset, buffer }) {
            Ok(()) => reply.data(buffer),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _kind: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let length = self.within(offset, data.len() as u64) as usize;
        if length == 0 && !data.is_empty() {
            return reply.error(Errno::ENOSPC);
        }
        let data = &data[..length];
        match self.submit(Bio::Write { offset, data }) {
            Ok(()) => reply.written(length as u32),
            Err(errno) => reply.error(errno),
        }
    }

    /// Closing a file makes nothing durable; the kernel asks once and then no more.
    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        match self.submit(Bio::Flush) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        match self.allocate(offset, length, mode) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let names: [(INodeNo, FileType, &OsStr); 3] = [
            (DIRECTORY, FileType::Directory, OsStr::new(".")),
            (DIRECTORY, FileType::Directory, OsStr::new("..")),
            (FILE, FileType::RegularFile, &self.name),
        ];
        let rest = names.into_iter().enumerate();
        for (index, (inode, kind, name)) in rest.skip(usize::try_from(offset).unwrap_or(usize::MAX))
        {
            if reply.add(inode, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let blocks = self.size_bytes.div_ceil(self.block_bytes.into());
        let name_bytes_max = 255;
        reply.statfs(
            blocks,
            0,
            0,
            2,
            0,
            self.block_bytes,
            name_bytes_max,
            self.block_bytes,
        );
    }

    /// The kernel checks the mode by itself.
    fn access(&self, _request: &Request, _inode: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_shut_only_while_nobody_is_in() {
        let gate = Gate::default();
        assert!(gate.enter());
        assert!(!gate.shut());
        assert_eq!(gate.opens(), 1);
        gate.leave();
        gate.leave();
        assert_eq!(gate.opens(), 0);
        assert!(gate.shut());
        assert!(gate.shut());
        assert!(!gate.enter());
        assert_eq!(gate.opens(), 0);
        gate.reopen();
        assert!(gate.enter());
    }
}
