//! Recompression: a secondary codec, slower and denser than the store's, packs pages again that nobody needs soon.
//!
//! A pass takes one page after another. It copies the object under the slot's lock and marks the slot, packs the copy
//! unlocked, and locks the slot again to publish. Any publish between the two clears the mark: the smaller object is
//! dropped then, and the newer content stays. Moving an object keeps the mark, as it keeps the bytes. Reads are not kept
//! waiting and change nothing but the idle flag.
//!
//! The smaller object takes memory before the larger one gives its own back: an object at a time. The pass has buffers of
//! its own, so it may wait for memory with them.
//!
//! A page whose object did not shrink is marked incompressible if no codec is left that might, and not tried again.

use std::ops::ControlFlow;

use super::cold::ColdPages;
use super::layout::{Flags, Seen};
use super::lock::SlotLock;
use super::slot::Entry;
use super::{StoreWith, read};
use crate::codec::Compression;
use crate::codec::streams::{Packer, Stream, StreamPolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::page::PageIndex;
use crate::pool::{Full, GRANULE_BYTES, Handle, Room};
use crate::sync::Arc;

/// Times that a pass grows the pool for one object; others may take the new memory.
const GROWTHS_MAX: usize = 4;

/// The pages that [`Store::recompress`](crate::Store::recompress) takes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recompression {
    /// The pages among which. [`ColdPages::Incompressible`] has none: they are not tried again.
    pub pages: ColdPages,
    /// Only objects of this many bytes or more are tried, and replaced by objects below it. 0: whatever their size.
    pub threshold_bytes: usize,
    /// Most pages that are tried, those with the largest objects first. None: all.
    pub pages_max: Option<u64>,
    /// The codec, by its priority of 1 to 3.
    pub priority: u8,
}

impl Recompression {
    /// All pages, whatever their size, by the codec of this priority.
    #[must_use]
    pub fn new(priority: u8) -> Recompression {
        Recompression {
            pages: ColdPages::All,
            threshold_bytes: 0,
            pages_max: None,
            priority,
        }
    }

    fn has(&self, seen: Seen) -> bool {
        let flags = seen.flags();
        self.pages.has(seen)
            && flags.priority() < self.priority
            && !flags.is_incompressible()
            && seen.size_bytes() >= self.threshold_bytes
    }

    /// Whether an object of `new` bytes may replace one of `old` bytes.
    fn takes(&self, old: usize, new: usize) -> bool {
        is_smaller(old, new) && (self.threshold_bytes == 0 || new < self.threshold_bytes)
    }
}

/// The result of a pass of recompression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recompressed {
    /// Pages that were packed again, in vain or not.
    pub pages_tried: u64,
    /// Pages whose object was replaced by a smaller one.
    pub pages_replaced: u64,
}

/// The buffers of a pass.
struct Desk {
    packer: Packer,
    page: Box<[u8]>,
    /// The old object.
    object: Vec<u8>,
}

impl Desk {
    fn new(codec: &Compression) -> Result<Desk> {
        let Stream { packer, page } = codec.stream()?;
        let mut object = Vec::new();
        memory::reserve(&mut object, codec.unit().bytes())?;
        Ok(Desk {
            packer,
            page,
            object,
        })
    }
}

/// A page whose slot is marked, until this is dropped.
struct Marked<'a, L: SlotLock, S: StreamPolicy<Stream>> {
    store: &'a StoreWith<L, S>,
    index: PageIndex,
}

impl<L: SlotLock, S: StreamPolicy<Stream>> Drop for Marked<'_, L, S> {
    fn drop(&mut self) {
        if let Ok(mut guard) = self.store.table.lock(self.index) {
            guard.set_flags(guard.flags().with_mark(false));
        }
    }
}

impl<L: SlotLock, S: StreamPolicy<Stream>> StoreWith<L, S> {
    /// As [`Store::secondary`](crate::Store::secondary).
    #[must_use]
    pub fn secondary(&self, priority: u8) -> Option<&Arc<Compression>> {
        let place = usize::from(priority).checked_sub(1)?;
        self.secondaries.get(place)?.as_ref()
    }

    /// As [`Store::secondary_priority`](crate::Store::secondary_priority).
    #[must_use]
    pub fn secondary_priority(&self, algorithm: &str) -> Option<u8> {
        let is_it = |priority: &u8| {
            let codec = self.secondary(*priority);
            codec.is_some_and(|codec| codec.codec().name() == algorithm)
        };
        (1..=self.secondaries.len() as u8).find(is_it)
    }

    /// As [`Store::recompress`](crate::Store::recompress).
    pub fn recompress(
        &self,
        what: &Recompression,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Recompressed> {
        let codec = self.check_recompression(what)?;
        let _turn = self.writing_back.lock();
        let mut desk = Desk::new(codec)?;
        let (mut done, mut failed) = (Recompressed::default(), Ok(()));
        let visit = |index| {
            if what.pages_max == Some(done.pages_tried) || !goes_on() {
                return ControlFlow::Break(());
            }
            match self.recompress_page(index, what, &mut desk) {
                Ok(one) => {
                    done.pages_tried += one.pages_tried;
                    done.pages_replaced += one.pages_replaced;
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    failed = Err(error);
                    ControlFlow::Break(())
                }
            }
        };
        self.visit_cold(what.pages_max, |seen| what.has(seen), visit)?;
        failed.map(|()| done)
    }

    fn check_recompression(&self, what: &Recompression) -> Result<&Arc<Compression>> {
        let refused = |text: String| Error::new(ErrorKind::InvalidInput, text);
        if what.pages == ColdPages::Incompressible {
            let text = "incompressible pages are not tried again; choose idle, huge or all";
            return Err(refused(text.into()));
        }
        if what.threshold_bytes >= self.huge_bytes {
            return Err(refused(format!(
                "threshold {}: objects from {} bytes on are kept raw; choose less",
                what.threshold_bytes, self.huge_bytes
            )));
        }
        self.secondary(what.priority).ok_or_else(|| {
            refused(format!(
                "priority {}: no secondary codec has it; name one when the store is made",
                what.priority
            ))
        })
    }

    fn recompress_page(
        &self,
        index: PageIndex,
        what: &Recompression,
        desk: &mut Desk,
    ) -> Result<Recompressed> {
        let mut done = Recompressed::default();
        let Some(marked) = self.copy_object(index, what, desk)? else {
            return Ok(done);
        };
        done.pages_tried = 1;
        let old_bytes = desk.object.len();
        let Desk { packer, page, .. } = desk;
        let packed = packer.compress(page).filter(|packed| !packed.is_empty());
        match packed.filter(|packed| packed.len() < self.huge_bytes) {
            Some(packed) if what.takes(old_bytes, packed.len()) => {
                let new = self.insert_repacked(packed)?;
                let checksum = self.checksum_of(packed);
                done.pages_replaced = self.settle_repacked(&marked, new, checksum, what.priority);
            }
            Some(packed) if is_smaller(old_bytes, packed.len()) => {}
            _ => self.settle_in_vain(&marked, what.priority),
        }
        Ok(done)
    }

    /// Copies the object of page `index`, marks its slot, and unpacks the copy. None if the page is no longer wanted, or
    /// damaged.
    fn copy_object(
        &self,
        index: PageIndex,
        what: &Recompression,
        desk: &mut Desk,
    ) -> Result<Option<Marked<'_, L, S>>> {
        let mut guard = self.table.lock(index)?;
        let (Entry::Raw(handle) | Entry::Packed(handle)) = guard.entry() else {
            return Ok(None);
        };
        let is_raw = matches!(guard.entry(), Entry::Raw(_));
        let Ok(bytes) = self.verified(&guard, self.pool.bytes(handle)) else {
            return Ok(None);
        };
        if !what.has(guard.seen()) || bytes.len() > desk.page.len() {
            return Ok(None);
        }
        desk.object.clear();
        desk.object.extend_from_slice(bytes);
        let flags = guard.flags().with_idle(false).with_mark(true);
        guard.set_flags(flags);
        drop(guard);
        let marked = Marked { store: self, index };
        if is_raw {
            let is_whole = desk.object.len() == desk.page.len();
            if is_whole {
                desk.page.copy_from_slice(&desk.object);
            }
            return Ok(is_whole.then_some(marked));
        }
        let unpacked = self
            .unpacker(flags)?
            .decompress(&desk.object, &mut desk.page)?;
        Ok(unpacked.is_ok().then_some(marked))
    }

    /// Inserts an object whose page has a larger one still.
    fn insert_repacked(&self, bytes: &[u8]) -> Result<Handle> {
        let full = || {
            let text = "no memory for a smaller object beside the larger one; free some or discard";
            Error::new(ErrorKind::NoMemory, text)
        };
        let insert = || match self.pool.insert(bytes, Room::Any) {
            Ok(handle) => Ok(Some(handle)),
            Err(Full::NeedsMemory) => Ok(None),
            Err(Full::NoMemory) => Err(full()),
        };
        self.behind_the_starving();
        if let Some(handle) = insert()? {
            return Ok(handle);
        }
        // Writers there wait for others to make memory, and so must this.
        if self.has_spare {
            return Err(full());
        }
        // In a turn, or compaction and writers under a limit might give back what is made here.
        let _turn = self.growing.lock();
        for _ in 0..GROWTHS_MAX {
            self.pool.grow(bytes.len())?;
            if let Some(handle) = insert()? {
                return Ok(handle);
            }
        }
        Err(full())
    }

    /// Publishes the smaller object if its page has not changed meanwhile, else frees it. Returns how many it published.
    fn settle_repacked(
        &self,
        marked: &Marked<'_, L, S>,
        new: Handle,
        checksum: u32,
        priority: u8,
    ) -> u64 {
        match self.table.lock(marked.index) {
            Ok(guard) if guard.flags().is_marked() => {
                let flags = Flags::packed_by(priority);
                self.put(guard, Entry::Packed(new), checksum, flags);
                1
            }
            guard => {
                drop(guard);
                self.pool.remove(new);
                0
            }
        }
    }

    /// Notes that the last codec did not make the object smaller, if the page has not changed meanwhile.
    fn settle_in_vain(&self, marked: &Marked<'_, L, S>, priority: u8) {
        let last = self.secondaries.iter().rposition(Option::is_some);
        if last != Some(usize::from(priority) - 1) {
            return;
        }
        if let Ok(mut guard) = self.table.lock(marked.index)
            && guard.flags().is_marked()
        {
            let flags = guard.flags().with_incompressible();
            self.count_flags(guard.flags(), flags);
            guard.set_flags(flags);
        }
    }

    /// The codec that packed an object with these flags.
    #[inline]
    pub(super) fn unpacker(&self, flags: Flags) -> Result<&Compression> {
        match flags.priority() {
            0 => Ok(&self.compression),
            priority => match self.secondary(priority) {
                Some(codec) => Ok(codec),
                None => Err(read::corrupt()),
            },
        }
    }
}

/// Whether an object of `new` bytes takes less memory than one of `old` bytes.
fn is_smaller(old: usize, new: usize) -> bool {
    new.div_ceil(GRANULE_BYTES) < old.div_ceil(GRANULE_BYTES)
}

#[cfg(all(test, not(uzram_shuttle)))]
#[path = "recompress_tests.rs"]
pub(super) mod tests;
