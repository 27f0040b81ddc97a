//! The intervals of sizes, and the blocks of equal slots that serve them.
//!
//! Sizes count in steps of 1/256 unit, 16 bytes at 4 KiB, so that a handle can name the start of
//! every slot. Recovery and every removal rely on two consequences. A block begins where a unit
//! begins, because all blocks are whole units long. Within a class no two slots start equally far
//! into a unit, because where a block's slots repeat, a shorter block has the same slots.

use crate::page::Unit;
use crate::pool::arena::RUN_PAGES_MAX;
use crate::region::PAGE_BYTES;

/// Number of sizes in a unit.
const STEPS: usize = 256;

/// Most slots of a block: bits of its state.
pub(super) const SLOTS_MAX: usize = 16;

/// Slots and units of each class's blocks, by size. These are ztree's 19 classes (16, 12, 9 slots in
/// one page; 14, 12, 10, 8 in two; 14, 12, 10, 9, 8 in four; 14 to 9 and 7 in eight), changed in three
/// places where its header in the block made the difference: 8 slots in two and 8 in four pages are 4
/// and 2 in one, and 7 slots for whole pages in eight pages are a page each.
const CLASSES: [(usize, usize); 19] = [
    (16, 1),
    (12, 1),
    (9, 1),
    (14, 2),
    (12, 2),
    (10, 2),
    (4, 1),
    (14, 4),
    (12, 4),
    (10, 4),
    (9, 4),
    (2, 1),
    (14, 8),
    (13, 8),
    (12, 8),
    (11, 8),
    (10, 8),
    (9, 8),
    (1, 1),
];

/// Blocks of the same `slots`, each `slot_steps` long, over `units`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    pub slots: usize,
    pub units: usize,
    slot_steps: usize,
}

/// The classes for one unit size, the class of each size, and the slot of each place.
#[derive(Debug)]
pub(super) struct Geometry {
    unit_bytes: usize,
    classes: Vec<Class>,
    /// Class index by size in steps, less one.
    by_steps: [u8; STEPS],
    /// For each class: the slot that starts this many steps into a unit, plus one; 0 for none.
    slot_at: Vec<[u8; STEPS]>,
}

impl Geometry {
    pub(super) fn new(unit: Unit) -> Geometry {
        let units_max = RUN_PAGES_MAX * PAGE_BYTES / unit.bytes();
        let classes: Vec<Class> = CLASSES
            .iter()
            .filter_map(|(slots, units)| shortened(*slots, *units, units_max))
            .collect();
        let smallest_for = |steps: usize| classes.iter().position(|class| class.slot_steps > steps);
        Geometry {
            unit_bytes: unit.bytes(),
            by_steps: std::array::from_fn(|steps| {
                smallest_for(steps).expect("the last class has a whole unit") as u8
            }),
            slot_at: classes.iter().map(slots_by_place).collect(),
            classes,
        }
    }

    pub(super) fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The class of objects of `size_bytes`; `None` for nothing and for more than a unit.
    pub(super) fn class_of(&self, size_bytes: usize) -> Option<usize> {
        let steps = size_bytes.checked_sub(1)? / self.step_bytes();
        self.by_steps.get(steps).map(|class| usize::from(*class))
    }

    /// The start of slot `slot` of a block of `class` that begins with unit `unit`, in bytes.
    pub(super) fn offset_bytes(&self, class: usize, unit: usize, slot: usize) -> usize {
        unit * self.unit_bytes + slot * self.classes[class].slot_steps * self.step_bytes()
    }

    /// The first unit of the block of `class` that has a slot at `offset_bytes`, and the slot; `None`
    /// if no block can.
    pub(super) fn locate(&self, class: usize, offset_bytes: usize) -> Option<(usize, usize)> {
        if !offset_bytes.is_multiple_of(self.step_bytes()) {
            return None;
        }
        let steps = offset_bytes / self.step_bytes();
        let slot = usize::from(self.slot_at[class][steps % STEPS]).checked_sub(1)?;
        let base = steps.checked_sub(slot * self.classes[class].slot_steps)?;
        Some((base / STEPS, slot))
    }

    /// The smallest size that takes a whole unit.
    pub(super) fn huge_bytes(&self) -> usize {
        let packed = &self.classes[..self.classes.len() - 1];
        let largest = packed.iter().map(|class| class.slot_steps).max();
        largest.expect("more than one class") * self.step_bytes() + 1
    }

    fn step_bytes(&self) -> usize {
        self.unit_bytes / STEPS
    }
}

/// The class, with half the slots in half the units until a run can be that long; `None` where the
/// slots are odd then, and the next class has to do.
fn shortened(mut slots: usize, mut units: usize, units_max: usize) -> Option<Class> {
    while units > units_max {
        if !slots.is_multiple_of(2) {
            return None;
        }
        (slots, units) = (slots / 2, units / 2);
    }
    let slot_steps = units * STEPS / slots;
    Some(Class {
        slots,
        units,
        slot_steps,
    })
}

fn slots_by_place(class: &Class) -> [u8; STEPS] {
    let mut slots = [0; STEPS];
    for slot in 0..class.slots {
        slots[slot * class.slot_steps % STEPS] = slot as u8 + 1;
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Geometry> {
        [4096, 8192, 16384, 32768, 65536]
            .into_iter()
            .map(|bytes| Geometry::new(Unit::new(bytes).unwrap()))
    }

    #[test]
    fn every_size_has_the_smallest_class_that_holds_it() {
        for geometry in all() {
            for size in 1..=geometry.unit_bytes {
                let index = geometry.class_of(size).unwrap();
                let slot_bytes = |class: &Class| class.slot_steps * geometry.step_bytes();
                assert!(slot_bytes(&geometry.classes[index]) >= size);
                assert!(index == 0 || slot_bytes(&geometry.classes[index - 1]) < size);
            }
            assert_eq!(geometry.class_of(0), None);
            assert_eq!(geometry.class_of(geometry.unit_bytes + 1), None);
            let raw = geometry.class_of(geometry.unit_bytes).unwrap();
            assert_eq!(
                (raw + 1, geometry.classes[raw].slots),
                (geometry.classes.len(), 1)
            );
            assert_eq!(geometry.class_of(geometry.huge_bytes()), Some(raw));
            assert_ne!(geometry.class_of(geometry.huge_bytes() - 1), Some(raw));
        }
    }

    #[test]
    fn a_block_holds_its_slots_and_fits_a_run() {
        for class in all().flat_map(|geometry| geometry.classes) {
            assert!(class.slots * class.slot_steps <= class.units * STEPS);
            assert!((1..=SLOTS_MAX).contains(&class.slots));
        }
        for geometry in all() {
            let pages = |class: &Class| class.units * geometry.unit_bytes / PAGE_BYTES;
            assert!(geometry.classes.iter().map(pages).max() <= Some(RUN_PAGES_MAX));
        }
    }

    #[test]
    fn a_place_and_a_class_determine_the_block() {
        for geometry in all() {
            for (index, class) in geometry.classes.iter().enumerate() {
                for slot in 0..class.slots {
                    let offset = geometry.offset_bytes(index, 7, slot);
                    assert_eq!(geometry.locate(index, offset), Some((7, slot)), "{class:?}");
                }
                assert_eq!(geometry.locate(index, 8), None);
            }
        }
    }

    /// Our slots hold everything that the original's hold.
    #[test]
    fn no_published_slot_shrank() {
        let published = [
            248, 336, 448, 576, 672, 808, 1016, 1160, 1360, 1632, 1808, 2040, 2336, 2512, 2720,
            2968, 3264, 3632, 4096,
        ];
        let geometry = Geometry::new(Unit::DEFAULT);
        for (index, bytes) in published.into_iter().enumerate() {
            assert_eq!(geometry.class_of(bytes), Some(index), "{bytes}");
        }
    }
}
