//! One size class: its blocks, and the choice of the next one to fill.
//!
//! Blocks with room are listed by fullness and the fullest are filled first, so that emptier ones
//! drain and go back. A block's objects are a bitmap here, not a list within the objects: freeing
//! touches no cold memory, and a stray write cannot corrupt it.

use super::geometry::{BLOCK_OBJECTS_MAX, Class};
use crate::error::Result;
use crate::memory;
use crate::region::PAGE_BYTES;

/// Fullness groups of blocks with room: quarters.
const GROUPS: usize = 4;

/// Blocks in one allocation of bookkeeping: growing never copies what exists.
const CHUNK_BLOCKS: usize = 16;

const NONE: u32 = u32::MAX;

/// The blocks of one class.
#[derive(Debug)]
pub(super) struct Blocks {
    class: Class,
    chunks: Vec<Box<[Block]>>,
    /// Heads of the lists of blocks with room, the emptiest quarter first.
    groups: [u32; GROUPS],
    /// Head of the list of unused entries.
    unused: u32,
    /// Entries with a block.
    used: usize,
}

#[derive(Clone, Debug)]
struct Block {
    first_page: u32,
    live: u16,
    /// Takes no more objects, and is in no list.
    closed: bool,
    /// In a fullness list, or unused (then only `next` counts).
    previous: u32,
    next: u32,
    objects: [u64; BLOCK_OBJECTS_MAX / 64],
}

/// A block without objects that left the class: its first page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Emptied(pub usize);

impl Blocks {
    pub(super) fn new(class: Class) -> Blocks {
        Blocks {
            class,
            chunks: Vec::new(),
            groups: [NONE; GROUPS],
            unused: NONE,
            used: 0,
        }
    }

    pub(super) fn class(&self) -> &Class {
        &self.class
    }

    /// Takes a free object in the fullest block with room: the block's first page and the index.
    pub(super) fn take(&mut self) -> Option<(usize, usize)> {
        let id = self
            .groups
            .iter()
            .rev()
            .copied()
            .find(|head| *head != NONE)?;
        let limit = self.class.block_objects;
        let before = self.group(self.block(id));
        let block = self.block_mut(id);
        let index = block.first_free(limit).expect("a listed block has room");
        block.objects[index / 64] |= 1 << (index % 64);
        block.live += 1;
        let place = (block.first_page as usize, index);
        self.regroup(id, before);
        Some(place)
    }

    /// Makes an entry for [`Blocks::add`].
    pub(super) fn prepare(&mut self) -> Result<()> {
        if self.unused != NONE {
            return Ok(());
        }
        let first = (self.chunks.len() * CHUNK_BLOCKS) as u32;
        let empty = Block {
            first_page: 0,
            live: 0,
            closed: false,
            previous: NONE,
            next: NONE,
            objects: [0; 4],
        };
        let mut chunk = memory::boxed_slice(CHUNK_BLOCKS, empty)?;
        for (offset, block) in chunk.iter_mut().enumerate() {
            let last = offset + 1 == CHUNK_BLOCKS;
            block.next = if last {
                NONE
            } else {
                first + offset as u32 + 1
            };
        }
        memory::push(&mut self.chunks, chunk)?;
        self.unused = first;
        Ok(())
    }

    /// Adds an empty block, after a successful [`Blocks::prepare`], and returns its id.
    pub(super) fn add(&mut self, first_page: usize) -> u32 {
        let id = self.unused;
        let block = self.block_mut(id);
        let next = block.next;
        block.first_page = first_page as u32;
        block.live = 0;
        block.closed = false;
        block.objects = [0; BLOCK_OBJECTS_MAX / 64];
        self.unused = next;
        self.used += 1;
        self.link(id, 0);
        id
    }

    /// Frees the object at `offset_bytes` of the arena in block `id`.
    pub(super) fn remove(&mut self, id: u32, offset_bytes: usize) -> Option<Emptied> {
        let object_bytes = self.class.object_bytes;
        let before = self.group(self.block(id));
        let block = self.block_mut(id);
        let index = (offset_bytes - block.first_page as usize * PAGE_BYTES) / object_bytes;
        let (word, bit) = (index / 64, 1 << (index % 64));
        debug_assert!(
            block.objects[word] & bit != 0,
            "double free or stale handle"
        );
        block.objects[word] &= !bit;
        block.live -= 1;
        if block.live > 0 {
            self.regroup(id, before);
            return None;
        }
        let first_page = block.first_page as usize;
        if let Some(group) = before {
            self.unlink(id, group);
        }
        let unused = self.unused;
        self.block_mut(id).next = unused;
        self.unused = id;
        self.used -= 1;
        Some(Emptied(first_page))
    }

    /// Takes all entries out if none has a block. What is returned is to be dropped without the lock: it may be
    /// much.
    pub(super) fn take_unused(&mut self) -> impl Sized + use<> {
        match self.used {
            0 => {
                self.unused = NONE;
                std::mem::take(&mut self.chunks)
            }
            _ => Vec::new(),
        }
    }

    /// Marks object `index` of block `id` as live; false if it was.
    pub(super) fn adopt(&mut self, id: u32, index: usize) -> bool {
        let before = self.group(self.block(id));
        let block = self.block_mut(id);
        let (word, bit) = (index / 64, 1 << (index % 64));
        if block.objects[word] & bit != 0 {
            return false;
        }
        block.objects[word] |= bit;
        block.live += 1;
        self.regroup(id, before);
        true
    }

    /// Whether block `id` has a live object at `offset_bytes` of the arena.
    pub(super) fn holds(&self, id: u32, offset_bytes: usize) -> bool {
        let Some(chunk) = self.chunks.get(id as usize / CHUNK_BLOCKS) else {
            return false;
        };
        let block = &chunk[id as usize % CHUNK_BLOCKS];
        let first_bytes = block.first_page as usize * PAGE_BYTES;
        let Some(inside_bytes) = offset_bytes.checked_sub(first_bytes) else {
            return false;
        };
        let index = inside_bytes / self.class.object_bytes;
        block.live > 0
            && index < self.class.block_objects
            && inside_bytes.is_multiple_of(self.class.object_bytes)
            && block.objects[index / 64] & 1 << (index % 64) != 0
    }

    /// Whether block `id` is in use and starts at `first_page`.
    pub(super) fn is_at(&self, id: u32, first_page: usize) -> bool {
        let chunk = self.chunks.get(id as usize / CHUNK_BLOCKS);
        chunk.is_some_and(|chunk| {
            let block = &chunk[id as usize % CHUNK_BLOCKS];
            block.live > 0 && block.first_page as usize == first_page
        })
    }

    /// The number of entries, used or not.
    pub(super) fn entries(&self) -> usize {
        self.chunks.len() * CHUNK_BLOCKS
    }

    /// The first page of block `id` and its objects, if it is in use and open.
    pub(super) fn open(&self, id: usize) -> Option<(usize, usize)> {
        let block = self.block(id as u32);
        let is_open = block.live > 0 && !block.closed;
        is_open.then_some((block.first_page as usize, usize::from(block.live)))
    }

    /// Closes block `id` or opens it again; false if it was so already.
    pub(super) fn set_closed(&mut self, id: u32, closed: bool) -> bool {
        let before = self.group(self.block(id));
        let was = std::mem::replace(&mut self.block_mut(id).closed, closed);
        self.regroup(id, before);
        was != closed
    }

    /// Bookkeeping memory, in bytes.
    pub(super) fn side_bytes(&self) -> usize {
        self.chunks.len() * CHUNK_BLOCKS * size_of::<Block>()
            + self.chunks.capacity() * size_of::<Box<[Block]>>()
    }

    /// The list that a block belongs to; none if it is full or closed.
    fn group(&self, block: &Block) -> Option<usize> {
        let (live, objects) = (usize::from(block.live), self.class.block_objects);
        (live < objects && !block.closed).then(|| live * GROUPS / objects)
    }

    fn regroup(&mut self, id: u32, before: Option<usize>) {
        let after = self.group(self.block(id));
        if before != after {
            if let Some(group) = before {
                self.unlink(id, group);
            }
            if let Some(group) = after {
                self.link(id, group);
            }
        }
    }

    fn link(&mut self, id: u32, group: usize) {
        let head = self.groups[group];
        let block = self.block_mut(id);
        block.previous = NONE;
        block.next = head;
        if head != NONE {
            self.block_mut(head).previous = id;
        }
        self.groups[group] = id;
    }

    fn unlink(&mut self, id: u32, group: usize) {
        let Block { previous, next, .. } = *self.block(id);
        match previous {
            NONE => self.groups[group] = next,
            previous => self.block_mut(previous).next = next,
        }
        if next != NONE {
            self.block_mut(next).previous = previous;
        }
    }

    fn block(&self, id: u32) -> &Block {
        &self.chunks[id as usize / CHUNK_BLOCKS][id as usize % CHUNK_BLOCKS]
    }

    fn block_mut(&mut self, id: u32) -> &mut Block {
        &mut self.chunks[id as usize / CHUNK_BLOCKS][id as usize % CHUNK_BLOCKS]
    }
}

impl Block {
    fn first_free(&self, objects: usize) -> Option<usize> {
        let (word, bits) = self
            .objects
            .iter()
            .enumerate()
            .find(|(_, word)| **word != u64::MAX)?;
        let index = word * 64 + bits.trailing_ones() as usize;
        (index < objects).then_some(index)
    }
}
