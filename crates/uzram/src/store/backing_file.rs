//! A file or block device for objects whose memory is wanted for others: one object in each block of a unit.
//!
//! All that is known of the file is in memory: which blocks are taken, and a checksum of what this store wrote to each last. So
//! nothing that an earlier store or another program left there is ever read as data, and a write that was lost, or went
//! elsewhere, is found as a flipped bit is. If the store outlives its process, the checksums do too; the slots tell which
//! blocks are taken.
//!
//! Block 0 has a mark. By it a later store knows that the file is one of ours, and may be overwritten; and by its number a
//! store that was taken over knows its own file.
//!
//! A write is complete when no error of it can come any more: past the page cache, where the file takes that
//! (`direct.rs`), else by fdatasync. Then the memory may be given away. What the disk has in its own cache need not be safe
//! from a loss of power, as nobody reads the file afterwards.
//!
//! A process that is killed ends after the write in which it is, so none of it comes behind its successor's.

use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
#[cfg(not(uzram_shuttle))]
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, FallocateFlags, FileType, FlockOperation, OFlags, SeekFrom};
use rustix::io::Errno;

use super::blocks::Blocks;
use super::direct::{self, AlignedBytes};
use super::ring::{Ring, Run};
use super::room::Room;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::page::Unit;
use crate::region::{self, Region};
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, ProcessMutex, lock_process, sleep};

/// The first bytes of a file of ours; the number is that of the format.
const MARK: &[u8; 16] = b"uzram backing 1\n";
/// The mark, and the file's number, little-endian.
const MARK_BYTES: usize = MARK.len() + size_of::<u64>();
/// The beginning of the mark of every format.
const MARK_PREFIX: &[u8] = b"uzram backing ";

/// Blocks beyond one for each page: those of a pass whose pages have older ones still, and of a hole that is being made.
const SPARE_BLOCKS: u64 = 256;

/// In place of a checksum: of no block whose bytes may be another page's is another value known. A block has been written.
const SPOILT: u32 = 0x5b01_17ed;

/// Time in which the lock of a store that ends is gone, and between looks at it.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);
const LOCK_AGAIN: Duration = Duration::from_millis(5);

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

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes as usize
    }
}

/// An object in the file whose block stays its own until this is dropped. Nobody's lock is needed to read it.
#[derive(Debug)]
pub(super) struct Pin<'a> {
    backing: &'a BackingFile,
    number: u64,
    size_bytes: usize,
    checksum: u32,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.backing.blocks.lock().unpin(self.number);
    }
}

impl Pin<'_> {
    /// Whether it is this block, which nobody else has had meanwhile.
    pub fn is_of(&self, block: &Block) -> bool {
        self.number == block.number
    }

    /// Reads the object, and hands it to `use_it`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the file cannot be read there, [`ErrorKind::Corrupt`] for other bytes than were written,
    /// [`ErrorKind::NoMemory`].
    pub fn read<T>(&self, use_it: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        #[cfg(test)]
        self.backing.fault.act();
        let multiple = self.backing.direct_multiple_bytes.unwrap_or(1);
        let mut bytes = AlignedBytes::new(self.size_bytes.next_multiple_of(multiple))?;
        let at = self.number << self.backing.unit.shift();
        let read = self.backing.file.read_exact_at(bytes.bytes_mut(), at);
        read.map_err(|error| {
            let text = "cannot read a page in the backing file; write it again to repair it";
            Error::new(ErrorKind::Io, text).with_source(error)
        })?;
        let object = &bytes.bytes()[..self.size_bytes];
        match crc32fast::hash(object) == self.checksum {
            true => use_it(object),
            false => Err(damaged()),
        }
    }
}

fn damaged() -> Error {
    let text = "a page in the backing file is damaged; write it again to repair it";
    Error::new(ErrorKind::Corrupt, text)
}

/// The facts about a file that are in its store's superblock.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileFacts {
    /// By which it is known.
    pub number: u64,
    /// Those that may be used, block 0 included.
    pub blocks: u64,
}

impl FileFacts {
    fn mark(self) -> [u8; MARK_BYTES] {
        let mut mark = [0; MARK_BYTES];
        mark[..MARK.len()].copy_from_slice(MARK);
        mark[MARK.len()..].copy_from_slice(&self.number.to_le_bytes());
        mark
    }

    fn checksum_bytes(self) -> Result<usize> {
        let blocks = usize::try_from(self.blocks).ok();
        let bytes = blocks.and_then(|blocks| blocks.checked_mul(size_of::<u32>()));
        bytes.ok_or_else(|| Error::new(ErrorKind::NoMemory, "checksums exceed the address space"))
    }
}

/// The file, its blocks and their checksums.
#[derive(Debug)]
pub(crate) struct BackingFile {
    /// Gone before the file is, whose number another one may have then.
    _claim: Claim,
    file: Arc<File>,
    unit: Unit,
    facts: FileFacts,
    /// It outlives this process, as the checksums do.
    is_kept: bool,
    /// Nobody else has written to it, as far as its first block tells. One that is not ours is not written.
    is_ours: bool,
    /// The file is read in multiples of this many bytes, and written in units, past the page cache. None: through it.
    direct_multiple_bytes: Option<usize>,
    pub(super) blocks: Mutex<Blocks>,
    /// CRC-32 of the object of each block.
    checksums: Region,
    /// Whether the file takes holes.
    takes_holes: AtomicBool,
    #[cfg(test)]
    pub(crate) fault: fault::Fault,
}

impl BackingFile {
    /// Makes `file` ready for `pages` objects at most, with its checksums in such memory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a file that is too small, not opened for reading and writing, or has something else
    /// in it; [`ErrorKind::Busy`] if another has it; [`ErrorKind::NoMemory`]; [`ErrorKind::Io`].
    pub(crate) fn open(
        file: Arc<File>,
        unit: Unit,
        pages: u64,
        memory: region::Backing,
    ) -> Result<BackingFile> {
        let Claimed { claim, is_device } = claimed(&file)?;
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
        let facts = FileFacts {
            number: RandomState::new().build_hasher().finish(),
            blocks: blocks.min(wanted).min(most),
        };
        let checksums = Region::reserve(facts.checksum_bytes()?, memory)?;
        if !is_device {
            file.set_len(0).map_err(failed)?;
        }
        let mut first = AlignedBytes::new(unit.bytes())?;
        first.bytes_mut()[..MARK_BYTES].copy_from_slice(&facts.mark());
        let multiple = direct::begin(&file, unit, &first).map_err(failed)?;
        let mut backing = BackingFile::of(file, unit, facts, checksums, claim);
        backing.direct_multiple_bytes = multiple;
        backing.is_kept = memory == region::Backing::Memfd;
        Ok(backing)
    }

    /// The file of a store whose process died, with the checksums of its blocks. No block is taken yet. A file that cannot be
    /// read is taken over too, and one that something else has overwritten, which is only read then: pages that are gone are
    /// errors, and others are there.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for the file of another store, [`ErrorKind::Busy`] if another store has it meanwhile, those of
    /// [`Region::attach`].
    #[cfg(not(uzram_shuttle))]
    pub(super) fn take_over(
        file: Arc<File>,
        unit: Unit,
        facts: FileFacts,
        checksums: OwnedFd,
    ) -> Result<BackingFile> {
        let Claimed { claim, .. } = claimed(&file)?;
        let mut mark = [0; MARK_BYTES];
        let is_read = file.read_exact_at(&mut mark, 0).is_ok();
        let is_ours = !is_read || mark == facts.mark();
        if !is_ours && mark.starts_with(MARK_PREFIX) {
            let text = "is not the one that the store wrote to: name that one";
            return Err(refused(text));
        }
        let checksums = Region::attach(checksums, facts.checksum_bytes()?, "checksums of blocks")?;
        let multiple = direct::begin_again(&file, unit)?;
        let mut backing = BackingFile::of(file, unit, facts, checksums, claim);
        backing.direct_multiple_bytes = multiple;
        backing.is_kept = true;
        backing.is_ours = is_ours;
        Ok(backing)
    }

    fn of(
        file: Arc<File>,
        unit: Unit,
        facts: FileFacts,
        checksums: Region,
        claim: Claim,
    ) -> BackingFile {
        BackingFile {
            _claim: claim,
            file,
            unit,
            facts,
            is_kept: false,
            is_ours: true,
            direct_multiple_bytes: None,
            blocks: Mutex::new(Blocks::new(facts.blocks)),
            checksums,
            takes_holes: AtomicBool::new(true),
            #[cfg(test)]
            fault: fault::Fault::default(),
        }
    }

    pub(super) fn facts(&self) -> FileFacts {
        self.facts
    }

    /// A free block for an object of this size, or none.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub(crate) fn take(&self, size_bytes: usize) -> Result<Option<Block>> {
        if !self.is_ours {
            let text = "has other content by now: no page is written to it; make the disk anew with another one";
            return Err(refused(text));
        }
        let number = self.blocks.lock().take()?;
        Ok(number.map(|number| Block {
            number,
            size_bytes: size_bytes as u32,
        }))
    }

    /// Takes the block that a slot of a dead process names.
    ///
    /// # Errors
    /// As [`Blocks::adopt`].
    #[cfg(not(uzram_shuttle))]
    pub(super) fn adopt(&self, block: &Block) -> Result<()> {
        self.blocks.lock().adopt(block.number)
    }

    /// Makes errors of all reads of a block whose bytes may be another page's.
    #[cfg(not(uzram_shuttle))]
    pub(super) fn spoil(&self, number: u64) {
        if let Some(cell) = self.checksums.half_words().get(number as usize) {
            cell.store(SPOILT, Ordering::Relaxed);
        }
    }

    /// All that slots name is adopted: the rest of what was written is free. Returns the room that the file has.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`], [`ErrorKind::Io`].
    #[cfg(not(uzram_shuttle))]
    pub(super) fn adopted(&self) -> Result<Room> {
        let mut blocks = self.blocks.lock();
        let mut next = 0;
        while let Some(data) = self.checksums.next_data(next) {
            next = data.end;
            let numbers = data.start / size_of::<u32>()..data.end / size_of::<u32>();
            for number in numbers {
                if self.checksums.half_words()[number].load(Ordering::Relaxed) != 0 {
                    blocks.note_written(number as u64)?;
                }
            }
        }
        let made = rustix::fs::fstat(&*self.file).map_err(failed)?.st_size;
        Ok(Room::left(blocks.end() << self.unit.shift(), made as u64))
    }

    /// The same file of which no block is taken.
    #[cfg(not(uzram_shuttle))]
    pub(super) fn into_untaken(mut self) -> BackingFile {
        self.blocks = Mutex::new(Blocks::new(self.facts.blocks));
        self
    }

    /// As [`Region::file`], of the blocks' checksums.
    #[cfg(not(uzram_shuttle))]
    pub(super) fn checksums_file(&self) -> Result<Option<OwnedFd>> {
        self.checksums.file()
    }

    /// Gives a block back.
    pub(crate) fn give(&self, block: Block) {
        self.blocks.lock().give(block.number);
    }

    pub(super) fn unit(&self) -> Unit {
        self.unit
    }

    /// A ring for this many batches at once. None: the file is not written directly, the system has no ring for this
    /// process, or one batch needs none.
    pub(super) fn ring(&self, batches: usize) -> Option<Ring> {
        // A schedule of the model checker cannot wait for the kernel.
        let is_wanted = batches > 1 && self.direct_multiple_bytes.is_some();
        match is_wanted && cfg!(not(uzram_shuttle)) {
            true => Ring::new(&self.file, batches).ok(),
            false => None,
        }
    }

    /// Notes what blocks will have. `bytes` has a unit for each: the object, and more.
    pub(super) fn note_checksums<'a>(&self, blocks: impl Iterator<Item = &'a Block>, bytes: &[u8]) {
        for (block, unit_bytes) in blocks.zip(bytes.chunks_exact(self.unit.bytes())) {
            let checksum = crc32fast::hash(&unit_bytes[..block.size_bytes()]);
            self.checksums.half_words()[block.number as usize].store(checksum, Ordering::Relaxed);
            #[cfg(all(test, not(uzram_shuttle)))]
            crate::crash::point();
        }
    }

    /// Makes room for a write that ends at `end`, where that is of use.
    pub(super) fn make_room(&self, room: &mut Room, end: u64) {
        match self.direct_multiple_bytes {
            Some(_) => room.make(&self.file, end, self.facts.blocks << self.unit.shift()),
            None => room.reach(end),
        }
    }

    pub(super) fn give_room_back(&self, room: &mut Room) {
        if self.is_ours {
            room.give_back(&self.file);
        }
    }

    /// Writes parts of `bytes`, and returns when no error of them can come any more.
    ///
    /// # Errors
    /// The system's. Any of them may have been written then, and none must be used.
    pub(super) fn write(&self, runs: &[Run], bytes: &[u8]) -> io::Result<()> {
        for run in runs {
            self.write_at(&bytes[run.bytes.clone()], run.at)?;
        }
        if self.direct_multiple_bytes.is_some() {
            return Ok(());
        }
        rustix::fs::fdatasync(&*self.file)?;
        for run in runs {
            // Their copies in the page cache would take the memory that was to be freed.
            let length = std::num::NonZeroU64::new(run.bytes.len() as u64);
            let _ = rustix::fs::fadvise(&*self.file, run.at, length, Advice::DontNeed);
        }
        Ok(())
    }

    /// Writes directly, or without a wait for the disk.
    pub(super) fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    #[cfg(all(test, not(uzram_shuttle)))]
    pub(crate) fn is_direct(&self) -> bool {
        self.direct_multiple_bytes.is_some()
    }

    /// Behaves as with a file that takes no direct writes.
    #[cfg(all(test, not(uzram_shuttle)))]
    pub(crate) fn use_page_cache(&mut self) {
        direct::end(&self.file);
        self.direct_multiple_bytes = None;
    }

    /// The error that a test wants in place of a write.
    pub(super) fn refused_by_a_test(&self) -> io::Result<()> {
        #[cfg(test)]
        self.fault.take_write()?;
        Ok(())
    }

    /// Keeps the object of `block` readable when its slot is unlocked.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a block that the file has not, [`ErrorKind::NoMemory`].
    pub(super) fn pin(&self, block: &Block) -> Result<Pin<'_>> {
        let cell = self.checksums.half_words().get(block.number as usize);
        let checksum = cell.ok_or_else(damaged)?.load(Ordering::Relaxed);
        self.blocks.lock().pin(block.number)?;
        Ok(Pin {
            backing: self,
            number: block.number,
            size_bytes: block.size_bytes(),
            checksum,
        })
    }

    /// Makes holes of some blocks that were given back. Returns whether there may be more.
    pub(crate) fn discard_some(&self) -> bool {
        if !self.is_ours {
            return false;
        }
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

impl Drop for BackingFile {
    fn drop(&mut self) {
        // Others may have copies of the descriptor, and the kernel the file for a moment longer. Who keeps one for a successor
        // keeps the file from others too.
        if !self.is_kept {
            let _ = rustix::fs::flock(&*self.file, FlockOperation::Unlock);
        }
    }
}

/// A file that is this store's.
struct Claimed {
    claim: Claim,
    is_device: bool,
}

fn claimed(file: &File) -> Result<Claimed> {
    check_access(file)?;
    let status = rustix::fs::fstat(file).map_err(failed)?;
    let is_device = match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => false,
        FileType::BlockDevice => true,
        _ => return Err(refused("is neither a regular file nor a block device")),
    };
    lock(file)?;
    let claim = match is_device {
        true => Claim::new((status.st_rdev, 0)),
        false => Claim::new((status.st_dev, status.st_ino)),
    };
    let claim = claim.ok_or_else(|| in_use(Errno::WOULDBLOCK))?;
    direct::end(file);
    Ok(Claimed { claim, is_device })
}

/// Locks it. One whose store has just ended may be locked for a moment longer, as others have copies of the descriptor.
fn lock(file: &File) -> Result<()> {
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => sleep(LOCK_AGAIN),
            done => return done.map_err(in_use),
        }
    }
}

fn check_access(file: &File) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(file).map_err(failed)?;
    let is_fit = flags & OFlags::ACCMODE == OFlags::RDWR;
    match is_fit && !flags.contains(OFlags::APPEND) {
        true => Ok(()),
        false => Err(refused(
            "must be opened for reading and writing, without O_APPEND",
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
    //! Disks that fail, and what happens while they are waited for.

    use std::io;
    use std::sync::Mutex;

    type Action = Box<dyn Fn() + Send>;

    #[derive(Default)]
    pub(crate) struct Fault {
        /// The errno of the next writes.
        errno: Mutex<Option<i32>>,
        /// Done before the next reads, so many times.
        action: Mutex<Option<(usize, Action)>>,
    }

    impl std::fmt::Debug for Fault {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Fault").finish_non_exhaustive()
        }
    }

    impl Fault {
        pub(crate) fn set(&self, errno: Option<i32>) {
            *self.errno.lock().unwrap() = errno;
        }

        pub(super) fn take_write(&self) -> io::Result<()> {
            match *self.errno.lock().unwrap() {
                Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                None => Ok(()),
            }
        }

        pub(crate) fn before_read(&self, times: usize, action: impl Fn() + Send + 'static) {
            *self.action.lock().unwrap() = Some((times, Box::new(action)));
        }

        pub(super) fn act(&self) {
            let pending = self.action.lock().unwrap().take();
            if let Some((times, action)) = pending {
                action();
                if times > 1 {
                    *self.action.lock().unwrap() = Some((times - 1, action));
                }
            }
        }
    }
}
