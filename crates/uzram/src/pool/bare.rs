//! A pool without a store: objects behind numbered places, for benchmarks and fuzz targets.
//!
//! Pools are chosen by name only, so that their trait can change. Measuring or fuzzing them needs
//! neither the trait nor a handle: handles stay inside [`Objects`], so safe code outside cannot
//! forge, copy, lose or mix them up. Only with the feature `lab`, and outside of semver.

use super::{
    Aim, Full, Handle, Mover, Parts, PoolConfig, PoolMemory, PoolStats, Room, Victims, make,
    reserve,
};
use crate::error::{Error, ErrorKind, Result};
use crate::page::Unit;
use crate::region::Backing;
use crate::sync::Arc;

/// Times that an insertion grows the pool before it gives up, as a write of the store does.
const GROWTHS_MAX: usize = 64;

/// Choices of blocks to empty for either aim, as the store makes.
const ROUNDS_MAX: usize = 256;

/// Blocks that are emptied at once, as the store does.
const VICTIMS_MAX: usize = 4096;

/// A pool, made by name, shared by any number of [`Objects`].
#[derive(Clone)]
pub struct BarePool {
    pool: Arc<PoolMemory>,
    unit: Unit,
}

/// Objects of one pool, each in a place of its own; they are removed with this value.
pub struct Objects {
    pool: Arc<PoolMemory>,
    unit: Unit,
    places: Vec<Option<Handle>>,
}

impl BarePool {
    /// The pool called `name`, as a store of `size_bytes` would make it; limit 0 for none.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownName`], [`ErrorKind::NoMemory`].
    pub fn new(name: &str, unit: Unit, size_bytes: u64, limit_bytes: u64) -> Result<BarePool> {
        let config = PoolConfig {
            unit,
            disksize_bytes: size_bytes,
            limit_bytes,
            backing: Backing::Private,
            spare_bytes: 0,
        };
        let pool = make(name, &config, reserve(&config)?)?;
        Ok(BarePool {
            pool: pool.into(),
            unit,
        })
    }

    /// `count` empty places.
    #[must_use]
    pub fn objects(&self, count: usize) -> Objects {
        let mut places = Vec::new();
        places.resize_with(count, || None);
        Objects {
            pool: Arc::clone(&self.pool),
            unit: self.unit,
            places,
        }
    }

    /// The pool's counters.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// The size from which an object costs as much memory as a whole unit, in bytes.
    #[must_use]
    pub fn huge_bytes(&self) -> usize {
        self.pool.huge_bytes()
    }

    /// Sets the limit on [`PoolStats::used_bytes`]; 0 for none. Not retroactive.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.pool.set_limit(limit_bytes);
    }

    /// One bounded step towards the right size of the spare. Returns whether more is left to do.
    pub fn maintain(&self) -> bool {
        self.pool.maintain()
    }

    /// Gives memory without objects back to the system, the spare included; only whole huge pages.
    pub fn trim(&self) {
        self.pool.trim(Parts::Stay);
    }
}

impl Objects {
    /// Stores a copy of `bytes`, 1 to one unit long, in an empty place; the pool grows if it must.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] at the limit, [`ErrorKind::NoMemory`], and
    /// [`ErrorKind::InvalidInput`] for another size or a place that is taken; nothing changed then.
    pub fn insert(&mut self, place: usize, bytes: &[u8]) -> Result<()> {
        let slot = &mut self.places[place];
        if slot.is_some() || bytes.is_empty() || bytes.len() > self.unit.bytes() {
            return Err(not_insertable(place, bytes.len(), self.unit));
        }
        *slot = Some(insert(&*self.pool, bytes)?);
        Ok(())
    }

    /// Frees the place's object, if there is one.
    pub fn remove(&mut self, place: usize) {
        if let Some(handle) = self.places[place].take() {
            self.pool.remove(handle);
        }
    }

    /// The place's object, where it lies; `None` for an empty place.
    #[must_use]
    pub fn bytes(&self, place: usize) -> Option<&[u8]> {
        self.places[place]
            .as_ref()
            .map(|handle| self.pool.bytes(handle))
    }

    /// Moves the objects together, as the store's compaction does, until that frees no more
    /// memory. The pool may have no other objects. Gives the memory back, parts of huge pages too,
    /// and returns how many pages became free.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`] if there is none for the list of blocks to empty; some objects have
    /// moved then.
    pub fn compact(&mut self) -> Result<usize> {
        let mut pages = 0;
        let mut mover = Mover::default();
        for aim in [Aim::Sparse, Aim::Gaps] {
            for _ in 0..ROUNDS_MAX {
                let victims = mover.close(&*self.pool, aim, VICTIMS_MAX)?;
                self.empty(&victims, &mut mover, aim);
                let gain = mover.end(&*self.pool, victims);
                pages += gain.pages;
                if !gain.pays {
                    break;
                }
            }
        }
        self.pool.trim(Parts::Too);
        Ok(pages)
    }

    fn empty(&mut self, victims: &Victims, mover: &mut Mover, aim: Aim) {
        for slot in &mut self.places {
            let is_victims = |handle: &&mut Handle| victims.has(handle.offset_bytes());
            let Some(handle) = slot.as_mut().filter(is_victims) else {
                continue;
            };
            let copied = match mover.copy(&*self.pool, handle) {
                Err(Full::NeedsMemory) if aim == Aim::Gaps => {
                    if self.pool.grow(handle.size_bytes()).is_err() {
                        return;
                    }
                    mover.copy(&*self.pool, handle)
                }
                copied => copied,
            };
            if let Ok(new) = copied {
                mover.remove(&*self.pool, std::mem::replace(handle, new));
            }
        }
    }

    /// Exchanges the objects of two places, which moves no bytes.
    pub fn swap(&mut self, one: usize, other: usize) {
        self.places.swap(one, other);
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        for handle in self.places.drain(..).flatten() {
            self.pool.remove(handle);
        }
    }
}

fn not_insertable(place: usize, size_bytes: usize, unit: Unit) -> Error {
    let what = format!(
        "an object of {size_bytes} bytes in place {place}: must be 1 to {unit}, in an empty place"
    );
    Error::new(ErrorKind::InvalidInput, what)
}

fn insert(pool: &PoolMemory, bytes: &[u8]) -> Result<Handle> {
    for _ in 0..GROWTHS_MAX {
        match pool.insert(bytes, Room::Any) {
            Ok(handle) => return Ok(handle),
            Err(Full::NeedsMemory) => pool.grow(bytes.len())?,
            Err(Full::NoMemory) => break,
        }
    }
    Err(Error::new(
        ErrorKind::NoMemory,
        "no memory for an object; free some",
    ))
}

#[cfg(all(test, not(uzram_shuttle)))]
mod tests {
    use super::*;

    /// Objects so large that few fit beside each other: an object without room stays in place.
    #[test]
    fn compaction_takes_no_memory() {
        const COUNT: usize = 10;
        for (name, unit_bytes, seed) in crate::pool::pools()
            .into_iter()
            .flat_map(|name| [4096, 16384, 65536].map(|unit| (name, unit)))
            .flat_map(|(name, unit)| (0..400).map(move |seed| (name, unit, seed)))
        {
            let unit = Unit::new(unit_bytes).unwrap();
            let pool = BarePool::new(name, unit, 4 << 20, 0).unwrap();
            let mut objects = pool.objects(COUNT);
            let random = |place: usize| {
                let mixed = (seed * COUNT + place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
            };
            let size = |place: usize| 1 + random(place) % unit.bytes();
            for place in 0..COUNT {
                objects.insert(place, &vec![1; size(place)]).unwrap();
            }
            (0..COUNT)
                .filter(|place| random(*place) >> 30 & 1 == 0)
                .for_each(|place| objects.remove(place));
            let before = pool.stats();
            pool.pool.reset_used_max();
            objects.compact().unwrap();
            let after = pool.stats();
            assert!(
                after.used_max_bytes <= before.used_bytes,
                "{name}, {unit}, {seed}: {after:?} after {before:?}"
            );
        }
    }

    /// Objects of a store that lost every second one: moving them ends, and takes no more memory.
    #[test]
    fn compaction_ends_when_it_gains_nothing() {
        const COUNT: usize = 12_000;
        for name in crate::pool::pools() {
            let pool = BarePool::new(name, Unit::DEFAULT, 256 << 20, 0).unwrap();
            let mut objects = pool.objects(COUNT);
            let size = |place: usize| 100 + place.wrapping_mul(2_654_435_761) % 2500;
            let content = |place: usize| vec![place as u8; size(place)];
            for place in 0..COUNT {
                objects.insert(place, &content(place)).unwrap();
            }
            let is_kept = |place: usize| place.wrapping_mul(0x9e37_79b9) >> 9 & 1 == 0;
            for place in (0..COUNT).filter(|place| !is_kept(*place)) {
                objects.remove(place);
            }
            let before = pool.stats();
            let pages = objects.compact().unwrap();
            let after = pool.stats();
            let used_pages = before.used_bytes / 4096;
            assert!(
                pages as u64 <= 2 * used_pages,
                "{name}: {pages} of {used_pages}"
            );
            assert!(after.used_bytes < before.used_bytes, "{name}: {after:?}");
            for place in (0..COUNT).filter(|place| is_kept(*place)) {
                assert_eq!(objects.bytes(place).unwrap(), content(place), "{name}");
            }
        }
    }

    /// The gaps between objects after all found room go too, without more pages on the way.
    #[test]
    fn compaction_leaves_few_gaps() {
        const COUNT: usize = 60_000;
        let pool = BarePool::new("bestfit", Unit::DEFAULT, 512 << 20, 0).unwrap();
        let mut objects = pool.objects(COUNT);
        let random = |place: usize| {
            let mixed = (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
        };
        let size = |place: usize| 1200 + random(place) % 2000;
        let content = |place: usize| vec![place as u8; size(place)];
        for place in 0..COUNT {
            objects.insert(place, &content(place)).unwrap();
        }
        let is_kept = |place: &usize| random(*place) >> 30 & 1 == 0;
        for place in (0..COUNT).filter(|place| !is_kept(place)) {
            objects.remove(place);
        }
        let before = pool.stats();
        pool.pool.reset_used_max();
        let pages = objects.compact().unwrap() as u64;
        let after = pool.stats();
        assert!(
            after.used_max_bytes <= before.used_bytes,
            "{after:?} after {before:?}"
        );
        assert!(
            pages * 4096 <= before.used_bytes - after.used_bytes,
            "{pages} at most"
        );
        let stored: usize = (0..COUNT).filter(is_kept).map(size).sum();
        assert!(
            after.used_bytes * 100 <= stored as u64 * 102,
            "{after:?} for {stored}"
        );
        for place in (0..COUNT).filter(is_kept) {
            assert_eq!(objects.bytes(place).unwrap(), content(place));
        }
        assert_eq!(objects.compact().unwrap(), 0, "there is no more");
    }
}
