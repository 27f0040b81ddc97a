//! Tests of the table on simulated memory: power cuts, damage, races. Tables are far smaller here
//! than those that `format` makes, so that a test sees all of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::layout::{
    ARENA_BYTES_MAX, FLAG_ERROR, FLOG_BYTES, FlogEntry, FlogSpacing, INFO_BYTES, Info, MapEntry,
    plan,
};
use super::*;
use crate::medium::sim::{Luck, Plant, Sim};
use uzram_testkit::Rng;

const SECTOR: usize = 512;
const SECTORS: u32 = 6;
const LANES: u32 = 2;
const DATA: u64 = 4096;
const MAP: u64 = 8192;
const FLOG: u64 = 12288;
const COPY: u64 = 16384;
const SIZE: usize = 20480;

/// Stories with power cuts, at least three cuts each.
const SEEDS: u64 = if cfg!(debug_assertions) { 1500 } else { 12_000 };

fn info() -> Info {
    Info {
        uuid: [7; 16],
        parent_uuid: [0; 16],
        flags: 0,
        version: BttVersion::V2_0,
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

/// An empty table.
fn image() -> Vec<u8> {
    let mut image = vec![0; SIZE];
    put(&mut image, 0, &info().encode());
    put(&mut image, COPY, &info().encode());
    for lane in 0..LANES {
        let block = SECTORS + lane;
        put_entry(&mut image, lane, 0, entry(lane, block, block, 1));
    }
    image
}

fn put(image: &mut [u8], at: u64, bytes: &[u8]) {
    image[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
}

fn entry(sector: u32, old_block: u32, new_block: u32, sequence: u32) -> FlogEntry {
    FlogEntry {
        sector,
        old_block,
        new_block,
        sequence,
    }
}

fn put_entry(image: &mut [u8], lane: u32, at: u64, entry: FlogEntry) {
    let place = FLOG + u64::from(lane) * FLOG_BYTES + at;
    let [first, second] = entry.words();
    put(image, place, &first.to_le_bytes());
    put(image, place + 8, &second.to_le_bytes());
}

fn put_map(image: &mut [u8], sector: u32, entry: MapEntry) {
    put(
        image,
        MAP + u64::from(sector) * 4,
        &entry.encode().to_le_bytes(),
    );
}

fn open(image: &[u8]) -> Result<Btt> {
    Btt::open_on(Box::new(Arc::new(Sim::new(image.to_vec()))))
}

/// The problems that a survey finds, and the table after a repair.
fn repaired(image: &[u8]) -> (Vec<String>, Btt) {
    let sim = Arc::new(Sim::new(image.to_vec()));
    let problems = survey::survey(&sim).unwrap().problems;
    Btt::repair_on(&sim).unwrap();
    let btt = open(&sim.memory()).unwrap();
    (problems.iter().map(ToString::to_string).collect(), btt)
}

fn read(btt: &Btt, sector: u32) -> Result<Vec<u8>> {
    let mut buffer = vec![0xee; SECTOR];
    let offset = u64::from(sector) * SECTOR as u64;
    btt.submit(Bio::Read {
        offset,
        buffer: &mut buffer,
    })
    .map(|()| buffer)
}

fn write(btt: &Btt, sector: u32, data: &[u8]) -> Result<()> {
    let offset = u64::from(sector) * SECTOR as u64;
    btt.submit(Bio::Write { offset, data })
}

fn works(btt: &Btt) {
    for round in 1..4 {
        for sector in 0..SECTORS {
            write(btt, sector, &[round * 16 + sector as u8; SECTOR]).unwrap();
        }
        for sector in 0..SECTORS {
            assert_eq!(
                read(btt, sector).unwrap(),
                [round * 16 + sector as u8; SECTOR]
            );
        }
    }
}

/// The allowed contents of a sector after a cut: the acknowledged one, or one under way.
#[derive(Clone)]
struct Sector {
    acknowledged: Vec<u8>,
    under_way: Option<Vec<u8>>,
}

/// Random writes, partial ones too, and trims until the power goes; then the allowed contents of
/// the sectors.
fn load(btt: &Btt, random: &mut Rng, sectors: &mut [Sector], steps: u64) {
    for step in 0..steps {
        let number = random.below_u64(u64::from(SECTORS)) as usize;
        let sector = &mut sectors[number];
        let base = number as u64 * SECTOR as u64;
        let mut wanted = sector.acknowledged.clone();
        let done = match random.below_u64(8) {
            0 => {
                wanted.fill(0);
                let length = SECTOR as u64;
                sector.under_way = Some(wanted.clone());
                btt.submit(Bio::Trim {
                    offset: base,
                    length,
                })
            }
            1 => {
                let start = random.below_u64(SECTOR as u64 - 1) as usize;
                let length = 1 + random.below_u64((SECTOR - start) as u64) as usize;
                let fill = 1 + random.below_u64(255) as u8;
                wanted[start..start + length].fill(fill);
                sector.under_way = Some(wanted.clone());
                btt.submit(Bio::Write {
                    offset: base + start as u64,
                    data: &wanted[start..start + length],
                })
            }
            _ => {
                let fill = random.below_u64(u64::MAX).to_le_bytes();
                let fill = fill.iter().cycle().take(SECTOR);
                wanted = fill.copied().collect();
                wanted[0] = step as u8;
                sector.under_way = Some(wanted.clone());
                btt.submit(Bio::Write {
                    offset: base,
                    data: &wanted,
                })
            }
        };
        if done.is_err() {
            return;
        }
        sector.acknowledged = wanted;
        sector.under_way = None;
    }
}

fn check_sectors(btt: &Btt, sectors: &[Sector]) -> Result<(), String> {
    for (number, sector) in sectors.iter().enumerate() {
        let held = read(btt, number as u32).map_err(|error| error.to_string())?;
        let is_right = held == sector.acknowledged || sector.under_way.as_ref() == Some(&held);
        if !is_right {
            return Err(format!("sector {number} is neither old nor new"));
        }
    }
    Ok(())
}

fn luck(random: &mut Rng) -> Luck {
    Luck {
        seed: random.below_u64(u64::MAX),
        kept: [0, 16, 128, 240, 256][random.below_u64(5) as usize],
        by_line: random.below_u64(3) == 0,
    }
}

/// One story: a load, a cut at a random store, a cut during the recovery from that, and a check.
fn cut_story(seed: u64, plant: Plant) -> Result<(), String> {
    let mut random = Rng::new(seed);
    let empty = Sector {
        acknowledged: vec![0; SECTOR],
        under_way: None,
    };
    let mut sectors = vec![empty; SECTORS as usize];
    let mut content = image();
    for _ in 0..3 {
        let sim = Arc::new(Sim::with_plant(content, plant));
        let btt = Btt::open_on(Box::new(Arc::clone(&sim))).map_err(|error| error.to_string())?;
        // A write is four to five stores.
        let steps = 1 + random.below_u64(16);
        sim.cut_at(1 + random.below_u64(steps * 5));
        load(&btt, &mut random, &mut sectors, steps);
        content = sim.after_cut(luck(&mut random));
        for _ in 0..random.below_u64(3) {
            let sim = Arc::new(Sim::with_plant(content, plant));
            sim.cut_at(1 + random.below_u64(4));
            let _ = Btt::open_on(Box::new(Arc::clone(&sim)));
            content = sim.after_cut(luck(&mut random));
        }
        if random.below_u64(4) == 0 {
            // One info block is lost; the other one must do.
            let at = [0, COPY][random.below_u64(2) as usize] + random.below_u64(INFO_BYTES as u64);
            content[at as usize] ^= 0x55;
        }
        let btt = open(&content).map_err(|error| error.to_string())?;
        check_sectors(&btt, &sectors)?;
        for (number, sector) in sectors.iter_mut().enumerate() {
            sector.acknowledged = read(&btt, number as u32).map_err(|error| error.to_string())?;
            sector.under_way = None;
        }
    }
    works(&open(&content).map_err(|error| error.to_string())?);
    Ok(())
}

#[test]
fn a_power_cut_leaves_every_sector_old_or_new() {
    for seed in 0..SEEDS {
        if let Err(what) = cut_story(seed, Plant::None) {
            panic!("seed {seed}: {what}");
        }
    }
}

#[test]
fn a_power_cut_at_every_store_leaves_every_sector_old_or_new() {
    for seed in 0..24 {
        for cut in 1.. {
            let mut random = Rng::new(seed);
            let empty = Sector {
                acknowledged: vec![0; SECTOR],
                under_way: None,
            };
            let mut sectors = vec![empty; SECTORS as usize];
            let sim = Arc::new(Sim::new(image()));
            let btt = Btt::open_on(Box::new(Arc::clone(&sim))).unwrap();
            sim.cut_at(cut);
            load(&btt, &mut random, &mut sectors, 8);
            let content = sim.after_cut(luck(&mut random));
            let checked = check_sectors(&open(&content).unwrap(), &sectors);
            assert_eq!(checked, Ok(()), "seed {seed}, cut at store {cut}");
            if sim.stores() < cut {
                break;
            }
        }
    }
}

#[test]
fn what_breaks_the_order_of_stores_is_caught() {
    let plants = [
        Plant::MissingFence(1),
        Plant::MissingFence(2),
        Plant::MissingFence(0),
        Plant::LateData,
        Plant::LateFlog,
        Plant::BackwardPairs,
    ];
    for plant in plants {
        let caught = (0..4000).any(|seed| cut_story(seed, plant).is_err());
        assert!(caught, "{plant:?} went unseen");
    }
}

/// Threads share lanes and map locks. Each has sectors of its own, so that it knows their allowed
/// contents.
#[test]
fn a_power_cut_under_many_writers_leaves_every_sector_old_or_new() {
    for seed in 0..150 {
        let mut random = Rng::new(seed);
        let sim = Arc::new(Sim::new(image()));
        let btt = Btt::open_on(Box::new(Arc::clone(&sim))).unwrap();
        sim.cut_at(1 + random.below_u64(120));
        let thread = |first: u32| {
            let btt = &btt;
            let mut random = Rng::new(seed * 8 + u64::from(first) * 2 + 1);
            move || {
                let mut held = [vec![0; SECTOR], vec![0; SECTOR]];
                for step in 0..40u8 {
                    let which = random.below_u64(2) as usize;
                    let data = vec![1 + step; SECTOR];
                    if write(btt, first + which as u32, &data).is_err() {
                        return (held, Some((which, data)));
                    }
                    held[which] = data;
                }
                (held, None)
            }
        };
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|t| scope.spawn(thread(t * 2))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let after = open(&sim.after_cut(luck(&mut random))).unwrap();
        for (t, (held, under_way)) in outcomes.into_iter().enumerate() {
            for (which, data) in held.iter().enumerate() {
                let now = read(&after, (t * 2 + which) as u32).unwrap();
                let new = under_way.as_ref().filter(|(of, _)| *of == which);
                let is_right = now == *data || new.is_some_and(|(_, new)| *new == now);
                assert!(is_right, "seed {seed}, thread {t}, sector {which}");
            }
        }
    }
}

#[test]
fn a_reader_never_sees_the_block_of_another_write() {
    let sim = Arc::new(Sim::new(image()));
    let btt = Btt::open_on(Box::new(sim)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let held = read(&btt, 0).unwrap();
                        assert!(
                            held.iter().all(|byte| *byte == held[0]),
                            "a mix of two writes"
                        );
                        // Sector 1's content has the high bit.
                        assert!(held[0] < 128, "another sector's content");
                    }
                })
            })
            .collect();
        for step in 0..6000u32 {
            write(&btt, 0, &[(step % 128) as u8; SECTOR]).unwrap();
            write(&btt, 1, &[128 + (step % 128) as u8; SECTOR]).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn partial_writes_of_one_sector_do_not_undo_each_other() {
    let sim = Arc::new(Sim::new(image()));
    let btt = Btt::open_on(Box::new(sim)).unwrap();
    let half = SECTOR / 2;
    std::thread::scope(|scope| {
        for side in 0..2 {
            let btt = &btt;
            scope.spawn(move || {
                for step in 0..600u32 {
                    let data = vec![step as u8; half];
                    let offset = (side * half) as u64;
                    btt.submit(Bio::Write {
                        offset,
                        data: &data,
                    })
                    .unwrap();
                    let mut back = vec![0; half];
                    btt.submit(Bio::Read {
                        offset,
                        buffer: &mut back,
                    })
                    .unwrap();
                    assert_eq!(back, data, "side {side}, step {step}");
                }
            });
        }
    });
}

#[test]
fn writers_of_one_sector_free_a_block_each() {
    let sim = Arc::new(Sim::new(image()));
    let btt = Btt::open_on(Box::new(Arc::clone(&sim))).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let btt = &btt;
            scope.spawn(move || {
                (0..2000).for_each(|_| write(btt, 0, &[thread; SECTOR]).unwrap());
            });
        }
    });
    assert_eq!(survey::survey(&sim).unwrap().problems, []);
    works(&btt);
}

#[test]
fn each_info_block_stands_in_for_the_other() {
    let sound = open(&image()).unwrap();
    assert!(sound.recovered().is_empty());
    for at in [0, COPY] {
        for byte in [0, 20, 60, 100, 2000, 4090] {
            let mut content = image();
            content[(at + byte) as usize] ^= 1;
            let sim = Arc::new(Sim::new(content));
            let btt = Btt::open_on(Box::new(Arc::clone(&sim))).unwrap();
            assert_eq!(btt.recovered().len(), 1, "{:?}", btt.recovered());
            assert_eq!(sim.memory(), image(), "byte {byte} of the block at {at}");
        }
    }
    let mut content = image();
    content[100] ^= 1;
    content[COPY as usize + 100] ^= 1;
    let error = open(&content).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error.to_string().contains("offset 4088: Checksum"),
        "{error}"
    );
}

#[test]
fn an_info_block_that_cannot_be_read_is_as_good_as_damaged() {
    let sim = Arc::new(Sim::new(image()));
    sim.poison(0..64);
    let survey = survey::survey(&sim).unwrap();
    assert_eq!(survey.arenas[0].damaged_copies, [0]);
}

#[test]
fn every_field_that_makes_no_sense_is_named() {
    type Change = fn(&mut Info);
    let cases: [(&str, &str, Change); 12] = [
        ("ExternalLbaSize", "offset 56", |info| {
            info.sector_bytes = 520;
        }),
        ("ExternalLbaSize", "offset 56", |info| info.sector_bytes = 0),
        ("ExternalNLba", "offset 60", |info| info.sectors = 0),
        ("ExternalNLba", "offset 60", |info| info.sectors = u32::MAX),
        ("InternalLbaSize", "offset 64", |info| info.block_bytes = 64),
        ("InternalNLba", "offset 68", |info| info.blocks = u32::MAX),
        ("NFree", "offset 72", |info| info.lanes = 0),
        ("NextOff", "offset 80", |info| info.next_offset = 1 << 40),
        ("DataOff", "offset 88", |info| info.data_offset = 0),
        ("MapOff", "offset 96", |info| {
            info.map_offset = u64::MAX - 4095;
        }),
        ("FlogOff", "offset 104", |info| info.flog_offset = MAP),
        ("InfoOff", "offset 112", |info| {
            info.copy_offset = SIZE as u64;
        }),
    ];
    for (field, place, change) in cases {
        let mut info = info();
        change(&mut info);
        let mut content = image();
        put(&mut content, 0, &info.encode());
        put(&mut content, COPY, &info.encode());
        let error = open(&content).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let text = error.to_string();
        assert!(
            text.contains(field) && text.contains(place),
            "{field}: {text}"
        );
    }
    let mut content = image();
    let mut block = info().encode();
    block[52] = 9;
    // The checksum is a sum of sums: the version's word counts once for each word from it to the end.
    let words = (INFO_BYTES - 52) as u64 / 4;
    let sum = u64::from_le_bytes(block[4088..].try_into().unwrap());
    let (low, high) = (sum as u32 + 7, (sum >> 32) as u32 + (7 * words) as u32);
    block[4088..].copy_from_slice(&(u64::from(high) << 32 | u64::from(low)).to_le_bytes());
    put(&mut content, 0, &block);
    put(&mut content, COPY, &block);
    let text = open(&content).unwrap_err().to_string();
    assert!(text.contains("Major and Minor are 9.0"), "{text}");
}

#[test]
fn a_foreign_or_cut_file_is_refused() {
    let foreign = vec![0x42; SIZE];
    let text = open(&foreign).unwrap_err().to_string();
    assert!(
        text.contains("Sig") && text.contains("uzram btt create"),
        "{text}"
    );
    let text = open(&[0; 4096]).unwrap_err().to_string();
    assert!(text.contains("Sig"), "{text}");
    for size in [4096, 8192, COPY as usize] {
        let error = open(&image()[..size]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{size}");
        assert!(error.to_string().contains("cut off"), "{size}: {error}");
    }
}

#[test]
fn an_arena_of_another_table_is_refused() {
    let mut content = image();
    content.extend(image());
    let mut first = info();
    first.next_offset = SIZE as u64;
    put(&mut content, 0, &first.encode());
    put(&mut content, COPY, &first.encode());
    let both = open(&content).unwrap();
    assert_eq!(
        both.geometry().size_bytes,
        2 * u64::from(SECTORS) * SECTOR as u64
    );
    let across = (u64::from(SECTORS) - 1) * SECTOR as u64;
    let data: Vec<u8> = (0..2 * SECTOR).map(|at| at as u8).collect();
    both.submit(Bio::Write {
        offset: across,
        data: &data,
    })
    .unwrap();
    let mut back = vec![0; 2 * SECTOR];
    both.submit(Bio::Read {
        offset: across,
        buffer: &mut back,
    })
    .unwrap();
    assert_eq!(back, data);

    let mut other = info();
    other.uuid = [8; 16];
    put(&mut content, SIZE as u64, &other.encode());
    put(&mut content, SIZE as u64 + COPY, &other.encode());
    let text = open(&content).unwrap_err().to_string();
    assert!(
        text.contains(&format!("offset {}: Uuid", SIZE + 16)),
        "{text}"
    );
}

#[test]
fn broken_map_entries_are_refused_and_mended_to_errors() {
    // All sectors of this table share a line of the map.
    type Case = (&'static str, &'static [(u32, MapEntry)]);
    let cases: [Case; 4] = [
        ("Map[2] is block 99", &[(2, MapEntry::Normal(99))]),
        ("Map[1] is block 1, which", &[(3, MapEntry::Normal(1))]),
        (
            "Map[5] is block 2, which",
            &[(3, MapEntry::Zero(2)), (5, MapEntry::Error(2))],
        ),
        ("Flog[1] has free block 7", &[(0, MapEntry::Normal(7))]),
    ];
    for (what, entries) in cases {
        let mut content = image();
        put_map(&mut content, 1, MapEntry::Normal(1));
        put_map(&mut content, 2, MapEntry::Normal(2));
        put(&mut content, DATA, &[0x33; SECTOR]);
        for (sector, entry) in entries {
            put_map(&mut content, *sector, *entry);
        }
        let error = open(&content).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("btt repair"), "{error}");
        let (problems, btt) = repaired(&content);
        assert!(
            problems.iter().any(|problem| problem.contains(what)),
            "{problems:?}"
        );
        for sector in 0..SECTORS {
            let text = read(&btt, sector).unwrap_err().to_string();
            assert!(text.contains(&format!("Map[{sector}]")), "{text}");
            // What is not overwritten whole cannot be made up.
            assert!(write(&btt, sector, &[1; 100]).is_err());
        }
        works(&btt);
    }
}

#[test]
fn torn_flog_entries_are_refused_and_the_lane_gets_a_block() {
    let torn = [
        [entry(0, 6, 6, 0), entry(0, 0, 0, 0)],
        [entry(0, 6, 6, 2), entry(0, 6, 6, 2)],
        [entry(0, 6, 6, 4), entry(0, 6, 6, 1)],
        [entry(99, 6, 6, 1), entry(0, 0, 0, 0)],
        [entry(0, 99, 6, 1), entry(0, 0, 0, 0)],
        [entry(0, 6, 99, 1), entry(0, 0, 0, 0)],
    ];
    for entries in torn {
        let mut content = image();
        put_entry(&mut content, 0, 0, entries[0]);
        put_entry(&mut content, 0, 16, entries[1]);
        let error = open(&content).unwrap_err();
        assert!(error.to_string().contains("Flog[0]"), "{error}");
        let (problems, btt) = repaired(&content);
        assert_eq!(problems.len(), 1, "{problems:?}");
        works(&btt);
    }
}

#[test]
fn both_spacings_of_flog_entries_are_read_and_kept() {
    for spacing in [FlogSpacing::Adjacent, FlogSpacing::Padded] {
        let second = spacing.offsets()[1];
        let mut content = image();
        // Lane 0 has written sector 3: block 6, and before that made 3 free.
        put_entry(&mut content, 0, second, entry(3, 3, 6, 2));
        put_map(&mut content, 3, MapEntry::Normal(6));
        put(&mut content, DATA + 6 * SECTOR as u64, &[0x77; SECTOR]);
        let sim = Arc::new(Sim::new(content));
        let survey = survey::survey(&sim).unwrap();
        assert_eq!(survey.arenas[0].spacing, spacing);
        let btt = Btt::open_on(Box::new(Arc::clone(&sim))).unwrap();
        assert_eq!(read(&btt, 3).unwrap(), [0x77; SECTOR]);
        works(&btt);
        let survey = survey::survey(&sim).unwrap();
        assert_eq!(
            (survey.arenas[0].spacing, survey.problem_count),
            (spacing, 0)
        );
    }
    let mut content = image();
    put_entry(&mut content, 0, 16, entry(0, 6, 6, 2));
    put_entry(&mut content, 1, 32, entry(0, 7, 7, 2));
    assert!(open(&content).unwrap_err().to_string().contains("Flog[1]"));
}

#[test]
fn a_write_that_reached_the_flog_is_carried_through() {
    for has_flags in [false, true] {
        let mut content = image();
        let flags = if has_flags { 3 << 30 } else { 0 };
        put_entry(&mut content, 1, 16, entry(4, 4 | flags, 7 | flags, 2));
        put(&mut content, DATA + 7 * SECTOR as u64, &[0x99; SECTOR]);
        let btt = open(&content).unwrap();
        assert_eq!(read(&btt, 4).unwrap(), [0x99; SECTOR]);
        assert_eq!(btt.recovered().len(), 1);
        works(&btt);
    }
}

#[test]
fn map_states_read_as_the_specification_says() {
    let mut content = image();
    for sector in 0..SECTORS {
        put(
            &mut content,
            DATA + u64::from(sector) * SECTOR as u64,
            &[0x11; SECTOR],
        );
    }
    put_map(&mut content, 0, MapEntry::Normal(0));
    put_map(&mut content, 1, MapEntry::Zero(1));
    put_map(&mut content, 2, MapEntry::Error(2));
    let btt = open(&content).unwrap();
    assert_eq!(read(&btt, 0).unwrap(), [0x11; SECTOR]);
    assert_eq!(read(&btt, 1).unwrap(), [0; SECTOR]);
    assert_eq!(read(&btt, 2).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(read(&btt, 3).unwrap(), [0; SECTOR]);
    works(&btt);
}

#[test]
fn the_error_flag_keeps_writers_out_until_a_repair() {
    let mut marked = info();
    marked.flags = FLAG_ERROR;
    let mut content = image();
    put(&mut content, 0, &marked.encode());
    put(&mut content, COPY, &marked.encode());
    assert!(open(&content).unwrap_err().to_string().contains("Flags"));
    let (problems, btt) = repaired(&content);
    assert_eq!(problems.len(), 1);
    works(&btt);
}

#[test]
fn hostile_metadata_is_refused_or_mended_and_never_panics() {
    let mut sound = image();
    put_entry(&mut sound, 0, 16, entry(3, 3, 6, 2));
    put_map(&mut sound, 3, MapEntry::Normal(6));
    for seed in 0..3000 {
        let mut random = Rng::new(seed);
        let mut content = sound.clone();
        for _ in 0..=random.below_u64(6) {
            // Map and flog; info blocks are checksummed and have their own tests.
            let at = match random.below_u64(2) {
                0 => MAP + random.below_u64(u64::from(SECTORS) * 4),
                _ => FLOG + random.below_u64(u64::from(LANES) * FLOG_BYTES),
            };
            content[at as usize] = random.below_u64(256) as u8;
        }
        if let Ok(btt) = open(&content) {
            works(&btt);
            continue;
        }
        let (problems, btt) = repaired(&content);
        assert!(!problems.is_empty(), "seed {seed}");
        works(&btt);
    }
}

#[test]
fn a_failed_write_stops_writes_until_it_is_reopened() {
    let mut random = Rng::new(1);
    for cut in 1..=4 {
        let sim = Arc::new(Sim::new(image()));
        let btt = Btt::open_on(Box::new(Arc::clone(&sim))).unwrap();
        write(&btt, 0, &[1; SECTOR]).unwrap();
        sim.cut_at(cut);
        assert_eq!(write(&btt, 0, &[2; SECTOR]).is_err(), cut <= 3, "{cut}");
        sim.cut_at(u64::MAX);
        let held = read(&btt, 0).unwrap();
        assert!(held == [1; SECTOR] || held == [2; SECTOR]);
        // Once the flog may have switched, the lane must not write to its block again.
        let again = write(&btt, 1, &[3; SECTOR]);
        assert_eq!(again.is_err(), (2..=3).contains(&cut), "{cut}: {again:?}");
        let after = open(&sim.after_cut(luck(&mut random))).unwrap();
        let held = read(&after, 0).unwrap();
        assert!(held == [1; SECTOR] || held == [2; SECTOR]);
    }
}

#[test]
fn trims_and_zeroes_leave_the_rest_alone() {
    let btt = open(&image()).unwrap();
    let all = u64::from(SECTORS) * SECTOR as u64;
    btt.submit(Bio::Write {
        offset: 0,
        data: &vec![5; all as usize],
    })
    .unwrap();
    btt.submit(Bio::Trim {
        offset: 100,
        length: 2 * SECTOR as u64,
    })
    .unwrap();
    let zeroing = Zeroing::MayPunch;
    btt.submit(Bio::Zero {
        offset: 3 * SECTOR as u64 + 7,
        length: SECTOR as u64,
        zeroing,
    })
    .unwrap();
    let mut held = vec![0; all as usize];
    btt.submit(Bio::Read {
        offset: 0,
        buffer: &mut held,
    })
    .unwrap();
    let is_zero = |at: usize| (512..1024).contains(&at) || (3 * 512 + 7..4 * 512 + 7).contains(&at);
    for (at, byte) in held.iter().enumerate() {
        assert_eq!(*byte, if is_zero(at) { 0 } else { 5 }, "byte {at}");
    }
}

#[test]
fn plans_are_valid_and_use_the_medium() {
    let sizes = [
        (16 << 20) + 4096,
        64 << 20,
        (1 << 30) + 12288,
        ARENA_BYTES_MAX,
        ARENA_BYTES_MAX + 4096 + (16 << 20),
        3 * ARENA_BYTES_MAX + 123 * 4096,
    ];
    for size in sizes {
        for sector in [512, 4096] {
            for version in BttVersion::ALL {
                let arenas = plan(size, sector, version, [1; 16]).unwrap();
                for (start, info) in &arenas {
                    let decoded = Info::decode(&info.encode(), size - start, version).unwrap();
                    assert_eq!(decoded, *info);
                }
                let offered: u64 = arenas.iter().map(|(_, info)| info.size_bytes()).sum();
                let share = offered as f64 / size as f64;
                assert!(share > 0.9, "{size} {sector}: {share}");
            }
        }
    }
    for (size, sector) in [
        (16 << 20, 512),
        (64 << 20, 520),
        (64 << 20, 1024),
        (0, 4096),
    ] {
        let planned = plan(size, sector, BttVersion::V1_1, [1; 16]);
        assert_eq!(planned.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
