//! Damage to a filled table: each bit of map and flog, runs of bytes, lines that return to an
//! older state. Afterwards a sector reads as its content or as an error, and never as another
//! sector's content.

use std::sync::Arc;

use super::layout::{FLAG_ERROR, FLOG_BYTES, FlogEntry, Info, MapEntry};
use super::state::LINE_SECTORS;
use super::*;
use crate::medium::sim::{Luck, Sim};
use uzram_testkit::Rng;

const SECTOR: usize = 512;
/// Two lines of the map and part of a third.
const SECTORS: u32 = 40;
const LANES: u32 = 3;
const DATA: u64 = 4096;
const MAP: u64 = DATA + 24 * 1024;
const FLOG: u64 = MAP + 4096;
const COPY: u64 = FLOG + 4096;
const ARENA: u64 = COPY + 4096;

/// A table whose only writer is this test, so the test knows the writer of each block.
#[derive(Clone)]
struct Table {
    image: Vec<u8>,
    start: u64,
    map: [u32; SECTORS as usize],
    /// How often each sector was written.
    versions: [u32; SECTORS as usize],
    /// A sector whose last write was not acknowledged: its older content is right as well.
    under_way: Option<u32>,
    lanes: [Lane; LANES as usize],
}

#[derive(Clone, Copy)]
struct Lane {
    free: u32,
    next: u64,
    sequence: u32,
}

fn info(version: BttVersion) -> Info {
    Info {
        uuid: [version.initial_offset() as u8 + 7; 16],
        parent_uuid: [0; 16],
        flags: 0,
        version,
        sector_bytes: SECTOR as u32,
        sectors: SECTORS,
        block_bytes: SECTOR as u32,
        blocks: SECTORS + LANES,
        lanes: LANES,
        next_offset: 0,
        data_offset: DATA,
        map_offset: MAP,
        flog_offset: FLOG,
        copy_offset: COPY,
    }
}

impl Table {
    fn new(version: BttVersion) -> Table {
        let start = version.initial_offset();
        let mut table = Table {
            image: vec![0; (start + ARENA) as usize],
            start,
            map: std::array::from_fn(|sector| sector as u32),
            versions: [0; SECTORS as usize],
            under_way: None,
            lanes: std::array::from_fn(|lane| Lane {
                free: SECTORS + lane as u32,
                next: 1,
                sequence: 2,
            }),
        };
        for place in [0, COPY] {
            table.put(place, &info(version).encode());
        }
        for lane in 0..LANES {
            let block = SECTORS + lane;
            table.put_entry(lane as usize, 0, lane, [block, block], 1);
        }
        table
    }

    /// Each sector was written, some several times, and no lane wrote one sector twice in a row.
    fn filled(seed: u64) -> Table {
        let mut random = Rng::new(seed);
        let mut table = Table::new(BttVersion::V2_0);
        (0..SECTORS).for_each(|sector| table.write(sector as usize % 3, sector));
        let mut last = [SECTORS; LANES as usize];
        for _ in 0..200 {
            let lane = random.below_u64(u64::from(LANES)) as usize;
            let sector = random.below_u64(u64::from(SECTORS)) as u32;
            if last[lane] != sector {
                table.write(lane, sector);
                last[lane] = sector;
            }
        }
        table
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = (self.start + at) as usize;
        self.image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_entry(&mut self, lane: usize, slot: u64, sector: u32, blocks: [u32; 2], sequence: u32) {
        let [old_block, new_block] = blocks;
        let entry = FlogEntry {
            sector,
            old_block,
            new_block,
            sequence,
        };
        let place = FLOG + lane as u64 * FLOG_BYTES + slot * 16;
        let [first, second] = entry.words();
        self.put(place, &first.to_le_bytes());
        self.put(place + 8, &second.to_le_bytes());
    }

    /// Writes a sector up to the flog.
    fn begin(&mut self, lane: usize, sector: u32) {
        let Lane {
            free,
            next,
            sequence,
        } = self.lanes[lane];
        let old = self.map[sector as usize];
        self.versions[sector as usize] += 1;
        let content = content(sector, self.versions[sector as usize]);
        self.put(DATA + u64::from(free) * SECTOR as u64, &content);
        self.put_entry(lane, next, sector, [old, free], sequence);
        self.lanes[lane] = Lane {
            free: old,
            next: 1 - next,
            sequence: sequence % 3 + 1,
        };
        self.map[sector as usize] = free;
    }

    fn write(&mut self, lane: usize, sector: u32) {
        self.begin(lane, sector);
        let word = MapEntry::Normal(self.map[sector as usize]).encode();
        self.put(MAP + u64::from(sector) * 4, &word.to_le_bytes());
    }

    /// The number of sectors that are lost once `damaged` was opened as it is and after a repair.
    fn check(&self, damaged: &[u8], may_be_zero: impl Fn(u32) -> bool) -> Result<u32, String> {
        let read_only = Arc::new(Sim::read_only(damaged.to_vec()));
        let btt = Btt::open_on(Box::new(read_only)).map_err(|error| error.to_string())?;
        self.lost(&btt, &may_be_zero)
            .map_err(|what| format!("read only: {what}"))?;
        let sim = Arc::new(Sim::new(damaged.to_vec()));
        if Btt::open_on(Box::new(Arc::clone(&sim))).is_err() {
            Btt::repair_on(&sim).map_err(|error| error.to_string())?;
            let mended = sim.memory();
            let again = Btt::repair_on(&sim).map_err(|error| error.to_string())?;
            if !again.is_empty() || sim.memory() != mended {
                return Err(format!("a second repair did {again:?}"));
            }
        }
        let btt = Btt::open_on(Box::new(Arc::clone(&sim))).map_err(|error| error.to_string())?;
        let lost = self.lost(&btt, &may_be_zero)?;
        // A sample, for it takes most of the time.
        if damaged.iter().map(|byte| u32::from(*byte)).sum::<u32>() % 8 != 0 {
            return Ok(lost);
        }
        // What is written is held, and the lanes have blocks of their own.
        for round in 1..=2 {
            for sector in 0..SECTORS {
                let (offset, data) = (offset(sector), &content(sector, 1000 + round)[..]);
                let written = btt.submit(Bio::Write { offset, data });
                written.map_err(|error| error.to_string())?;
            }
        }
        for sector in 0..SECTORS {
            if read(&btt, sector).ok() != Some(content(sector, 1002)) {
                return Err(format!("sector {sector} does not hold what was written"));
            }
        }
        Ok(lost)
    }

    fn lost(&self, btt: &Btt, may_be_zero: impl Fn(u32) -> bool) -> Result<u32, String> {
        let mut lost = 0;
        for sector in 0..SECTORS {
            let version = self.versions[sector as usize];
            match read(btt, sector) {
                Err(_) => lost += 1,
                Ok(held) if held == content(sector, version) => {}
                Ok(held) if self.is_before(sector, &held) => {}
                Ok(held) if held == [0; SECTOR] && may_be_zero(sector) => {}
                Ok(held) => {
                    let whose = u32::from_le_bytes(held[..4].try_into().unwrap());
                    return Err(format!("sector {sector} reads as what {whose} held"));
                }
            }
        }
        Ok(lost)
    }
}

impl Table {
    fn is_before(&self, sector: u32, held: &[u8; SECTOR]) -> bool {
        let before = self.versions[sector as usize].wrapping_sub(1);
        self.under_way == Some(sector) && *held == content(sector, before)
    }
}

fn content(sector: u32, version: u32) -> [u8; SECTOR] {
    let mut content = [0x5a; SECTOR];
    content[..4].copy_from_slice(&sector.to_le_bytes());
    content[4..8].copy_from_slice(&version.to_le_bytes());
    content
}

fn offset(sector: u32) -> u64 {
    u64::from(sector) * SECTOR as u64
}

fn read(btt: &Btt, sector: u32) -> Result<[u8; SECTOR]> {
    let mut buffer = [0xee; SECTOR];
    let offset = offset(sector);
    btt.submit(Bio::Read {
        offset,
        buffer: &mut buffer,
    })
    .map(|()| buffer)
}

/// Whether a damaged word says that its sector was trimmed, which nothing contradicts.
fn says_zero(damaged: &[u8], sector: u32) -> bool {
    let at = (MAP + u64::from(sector) * 4) as usize;
    let word = u32::from_le_bytes(damaged[at..at + 4].try_into().unwrap());
    matches!(
        MapEntry::decode(word),
        MapEntry::Zero(_) | MapEntry::Initial
    )
}

fn flip_each_bit(table: &Table, lanes: u64) {
    let places = [
        MAP..MAP + u64::from(SECTORS) * 4,
        FLOG..FLOG + lanes * FLOG_BYTES,
    ];
    for bit in places
        .into_iter()
        .flatten()
        .flat_map(|at| at * 8..at * 8 + 8)
    {
        let mut damaged = table.image.clone();
        damaged[bit as usize / 8] ^= 1 << (bit % 8);
        match table.check(&damaged, |sector| says_zero(&damaged, sector)) {
            Ok(lost) => assert!(lost <= 2 * LINE_SECTORS, "bit {bit}: {lost} sectors lost"),
            Err(what) => panic!("bit {bit}, byte {}: {what}", bit / 8),
        }
    }
}

#[test]
fn after_any_flipped_bit_a_sector_is_its_own_or_an_error() {
    let table = Table::filled(1);
    assert_eq!(table.check(&table.image, |_| false), Ok(0));
    flip_each_bit(&table, u64::from(LANES));
}

#[test]
fn after_any_flipped_bit_an_unfinished_write_is_its_own_or_an_error() {
    let mut table = Table::filled(2);
    table.begin(0, 5);
    table.under_way = Some(5);
    assert_eq!(table.check(&table.image, |_| false), Ok(0));
    flip_each_bit(&table, 1);
}

#[test]
fn reading_only_shows_an_unfinished_write_as_opening_would_leave_it() {
    let mut table = Table::filled(4);
    table.begin(0, 5);
    let image = Sim::read_only(table.image.clone());
    let read_only = Btt::open_on(Box::new(Arc::new(image))).unwrap();
    assert_eq!(table.lost(&read_only, |_| false), Ok(0));
    let writable = Sim::new(table.image.clone());
    let writable = Btt::open_on(Box::new(Arc::new(writable))).unwrap();
    assert_eq!(table.lost(&writable, |_| false), Ok(0));
}

#[test]
fn after_any_damage_to_a_line_or_a_lane_a_sector_is_its_own_or_an_error() {
    for seed in 0..if cfg!(debug_assertions) { 1000 } else { 20_000 } {
        let table = Table::filled(seed / 100);
        let mut random = Rng::new(seed);
        let line = random.below_u64(u64::from(SECTORS.div_ceil(LINE_SECTORS)));
        let (first, length) = match random.below_u64(2) {
            0 => (MAP + line * 64, 64.min(u64::from(SECTORS) * 4 - line * 64)),
            _ => (FLOG + random.below_u64(u64::from(LANES)) * FLOG_BYTES, 32),
        };
        let mut damaged = table.image.clone();
        let at = random.below_u64(length);
        for at in at..(at + 1 + random.below_u64(16)).min(length) {
            damaged[(first + at) as usize] = random.below_u64(256) as u8;
        }
        let checked = table.check(&damaged, |sector| says_zero(&damaged, sector));
        assert!(checked.is_ok(), "seed {seed}: {checked:?}");
    }
}

/// Sectors that are written in turn hand their blocks to the next one: an older line looks sound
/// except at its ends.
#[test]
fn a_line_of_the_map_that_went_back_shows_nobody_elses_content() {
    let mut table = Table::filled(3);
    let older = table.image.clone();
    (0..SECTORS).for_each(|sector| table.write(0, sector));
    let line = MAP as usize + 64..MAP as usize + 128;
    let mut damaged = table.image.clone();
    damaged[line.clone()].copy_from_slice(&older[line]);
    let lost = table.check(&damaged, |_| false).unwrap();
    assert!(lost >= LINE_SECTORS, "{lost}");
}

#[test]
fn a_power_cut_in_a_repair_does_not_hide_damage() {
    for seed in 0..if cfg!(debug_assertions) { 400 } else { 4000 } {
        let table = Table::filled(seed / 50);
        let mut random = Rng::new(seed);
        let mut damaged = table.image.clone();
        let line = random.below_u64(2);
        for _ in 0..1 + random.below_u64(4) {
            let at = MAP + line * 64 + random.below_u64(64);
            damaged[at as usize] ^= 1 << random.below_u64(6);
        }
        let sim = Arc::new(Sim::new(damaged.clone()));
        sim.cut_at(1 + random.below_u64(40));
        let _ = Btt::repair_on(&sim);
        let luck = Luck {
            seed,
            kept: [0, 128, 256][random.below_u64(3) as usize],
            by_line: random.below_u64(2) == 0,
        };
        let cut = sim.after_cut(luck);
        let checked = table.check(&cut, |sector| says_zero(&damaged, sector));
        assert!(checked.is_ok(), "seed {seed}: {checked:?}");
    }
}

#[test]
fn a_lane_that_was_never_used_carries_no_write_through() {
    let mut table = Table::new(BttVersion::V2_0);
    (0..SECTORS).for_each(|sector| table.write(1, sector));
    // Lane 0's only entry says that sector 9 moved to the lane's block.
    let block = table.map[9];
    table.put_entry(0, 0, 9, [block, SECTORS], 1);
    let error = Btt::open_on(Box::new(Arc::new(Sim::new(table.image.clone())))).unwrap_err();
    assert!(
        error.to_string().contains("Flog[0] names a write"),
        "{error}"
    );
    assert_eq!(table.check(&table.image, |_| false), Ok(0));
    // The first half of its first write is what a power cut leaves.
    let mut table = Table::new(BttVersion::V2_0);
    table.put_entry(0, 1, 9, [9, 0], 0);
    let sim = Arc::new(Sim::new(table.image));
    assert_eq!(survey::survey(&sim).unwrap().problems, []);
}

#[test]
fn a_lane_whose_entries_contradict_each_other_carries_no_write_through() {
    let mut table = Table::filled(5);
    let Lane { free, next, .. } = table.lanes[0];
    let at = (FLOG + (1 - next) * 16 + 12) as usize;
    let sequence = u32::from(table.image[at]);
    // The lane's free block holds what some sector held once.
    table.put_entry(0, 1 - next, 9, [table.map[9], free], sequence);
    assert_eq!(table.check(&table.image, |_| false), Ok(LINE_SECTORS));
    // Two lanes cannot write one sector at a time.
    let mut table = Table::filled(6);
    let block = table.map[9];
    table.begin(0, 9);
    table.map[9] = block;
    table.begin(1, 9);
    assert_eq!(table.check(&table.image, |_| false), Ok(LINE_SECTORS));
}

#[test]
fn a_map_word_without_flags_is_initial_only_if_it_is_0() {
    let mut table = Table::filled(4);
    table.put(MAP + 20, &5u32.to_le_bytes());
    let error = Btt::open_on(Box::new(Arc::new(Sim::new(table.image.clone())))).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("Map[5] is 0x00000005"), "{text}");
    assert_eq!(table.check(&table.image, |_| false), Ok(LINE_SECTORS));
    let map = MapEntry::decode(7);
    assert_eq!((map, map.encode()), (MapEntry::Broken(7), 7));
}

fn opened(image: &[u8]) -> Result<Btt> {
    Btt::open_on(Box::new(Arc::new(Sim::new(image.to_vec()))))
}

/// The medium's former content still lies at its start: 4096 bytes that a table of version 1.1
/// leaves alone.
#[test]
fn two_tables_on_one_medium_are_refused() {
    let live = Table::new(BttVersion::V1_1);
    let mut both = live.image.clone();
    // The older table was as large as the medium, so its copy was where the newer one's is now.
    let stale = Info {
        copy_offset: COPY + 4096,
        ..info(BttVersion::V2_0)
    };
    both[..4096].copy_from_slice(&stale.encode());
    let text = opened(&both).unwrap_err().to_string();
    let (one, other) = (
        "2.0 (info block at 0)".to_owned(),
        format!("1.1 (info block at 4096 and {})", COPY + 4096),
    );
    assert!(text.contains(&one) && text.contains(&other), "{text}");
    let sim = Arc::new(Sim::new(both.clone()));
    assert_eq!(Btt::repair_on(&sim).unwrap_err().to_string(), text);
    assert_eq!(sim.memory(), both, "a repair must not choose");
    both[..4096].fill(0);
    assert!(opened(&both).is_ok());
}

#[test]
fn a_version_belongs_to_its_place() {
    for version in BttVersion::ALL {
        let table = Table::new(version);
        assert!(opened(&table.image).is_ok());
        let mut moved = match version {
            BttVersion::V1_1 => table.image[4096..].to_vec(),
            BttVersion::V2_0 => [&[0; 4096], &table.image[..]].concat(),
        };
        let text = opened(&moved).unwrap_err().to_string();
        assert!(text.contains(&format!("Minor are {version}")), "{text}");
        // A table in its place is found beside what is in the wrong one.
        let right = Table::new(match version {
            BttVersion::V1_1 => BttVersion::V2_0,
            BttVersion::V2_0 => BttVersion::V1_1,
        });
        moved.resize(right.image.len(), 0);
        let start = right.start as usize;
        moved[start..].copy_from_slice(&right.image[start..]);
        assert!(opened(&moved).is_ok());
    }
}

#[test]
fn info_blocks_that_are_whole_and_differ_are_refused() {
    let table = Table::new(BttVersion::V1_1);
    type Change = fn(&mut Info);
    let changes: [(&str, Change); 3] = [
        ("Uuid", |info| info.uuid = [9; 16]),
        ("ExternalNLba", |info| info.sectors -= 1),
        ("Flags", |info| info.flags = 2),
    ];
    for (field, change) in changes {
        let mut copy = info(BttVersion::V1_1);
        change(&mut copy);
        let mut image = table.image.clone();
        let place = (table.start + COPY) as usize;
        image[place..place + 4096].copy_from_slice(&copy.encode());
        let text = opened(&image).unwrap_err().to_string();
        let said = format!("{field} is another in the copy at offset {place}");
        assert!(text.contains(&said), "{text}");
        let sim = Arc::new(Sim::new(image.clone()));
        assert!(Btt::repair_on(&sim).is_err());
        assert_eq!(sim.memory(), image, "a repair must not choose");
    }
    // The error flag is set in one and then in the other.
    for at in [0, COPY] {
        let mut table = table.clone();
        let mut marked = info(BttVersion::V1_1);
        marked.flags = FLAG_ERROR;
        table.put(at, &marked.encode());
        let text = opened(&table.image).unwrap_err().to_string();
        assert!(text.contains("Flags"), "{text}");
        assert_eq!(table.check(&table.image, |_| true), Ok(0));
    }
}

#[test]
fn sectors_with_metadata_are_refused_for_what_they_are() {
    for (sector, said) in [
        (520u32, "512 bytes and 8 of"),
        (528, "512 bytes and 16 of"),
        (4104, "4096 bytes and 8 of"),
        (4160, "4096 bytes and 64 of"),
        (4224, "4096 bytes and 128 of"),
    ] {
        let mut info = info(BttVersion::V2_0);
        (info.sector_bytes, info.block_bytes) = (sector, sector.next_multiple_of(64));
        let block = info.encode();
        let text = match Info::decode(&block, 1 << 30, BttVersion::V2_0) {
            Ok(_) => panic!("{sector} is taken"),
            Err(defect) => format!("{} {}", defect.field, defect.text),
        };
        assert!(
            text.contains(said) && text.contains("ExternalLbaSize"),
            "{text}"
        );
    }
}
