//! Atomic sectors on persistent memory: the Block Translation Table, as the UEFI specification has it
//! and Linux's `nd_btt` reads and writes it.
//!
//! `layout` is the format, `find` and `survey` look a table over, `repair` mends it, `arena` reads and
//! writes.

mod arena;
#[cfg(test)]
mod damage_tests;
mod find;
mod layout;
mod repair;
mod state;
mod survey;
#[cfg(test)]
mod tests;

use uzram::device::{PAGE_BYTES, check_range, parts, whole_blocks};
use uzram::{
    Bio, BlockDevice, Error, ErrorKind, Geometry, PageIndex, PageTransfer, Result, Zeroing,
};

use crate::medium::{Medium, PmemFile};
use arena::Arena;
use state::Survey;

pub use layout::BttVersion;
pub use state::BttProblem;

/// A disk whose sectors are old or new after a power cut, never a mix.
///
/// On memory that the CPU makes durable, a write is durable when it is acknowledged. This also
/// holds for a file on a disk, where each write waits for the disk three times.
#[derive(Debug)]
pub struct Btt {
    medium: Box<dyn Medium>,
    arenas: Box<[Place]>,
    sector_shift: u32,
    size_bytes: u64,
    recovered: Vec<String>,
}

/// An arena and its first byte on the device.
#[derive(Debug)]
struct Place {
    first_byte: u64,
    arena: Arena,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct BttReport {
    /// Sector size in bytes: 512 or 4096.
    pub sector_bytes: u32,
    /// The size of the disk, in bytes.
    pub size_bytes: u64,
    /// The format's version.
    pub version: BttVersion,
    /// Parts of at most 512 GiB.
    pub arenas: usize,
    /// Writes that can run at once in an arena.
    pub lanes: u32,
    /// The table's UUID.
    pub uuid: [u8; 16],
    /// Whether flog entries are spaced as Linux did before 4.15.
    pub is_flog_padded: bool,
    /// Info blocks that are damaged and have a whole copy; the next start mends them.
    pub damaged_copies: usize,
    /// Writes that a power cut interrupted; the next start finishes them.
    pub unfinished_writes: usize,
    /// The first problems.
    pub problems: Vec<BttProblem>,
    /// The number of problems.
    pub problem_count: u64,
}

impl Btt {
    /// Makes an empty table on `medium`, with sectors of `sector_bytes`: 512 or 4096.
    ///
    /// The former content of the medium is lost.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a medium that is too small or another sector size, and those
    /// of the medium.
    pub fn format(medium: PmemFile, sector_bytes: u32, version: BttVersion) -> Result<Btt> {
        Btt::format_on(Box::new(medium), sector_bytes, version)
    }

    /// The table on `medium`. Writes that a power cut left half done are finished first.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for any other fault, with its field, offset and remedy. A table that
    /// is only read need not be sound: then only uncertain sectors fail.
    pub fn open(medium: PmemFile) -> Result<Btt> {
        Btt::open_on(Box::new(medium))
    }

    /// The table's layout and its problems.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if there is no table.
    pub fn check(medium: &PmemFile) -> Result<BttReport> {
        survey::survey(medium).map(|survey| report(&survey))
    }

    /// Mends the problems, and returns a line for each thing that was done. Lost sectors are
    /// unreadable afterwards, never zeroes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if there is no table or neither copy of an info block is whole.
    pub fn repair(medium: &PmemFile) -> Result<Vec<String>> {
        Btt::repair_on(medium)
    }

    /// The writes that opening finished, one line each.
    #[must_use]
    pub fn recovered(&self) -> &[String] {
        &self.recovered
    }

    /// Sector size in bytes: 512 or 4096.
    #[must_use]
    pub fn sector_bytes(&self) -> u32 {
        1 << self.sector_shift
    }

    fn format_on(medium: Box<dyn Medium>, sector_bytes: u32, version: BttVersion) -> Result<Btt> {
        let mut uuid = [0; 16];
        rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty()).map_err(
            |errno| Error::new(ErrorKind::Io, "no random bytes for a UUID").with_source(errno),
        )?;
        // Version 4, variant 1: random.
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        let arenas = layout::plan(medium.size_bytes(), sector_bytes, version, uuid)?;
        // Until all else is in place nothing must look like a table.
        for version in BttVersion::ALL {
            medium.zero(version.initial_offset(), layout::INFO_BYTES as u64)?;
        }
        medium.flush()?;
        for (start, info) in &arenas {
            medium.zero(start + info.map_offset, info.copy_offset - info.map_offset)?;
            for lane in 0..info.lanes {
                let block = info.sectors + lane;
                let entry = layout::FlogEntry {
                    sector: lane,
                    old_block: block,
                    new_block: block,
                    sequence: 1,
                };
                let place = start + info.flog_offset + u64::from(lane) * layout::FLOG_BYTES;
                medium.store_pair(place, entry.words())?;
            }
            medium.write(start + info.copy_offset, &info.encode())?;
        }
        medium.flush()?;
        // The first arena's info block makes it a table.
        for (start, info) in arenas.iter().rev() {
            medium.write(*start, &info.encode())?;
            medium.fence()?;
        }
        medium.flush()?;
        Btt::open_on(medium)
    }

    fn open_on(medium: Box<dyn Medium>) -> Result<Btt> {
        let survey = survey::survey(&*medium)?;
        let mut recovered = Vec::new();
        if !medium.is_read_only() {
            if let Some(problem) = survey.problems.first() {
                return Err(broken(&*medium, problem, survey.problem_count));
            }
            recovered = repair::recover(&*medium, &survey)?;
        }
        let mut arenas = Vec::new();
        let mut size_bytes = 0;
        let sector_bytes = survey.arenas[0].info.sector_bytes;
        for mut survey in survey.arenas {
            if !medium.is_read_only() {
                survey.unfinished.clear();
            }
            let first_byte = size_bytes;
            size_bytes += survey.info.size_bytes();
            arenas.push(Place {
                first_byte,
                arena: Arena::new(survey)?,
            });
        }
        Ok(Btt {
            medium,
            arenas: arenas.into_boxed_slice(),
            sector_shift: sector_bytes.trailing_zeros(),
            size_bytes,
            recovered,
        })
    }

    fn repair_on(medium: &dyn Medium) -> Result<Vec<String>> {
        let survey = survey::survey(medium)?;
        let done = repair::repair(medium, &survey)?;
        match survey::survey(medium)?.problems.first() {
            None => Ok(done),
            Some(left) => Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{}: still {left}; the medium does not keep what is written",
                    medium.name()
                ),
            )),
        }
    }

    /// The arena of a device's sector, and the sector's number there.
    fn place(&self, sector: u64) -> (&Arena, u32) {
        let byte = sector << self.sector_shift;
        let after = self
            .arenas
            .partition_point(|place| place.first_byte <= byte);
        let place = &self.arenas[after - 1];
        let sector = (byte - place.first_byte) >> self.sector_shift;
        (&place.arena, sector as u32)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        parts(offset, buffer.len() as u64, self.sector_shift).try_for_each(|part| {
            let (arena, sector) = self.place(part.index);
            arena.read(&*self.medium, sector, part.start, &mut buffer[part.bytes])
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        parts(offset, data.len() as u64, self.sector_shift).try_for_each(|part| {
            let (arena, sector) = self.place(part.index);
            arena.write(&*self.medium, sector, part.start, &data[part.bytes])
        })
    }

    fn trim(&self, offset: u64, length: u64) -> Result<()> {
        self.check_writable()?;
        let mut sectors = whole_blocks(offset, length, self.sector_shift);
        while !sectors.is_empty() {
            let (arena, first) = self.place(sectors.start);
            let here = u64::from(arena.info().sectors - first).min(sectors.end - sectors.start);
            arena.trim(&*self.medium, first..first + here as u32)?;
            sectors.start += here;
        }
        Ok(())
    }

    fn zero(&self, offset: u64, length: u64, zeroing: Zeroing) -> Result<()> {
        const ZEROES: [u8; 4096] = [0; 4096];
        self.check_writable()?;
        if zeroing == Zeroing::MayPunch {
            self.trim(offset, length)?;
        }
        for part in parts(offset, length, self.sector_shift) {
            let (arena, sector) = self.place(part.index);
            let may_stay = zeroing == Zeroing::MayPunch;
            if !(may_stay && arena.is_zero(&*self.medium, sector)?) {
                let zeroes = &ZEROES[..part.bytes.len()];
                arena.write(&*self.medium, sector, part.start, zeroes)?;
            }
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<()> {
        match self.medium.is_read_only() {
            true => Err(Error::new(
                ErrorKind::ReadOnly,
                format!("{}: open for reading only", self.medium.name()),
            )),
            false => Ok(()),
        }
    }
}

impl BlockDevice for Btt {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes,
            preferred_block_bytes: self.sector_bytes(),
        }
    }

    fn submit(&self, bio: Bio<'_>) -> Result<()> {
        if let Some((offset, length)) = bio.range() {
            check_range(offset, length, self.size_bytes)?;
        }
        match bio {
            Bio::Read { offset, buffer } => self.read(offset, buffer),
            Bio::Write { offset, data } => self.write(offset, data),
            Bio::Flush => self.medium.flush(),
            Bio::Trim { offset, length } => self.trim(offset, length),
            Bio::Zero {
                offset,
                length,
                zeroing,
            } => self.zero(offset, length, zeroing),
        }
    }

    fn is_synchronous(&self) -> bool {
        !self.medium.waits_for_disk()
    }

    fn rw_page(&self, page: PageIndex, transfer: PageTransfer<'_>) -> Result<()> {
        let offset = page.0.saturating_mul(PAGE_BYTES as u64);
        check_range(offset, PAGE_BYTES as u64, self.size_bytes)?;
        match transfer {
            PageTransfer::Read(buffer) => self.read(offset, buffer),
            PageTransfer::Write(data) => self.write(offset, data),
        }
    }
}

fn report(survey: &Survey) -> BttReport {
    let first = &survey.arenas[0];
    let arenas = &survey.arenas;
    BttReport {
        sector_bytes: first.info.sector_bytes,
        size_bytes: arenas.iter().map(|arena| arena.info.size_bytes()).sum(),
        version: first.info.version,
        arenas: arenas.len(),
        lanes: first.info.lanes,
        uuid: first.info.uuid,
        is_flog_padded: first.spacing == layout::FlogSpacing::Padded,
        damaged_copies: arenas.iter().map(|arena| arena.damaged_copies.len()).sum(),
        unfinished_writes: arenas.iter().map(|arena| arena.unfinished.len()).sum(),
        problems: survey.problems.clone(),
        problem_count: survey.problem_count,
    }
}

fn broken(medium: &dyn Medium, problem: &BttProblem, count: u64) -> Error {
    let name = medium.name();
    let more = match count {
        1 => String::new(),
        count => format!(" (and {} more problems)", count - 1),
    };
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "{name}: {problem}{more}; `uzram btt check {name}` tells all, `uzram btt repair {name}` mends it"
        ),
    )
}
