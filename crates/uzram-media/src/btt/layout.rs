//! The layout of a Block Translation Table. Nothing here touches a medium.
//!
//! The format is that of the UEFI specification (2.7 and later, chapter "Block Translation Table
//! (BTT) Layout") in version 2.0, which begins at offset 0, and that of Linux in version 1.1, which
//! leaves 4096 bytes free before it. All integers are little-endian.
//!
//! ```text
//! info block | data: InternalNLba blocks | map: 4 bytes per sector | flog: 64 bytes per lane | info block
//! 4096 bytes                                                                                 (its copy)
//! ```
//!
//! Such an arena has at most 512 GiB; a larger medium has several, each at the end of the one before.

use std::fmt;

use uzram::{Error, ErrorKind, Result};

/// Size of an info block and alignment of everything, in bytes.
pub(super) const INFO_BYTES: usize = 4096;
/// Largest arena, in bytes.
pub(super) const ARENA_BYTES_MAX: u64 = 512 << 30;
/// Smallest arena, in bytes.
pub(super) const ARENA_BYTES_MIN: u64 = 16 << 20;
/// Arenas of the largest medium that is used.
pub(super) const ARENAS_MAX: usize = 256;
/// Lanes of an arena that is made here; as many writes run at once.
const LANES: u32 = 256;
/// Most lanes of an arena that can be read.
const LANES_MAX: u32 = 1 << 16;
/// Size of a lane's part of the flog, in bytes.
pub(super) const FLOG_BYTES: u64 = 64;
/// Most blocks of an arena: a map entry has 30 bits for a block.
const BLOCKS_MAX: u32 = 1 << 30;

const SIGNATURE: [u8; 16] = *b"BTT_ARENA_INFO\0\0";
/// The arena's metadata is damaged; it takes no writes.
pub(super) const FLAG_ERROR: u32 = 1;

/// The versions of the format, and the place where each begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BttVersion {
    /// 1.1, Linux's: after 4096 bytes that stay unused.
    V1_1,
    /// 2.0, the UEFI specification's: at the start.
    V2_0,
}

impl BttVersion {
    pub(super) const ALL: [BttVersion; 2] = [BttVersion::V2_0, BttVersion::V1_1];

    /// The offset of the first arena, in bytes.
    pub(super) fn initial_offset(self) -> u64 {
        match self {
            BttVersion::V1_1 => INFO_BYTES as u64,
            BttVersion::V2_0 => 0,
        }
    }

    fn numbers(self) -> (u16, u16) {
        match self {
            BttVersion::V1_1 => (1, 1),
            BttVersion::V2_0 => (2, 0),
        }
    }
}

impl fmt::Display for BttVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.numbers();
        write!(f, "{major}.{minor}")
    }
}

/// An info block that is consistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) uuid: [u8; 16],
    pub(super) parent_uuid: [u8; 16],
    pub(super) flags: u32,
    pub(super) version: BttVersion,
    pub(super) sector_bytes: u32,
    pub(super) sectors: u32,
    pub(super) block_bytes: u32,
    pub(super) blocks: u32,
    pub(super) lanes: u32,
    /// Offsets in bytes from the arena's start; 0 for no next arena.
    pub(super) next_offset: u64,
    pub(super) data_offset: u64,
    pub(super) map_offset: u64,
    pub(super) flog_offset: u64,
    pub(super) copy_offset: u64,
}

/// A fault of an info block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Defect {
    /// The specification's name of the field.
    pub(super) field: &'static str,
    /// The field's offset in the info block.
    pub(super) at: usize,
    pub(super) text: String,
}

/// The names of the checked fields and their offsets in an info block.
const SIG: (&str, usize) = ("Sig", 0);
const UUID: (&str, usize) = ("Uuid", 16);
const PARENT_UUID: (&str, usize) = ("ParentUuid", 32);
const FLAGS: (&str, usize) = ("Flags", 48);
const VERSION: (&str, usize) = ("Major", 52);
const SECTOR_BYTES: (&str, usize) = ("ExternalLbaSize", 56);
const SECTORS: (&str, usize) = ("ExternalNLba", 60);
const BLOCK_BYTES: (&str, usize) = ("InternalLbaSize", 64);
const BLOCKS: (&str, usize) = ("InternalNLba", 68);
const NFREE: (&str, usize) = ("NFree", 72);
const INFO_SIZE: (&str, usize) = ("InfoSize", 76);
const NEXT_OFF: (&str, usize) = ("NextOff", 80);
const DATA_OFF: (&str, usize) = ("DataOff", 88);
const MAP_OFF: (&str, usize) = ("MapOff", 96);
const FLOG_OFF: (&str, usize) = ("FlogOff", 104);
const INFO_OFF: (&str, usize) = ("InfoOff", 112);
const CHECKSUM: (&str, usize) = ("Checksum", 4088);

const FIELDS: [(&str, usize); 17] = [
    SIG,
    UUID,
    PARENT_UUID,
    FLAGS,
    VERSION,
    SECTOR_BYTES,
    SECTORS,
    BLOCK_BYTES,
    BLOCKS,
    NFREE,
    INFO_SIZE,
    NEXT_OFF,
    DATA_OFF,
    MAP_OFF,
    FLOG_OFF,
    INFO_OFF,
    CHECKSUM,
];

impl Info {
    /// Reads an info block of an arena of at most `room_bytes`. One of another version than
    /// `expected` does not count: each version has its place.
    pub(super) fn decode(
        block: &[u8; INFO_BYTES],
        room_bytes: u64,
        expected: BttVersion,
    ) -> Result<Info, Defect> {
        if block[..16] != SIGNATURE {
            return Err(defect(SIG, "is not BTT_ARENA_INFO"));
        }
        let (stored, computed) = (u64_at(block, CHECKSUM.1), checksum(block));
        if stored != computed {
            let text = format!("is {stored:#018x}, the block's content gives {computed:#018x}");
            return Err(defect(CHECKSUM, text));
        }
        let version = version(block)?;
        if version != expected {
            let text =
                format!("and Minor are {version}; what begins here is of version {expected}");
            return Err(defect(VERSION, text));
        }
        let info = Info {
            uuid: array_at(block, UUID.1),
            parent_uuid: array_at(block, PARENT_UUID.1),
            flags: u32_at(block, FLAGS.1),
            version,
            sector_bytes: u32_at(block, SECTOR_BYTES.1),
            sectors: u32_at(block, SECTORS.1),
            block_bytes: u32_at(block, BLOCK_BYTES.1),
            blocks: u32_at(block, BLOCKS.1),
            lanes: u32_at(block, NFREE.1),
            next_offset: u64_at(block, NEXT_OFF.1),
            data_offset: u64_at(block, DATA_OFF.1),
            map_offset: u64_at(block, MAP_OFF.1),
            flog_offset: u64_at(block, FLOG_OFF.1),
            copy_offset: u64_at(block, INFO_OFF.1),
        };
        let info_size = u32_at(block, INFO_SIZE.1);
        if info_size as usize != INFO_BYTES {
            return Err(defect(INFO_SIZE, format!("is {info_size}, not 4096")));
        }
        info.check_counts()?;
        info.check_places(room_bytes)?;
        Ok(info)
    }

    fn check_counts(&self) -> Result<(), Defect> {
        let sector = self.sector_bytes;
        if let Some(plain) = plain_bytes(sector) {
            let extra = sector - plain;
            let text = format!(
                "is {sector}: sectors of {plain} bytes and {extra} of metadata for integrity each, which uzram \
                 does not keep up; copy the data with Linux to a table of {plain}"
            );
            return Err(defect(SECTOR_BYTES, text));
        }
        if ![512, 4096].contains(&sector) {
            let text = format!("is {sector}; uzram serves sectors of 512 and 4096 bytes");
            return Err(defect(SECTOR_BYTES, text));
        }
        let block = self.block_bytes;
        if block < sector || block > 2 * sector || !block.is_multiple_of(64) {
            let text = format!("is {block}, which does not hold a sector of {sector} bytes");
            return Err(defect(BLOCK_BYTES, text));
        }
        if !(1..=LANES_MAX).contains(&self.lanes) {
            let text = format!("is {}, not from 1 to {LANES_MAX}", self.lanes);
            return Err(defect(NFREE, text));
        }
        if self.blocks > BLOCKS_MAX {
            let text = format!("is {}, over the map's limit of {BLOCKS_MAX}", self.blocks);
            return Err(defect(BLOCKS, text));
        }
        let needed = self.sectors.checked_add(self.lanes);
        if self.sectors == 0 || needed.is_none_or(|needed| needed > self.blocks) {
            let (sectors, lanes, blocks) = (self.sectors, self.lanes, self.blocks);
            let text = format!("is {sectors}, which with {lanes} free ones is not in {blocks}");
            return Err(defect(SECTORS, text));
        }
        Ok(())
    }

    /// Whether all parts lie in the arena, in their order.
    fn check_places(&self, room_bytes: u64) -> Result<(), Defect> {
        let arena_bytes = match self.next_offset {
            0 => room_bytes.min(ARENA_BYTES_MAX),
            next => next,
        };
        let next_fits = self.next_offset <= room_bytes.min(ARENA_BYTES_MAX);
        if !next_fits || !self.next_offset.is_multiple_of(INFO_BYTES as u64) {
            return Err(defect(
                NEXT_OFF,
                format!("is {}, past the end", self.next_offset),
            ));
        }
        let ends = [
            (DATA_OFF, self.data_offset, self.data_bytes()),
            (MAP_OFF, self.map_offset, u64::from(self.sectors) * 4),
            (
                FLOG_OFF,
                self.flog_offset,
                u64::from(self.lanes) * FLOG_BYTES,
            ),
            (INFO_OFF, self.copy_offset, INFO_BYTES as u64),
        ];
        let mut free_from = INFO_BYTES as u64;
        for (field, start, length) in ends {
            let end = start.checked_add(length);
            let fits = end.is_some_and(|end| end <= arena_bytes);
            if start < free_from || !fits || !start.is_multiple_of(INFO_BYTES as u64) {
                let text = format!(
                    "is {start}: its {length} bytes are not between {free_from} and {arena_bytes}, the \
                     end; was the file cut off?"
                );
                return Err(defect(field, text));
            }
            free_from = start + length;
        }
        Ok(())
    }

    /// The info block's bytes.
    pub(super) fn encode(&self) -> [u8; INFO_BYTES] {
        let mut block = [0; INFO_BYTES];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        let (major, minor) = self.version.numbers();
        put(SIG.1, &SIGNATURE);
        put(UUID.1, &self.uuid);
        put(PARENT_UUID.1, &self.parent_uuid);
        put(FLAGS.1, &self.flags.to_le_bytes());
        put(VERSION.1, &major.to_le_bytes());
        put(VERSION.1 + 2, &minor.to_le_bytes());
        put(SECTOR_BYTES.1, &self.sector_bytes.to_le_bytes());
        put(SECTORS.1, &self.sectors.to_le_bytes());
        put(BLOCK_BYTES.1, &self.block_bytes.to_le_bytes());
        put(BLOCKS.1, &self.blocks.to_le_bytes());
        put(NFREE.1, &self.lanes.to_le_bytes());
        put(INFO_SIZE.1, &(INFO_BYTES as u32).to_le_bytes());
        put(NEXT_OFF.1, &self.next_offset.to_le_bytes());
        put(DATA_OFF.1, &self.data_offset.to_le_bytes());
        put(MAP_OFF.1, &self.map_offset.to_le_bytes());
        put(FLOG_OFF.1, &self.flog_offset.to_le_bytes());
        put(INFO_OFF.1, &self.copy_offset.to_le_bytes());
        let checksum = checksum(&block);
        block[CHECKSUM.1..].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    fn data_bytes(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.block_bytes)
    }

    /// The size of the arena's disk, in bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        u64::from(self.sectors) * u64::from(self.sector_bytes)
    }

    /// The first field in which `copy` differs.
    pub(super) fn difference(&self, copy: &Info) -> Option<Defect> {
        let mut copy = copy.clone();
        copy.flags |= self.flags & FLAG_ERROR;
        let (ours, theirs) = (self.encode(), copy.encode());
        let at = ours.iter().zip(&theirs).position(|(a, b)| a != b)?;
        let field = FIELDS.into_iter().rfind(|(_, start)| *start <= at)?;
        Some(defect(field, "is another"))
    }

    /// Checks that this info block belongs to the same table as `first`.
    pub(super) fn check_same_table(&self, first: &Info) -> Result<(), Defect> {
        if self.uuid != first.uuid {
            return Err(defect(
                UUID,
                "is not that of the first arena; is this another table's?",
            ));
        }
        if self.parent_uuid != first.parent_uuid {
            return Err(defect(PARENT_UUID, "is not that of the first arena"));
        }
        if self.version != first.version {
            return Err(defect(VERSION, "is not that of the first arena"));
        }
        if self.sector_bytes != first.sector_bytes {
            return Err(defect(SECTOR_BYTES, "is not that of the first arena"));
        }
        Ok(())
    }
}

/// The arenas of a new table on `size_bytes`, each with its offset.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for an impossible size or sector size.
pub(super) fn plan(
    size_bytes: u64,
    sector_bytes: u32,
    version: BttVersion,
    uuid: [u8; 16],
) -> Result<Vec<(u64, Info)>> {
    if ![512, 4096].contains(&sector_bytes) {
        let text = format!("sector size {sector_bytes}: must be 512 or 4096 bytes");
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    let mut arenas: Vec<(u64, Info)> = Vec::new();
    let mut at = version.initial_offset();
    while let Some(room) = size_bytes.checked_sub(at)
        && room >= ARENA_BYTES_MIN
        && arenas.len() < ARENAS_MAX
    {
        let arena_bytes = room.min(ARENA_BYTES_MAX);
        let arena_bytes = arena_bytes - arena_bytes % INFO_BYTES as u64;
        let mut info = plan_arena(arena_bytes, sector_bytes, version, uuid);
        if room - arena_bytes >= ARENA_BYTES_MIN {
            info.next_offset = arena_bytes;
        }
        arenas.push((at, info));
        at += arena_bytes;
    }
    if arenas.is_empty() {
        let least = ARENA_BYTES_MIN + version.initial_offset();
        let text = format!("size {size_bytes}: a BTT needs at least {least} bytes");
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    Ok(arenas)
}

/// Splits an arena between map and data as Linux does. The rounding of the map makes this matter.
fn plan_arena(arena_bytes: u64, sector_bytes: u32, version: BttVersion, uuid: [u8; 16]) -> Info {
    let align = INFO_BYTES as u64;
    let block_bytes = sector_bytes.next_multiple_of(64);
    let flog_bytes = (u64::from(LANES) * FLOG_BYTES).next_multiple_of(align);
    let available = arena_bytes - 2 * align - flog_bytes;
    let blocks = (available - align) / (u64::from(block_bytes) + 4);
    let blocks = blocks.min(u64::from(BLOCKS_MAX)) as u32;
    let sectors = blocks - LANES;
    let map_bytes = (u64::from(sectors) * 4).next_multiple_of(align);
    let map_offset = align + available - map_bytes;
    let flog_offset = map_offset + map_bytes;
    Info {
        uuid,
        parent_uuid: [0; 16],
        flags: 0,
        version,
        sector_bytes,
        sectors,
        block_bytes,
        blocks,
        lanes: LANES,
        next_offset: 0,
        data_offset: align,
        map_offset,
        flog_offset,
        copy_offset: flog_offset + flog_bytes,
    }
}

/// An entry of the map: the block that holds a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapEntry {
    /// Never written: the sector reads as zeroes, and it has the block of its own number.
    Initial,
    /// The sector reads as zeroes; it has this block.
    Zero(u32),
    /// The sector is unreadable until it is written; it has this block.
    Error(u32),
    /// The block holds the sector.
    Normal(u32),
    /// No entry: this word has no flag, and is not the 0 of a sector that was never written.
    Broken(u32),
}

const MAP_ERROR: u32 = 1 << 30;
const MAP_ZERO: u32 = 1 << 31;
const MAP_BLOCK: u32 = MAP_ERROR - 1;

impl MapEntry {
    pub(super) fn decode(word: u32) -> MapEntry {
        let block = word & MAP_BLOCK;
        match (word & MAP_ZERO != 0, word & MAP_ERROR != 0) {
            (false, false) if word != 0 => MapEntry::Broken(word),
            (false, false) => MapEntry::Initial,
            (true, false) => MapEntry::Zero(block),
            (false, true) => MapEntry::Error(block),
            (true, true) => MapEntry::Normal(block),
        }
    }

    pub(super) fn encode(self) -> u32 {
        match self {
            MapEntry::Initial => 0,
            MapEntry::Zero(block) => block | MAP_ZERO,
            MapEntry::Error(block) => block | MAP_ERROR,
            MapEntry::Normal(block) => block | MAP_ZERO | MAP_ERROR,
            MapEntry::Broken(word) => word,
        }
    }

    /// The block that belongs to sector `sector`, or a number beyond every arena if there is none.
    pub(super) fn block(self, sector: u32) -> u32 {
        match self {
            MapEntry::Initial => sector,
            MapEntry::Zero(block) | MapEntry::Error(block) | MapEntry::Normal(block) => block,
            MapEntry::Broken(_) => u32::MAX,
        }
    }
}

/// One of the two entries of a lane's flog: the lane's last write, or the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FlogEntry {
    pub(super) sector: u32,
    /// The block that the write made free.
    pub(super) old_block: u32,
    /// The block that was written.
    pub(super) new_block: u32,
    /// 1, 2, 3, 1, …; 0 if there was no write.
    pub(super) sequence: u32,
}

impl FlogEntry {
    /// Size in bytes.
    pub(super) const BYTES: usize = 16;

    /// Reads one. Some writers put the map's flags into block numbers; they mean nothing here.
    pub(super) fn decode(bytes: &[u8]) -> FlogEntry {
        FlogEntry {
            sector: u32_at(bytes, 0),
            old_block: u32_at(bytes, 4) & MAP_BLOCK,
            new_block: u32_at(bytes, 8) & MAP_BLOCK,
            sequence: u32_at(bytes, 12),
        }
    }

    /// The two words of the entry, in the order in which they are stored. The second makes the
    /// entry count.
    pub(super) fn words(self) -> [u64; 2] {
        [
            u64::from(self.sector) | u64::from(self.old_block) << 32,
            u64::from(self.new_block) | u64::from(self.sequence) << 32,
        ]
    }

    /// The sequence number after this one's.
    pub(super) fn next_sequence(self) -> u32 {
        self.sequence % 3 + 1
    }
}

/// The places of a lane's two entries within its 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlogSpacing {
    /// At 0 and 16, as specified.
    Adjacent,
    /// At 0 and 32, as Linux had it before 4.15.
    Padded,
}

impl FlogSpacing {
    pub(super) fn offsets(self) -> [u64; 2] {
        match self {
            FlogSpacing::Adjacent => [0, 16],
            FlogSpacing::Padded => [0, 32],
        }
    }

    /// The spacing that a lane's bytes show; `None` while its second entry was never written, an
    /// error if it can be neither.
    pub(super) fn detect(lane: &[u8; FLOG_BYTES as usize]) -> Result<Option<FlogSpacing>, ()> {
        let used = |at: usize| {
            lane[at..at + FlogEntry::BYTES]
                .iter()
                .any(|byte| *byte != 0)
        };
        match (used(16), used(32), used(48)) {
            (false, false, false) => Ok(None),
            (true, false, false) => Ok(Some(FlogSpacing::Adjacent)),
            (false, true, false) => Ok(Some(FlogSpacing::Padded)),
            _ => Err(()),
        }
    }
}

/// The index of a lane's newer entry, or the fault of the two.
pub(super) fn newest(entries: &[FlogEntry; 2]) -> Result<usize, &'static str> {
    let [first, second] = entries;
    match (first.sequence, second.sequence) {
        (4.., _) | (_, 4..) => Err("a sequence number is over 3"),
        (0, 0) => Err("both sequence numbers are 0"),
        (_, 0) => Ok(0),
        (0, _) => Ok(1),
        (a, b) if a == b => Err("both sequence numbers are the same"),
        _ if first.next_sequence() == second.sequence => Ok(1),
        _ => Ok(0),
    }
}

fn version(block: &[u8; INFO_BYTES]) -> Result<BttVersion, Defect> {
    let found = (u16_at(block, VERSION.1), u16_at(block, VERSION.1 + 2));
    let known = BttVersion::ALL
        .into_iter()
        .find(|version| version.numbers() == found);
    known.ok_or_else(|| {
        let (major, minor) = found;
        defect(
            VERSION,
            format!("and Minor are {major}.{minor}; uzram knows 1.1 and 2.0"),
        )
    })
}

/// The data part of a sector that has metadata too, as Linux can make.
fn plain_bytes(sector_bytes: u32) -> Option<u32> {
    match sector_bytes {
        520 | 528 => Some(512),
        4104 | 4160 | 4224 => Some(4096),
        _ => None,
    }
}

/// Fletcher's checksum over 32-bit words, the checksum's own field taken as zero.
fn checksum(block: &[u8; INFO_BYTES]) -> u64 {
    let (mut low, mut high) = (0u32, 0u32);
    for (index, word) in block.chunks_exact(4).enumerate() {
        if index * 4 < CHECKSUM.1 {
            low = low.wrapping_add(u32_at(word, 0));
        }
        high = high.wrapping_add(low);
    }
    u64::from(high) << 32 | u64::from(low)
}

fn defect((field, at): (&'static str, usize), text: impl Into<String>) -> Defect {
    let text = text.into();
    Defect { field, at, text }
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a range of N bytes")
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}
