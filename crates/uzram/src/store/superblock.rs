//! The superblock of a store that outlives its process: what its other files mean, and who may open them.
//!
//! ```text
//! bytes 0-7        generation: how often the store was opened
//! bytes 8-31       the budget of writing back: 4 KiB units left, whether they count, pages of a batch
//! bytes 512, 2304  two copies of the facts:
//!     0   magic        8   version 4, length 4     16  sequence 8
//!     24  disksize 8   32  unit 4, flags 4         40  mem_limit 8, that of the start 8
//!     56  pool 16      72  codecs by priority, 4 of: name 32, its dictionary's length 8 and hash 8
//!     264 the backing file's number 8 and blocks 8
//!     280 CRC-32 4
//! ```
//!
//! Behind the first page, of 4 KiB, lie the counters, which are no facts and have no CRC: 64 lanes of 256 bytes.
//!
//! Numbers are little-endian, names padded with zeroes. A change goes to the copy that is not current, under the next
//! sequence. Who dies within leaves a copy with a wrong CRC, so that the other one stays current. A program of another format
//! must write both.
//!
//! A store is claimed by a lock on an open file description that its process alone has, so that the lock ends with the
//! process, and by its generation.

#![cfg_attr(uzram_shuttle, allow(dead_code))]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::backing_file::FileFacts;
use super::budget::Budget;
use crate::codec::Compression;
use crate::config::{PRIORITY_MAX, StoreConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::region::{Backing, Region};
use crate::stats::Counters;
use crate::sync::{MappedU64, Ordering};

/// The format of what a process leaves of a store ([`Remains`](crate::Remains)): of the superblock, the slot word, the places of
/// objects under each pool, and the codecs' formats, together. A program opens its own format alone.
pub const REMAINS_FORMAT: u32 = 2;
const VERSION: u32 = REMAINS_FORMAT;
const MAGIC: &[u8; 8] = b"uzramsb\n";

const FIRST_PAGE_BYTES: usize = 4096;
const LANES: usize = 64;
const COUNTERS: std::ops::Range<usize> =
    FIRST_PAGE_BYTES..FIRST_PAGE_BYTES + Counters::bytes(LANES);
const BYTES: usize = COUNTERS.end;
const COPIES_AT: [usize; 2] = [512, 2304];
const COPY_BYTES: usize = CRC_AT + 4;

const VERSION_AT: usize = 8;
const LENGTH_AT: usize = 12;
const SEQUENCE_AT: usize = 16;
const DISKSIZE_AT: usize = 24;
const UNIT_AT: usize = 32;
const FLAGS_AT: usize = 36;
const LIMIT_AT: usize = 40;
const FIRST_LIMIT_AT: usize = 48;
const POOL_AT: usize = 56;
const CODECS_AT: usize = POOL_AT + POOL_BYTES;
const FILE_AT: usize = CODECS_AT + CODECS * CODEC_BYTES;
const CRC_AT: usize = FILE_AT + 16;

const POOL_BYTES: usize = 16;
const NAME_BYTES: usize = 32;
const CODEC_BYTES: usize = NAME_BYTES + 16;
const CODECS: usize = 1 + PRIORITY_MAX as usize;

const HAS_CHECKSUMS: u32 = 1;
const HAS_AGES: u32 = 1 << 1;
const HAS_FILE: u32 = 1 << 2;

/// The budget, of which each word is right by itself.
const BUDGET: std::ops::Range<usize> = 1..1 + Budget::WORDS;

const _: () = assert!(BUDGET.end * 8 <= COPIES_AT[0]);
const _: () = assert!(
    COPIES_AT[0] + COPY_BYTES <= COPIES_AT[1] && COPIES_AT[1] + COPY_BYTES <= FIRST_PAGE_BYTES
);

type Copy = [u8; COPY_BYTES];

/// The limits on memory for objects, in bytes.
pub(super) struct Limits {
    /// That of the start, by which a pool chooses how it places objects.
    pub first_bytes: u64,
    pub bytes: u64,
}

/// A store's superblock, and its claim on the store.
#[derive(Debug)]
pub(super) struct Superblock {
    region: Region,
    generation: u64,
    /// Locked for as long as it is open.
    _claim: Claim,
}

impl Superblock {
    /// That of a new store, of generation 1.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a codec of the caller's whose name is too long, [`ErrorKind::NoMemory`],
    /// [`ErrorKind::Io`] without `/proc`.
    pub(super) fn new(config: &StoreConfig, file: Option<FileFacts>) -> Result<Superblock> {
        let region = Region::reserve(BYTES, Backing::Memfd)?;
        region.populate(0..BYTES)?;
        let claim = claim(&region)?;
        let superblock = Superblock {
            region,
            generation: 1,
            _claim: claim,
        };
        let mut copy = facts(config, 1)?;
        if let Some(file) = file {
            put(&mut copy, FILE_AT, &file.number.to_le_bytes());
            put(&mut copy, FILE_AT + 8, &file.blocks.to_le_bytes());
            seal(&mut copy);
        }
        superblock.write(0, &copy);
        superblock.word(0).store(1, Ordering::Relaxed);
        Ok(superblock)
    }

    /// Claims the store that a dead process left, if it is the one that `config` describes.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while another process has it; [`ErrorKind::InvalidInput`] for a file that cannot be one, another
    /// format, or other facts than the configuration's, of which it names the first; [`ErrorKind::Corrupt`] if neither copy
    /// is whole.
    pub(super) fn take_over(file: OwnedFd, config: &StoreConfig) -> Result<Superblock> {
        let region = Region::attach(file, BYTES, "superblock")?;
        let claim = claim(&region)?;
        let mut superblock = Superblock {
            region,
            generation: 0,
            _claim: claim,
        };
        let (_, current) = superblock.current()?;
        check(&current, &facts(config, number(&current, SEQUENCE_AT))?)?;
        let word = superblock.word(0);
        let before = word.load(Ordering::Relaxed);
        let raised = before.wrapping_add(1);
        let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        if word
            .compare_exchange(before, raised, acquire, relaxed)
            .is_err()
        {
            return Err(busy());
        }
        superblock.generation = raised;
        Ok(superblock)
    }

    /// How often the store was opened, the first time included.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn limits(&self) -> Result<Limits> {
        let (_, current) = self.current()?;
        Ok(Limits {
            first_bytes: number(&current, FIRST_LIMIT_AT),
            bytes: number(&current, LIMIT_AT),
        })
    }

    /// The backing file of a store that has one.
    pub(super) fn backing_file(&self) -> Result<FileFacts> {
        let (_, current) = self.current()?;
        Ok(FileFacts {
            number: number(&current, FILE_AT),
            blocks: number(&current, FILE_AT + 8),
        })
    }

    /// The store's counters, which lie here.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`], [`ErrorKind::Io`].
    pub(super) fn counters(&self) -> Result<Counters> {
        let Some(region) = self.region.again()? else {
            unreachable!("a superblock lies in a file");
        };
        Ok(Counters::over(region, COUNTERS))
    }

    /// The budget of writing back, which lies here.
    pub(super) fn budget(&self) -> Budget<'_> {
        let words = self.region.words()[BUDGET].first_chunk();
        Budget::over(words.expect("the superblock has these words"))
    }

    /// Notes another limit, in bytes. Its caller sees to it that nobody else does meanwhile.
    pub(super) fn set_mem_limit(&self, limit_bytes: u64) {
        // A superblock that something else destroyed stays so: then no successor opens the store.
        let Ok((at, mut copy)) = self.current() else {
            return;
        };
        let sequence = number(&copy, SEQUENCE_AT).wrapping_add(1);
        put(&mut copy, SEQUENCE_AT, &sequence.to_le_bytes());
        put(&mut copy, LIMIT_AT, &limit_bytes.to_le_bytes());
        seal(&mut copy);
        self.write(1 - at, &copy);
    }

    /// As [`Region::file`].
    pub(super) fn file(&self) -> Result<Option<OwnedFd>> {
        self.region.file()
    }

    /// The valid copy of the highest sequence, and which it is.
    fn current(&self) -> Result<(usize, Copy)> {
        let copies = [self.read(0), self.read(1)];
        let valid = copies.iter().enumerate().filter(|(_, copy)| is_valid(copy));
        if let Some((at, copy)) = valid.max_by_key(|(_, copy)| number(copy, SEQUENCE_AT)) {
            return Ok((at, *copy));
        }
        let ours = copies.iter().filter(|copy| copy.starts_with(MAGIC));
        let versions: Vec<u32> = ours.map(|copy| half(copy, VERSION_AT)).collect();
        Err(match versions.iter().find(|version| **version != VERSION) {
            Some(version) => refused(format!(
                "the store has format {version}, and this program opens format {VERSION}: use the one that made it"
            )),
            None if versions.is_empty() => refused("the superblock is none of uzram's".into()),
            None => Error::new(
                ErrorKind::Corrupt,
                "both copies of the superblock are damaged: the store cannot be opened",
            ),
        })
    }

    fn read(&self, at: usize) -> Copy {
        let mut copy = [0; COPY_BYTES];
        let words = COPIES_AT[at] / 8..;
        for (bytes, index) in copy.chunks_mut(8).zip(words) {
            let word = self.word(index).load(Ordering::Relaxed).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
        copy
    }

    /// Writes a copy, its CRC last.
    fn write(&self, at: usize, copy: &Copy) {
        for (bytes, index) in copy.chunks(8).zip(COPIES_AT[at] / 8..) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.word(index)
                .store(u64::from_le_bytes(word), Ordering::Release);
            #[cfg(all(test, not(uzram_shuttle)))]
            crate::crash::point();
        }
    }

    fn word(&self, index: usize) -> &MappedU64 {
        &self.region.words()[index]
    }
}

/// The lock of a store for this process, on an open file description of its own.
#[derive(Debug)]
struct Claim(OwnedFd);

impl Drop for Claim {
    /// A child that this process has just made holds a copy until it starts its program: closing would not be enough.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

fn claim(region: &Region) -> Result<Claim> {
    let failed = |error: std::io::Error| {
        let text = "cannot claim a store that outlives its process: that takes /proc";
        Error::new(ErrorKind::Io, text).with_source(error)
    };
    let file = region.file()?;
    let number = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    let path = format!("/proc/self/fd/{number}");
    let own = File::options().read(true).write(true).open(path);
    let own = OwnedFd::from(own.map_err(failed)?);
    match rustix::fs::flock(&own, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Claim(own)),
        Err(Errno::WOULDBLOCK) => Err(busy()),
        Err(errno) => Err(failed(errno.into())),
    }
}

fn busy() -> Error {
    let text = "another process has the store; wait until it is gone";
    Error::new(ErrorKind::Busy, text)
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::InvalidInput, why)
}

/// The facts of a configuration.
fn facts(config: &StoreConfig, sequence: u64) -> Result<Copy> {
    let mut copy = [0; COPY_BYTES];
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    let flags = flag(config.checksum, HAS_CHECKSUMS)
        | flag(config.ages, HAS_AGES)
        | flag(config.backing_file.is_some(), HAS_FILE);
    put(&mut copy, 0, MAGIC);
    put(&mut copy, VERSION_AT, &VERSION.to_le_bytes());
    put(&mut copy, LENGTH_AT, &(COPY_BYTES as u32).to_le_bytes());
    put(&mut copy, SEQUENCE_AT, &sequence.to_le_bytes());
    put(&mut copy, DISKSIZE_AT, &config.disksize_bytes.to_le_bytes());
    put(
        &mut copy,
        UNIT_AT,
        &(config.unit.bytes() as u32).to_le_bytes(),
    );
    put(&mut copy, FLAGS_AT, &flags.to_le_bytes());
    put(&mut copy, LIMIT_AT, &config.mem_limit_bytes.to_le_bytes());
    put(
        &mut copy,
        FIRST_LIMIT_AT,
        &config.mem_limit_bytes.to_le_bytes(),
    );
    put(&mut copy, POOL_AT, config.pool.as_bytes());
    let own = std::iter::once(Some(&config.compression));
    let all = own.chain(config.secondaries.iter().map(Option::as_ref));
    for (at, compression) in all.enumerate() {
        if let Some(compression) = compression {
            put(
                &mut copy,
                CODECS_AT + at * CODEC_BYTES,
                &codec(compression)?,
            );
        }
    }
    seal(&mut copy);
    Ok(copy)
}

/// Facts about a codec that are the same for all that can read its objects.
fn codec(compression: &Compression) -> Result<[u8; CODEC_BYTES]> {
    let mut bytes = [0; CODEC_BYTES];
    let name = compression.codec().name();
    let space = bytes
        .get_mut(..name.len())
        .filter(|space| space.len() <= NAME_BYTES);
    let space = space.ok_or_else(|| {
        refused(format!(
            "codec {name}: a store that outlives its process takes names of up to {NAME_BYTES} bytes"
        ))
    })?;
    space.copy_from_slice(name.as_bytes());
    let (length, hash) = compression.parameters().dictionary_mark();
    bytes[NAME_BYTES..NAME_BYTES + 8].copy_from_slice(&length.to_le_bytes());
    bytes[NAME_BYTES + 8..].copy_from_slice(&hash.to_le_bytes());
    Ok(bytes)
}

/// Refuses a store whose facts differ from those that are wanted, and names the first that does.
fn check(found: &Copy, wanted: &Copy) -> Result<()> {
    let size = |copy: &Copy| format!("{} bytes", number(copy, DISKSIZE_AT));
    let unit = |copy: &Copy| format!("units of {} bytes", half(copy, UNIT_AT));
    let has = |copy: &Copy, flag: u32, what: &str| match half(copy, FLAGS_AT) & flag {
        0 => format!("no {what}"),
        _ => what.to_owned(),
    };
    let facts = |copy: &Copy| {
        let mut facts = vec![
            size(copy),
            unit(copy),
            has(copy, HAS_CHECKSUMS, "checksums"),
            has(copy, HAS_AGES, "ages"),
            has(copy, HAS_FILE, "backing file"),
            format!("pool {}", text(&copy[POOL_AT..POOL_AT + POOL_BYTES])),
        ];
        facts.extend((0..CODECS).map(|priority| codec_text(copy, priority)));
        facts
    };
    let differs = |(found, wanted): &(String, String)| found != wanted;
    match facts(found).into_iter().zip(facts(wanted)).find(differs) {
        None => Ok(()),
        Some((found, wanted)) => Err(refused(format!(
            "the store to take over has {found}, not {wanted}: name the options that it was made with"
        ))),
    }
}

fn codec_text(copy: &Copy, priority: usize) -> String {
    let at = CODECS_AT + priority * CODEC_BYTES;
    let name = text(&copy[at..at + NAME_BYTES]);
    let (length, hash) = (
        number(copy, at + NAME_BYTES),
        number(copy, at + NAME_BYTES + 8),
    );
    match (name.is_empty(), length) {
        (true, _) => format!("no codec of priority {priority}"),
        (false, 0) => format!("codec {name} of priority {priority}"),
        (false, _) => {
            format!(
                "codec {name} of priority {priority} with a dictionary of {length} bytes, {hash:016x}"
            )
        }
    }
}

fn text(bytes: &[u8]) -> String {
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    name.escape_ascii().to_string()
}

fn is_valid(copy: &Copy) -> bool {
    copy.starts_with(MAGIC)
        && half(copy, VERSION_AT) == VERSION
        && half(copy, LENGTH_AT) as usize == COPY_BYTES
        && half(copy, CRC_AT) == crc32fast::hash(&copy[..CRC_AT])
}

fn seal(copy: &mut Copy) {
    let crc = crc32fast::hash(&copy[..CRC_AT]);
    put(copy, CRC_AT, &crc.to_le_bytes());
}

fn put(copy: &mut Copy, at: usize, bytes: &[u8]) {
    copy[at..at + bytes.len()].copy_from_slice(bytes);
}

fn number(copy: &Copy, at: usize) -> u64 {
    u64::from(half(copy, at)) | u64::from(half(copy, at + 4)) << 32
}

fn half(copy: &Copy, at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| copy[at + byte]))
}

#[cfg(all(test, not(uzram_shuttle)))]
#[path = "superblock_tests.rs"]
mod tests;
