//! A request of virtio-blk against a device: section 5.2.6 of the virtio 1.3 specification.

use std::panic::{AssertUnwindSafe, catch_unwind};

use uzram::device::check_range;
use uzram::{Bio, Zeroing};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES,
};

use super::chain::{Broken, Chain, Cursor};
use super::config::SECTOR_BYTES;
use super::memory::{Memory, Outside};
use super::{Disk, RANGE_BYTES_MAX, RANGES_MAX, REQUEST_BYTES_MAX};

/// Type, a reserved word, first sector.
const HEADER_BYTES: usize = 16;
/// First sector, sectors, flags.
const RANGE_ENTRY_BYTES: usize = 16;
const STATUS_BYTES: u64 = 1;
/// Length of a disk's name for `GET_ID`, in bytes: shorter ones end with a zero.
const ID_BYTES: usize = 20;
/// Data that is copied and handed on at once, in bytes.
const PIECE_BYTES: usize = 128 << 10;
/// The flag of a range that may become a hole.
const MAY_UNMAP: u32 = 1;

/// The result of a request that failed, for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It could not be done.
    Io,
    /// The request's type is unknown.
    Unsupported,
}

impl From<Outside> for Failure {
    fn from(_: Outside) -> Failure {
        Failure::Io
    }
}

impl From<uzram::Error> for Failure {
    fn from(_: uzram::Error) -> Failure {
        Failure::Io
    }
}

/// A valid request on this disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Read { offset: u64, length: u64 },
    Write { offset: u64, length: u64 },
    Flush,
    Name,
    Discard { ranges: usize },
    Zero { ranges: usize },
}

/// A range of a discard or of zeroes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub offset: u64,
    pub length: u64,
    pub may_punch: bool,
}

/// The properties of a disk that requests depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub size_bytes: u64,
    pub is_read_only: bool,
}

impl Request {
    /// Judges a header that is followed by `given_bytes`, and by `taken_bytes` that the guest
    /// takes.
    pub fn parse(
        header: &[u8; HEADER_BYTES],
        given_bytes: u64,
        taken_bytes: u64,
        shape: Shape,
    ) -> Result<Request, Failure> {
        let (kind, sector) = (word(header, 0), double_word(header, 8));
        let data = |length: u64| {
            let offset = sector.checked_mul(SECTOR_BYTES).ok_or(Failure::Io)?;
            let is_fit = length.is_multiple_of(SECTOR_BYTES) && length <= REQUEST_BYTES_MAX;
            check_range(offset, length, shape.size_bytes)?;
            is_fit.then_some((offset, length)).ok_or(Failure::Io)
        };
        let ranges = || {
            let count = given_bytes / RANGE_ENTRY_BYTES as u64;
            let is_whole = given_bytes.is_multiple_of(RANGE_ENTRY_BYTES as u64);
            let is_fit = is_whole && (1..=u64::from(RANGES_MAX)).contains(&count);
            is_fit.then_some(count as usize).ok_or(Failure::Io)
        };
        let writes = matches!(
            kind,
            VIRTIO_BLK_T_OUT | VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES
        );
        if writes && shape.is_read_only {
            return Err(Failure::Io);
        }
        match kind {
            VIRTIO_BLK_T_IN => {
                data(taken_bytes).map(|(offset, length)| Request::Read { offset, length })
            }
            VIRTIO_BLK_T_OUT => {
                data(given_bytes).map(|(offset, length)| Request::Write { offset, length })
            }
            VIRTIO_BLK_T_FLUSH => Ok(Request::Flush),
            VIRTIO_BLK_T_GET_ID if taken_bytes >= ID_BYTES as u64 => Ok(Request::Name),
            VIRTIO_BLK_T_GET_ID => Err(Failure::Io),
            VIRTIO_BLK_T_DISCARD => ranges().map(|ranges| Request::Discard { ranges }),
            VIRTIO_BLK_T_WRITE_ZEROES => ranges().map(|ranges| Request::Zero { ranges }),
            _ => Err(Failure::Unsupported),
        }
    }
}

impl Range {
    /// Judges an entry of a discard's or a zeroing's list.
    pub fn parse(
        entry: &[u8; RANGE_ENTRY_BYTES],
        is_discard: bool,
        shape: Shape,
    ) -> Result<Range, Failure> {
        let flags = word(entry, 12);
        let known = if is_discard { 0 } else { MAY_UNMAP };
        if flags & !known != 0 {
            return Err(Failure::Unsupported);
        }
        let offset = double_word(entry, 0).checked_mul(SECTOR_BYTES);
        let offset = offset.ok_or(Failure::Io)?;
        let length = u64::from(word(entry, 8)) * SECTOR_BYTES;
        check_range(offset, length, shape.size_bytes)?;
        if length > RANGE_BYTES_MAX {
            return Err(Failure::Io);
        }
        Ok(Range {
            offset,
            length,
            may_punch: flags & MAY_UNMAP != 0,
        })
    }
}

/// Carries out the requests of one queue.
pub(super) struct Executor {
    disk: Disk,
    shape: Shape,
    writes_through: bool,
    /// The data on its way between guest and device. The device never gets the guest's memory
    /// itself, which could change between two looks.
    piece: Box<[u8]>,
}

impl Executor {
    pub fn new(disk: &Disk, writes_through: bool) -> Executor {
        Executor {
            disk: disk.clone(),
            shape: Shape {
                size_bytes: disk.device.geometry().size_bytes,
                is_read_only: disk.is_read_only,
            },
            writes_through,
            // Not zeroes, which would be memory in name only.
            piece: vec![1; PIECE_BYTES].into(),
        }
    }

    /// Carries out one request and reports its result to the guest. Returns the number of bytes
    /// written to the guest.
    ///
    /// # Errors
    /// [`Broken`] if there is no place for the result.
    pub fn execute(&mut self, chain: &Chain, memory: &Memory) -> Result<u32, Broken> {
        let given_bytes = chain.readable_bytes().checked_sub(HEADER_BYTES as u64);
        let given_bytes = given_bytes.ok_or(Broken("a request without a header"))?;
        let no_status = Broken("a request without room for its status");
        let status_at = chain.last_writable().ok_or(no_status)?;
        let taken_bytes = chain.writable_bytes() - STATUS_BYTES;
        let mut given = chain.readable();
        let mut header = [0; HEADER_BYTES];
        given
            .read(memory, &mut header)
            .map_err(|Outside| Broken("a request header outside of memory"))?;
        let outcome = Request::parse(&header, given_bytes, taken_bytes, self.shape)
            .and_then(|request| self.perform(request, given, chain.writable(), memory));
        let (status, written) = match outcome {
            Ok(written) => (VIRTIO_BLK_S_OK, written + STATUS_BYTES),
            Err(Failure::Io) => (VIRTIO_BLK_S_IOERR, STATUS_BYTES),
            Err(Failure::Unsupported) => (VIRTIO_BLK_S_UNSUPP, STATUS_BYTES),
        };
        let told = memory.write(status_at, &[status as u8]);
        told.map_err(|Outside| Broken("a request status outside of memory"))?;
        Ok(written.try_into().unwrap_or(u32::MAX))
    }

    fn perform(
        &mut self,
        request: Request,
        given: Cursor<'_>,
        taken: Cursor<'_>,
        memory: &Memory,
    ) -> Result<u64, Failure> {
        match request {
            Request::Read { offset, length } => self.read(offset, length, taken, memory),
            Request::Write { offset, length } => self.write(offset, length, given, memory),
            Request::Flush => self.submit(Bio::Flush).map(|()| 0),
            Request::Name => self.name(taken, memory),
            Request::Discard { ranges } => self.change_ranges(ranges, true, given, memory),
            Request::Zero { ranges } => self.change_ranges(ranges, false, given, memory),
        }
    }

    fn read(
        &mut self,
        offset: u64,
        length: u64,
        mut taken: Cursor<'_>,
        memory: &Memory,
    ) -> Result<u64, Failure> {
        for (at, bytes) in pieces(offset, length) {
            let buffer = &mut self.piece[..bytes];
            submit(&self.disk, Bio::Read { offset: at, buffer })?;
            taken.write(memory, &self.piece[..bytes])?;
        }
        Ok(length)
    }

    fn write(
        &mut self,
        offset: u64,
        length: u64,
        mut given: Cursor<'_>,
        memory: &Memory,
    ) -> Result<u64, Failure> {
        for (at, bytes) in pieces(offset, length) {
            given.read(memory, &mut self.piece[..bytes])?;
            if !memory.is_whole() {
                return Err(Failure::Io);
            }
            let data = &self.piece[..bytes];
            submit(&self.disk, Bio::Write { offset: at, data })?;
        }
        self.settle().map(|()| 0)
    }

    /// All ranges are judged before any is changed.
    fn change_ranges(
        &mut self,
        count: usize,
        is_discard: bool,
        mut given: Cursor<'_>,
        memory: &Memory,
    ) -> Result<u64, Failure> {
        let entries = &mut self.piece[..count * RANGE_ENTRY_BYTES];
        given.read(memory, entries)?;
        if !memory.is_whole() {
            return Err(Failure::Io);
        }
        let (entries, _) = self.piece[..count * RANGE_ENTRY_BYTES].as_chunks();
        let judged = |entry| Range::parse(entry, is_discard, self.shape);
        entries
            .iter()
            .try_for_each(|entry| judged(entry).map(drop))?;
        for entry in entries {
            let Range {
                offset,
                length,
                may_punch,
            } = judged(entry)?;
            let zeroing = if may_punch {
                Zeroing::MayPunch
            } else {
                Zeroing::NoHole
            };
            let bio = match is_discard {
                _ if length == 0 => continue,
                true => Bio::Trim { offset, length },
                false => Bio::Zero {
                    offset,
                    length,
                    zeroing,
                },
            };
            submit(&self.disk, bio)?;
        }
        self.settle().map(|()| 0)
    }

    fn name(&self, mut taken: Cursor<'_>, memory: &Memory) -> Result<u64, Failure> {
        let mut name = [0; ID_BYTES];
        for (place, byte) in name.iter_mut().zip(self.disk.name.bytes()) {
            *place = byte;
        }
        taken.write(memory, &name)?;
        Ok(ID_BYTES as u64)
    }

    /// Makes a change durable where the guest will not ask for it.
    fn settle(&self) -> Result<(), Failure> {
        match self.writes_through {
            true => self.submit(Bio::Flush),
            false => Ok(()),
        }
    }

    fn submit(&self, bio: Bio<'_>) -> Result<(), Failure> {
        submit(&self.disk, bio)
    }
}

/// Hands a request to the device. A request that panics fails, and the queue goes on.
fn submit(disk: &Disk, bio: Bio<'_>) -> Result<(), Failure> {
    match catch_unwind(AssertUnwindSafe(|| disk.device.submit(bio))) {
        Ok(done) => done.map_err(Failure::from),
        Err(_panic) => Err(Failure::Io),
    }
}

/// Cuts a range of bytes into pieces that are moved at once. All but the last end at a border of
/// the device's pieces.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = offset + length;
    let mut at = offset;
    std::iter::from_fn(move || {
        let border = (at / PIECE_BYTES as u64 + 1) * PIECE_BYTES as u64;
        let bytes = border.min(end).checked_sub(at).filter(|bytes| *bytes > 0)?;
        at += bytes;
        Some((at - bytes, bytes as usize))
    })
}

fn word(bytes: &[u8; 16], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn double_word(bytes: &[u8; 16], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
