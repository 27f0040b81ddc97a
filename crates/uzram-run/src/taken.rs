//! Pages that were just taken from a program, and are not compressed yet. A touch gets them back as they are.

use crate::units::{CHUNK_PAGES, PAGE_BYTES};

/// A page of the buffer.
#[derive(Clone, Copy, Debug)]
struct Entry {
    space: u32,
    address: u64,
    is_wanted: bool,
}

/// A chunk's worth of pages.
pub(crate) struct Taken {
    bytes: Box<[u8]>,
    entries: Vec<Entry>,
    /// The first that is not compressed.
    next: usize,
}

impl Taken {
    /// An empty buffer.
    pub(crate) fn new() -> Taken {
        Taken {
            bytes: vec![0; CHUNK_PAGES * PAGE_BYTES].into(),
            entries: Vec::with_capacity(CHUNK_PAGES),
            next: 0,
        }
    }

    /// The buffer, for as many pages as it has.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.entries.clear();
        self.next = 0;
        &mut self.bytes
    }

    /// Begins anew with the pages at these addresses of a space, whose bytes are in the buffer.
    pub(crate) fn begin(&mut self, space: u32, addresses: &[u64]) {
        let entry = |address: &u64| Entry {
            space,
            address: *address,
            is_wanted: true,
        };
        self.entries.clear();
        self.entries.extend(addresses.iter().map(entry));
        self.next = 0;
    }

    /// The next page to be compressed: its space, address and bytes.
    pub(crate) fn next(&mut self) -> Option<(u32, u64, &[u8])> {
        while let Some(entry) = self.entries.get(self.next).copied() {
            let slot = self.next;
            self.next += 1;
            if entry.is_wanted {
                return Some((entry.space, entry.address, page(&self.bytes, slot)));
            }
        }
        None
    }

    /// Whether none is left to be compressed.
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.entries.len()
    }

    /// The bytes of a page.
    pub(crate) fn page(&self, slot: u16) -> &[u8] {
        page(&self.bytes, slot.into())
    }

    /// A page need not be compressed any more.
    pub(crate) fn drop(&mut self, slot: u16) {
        self.entries[usize::from(slot)].is_wanted = false;
    }
}

fn page(bytes: &[u8], slot: usize) -> &[u8] {
    &bytes[slot * PAGE_BYTES..][..PAGE_BYTES]
}
