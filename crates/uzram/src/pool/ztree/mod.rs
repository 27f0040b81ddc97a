//! ztree: intervals of sizes, each with blocks of a whole number of equal slots.
//!
//! After ztree (posted to linux-mm in 2021 and 2022, never merged; zblock continues it): a block
//! is 1, 2, 4 or 8 contiguous pages with 7 to 16 slots. Each interval of sizes has its own tree of
//! blocks, so that work on different trees never meets. Incomplete blocks are filled before new
//! ones are added. An interval's *current* block takes new objects. A block in which an object is
//! freed takes its place if its coefficient, free slots times used ones, is not less, so that
//! half-full blocks are preferred.
//!
//! Differences: a block's 64-byte header is an entry of a table here (`../table.rs`), and
//! `geometry.rs` says how that changes the classes: no slot is smaller, and a raw page costs a
//! page (4681 bytes in the original). The order of a tree served eviction only, which is left out
//! because zram never used it, so incomplete blocks are a list. All of them are found again, where
//! the original looked at the current and the newest one. New blocks come from populated memory,
//! so one class adds a block without holding up the others. The original never compacts; here the
//! store does. Units of 64 KiB have blocks of 4 units at most, the longest run of the arena.
//!
//! Trade-off: constant time without any search, but coarse classes: none below 1/16 unit, up to 33
//! % apart below 2/5 of a unit and 14 % above. Bound: an object loses the difference to its class,
//! and 1/256 unit at its block's end. Part-filled blocks come on top.
//!
//! Invariant 8: an object's size gives its class, and class and place give block and slot, so the
//! objects alone give every block's slots. Only the choice of current blocks is lost.
//!
//! Locks: one per class, then the arena's. The copy into an object runs outside of the locks,
//! because no other thread knows the object yet.

#![allow(unsafe_code)]

mod geometry;

use crossbeam_utils::CachePadded;

use self::geometry::{Class, Geometry, SLOTS_MAX};
use super::arena::{Arena, Runs};
use super::table::{BlockNumber, List, Table};
use super::victims::{Candidate, Candidates, Victim};
use super::{
    Full, GRANULE_BYTES, Handle, Pool, PoolConfig, PoolMemory, Room, lies_nowhere, lies_on_another,
};
use crate::error::Result;
use crate::memory;
use crate::region::{PAGE_BYTES, Region};
use crate::sync::Mutex;

pub(super) const NAME: &str = "ztree";

const _: () = assert!(SLOTS_MAX <= u32::BITS as usize);

struct Ztree {
    unit_bytes: usize,
    geometry: Geometry,
    trees: Box<[CachePadded<Mutex<Tree>>]>,
    /// A block's state has a bit for each slot, its owner is its class.
    table: Table,
}

/// The incomplete blocks of one class.
struct Tree {
    slots: u32,
    /// A block with room, in no list.
    current: Option<BlockNumber>,
    /// Have room.
    others: List,
}

pub(super) fn make(config: &PoolConfig, region: Region) -> Result<Box<PoolMemory>> {
    let geometry = Geometry::new(config.unit);
    let mut trees = Vec::new();
    for class in geometry.classes() {
        let tree = Tree {
            slots: class.slots as u32,
            current: None,
            others: List::default(),
        };
        memory::push(&mut trees, CachePadded::new(Mutex::new(tree)))?;
    }
    let arena = Arena::new(config, region, Runs::Anywhere);
    let huge_bytes = geometry.huge_bytes();
    let pool = Ztree {
        unit_bytes: config.unit.bytes(),
        geometry,
        trees: trees.into_boxed_slice(),
        table: Table::new(&arena, config.unit)?,
    };
    Ok(Box::new(PoolMemory::new(arena, huge_bytes, pool)))
}

/// The place of an object: its class, and the block and slot.
#[derive(Clone, Copy)]
struct Place {
    class: usize,
    block: BlockNumber,
    slot: usize,
}

impl Ztree {
    /// The place of the handle's object, if it is a possible one.
    fn place(&self, handle: &Handle) -> Option<Place> {
        let class = self.geometry.class_of(handle.size_bytes())?;
        let (block, slot) = self.geometry.locate(class, handle.offset_bytes())?;
        self.table.contains(block).then_some(Place {
            class,
            block: block as BlockNumber,
            slot,
        })
    }

    /// Takes a block from populated memory, for the lock's holder to put into the tree.
    fn new_block(&self, arena: &Arena, class: usize) -> Option<BlockNumber> {
        let first = arena.take(self.pages(class))?;
        let block = self.table.block_at_page(first);
        self.table.set_owner(block, class);
        Some(block)
    }

    fn class(&self, class: usize) -> &Class {
        &self.geometry.classes()[class]
    }

    fn pages(&self, class: usize) -> usize {
        self.class(class).units * self.unit_bytes / PAGE_BYTES
    }

    /// Whether the place is in a block of its class and its slot is taken; the class is locked.
    fn is_taken(&self, place: Place) -> bool {
        self.table.owner(place.block) == Some(place.class)
            && self.table.state(place.block) & 1 << place.slot != 0
    }
}

impl Pool for Ztree {
    fn insert(&self, arena: &Arena, bytes: &[u8], room: Room) -> Result<Handle, Full> {
        let class = self
            .geometry
            .class_of(bytes.len())
            .expect("an object has 1 byte to one unit");
        let mut tree = self.trees[class].lock();
        let block = match tree.incomplete(&self.table) {
            Some(block) => block,
            None if room == Room::InBlocks => return Err(Full::NeedsMemory),
            None => self.new_block(arena, class).ok_or(Full::NeedsMemory)?,
        };
        let slot = tree.take_slot(&self.table, block);
        drop(tree);
        let offset_bytes = self.geometry.offset_bytes(class, block as usize, slot);
        let granule = (offset_bytes / GRANULE_BYTES) as u64;
        // SAFETY: the slot was free and is taken now: no other handle covers its bytes until `remove`
        // frees it, which consumes this handle.
        let mut handle = unsafe { Handle::from_parts(granule, bytes.len() as u32) };
        arena.fill(&mut handle, bytes);
        Ok(handle)
    }

    fn pages_taken(&self, size_bytes: usize) -> usize {
        let class = self.geometry.class_of(size_bytes);
        self.pages(class.expect("an object has 1 byte to one unit"))
    }

    fn remove(&self, arena: &Arena, handle: Handle) -> usize {
        let place = self.place(&handle).expect("a handle of this pool");
        let mut tree = self.trees[place.class].lock();
        debug_assert!(self.is_taken(place), "double free or stale handle");
        let is_empty = tree.free_slot(&self.table, place.block, place.slot);
        if is_empty {
            self.table.disown(place.block);
        }
        drop(tree);
        handle.into_parts();
        if !is_empty {
            return 0;
        }
        let pages = self.pages(place.class);
        arena.give_back(self.table.first_page(place.block), pages);
        pages
    }

    fn holds(&self, handle: &Handle) -> bool {
        self.place(handle).is_some_and(|place| {
            let _tree = self.trees[place.class].lock();
            self.is_taken(place)
        })
    }

    fn adopt(&self, arena: &Arena, handle: &Handle) -> Result<()> {
        let place = self.place(handle).ok_or_else(lies_nowhere)?;
        let mut tree = self.trees[place.class].lock();
        if self.table.state(place.block) == 0 {
            let first = self.table.first_page(place.block);
            arena.adopt(first, self.pages(place.class))?;
            self.table.set_owner(place.block, place.class);
        } else if self.table.owner(place.block) != Some(place.class) || self.is_taken(place) {
            return Err(lies_on_another());
        }
        tree.adopt_slot(&self.table, place.block, place.slot);
        Ok(())
    }

    fn candidates(&self, class: usize) -> Result<Option<Candidates>> {
        if class == self.trees.len() {
            return Ok(None);
        }
        let mut candidates = Candidates::default();
        let open = |block: &BlockNumber| {
            self.table.owner(*block) == Some(class) && !self.table.is_closed(*block)
        };
        for block in self.table.blocks().filter(open) {
            let live = self.table.state(block).count_ones() as usize;
            candidates.add(Candidate {
                victim: Victim {
                    first_page: self.table.first_page(block),
                    pages: self.pages(class),
                    held_pages: self.pages(class),
                    owner: class,
                },
                live,
                room: self.class(class).slots.saturating_sub(live),
            })?;
        }
        Ok(Some(candidates))
    }

    fn set_closed(&self, victim: Victim, closed: bool) -> bool {
        let block = self.table.block_at_page(victim.first_page);
        let mut tree = self.trees[victim.owner].lock();
        let is_same =
            self.table.owner(block) == Some(victim.owner) && self.table.is_closed(block) != closed;
        if is_same {
            tree.set_closed(&self.table, block, closed);
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
        self.table.side_bytes() + size_of_val(&*self.trees)
    }
}

impl Tree {
    /// The block to fill next; it is the current one afterwards.
    fn incomplete(&mut self, table: &Table) -> Option<BlockNumber> {
        if self.current.is_none() {
            let block = self.others.first()?;
            table.unlink(&mut self.others, block);
            self.current = Some(block);
        }
        self.current
    }

    /// Takes a free slot of `block`, which is the current one or new.
    fn take_slot(&mut self, table: &Table, block: BlockNumber) -> usize {
        let before = table.state(block);
        let slot = before.trailing_ones();
        let after = before | 1 << slot;
        table.set_state(block, after);
        self.current = (!self.is_full(after)).then_some(block);
        slot as usize
    }

    /// Frees a slot; true if the block is empty then and has left the tree.
    fn free_slot(&mut self, table: &Table, block: BlockNumber, slot: usize) -> bool {
        let before = table.state(block);
        let after = before & !(1 << slot);
        let was_closed = table.is_closed(block);
        table.set_state(block, after);
        if was_closed {
            return after == 0;
        }
        let is_current = self.current == Some(block);
        let is_listed = !is_current && !self.is_full(before);
        if after == 0 {
            if is_current {
                self.current = None;
            } else if is_listed {
                table.unlink(&mut self.others, block);
            }
            return true;
        }
        let current = self
            .current
            .map_or(0, |block| self.coefficient(table.state(block)));
        if !is_current && self.coefficient(after) >= current {
            if is_listed {
                table.unlink(&mut self.others, block);
            }
            if let Some(old) = self.current.replace(block) {
                table.link(&mut self.others, old);
            }
        } else if !is_current && !is_listed {
            table.link(&mut self.others, block);
        }
        false
    }

    fn set_closed(&mut self, table: &Table, block: BlockNumber, closed: bool) {
        let is_full = self.is_full(table.state(block));
        if self.current == Some(block) {
            self.current = None;
        } else if closed && !is_full {
            table.unlink(&mut self.others, block);
        } else if !closed && !is_full {
            table.link(&mut self.others, block);
        }
        table.set_closed(block, closed);
    }

    /// Takes a given slot, which is free, in a block that is in no list if it has no other object.
    fn adopt_slot(&mut self, table: &Table, block: BlockNumber, slot: usize) {
        let before = table.state(block);
        let after = before | 1 << slot;
        table.set_state(block, after);
        let (was_listed, is_full) = (before != 0, self.is_full(after));
        if was_listed && is_full {
            table.unlink(&mut self.others, block);
        } else if !was_listed && !is_full {
            table.link(&mut self.others, block);
        }
    }

    fn is_full(&self, slots: u32) -> bool {
        slots.count_ones() == self.slots
    }

    /// The preference for filling the block next: greatest when half full.
    fn coefficient(&self, slots: u32) -> u32 {
        let used = slots.count_ones();
        used * (self.slots - used)
    }
}
