//! The sides: each pool, a general allocator with one allocation per object, and the copy alone.

use uzram::Unit;
use uzram::lab::{BarePool, Objects};

use super::mimalloc::{self, Mimalloc};
use super::places::Heap;
use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::mapping::{Backing, Mapping};
use crate::peers::Peer;
use uzram_testkit::Rng;

/// One of the sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// A pool of the engine, by name.
    Pool(&'static str),
    /// The C library's allocator, through Rust's boxes.
    Malloc,
    Mimalloc,
}

/// A variant's memory, which several heaps may share.
pub(super) enum Ground {
    Pool(BarePool),
    Malloc,
    Mimalloc,
}

impl Variant {
    /// All pools, the default first, and those of `peers` that allocate.
    pub(super) fn all(peers: &[Peer]) -> Vec<Variant> {
        let mut all: Vec<Variant> = uzram::pools().into_iter().map(Variant::Pool).collect();
        all.extend(peers.contains(&Peer::Malloc).then_some(Variant::Malloc));
        all.extend(peers.contains(&Peer::Mimalloc).then_some(Variant::Mimalloc));
        all
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Variant::Pool(name) => name,
            // A static binary for musl has musl's allocator and none of glibc's.
            Variant::Malloc if cfg!(target_env = "gnu") => "malloc-glibc",
            Variant::Malloc if cfg!(target_env = "musl") => "malloc-musl",
            Variant::Malloc => "malloc",
            Variant::Mimalloc => "mimalloc",
        }
    }

    /// Fresh memory for a disk of `size_bytes`.
    pub(super) fn open(self, size_bytes: u64) -> Result<Ground> {
        Ok(match self {
            Variant::Pool(name) => Ground::Pool(BarePool::new(name, Unit::DEFAULT, size_bytes, 0)?),
            Variant::Malloc => Ground::Malloc,
            Variant::Mimalloc => Ground::Mimalloc,
        })
    }
}

impl Ground {
    pub(super) fn heap(&self, places: usize) -> Box<dyn Heap> {
        match self {
            Ground::Pool(pool) => Box::new(Pooled(pool.objects(places))),
            Ground::Malloc => Box::new(Boxes((0..places).map(|_| None).collect())),
            Ground::Mimalloc => Box::new(Mimalloc::new(places)),
        }
    }

    /// Arena memory taken from the system, by the pool's own count; `None` where nobody counts.
    pub(super) fn resident_bytes(&self) -> Option<u64> {
        match self {
            Ground::Pool(pool) => Some(pool.stats().resident_bytes),
            Ground::Malloc | Ground::Mimalloc => None,
        }
    }

    /// Memory that a pool has taken and not used yet, in bytes, by its own count.
    pub(super) fn spare_bytes(&self) -> u64 {
        match self {
            Ground::Pool(pool) => {
                let stats = pool.stats();
                stats.resident_bytes.saturating_sub(stats.used_bytes)
            }
            Ground::Malloc | Ground::Mimalloc => 0,
        }
    }

    /// Does what a store's maintenance does for its writers: populates a pool's spare, or gives back
    /// what is beyond it. Nothing in a program would do that for the general allocators.
    pub(super) fn maintain(&self) {
        if let Ground::Pool(pool) = self {
            while pool.maintain() {}
        }
    }

    /// Gives back what holds no object and can be told apart: a pool's spare. The general
    /// allocators are left as they are, for nothing in a program would do it for them.
    pub(super) fn trim(&self) {
        if let Ground::Pool(pool) = self {
            pool.trim();
        }
    }
}

/// Has the general allocators give back what earlier cases left, so that it is not used unseen.
pub(super) fn forget_the_past() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        super::glibc::hold_thresholds();
        super::glibc::trim();
    }
    mimalloc::collect();
}

struct Pooled(Objects);

impl Heap for Pooled {
    fn insert(&mut self, place: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.0.insert(place, bytes)?)
    }

    fn remove(&mut self, place: usize) {
        self.0.remove(place);
    }

    fn bytes(&self, place: usize) -> &[u8] {
        self.0.bytes(place).unwrap_or_default()
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.0.swap(one, other);
    }

    fn compact(&mut self) -> Result<bool> {
        self.0.compact()?;
        Ok(true)
    }
}

/// A box an object: the global allocator, which in this program is the C library's.
struct Boxes(Vec<Option<Box<[u8]>>>);

impl Heap for Boxes {
    fn insert(&mut self, place: usize, bytes: &[u8]) -> Result<()> {
        self.0[place] = Some(Box::from(bytes));
        Ok(())
    }

    fn remove(&mut self, place: usize) {
        self.0[place] = None;
    }

    fn bytes(&self, place: usize) -> &[u8] {
        self.0[place].as_deref().unwrap_or_default()
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.0.swap(one, other);
    }
}

/// The copy alone: to and from random places of memory like a pool's, and nothing else.
pub(super) struct Copies {
    memory: Mapping,
    rng: Rng,
    next: usize,
}

/// Copies start at multiples of this, in bytes, as objects in pools do.
const ALIGN_BYTES: usize = 16;

impl Copies {
    /// Over `bytes` of memory, which several times the last-level cache should be.
    pub(super) fn new(bytes: usize) -> Result<Copies> {
        let mapped = Mapping::new(bytes, Backing::Huge);
        let memory = mapped.map_err(|error| Error::io("memory for the copy alone", error))?;
        Ok(Copies {
            memory,
            rng: Rng::new(0xc0b1e5),
            next: 0,
        })
    }

    /// Touches all of it, so that random copies meet no fresh memory.
    pub(super) fn warm(&mut self) {
        self.memory.fill(1);
    }

    /// Gives the memory back and starts at its beginning.
    pub(super) fn make_fresh(&mut self) -> Result<()> {
        self.next = 0;
        let fresh = self.memory.make_fresh();
        fresh.map_err(|error| Error::io("memory for the copy alone", error))
    }

    /// Whether `bytes` more fit behind the last copy.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.next + bytes <= self.memory.len()
    }

    /// Copies `bytes` behind the last copy.
    #[inline]
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.memory[self.next..][..bytes.len()].copy_from_slice(bytes);
        self.next += bytes.len().next_multiple_of(ALIGN_BYTES);
    }

    /// A random place for an object of any size.
    pub(super) fn place(&mut self) -> usize {
        self.rng.below(self.memory.len() - PAGE_BYTES) / ALIGN_BYTES * ALIGN_BYTES
    }

    /// Copies `bytes` to a place.
    #[inline]
    pub(super) fn overwrite(&mut self, place: usize, bytes: &[u8]) {
        self.memory[place..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Copies as many bytes as `to` has from a place.
    #[inline]
    pub(super) fn read(&self, place: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.memory[place..][..to.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole suite rests on this: each variant gives back what was stored.
    #[test]
    fn every_variant_keeps_objects_apart() {
        for variant in Variant::all(&Peer::POOLS) {
            let ground = variant.open(1 << 24).unwrap();
            let mut heap = ground.heap(100);
            let content = |place: usize| vec![place as u8; 1 + place * 41];
            for place in 0..99 {
                heap.insert(place, &content(place)).unwrap();
            }
            heap.swap(3, 99);
            heap.swap(4, 5);
            for place in (0..99).step_by(2) {
                heap.remove(place);
            }
            let expected = |place: usize| match place {
                99 => content(3),
                5 => content(4),
                3 => Vec::new(),
                odd if odd % 2 == 1 => content(odd),
                _ => Vec::new(),
            };
            heap.compact().unwrap();
            for place in 0..100 {
                assert_eq!(
                    heap.bytes(place),
                    expected(place),
                    "{} {place}",
                    variant.name()
                );
            }
        }
    }

    #[test]
    fn every_pool_is_a_variant_and_so_are_the_peers_that_were_asked_for() {
        let pools: Vec<&str> = Variant::all(&[])
            .iter()
            .map(|variant| variant.name())
            .collect();
        assert_eq!(pools, uzram::pools());
        assert_eq!(Variant::all(&Peer::POOLS).len(), pools.len() + 2);
    }
}
