//! The blocks of one shard, listed by their longest hole.
//!
//! An object goes to the block whose longest hole is the shortest that suffices: lists by length and a
//! bitmap of the lists that have blocks find it in constant time. Entries of blocks live in chunks, so
//! growing never copies what exists.

use super::block::Block;
use crate::error::Result;
use crate::memory;

/// Lists of blocks by their longest hole, in steps of 1/512 unit; the last has those for a whole unit.
const LISTS: usize = 512;

/// Blocks in one allocation of bookkeeping.
const CHUNK_BLOCKS: usize = 16;

const NONE: u32 = u32::MAX;
const UNLISTED: u16 = 0;

/// The index of a block's entry in its shard.
pub(super) type BlockId = u32;

#[derive(Debug)]
pub(super) struct Shard {
    chunks: Vec<Box<[Item]>>,
    /// Head of the list of unused entries.
    unused: BlockId,
    /// Granules of a step of lists.
    step: usize,
    heads: [BlockId; LISTS + 1],
    nonempty: [u64; LISTS / 64 + 1],
    /// Bookkeeping of the blocks' holes, in bytes.
    holes_bytes: usize,
}

#[derive(Debug)]
struct Item {
    /// Where the block's frame is among the arena's; [`NONE`] if the entry is unused.
    frame: u32,
    previous: BlockId,
    next: BlockId,
    list: u16,
    /// Takes no more objects.
    closed: bool,
    block: Block,
}

impl Shard {
    pub(super) fn new(unit_granules: usize) -> Shard {
        Shard {
            chunks: Vec::new(),
            unused: NONE,
            step: unit_granules / LISTS,
            heads: [NONE; LISTS + 1],
            nonempty: [0; LISTS / 64 + 1],
            holes_bytes: 0,
        }
    }

    /// Whether an open block has a hole of `length` granules.
    pub(super) fn has_hole(&self, length: usize) -> bool {
        self.first_list(length.div_ceil(self.step)).is_some()
    }

    /// Takes `length` granules from the best block: its frame, and where in it.
    pub(super) fn take(&mut self, length: usize) -> Option<(u32, usize)> {
        let id = self.heads[self.first_list(length.div_ceil(self.step))?];
        let start = self.change(id, |block| block.take(length));
        let start = start.expect("a listed block has a hole as long as its list says");
        Some((self.item(id).frame, start))
    }

    /// Changes a block, and its list accordingly.
    pub(super) fn change<T>(&mut self, id: BlockId, change: impl FnOnce(&mut Block) -> T) -> T {
        let step = self.step;
        let item = self.item_mut(id);
        let before_bytes = item.block.side_bytes();
        let changed = change(&mut item.block);
        let list = match item.closed {
            true => UNLISTED,
            false => (item.block.longest() / step).min(LISTS) as u16,
        };
        let (before, after_bytes) = (item.list, item.block.side_bytes());
        self.holes_bytes = self.holes_bytes + after_bytes - before_bytes;
        if list != before {
            self.unlist(id);
            self.list(id, list);
        }
        changed
    }

    /// Makes room for one more block.
    pub(super) fn reserve(&mut self) -> Result<()> {
        match self.unused {
            NONE => self.add_chunk(),
            _ => Ok(()),
        }
    }

    /// Adds a block, for which [`Shard::reserve`] made room.
    pub(super) fn add(&mut self, frame: u32, block: Block) -> BlockId {
        let id = self.unused;
        self.holes_bytes += block.side_bytes();
        let item = self.item_mut(id);
        item.block = block;
        item.frame = frame;
        item.closed = false;
        self.unused = item.next;
        self.change(id, |_| ());
        id
    }

    /// Takes a block out.
    pub(super) fn remove(&mut self, id: BlockId) -> Block {
        self.unlist(id);
        let unused = self.unused;
        let item = self.item_mut(id);
        item.frame = NONE;
        item.next = unused;
        let block = std::mem::take(&mut item.block);
        self.unused = id;
        self.holes_bytes -= block.side_bytes();
        block
    }

    pub(super) fn block(&self, id: BlockId) -> &Block {
        &self.item(id).block
    }

    /// Whether entry `id` is that of the block in `frame`.
    pub(super) fn is_in(&self, id: BlockId, frame: u32) -> bool {
        let chunk = self.chunks.get(id as usize / CHUNK_BLOCKS);
        chunk.is_some_and(|chunk| chunk[id as usize % CHUNK_BLOCKS].frame == frame)
    }

    /// How many entries there are, used or not.
    pub(super) fn entries(&self) -> usize {
        self.chunks.len() * CHUNK_BLOCKS
    }

    /// The frame and the block of entry `id`, if one is there and open.
    pub(super) fn open(&self, id: usize) -> Option<(u32, &Block)> {
        let item = self.item(id as BlockId);
        (item.frame != NONE && !item.closed).then_some((item.frame, &item.block))
    }

    /// Closes the block or opens it again; returns which it was.
    pub(super) fn set_closed(&mut self, id: BlockId, closed: bool) -> bool {
        let was = std::mem::replace(&mut self.item_mut(id).closed, closed);
        self.change(id, |_| ());
        was
    }

    /// Bookkeeping memory, in bytes.
    pub(super) fn side_bytes(&self) -> usize {
        self.entries() * size_of::<Item>()
            + self.chunks.capacity() * size_of::<Box<[Item]>>()
            + self.holes_bytes
    }

    /// The first list with blocks, from `from` on.
    fn first_list(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.nonempty[word] & u64::MAX << (from % 64);
        while bits == 0 {
            word += 1;
            bits = *self.nonempty.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    fn list(&mut self, id: BlockId, list: u16) {
        self.item_mut(id).list = list;
        if list == UNLISTED {
            return;
        }
        let at = usize::from(list);
        let next = std::mem::replace(&mut self.heads[at], id);
        self.nonempty[at / 64] |= 1 << (at % 64);
        let item = self.item_mut(id);
        (item.previous, item.next) = (NONE, next);
        if next != NONE {
            self.item_mut(next).previous = id;
        }
    }

    fn unlist(&mut self, id: BlockId) {
        let item = self.item_mut(id);
        let (list, previous, next) = (usize::from(item.list), item.previous, item.next);
        item.list = UNLISTED;
        if list == usize::from(UNLISTED) {
            return;
        }
        if previous != NONE {
            self.item_mut(previous).next = next;
        } else {
            self.heads[list] = next;
            self.nonempty[list / 64] &= !(u64::from(next == NONE) << (list % 64));
        }
        if next != NONE {
            self.item_mut(next).previous = previous;
        }
    }

    fn add_chunk(&mut self) -> Result<()> {
        let first = self.entries() as BlockId;
        let mut chunk = Vec::new();
        memory::reserve(&mut chunk, CHUNK_BLOCKS)?;
        chunk.extend((first + 1..).take(CHUNK_BLOCKS).map(|next| Item {
            frame: NONE,
            previous: NONE,
            next,
            list: UNLISTED,
            closed: false,
            block: Block::default(),
        }));
        chunk[CHUNK_BLOCKS - 1].next = NONE;
        memory::push(&mut self.chunks, chunk.into_boxed_slice())?;
        self.unused = first;
        Ok(())
    }

    fn item(&self, id: BlockId) -> &Item {
        &self.chunks[id as usize / CHUNK_BLOCKS][id as usize % CHUNK_BLOCKS]
    }

    fn item_mut(&mut self, id: BlockId) -> &mut Item {
        &mut self.chunks[id as usize / CHUNK_BLOCKS][id as usize % CHUNK_BLOCKS]
    }
}
