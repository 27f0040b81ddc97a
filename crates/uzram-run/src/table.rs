//! Where the pages of one address space are, as far as they are not simply in its memory.

use std::collections::BTreeMap;

use crate::objects::Object;
use crate::units::{CHUNK_BYTES, CHUNK_PAGES, PAGE_BYTES, Range, pages};

/// Most often that a page is spared.
const HEAT_MAX: u8 = 3;

/// Where a page's bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the program's memory, or nowhere: then it reads as zeroes. `heat` is how many times it is to be spared, since it
    /// had to come back.
    Memory { heat: u8 },
    /// Nowhere: it is zeroes.
    #[default]
    Zero,
    /// As [`Place::Memory`], but the program has announced that it discards it, and may not have done so yet. Taken now, its old
    /// bytes would come back.
    Discarded,
    /// In this place of the buffer of pages that were just taken.
    Taken(u16),
    /// Compressed.
    Stored(Object),
}

/// One word per page.
#[derive(Debug, Default)]
pub(crate) struct Table {
    chunks: BTreeMap<u64, Box<[Place]>>,
}

const FRESH: Place = Place::Memory { heat: 0 };

impl Table {
    /// The place of the page at `address`.
    pub(crate) fn place(&self, address: u64) -> Place {
        let chunk = self.chunks.get(&(address / CHUNK_BYTES));
        chunk.map_or(FRESH, |places| places[page_of(address)])
    }

    /// Sets the place of the page at `address`, and gives back what it was.
    pub(crate) fn put(&mut self, address: u64, place: Place) -> Place {
        let chunk = self.chunks.entry(address / CHUNK_BYTES);
        let places = chunk.or_insert_with(|| vec![FRESH; CHUNK_PAGES].into());
        std::mem::replace(&mut places[page_of(address)], place)
    }

    /// The page came back.
    pub(crate) fn came(&mut self, address: u64, heat: u8) -> Place {
        let heat = heat.min(HEAT_MAX);
        self.put(address, Place::Memory { heat })
    }

    /// Sets all pages of `range`, and tells `was` where each was.
    pub(crate) fn set(&mut self, range: &Range, place: Place, mut was: impl FnMut(Place)) {
        for address in pages(range) {
            was(self.put(address, place));
        }
    }

    /// Forgets the pages of `range`, and tells `was` where each was.
    pub(crate) fn forget(&mut self, range: &Range, mut was: impl FnMut(Place)) {
        let chunks = range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES);
        let known: Vec<u64> = self.chunks.range(chunks).map(|(chunk, _)| *chunk).collect();
        for chunk in known {
            let whole = chunk * CHUNK_BYTES..(chunk + 1) * CHUNK_BYTES;
            let part = whole.start.max(range.start)..whole.end.min(range.end);
            for address in pages(&part) {
                was(self.put(address, FRESH));
            }
            if part == whole {
                self.chunks.remove(&chunk);
            }
        }
    }

    /// The pages of `range` are at `to` now.
    pub(crate) fn shift(&mut self, range: &Range, to: u64) {
        let mut moved = Vec::new();
        for address in pages(range) {
            let place = self.place(address);
            if place != FRESH {
                moved.push((address - range.start + to, place));
            }
        }
        self.forget(range, |_| {});
        for (address, place) in moved {
            self.put(address, place);
        }
    }

    /// The same for a child. `keeps` is told of each page that both have now.
    pub(crate) fn fork(&self, keeps: impl FnMut(Place)) -> Table {
        self.places().for_each(keeps);
        Table {
            chunks: self.chunks.clone(),
        }
    }

    /// Pages that are not in memory, and whose bytes are kept.
    pub(crate) fn away(&self) -> usize {
        let is_away = |place: &Place| matches!(place, Place::Stored(_) | Place::Taken(_));
        self.places().filter(is_away).count()
    }

    /// The places of all pages that it knows.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        self.chunks
            .values()
            .flat_map(|places| places.iter().copied())
    }
}

fn page_of(address: u64) -> usize {
    (address % CHUNK_BYTES) as usize / PAGE_BYTES
}
