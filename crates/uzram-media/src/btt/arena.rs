//! An arena at work: atomic sectors by writing to free blocks.
//!
//! A write takes a lane, which owns one free block, and:
//!
//! 1. waits until no reader uses the free block any more (it once held a sector's content);
//! 2. writes the data to it;
//! 3. takes the sector's map lock; fence. Stores the first half of the lane's older flog entry:
//!    the sector and the block that it has now. Then stores the second half in one piece: the new
//!    block and the sequence number. From here on a power cut ends with the new content. The
//!    halves lie on one line, so neither is durable before the other without a fence between them;
//! 4. fence; stores the map's entry; fence. The block that the sector had is now the lane's free
//!    one.
//!
//! A reader announces the block that it reads and looks at the map once more. If the entry is
//! still the same, no writer reuses the block before the reader is done.
//!
//! Lock order: lane > reader's turn > map lock. A write holds one lane and then one map lock. A
//! read holds one turn, and a map lock only after [`READ_ATTEMPTS_MAX`]. A writer waits for a
//! reader (1) before it takes the map lock.

use crossbeam_utils::CachePadded;

use uzram::{Error, ErrorKind, Result};

use super::layout::{FlogEntry, FlogSpacing, Info, MapEntry};
use super::state::{ArenaSurvey, LaneState, Lines, Unfinished, carried_through};
use crate::cpu::{self, PerCpu};
use crate::medium::Medium;
use crate::memory;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence};

/// Largest sector, in bytes.
const SECTOR_BYTES_MAX: usize = 4096;
/// A read that writers overtook this often locks the map.
const READ_ATTEMPTS_MAX: usize = 8;
/// Lanes that are tried before a thread waits for one.
const LANES_TRIED_MAX: usize = 16;
/// Locks of the map. Entries on the same line of memory share one.
const MAP_LOCKS: usize = 256;
/// Readers at once; every writer looks at all of them.
const READERS_MAX: usize = 64;
/// The announcement of a reader that reads nothing.
const NO_BLOCK: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Arena {
    start: u64,
    info: Info,
    spacing: FlogSpacing,
    lanes: Box<[CachePadded<Mutex<LaneState>>]>,
    readers: PerCpu<Reader>,
    map_locks: Box<[CachePadded<Mutex<()>>]>,
    /// Lines of the map that are not trusted, in an arena that is not sound and was opened for reading
    /// only.
    untrusted: Option<Lines>,
    /// Unfinished writes, in an arena that was opened for reading only.
    unfinished: Box<[Unfinished]>,
    /// Not 0 once a write stopped half-way: the state of its lane is then unknown.
    is_stuck: AtomicU64,
}

/// A place where one reader at a time announces the block that it reads.
#[derive(Debug)]
struct Reader {
    /// Held from before the announcement until the read is done.
    turn: Mutex<()>,
    block: AtomicU64,
}

impl Arena {
    /// The arena of a survey. If it is written to, the survey found it sound.
    pub(super) fn new(survey: ArenaSurvey) -> Result<Arena> {
        let mut lanes = Vec::new();
        for state in survey.lanes.iter().flatten() {
            memory::push(&mut lanes, CachePadded::new(Mutex::new(*state)))?;
        }
        let mut map_locks = Vec::new();
        for _ in 0..MAP_LOCKS {
            memory::push(&mut map_locks, CachePadded::new(Mutex::new(())))?;
        }
        let readers = PerCpu::with_count(cpu::usable().clamp(2, READERS_MAX), || Reader {
            turn: Mutex::new(()),
            block: AtomicU64::new(NO_BLOCK),
        })?;
        Ok(Arena {
            start: survey.start,
            info: survey.info,
            spacing: survey.spacing,
            lanes: lanes.into_boxed_slice(),
            readers,
            map_locks: map_locks.into_boxed_slice(),
            untrusted: survey.untrusted,
            unfinished: survey.unfinished.into_boxed_slice(),
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
        if self
            .untrusted
            .as_ref()
            .is_some_and(|lines| lines.has(sector))
        {
            return Err(self.doubtful(medium, sector));
        }
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

    /// Reads the block of `entry`, which must be safe from writers.
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
            MapEntry::Broken(_) => Err(self.doubtful(medium, sector)),
            MapEntry::Normal(block) => medium.read(
                self.block_place(medium, sector, block)? + skip as u64,
                buffer,
            ),
        }
    }

    /// Replaces sector `sector`, or the part from byte `skip` on if `data` is shorter than it.
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

    /// Makes the sectors read as zeroes. After a power cut each is old or zero.
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
                self.block_place(medium, sector, entry.block(sector))?;
                medium.store_u32(self.map_place(sector), zero.encode())?;
            }
        }
        medium.fence()
    }

    pub(super) fn is_zero(&self, medium: &dyn Medium, sector: u32) -> Result<bool> {
        let entry = self.entry(medium, sector)?;
        Ok(matches!(entry, MapEntry::Initial | MapEntry::Zero(_)))
    }

    /// Gives the sector the lane's free block, which holds the new data, and gives the lane the
    /// sector's old block. The caller holds the sector's map lock.
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
        let word = medium.load_u32(self.map_place(sector))?;
        let entry = MapEntry::decode(word);
        // Most arenas have none, and this is on the way of every read.
        if self.unfinished.is_empty() {
            return Ok(entry);
        }
        Ok(carried_through(&self.unfinished, sector, entry))
    }

    /// This CPU's lane, or a neighbour's. Waits if all are held.
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

    /// Returns when no reader uses `block`, which no map entry names.
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

    /// The place of a block. Blocks were checked when the arena was opened, but other processes
    /// can write to the medium too.
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

    fn doubtful(&self, medium: &dyn Medium, sector: u32) -> Error {
        let (place, name) = (self.map_place(sector), medium.name());
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "{name}: offset {place}: Map[{sector}] is damaged or stands beside what is; `uzram btt \
                 repair {name}` gives the sector up"
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
