//! One entry for each block that a pool may have, found by the block's place.
//!
//! The kernel's pools keep a header in each block, because only the page itself leads to its
//! state. An arena is contiguous, so the number of a block's first unit indexes a table. So the
//! whole block is for objects, no stray write reaches a header, and a successor of the arena
//! starts from an empty table instead of trusting headers.
//!
//! An entry is two links (a block is in one list at most), a state that is 0 while there is no
//! block, and an owner plus one, 0 for none. Bound: 16 bytes for each unit up to the highest one
//! used since a reset, which gives the rest back. Memory is taken when an entry is first touched, or for all at once
//! ([`Table::populate`]: 16 bytes per unit of the arena, a sixty-fourth of the disk).
//!
//! Locks: none here. The lock of the list that a block may be in protects its entry. A block gets
//! an owner, and loses it with its last object, under that owner's lock. A thread that holds an
//! owner's lock and finds it named sees the rest of the entry unchanged. All others see values
//! that may be outdated.

use super::arena::Arena;
use crate::error::Result;
use crate::page::Unit;
use crate::region::{Backing, PAGE_BYTES, Region};
use crate::sync::{AtomicU64, MappedU32, Ordering};

const ENTRY_BYTES: usize = size_of::<[u32; ENTRY_WORDS]>();
const ENTRY_WORDS: usize = 4;

/// The parts of an entry.
const PREVIOUS: usize = 0;
const NEXT: usize = 1;
const STATE: usize = 2;
const OWNER: usize = 3;

/// In [`OWNER`].
const CLOSED: u32 = 1 << 31;

/// The number of the unit with which a block begins.
pub(super) type BlockNumber = u32;

/// A list of blocks: its first block's number plus one, 0 for none, as the links are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct List {
    head: u32,
}

impl List {
    pub(super) fn first(self) -> Option<BlockNumber> {
        self.head.checked_sub(1)
    }
}

#[derive(Debug)]
pub(super) struct Table {
    unit_bytes: usize,
    entries: Region,
    /// Entries up to the highest one used since they were given back.
    reached: AtomicU64,
}

impl Table {
    pub(super) fn new(arena: &Arena, unit: Unit) -> Result<Table> {
        let units = arena.pages() * PAGE_BYTES / unit.bytes();
        Ok(Table {
            unit_bytes: unit.bytes(),
            entries: Region::reserve(units * ENTRY_BYTES, Backing::Private)?,
            reached: AtomicU64::new(0),
        })
    }

    /// The number of the block that begins with page `first`, which must begin a unit.
    pub(super) fn block_at_page(&self, first: usize) -> BlockNumber {
        let offset_bytes = first * PAGE_BYTES;
        assert!(
            offset_bytes.is_multiple_of(self.unit_bytes),
            "page {first} does not begin a unit"
        );
        (offset_bytes / self.unit_bytes) as BlockNumber
    }

    pub(super) fn first_page(&self, block: BlockNumber) -> usize {
        block as usize * self.unit_bytes / PAGE_BYTES
    }

    /// Whether the arena reaches that far.
    pub(super) fn contains(&self, block: usize) -> bool {
        block < self.entries.length_bytes() / ENTRY_BYTES
    }

    /// 0 if there is no block.
    pub(super) fn state(&self, block: BlockNumber) -> u32 {
        self.part(block, STATE).load(Ordering::Relaxed)
    }

    pub(super) fn set_state(&self, block: BlockNumber, state: u32) {
        self.part(block, STATE).store(state, Ordering::Relaxed);
    }

    /// The owner of a block; `None` while there is no block.
    pub(super) fn owner(&self, block: BlockNumber) -> Option<usize> {
        let owner = self.part(block, OWNER).load(Ordering::Relaxed) & !CLOSED;
        owner.checked_sub(1).map(|owner| owner as usize)
    }

    /// Whether the block takes no more objects and is in no list.
    pub(super) fn is_closed(&self, block: BlockNumber) -> bool {
        self.state(block) != 0 && self.part(block, OWNER).load(Ordering::Relaxed) & CLOSED != 0
    }

    pub(super) fn set_closed(&self, block: BlockNumber, closed: bool) {
        let bit = if closed { CLOSED } else { 0 };
        let owner = self.part(block, OWNER);
        owner.store(
            owner.load(Ordering::Relaxed) & !CLOSED | bit,
            Ordering::Relaxed,
        );
    }

    /// Every block, and perhaps some that come or go meanwhile.
    pub(super) fn blocks(&self) -> impl Iterator<Item = BlockNumber> {
        let end = self.reached.load(Ordering::Relaxed) as BlockNumber;
        (0..end).filter(|block| self.state(*block) != 0)
    }

    /// Names the owner of a new block, which is open; the owner is locked.
    pub(super) fn set_owner(&self, block: BlockNumber, owner: usize) {
        self.part(block, OWNER)
            .store(owner as u32 + 1, Ordering::Relaxed);
        self.reached
            .fetch_max(u64::from(block) + 1, Ordering::Relaxed);
    }

    /// Ends the ownership of a block without objects, before the owner is unlocked.
    pub(super) fn disown(&self, block: BlockNumber) {
        self.part(block, OWNER).store(0, Ordering::Relaxed);
    }

    /// Puts `block`, which is in no list, at the front.
    pub(super) fn link(&self, list: &mut List, block: BlockNumber) {
        self.part(block, PREVIOUS).store(0, Ordering::Relaxed);
        self.part(block, NEXT).store(list.head, Ordering::Relaxed);
        if let Some(second) = list.first() {
            self.part(second, PREVIOUS)
                .store(block + 1, Ordering::Relaxed);
        }
        list.head = block + 1;
    }

    /// Takes `block` out of `list`, in which it is.
    pub(super) fn unlink(&self, list: &mut List, block: BlockNumber) {
        let previous = self.part(block, PREVIOUS).load(Ordering::Relaxed);
        let next = self.part(block, NEXT).load(Ordering::Relaxed);
        match previous.checked_sub(1) {
            Some(before) => self.part(before, NEXT).store(next, Ordering::Relaxed),
            None => list.head = next,
        }
        if let Some(after) = next.checked_sub(1) {
            self.part(after, PREVIOUS)
                .store(previous, Ordering::Relaxed);
        }
    }

    /// Makes all of it resident.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(super) fn populate(&self) -> Result<()> {
        self.entries.populate(0..self.entries.length_bytes())
    }

    /// Gives the memory of entries back to the system, where there are no blocks.
    pub(super) fn give_back(&self, arena: &Arena) {
        let unit_pages = self.unit_bytes / PAGE_BYTES;
        arena.give_back_entries(&self.entries, ENTRY_BYTES, unit_pages, |pages| {
            let (first, end) = (pages.start / unit_pages, pages.end / unit_pages);
            self.lower(first as u64, end as u64);
        });
    }

    /// Notes that no entry from `first` to `end` was ever used, if `end` is not below the highest one. None of them
    /// comes into use meanwhile.
    fn lower(&self, first: u64, end: u64) {
        let reached = self.reached.load(Ordering::Relaxed);
        if (first + 1..=end).contains(&reached) {
            // If it fails, there is a block above.
            let (relaxed, lowered) = (Ordering::Relaxed, first);
            let _ = self
                .reached
                .compare_exchange(reached, lowered, relaxed, relaxed);
        }
    }

    /// Memory that the entries in use have touched, in bytes.
    pub(super) fn side_bytes(&self) -> usize {
        let entries = self.reached.load(Ordering::Relaxed) as usize;
        (entries * ENTRY_BYTES).next_multiple_of(PAGE_BYTES)
    }

    fn part(&self, block: BlockNumber, part: usize) -> &MappedU32 {
        &self.entries.half_words()[block as usize * ENTRY_WORDS + part]
    }
}
