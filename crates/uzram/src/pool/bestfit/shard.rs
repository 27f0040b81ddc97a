//! The blocks of one shard, listed by their longest hole.
//!
//! An object goes to the block whose longest hole is the shortest that suffices. Lists by length,
//! and a bitmap of the lists that have blocks, find it in constant time. Entries of blocks lie in
//! chunks, so growing never copies existing ones.

use super::block::Block;
use super::lengths::{LENGTHS, Lengths};
use super::parked::Parked;
use super::place::Place;
use crate::error::Result;
use crate::memory;

/// Lists of blocks by their longest hole, in steps of 1/512 unit. The last list has those for a
/// whole unit.
const LISTS: usize = LENGTHS - 1;

/// Share of a shard's content that may be parked. Models have few objects.
const PARKED_PART: usize = if cfg!(uzram_shuttle) { 2 } else { 32 };

/// Share of a shard's content that may be parked for a length to have more than its top.
const SUNKEN_PART: usize = if cfg!(uzram_shuttle) { 2 } else { 128 };

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
    /// Entries with a block.
    used: usize,
    /// log2 of the granules of a step of lists.
    step_shift: u32,
    heads: [BlockId; LISTS + 1],
    nonempty: Lengths,
    /// Bookkeeping of the blocks' holes, in bytes.
    holes_bytes: usize,
    /// Granules in use in all blocks.
    live_granules: usize,
    /// Places kept for reuse, which may lie in blocks of other shards.
    parked: Parked,
}

#[derive(Debug)]
struct Item {
    /// Index of the block's frame in the arena; [`NONE`] if the entry is unused.
    frame: u32,
    previous: BlockId,
    next: BlockId,
    list: u16,
    /// Takes no more objects.
    closed: bool,
    block: Block,
}

impl Shard {
    pub(super) fn new(unit_granules: usize, parked: Parked) -> Shard {
        Shard {
            chunks: Vec::new(),
            unused: NONE,
            used: 0,
            step_shift: (unit_granules / LISTS).ilog2(),
            heads: [NONE; LISTS + 1],
            nonempty: Lengths::default(),
            holes_bytes: 0,
            live_granules: 0,
            parked,
        }
    }

    /// Keeps the place of a removed object for the next one of its length; false if it must become
    /// a hole.
    pub(super) fn park(&mut self, place: Place) -> bool {
        let granules = self.parked.granules() + place.length();
        let may_sink = granules <= self.live_granules / SUNKEN_PART;
        granules <= self.live_granules / PARKED_PART && self.parked.push(place, may_sink)
    }

    /// A parked place of exactly this length.
    pub(super) fn unpark(&mut self, length: usize) -> Option<Place> {
        self.parked.pop(length)
    }

    /// A parked place of at least this length.
    pub(super) fn unpark_from(&mut self, length: usize) -> Option<Place> {
        self.parked.pop_from(length)
    }

    /// A place that `theirs` keeps, which has lines of the length below. The whole line comes if
    /// this shard may keep the rest.
    pub(super) fn unpark_of(
        &mut self,
        theirs: &mut Shard,
        length: usize,
        may_use: impl Fn(u32) -> bool,
    ) -> Option<Place> {
        let granules = self.parked.granules() + Parked::line_granules(length);
        if granules > self.live_granules / PARKED_PART {
            return theirs.unpark(length);
        }
        let line = theirs.parked.pop_line(length, may_use)?;
        self.parked.push_line(length, line);
        self.unpark(length)
    }

    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(super) fn make_ready(&mut self) -> Result<()> {
        self.parked.make_ready()
    }

    pub(super) fn parks_too_much(&self) -> bool {
        self.parked.granules() > self.live_granules / PARKED_PART
    }

    /// A parked place of `length` or the next greater one, if more is parked than allowed.
    pub(super) fn unpark_excess(&mut self, length: usize) -> Option<Place> {
        if !self.parks_too_much() {
            return None;
        }
        let next = self.parked.pop_from(length);
        next.or_else(|| self.parked.pop_from(0))
    }

    #[cfg(all(test, not(uzram_shuttle)))]
    pub(super) fn parked_granules(&self) -> usize {
        self.parked.granules()
    }

    pub(super) fn is_parked(&self, place: Place) -> bool {
        self.parked.has(place)
    }

    /// Whether an open block has a hole of `length` granules, and none has one of a whole unit.
    pub(super) fn has_short_hole(&self, length: usize) -> bool {
        self.list_for(length).is_some_and(|list| list < LISTS)
    }

    /// Takes `length` granules from a hole of the best block.
    pub(super) fn take(&mut self, length: usize) -> Option<Place> {
        let id = self.heads[self.list_for(length)?];
        let start = self.change(id, |block| block.take(length));
        let start = start.expect("a listed block has a hole as long as its list says");
        Place::new(self.item(id).frame, start, length)
    }

    /// Changes a block, and moves it to the list that fits.
    pub(super) fn change<T>(&mut self, id: BlockId, change: impl FnOnce(&mut Block) -> T) -> T {
        let step_shift = self.step_shift;
        let item = self.item_mut(id);
        let (before_bytes, before_live) = (item.block.side_bytes(), item.block.live_granules());
        let changed = change(&mut item.block);
        let list = match item.closed {
            true => UNLISTED,
            false => (item.block.longest() >> step_shift).min(LISTS) as u16,
        };
        let (after_bytes, after_live) = (item.block.side_bytes(), item.block.live_granules());
        let before = item.list;
        self.holes_bytes = self.holes_bytes + after_bytes - before_bytes;
        self.live_granules = self.live_granules + after_live - before_live;
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
        self.used += 1;
        self.holes_bytes += block.side_bytes();
        self.live_granules += block.live_granules();
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
        self.used -= 1;
        self.holes_bytes -= block.side_bytes();
        self.live_granules -= block.live_granules();
        block
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

    pub(super) fn block(&self, id: BlockId) -> &Block {
        &self.item(id).block
    }

    /// Whether entry `id` is that of the block in `frame`.
    pub(super) fn is_in(&self, id: BlockId, frame: u32) -> bool {
        let chunk = self.chunks.get(id as usize / CHUNK_BLOCKS);
        chunk.is_some_and(|chunk| chunk[id as usize % CHUNK_BLOCKS].frame == frame)
    }

    /// The number of entries, used or not.
    pub(super) fn entries(&self) -> usize {
        self.chunks.len() * CHUNK_BLOCKS
    }

    /// The frame and the block of entry `id`, if one is there and open.
    pub(super) fn open(&self, id: usize) -> Option<(u32, &Block)> {
        let item = self.item(id as BlockId);
        (item.frame != NONE && !item.closed).then_some((item.frame, &item.block))
    }

    /// Closes the block or opens it again. Returns the state before.
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
            + self.parked.side_bytes()
    }

    /// The list of blocks whose longest hole is the shortest that has `length` granules.
    fn list_for(&self, length: usize) -> Option<usize> {
        let steps = (length + (1 << self.step_shift) - 1) >> self.step_shift;
        self.nonempty.first_from(steps)
    }

    fn list(&mut self, id: BlockId, list: u16) {
        self.item_mut(id).list = list;
        if list == UNLISTED {
            return;
        }
        let at = usize::from(list);
        let next = std::mem::replace(&mut self.heads[at], id);
        self.nonempty.insert(at);
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
            if next == NONE {
                self.nonempty.remove(list);
            }
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
