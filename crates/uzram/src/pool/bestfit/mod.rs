//! The default pool: objects of any sizes side by side, each in the hole that it fits best.
//!
//! Memory is cut into *frames* of 128 KiB (256 KiB for larger units). A block is the part of a
//! frame that the pool has. In it objects lie without gaps, headers or classes, in granules of 8
//! bytes. The free parts are a short list of holes beside the block (`block.rs`). Blocks are
//! listed by their longest hole (`shard.rs`). An object goes to the block whose longest hole is
//! the shortest that suffices, and there into the shortest hole that suffices.
//!
//! Before that, an object goes to the place of a removed object of the same length, if this CPU
//! has kept one (`parked.rs`) or another has several (`exchange.rs`). A removed object's place
//! becomes a hole if more than 1/32 of the shard's content is kept already, or more than 1/128 and
//! ten of this length. Kept places also become holes when a shorter object finds no other room,
//! when blocks are closed, at the limit, and while a new limit is below the use. So a store
//! without objects has no blocks.
//!
//! It is dense for this reason: size classes lose the difference between object and class, the end
//! of each block, and one part-filled block per class. Here all sizes of a store mix, so nearly
//! every hole finds an object. Random overwrites leave holes of 1 to 2 % in a large store.
//!
//! Trade-off: an insert without a kept place searches a block's holes, some twenty, where a class
//! would pop one. A small store that is overwritten keeps up to 1/32 more. Holes belong to no
//! class, so a store that turns to larger objects must wait for neighbours to go, or be compacted.
//! Bound: an object of `s` bytes occupies less than `s` + 8; bookkeeping is about 1/500 of the
//! memory, at worst 4 bytes for each two of the smallest objects.
//!
//! Large arenas take whole frames. Small ones (a small disk or limit) take single pages, as many
//! as a unit has, and give each back as soon as a hole covers it. Objects may cross them, because
//! a frame's pages lie side by side.
//!
//! Invariant 8: an object's place gives its frame, and everything that no object covers is a hole.
//! Kept places are holes after a rebuild.
//!
//! Locks: one per shard of blocks, or that for a look at the limit; then the arena's. A CPU fills
//! the blocks of its own shard, then takes a block with a hole from another shard, then new
//! memory. Only that and the exchange of places hold two shards' locks, the lower first. So blocks
//! move to the CPUs that write, whichever CPU filled them. A frame's entry names its shard and
//! changes under that lock (two, when the block moves). The owner of a handle reads the entry,
//! locks, and looks again. Places are kept with the removing CPU, under its shard's lock,
//! whichever shard has the block. Closing a block marks its frame and then empties the kept places
//! of every shard, so a place in it is kept nowhere afterwards. The copy into an object runs
//! outside of the locks, because no other thread knows the object yet.

#![allow(unsafe_code)]

mod block;
mod exchange;
mod holes;
mod lengths;
mod parked;
mod place;
mod shard;
mod unpark;

use crossbeam_utils::CachePadded;

use self::block::Block;
use self::parked::{Parked, Shown};
use self::place::{PAGE_GRANULES, Place};
use self::shard::{BlockId, Shard};
use super::arena::{Arena, RUN_PAGES_MAX, Runs};
use super::victims::{Candidate, Candidates, Victim};
use super::{
    Full, GRANULE_BYTES, Handle, Pool, PoolConfig, PoolMemory, Room, lies_nowhere, lies_on_another,
};
use crate::cpu;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::region::{Backing, PAGE_BYTES, Region};
use crate::sync::{Arc, Mutex, MutexGuard, Ordering};

pub(super) const NAME: &str = "bestfit";

/// Most units of a frame, if a run of the arena can be that long. Models of a few objects need
/// several frames.
const FRAME_UNITS: usize = if cfg!(uzram_shuttle) { 1 } else { 32 };

/// Below this disk size or limit, pages are taken singly. Models have pools of both kinds.
const WHOLE_FRAMES_FROM_BYTES: u64 = if cfg!(uzram_shuttle) {
    1 << 20
} else {
    64 << 20
};

/// CPUs beyond this number share shards, because an insert that finds no hole looks into each.
const SHARDS_MAX: usize = if cfg!(uzram_shuttle) { 2 } else { 8 };

/// Bits of a frame's entry for the block's id plus one. Then come those for the shard, and one for
/// closed blocks.
const ID_BITS: u32 = 28;
const SHARD_BITS: u32 = 3;
const CLOSED: u32 = 1 << (ID_BITS + SHARD_BITS);

const _: () = assert!(SHARDS_MAX <= 1 << SHARD_BITS && ID_BITS + SHARD_BITS < u32::BITS);

/// Compressed objects that would save less than this part of a unit are not worth decompressing.
const SAVING_MIN_PART: usize = 64;

/// Blocks that are looked at under one lock while victims are chosen.
const LOOKS_A_LOCK: usize = 512;

/// The share of blocks' free granules that moved objects are not expected to use.
const HOLES_LEFT_PART: usize = 16;

struct BestFit {
    unit_bytes: usize,
    frame_pages: usize,
    /// log2 of a frame's granules.
    frame_shift: u32,
    frame_count: usize,
    /// Pages that are taken and given back at once: a frame, or a unit.
    group_pages: usize,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// For each shard a view of its kept places; empty where nothing is parked.
    shown: Box<[Arc<Shown>]>,
    /// For each frame with a block, its shard and the block's id there. Written under that shard's lock.
    frames: Region,
}

pub(super) fn make(config: &PoolConfig, region: Region) -> Result<Box<PoolMemory>> {
    Ok(Box::new(new(config, region)?))
}

fn new(config: &PoolConfig, region: Region) -> Result<PoolMemory<BestFit>> {
    let unit_bytes = config.unit.bytes();
    let unit_pages = unit_bytes / PAGE_BYTES;
    let frame_pages = (FRAME_UNITS * unit_pages).min(RUN_PAGES_MAX);
    let is_large = |bytes: u64| bytes >= WHOLE_FRAMES_FROM_BYTES;
    let whole_frames = is_large(config.disksize_bytes)
        && (config.limit_bytes == 0 || is_large(config.limit_bytes));
    let (group_pages, shard_count) = match whole_frames {
        true => (frame_pages, cpu::possible().min(SHARDS_MAX)),
        false => (unit_pages, 1),
    };
    let (mut shards, mut shown) = (Vec::new(), Vec::new());
    for _ in 0..shard_count {
        let parked = match whole_frames {
            true => Parked::new()?,
            false => Parked::none(),
        };
        if whole_frames {
            memory::push(&mut shown, Arc::clone(parked.shown()))?;
        }
        let shard = Shard::new(unit_bytes / GRANULE_BYTES, parked);
        memory::push(&mut shards, CachePadded::new(Mutex::new(shard)))?;
    }
    let arena = Arena::new(config, region, Runs::Aligned);
    let frame_count = arena.pages() / frame_pages;
    let pool = BestFit {
        unit_bytes,
        frame_pages,
        frame_shift: (frame_pages * PAGE_GRANULES).trailing_zeros(),
        frame_count,
        group_pages,
        shards: shards.into_boxed_slice(),
        shown: shown.into_boxed_slice(),
        frames: Region::reserve(frame_count * size_of::<u32>(), Backing::Private)?,
    };
    let huge_bytes = unit_bytes - unit_bytes / SAVING_MIN_PART + 1;
    Ok(PoolMemory::new(arena, huge_bytes, pool))
}

/// A block: its shard, and its id there.
#[derive(Clone, Copy, Debug)]
struct Owner {
    shard: usize,
    id: BlockId,
}

impl BestFit {
    /// Takes a parked place, granules in a hole, or new memory, from this CPU's shard if it has
    /// them.
    fn take(&self, arena: &Arena, length: usize, room: Room) -> Result<Place, Full> {
        let own = self.own_shard();
        self.bring_parked_closer(own, length);
        let mut shard = self.shards[own].lock();
        if let Some(place) = shard.unpark(length) {
            return Ok(place);
        }
        let more = self.shard_with_more(own, length);
        if more.is_none()
            && let Some(place) = shard.take(length)
        {
            return Ok(place);
        }
        drop(shard);
        self.take_slowly(arena, own, more, length, room)
    }

    /// Takes granules in a hole or, if `room` allows, in new memory; nothing if the arena has
    /// none.
    fn take_new(
        &self,
        arena: &Arena,
        own: usize,
        length: usize,
        room: Room,
    ) -> Result<Option<Place>, Full> {
        let mut shard = self.shards[own].lock();
        // Somebody may have added pages since. Adding more would leave them without an object, and so
        // without anybody whose removal gives them back.
        if let Some(place) = shard.take(length) {
            return Ok(Some(place));
        }
        if room == Room::InBlocks || !self.add_pages(arena, &mut shard, own)? {
            return Ok(None);
        }
        // Nothing, if there is no memory for the entry of the hole that they are.
        shard.take(length).map(Some).ok_or(Full::NoMemory)
    }

    /// Locks the shard that has the block in `frame`.
    fn lock_owner(&self, frame: u32) -> Option<(Owner, MutexGuard<'_, Shard>)> {
        loop {
            let owner = self.owner(frame)?;
            let shard = self.shards[owner.shard].lock();
            let now = self.owner(frame)?;
            if now.shard == owner.shard {
                return Some((now, shard));
            }
        }
    }

    /// Makes a hole of an object's place. Returns the number of pages that go to the arena.
    fn free(&self, arena: &Arena, place: Place) -> usize {
        let owner = self.lock_owner(place.frame());
        let (owner, shard) = owner.expect("the frame of an object has a block");
        self.free_and_settle(arena, shard, owner, place)
    }

    /// As [`BestFit::free`], where the block's shard is locked.
    fn free_and_settle(
        &self,
        arena: &Arena,
        shard: MutexGuard<'_, Shard>,
        owner: Owner,
        place: Place,
    ) -> usize {
        let mut shrunk = 0;
        let pages = self.free_in(arena, shard, owner, place, &mut shrunk);
        pages + self.settle(arena, shrunk, place.length())
    }

    /// As [`BestFit::free`] in the block's shard alone. Adds the shard to `shrunk` if it now keeps
    /// too much.
    fn free_in(
        &self,
        arena: &Arena,
        mut shard: MutexGuard<'_, Shard>,
        owner: Owner,
        place: Place,
        shrunk: &mut u32,
    ) -> usize {
        let (gone, is_empty) = shard.change(owner.id, |block| {
            block.free(place.start(), place.length());
            match block.live_granules() {
                0 => (block.pages(), true),
                _ if self.group_pages == self.frame_pages => (0, false),
                _ => (block.shed(place.start(), self.group_pages), false),
            }
        });
        if is_empty {
            self.forget(&mut shard, owner.id, place.frame());
        }
        *shrunk |= u32::from(shard.parks_too_much()) << owner.shard;
        drop(shard);
        if gone != 0 {
            self.give_back(arena, place.frame(), gone);
        }
        gone.count_ones() as usize
    }

    /// Adds free pages to the shard; false if the arena has none.
    fn add_pages(&self, arena: &Arena, shard: &mut Shard, index: usize) -> Result<bool, Full> {
        let Some(first) = arena.take(self.group_pages) else {
            return Ok(false);
        };
        let frame = (first / self.frame_pages) as u32;
        match self.block_in(shard, index, frame) {
            Ok(id) => {
                let page = first % self.frame_pages;
                shard.change(id, |block| block.add_pages(page, self.group_pages));
                // They are there because no open block has a hole.
                shard.set_closed(id, false);
                self.set_owner(frame, Owner { shard: index, id });
                Ok(true)
            }
            Err(_) => {
                arena.give_back(first, self.group_pages);
                Err(Full::NoMemory)
            }
        }
    }

    /// The block in `frame`; it is made if there is none.
    fn block_in(&self, shard: &mut Shard, index: usize, frame: u32) -> Result<BlockId> {
        if let Some(owner) = self.owner(frame) {
            debug_assert_eq!(owner.shard, index, "only pools of one shard share frames");
            return Ok(owner.id);
        }
        shard.reserve()?;
        let id = shard.add(frame, Block::default());
        self.set_owner(frame, Owner { shard: index, id });
        Ok(id)
    }

    /// Takes a block without objects out of its frame.
    fn forget(&self, shard: &mut Shard, id: BlockId, frame: u32) {
        shard.remove(id);
        self.frames.half_words()[frame as usize].store(0, Ordering::Relaxed);
    }

    fn owner(&self, frame: u32) -> Option<Owner> {
        let entry = self.frames.half_words()[frame as usize].load(Ordering::Relaxed);
        let id = (entry & ((1 << ID_BITS) - 1)).checked_sub(1)?;
        let shard = (entry & !CLOSED) >> ID_BITS;
        Some(Owner {
            shard: shard as usize,
            id,
        })
    }

    fn is_closed(&self, frame: u32) -> bool {
        let entry = self.frames.half_words()[frame as usize].load(Ordering::Relaxed);
        entry & CLOSED != 0
    }

    /// Names the owner of an open block, under the lock of that shard.
    fn set_owner(&self, frame: u32, owner: Owner) {
        let entry = (owner.shard as u32) << ID_BITS | (owner.id + 1);
        self.frames.half_words()[frame as usize].store(entry, Ordering::Relaxed);
    }

    /// The place of the handle's object, if it is a possible one.
    fn place(&self, handle: &Handle) -> Option<Place> {
        let granule = handle.offset_bytes() / GRANULE_BYTES;
        let frame_granules = 1 << self.frame_shift;
        let (frame, start) = (granule >> self.frame_shift, granule & (frame_granules - 1));
        let length = handle.size_bytes().div_ceil(GRANULE_BYTES);
        let fits = (1..=self.unit_bytes).contains(&handle.size_bytes())
            && start + length <= frame_granules
            && frame < self.frame_count;
        fits.then(|| Place::new(frame as u32, start, length))?
    }

    /// The open blocks of a shard.
    fn add_candidates(&self, index: usize, candidates: &mut Candidates) -> Result<()> {
        let mut next = 0;
        loop {
            let shard = self.shards[index].lock();
            let end = shard.entries().min(next + LOOKS_A_LOCK);
            for (frame, block) in (next..end).filter_map(|id| shard.open(id)) {
                let held_pages = block.pages().count_ones() as usize;
                let victim = Victim {
                    first_page: self.first_page(frame),
                    pages: self.frame_pages,
                    held_pages,
                    owner: index,
                };
                let live = block.live_granules();
                // Some holes will be too short.
                let free = held_pages * PAGE_GRANULES - live;
                let room = free - free / HOLES_LEFT_PART;
                candidates.add(Candidate { victim, live, room })?;
            }
            if end == shard.entries() {
                return Ok(());
            }
            next = end;
        }
    }

    fn first_page(&self, frame: u32) -> usize {
        frame as usize * self.frame_pages
    }

    fn own_shard(&self) -> usize {
        match self.shards.len() {
            1 => 0,
            count => match cpu::current() {
                cpu if cpu < count => cpu,
                cpu => cpu % count,
            },
        }
    }

    /// Locks the shard. The lock waits until the previous copy is in the caches; the kept places
    /// of a length are prefetched meanwhile.
    fn bring_parked_closer(&self, shard: usize, length: usize) {
        if let Some(shown) = self.shown.get(shard) {
            shown.bring_top_closer(length);
        }
    }

    /// Gives pages of a frame back to the arena, named by bits.
    fn give_back(&self, arena: &Arena, frame: u32, pages: u64) {
        let mut rest = pages;
        while rest != 0 {
            let start = rest.trailing_zeros() as usize;
            let count = (rest >> start).trailing_ones() as usize;
            arena.give_back(self.first_page(frame) + start, count);
            rest &= u64::MAX.checked_shl((start + count) as u32).unwrap_or(0);
        }
    }
}

impl Pool for BestFit {
    fn insert(&self, arena: &Arena, bytes: &[u8], room: Room) -> Result<Handle, Full> {
        let place = self.take(arena, bytes.len().div_ceil(GRANULE_BYTES), room)?;
        let granule = ((place.frame() as usize) << self.frame_shift) + place.start();
        // SAFETY: these granules were a hole and are none any more: no other handle covers them until
        // `remove` makes them one, which consumes this handle.
        let mut handle = unsafe { Handle::from_parts(granule as u64, bytes.len() as u32) };
        arena.fill(&mut handle, bytes);
        Ok(handle)
    }

    fn make_room(&self, arena: &Arena) -> bool {
        self.unpark_all(arena)
    }

    fn pages_taken(&self, _size_bytes: usize) -> usize {
        self.group_pages
    }

    fn remove(&self, arena: &Arena, handle: Handle) -> usize {
        let place = self.place(&handle).expect("a handle of this pool");
        debug_assert!(self.holds(&handle), "double free or stale handle");
        handle.into_parts();
        let own = self.own_shard();
        self.bring_parked_closer(own, place.length());
        let mut shard = self.shards[own].lock();
        // Looked at under the lock: who closes a block looks through what is parked afterwards.
        let may_park = !arena.is_over_limit() && !self.is_closed(place.frame());
        if may_park && shard.park(place) {
            return 0;
        }
        let Some(owner) = self.owner(place.frame()).filter(|owner| owner.shard == own) else {
            drop(shard);
            return self.free(arena, place);
        };
        self.free_and_settle(arena, shard, owner, place)
    }

    fn holds(&self, handle: &Handle) -> bool {
        self.place(handle).is_some_and(|place| {
            let owner = self.lock_owner(place.frame());
            let is_in_block = owner.is_some_and(|(owner, shard)| {
                shard.is_in(owner.id, place.frame())
                    && shard.block(owner.id).holds(place.start(), place.length())
            });
            is_in_block
                && !self
                    .shards
                    .iter()
                    .any(|shard| shard.lock().is_parked(place))
        })
    }

    fn adopt(&self, arena: &Arena, handle: &Handle) -> Result<()> {
        let place = self.place(handle).ok_or_else(lies_nowhere)?;
        let owner = self.owner(place.frame());
        let index = owner.map_or(place.frame() as usize % self.shards.len(), |owner| {
            owner.shard
        });
        let mut shard = self.shards[index].lock();
        let id = self.block_in(&mut shard, index, place.frame())?;
        if !shard.block(id).is_vacant(place.start(), place.length()) {
            return Err(lies_on_another());
        }
        if !shard.change(id, Block::make_room) {
            return Err(no_memory_for_holes());
        }
        let group_granules = self.group_pages * PAGE_GRANULES;
        let end = place.start() + place.length();
        for group in place.start() / group_granules..end.div_ceil(group_granules) {
            let page = group * self.group_pages;
            if !shard.block(id).has_page(page) {
                let first = self.first_page(place.frame()) + page;
                arena.adopt(first, self.group_pages)?;
                shard.change(id, |block| block.add_pages(page, self.group_pages));
            }
        }
        match shard.change(id, |block| block.take_at(place.start(), place.length())) {
            true => Ok(()),
            false => Err(lies_on_another()),
        }
    }

    fn candidates(&self, group: usize) -> Result<Option<Candidates>> {
        if group > 0 {
            return Ok(None);
        }
        let mut candidates = Candidates::with_gaps(PAGE_GRANULES);
        for index in 0..self.shards.len() {
            self.add_candidates(index, &mut candidates)?;
        }
        Ok(Some(candidates))
    }

    fn set_closed(&self, victim: Victim, closed: bool) -> bool {
        let frame = (victim.first_page / self.frame_pages) as u32;
        let mut shard = self.shards[victim.owner].lock();
        let owner = self
            .owner(frame)
            .filter(|owner| owner.shard == victim.owner);
        let changed = owner.filter(|owner| {
            shard.is_in(owner.id, frame) && shard.set_closed(owner.id, closed) != closed
        });
        let Some(owner) = changed else {
            return false;
        };
        self.set_owner(frame, owner);
        if closed {
            let entry = &self.frames.half_words()[frame as usize];
            entry.store(entry.load(Ordering::Relaxed) | CLOSED, Ordering::Relaxed);
        }
        true
    }

    fn make_ready(&self) -> Result<()> {
        for shard in &self.shards {
            shard.lock().make_ready()?;
        }
        self.frames.populate(0..self.frames.length_bytes())
    }

    fn give_back_tables(&self, arena: &Arena) {
        for shard in &self.shards {
            let unused = shard.lock().take_unused();
            drop(unused);
        }
        let entry_pages = self.frame_pages;
        arena.give_back_entries(&self.frames, size_of::<u32>(), entry_pages, |_pages| {});
    }

    fn side_bytes(&self, resident_bytes: u64) -> usize {
        let shards = self.shards.iter().map(|shard| shard.lock().side_bytes());
        let frames = resident_bytes as usize / PAGE_BYTES / self.frame_pages;
        shards.sum::<usize>() + size_of_val(&*self.shards) + frames * size_of::<u32>()
    }
}

fn no_memory_for_holes() -> Error {
    Error::new(
        ErrorKind::NoMemory,
        "no memory for the list of a block's holes; free some",
    )
}

#[cfg(all(test, not(uzram_shuttle)))]
mod tests;
