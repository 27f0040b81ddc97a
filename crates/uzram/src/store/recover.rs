//! Taking over a store whose process died between any two instructions.
//!
//! The slot words are the only truth: a new pool over the same arena adopts every object that a word names, and the rest is
//! dropped. A damaged word costs its page and no other: the page is lost, and reading it is an error until it is written.
//!
//! A writer stores an object's checksum while its slot is locked, before it publishes the word. So checksum and object may
//! differ where the dead process had a lock, and only there a checksum is made anew: elsewhere a difference is damage, which
//! reads find.

use std::ops::Range;

use super::body::{Body, Remains};
use super::layout::Flags;
use super::slot::{Entry, Locked, Verdict};
use super::{Store, StoreWith, counted};
use crate::codec::streams::SharedStreams;
use crate::config::StoreConfig;
use crate::error::{ErrorKind, Result};
use crate::memory;
use crate::pool::Handle;
use crate::store::lock::SleepingBit;
use crate::sync::Ordering;

/// Findings of a take-over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// How often the store was opened, by its maker and by all that took it over.
    pub generation: u64,
    /// Pages that have content.
    pub pages: u64,
    /// Pages whose record was damaged, now or at an earlier take-over: their content is lost.
    pub lost_pages: u64,
    /// Objects whose checksum was made anew, because the process died while it wrote there.
    pub resealed_pages: u64,
}

impl Store {
    pub(super) fn recover(config: StoreConfig, remains: Remains) -> Result<(Store, Recovery)> {
        let mut pool_config = config.pool_config();
        let (body, limits) = Body::take_over(&config, &mut pool_config, remains)?;
        let store = Store::over(config, &pool_config, body)?;
        let recovery = store.inner.settle_table()?;
        store.set_mem_limit(limits.bytes);
        Ok((store, recovery))
    }

    /// The store's memory, to be kept by a process that outlives this one; none unless the store was made to
    /// [outlive](crate::StoreBuilder::outliving) its process.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no more descriptors may be had.
    pub fn remains(&self) -> Result<Option<Remains>> {
        let inner = &self.inner;
        let Some(superblock) = &inner.superblock else {
            return Ok(None);
        };
        let ages = inner.ages.as_ref().map(|ages| &ages.accessed_s);
        let files = (
            superblock.file()?,
            inner.table.words().region().file()?,
            inner.pool.file()?,
        );
        let (Some(superblock), Some(table), Some(arena)) = files else {
            return Ok(None);
        };
        Ok(Some(Remains {
            superblock,
            table,
            arena,
            checksums: inner
                .checksums
                .as_ref()
                .map_or(Ok(None), |table| table.file())?,
            ages: ages.map_or(Ok(None), |table| table.file())?,
        }))
    }
}

impl StoreWith<SleepingBit, SharedStreams> {
    /// Settles every slot, and makes everything anew that is told by them.
    fn settle_table(&self) -> Result<Recovery> {
        let mut recovery = Recovery {
            generation: self
                .superblock
                .as_ref()
                .map_or(0, |block| block.generation()),
            ..Recovery::default()
        };
        let mut disputed = Vec::new();
        self.table.inherit(self.unit, |slot, was_locked| {
            let verdict = self.adopt(slot, &mut disputed)?;
            let entry = match verdict {
                Verdict::Kept => slot.entry(),
                Verdict::Lost => &Entry::Lost,
            };
            if was_locked && verdict == Verdict::Kept {
                recovery.resealed_pages += u64::from(self.reseal(slot));
            }
            if verdict == Verdict::Kept {
                self.count_flags(Flags::NONE, slot.flags());
            }
            recovery.pages += u64::from(!matches!(entry, Entry::Empty | Entry::Lost));
            recovery.lost_pages += u64::from(*entry == Entry::Lost);
            self.counters.add_all(counted(&Entry::Empty, entry));
            Ok(verdict)
        })?;
        let lost = self.lose(disputed);
        recovery.pages -= lost;
        recovery.lost_pages += lost;
        self.pool.adopted();
        Ok(recovery)
    }

    /// Takes the slot's object over. Adds to `disputed` the bytes of one that lies on another.
    fn adopt(&self, slot: &Locked, disputed: &mut Vec<Range<usize>>) -> Result<Verdict> {
        let handle = match slot.entry() {
            Entry::Raw(handle) => handle,
            Entry::Packed(handle) if self.could_pack(slot, handle) => handle,
            Entry::Packed(_) | Entry::Back(_) | Entry::Lost => return Ok(Verdict::Lost),
            Entry::Empty | Entry::Same(_) => return Ok(Verdict::Kept),
        };
        match self.pool.adopt(handle) {
            Ok(()) => Ok(Verdict::Kept),
            Err(error) if error.kind() == ErrorKind::OutOfRange => Ok(Verdict::Lost),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let start = handle.offset_bytes();
                memory::push(disputed, start..start + handle.size_bytes())?;
                Ok(Verdict::Lost)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a codec of this store could have made the object.
    fn could_pack(&self, slot: &Locked, handle: &Handle) -> bool {
        let priority = slot.flags().priority();
        handle.size_bytes() < self.huge_bytes
            && (priority == 0 || self.secondary(priority).is_some())
    }

    /// Makes the checksum of a slot's object anew if it has another one.
    fn reseal(&self, slot: &Locked) -> bool {
        let (Entry::Raw(handle) | Entry::Packed(handle)) = slot.entry() else {
            return false;
        };
        let Some(cell) = self.checksum_cell(slot.index()) else {
            return false;
        };
        let checksum = crc32fast::hash(self.pool.bytes(handle));
        let differed = cell.swap(checksum, Ordering::Relaxed) != checksum;
        #[cfg(test)]
        crate::crash::point();
        differed
    }

    /// Loses every page whose object has any of these bytes, as it is not known whose they are. Returns how many.
    fn lose(&self, mut disputed: Vec<Range<usize>>) -> u64 {
        disputed.sort_unstable_by_key(|bytes| bytes.start);
        disputed.dedup_by(|next, bytes| {
            let joins = next.start <= bytes.end;
            if joins {
                bytes.end = bytes.end.max(next.end);
            }
            joins
        });
        if disputed.is_empty() {
            return 0;
        }
        let is_disputed = |place: Range<usize>| {
            let at = disputed.partition_point(|bytes| bytes.end <= place.start);
            disputed
                .get(at)
                .is_some_and(|bytes| bytes.start < place.end)
        };
        let mut lost = 0;
        let mut next = 0;
        while let Some((index, _)) =
            self.seen_from(next, |seen| seen.place().is_some_and(is_disputed))
        {
            if let Ok(guard) = self.table.lock(index) {
                self.put(guard, Entry::Lost, 0, Flags::NONE);
                lost += 1;
            }
            next = index.0 + 1;
        }
        lost
    }
}
