//! Size classes: the sizes of objects that share a block, and their number.
//!
//! Classes step by 1/256 of a unit (16 bytes at 4 KiB). A class's block is the shortest of 1 to 16
//! pages (more for larger units) that wastes at most 2.5 % at its end, or else the one that wastes
//! least. Short blocks keep the loss in part-filled ones low. Neighbouring classes with equal
//! blocks merge into the larger.
//!
//! Recovery relies on a consequence: a place and a class determine the block. Two indexes whose
//! objects start at the same offset within a page lie whole pages apart, so a shorter block would
//! have been filled without any waste and would have been chosen.

use crate::page::Unit;
use crate::pool::arena::RUN_PAGES_MAX;
use crate::region::PAGE_BYTES;

/// Classes before merging: sizes of 1/256 to 256/256 of a unit.
pub(super) const STEPS: usize = 256;

/// Most objects of a block; its bitmap has as many bits.
pub(super) const BLOCK_OBJECTS_MAX: usize = 256;

/// Longest block of 4 KiB units, in pages. Larger units have proportionally longer ones.
const BLOCK_PAGES_MAX: usize = 16;

/// Acceptable waste at a block's end, in thousandths.
const WASTE_MAX_PERMILLE: usize = 25;

/// One size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    /// Bytes that each object occupies.
    pub object_bytes: usize,
    /// Length of a block, in pages of 4 KiB.
    pub block_pages: usize,
    /// Objects in a block.
    pub block_objects: usize,
}

/// The classes for one unit size, and the class of each size.
#[derive(Debug)]
pub(super) struct Geometry {
    unit_bytes: usize,
    step_bytes: usize,
    classes: Vec<Class>,
    /// Class index by size in steps, less one.
    by_steps: [u8; STEPS],
}

impl Geometry {
    pub(super) fn new(unit: Unit) -> Geometry {
        let unit_bytes = unit.bytes();
        let step_bytes = unit_bytes / STEPS;
        let mut geometry = Geometry {
            unit_bytes,
            step_bytes,
            classes: Vec::new(),
            by_steps: [0; STEPS],
        };
        for steps in (1..=STEPS).rev() {
            let class = best_block(steps * step_bytes, unit_bytes);
            let merges = geometry.classes.last().is_some_and(|last: &Class| {
                (last.block_pages, last.block_objects) == (class.block_pages, class.block_objects)
            });
            if !merges {
                geometry.classes.push(class);
            }
            geometry.by_steps[steps - 1] = (geometry.classes.len() - 1) as u8;
        }
        geometry
    }

    pub(super) fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The class of objects of `size_bytes`, 1 to one unit.
    pub(super) fn class_of(&self, size_bytes: usize) -> usize {
        debug_assert!(
            (1..=self.unit_bytes).contains(&size_bytes),
            "object of {size_bytes} bytes"
        );
        usize::from(self.by_steps[(size_bytes - 1) / self.step_bytes])
    }

    /// The smallest size that shares the raw unit's class.
    pub(super) fn huge_bytes(&self) -> usize {
        let raw = self.class_of(self.unit_bytes);
        let steps = self
            .by_steps
            .iter()
            .filter(|class| usize::from(**class) != raw)
            .count();
        steps * self.step_bytes + 1
    }

    /// The first page of the block that has an object of `class` at `offset_bytes`, and the
    /// object's index; `None` if no block can.
    pub(super) fn locate(&self, class: usize, offset_bytes: usize) -> Option<(usize, usize)> {
        let class = &self.classes[class];
        (0..class.block_objects).find_map(|index| {
            let base = offset_bytes.checked_sub(index * class.object_bytes)?;
            base.is_multiple_of(PAGE_BYTES)
                .then_some((base / PAGE_BYTES, index))
        })
    }
}

fn best_block(object_bytes: usize, unit_bytes: usize) -> Class {
    let pages_max = (BLOCK_PAGES_MAX * (unit_bytes / PAGE_BYTES)).min(RUN_PAGES_MAX);
    let candidates = (1..=pages_max).map(|block_pages| {
        let block_bytes = block_pages * PAGE_BYTES;
        let block_objects = block_bytes / object_bytes;
        let waste = (block_bytes - block_objects * object_bytes) * 1000 / block_pages;
        let class = Class {
            object_bytes,
            block_pages,
            block_objects,
        };
        (waste, class)
    });
    let enough = candidates
        .clone()
        .find(|(waste, _)| *waste <= WASTE_MAX_PERMILLE * PAGE_BYTES);
    let least = candidates.min_by_key(|(waste, _)| *waste);
    enough.or(least).expect("at least one candidate").1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Geometry> {
        [4096, 8192, 16384, 32768, 65536]
            .into_iter()
            .map(|b| Geometry::new(Unit::new(b).unwrap()))
    }

    #[test]
    fn every_size_has_a_class_that_holds_it() {
        for geometry in all() {
            for size in 1..=geometry.unit_bytes {
                let class = geometry.classes[geometry.class_of(size)];
                assert!(class.object_bytes >= size);
                assert!(class.block_objects * class.object_bytes <= class.block_pages * PAGE_BYTES);
                assert!((1..=BLOCK_OBJECTS_MAX).contains(&class.block_objects));
                assert!((1..=RUN_PAGES_MAX).contains(&class.block_pages));
            }
            let raw = geometry.classes[geometry.class_of(geometry.unit_bytes)];
            assert_eq!(
                (raw.block_pages * PAGE_BYTES, raw.block_objects),
                (geometry.unit_bytes, 1)
            );
            assert_ne!(
                geometry.class_of(geometry.huge_bytes() - 1),
                geometry.class_of(geometry.unit_bytes)
            );
            assert_eq!(
                geometry.class_of(geometry.huge_bytes()),
                geometry.class_of(geometry.unit_bytes)
            );
        }
    }

    #[test]
    fn a_place_and_a_class_determine_the_block() {
        for geometry in all() {
            for (index, class) in geometry.classes.iter().enumerate() {
                for object in 0..class.block_objects {
                    let offset = 7 * PAGE_BYTES + object * class.object_bytes;
                    assert_eq!(
                        geometry.locate(index, offset),
                        Some((7, object)),
                        "{class:?}"
                    );
                }
            }
        }
    }
}
