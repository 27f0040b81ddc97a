//! Surveying a table: its layout, the writes that a power cut left half done, and its faults.
//!
//! A survey reads all metadata and changes nothing. Two things are no problem, because a power cut
//! leaves them: a damaged info block whose copy is whole, and a write that reached the flog and
//! not the map. Everything else is a problem, listed with the mending that a repair does.
//!
//! Every block of a sound arena belongs to one sector or is one lane's free block. Where two claim
//! a block, nothing tells which claim is wrong. So none of the claiming sectors is trusted, nor
//! the sectors whose map entries share a line with theirs. Damage to one line of the map or to one
//! lane therefore never shows a sector another one's content. The format cannot reveal damage that
//! a writer could have left as well: a sector that looks trimmed, or a lane that wrote one sector
//! twice in a row and whose sequence number undoes the last write.

use uzram::Result;

use super::find::find_arenas;
use super::layout::{FLAG_ERROR, FLOG_BYTES, FlogEntry, FlogSpacing, MapEntry, newest};
use super::state::{ArenaSurvey, Bits, LaneState, Lines, PROBLEMS_LISTED_MAX, Survey, Unfinished};
use crate::medium::Medium;
use crate::memory;

const LANE_REMEDY: &str = "the lane gets a free block";

/// Reads all metadata of the table on `medium`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if there is no table, or no whole info block;
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

/// Reads the lanes' entries: their state and their unfinished writes.
fn read_flog(medium: &dyn Medium, survey: &mut Survey, index: usize) -> Result<()> {
    let lanes = survey.arenas[index].info.lanes as usize;
    let mut groups = memory::boxed_slice(lanes, [0; FLOG_BYTES as usize])?;
    let (mut adjacent, mut padded) = (0, 0);
    for (lane, group) in groups.iter_mut().enumerate() {
        let place = survey.arenas[index].flog_place(lane);
        medium.read(place, group)?;
        // A broken lane does not decide for the others.
        match FlogSpacing::detect(group) {
            Ok(Some(FlogSpacing::Adjacent)) => adjacent += 1,
            Ok(Some(FlogSpacing::Padded)) => padded += 1,
            _ => {}
        }
    }
    let spacing = match adjacent >= padded {
        true => FlogSpacing::Adjacent,
        false => FlogSpacing::Padded,
    };
    survey.arenas[index].spacing = spacing;
    for (lane, group) in groups.iter().enumerate() {
        let arena = &survey.arenas[index];
        let place = arena.flog_place(lane);
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
                if let Some(write) = unfinished {
                    memory::push(&mut arena.unfinished, write)?;
                }
            }
            Err(text) => {
                memory::push(&mut survey.arenas[index].lanes, None)?;
                survey.report(index, format!("Flog[{lane}]"), place, text, LANE_REMEDY);
            }
        }
    }
    sort_unfinished(&mut survey.arenas[index]);
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
    let (entry, older) = (entries[newest], entries[1 - newest]);
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
    // A lane begins with its first entry and no write. The first half of the second one can be there
    // already.
    let is_unused = older.sequence == 0;
    let is_first = newest == 0 && entry.old_block == entry.new_block && older.new_block == 0;
    if is_unused && !is_first {
        return Ok(Err(
            "names a write, and the entry before it was never written".to_owned(),
        ));
    }
    let state = LaneState {
        free_block: entry.old_block,
        next_entry: 1 - newest,
        next_sequence: entry.next_sequence(),
    };
    let mut unfinished = None;
    // A write goes to the block that the lane's write before it made free. If it does not, the entries
    // are no witness, and the sector's block stays in doubt: the map and the lane both name it.
    if !is_unused && entry.new_block == older.old_block {
        let word = medium.load_u32(arena.map_place(entry.sector))?;
        let block = MapEntry::decode(word).block(entry.sector);
        if block == entry.old_block && block != entry.new_block {
            unfinished = Some(Unfinished {
                sector: entry.sector,
                block: entry.new_block,
                old_block: entry.old_block,
            });
        }
    }
    Ok(Ok((state, unfinished)))
}

/// One unfinished write per sector, sorted by sector. Writes of one sector wait for each other, so
/// there cannot be two unfinished ones: then neither counts.
fn sort_unfinished(arena: &mut ArenaSurvey) {
    let writes = &mut arena.unfinished;
    writes.sort_unstable_by_key(|write| write.sector);
    let twice: Vec<u32> = writes
        .windows(2)
        .filter(|pair| pair[0].sector == pair[1].sector)
        .map(|pair| pair[0].sector)
        .collect();
    writes.retain(|write| twice.binary_search(&write.sector).is_err());
}

/// Checks that every block belongs to one sector or is one lane's free one.
fn check_map(medium: &dyn Medium, survey: &mut Survey, index: usize) -> Result<()> {
    let arena = &mut survey.arenas[index];
    let blocks = arena.info.blocks;
    let (mut used, mut shared) = (Bits::new(blocks)?, Bits::new(blocks)?);
    let mut is_sound = true;
    arena.each_entry(medium, |sector, entry| {
        let block = entry.block(sector);
        let is_right = block < blocks && !used.set(block);
        if !is_right && block < blocks {
            shared.set(block);
        }
        is_sound &= is_right;
    })?;
    let mut doubtful = Vec::new();
    for (lane, state) in arena.lanes.iter_mut().enumerate() {
        if let Some(block) = state.map(|state| state.free_block)
            && used.set(block)
        {
            *state = None;
            shared.set(block);
            is_sound = false;
            memory::push(&mut doubtful, (lane, block))?;
        }
    }
    if !is_sound {
        distrust(medium, survey, index, &shared)?;
    }
    for (lane, block) in doubtful {
        let place = survey.arenas[index].flog_place(lane);
        let text = format!("has free block {block}, which is in use");
        survey.report(index, format!("Flog[{lane}]"), place, text, LANE_REMEDY);
    }
    Ok(())
}

/// Marks the lines of the map that name a `shared` block, or an impossible one.
fn distrust(medium: &dyn Medium, survey: &mut Survey, index: usize, shared: &Bits) -> Result<()> {
    const REMEDY: &str =
        "it and its neighbours in the map become unreadable until they are written";
    let arena = &survey.arenas[index];
    let mut untrusted = Lines::new(arena.info.sectors)?;
    let (mut wrong, mut wrong_count) = (Vec::new(), 0);
    arena.each_entry(medium, |sector, entry| {
        let text = match entry {
            MapEntry::Broken(word) => format!("is {word:#010x}, which is no state of a sector"),
            entry if entry.block(sector) >= arena.info.blocks => {
                format!("is block {} of {}", entry.block(sector), arena.info.blocks)
            }
            entry if shared.has(entry.block(sector)) => {
                let block = entry.block(sector);
                format!("is block {block}, which another sector or a lane has too")
            }
            _ => return,
        };
        untrusted.add(sector);
        wrong_count += 1;
        if wrong.len() < PROBLEMS_LISTED_MAX {
            wrong.push((sector, arena.map_place(sector), text));
        }
    })?;
    survey.arenas[index].untrusted = Some(untrusted);
    let listed = wrong.len() as u64;
    for (sector, place, text) in wrong {
        survey.report(index, format!("Map[{sector}]"), place, text, REMEDY);
    }
    survey.problem_count += wrong_count - listed;
    Ok(())
}
