//! Shared by zbud and z3fold: each block is one unit, cut into 64 chunks, with a few objects in
//! it.
//!
//! A [`Layout`] decides which objects share a unit, and their places in it: a pure rule that fits
//! in one word. The rest is here: blocks with room are listed by the largest object that they can
//! take, and an object goes to the block that it fills best.
//!
//! Bound: an object of `s` bytes occupies less than `s` + 1/64 unit. The use of the rest of its
//! unit depends on the other objects: at worst it is unused.
//!
//! Invariant 8: a unit's objects lie in its block, and their places in it determine the layout's
//! word, in any order of adoption. Only the order of the lists is lost, and the shard of each
//! block.
//!
//! Locks: one per shard of blocks, then the arena's; never two shards' at once. A block belongs to
//! the shard that made it for its whole life, so a handle leads to the lock without another one.
//! The copy into an object runs outside of the locks, because no other thread knows the object
//! yet.

#![allow(unsafe_code)]

use crossbeam_utils::CachePadded;

use super::arena::{Arena, Runs};
use super::table::{BlockNumber, List, Table};
use super::victims::{Candidate, Candidates, Victim};
use super::{
    Full, GRANULE_BYTES, Handle, Pool, PoolConfig, PoolMemory, Room, lies_nowhere, lies_on_another,
};
use crate::cpu;
use crate::error::Result;
use crate::memory;
use crate::region::{PAGE_BYTES, Region};
use crate::sync::{Mutex, MutexGuard};

/// Chunks of a unit: 64 bytes each at 4 KiB.
pub(super) const CHUNKS: usize = 64;

/// Objects that any layout can hold.
pub(super) const OBJECTS_MAX: usize = 3;

/// CPUs beyond this number share shards, because an insert that finds no room looks into each.
pub(super) const SHARDS_MAX: usize = 16;

/// The way in which objects share a unit. Places and sizes are in chunks.
pub(super) trait Layout: Copy + Default + Send + Sync + 'static {
    /// The layout as a word, 0 for a unit without objects.
    fn to_word(self) -> u32;

    fn from_word(word: u32) -> Self;

    /// Size of the largest object that can be added; 0 if none can.
    fn room(self) -> usize;

    /// Adds an object of at most [`Layout::room`] chunks. Returns its place.
    fn add(&mut self, chunks: usize) -> usize;

    /// Sizes of the objects; 0 where there is none.
    fn sizes(self) -> [usize; OBJECTS_MAX];

    /// The number of objects that a unit can hold.
    fn objects_max() -> usize;

    /// Whether exactly this object is there.
    fn holds(self, start: usize, chunks: usize) -> bool;

    /// Takes away an object that is there.
    fn take_away(&mut self, start: usize, chunks: usize);

    /// Adds an object at a predecessor's place; false if it cannot lie there.
    fn adopt(&mut self, start: usize, chunks: usize) -> bool;
}

pub(super) struct Buddies<L> {
    unit_bytes: usize,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    table: Table,
    layout: std::marker::PhantomData<L>,
}

/// Blocks with room, listed by its size. Blocks with an object and no room are in no list.
struct Shard {
    index: usize,
    by_room: [List; CHUNKS],
    /// Bit `n` is set if list `n` has blocks.
    nonempty: u64,
}

/// A pool whose blocks are spread over `shards` locks.
pub(super) fn make<L: Layout>(
    config: &PoolConfig,
    region: Region,
    shards: usize,
) -> Result<Box<PoolMemory>> {
    let mut locks = Vec::new();
    for index in 0..shards.clamp(1, SHARDS_MAX) {
        let shard = Shard {
            index,
            by_room: [List::default(); CHUNKS],
            nonempty: 0,
        };
        memory::push(&mut locks, CachePadded::new(Mutex::new(shard)))?;
    }
    let arena = Arena::new(config, region, Runs::Anywhere);
    let unit_bytes = config.unit.bytes();
    let pool = Buddies::<L> {
        unit_bytes,
        shards: locks.into_boxed_slice(),
        table: Table::new(&arena, config.unit)?,
        layout: std::marker::PhantomData,
    };
    let huge_bytes = unit_bytes - unit_bytes / CHUNKS + 1;
    Ok(Box::new(PoolMemory::new(arena, huge_bytes, pool)))
}

/// The place of an object: its block, its first chunk and their number.
#[derive(Clone, Copy)]
struct Place {
    block: BlockNumber,
    start: usize,
    chunks: usize,
}

impl<L: Layout> Buddies<L> {
    /// A place in the block that `chunks` fill best. This CPU's shard is searched first.
    fn take(&self, chunks: usize) -> Option<Place> {
        let count = self.shards.len();
        let own = self.own_shard();
        (0..count).find_map(|step| {
            let mut shard = self.shards[(own + step) % count].lock();
            let block = shard.best_fit(chunks)?;
            Some(self.add_to(&mut shard, block, chunks))
        })
    }

    fn take_in_new_block(&self, arena: &Arena, chunks: usize) -> Option<Place> {
        let first = arena.take(self.block_pages())?;
        let block = self.table.block_at_page(first);
        let mut shard = self.shards[self.own_shard()].lock();
        self.table.set_owner(block, shard.index);
        Some(self.add_to(&mut shard, block, chunks))
    }

    fn add_to(&self, shard: &mut Shard, block: BlockNumber, chunks: usize) -> Place {
        let mut layout = self.layout(block);
        let before = layout;
        let start = layout.add(chunks);
        self.set_layout(shard, block, before, layout);
        Place {
            block,
            start,
            chunks,
        }
    }

    fn layout(&self, block: BlockNumber) -> L {
        L::from_word(self.table.state(block))
    }

    /// Changes a block's layout, and moves it to the list that fits.
    fn set_layout(&self, shard: &mut Shard, block: BlockNumber, before: L, after: L) {
        // A unit without objects has all room and is in no list.
        let list = |layout: L| layout.room() % CHUNKS;
        if list(before) != list(after) && !self.table.is_closed(block) {
            shard.unlink(&self.table, list(before), block);
            shard.link(&self.table, list(after), block);
        }
        self.table.set_state(block, after.to_word());
    }

    /// The place of the handle's object, if it is a possible one.
    fn place(&self, handle: &Handle) -> Option<Place> {
        let chunk_bytes = self.unit_bytes / CHUNKS;
        let offset_bytes = handle.offset_bytes();
        let block = offset_bytes / self.unit_bytes;
        let fits = (1..=self.unit_bytes).contains(&handle.size_bytes())
            && offset_bytes.is_multiple_of(chunk_bytes)
            && self.table.contains(block);
        fits.then(|| Place {
            block: block as BlockNumber,
            start: offset_bytes % self.unit_bytes / chunk_bytes,
            chunks: self.chunks(handle.size_bytes()),
        })
    }

    /// Locks the shard of a block. The block keeps its shard while it has an object.
    fn lock_owner(&self, block: BlockNumber) -> Option<MutexGuard<'_, Shard>> {
        Some(self.shards[self.table.owner(block)?].lock())
    }

    /// A block as a candidate for others' objects, measured in objects of mean size. `None` if it
    /// is gone.
    fn candidate(&self, block: BlockNumber, mean_chunks: usize) -> Option<Candidate> {
        let layout = self.layout(block);
        let live = count(layout);
        let room = (layout.room() / mean_chunks).min(L::objects_max().saturating_sub(live));
        Some(Candidate {
            victim: Victim {
                first_page: self.table.first_page(block),
                pages: self.block_pages(),
                held_pages: self.block_pages(),
                owner: self.table.owner(block)?,
            },
            live,
            room,
        })
    }

    /// The mean size of an object, 1 or more.
    fn mean_chunks(&self) -> usize {
        let layouts = self.table.blocks().map(|block| self.layout(block));
        let (chunks, objects) = layouts.fold((0, 0), |(chunks, objects), layout| {
            let sizes: usize = layout.sizes().iter().sum();
            (chunks + sizes, objects + count(layout))
        });
        (chunks / objects.max(1)).max(1)
    }

    fn own_shard(&self) -> usize {
        match self.shards.len() {
            1 => 0,
            count => cpu::current() % count,
        }
    }

    fn chunks(&self, size_bytes: usize) -> usize {
        size_bytes.div_ceil(self.unit_bytes / CHUNKS)
    }

    fn block_pages(&self) -> usize {
        self.unit_bytes / PAGE_BYTES
    }
}

impl<L: Layout> Pool for Buddies<L> {
    fn insert(&self, arena: &Arena, bytes: &[u8], room: Room) -> Result<Handle, Full> {
        let chunks = self.chunks(bytes.len());
        let place = match self.take(chunks) {
            None if room == Room::Any => self.take_in_new_block(arena, chunks),
            place => place,
        };
        let place = place.ok_or(Full::NeedsMemory)?;
        let offset_bytes =
            place.block as usize * self.unit_bytes + place.start * (self.unit_bytes / CHUNKS);
        let granule = (offset_bytes / GRANULE_BYTES) as u64;
        // SAFETY: the layout gave these chunks to this object, and gives them to no other until
        // `remove` takes it away, which consumes this handle.
        let mut handle = unsafe { Handle::from_parts(granule, bytes.len() as u32) };
        arena.fill(&mut handle, bytes);
        Ok(handle)
    }

    fn pages_taken(&self, _size_bytes: usize) -> usize {
        self.block_pages()
    }

    fn remove(&self, arena: &Arena, handle: Handle) -> usize {
        let place = self.place(&handle).expect("a handle of this pool");
        let shard = self.lock_owner(place.block);
        let mut shard = shard.expect("the block of an object has an owner");
        let mut layout = self.layout(place.block);
        let before = layout;
        debug_assert!(
            layout.holds(place.start, place.chunks),
            "double free or stale handle"
        );
        layout.take_away(place.start, place.chunks);
        self.set_layout(&mut shard, place.block, before, layout);
        let is_empty = layout.to_word() == 0;
        if is_empty {
            // Unlike ztree's, these blocks would not mind if it came later: without objects they are in no list, and
            // nobody takes them before they are given back.
            self.table.disown(place.block);
        }
        drop(shard);
        handle.into_parts();
        if !is_empty {
            return 0;
        }
        let first = self.table.first_page(place.block);
        arena.give_back(first, self.block_pages());
        self.block_pages()
    }

    fn holds(&self, handle: &Handle) -> bool {
        self.place(handle).is_some_and(|place| {
            let shard = self.lock_owner(place.block);
            shard.is_some() && self.layout(place.block).holds(place.start, place.chunks)
        })
    }

    fn adopt(&self, arena: &Arena, handle: &Handle) -> Result<()> {
        let place = self.place(handle).ok_or_else(lies_nowhere)?;
        let before = self.layout(place.block);
        let mut layout = before;
        if !layout.adopt(place.start, place.chunks) {
            return Err(lies_on_another());
        }
        if before.to_word() == 0 {
            let first = self.table.first_page(place.block);
            arena.adopt(first, self.block_pages())?;
            // Any shard will do, and these spread them.
            let owner = place.block as usize % self.shards.len();
            self.table.set_owner(place.block, owner);
        }
        let shard = self.lock_owner(place.block);
        let mut shard = shard.expect("the block was given an owner");
        self.set_layout(&mut shard, place.block, before, layout);
        Ok(())
    }

    fn candidates(&self, group: usize) -> Result<Option<Candidates>> {
        if group > 0 {
            return Ok(None);
        }
        let mean_chunks = self.mean_chunks();
        let mut candidates = Candidates::default();
        for block in self.table.blocks() {
            let candidate = self.candidate(block, mean_chunks);
            if let Some(candidate) = candidate.filter(|_| !self.table.is_closed(block)) {
                candidates.add(candidate)?;
            }
        }
        Ok(Some(candidates))
    }

    fn set_closed(&self, victim: Victim, closed: bool) -> bool {
        let block = self.table.block_at_page(victim.first_page);
        let mut shard = self.shards[victim.owner].lock();
        let is_same =
            self.table.owner(block) == Some(victim.owner) && self.table.is_closed(block) != closed;
        if is_same {
            let layout = self.layout(block);
            let room = layout.room() % CHUNKS;
            match closed {
                true => shard.unlink(&self.table, room, block),
                false => shard.link(&self.table, room, block),
            }
            self.table.set_closed(block, closed);
        }
        is_same
    }

    fn make_ready(&self) -> Result<()> {
        self.table.populate()
    }

    fn give_back_tables(&self, arena: &Arena) {
        self.table.give_back(arena);
    }

    fn side_bytes(&self, _resident_bytes: u64) -> usize {
        self.table.side_bytes() + size_of_val(&*self.shards)
    }
}

fn count<L: Layout>(layout: L) -> usize {
    layout.sizes().iter().filter(|size| **size > 0).count()
}

impl Shard {
    /// A block with the least room that suffices.
    fn best_fit(&self, chunks: usize) -> Option<BlockNumber> {
        // An object of a whole unit needs a unit of its own.
        let enough = u64::MAX.checked_shl(chunks as u32).unwrap_or(0) & self.nonempty;
        if enough == 0 {
            return None;
        }
        self.by_room[enough.trailing_zeros() as usize].first()
    }

    /// Lists a block by its room; in no list without room.
    fn link(&mut self, table: &Table, room: usize, block: BlockNumber) {
        if room > 0 {
            table.link(&mut self.by_room[room], block);
            self.nonempty |= 1 << room;
        }
    }

    fn unlink(&mut self, table: &Table, room: usize, block: BlockNumber) {
        if room > 0 {
            table.unlink(&mut self.by_room[room], block);
            let is_empty = self.by_room[room].first().is_none();
            self.nonempty &= !(u64::from(is_empty) << room);
        }
    }
}

/// The laws of layouts, for each.
#[cfg(test)]
pub(super) mod laws {
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    use super::*;

    /// Objects never overlap, room is what can be added, and the objects alone give the word.
    pub(crate) fn check<L: Layout + std::fmt::Debug>(objects_max: usize) {
        let op = (any::<bool>(), 1..=CHUNKS, any::<usize>());
        let ops = prop::collection::vec(op, 0..60);
        let run = TestRunner::default().run(&(ops, any::<u64>()), |(ops, seed)| {
            let mut layout = L::default();
            let mut objects: Vec<(usize, usize)> = Vec::new();
            for (add, chunks, pick) in ops {
                if add && layout.room() > 0 {
                    let chunks = 1 + chunks % layout.room();
                    objects.push((layout.add(chunks), chunks));
                } else if !add && !objects.is_empty() {
                    let (start, chunks) = objects.swap_remove(pick % objects.len());
                    prop_assert!(layout.holds(start, chunks));
                    layout.take_away(start, chunks);
                    prop_assert!(!layout.holds(start, chunks));
                }
                check_objects(layout, &objects, objects_max)?;
                check_rebuilding(layout, &objects, seed)?;
            }
            Ok(())
        });
        run.unwrap();
    }

    fn check_objects<L: Layout>(
        layout: L,
        objects: &[(usize, usize)],
        objects_max: usize,
    ) -> Result<(), TestCaseError> {
        let mut taken = [false; CHUNKS];
        for (start, chunks) in objects {
            for chunk in &mut taken[*start..start + chunks] {
                prop_assert!(!*chunk, "two objects in a chunk: {:?}", objects);
                *chunk = true;
            }
        }
        prop_assert!(objects.len() <= objects_max);
        prop_assert_eq!(super::count(layout), objects.len());
        let chunks: usize = objects.iter().map(|(_, chunks)| chunks).sum();
        prop_assert_eq!(layout.sizes().iter().sum::<usize>(), chunks);
        prop_assert_eq!(layout.to_word() == 0, objects.is_empty());
        prop_assert_eq!(L::from_word(layout.to_word()).to_word(), layout.to_word());
        if objects.is_empty() {
            prop_assert_eq!(layout.room(), CHUNKS);
        }
        if objects.len() == objects_max {
            prop_assert_eq!(layout.room(), 0);
        }
        if objects.len() == 1 {
            prop_assert!(layout.room() >= (CHUNKS - objects[0].1) / 2);
        }
        Ok(())
    }

    fn check_rebuilding<L: Layout>(
        layout: L,
        objects: &[(usize, usize)],
        seed: u64,
    ) -> Result<(), TestCaseError> {
        let mut order = objects.to_vec();
        order.sort_by_key(|(start, _)| (*start as u64 + 1).wrapping_mul(seed | 1));
        let mut rebuilt = L::default();
        for (start, chunks) in &order {
            prop_assert!(rebuilt.adopt(*start, *chunks), "{:?}", order);
        }
        prop_assert_eq!(rebuilt.to_word(), layout.to_word(), "{:?}", order);
        for (start, chunks) in &order {
            prop_assert!(!rebuilt.adopt(*start, *chunks), "adopted twice");
        }
        // Whatever may still be adopted lies on nothing.
        for start in 0..CHUNKS {
            for chunks in [1, 2, CHUNKS / 2, CHUNKS - start] {
                let mut more = rebuilt;
                if start + chunks <= CHUNKS && more.adopt(start, chunks) {
                    let free = |(other, length): &(usize, usize)| {
                        start + chunks <= *other || other + length <= start
                    };
                    prop_assert!(
                        order.iter().all(free),
                        "{}+{} in {:?}",
                        start,
                        chunks,
                        order
                    );
                }
            }
        }
        Ok(())
    }
}
