//! The result of a survey of a table, and the one walk over a map that survey and repair share.

use uzram::Result;

use super::layout::{FLOG_BYTES, FlogSpacing, Info, MapEntry, u32_at};
use crate::medium::Medium;
use crate::memory;

/// Problems that are described one by one; more are counted.
pub(super) const PROBLEMS_LISTED_MAX: usize = 100;
/// Sectors whose map entries lie on one line of memory, which is 64 bytes long.
pub(super) const LINE_SECTORS: u32 = 16;
/// Bytes of a map that are read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// One fault of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BttProblem {
    /// The arena's number, from 0.
    pub arena: usize,
    /// The specification's name of the field, as `Map[17]`.
    pub field: String,
    /// Its offset in the file, in bytes.
    pub offset: u64,
    /// The fault.
    pub text: String,
    /// The mending that a repair does.
    pub remedy: &'static str,
}

impl std::fmt::Display for BttProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BttProblem {
            arena,
            field,
            offset,
            text,
            ..
        } = self;
        write!(f, "arena {arena}, offset {offset}: {field} {text}")
    }
}

/// Everything about a table except its data.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) arenas: Vec<ArenaSurvey>,
    pub(super) problems: Vec<BttProblem>,
    /// The number of problems, listed or not.
    pub(super) problem_count: u64,
}

#[derive(Debug)]
pub(super) struct ArenaSurvey {
    /// The arena's offset, in bytes.
    pub(super) start: u64,
    pub(super) info: Info,
    /// Offsets of damaged info blocks, which get the content of the other copy.
    pub(super) damaged_copies: Vec<u64>,
    pub(super) spacing: FlogSpacing,
    /// The state of each lane; `None` for a broken one.
    pub(super) lanes: Vec<Option<LaneState>>,
    /// Writes that reached the flog and not the map, sorted by sector, at most one per sector.
    pub(super) unfinished: Vec<Unfinished>,
    /// The lines of the map that are not trusted; `None` if the map is sound.
    pub(super) untrusted: Option<Lines>,
}

/// A write to carry through: sector `sector` belongs to block `block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    pub(super) sector: u32,
    pub(super) block: u32,
    /// The block that the map still names.
    pub(super) old_block: u32,
}

/// The state of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneState {
    /// The block of its next write.
    pub(super) free_block: u32,
    /// The index of the entry that it writes next: 0 or 1.
    pub(super) next_entry: usize,
    /// That entry's sequence number.
    pub(super) next_sequence: u32,
}

impl Survey {
    pub(super) fn report(
        &mut self,
        arena: usize,
        field: String,
        offset: u64,
        text: String,
        remedy: &'static str,
    ) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_LISTED_MAX {
            self.problems.push(BttProblem {
                arena,
                field,
                offset,
                text,
                remedy,
            });
        }
    }
}

impl ArenaSurvey {
    /// The offset of a sector's map entry, in bytes from the medium's start.
    pub(super) fn map_place(&self, sector: u32) -> u64 {
        self.start + self.info.map_offset + u64::from(sector) * 4
    }

    /// The offset of a lane's entries, in bytes from the medium's start.
    pub(super) fn flog_place(&self, lane: usize) -> u64 {
        self.start + self.info.flog_offset + lane as u64 * FLOG_BYTES
    }

    /// Calls `with` for each sector and its entry, as if unfinished writes were finished.
    pub(super) fn each_entry(
        &self,
        medium: &dyn Medium,
        mut with: impl FnMut(u32, MapEntry),
    ) -> Result<()> {
        let map_bytes = self.info.sectors as usize * 4;
        let mut chunk = memory::boxed_slice(CHUNK_BYTES.min(map_bytes), 0)?;
        let mut first = 0;
        while first < self.info.sectors {
            let count = (self.info.sectors - first).min((CHUNK_BYTES / 4) as u32);
            let part = &mut chunk[..count as usize * 4];
            medium.read(self.map_place(first), part)?;
            for (sector, word) in (first..).zip(part.chunks_exact(4)) {
                let entry = MapEntry::decode(u32_at(word, 0));
                with(sector, carried_through(&self.unfinished, sector, entry));
            }
            first += count;
        }
        Ok(())
    }
}

/// The map entry of a sector as it will be once its unfinished write, if it has one, is carried through.
/// `unfinished` is sorted by sector; an entry that has changed since the survey stays as it is.
pub(super) fn carried_through(unfinished: &[Unfinished], sector: u32, entry: MapEntry) -> MapEntry {
    let found = unfinished.binary_search_by_key(&sector, |write| write.sector);
    match found.map(|at| unfinished[at]) {
        Ok(write) if entry.block(sector) == write.old_block => MapEntry::Normal(write.block),
        _ => entry,
    }
}

/// The lines of a map that are not trusted.
///
/// A medium loses or keeps a line as a whole. A line that returned to an older state is revealed
/// by one or two blocks that belong to another sector by now. Its other entries look sound and are
/// not, because sectors that are written in turn hand their blocks to one another.
#[derive(Debug)]
pub(super) struct Lines(Bits);

impl Lines {
    /// For a map of `sectors` entries.
    pub(super) fn new(sectors: u32) -> Result<Lines> {
        Bits::new(sectors.div_ceil(LINE_SECTORS)).map(Lines)
    }

    /// Adds the line of `sector`.
    pub(super) fn add(&mut self, sector: u32) {
        self.0.set(sector / LINE_SECTORS);
    }

    pub(super) fn has(&self, sector: u32) -> bool {
        self.0.has(sector / LINE_SECTORS)
    }
}

/// A set of bits.
#[derive(Debug)]
pub(super) struct Bits {
    words: Box<[u64]>,
    length: u32,
}

impl Bits {
    pub(super) fn new(length: u32) -> Result<Bits> {
        Ok(Bits {
            words: memory::boxed_slice(length.div_ceil(u64::BITS) as usize, 0)?,
            length,
        })
    }

    /// The number of bits.
    pub(super) fn length(&self) -> u32 {
        self.length
    }

    /// Sets a bit and returns whether it was set before.
    pub(super) fn set(&mut self, index: u32) -> bool {
        let had = self.has(index);
        self.words[(index / u64::BITS) as usize] |= 1 << (index % u64::BITS);
        had
    }

    pub(super) fn has(&self, index: u32) -> bool {
        self.words[(index / u64::BITS) as usize] >> (index % u64::BITS) & 1 != 0
    }
}
