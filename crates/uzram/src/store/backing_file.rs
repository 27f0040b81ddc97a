//! A file or block device for objects whose memory is wanted for others: one object in each block of a unit.
//!
//! All that is known of the file is in memory: which blocks are taken, and a checksum of what this store wrote to each last. So
//! nothing that an earlier process or another program left there is ever read as data, and a write that was lost, or went
//! elsewhere, is found as a flipped bit is.
//!
//! Block 0 has a mark. By it a later store knows that the file is one of ours, and may be overwritten.
//!
//! A write is complete when the system has said that the bytes are on the disk. Before, an error of the disk could come
//! after the memory was given away.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, FallocateFlags, FileType, FlockOperation, OFlags, SeekFrom};
use rustix::io::Errno;

use super::blocks::Blocks;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::page::{PageIndex, Unit};
use crate::region::{self, Region};
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, ProcessMutex, lock_process};

/// The first bytes of a file of ours; the number is that of the format.
const MARK: &[u8; 16] = b"uzram backing 1\n";
/// The beginning of the mark of every format.
const MARK_PREFIX: &[u8] = b"uzram backing ";

/// Blocks beyond one for each page: those of a pass whose pages have older ones still, and of a hole that is being made.
const SPARE_BLOCKS: u64 = 256;

/// The start of a device, in bytes, where file systems, swap and volumes have their signatures.
const SIGNATURES_BYTES: usize = 128 << 10;

/// A block that has an object. It is given back once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    number: u64,
    size_bytes: u32,
}

impl Block {
    /// Its number, and the size of its object in bytes.
    pub(crate) fn into_parts(self) -> (u64, u32) {
        (self.number, self.size_bytes)
    }

    /// A block of its parts. Whoever keeps the parts owns the block.
    pub(crate) fn from_parts(number: u64, size_bytes: u32) -> Block {
        Block { number, size_bytes }
    }

    #[cfg(test)]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes as usize
    }
}

/// The file, its blocks and their checksums.
#[derive(Debug)]
pub(crate) struct BackingFile {
    file: Arc<File>,
    unit: Unit,
    pub(super) blocks: Mutex<Blocks>,
    /// CRC-32 of the object of each block.
    checksums: Region,
    /// Whether the file takes holes.
    takes_holes: AtomicBool,
    _claim: Claim,
    #[cfg(test)]
    pub(crate) fault: fault::Fault,
}

impl BackingFile {
    /// Makes `file` ready for `pages` objects at most.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a file that is too small, not opened for reading and writing, or has something else
    /// in it; [`ErrorKind::Busy`] if another has it; [`ErrorKind::NoMemory`]; [`ErrorKind::Io`].
    pub(crate) fn open(file: Arc<File>, unit: Unit, pages: u64) -> Result<BackingFile> {
        check_access(&file)?;
        let status = rustix::fs::fstat(&*file).map_err(failed)?;
        let is_device = match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            _ => return Err(refused("is neither a regular file nor a block device")),
        };
        rustix::fs::flock(&*file, FlockOperation::NonBlockingLockExclusive).map_err(in_use)?;
        let claim = match is_device {
            true => Claim::new((status.st_rdev, 0)),
            false => Claim::new((status.st_dev, status.st_ino)),
        };
        let claim = claim.ok_or_else(|| in_use(Errno::WOULDBLOCK))?;
        let bytes = rustix::fs::seek(&*file, SeekFrom::End(0)).map_err(failed)?;
        check_content(&file, bytes, is_device)?;
        let most = (i64::MAX as u64) >> unit.shift();
        let blocks = match is_device {
            true => bytes >> unit.shift(),
            false => most,
        };
        if blocks < 2 {
            return Err(refused("is smaller than two pages: choose a larger one"));
        }
        let wanted = pages.saturating_add(1 + SPARE_BLOCKS);
        let blocks = blocks.min(wanted).min(most);
        let checksum_bytes = usize::try_from(blocks).ok().and_then(|n| n.checked_mul(4));
        let too_many = || Error::new(ErrorKind::NoMemory, "checksums exceed the address space");
        let checksums = Region::reserve(
            checksum_bytes.ok_or_else(too_many)?,
            region::Backing::Private,
        )?;
        if !is_device {
            file.set_len(0).map_err(failed)?;
        }
        let mut first = memory::boxed_slice(unit.bytes(), 0)?;
        first[..MARK.len()].copy_from_slice(MARK);
        file.write_all_at(&first, 0).map_err(failed)?;
        Ok(BackingFile {
            file,
            unit,
            blocks: Mutex::new(Blocks::new(blocks)),
            checksums,
            takes_holes: AtomicBool::new(true),
            _claim: claim,
            #[cfg(test)]
            fault: fault::Fault::default(),
        })
    }

    /// A free block for an object of this size, or none.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub(crate) fn take(&self, size_bytes: usize) -> Result<Option<Block>> {
        let number = self.blocks.lock().take()?;
        Ok(number.map(|number| Block {
            number,
            size_bytes: size_bytes as u32,
        }))
    }

    /// Gives a block back.
    pub(crate) fn give(&self, block: Block) {
        self.blocks.lock().give(block.number);
    }

    /// Writes blocks, and returns when the disk has them. `bytes` has a unit for each: the object, and zeroes.
    ///
    /// # Errors
    /// The system's. Any of the blocks may have been written then, and none must be used.
    pub(crate) fn write<'a>(
        &self,
        blocks: impl Iterator<Item = &'a Block> + Clone,
        bytes: &[u8],
    ) -> io::Result<()> {
        #[cfg(test)]
        self.fault.take_write()?;
        let unit = self.unit.bytes();
        let numbers = blocks.clone().map(|block| block.number);
        for (first, at, count) in runs(numbers.clone()) {
            let run = &bytes[at * unit..(at + count) * unit];
            self.file.write_all_at(run, first << self.unit.shift())?;
        }
        rustix::fs::fdatasync(&*self.file)?;
        for (first, _, count) in runs(numbers) {
            // Their copies in the page cache would take the memory that was to be freed.
            let length = std::num::NonZeroU64::new((count * unit) as u64);
            let at = first << self.unit.shift();
            let _ = rustix::fs::fadvise(&*self.file, at, length, Advice::DontNeed);
        }
        for (block, unit_bytes) in blocks.zip(bytes.chunks_exact(unit)) {
            let checksum = crc32fast::hash(&unit_bytes[..block.size_bytes()]);
            self.checksums.half_words()[block.number as usize].store(checksum, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads the object of `block`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the file cannot be read there, [`ErrorKind::Corrupt`] for other bytes than were written.
    pub(crate) fn read(&self, block: &Block, object: &mut [u8]) -> Result<()> {
        let corrupt = || {
            let text = "a page in the backing file is damaged; write it again to repair it";
            Error::new(ErrorKind::Corrupt, text)
        };
        let cell = self.checksums.half_words().get(block.number as usize);
        let checksum = cell.ok_or_else(corrupt)?.load(Ordering::Relaxed);
        let at = block.number << self.unit.shift();
        self.file.read_exact_at(object, at).map_err(|error| {
            let text = "cannot read a page in the backing file; write it again to repair it";
            Error::new(ErrorKind::Io, text).with_source(error)
        })?;
        match crc32fast::hash(object) == checksum {
            true => Ok(()),
            false => Err(corrupt()),
        }
    }

    /// Makes holes of some blocks that were given back. Returns whether there may be more.
    pub(crate) fn discard_some(&self) -> bool {
        let run = self.blocks.lock().begin_discard();
        let Some(run) = run else {
            return false;
        };
        if self.takes_holes.load(Ordering::Relaxed) {
            let (at, length) = (
                run.start << self.unit.shift(),
                (run.end - run.start) << self.unit.shift(),
            );
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = rustix::fs::fallocate(&*self.file, how, at, length);
            if matches!(punched, Err(Errno::OPNOTSUPP | Errno::NOSYS)) {
                self.takes_holes.store(false, Ordering::Relaxed);
            }
        }
        self.blocks.lock().end_discard(run);
        true
    }
}

/// The turn to write back, and what it needs.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// A unit for each page: its object, and zeroes.
    pub(super) bytes: Vec<u8>,
    pub(super) pages: Vec<(PageIndex, Block)>,
}

impl Batch {
    /// Empties it and makes room for this many pages.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub(super) fn make_room(&mut self, pages: usize, unit_bytes: usize) -> Result<()> {
        self.bytes.clear();
        memory::reserve(&mut self.pages, pages)?;
        memory::reserve(&mut self.bytes, pages * unit_bytes)
    }
}

/// Numbers that follow each other: the first, its place in the row, and how many.
fn runs(numbers: impl Iterator<Item = u64>) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut numbers = numbers.enumerate().peekable();
    std::iter::from_fn(move || {
        let (at, first) = numbers.next()?;
        let mut count = 1;
        while numbers
            .next_if(|(_, next)| *next == first + count as u64)
            .is_some()
        {
            count += 1;
        }
        Some((first, at, count))
    })
}

fn check_access(file: &File) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(file).map_err(failed)?;
    let is_fit = flags & OFlags::ACCMODE == OFlags::RDWR;
    match is_fit && !flags.intersects(OFlags::APPEND | OFlags::DIRECT) {
        true => Ok(()),
        false => Err(refused(
            "must be opened for reading and writing, without O_APPEND and O_DIRECT",
        )),
    }
}

/// Nobody's data is overwritten: the file is new, or one of ours, or an empty device.
fn check_content(file: &File, bytes: u64, is_device: bool) -> Result<()> {
    let start = bytes.min(SIGNATURES_BYTES as u64) as usize;
    let mut content = memory::boxed_slice(start, 0)?;
    file.read_exact_at(&mut content, 0).map_err(failed)?;
    if content.starts_with(MARK_PREFIX) {
        return Ok(());
    }
    match is_device {
        false if bytes == 0 => Ok(()),
        false => Err(refused("has other content: choose a new or an empty file")),
        true if content.iter().all(|byte| *byte == 0) => Ok(()),
        true => Err(refused(
            "has other content: zero the first 128 KiB of the device if nobody needs it",
        )),
    }
}

fn refused(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("the backing file {what}"))
}

fn failed(error: impl Into<io::Error>) -> Error {
    Error::new(ErrorKind::Io, "the backing file").with_source(error)
}

fn in_use(errno: Errno) -> Error {
    match errno {
        Errno::WOULDBLOCK => {
            let text = "the backing file is in use by another store; choose another file";
            Error::new(ErrorKind::Busy, text)
        }
        errno => failed(errno),
    }
}

/// A file's device and number, or a device's own.
type FileId = (u64, u64);

/// The files of this process's stores: copies of a descriptor share one lock of the system's.
static CLAIMED: ProcessMutex<BTreeSet<FileId>> = ProcessMutex::new(BTreeSet::new());

/// A file that no other store of this process gets.
#[derive(Debug)]
struct Claim(FileId);

impl Claim {
    /// None: another store has it.
    fn new(id: FileId) -> Option<Claim> {
        lock_process(&CLAIMED).insert(id).then(|| Claim(id))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock_process(&CLAIMED).remove(&self.0);
    }
}

#[cfg(test)]
pub(crate) mod fault {
    //! Disks that fail.

    use std::io;
    use std::sync::Mutex;

    /// The errno of the next writes.
    #[derive(Debug, Default)]
    pub(crate) struct Fault(Mutex<Option<i32>>);

    impl Fault {
        pub(crate) fn set(&self, errno: Option<i32>) {
            *self.0.lock().unwrap() = errno;
        }

        pub(super) fn take_write(&self) -> io::Result<()> {
            match *self.0.lock().unwrap() {
                Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                None => Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_row_are_one_run() {
        let found: Vec<_> = runs([7, 8, 9, 11, 5, 6].into_iter()).collect();
        assert_eq!(found, [(7, 0, 3), (11, 3, 1), (5, 4, 2)]);
        assert_eq!(runs([].into_iter()).count(), 0);
    }
}
