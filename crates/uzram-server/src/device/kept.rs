//! The names under which a holder keeps a device and its files.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use uzram::Remains;
use uzram_frontends::fuse::MountRemains;

use crate::survive::{Keeper, Kept};

const SUPERBLOCK: &str = "superblock";
const TABLE: &str = "table";
const ARENA: &str = "arena";
const CHECKSUMS: &str = "checksums";
const AGES: &str = "ages";
const BLOCKS: &str = "blocks";

/// The file or device that pages are written back to.
pub(super) const BACKING: &str = "backing";

/// The socket for virtual machines.
pub(super) const GUESTS: &str = "guests";
const MOUNT: &str = "mount";
const REQUESTS: &str = "requests";

/// The key of the device `name`.
pub(crate) fn key(name: &str) -> String {
    format!("device/{name}")
}

/// That of its name.
pub(crate) fn claim_key(name: &str) -> String {
    format!("claim/{name}")
}

/// The store's files among those of a device that was kept; none if it had no store.
pub(crate) fn remains(kept: &mut Kept) -> Option<Remains> {
    Some(Remains {
        superblock: kept.take(SUPERBLOCK)?,
        table: kept.take(TABLE)?,
        arena: kept.take(ARENA)?,
        checksums: kept.take(CHECKSUMS),
        ages: kept.take(AGES),
        blocks: kept.take(BLOCKS),
    })
}

/// Gives the memory of a device back that nobody has any more. Whatever keeps its files mapped keeps nothing then.
pub(crate) fn give_back_memory(kept: &Kept) {
    let is_memory = |what: &str| [TABLE, ARENA, CHECKSUMS, AGES, BLOCKS].contains(&what);
    for (_, file) in kept.files.iter().filter(|(what, _)| is_memory(what)) {
        if let Ok(found) = rustix::fs::fstat(file) {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(file, how, 0, found.st_size as u64);
        }
    }
}

/// The socket for virtual machines among them.
pub(crate) fn guests(kept: &mut Kept) -> Option<OwnedFd> {
    kept.take(GUESTS)
}

/// The same of its mount.
pub(crate) fn mount_remains(kept: &mut Kept) -> Option<MountRemains> {
    Some(MountRemains {
        device: kept.take(MOUNT)?,
        requests: kept.take(REQUESTS)?,
    })
}

pub(super) fn mount_named(remains: MountRemains) -> [(&'static str, OwnedFd); 2] {
    [(MOUNT, remains.device), (REQUESTS, remains.requests)]
}

pub(super) fn named(remains: Remains) -> Vec<(&'static str, OwnedFd)> {
    let always = [
        (SUPERBLOCK, Some(remains.superblock)),
        (TABLE, Some(remains.table)),
        (ARENA, Some(remains.arena)),
        (CHECKSUMS, remains.checksums),
        (AGES, remains.ages),
        (BLOCKS, remains.blocks),
    ];
    let there = always.into_iter();
    there
        .filter_map(|(what, file)| Some((what, file?)))
        .collect()
}

/// Lets the holder forget all of the device `name`.
pub(crate) fn forget(keeper: &Option<Arc<Keeper>>, name: &str) {
    if let Some(keeper) = keeper {
        keeper.forget(key(name));
        keeper.forget(claim_key(name));
    }
}
