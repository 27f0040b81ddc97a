//! An arena at work: atomic sectors by writing to free blocks.
//!
//! A write takes a lane, which owns one free block, and:
//!
//! 1. waits until nobody reads the free block any more (its content was a sector's once);
//! 2. writes the data to it;
//! 3. takes the sector's map lock; fence; stores the first half of the lane's older flog entry, the sector
//!    and the block that it has now, and then its second half, the new block and the sequence number, in one
//!    piece: from here on a power cut ends with the new content. The halves lie on one line, so none is
//!    durable before the other without a fence between them;
//! 4. fence; stores the map's entry; fence. The block that the sector had is the lane's free one now.
//!
//! A reader tells writers which block it reads and looks at the map once more: if the entry is the same,
//! the block is not written before the reader is done.
//!
//! Lock order: lane > reader's turn > map lock. A write holds one lane and then one map lock, a read one
//! turn, and a map lock only after [`READ_ATTEMPTS_MAX`]. A writer waits for a reader (1) before
//! it has the map lock.

use crossbeam_utils::CachePadded;

use super::super::medium::Medium;
use super::layout::{FlogEntry, FlogSpacing, Info, MapEntry};
use super::survey::{ArenaSurvey, LaneState};
use crate::cpu::{self, PerCpu};
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence};

/// Largest sector, in bytes.
const SECTOR_BYTES_MAX: usize = 4096;
/// Reads that a writer overtook this often lock the map.
const READ_ATTEMPTS_MAX: usize = 8;
/// Lanes that are tried before waiting for one.
const LANES_TRIED_MAX: usize = 16;
/// Locks of the map. Entries on the same line of memory share one.
const MAP_LOCKS: usize = 256;
/// Readers at once; every writer looks at all of them.
const READERS_MAX: usize = 64;
/// What a reader that reads nothing says.
const NO_BLOCK: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Arena {
    start: u64,
    info: Info,
    spacing: FlogSpacing,
    lanes: Box<[CachePadded<Mutex<LaneState>>]>,
    readers: PerCpu<Reader>,
    map_locks: Box<[CachePadded<Mutex<()>>]>,
    /// Not 0 once a write stopped half way: what its lane may do next cannot be told.
    is_stuck: AtomicU64,
}

/// A place where one reader at a time says what it reads.
#[derive(Debug)]
struct Reader {
    /// Held from before the block is said until the read is done.
    turn: Mutex<()>,
    block: AtomicU64,
}

impl Arena {
    /// The arena that was surveyed and found sound.
    pub(super) fn new(survey: &ArenaSurvey) -> Result<Arena> {
        let mut lanes = Vec::new();
        for state in survey.lanes.iter().flatten() {
            memory::push(&mut lanes, CachePadded::new(Mutex::new(*state)))?;
        }
        let mut map_locks = Vec::new();
        for _ in 0..MAP_LOCKS {
            memory::push(&mut map_locks, CachePadded::new(Mutex::new(())))?;
        }
        let readers = PerCpu::with_count(cpu::possible().clamp(2, READERS_MAX), || Reader {
            turn: Mutex::new(()),
            block: AtomicU64::new(NO_BLOCK),
        })?;
        Ok(Arena {
            start: survey.start,
            info: survey.info.clone(),
            spacing: survey.spacing,
            lanes: lanes.into_boxed_slice(),
            readers,
            map_locks: map_locks.into_boxed_slice(),
            is_stuck: AtomicU64::new(0),
        })
    }

    pub(super) fn info(&self) -> &Info {
        &self.info
    }

    /// Fills `buffer` from byte `skip` of sector `sector` on.
    pub(super) fn read(
        &self,
        medium: &dyn Medium,
        sector: u32,
        skip: usize,
        buffer: &mut [u8],
    ) -> Result<()> {
        let first = self.entry(medium, sector)?;
        if matches!(first, MapEntry::Initial | MapEntry::Zero(_)) {
            buffer.fill(0);
            return Ok(());
        }
        let turn = self.reader();
        let mut entry = first;
        let mut locked = None;
        for attempt in 1.. {
            let block = entry.block(sector);
            turn.reader.block.store(u64::from(block), Ordering::SeqCst);
            // Either the writer that frees the block sees what is said, or the map's new entry is
            // seen here.
            fence(Ordering::SeqCst);
            let again = self.entry(medium, sector)?;
            if again == entry {
                break;
            }
            entry = again;
            if attempt == READ_ATTEMPTS_MAX {
                locked = Some(self.map_lock(sector));
                entry = self.entry(medium, sector)?;
                break;
            }
        }
        let result = self.read_entry(medium, sector, entry, skip, buffer);
        drop(locked);
        result
    }

    /// Reads what `entry` says; the block must be safe from writers.
    fn read_entry(
        &self,
        medium: &dyn Medium,
        sector: u32,
        entry: MapEntry,
        skip: usize,
        buffer: &mut [u8],
    ) -> Result<()> {
        match entry {
            MapEntry::Initial | MapEntry::Zero(_) => {
                buffer.fill(0);
                Ok(())
            }
            MapEntry::Error(_) => Err(self.unreadable(medium, sector)),
            MapEntry::Normal(block) => medium.read(
                self.block_place(medium, sector, block)? + skip as u64,
                buffer,
            ),
        }
    }

    /// Replaces sector `sector`, or from byte `skip` of it on if `data` is shorter than it.
    pub(super) fn write(
        &self,
        medium: &dyn Medium,
        sector: u32,
        skip: usize,
        data: &[u8],
    ) -> Result<()> {
        self.check_not_stuck(medium)?;
        let mut lane = self.lane();
        self.wait_for_readers(lane.state.free_block);
        let free = lane.state.free_block;
        let to = self.block_place(medium, sector, free)?;
        if data.len() == self.info.sector_bytes as usize {
            medium.write(to, data)?;
            let _lock = self.map_lock(sector);
            return self.switch(medium, sector, &mut lane);
        }
        // What is kept must still be there when the map changes.
        let _lock = self.map_lock(sector);
        let mut whole = [0; SECTOR_BYTES_MAX];
        let whole = &mut whole[..self.info.sector_bytes as usize];
        let entry = self.entry(medium, sector)?;
        self.read_entry(medium, sector, entry, 0, whole)?;
        whole[skip..skip + data.len()].copy_from_slice(data);
        medium.write(to, whole)?;
        self.switch(medium, sector, &mut lane)
    }

    /// Makes the sectors read as zeroes. Each is old or zero after a power cut.
    pub(super) fn trim(&self, medium: &dyn Medium, sectors: std::ops::Range<u32>) -> Result<()> {
        self.check_not_stuck(medium)?;
        for sector in sectors {
            // Devices are trimmed whole when a file system is made: most is zero already.
            if self.is_zero(medium, sector)? {
                continue;
            }
            let _lock = self.map_lock(sector);
            let entry = self.entry(medium, sector)?;
            if !matches!(entry, MapEntry::Initial) {
                let zero = MapEntry::Zero(entry.block(sector));
                medium.store_u32(self.map_place(sector), zero.encode())?;
            }
        }
        medium.fence()
    }

    pub(super) fn is_zero(&self, medium: &dyn Medium, sector: u32) -> Result<bool> {
        let entry = self.entry(medium, sector)?;
        Ok(matches!(entry, MapEntry::Initial | MapEntry::Zero(_)))
    }

    /// Gives the sector the lane's free block, whose data is written, and the lane the sector's.
    /// The caller holds the sector's map lock.
    fn switch(&self, medium: &dyn Medium, sector: u32, lane: &mut HeldLane<'_>) -> Result<()> {
        let new_block = lane.state.free_block;
        let old_block = self.entry(medium, sector)?.block(sector);
        // A lane must not get a block that is none.
        self.block_place(medium, sector, old_block)?;
        let entry = FlogEntry {
            sector,
            old_block,
            new_block,
            sequence: lane.state.next_sequence,
        };
        medium.fence()?;
        let switched = medium
            .store_pair(self.entry_place(lane), entry.words())
            .and_then(|()| medium.fence())
            .and_then(|()| {
                let entry = MapEntry::Normal(new_block);
                medium.store_u32(self.map_place(sector), entry.encode())
            })
            .and_then(|()| medium.fence());
        if switched.is_err() {
            // The flog may name the new block as the sector's: nobody may write to it.
            self.is_stuck.store(1, Ordering::Relaxed);
            return switched;
        }
        *lane.state = LaneState {
            free_block: old_block,
            next_entry: 1 - lane.state.next_entry,
            next_sequence: entry.next_sequence(),
        };
        Ok(())
    }

    fn entry(&self, medium: &dyn Medium, sector: u32) -> Result<MapEntry> {
        medium
            .load_u32(self.map_place(sector))
            .map(MapEntry::decode)
    }

    /// This CPU's lane, or else a neighbour's, or else wait.
    fn lane(&self) -> HeldLane<'_> {
        let count = self.lanes.len();
        let own = cpu::current() % count;
        for distance in 0..count.min(LANES_TRIED_MAX) {
            let index = (own + distance) % count;
            if let Some(state) = self.lanes[index].try_lock() {
                return HeldLane { index, state };
            }
        }
        let state = self.lanes[own].lock();
        HeldLane { index: own, state }
    }

    fn reader(&self) -> ReaderTurn<'_> {
        for reader in self.readers.nearest_first() {
            if let Some(guard) = reader.turn.try_lock() {
                return ReaderTurn {
                    reader,
                    _guard: guard,
                };
            }
        }
        let reader = self.readers.current();
        ReaderTurn {
            reader,
            _guard: reader.turn.lock(),
        }
    }

    /// Returns when nobody reads `block`, which no map entry names.
    fn wait_for_readers(&self, block: u32) {
        fence(Ordering::SeqCst);
        for reader in self.readers.iter() {
            if reader.block.load(Ordering::SeqCst) == u64::from(block) {
                drop(reader.turn.lock());
            }
        }
    }

    fn map_lock(&self, sector: u32) -> MutexGuard<'_, ()> {
        self.map_locks[(sector / 16) as usize % MAP_LOCKS].lock()
    }

    fn map_place(&self, sector: u32) -> u64 {
        self.start + self.info.map_offset + u64::from(sector) * 4
    }

    fn entry_place(&self, lane: &HeldLane<'_>) -> u64 {
        let first =
            self.start + self.info.flog_offset + lane.index as u64 * super::layout::FLOG_BYTES;
        first + self.spacing.offsets()[lane.state.next_entry]
    }

    /// Where a block is. Blocks were checked when the arena was opened, but the medium is writable
    /// for others too.
    fn block_place(&self, medium: &dyn Medium, sector: u32, block: u32) -> Result<u64> {
        if block >= self.info.blocks {
            let place = self.map_place(sector);
            let (blocks, name) = (self.info.blocks, medium.name());
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{name}: offset {place}: Map[{sector}] is block {block} of {blocks}; end this and run \
                     `uzram btt repair`"
                ),
            ));
        }
        let offset = u64::from(block) * u64::from(self.info.block_bytes);
        Ok(self.start + self.info.data_offset + offset)
    }

    fn unreadable(&self, medium: &dyn Medium, sector: u32) -> Error {
        let (place, name) = (self.map_place(sector), medium.name());
        Error::new(
            ErrorKind::Io,
            format!(
                "{name}: offset {place}: Map[{sector}] says that the sector is lost; write it anew"
            ),
        )
    }

    fn check_not_stuck(&self, medium: &dyn Medium) -> Result<()> {
        if self.is_stuck.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let name = medium.name();
        Err(Error::new(
            ErrorKind::Io,
            format!(
                "{name}: a write failed half way, so no more are taken; reopen it, which finishes that one"
            ),
        ))
    }
}

struct HeldLane<'a> {
    index: usize,
    state: MutexGuard<'a, LaneState>,
}

struct ReaderTurn<'a> {
    reader: &'a Reader,
    _guard: MutexGuard<'a, ()>,
}

impl Drop for ReaderTurn<'_> {
    fn drop(&mut self) {
        // Before the turn ends: the next reader says its own.
        self.reader.block.store(NO_BLOCK, Ordering::Release);
    }
}
