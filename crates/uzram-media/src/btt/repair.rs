//! Mending a table: writes that a power cut left half done, and the problems of a survey.
//!
//! - A sector that is not trusted becomes unreadable until it is written again, and gets a block
//!   that belongs to it alone.
//! - A lane whose entries make no sense, or whose free block is in use, gets such a block as well.
//!
//! A power cut can end a repair anywhere, and the next repair must distrust the same sectors. So
//! all of them are made unreadable first, while the evidence against them still stands.

use uzram::{Error, ErrorKind, Result};

use super::layout::{FLAG_ERROR, FLOG_BYTES, FlogEntry, MapEntry};
use super::state::{ArenaSurvey, Bits, Survey};
use crate::medium::Medium;

/// Mends what a power cut leaves: makes info blocks whole and carries writes through. Returns a
/// line for each thing that was done.
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
            let place = arena.map_place(write.sector);
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

/// Mends every problem of `survey`. Sectors that it gives up are unreadable afterwards, never
/// zeroes.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if no block is left, [`ErrorKind::NoMemory`], and those of the medium.
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

/// The blocks that have an owner, and those that have more than one.
struct Blocks {
    used: Bits,
    shared: Bits,
    /// Every block below it is in use.
    searched: u32,
}

impl Blocks {
    /// Counts the owners in the map and the lanes whose state is sound.
    fn count(medium: &dyn Medium, arena: &ArenaSurvey) -> Result<Blocks> {
        let mut blocks = Blocks {
            used: Bits::new(arena.info.blocks)?,
            shared: Bits::new(arena.info.blocks)?,
            searched: 0,
        };
        arena.each_entry(medium, |sector, entry| {
            let block = entry.block(sector);
            if block < arena.info.blocks && blocks.used.set(block) {
                blocks.shared.set(block);
            }
        })?;
        for lane in arena.lanes.iter().flatten() {
            blocks.used.set(lane.free_block);
        }
        Ok(blocks)
    }

    /// A block without an owner. There is one for every sector and lane.
    fn take(&mut self) -> Result<u32> {
        while self.searched < self.used.length() {
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

/// Makes the sectors that are not trusted unreadable, and gives each a block of its own. Returns
/// how many were readable before.
fn mend_map(medium: &dyn Medium, arena: &ArenaSurvey, blocks: &mut Blocks) -> Result<u64> {
    let Some(untrusted) = &arena.untrusted else {
        return Ok(0);
    };
    let mut given_up = 0;
    let mut result = Ok(());
    arena.each_entry(medium, |sector, entry| {
        if !untrusted.has(sector) || matches!(entry, MapEntry::Error(_)) {
            return;
        }
        given_up += 1;
        let block = entry.block(sector);
        if result.is_ok() && block < arena.info.blocks {
            result = medium.store_u32(arena.map_place(sector), MapEntry::Error(block).encode());
        }
    })?;
    result?;
    // Until here all signs of damage are as they were.
    medium.fence()?;
    let mut kept = Bits::new(arena.info.blocks)?;
    let mut result = Ok(());
    arena.each_entry(medium, |sector, entry| {
        let block = entry.block(sector);
        let is_right = block < arena.info.blocks && (!blocks.shared.has(block) || !kept.set(block));
        if result.is_err() || is_right {
            return;
        }
        result = blocks.take().and_then(|block| {
            medium.store_u32(arena.map_place(sector), MapEntry::Error(block).encode())
        });
    })?;
    result?;
    medium.fence()?;
    Ok(given_up)
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
        let place = arena.flog_place(lane);
        // What is left of the old entries must not make a write of the new one.
        let first = FlogEntry::BYTES as u64;
        medium.zero(place + first, FLOG_BYTES - first)?;
        medium.fence()?;
        medium.store_pair(place, entry.words())?;
        mended += 1;
    }
    medium.fence()?;
    Ok(mended)
}
