//! The zsmalloc kind of pool: size classes over blocks of 1 to 16 pages.
//!
//! After zsmalloc (`Documentation/mm/zsmalloc.rst` of Linux): objects of similar size share a
//! block of several pages, so that few bytes are lost at its end. The fullest block with room is
//! filled first. User space removes its constraints: blocks are contiguous, so objects are read in
//! place. A handle is a place, not a cell that names one, so objects carry no 8-byte header. The
//! original's compaction migrates objects of one class through those cells. Here it goes through
//! the objects' owners, for all classes in one sweep (`store/compact.rs`).
//!
//! Trade-off: dense for any mix of sizes, at the price of part-filled blocks, about one per class,
//! and of blocks that stay while one object lives. Bound: an object of `s` bytes occupies less
//! than `s` + 1/256 unit, and a block wastes at most 2.5 % of its length at the end, except for
//! sizes above half a unit.
//!
//! Locks: class, then arena. One lock per class. The copy into the object runs outside of it,
//! because the object has an owner from the moment its bit is set.

#![allow(unsafe_code)]

mod class;
mod geometry;

use crossbeam_utils::CachePadded;

use self::class::{Blocks, Emptied};
use self::geometry::Geometry;
use super::arena::{Arena, Runs};
use super::victims::{Candidate, Candidates, Victim};
use super::{
    Full, GRANULE_BYTES, Handle, Pool, PoolConfig, PoolMemory, Room, lies_nowhere, lies_on_another,
};
use crate::error::Result;
use crate::memory;
use crate::region::{Backing, PAGE_BYTES, Region};
use crate::sync::{Mutex, Ordering};

pub(super) const NAME: &str = "zsmalloc";

/// Blocks that are looked at under one lock while victims are chosen.
const LOOKS_A_LOCK: usize = 512;

struct Zsmalloc {
    unit_bytes: usize,
    geometry: Geometry,
    classes: Box<[CachePadded<Mutex<Blocks>>]>,
    /// For each page of the arena that lies in a block: the block's id within its class. Written when
    /// the block is made, under its class's lock, which every reader of the entry holds too.
    block_ids: Region,
}

pub(super) fn make(config: &PoolConfig, region: Region) -> Result<Box<PoolMemory>> {
    let geometry = Geometry::new(config.unit);
    let mut classes = Vec::new();
    for class in geometry.classes() {
        memory::push(
            &mut classes,
            CachePadded::new(Mutex::new(Blocks::new(*class))),
        )?;
    }
    let arena = Arena::new(config, region, Runs::Anywhere);
    let huge_bytes = geometry.huge_bytes();
    let pool = Zsmalloc {
        unit_bytes: config.unit.bytes(),
        geometry,
        classes: classes.into_boxed_slice(),
        block_ids: Region::reserve(arena.pages() * size_of::<u32>(), Backing::Private)?,
    };
    Ok(Box::new(PoolMemory::new(arena, huge_bytes, pool)))
}

impl Zsmalloc {
    /// Adds a block from populated memory to the class.
    fn add_block(&self, arena: &Arena, blocks: &mut Blocks) -> Result<(), Full> {
        blocks.prepare().map_err(|_| Full::NoMemory)?;
        let pages = blocks.class().block_pages;
        let first = arena.take(pages).ok_or(Full::NeedsMemory)?;
        self.name_block(blocks, first);
        Ok(())
    }

    fn name_block(&self, blocks: &mut Blocks, first: usize) -> u32 {
        let id = blocks.add(first);
        for entry in &self.block_ids.half_words()[first..first + blocks.class().block_pages] {
            entry.store(id, Ordering::Relaxed);
        }
        id
    }

    fn block_id(&self, page: usize) -> u32 {
        self.block_ids.half_words()[page].load(Ordering::Relaxed)
    }
}

impl Pool for Zsmalloc {
    fn insert(&self, arena: &Arena, bytes: &[u8], room: Room) -> Result<Handle, Full> {
        let class = self.geometry.class_of(bytes.len());
        let mut blocks = self.classes[class].lock();
        let (first, index) = match blocks.take() {
            Some(place) => place,
            None if room == Room::InBlocks => return Err(Full::NeedsMemory),
            None => {
                self.add_block(arena, &mut blocks)?;
                blocks.take().expect("a new block has room")
            }
        };
        let offset_bytes = first * PAGE_BYTES + index * blocks.class().object_bytes;
        drop(blocks);
        let granule = (offset_bytes / GRANULE_BYTES) as u64;
        // SAFETY: `take` set the object's bit, which was clear: no other handle covers its bytes
        // until `remove` clears it, and that consumes this handle.
        let mut handle = unsafe { Handle::from_parts(granule, bytes.len() as u32) };
        arena.fill(&mut handle, bytes);
        Ok(handle)
    }

    fn pages_taken(&self, size_bytes: usize) -> usize {
        self.geometry.classes()[self.geometry.class_of(size_bytes)].block_pages
    }

    fn remove(&self, arena: &Arena, handle: Handle) -> usize {
        let class = self.geometry.class_of(handle.size_bytes());
        let offset_bytes = handle.offset_bytes();
        let mut blocks = self.classes[class].lock();
        let id = self.block_id(offset_bytes / PAGE_BYTES);
        let emptied = blocks.remove(id, offset_bytes);
        drop(blocks);
        handle.into_parts();
        emptied.map_or(0, |Emptied(first)| {
            let pages = self.geometry.classes()[class].block_pages;
            arena.give_back(first, pages);
            pages
        })
    }

    fn holds(&self, handle: &Handle) -> bool {
        let class = self.geometry.class_of(handle.size_bytes());
        let blocks = self.classes[class].lock();
        let id = self.block_id(handle.offset_bytes() / PAGE_BYTES);
        blocks.holds(id, handle.offset_bytes())
    }

    fn adopt(&self, arena: &Arena, handle: &Handle) -> Result<()> {
        if !(1..=self.unit_bytes).contains(&handle.size_bytes()) {
            return Err(lies_nowhere());
        }
        let class = self.geometry.class_of(handle.size_bytes());
        let (first, index) = self
            .geometry
            .locate(class, handle.offset_bytes())
            .ok_or_else(lies_nowhere)?;
        if first >= arena.pages() {
            return Err(lies_nowhere());
        }
        let mut blocks = self.classes[class].lock();
        let mut id = self.block_id(first);
        if !blocks.is_at(id, first) {
            blocks.prepare()?;
            arena.adopt(first, blocks.class().block_pages)?;
            id = self.name_block(&mut blocks, first);
        }
        match blocks.adopt(id, index) {
            true => Ok(()),
            false => Err(lies_on_another()),
        }
    }

    fn candidates(&self, class: usize) -> Result<Option<Candidates>> {
        if class == self.classes.len() {
            return Ok(None);
        }
        let mut candidates = Candidates::default();
        let mut next = 0;
        loop {
            let blocks = self.classes[class].lock();
            let end = blocks.entries().min(next + LOOKS_A_LOCK);
            for (first_page, live) in (next..end).filter_map(|id| blocks.open(id)) {
                let victim = Victim {
                    first_page,
                    pages: blocks.class().block_pages,
                    held_pages: blocks.class().block_pages,
                    owner: class,
                };
                let room = blocks.class().block_objects - live;
                candidates.add(Candidate { victim, live, room })?;
            }
            if end == blocks.entries() {
                return Ok(Some(candidates));
            }
            next = end;
        }
    }

    fn set_closed(&self, victim: Victim, closed: bool) -> bool {
        let mut blocks = self.classes[victim.owner].lock();
        let id = self.block_id(victim.first_page);
        blocks.is_at(id, victim.first_page) && blocks.set_closed(id, closed)
    }

    fn make_ready(&self) -> Result<()> {
        self.block_ids.populate(0..self.block_ids.length_bytes())
    }

    fn give_back_tables(&self, arena: &Arena) {
        for class in &self.classes {
            let unused = class.lock().take_unused();
            drop(unused);
        }
        arena.give_back_entries(&self.block_ids, size_of::<u32>(), 1, |_pages| {});
    }

    fn side_bytes(&self, resident_bytes: u64) -> usize {
        let classes: usize = self
            .classes
            .iter()
            .map(|class| class.lock().side_bytes())
            .sum();
        let block_ids = resident_bytes as usize / PAGE_BYTES * size_of::<u32>();
        classes + size_of_val(&*self.classes) + block_ids
    }
}
