//! The memory that a store lies in: made for it, or left by a process that died.

#[cfg(not(uzram_shuttle))]
use std::os::fd::OwnedFd;

use super::backing_file::BackingFile;
use super::lock::SlotLock;
use super::side_table::SideTable;
use super::slot::SlotTable;
#[cfg(not(uzram_shuttle))]
use super::superblock::Limits;
use super::superblock::Superblock;
use crate::config::StoreConfig;
use crate::error::Result;
#[cfg(not(uzram_shuttle))]
use crate::error::{Error, ErrorKind};
use crate::pool::{self, PoolConfig};
use crate::region::{Backing, Region};
use crate::stats::Counters;

/// The memory of a store.
pub(super) struct Body<L> {
    /// In stores that outlive their process.
    pub superblock: Option<Superblock>,
    pub table: SlotTable<L>,
    pub arena: Region,
    pub checksums: Option<SideTable>,
    pub ages: Option<SideTable>,
    pub backing: Option<BackingFile>,
    pub counters: Counters,
}

impl<L: SlotLock> Body<L> {
    /// That of a new store.
    pub(super) fn reserve(config: &StoreConfig, pool: &PoolConfig) -> Result<Body<L>> {
        let arena = pool::reserve(pool)?;
        let table = SlotTable::new(config.disksize_bytes, config.unit, config.backing)?;
        let side_table = || SideTable::reserve(table.len(), config.backing);
        let open = |file| BackingFile::open(file, config.unit, table.len(), config.backing);
        let backing = config.backing_file.clone().map(open).transpose()?;
        let facts = backing.as_ref().map(BackingFile::facts);
        let superblock = match config.backing {
            Backing::Memfd => Some(Superblock::new(config, facts)?),
            Backing::Private => None,
        };
        let counters = match &superblock {
            Some(superblock) => superblock.counters()?,
            None => Counters::new()?,
        };
        Ok(Body {
            superblock,
            counters,
            checksums: config.checksum.then(side_table).transpose()?,
            ages: config.ages.then(side_table).transpose()?,
            backing,
            table,
            arena,
        })
    }
}

/// The memory of a store in a process, as descriptors of memfds. They keep it for as long as any process has them, and
/// [`StoreBuilder::recover`](crate::StoreBuilder::recover) opens it once that process is gone.
#[cfg(not(uzram_shuttle))]
#[derive(Debug)]
pub struct Remains {
    /// Facts by which the others are read, and the counters, 20 KiB.
    pub superblock: OwnedFd,
    /// The content of each page, 8 bytes for each.
    pub table: OwnedFd,
    /// The objects. It is as long as the address space reserved for them, and has memory where they are.
    pub arena: OwnedFd,
    /// In a store with checksums, 4 bytes for each page.
    pub checksums: Option<OwnedFd>,
    /// In a store with ages, 4 bytes for each page.
    pub ages: Option<OwnedFd>,
    /// In a store with a backing file, 4 bytes for each block of it that may be used. The file itself is an option of
    /// [`StoreBuilder::recover`](crate::StoreBuilder::recover).
    pub blocks: Option<OwnedFd>,
}

#[cfg(not(uzram_shuttle))]
impl Body<super::lock::SleepingBit> {
    /// That of a store of a process that died, after its superblock was claimed. Returns the limits too, in `pool` that of
    /// the start.
    ///
    /// # Errors
    /// As [`Superblock::take_over`] and [`Region::attach`].
    pub(super) fn take_over(
        config: &StoreConfig,
        pool: &mut PoolConfig,
        files: Remains,
    ) -> Result<(Self, Limits)> {
        let superblock = Superblock::take_over(files.superblock, config)?;
        let limits = superblock.limits()?;
        pool.limit_bytes = limits.first_bytes;
        let slots = config.disksize_bytes >> config.unit.shift();
        let side_table = |wanted: bool, file: Option<OwnedFd>, what| {
            let attach = || SideTable::attach(slots, there(file, what)?, what);
            wanted.then(attach).transpose()
        };
        let backing = |file| {
            let (facts, blocks) = (superblock.backing_file()?, there(files.blocks, BLOCKS)?);
            BackingFile::take_over(file, config.unit, facts, blocks)
        };
        let backing = config.backing_file.clone().map(backing).transpose()?;
        let body = Body {
            counters: superblock.counters()?,
            superblock: Some(superblock),
            table: SlotTable::attach(files.table, slots)?,
            arena: Region::attach(files.arena, pool.arena_bytes(), "arena")?,
            checksums: side_table(config.checksum, files.checksums, "checksums")?,
            ages: side_table(config.ages, files.ages, "ages")?,
            backing,
        };
        Ok((body, limits))
    }
}

#[cfg(not(uzram_shuttle))]
const BLOCKS: &str = "checksums of the backing file's blocks";

#[cfg(not(uzram_shuttle))]
fn there(file: Option<OwnedFd>, what: &str) -> Result<OwnedFd> {
    file.ok_or_else(|| {
        let text = format!("the store to take over comes without its {what}; pass them on too");
        Error::new(ErrorKind::InvalidInput, text)
    })
}
