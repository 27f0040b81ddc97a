//! Looking over a table: what is there, what a power cut left half done, what is broken, and mending it.
//!
//! A survey reads all metadata and changes nothing. Two things are no problem, for they are what a
//! power cut leaves: a damaged info block whose copy is whole, and a write that reached the flog and
//! not the map. Everything else is one, with what [`repair`] would do about it:
//!
//! - a sector whose block is out of range, or is another sector's as well, cannot be trusted: it
//!   becomes unreadable until it is written again, and gets a block that nobody has;
//! - a lane whose entries make no sense, or whose free block is in use, gets such a block as well.

use super::super::medium::Medium;
use super::layout::{
    ARENA_BYTES_MAX, ARENAS_MAX, BttVersion, Defect, FLAG_ERROR, FLOG_BYTES, FlogEntry,
    FlogSpacing, INFO_BYTES, Info, MapEntry, newest, u32_at,
};
use crate::error::{Error, ErrorKind, Result};
use crate::memory;

/// Problems that are described one by one; more are counted.
const PROBLEMS_LISTED_MAX: usize = 100;
/// What is read of a map at once, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// One thing that is wrong with a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BttProblem {
    /// Which arena, from 0.
    pub arena: usize,
    /// The specification's name of the field, as `Map[17]`.
    pub field: String,
    /// Where it is in the file, in bytes.
    pub offset: u64,
    /// What is wrong with it.
    pub text: String,
    /// What a repair does about it.
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

/// Everything about a table that is not its data.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) arenas: Vec<ArenaSurvey>,
    pub(super) problems: Vec<BttProblem>,
    /// How many there are, listed or not.
    pub(super) problem_count: u64,
}

#[derive(Debug)]
pub(super) struct ArenaSurvey {
    /// Where it begins, in bytes.
    pub(super) start: u64,
    pub(super) info: Info,
    /// Places of info blocks that the other one's content should be written to.
    pub(super) damaged_copies: Vec<u64>,
    pub(super) spacing: FlogSpacing,
    /// What each lane goes on with; `None` for one that is broken.
    pub(super) lanes: Vec<Option<LaneState>>,
    /// Writes that reached the flog and not the map.
    pub(super) unfinished: Vec<Unfinished>,
}

/// A write to carry through: sector `sector` belongs to block `block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    pub(super) sector: u32,
    pub(super) block: u32,
}

/// Where a lane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneState {
    /// The block that it writes next.
    pub(super) free_block: u32,
    /// Which of its two entries it writes next: 0 or 1.
    pub(super) next_entry: usize,
    /// That entry's sequence number.
    pub(super) next_sequence: u32,
}

impl Survey {
    fn report(
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

/// Reads all metadata of the table on `medium`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if there is none, or none of whose info blocks one copy is whole;
/// [`ErrorKind::NoMemory`], [`ErrorKind::Io`].
pub(super) fn survey(medium: &dyn Medium) -> Result<Survey> {
    let mut survey = Survey {
        arenas: find_arenas(medium)?,
        problems: Vec::new(),
        problem_count: 0,
    };
    for index in 0..survey.arenas.len() {
        survey_arena(medium, &mut survey, index)?;
    }
    Ok(survey)
}

/// What a power cut leaves: makes info blocks whole and carries writes through. Says what it did.
pub(super) fn recover(medium: &dyn Medium, survey: &Survey) -> Result<Vec<String>> {
    let mut done = Vec::new();
    for arena in &survey.arenas {
        for place in &arena.damaged_copies {
            medium.write(*place, &arena.info.encode())?;
            done.push(format!(
                "offset {place}: info block rewritten from its copy"
            ));
        }
        for write in &arena.unfinished {
            let entry = MapEntry::Normal(write.block);
            let place = map_place(arena, write.sector);
            medium.store_u32(place, entry.encode())?;
            let sector = write.sector;
            done.push(format!(
                "offset {place}: write of sector {sector} carried through"
            ));
        }
    }
    medium.fence()?;
    Ok(done)
}

/// Mends everything that [`survey`] finds. What it gives up is unreadable afterwards, never zeroes.
///
/// # Errors
/// As for [`survey`], and those of the medium.
pub(super) fn repair(medium: &dyn Medium, survey: &Survey) -> Result<Vec<String>> {
    let mut done = recover(medium, survey)?;
    for arena in &survey.arenas {
        let mut used = Blocks::count(medium, arena)?;
        let given_up = mend_map(medium, arena, &mut used)?;
        if given_up > 0 {
            done.push(format!(
                "{given_up} sectors are unreadable until they are written"
            ));
        }
        let lanes = mend_lanes(medium, arena, &mut used)?;
        if lanes > 0 {
            done.push(format!("{lanes} lanes got a free block"));
        }
        // The flag goes last: until then nobody writes.
        if arena.info.flags & FLAG_ERROR != 0 {
            medium.fence()?;
            let mut info = arena.info.clone();
            info.flags &= !FLAG_ERROR;
            for place in [arena.start + info.copy_offset, arena.start] {
                medium.write(place, &info.encode())?;
                medium.fence()?;
            }
            done.push("the error flag is cleared".into());
        }
    }
    medium.flush()?;
    Ok(done)
}

/// Which blocks somebody has, and which more than one.
struct Blocks {
    used: Bits,
    shared: Bits,
    /// Every block below it is in use.
    searched: u32,
}

impl Blocks {
    /// By the map and by the lanes whose state is sound.
    fn count(medium: &dyn Medium, arena: &ArenaSurvey) -> Result<Blocks> {
        let mut blocks = Blocks {
            used: Bits::new(arena.info.blocks)?,
            shared: Bits::new(arena.info.blocks)?,
            searched: 0,
        };
        each_entry(medium, arena, |_, block| {
            if block < arena.info.blocks && blocks.used.set(block) {
                blocks.shared.set(block);
            }
        })?;
        for lane in arena.lanes.iter().flatten() {
            blocks.used.set(lane.free_block);
        }
        Ok(blocks)
    }

    /// A block that nobody has. There is one for every sector and lane.
    fn take(&mut self) -> Result<u32> {
        while self.searched < self.used.length {
            let block = self.searched;
            self.searched += 1;
            if !self.used.set(block) {
                return Ok(block);
            }
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            "no block is left to repair with; make a new table and restore its data",
        ))
    }
}

fn mend_map(medium: &dyn Medium, arena: &ArenaSurvey, blocks: &mut Blocks) -> Result<u64> {
    let mut kept = Bits::new(arena.info.blocks)?;
    let mut mended = 0;
    let mut result = Ok(());
    each_entry(medium, arena, |sector, block| {
        let in_range = block < arena.info.blocks;
        if result.is_err() || in_range && !blocks.shared.has(block) {
            return;
        }
        // The first that has a shared block keeps it; which of them wrote it is unknown.
        let keeps = in_range && !kept.set(block);
        let place = map_place(arena, sector);
        result = match keeps {
            true => Ok(block),
            false => blocks.take(),
        }
        .and_then(|block| medium.store_u32(place, MapEntry::Error(block).encode()));
        mended += 1;
    })?;
    result.map(|()| mended)
}

fn mend_lanes(medium: &dyn Medium, arena: &ArenaSurvey, blocks: &mut Blocks) -> Result<u64> {
    let mut mended = 0;
    for (lane, state) in arena.lanes.iter().enumerate() {
        if state.is_some() {
            continue;
        }
        let block = blocks.take()?;
        let entry = FlogEntry {
            sector: 0,
            old_block: block,
            new_block: block,
            sequence: 1,
        };
        let place = flog_place(arena, lane);
        let mut bytes = [0; FLOG_BYTES as usize];
        for (at, word) in entry.words().into_iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        medium.write(place, &bytes)?;
        mended += 1;
    }
    medium.fence()?;
    Ok(mended)
}

/// Finds the arenas by their info blocks or the copies of these.
fn find_arenas(medium: &dyn Medium) -> Result<Vec<ArenaSurvey>> {
    let mut defects = Vec::new();
    for version in BttVersion::ALL {
        match find_arena(medium, version.initial_offset()) {
            Ok(first) => return follow(medium, first),
            Err(defect) => defects.push((version.initial_offset(), defect)),
        }
    }
    // A block with a signature is more likely what was meant.
    let (start, defect) = defects
        .iter()
        .find(|(_, defect)| defect.at != 0)
        .unwrap_or(&defects[0]);
    let remedy = match defect.at {
        0 => "; no BTT is here, `uzram btt create` makes one",
        _ => "; its copy is no better, so restore the file from a copy",
    };
    Err(corrupt(medium, *start, defect, remedy))
}

/// The arenas after `first`.
fn follow(medium: &dyn Medium, first: ArenaSurvey) -> Result<Vec<ArenaSurvey>> {
    let mut arenas = vec![first];
    loop {
        let last = &arenas[arenas.len() - 1];
        let start = last.start + last.info.next_offset;
        if last.info.next_offset == 0 || arenas.len() == ARENAS_MAX {
            return Ok(arenas);
        }
        let next = find_arena(medium, start).and_then(|next| {
            next.info.check_same_table(&arenas[0].info)?;
            Ok(next)
        });
        let next = next.map_err(|defect| corrupt(medium, start, &defect, "; restore the file"))?;
        arenas.push(next);
    }
}

/// The arena at `start`, by its info block or else by the copy.
fn find_arena(medium: &dyn Medium, start: u64) -> Result<ArenaSurvey, Defect> {
    let room = medium.size_bytes().saturating_sub(start);
    let arena = |info: Info, damaged_copies| ArenaSurvey {
        start,
        info,
        damaged_copies,
        spacing: FlogSpacing::Adjacent,
        lanes: Vec::new(),
        unfinished: Vec::new(),
    };
    if room < INFO_BYTES as u64 {
        return Err(Defect {
            field: "Sig",
            at: 0,
            text: "is past the end of the file".into(),
        });
    }
    match read_info(medium, start, room) {
        Ok(info) => {
            let place = start + info.copy_offset;
            let is_whole = read_info(medium, place, room).as_ref() == Ok(&info);
            Ok(arena(info, if is_whole { vec![] } else { vec![place] }))
        }
        Err(defect) => {
            let arena_bytes = room.min(ARENA_BYTES_MAX);
            let offset = arena_bytes - arena_bytes % INFO_BYTES as u64 - INFO_BYTES as u64;
            let copy = read_info(medium, start + offset, room).ok();
            // The copy of an arena that begins elsewhere can be at this place too.
            let copy = copy.filter(|info| info.copy_offset == offset);
            copy.map(|info| arena(info, vec![start])).ok_or(defect)
        }
    }
}

/// A block that cannot be read is as good as a damaged one.
fn read_info(medium: &dyn Medium, place: u64, room: u64) -> Result<Info, Defect> {
    let mut block = [0; INFO_BYTES];
    medium.read(place, &mut block).map_err(|error| Defect {
        field: "Sig",
        at: 0,
        text: format!("cannot be read ({error})"),
    })?;
    Info::decode(&block, room)
}

fn survey_arena(medium: &dyn Medium, survey: &mut Survey, index: usize) -> Result<()> {
    let arena = &survey.arenas[index];
    if arena.info.flags & FLAG_ERROR != 0 {
        let text = "say that the metadata is damaged, so nothing may be written".to_owned();
        let place = arena.start + 48;
        survey.report(
            index,
            "Flags".into(),
            place,
            text,
            "cleared after all else is mended",
        );
    }
    read_flog(medium, survey, index)?;
    check_map(medium, survey, index)
}

/// Reads the lanes' entries: their state and what they left unfinished.
fn read_flog(medium: &dyn Medium, survey: &mut Survey, index: usize) -> Result<()> {
    const REMEDY: &str = "the lane gets a free block";
    let lanes = survey.arenas[index].info.lanes as usize;
    let mut groups = memory::boxed_slice(lanes, [0; FLOG_BYTES as usize])?;
    let mut spacing = None;
    for (lane, group) in groups.iter_mut().enumerate() {
        let place = flog_place(&survey.arenas[index], lane);
        medium.read(place, group)?;
        // A broken lane does not decide for the others.
        spacing = spacing.or(FlogSpacing::detect(group).unwrap_or(None));
    }
    let spacing = spacing.unwrap_or(FlogSpacing::Adjacent);
    survey.arenas[index].spacing = spacing;
    for (lane, group) in groups.iter().enumerate() {
        let arena = &survey.arenas[index];
        let place = flog_place(arena, lane);
        let read = match FlogSpacing::detect(group) {
            Ok(found) if found.is_none_or(|found| found == spacing) => {
                read_lane(medium, arena, group)?
            }
            _ => Err("has entries where other lanes have none".to_owned()),
        };
        match read {
            Ok((state, unfinished)) => {
                let arena = &mut survey.arenas[index];
                memory::push(&mut arena.lanes, Some(state))?;
                arena.unfinished.extend(unfinished);
            }
            Err(text) => {
                memory::push(&mut survey.arenas[index].lanes, None)?;
                survey.report(index, format!("Flog[{lane}]"), place, text, REMEDY);
            }
        }
    }
    Ok(())
}

type Lane = (LaneState, Option<Unfinished>);

fn read_lane(
    medium: &dyn Medium,
    arena: &ArenaSurvey,
    group: &[u8; FLOG_BYTES as usize],
) -> Result<Result<Lane, String>> {
    let info = &arena.info;
    let entries = arena
        .spacing
        .offsets()
        .map(|at| FlogEntry::decode(&group[at as usize..]));
    let newest = match newest(&entries) {
        Ok(newest) => newest,
        Err(why) => return Ok(Err(format!("is torn: {why}"))),
    };
    let entry = entries[newest];
    if entry.sector >= info.sectors {
        let (sector, sectors) = (entry.sector, info.sectors);
        return Ok(Err(format!("names sector {sector} of {sectors}")));
    }
    if let Some(block) = [entry.old_block, entry.new_block]
        .into_iter()
        .find(|block| *block >= info.blocks)
    {
        return Ok(Err(format!("names block {block} of {}", info.blocks)));
    }
    let state = LaneState {
        free_block: entry.old_block,
        next_entry: 1 - newest,
        next_sequence: entry.next_sequence(),
    };
    let mut unfinished = None;
    // Equal blocks are an entry that was never used.
    if entry.old_block != entry.new_block {
        let word = medium.load_u32(map_place(arena, entry.sector))?;
        if MapEntry::decode(word).block(entry.sector) == entry.old_block {
            unfinished = Some(Unfinished {
                sector: entry.sector,
                block: entry.new_block,
            });
        }
    }
    Ok(Ok((state, unfinished)))
}

/// Every block must belong to one sector or be one lane's free one.
fn check_map(medium: &dyn Medium, survey: &mut Survey, index: usize) -> Result<()> {
    const UNREADABLE: &str = "unreadable until it is written";
    let mut used = Bits::new(survey.arenas[index].info.blocks)?;
    let mut wrong = Vec::new();
    let mut wrong_count = 0;
    let arena = &survey.arenas[index];
    each_entry(medium, arena, |sector, block| {
        let text = if block >= arena.info.blocks {
            format!("is block {block} of {}", arena.info.blocks)
        } else if used.set(block) {
            format!("is block {block}, which another sector has too")
        } else {
            return;
        };
        wrong_count += 1;
        if wrong.len() < PROBLEMS_LISTED_MAX {
            wrong.push((sector, map_place(arena, sector), text));
        }
    })?;
    let listed = wrong.len() as u64;
    for (sector, place, text) in wrong {
        survey.report(index, format!("Map[{sector}]"), place, text, UNREADABLE);
    }
    survey.problem_count += wrong_count - listed;
    for lane in 0..survey.arenas[index].lanes.len() {
        let arena = &mut survey.arenas[index];
        let Some(state) = arena.lanes[lane] else {
            continue;
        };
        if used.set(state.free_block) {
            arena.lanes[lane] = None;
            let place = flog_place(arena, lane);
            let text = format!("has free block {}, which is in use", state.free_block);
            survey.report(
                index,
                format!("Flog[{lane}]"),
                place,
                text,
                "it gets another one",
            );
        }
    }
    Ok(())
}

/// Calls `with` for each sector and its block, unfinished writes taken as finished.
fn each_entry(
    medium: &dyn Medium,
    arena: &ArenaSurvey,
    mut with: impl FnMut(u32, u32),
) -> Result<()> {
    let mut chunk = memory::boxed_slice(CHUNK_BYTES, 0)?;
    let mut unfinished = arena.unfinished.clone();
    unfinished.sort_by_key(|write| write.sector);
    let mut first = 0;
    while first < arena.info.sectors {
        let count = (arena.info.sectors - first).min((CHUNK_BYTES / 4) as u32);
        let part = &mut chunk[..count as usize * 4];
        medium.read(map_place(arena, first), part)?;
        for (sector, word) in (first..).zip(part.chunks_exact(4)) {
            let found = unfinished.binary_search_by_key(&sector, |write| write.sector);
            let block = match found {
                Ok(at) => unfinished[at].block,
                Err(_) => MapEntry::decode(u32_at(word, 0)).block(sector),
            };
            with(sector, block);
        }
        first += count;
    }
    Ok(())
}

pub(super) fn map_place(arena: &ArenaSurvey, sector: u32) -> u64 {
    arena.start + arena.info.map_offset + u64::from(sector) * 4
}

pub(super) fn flog_place(arena: &ArenaSurvey, lane: usize) -> u64 {
    arena.start + arena.info.flog_offset + lane as u64 * FLOG_BYTES
}

fn corrupt(medium: &dyn Medium, start: u64, defect: &Defect, remedy: &str) -> Error {
    let offset = start + defect.at as u64;
    let (field, text) = (defect.field, &defect.text);
    let name = medium.name();
    Error::new(
        ErrorKind::Corrupt,
        format!("{name}: offset {offset}: {field} {text}{remedy}"),
    )
}

/// One bit a block.
struct Bits {
    words: Box<[u64]>,
    length: u32,
}

impl Bits {
    fn new(length: u32) -> Result<Bits> {
        Ok(Bits {
            words: memory::boxed_slice(length.div_ceil(u64::BITS) as usize, 0)?,
            length,
        })
    }

    /// Sets a bit and says whether it was set.
    fn set(&mut self, index: u32) -> bool {
        let had = self.has(index);
        self.words[(index / u64::BITS) as usize] |= 1 << (index % u64::BITS);
        had
    }

    fn has(&self, index: u32) -> bool {
        self.words[(index / u64::BITS) as usize] >> (index % u64::BITS) & 1 != 0
    }
}
