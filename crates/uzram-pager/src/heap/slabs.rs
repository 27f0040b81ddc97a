//! Small allocations: slots of equal size in slabs, and which of them are taken.
//!
//! A slab is a run of pages with up to 256 slots. What is known of it lies beside it: the slots hold nothing but the
//! program's bytes. Slabs with room are in a list per class, and of each class at most one of them is empty.

use uzram::Result;

use super::lists::{Lists, reserved};
use super::runs::Runs;
use crate::mapping::PAGE_BYTES;

/// Size classes: 16 bytes apart up to 128, then four for each doubling.
const CLASSES: usize = 27;
/// The largest slot, in bytes.
const SLOT_BYTES_MAX: usize = 3584;
const SLOTS_MAX: usize = 256;
/// A list of numbers that no slab has.
const UNUSED: usize = CLASSES;

/// A size of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(u8);

impl Class {
    /// The smallest class whose slots have `size` bytes and the alignment `align`, if there is one.
    pub fn of(size: usize, align: usize) -> Option<Class> {
        let first = match size {
            0..=128 => size.saturating_sub(1) / 16,
            129..=SLOT_BYTES_MAX => {
                let power = (size - 1).ilog2();
                4 * (power as usize - 5) + ((size - 1) >> (power - 2)) % 4
            }
            _ => return None,
        };
        let class = (first..CLASSES).find(|class| SHAPES[*class].slot_bytes.is_multiple_of(align));
        class.map(|class| Class(class as u8))
    }

    /// Size of a slot, in bytes.
    pub fn slot_bytes(self) -> usize {
        SHAPES[self.list()].slot_bytes
    }

    fn pages(self) -> usize {
        SHAPES[self.list()].pages
    }

    fn slots(self) -> usize {
        SHAPES[self.list()].slots
    }

    fn list(self) -> usize {
        self.0 as usize
    }
}

/// The shape of a class's slabs.
#[derive(Clone, Copy)]
struct Shape {
    slot_bytes: usize,
    pages: usize,
    slots: usize,
}

static SHAPES: [Shape; CLASSES] = shapes();

const fn shapes() -> [Shape; CLASSES] {
    let mut shapes = [Shape {
        slot_bytes: 0,
        pages: 0,
        slots: 0,
    }; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let slot_bytes = match class {
            0..8 => 16 * (class + 1),
            _ => (5 + class % 4) << (5 + (class - 8) / 4),
        };
        // The fewest pages of which at most an eighth is lost.
        let mut pages = 1;
        while pages * PAGE_BYTES % slot_bytes > pages * PAGE_BYTES / 8 {
            pages += 1;
        }
        shapes[class] = Shape {
            slot_bytes,
            pages,
            slots: pages * PAGE_BYTES / slot_bytes,
        };
        class += 1;
    }
    shapes
}

#[derive(Clone, Copy, Debug)]
struct Slab {
    first: u32,
    class: Class,
    /// A bit per slot.
    taken: [u64; SLOTS_MAX / 64],
}

impl Slab {
    /// The first free slot.
    fn free(&self) -> Option<usize> {
        let word = self.taken.iter().position(|word| *word != u64::MAX)?;
        let slot = word * 64 + self.taken[word].trailing_ones() as usize;
        (slot < self.class.slots()).then_some(slot)
    }

    fn is_empty(&self) -> bool {
        self.taken.iter().all(|word| *word == 0)
    }
}

/// All slabs.
#[derive(Debug)]
pub(super) struct Slabs {
    slabs: Vec<Slab>,
    /// For each class those with room, and the unused numbers.
    lists: Lists<{ CLASSES + 1 }>,
    /// The empty one of each class.
    empty: [Option<usize>; CLASSES],
}

impl Slabs {
    /// No slabs yet, and room for one per page.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](uzram::ErrorKind::NoMemory).
    pub fn new(pages: usize) -> Result<Slabs> {
        Ok(Slabs {
            slabs: reserved(pages)?,
            lists: Lists::new(pages)?,
            empty: [None; CLASSES],
        })
    }

    /// Takes a slot and returns its offset in bytes.
    pub fn take(&mut self, class: Class, runs: &mut Runs) -> Option<usize> {
        let number = match self.lists.head(class.list()) {
            Some(number) => number,
            None => self.add(class, runs)?,
        };
        if self.empty[class.list()] == Some(number) {
            self.empty[class.list()] = None;
        }
        let slab = &mut self.slabs[number];
        let slot = slab.free().expect("slabs in the list have room");
        slab.taken[slot / 64] |= 1 << (slot % 64);
        if slab.free().is_none() {
            self.lists.remove(class.list(), number);
        }
        Some(slab.first as usize * PAGE_BYTES + slot * class.slot_bytes())
    }

    /// Gives a slot back. If that makes its slab superfluous the caller has its pages, to empty them and give them back:
    /// the first, and how many.
    pub fn give(&mut self, class: Class, offset: usize, runs: &Runs) -> Option<(usize, usize)> {
        let number = runs.owner(offset / PAGE_BYTES) as usize;
        let slab = &mut self.slabs[number];
        debug_assert_eq!(slab.class, class);
        let was_full = slab.free().is_none();
        let slot = (offset - slab.first as usize * PAGE_BYTES) / class.slot_bytes();
        debug_assert_ne!(
            slab.taken[slot / 64] & 1 << (slot % 64),
            0,
            "slot {slot} is free"
        );
        slab.taken[slot / 64] &= !(1 << (slot % 64));
        let is_empty = slab.is_empty();
        if was_full {
            self.lists.push(class.list(), number);
        }
        if !is_empty {
            return None;
        }
        let stays = match self.empty[class.list()] {
            // Runs grow long where nothing lies high.
            Some(other) if self.slabs[other].first < self.slabs[number].first => other,
            _ => number,
        };
        let other = self.empty[class.list()].replace(stays)?;
        Some(self.retire(if stays == number { other } else { number }))
    }

    /// Takes an empty slab out. The caller has its pages, as those of [`give`](Slabs::give).
    pub fn take_empty(&mut self) -> Option<(usize, usize)> {
        let number = self.empty.iter_mut().find_map(Option::take)?;
        Some(self.retire(number))
    }

    fn retire(&mut self, number: usize) -> (usize, usize) {
        let Slab { first, class, .. } = self.slabs[number];
        self.lists.remove(class.list(), number);
        self.lists.push(UNUSED, number);
        (first as usize, class.pages())
    }

    fn add(&mut self, class: Class, runs: &mut Runs) -> Option<usize> {
        let unused = self.lists.head(UNUSED);
        let number = unused.unwrap_or(self.slabs.len());
        let first = runs.take(class.pages(), 1, number as u32)?;
        let slab = Slab {
            first: first as u32,
            class,
            taken: [0; SLOTS_MAX / 64],
        };
        match unused {
            Some(number) => {
                self.lists.remove(UNUSED, number);
                self.slabs[number] = slab;
            }
            None => self.slabs.push(slab),
        }
        self.lists.push(class.list(), number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_that_fits() {
        assert_eq!(SHAPES[CLASSES - 1].slot_bytes, SLOT_BYTES_MAX);
        for align in (0..=13).map(|power| 1 << power) {
            for size in 1..=4096usize {
                let mut shapes = SHAPES.iter().map(|shape| shape.slot_bytes);
                let fits = |bytes: &usize| *bytes >= size && bytes.is_multiple_of(align);
                let class = Class::of(size, align).map(Class::slot_bytes);
                assert_eq!(class, shapes.find(fits), "{size} bytes, alignment {align}");
            }
        }
    }

    #[test]
    fn a_slab_has_at_most_256_slots_and_loses_at_most_an_eighth() {
        for shape in &SHAPES {
            let (bytes, used) = (shape.pages * PAGE_BYTES, shape.slots * shape.slot_bytes);
            assert!(shape.slots <= SLOTS_MAX && used <= bytes && bytes - used <= bytes / 8);
        }
    }

    #[test]
    fn one_empty_slab_of_a_class_is_kept() {
        let class = Class::of(1024, 1).unwrap();
        let (mut runs, mut slabs) = (Runs::new(64, 0).unwrap(), Slabs::new(64).unwrap());
        let offsets: Vec<_> = (0..12)
            .map(|_| slabs.take(class, &mut runs).unwrap())
            .collect();
        assert_eq!(runs.used(), 3);
        let mut released = Vec::new();
        for offset in offsets.into_iter().rev() {
            let empty = slabs.give(class, offset, &runs);
            if let Some((first, pages)) = empty {
                runs.give(first, pages);
                released.push(first);
            }
        }
        assert_eq!(released, [2, 1], "the lowest stays");
        assert_eq!(slabs.take(class, &mut runs), Some(0));
        assert_eq!(slabs.take_empty(), None);
        assert_eq!(slabs.give(class, 0, &runs), None);
        assert_eq!(slabs.take_empty(), Some((0, 1)));
        runs.give(0, 1);
        assert_eq!(runs.used(), 0);
        // Numbers are used again.
        let other = Class::of(3000, 1).unwrap();
        for _ in 0..13 {
            slabs.take(other, &mut runs).unwrap();
        }
        assert_eq!(slabs.slabs.len(), 4);
    }
}
