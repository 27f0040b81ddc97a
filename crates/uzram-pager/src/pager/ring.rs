//! The ring: memory through which pages leave and come back.
//!
//! A page leaves by being moved into a slot. There it waits to be compressed, and a touch meanwhile moves it back. Once
//! compressed, its slot stays populated: the next page that comes is decompressed into it and moved out. So while pages
//! come and go in equal number, no memory is allocated or freed.
//!
//! Only populated slots may be touched: the thread that serves the program would wait for itself in a hole.

use uzram::Result;

use crate::mapping::Mapping;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Hole,
    /// Populated, its content worthless. Taken slots that are being filled look so, too.
    Free,
    /// Has this page of the program.
    Staged(u32),
}

/// The slots and their memory.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Mapping,
    slots: Vec<Slot>,
    /// Free slots; those that were used last are in the cache.
    free: Vec<u32>,
    staged: usize,
    /// Where the search for holes, and that for staged pages, goes on.
    next_hole: usize,
    next_staged: usize,
}

impl Ring {
    /// `count` slots, all holes.
    ///
    /// # Errors
    /// As [`Mapping::reserve`].
    pub fn new(count: usize) -> Result<Ring> {
        Ok(Ring {
            memory: Mapping::reserve(count)?,
            slots: vec![Slot::Hole; count],
            free: Vec::with_capacity(count),
            staged: 0,
            next_hole: 0,
            next_staged: 0,
        })
    }

    pub fn memory(&self) -> &Mapping {
        &self.memory
    }

    pub fn count(&self) -> usize {
        self.slots.len()
    }

    pub fn address(&self, slot: usize) -> u64 {
        self.memory.address(slot)
    }

    /// Slots with pages that wait to be compressed.
    pub fn staged(&self) -> usize {
        self.staged
    }

    /// Populated slots without a page.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// The bytes of a slot that is staged, or was taken from the free ones.
    pub fn bytes(&mut self, slot: usize) -> &mut [u8] {
        assert!(self.slots[slot] != Slot::Hole, "slot {slot} is a hole");
        self.memory.page_mut(slot)
    }

    /// Holes in a row, `most` at most.
    pub fn holes(&mut self, most: usize) -> Option<(usize, usize)> {
        let count = self.count();
        let mut around = (self.next_hole..count).chain(0..self.next_hole);
        let first = around.find(|slot| self.slots[*slot] == Slot::Hole)?;
        let end = count.min(first + most);
        let is_hole = |slot: &usize| self.slots[*slot] == Slot::Hole;
        let length = (first..end).take_while(is_hole).count();
        self.next_hole = (first + length) % count;
        Some((first, length))
    }

    /// The page that has waited longest, and its slot.
    pub fn oldest_staged(&mut self) -> Option<(usize, usize)> {
        let count = self.count();
        for slot in (self.next_staged..count).chain(0..self.next_staged) {
            if let Slot::Staged(page) = self.slots[slot] {
                self.next_staged = slot;
                return Some((slot, page as usize));
            }
        }
        None
    }

    /// Notes that `page` was moved into the hole `slot`.
    pub fn stage(&mut self, slot: usize, page: usize) {
        debug_assert_eq!(self.slots[slot], Slot::Hole);
        self.slots[slot] = Slot::Staged(page as u32);
        self.staged += 1;
    }

    /// Notes that the page in `slot` is no longer needed there. The memory is free now.
    pub fn unstage(&mut self, slot: usize) {
        debug_assert!(matches!(self.slots[slot], Slot::Staged(_)));
        self.staged -= 1;
        self.give(slot);
    }

    /// Notes that the content of `slot` was moved away, and its memory with it.
    pub fn moved_out(&mut self, slot: usize) {
        self.staged -= usize::from(matches!(self.slots[slot], Slot::Staged(_)));
        self.slots[slot] = Slot::Hole;
    }

    /// Takes free slots in a row, `most` at most: the first, and how many.
    pub fn take_free(&mut self, most: usize) -> Option<(usize, usize)> {
        let mut first = self.free.pop()? as usize;
        let mut count = 1;
        while count < most && first > 0 && self.free.last() == Some(&(first as u32 - 1)) {
            self.free.pop();
            first -= 1;
            count += 1;
        }
        Some((first, count))
    }

    /// Gives a slot that was taken back as free.
    pub fn give(&mut self, slot: usize) {
        self.slots[slot] = Slot::Free;
        self.free.push(slot as u32);
    }

    /// Gives the memory of the free slots beyond `kept` back to the system. No descriptor may serve the ring now.
    ///
    /// # Errors
    /// The system's; the slots stay free then.
    pub fn release(&mut self, kept: usize) -> Result<(), rustix::io::Errno> {
        while self.free.len() > kept {
            let (first, count) = self
                .take_free(self.free.len() - kept)
                .expect("some are free");
            if let Err(errno) = self.memory.discard(first, count) {
                (first..first + count).for_each(|slot| self.give(slot));
                return Err(errno);
            }
            self.slots[first..first + count].fill(Slot::Hole);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_go_round_and_the_counts_add_up() {
        let mut ring = Ring::new(8).unwrap();
        assert_eq!(ring.holes(3), Some((0, 3)));
        for slot in 0..3 {
            ring.stage(slot, 100 + slot);
        }
        assert_eq!(ring.holes(64), Some((3, 5)));
        assert_eq!(ring.oldest_staged(), Some((0, 100)));
        ring.unstage(0);
        ring.moved_out(1);
        assert_eq!(ring.oldest_staged(), Some((2, 102)));
        ring.unstage(2);
        assert_eq!((ring.staged(), ring.free()), (0, 2));
        assert_eq!(ring.oldest_staged(), None);
        assert_eq!(ring.take_free(8), Some((2, 1)));
        ring.moved_out(2);
        assert_eq!(ring.take_free(8), Some((0, 1)));
        assert_eq!(ring.take_free(8), None);
    }

    #[test]
    fn free_slots_in_a_row_are_taken_together() {
        let mut ring = Ring::new(8).unwrap();
        for slot in 0..4 {
            ring.stage(slot, slot);
        }
        for slot in 0..4 {
            ring.unstage(slot);
        }
        assert_eq!(ring.take_free(3), Some((1, 3)));
        ring.release(0).unwrap();
        assert_eq!(ring.free(), 0);
        assert_eq!(ring.slots[0], Slot::Hole);
    }

    #[test]
    #[should_panic(expected = "is a hole")]
    fn a_hole_is_not_touched() {
        Ring::new(8).unwrap().bytes(3);
    }
}
