//! Taking over a store whose process died between any two instructions.
//!
//! The slot words are the only truth: a new pool over the same arena adopts every object that a word names, and the rest is
//! dropped. A damaged word costs its page and no other: the page is lost, and reading it is an error until it is written.
//!
//! Of objects that lie on each other the only one whose checksum is right is kept. Without checksums, or if several are
//! right, all are lost. They are lost in the table, and then the sweep begins anew: a pool cannot unlearn an object
//! without giving back memory that the other one may need.
//!
//! A writer stores an object's checksum while its slot is locked, before it publishes the word. So checksum and object may
//! differ where the dead process had a lock, and only there a checksum is made anew: elsewhere a difference is damage, which
//! reads find.
//!
//! A page in the backing file is told by its word, and its block's checksum was stored before the block was written. What no
//! word names is free. A block that two words name has one page's bytes, and nobody knows whose: both are lost.

use std::ops::Range;

use super::backing_file::BackingFile;
use super::body::{Body, Remains};
use super::layout::Flags;
use super::slot::{Entry, Locked, Verdict};
use super::{Store, StoreWith, counted};
use crate::codec::streams::SharedStreams;
use crate::config::StoreConfig;
use crate::error::{ErrorKind, Result};
use crate::memory;
use crate::page::PageIndex;
use crate::pool::PoolConfig;
use crate::region::Region;
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

/// Objects that could not be adopted beside others.
#[derive(Debug, Default)]
struct Disputes {
    places: Vec<Range<usize>>,
    /// Blocks of the backing file that another page has too.
    blocks: Vec<u64>,
    /// Pages whose checksums were made anew and so prove nothing, in ascending order.
    resealed: Vec<PageIndex>,
}

/// A page whose object has disputed bytes.
struct Claimant {
    index: PageIndex,
    place: Range<usize>,
    is_right: bool,
}

impl Store {
    pub(super) fn recover(config: StoreConfig, remains: Remains) -> Result<(Store, Recovery)> {
        let mut pool_config = config.pool_config();
        let (body, limits) = Body::take_over(&config, &mut pool_config, remains)?;
        let mut store = Store::over(config.clone(), &pool_config, body)?;
        let mut disputes = Disputes::default();
        let mut recovery = store.inner.settle_table(Some(&mut disputes))?;
        if !disputes.places.is_empty() || !disputes.blocks.is_empty() {
            store.inner.settle_disputes(disputes)?;
            let resealed = recovery.resealed_pages;
            store = Store::over(config, &pool_config, store.inner.into_body(&pool_config)?)?;
            recovery = store.inner.settle_table(None)?;
            recovery.resealed_pages += resealed;
        }
        store.inner.pool.adopted()?;
        if let Some(backing) = &store.inner.backing {
            let room = backing.adopted()?;
            store.inner.writing_back.lock().go_on(room);
        }
        store.set_mem_limit(limits.bytes);
        store.inner.make_ready(&pool_config)?;
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
            blocks: inner
                .backing
                .as_ref()
                .map_or(Ok(None), |file| file.checksums_file())?,
        }))
    }
}

impl StoreWith<SleepingBit, SharedStreams> {
    /// Settles every slot, and makes everything anew that is told by them. Objects that cannot be adopted beside others
    /// stay as they are and are added to `disputes`; without these they are lost.
    fn settle_table(&self, mut disputes: Option<&mut Disputes>) -> Result<Recovery> {
        self.counters.forget_content();
        let mut recovery = Recovery {
            generation: self
                .superblock
                .as_ref()
                .map_or(0, |block| block.generation()),
            ..Recovery::default()
        };
        self.table.inherit(self.unit, |slot, was_locked| {
            let verdict = self.adopt(slot, disputes.as_deref_mut())?;
            let entry = match verdict {
                Verdict::Kept => slot.entry(),
                Verdict::Lost => &Entry::Lost,
            };
            if was_locked && verdict == Verdict::Kept && self.reseal(slot) {
                recovery.resealed_pages += 1;
                if let Some(disputes) = &mut disputes {
                    memory::push(&mut disputes.resealed, slot.index())?;
                }
            }
            if verdict == Verdict::Kept {
                self.count_flags(Flags::NONE, slot.flags());
            }
            recovery.pages += u64::from(!matches!(entry, Entry::Empty | Entry::Lost));
            recovery.lost_pages += u64::from(*entry == Entry::Lost);
            self.counters.add_all(counted(&Entry::Empty, entry));
            Ok(verdict)
        })?;
        Ok(recovery)
    }

    /// Takes the slot's object over.
    fn adopt(&self, slot: &Locked, disputes: Option<&mut Disputes>) -> Result<Verdict> {
        let adopted = match slot.entry() {
            Entry::Empty | Entry::Same(_) => return Ok(Verdict::Kept),
            Entry::Raw(handle) => self.pool.adopt(handle),
            Entry::Packed(handle)
                if handle.size_bytes() < self.huge_bytes && self.has_codec(slot) =>
            {
                self.pool.adopt(handle)
            }
            Entry::Back(block) if self.has_codec(slot) => match &self.backing {
                Some(backing) => backing.adopt(block),
                None => return Ok(Verdict::Lost),
            },
            Entry::Packed(_) | Entry::Back(_) | Entry::Lost => return Ok(Verdict::Lost),
        };
        match (adopted, disputes) {
            (Ok(()), _) => Ok(Verdict::Kept),
            (Err(error), Some(disputes)) if error.kind() == ErrorKind::Corrupt => {
                if let Some(place) = slot.seen().place() {
                    memory::push(&mut disputes.places, place)?;
                }
                if let Some(block) = slot.seen().block() {
                    memory::push(&mut disputes.blocks, block)?;
                }
                Ok(Verdict::Kept)
            }
            (Err(error), _) => match error.kind() {
                ErrorKind::OutOfRange | ErrorKind::Corrupt => Ok(Verdict::Lost),
                _ => Err(error),
            },
        }
    }

    /// Whether this store has the codec that the slot names.
    fn has_codec(&self, slot: &Locked) -> bool {
        let priority = slot.flags().priority();
        priority == 0 || self.secondary(priority).is_some()
    }

    /// Makes the checksum of a slot's object anew if it has another one.
    fn reseal(&self, slot: &Locked) -> bool {
        let (Entry::Raw(handle) | Entry::Packed(handle)) = slot.entry() else {
            return false;
        };
        let Some(cell) = self.checksum_cell(slot.index()) else {
            return false;
        };
        let checksum = crc32fast::hash(self.pool.disputed_bytes(handle));
        let differed = cell.swap(checksum, Ordering::Relaxed) != checksum;
        #[cfg(test)]
        crate::crash::point();
        differed
    }

    /// Loses every page whose object has disputed bytes, but those whose objects are right where no other one is.
    fn settle_disputes(&self, mut disputes: Disputes) -> Result<()> {
        let mut blocks = std::mem::take(&mut disputes.blocks);
        blocks.sort_unstable();
        blocks.dedup();
        // Who dies before all of them are lost leaves a page that is alone in its block. It must not read as another one.
        if let Some(backing) = &self.backing {
            blocks.iter().for_each(|block| backing.spoil(*block));
        }
        let is_disputed = |block: u64| blocks.binary_search(&block).is_ok();
        let mut next = 0;
        while let Some((index, _)) =
            self.seen_from(next, |seen| seen.block().is_some_and(is_disputed))
        {
            self.lose(index)?;
            next = index.0 + 1;
        }
        let mut claimants = self.claimants(disputes)?;
        claimants.sort_unstable_by_key(|claimant| claimant.place.start);
        let right = |claimant: &&Claimant| claimant.is_right;
        let mut kept = Vec::new();
        let mut before = 0;
        let mut all_right = claimants.iter().filter(right).peekable();
        while let Some(claimant) = all_right.next() {
            let next = all_right.peek().map_or(usize::MAX, |next| next.place.start);
            if before <= claimant.place.start && claimant.place.end <= next {
                memory::push(&mut kept, claimant.index)?;
            }
            before = before.max(claimant.place.end);
        }
        kept.sort_unstable();
        for claimant in claimants {
            if kept.binary_search(&claimant.index).is_err() {
                self.lose(claimant.index)?;
            }
        }
        Ok(())
    }

    fn lose(&self, index: PageIndex) -> Result<()> {
        let guard = self.table.lock(index)?;
        // What the pool and the backing file know of the object ends with this store.
        std::mem::forget(guard.publish(Entry::Lost, Flags::NONE));
        Ok(())
    }

    fn claimants(&self, disputes: Disputes) -> Result<Vec<Claimant>> {
        let places = joined(disputes.places);
        let is_disputed = |place: Range<usize>| {
            let at = places.partition_point(|bytes| bytes.end <= place.start);
            places.get(at).is_some_and(|bytes| bytes.start < place.end)
        };
        let mut claimants = Vec::new();
        let mut next = 0;
        while let Some((index, seen)) =
            self.seen_from(next, |seen| seen.place().is_some_and(is_disputed))
        {
            let guard = self.table.lock(index)?;
            if let (Entry::Raw(handle) | Entry::Packed(handle), Some(place)) =
                (guard.entry(), seen.place())
            {
                let is_right = self.checksums.is_some()
                    && disputes.resealed.binary_search(&index).is_err()
                    && self
                        .verified(&guard, self.pool.disputed_bytes(handle))
                        .is_ok();
                let claimant = Claimant {
                    index,
                    place,
                    is_right,
                };
                memory::push(&mut claimants, claimant)?;
            }
            next = index.0 + 1;
        }
        Ok(claimants)
    }

    /// The memory of a store that nobody uses, for a store that is made anew over it.
    fn into_body(self, pool: &PoolConfig) -> Result<Body<SleepingBit>> {
        let Some(arena) = self.pool.file()? else {
            unreachable!("what a process left lies in files");
        };
        Ok(Body {
            superblock: self.superblock,
            table: self.table,
            arena: Region::attach(arena, pool.arena_bytes(), "arena")?,
            checksums: self.checksums,
            ages: self.ages.map(|ages| ages.accessed_s),
            backing: self.backing.map(BackingFile::into_untaken),
            counters: self.counters,
        })
    }
}

/// The same bytes in ranges that are apart and ascending.
fn joined(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_unstable_by_key(|bytes| bytes.start);
    ranges.dedup_by(|next, bytes| {
        let joins = next.start <= bytes.end;
        if joins {
            bytes.end = bytes.end.max(next.end);
        }
        joins
    });
    ranges
}
