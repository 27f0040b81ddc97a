//! A pool without a store: objects behind numbered places, for benchmarks and fuzz targets.
//!
//! Pools go by name only, so that their trait can change. Whoever measures or fuzzes them needs
//! neither the trait nor a handle: handles stay inside [`Objects`], so safe code outside cannot
//! forge, copy, lose or cross them. Hidden from the documentation, and outside of semver.

use super::arena::{Memory, Parts};
use super::{Full, Handle, Pool, PoolConfig, PoolStats, Victims, make};
use crate::error::{Error, ErrorKind, Result};
use crate::page::Unit;
use crate::region::Backing;
use crate::sync::Arc;

/// How often an insertion grows the pool before it gives up, as a write of the store does.
const GROWTHS_MAX: usize = 64;

/// Blocks that are emptied at once, as the store does.
const VICTIMS_MAX: usize = 4096;

/// A pool, made by name, shared by any number of [`Objects`].
#[derive(Clone)]
pub struct BarePool {
    pool: Arc<dyn Pool>,
    unit: Unit,
}

/// Objects of one pool, each in a place of its own; they are removed with this value.
pub struct Objects {
    pool: Arc<dyn Pool>,
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
        };
        let pool = make(name, &config, Memory::reserve(&config)?)?;
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

    /// What the pool holds.
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

    /// One bounded step towards the right size of the spare; whether more is left to do.
    pub fn maintain(&self) -> bool {
        self.pool.maintain()
    }

    /// Gives all memory without objects back to the system, the spare and parts of huge pages included.
    pub fn trim(&self) {
        self.pool.trim(Parts::Too);
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

    /// Moves the objects together, as the store's compaction does, where the pool has no others, until
    /// no block becomes free; returns how many pages did. [`BarePool::trim`] then gives them back.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] at the limit, [`ErrorKind::NoMemory`]: some objects have moved.
    pub fn compact(&mut self) -> Result<usize> {
        let mut pages = 0;
        loop {
            let victims = Victims::new(self.pool.close_sparse(VICTIMS_MAX)?);
            let moved = self.empty(&victims);
            let gone = victims.reopen(&*self.pool);
            pages += gone;
            moved?;
            if gone == 0 {
                return Ok(pages);
            }
        }
    }

    fn empty(&mut self, victims: &Victims) -> Result<()> {
        for slot in &mut self.places {
            let is_victims = |handle: &&mut Handle| victims.has(handle.offset_bytes());
            if let Some(handle) = slot.as_mut().filter(is_victims) {
                let new = insert(&*self.pool, self.pool.bytes(handle))?;
                self.pool.remove(std::mem::replace(handle, new));
            }
        }
        Ok(())
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

fn insert(pool: &dyn Pool, bytes: &[u8]) -> Result<Handle> {
    for _ in 0..GROWTHS_MAX {
        match pool.insert(bytes) {
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
