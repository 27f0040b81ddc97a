//! Finding a table: by its info blocks or their copies, and only at the place where its version
//! begins.
//!
//! The former content of a medium can still look like a table. So no choice is made between two:
//! two tables at the two possible places are refused, and so are an info block and a copy that are
//! both whole and differ.

use uzram::{Error, ErrorKind, Result};

use super::layout::{
    ARENA_BYTES_MAX, ARENAS_MAX, BttVersion, Defect, FLAG_ERROR, FlogSpacing, INFO_BYTES, Info,
};
use super::state::ArenaSurvey;
use crate::medium::Medium;

/// An arena's info block and its copy.
struct Found {
    arena: ArenaSurvey,
    /// The arena is ambiguous: both are whole and differ.
    doubt: Option<Defect>,
}

/// The arenas of the table on `medium`. Only their info blocks are read.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if there is none, if there are two, or if an arena has no info block
/// that can be trusted.
pub(super) fn find_arenas(medium: &dyn Medium) -> Result<Vec<ArenaSurvey>> {
    let (mut found, mut defects) = (Vec::new(), Vec::new());
    for version in BttVersion::ALL {
        match find_arena(medium, version.initial_offset(), version) {
            Ok(first) => found.push(first),
            Err(defect) => defects.push((version.initial_offset(), defect)),
        }
    }
    if let [one, other] = &found[..] {
        return Err(two_tables(medium, one, other));
    }
    if let Some(first) = found.pop() {
        return follow(medium, certain(medium, first)?);
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
        let next = find_arena(medium, start, arenas[0].info.version).and_then(|next| {
            next.arena.info.check_same_table(&arenas[0].info)?;
            Ok(next)
        });
        let next = next.map_err(|defect| corrupt(medium, start, &defect, "; restore the file"))?;
        arenas.push(certain(medium, next)?);
    }
}

/// The arena of version `version` at `start`, by its info block or by the copy.
fn find_arena(medium: &dyn Medium, start: u64, version: BttVersion) -> Result<Found, Defect> {
    let room = medium.size_bytes().saturating_sub(start);
    let found = |info: Info, damaged_copies, doubt| Found {
        arena: ArenaSurvey {
            start,
            info,
            damaged_copies,
            spacing: FlogSpacing::Adjacent,
            lanes: Vec::new(),
            unfinished: Vec::new(),
            untrusted: None,
        },
        doubt,
    };
    if room < INFO_BYTES as u64 {
        return Err(Defect {
            field: "Sig",
            at: 0,
            text: "is past the end of the file".into(),
        });
    }
    let read = |place| read_info(medium, place, room, version);
    match read(start) {
        Ok(mut info) => match read(start + info.copy_offset) {
            Ok(copy) => {
                // The flag is set in one and then in the other: either is enough.
                info.flags |= copy.flags & FLAG_ERROR;
                let doubt = info.difference(&copy);
                Ok(found(info, vec![], doubt))
            }
            Err(_) => {
                let place = start + info.copy_offset;
                Ok(found(info, vec![place], None))
            }
        },
        Err(defect) => {
            let arena_bytes = room.min(ARENA_BYTES_MAX);
            let offset = arena_bytes - arena_bytes % INFO_BYTES as u64 - INFO_BYTES as u64;
            // The copy of an arena that begins elsewhere can be at this place too.
            let copy = read(start + offset)
                .ok()
                .filter(|info| info.copy_offset == offset);
            copy.map(|info| found(info, vec![start], None))
                .ok_or(defect)
        }
    }
}

/// An unreadable block counts as a damaged one.
fn read_info(
    medium: &dyn Medium,
    place: u64,
    room: u64,
    version: BttVersion,
) -> Result<Info, Defect> {
    let mut block = [0; INFO_BYTES];
    medium.read(place, &mut block).map_err(|error| Defect {
        field: "Sig",
        at: 0,
        text: format!("cannot be read ({error})"),
    })?;
    Info::decode(&block, room, version)
}

fn certain(medium: &dyn Medium, found: Found) -> Result<ArenaSurvey> {
    let arena = found.arena;
    match found.doubt {
        None => Ok(arena),
        Some(defect) => {
            let copy = arena.start + arena.info.copy_offset;
            let remedy = format!(
                " in the copy at offset {copy}, and both info blocks are whole; write the right one over \
                 the other, {INFO_BYTES} bytes"
            );
            Err(corrupt(medium, arena.start, &defect, &remedy))
        }
    }
}

fn two_tables(medium: &dyn Medium, one: &Found, other: &Found) -> Error {
    let describe = |found: &Found| {
        let arena = &found.arena;
        let places: Vec<String> = [arena.start, arena.start + arena.info.copy_offset]
            .iter()
            .filter(|place| !arena.damaged_copies.contains(place))
            .map(ToString::to_string)
            .collect();
        let version = arena.info.version;
        format!("one of {version} (info block at {})", places.join(" and "))
    };
    let (name, one, other) = (medium.name(), describe(one), describe(other));
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "{name}: two tables, {one} and {other}; zero the {INFO_BYTES} bytes of each info block of the one \
             that is not in use"
        ),
    )
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
