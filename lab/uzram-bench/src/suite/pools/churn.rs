//! One variant with objects of one corpus: filled, overwritten at random, half discarded, emptied.
//!
//! After each step it is weighed by the kernel's count. Overwrites go as a store's do, the new
//! object in before the old one leaves, in batches of 64; each operation is timed. The copy alone of
//! the same bytes takes its turn before the variant's insertions in some batches and after them in
//! as many, and reads as many bytes as the variant's reads do, so that a figure beyond the copy is of
//! one moment. A place is looked up before the clock runs: the table of places is the owner's, not the
//! allocator's. Between batches a pool is maintained, as a store maintains its own beside its writers; that is timed
//! apart, once a batch.

use std::time::{Duration, Instant};

use super::clock::{BATCH, Clock, Costs, IDLE_PART, Latencies};
use super::draw::Packed;
use super::heap::{Copies, Ground, Variant, forget_the_past};
use super::places::Heap;
use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::machine;
use uzram_testkit::Rng;

/// Every so many batches some objects are read.
const READ_EVERY: usize = 8;
/// The copy alone has its turn in two of so many batches, once before and once after the variant.
const COPY_EVERY: usize = 4;
const SEED: u64 = 0x5eed_0b1e;

/// Memory and clock that all cases share: warm, and of one size throughout.
pub(super) struct Bench {
    pub(super) clock: Clock,
    pub(super) copies: Copies,
    sink: Vec<u8>,
}

impl Bench {
    /// With `copy_bytes` of memory for the copy alone.
    pub(super) fn new(copy_bytes: usize) -> Result<Bench> {
        Ok(Bench {
            clock: Clock::calibrate(),
            copies: Copies::new(copy_bytes)?,
            sink: vec![1; PAGE_BYTES],
        })
    }
}

/// A variant with `count` places of objects, and as many more as a batch needs.
pub(super) struct Cell<'a> {
    ground: Ground,
    heap: Box<dyn Heap>,
    objects: &'a Packed,
    count: usize,
    rng: Rng,
    /// Bytes of the objects that are in.
    stored_bytes: u64,
    /// The kernel's count of everything else, in bytes.
    base_bytes: u64,
}

/// Operations by kind, and the copy alone of the same bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    pub(super) insert: Latencies,
    pub(super) insert_floor: Latencies,
    pub(super) remove: Latencies,
    pub(super) access: Latencies,
    pub(super) access_floor: Latencies,
    /// A loop that does nothing, for a part of the operations' time.
    pub(super) idle: Latencies,
    /// Work between batches that is no operation's.
    pub(super) maintenance: Duration,
}

/// The costs of a round beyond those of the copy, where there is one, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beyond {
    pub(super) insert: Costs,
    pub(super) remove: Costs,
    pub(super) access: Costs,
}

impl Round {
    /// Adds the variant's operations of another round.
    pub(super) fn add(&mut self, other: &Round) {
        self.insert.add(&other.insert);
        self.remove.add(&other.remove);
        self.access.add(&other.access);
    }

    pub(super) fn beyond(&self, clock: Clock) -> Beyond {
        let costs = |latencies| clock.costs(latencies);
        Beyond {
            insert: costs(&self.insert).beyond(costs(&self.insert_floor)),
            remove: costs(&self.remove),
            access: costs(&self.access).beyond(costs(&self.access_floor)),
        }
    }

    /// The variant's operations of every kind.
    pub(super) fn operations(&self) -> Latencies {
        let mut all = self.insert.clone();
        all.add(&self.remove);
        all.add(&self.access);
        all
    }
}

impl<'a> Cell<'a> {
    /// An empty cell; the kernel's count is taken before.
    ///
    /// The table of places belongs to the owner of the objects, so it does not count as the variant's memory.
    pub(super) fn open(
        variant: Variant,
        objects: &'a Packed,
        count: usize,
        bench: &mut Bench,
    ) -> Result<Cell<'a>> {
        forget_the_past();
        bench.copies.make_fresh()?;
        let before_bytes = machine::private_dirty_bytes()?;
        let ground = variant.open((count * PAGE_BYTES) as u64)?;
        let made_bytes = machine::private_dirty_bytes()?.saturating_sub(before_bytes);
        let heap = ground.heap(count + BATCH);
        Ok(Cell {
            ground,
            heap,
            objects,
            count,
            rng: Rng::new(SEED),
            stored_bytes: 0,
            base_bytes: machine::private_dirty_bytes()?.saturating_sub(made_bytes),
        })
    }

    /// Puts an object into every place, `insert` and the copy's floor timed; stops where the pool
    /// would take more than `resident_max_bytes`, and says whether it did not have to.
    pub(super) fn fill(
        &mut self,
        bench: &mut Bench,
        round: &mut Round,
        resident_max_bytes: u64,
    ) -> Result<bool> {
        for first in (0..self.count).step_by(BATCH) {
            if !bench.copies.has_room(BATCH * PAGE_BYTES) {
                bench.copies.make_fresh()?;
            }
            let places = BATCH.min(self.count - first);
            let contents = self.contents();
            let heap = &mut self.heap;
            let insert = |at: usize| heap.insert(first + at, contents[at]);
            bench.clock.batch(places, &mut round.insert, insert)?;
            let copies = &mut bench.copies;
            let copy = |at: usize| -> Result<()> {
                copies.append(contents[at]);
                Ok(())
            };
            bench.clock.batch(places, &mut round.insert_floor, copy)?;
            self.stored_bytes += total_bytes(&contents[..places]);
            let resident_bytes = self.ground.resident_bytes().unwrap_or(self.stored_bytes);
            if first % (1 << 14) == 0 && resident_bytes > resident_max_bytes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Overwrites as many random places as there are; [`Copies::warm`] must have been called.
    pub(super) fn overwrite(&mut self, bench: &mut Bench) -> Result<Round> {
        let mut measured = Round::default();
        let round = &mut measured;
        for batch in 0..self.count.div_ceil(BATCH) {
            let contents = self.contents();
            let places: [usize; BATCH] = std::array::from_fn(|_| self.rng.below(self.count));
            if batch % COPY_EVERY == 0 {
                copy(bench, &mut round.insert_floor, &contents)?;
            }
            self.insert_and_remove(bench, round, &contents, &places)?;
            if batch % COPY_EVERY == 1 {
                copy(bench, &mut round.insert_floor, &contents)?;
            }
            if batch % READ_EVERY == 0 {
                self.read(bench, round)?;
            }
            let maintaining = Instant::now();
            self.ground.maintain();
            round.maintenance += maintaining.elapsed();
        }
        let busy = round.operations().total() / IDLE_PART;
        bench.clock.idle(busy, &mut round.idle);
        Ok(measured)
    }

    fn insert_and_remove(
        &mut self,
        bench: &mut Bench,
        round: &mut Round,
        contents: &[&[u8]; BATCH],
        places: &[usize; BATCH],
    ) -> Result<()> {
        let (heap, spare) = (&mut self.heap, self.count);
        let insert = |at: usize| heap.insert(spare + at, contents[at]);
        bench.clock.batch(BATCH, &mut round.insert, insert)?;
        for (at, &place) in places.iter().enumerate() {
            heap.swap(place, spare + at);
            self.stored_bytes -= heap.bytes(spare + at).len() as u64;
        }
        self.stored_bytes += total_bytes(contents);
        let remove = |at: usize| -> Result<()> {
            heap.remove(spare + at);
            Ok(())
        };
        bench.clock.batch(BATCH, &mut round.remove, remove)
    }

    fn read(&mut self, bench: &mut Bench, round: &mut Round) -> Result<()> {
        let places: [usize; BATCH] = std::array::from_fn(|_| self.rng.below(self.count));
        let lengths = places.map(|place| self.heap.bytes(place).len());
        let (heap, sink, copies) = (&self.heap, &mut bench.sink, &mut bench.copies);
        let access = |at: usize| -> Result<()> {
            sink[..lengths[at]].copy_from_slice(heap.bytes(places[at]));
            std::hint::black_box(&mut *sink);
            Ok(())
        };
        bench.clock.batch(BATCH, &mut round.access, access)?;
        let cells: [usize; BATCH] = std::array::from_fn(|_| copies.place());
        let floor = |at: usize| -> Result<()> {
            copies.read(cells[at], &mut sink[..lengths[at]]);
            std::hint::black_box(&mut *sink);
            Ok(())
        };
        bench.clock.batch(BATCH, &mut round.access_floor, floor)
    }

    /// Removes every second object in a random order of places.
    pub(super) fn discard_half(&mut self) {
        let mut places: Vec<u32> = (0..self.count as u32).collect();
        self.rng.shuffle(&mut places);
        for &place in &places[..self.count / 2] {
            self.stored_bytes -= self.heap.bytes(place as usize).len() as u64;
            self.heap.remove(place as usize);
        }
    }

    /// Moves objects together so that blocks become free; false where the variant cannot.
    pub(super) fn compact(&mut self) -> Result<bool> {
        self.heap.compact()
    }

    /// Removes all that is left.
    pub(super) fn empty(&mut self) {
        for place in 0..self.count {
            self.heap.remove(place);
        }
        self.stored_bytes = 0;
        self.ground.trim();
    }

    /// Pool bytes a stored byte.
    pub(super) fn density(&self, bench: &mut Bench) -> Result<f64> {
        Ok(self.pool_bytes(bench)? as f64 / self.stored_bytes as f64)
    }

    /// Memory that a pool has taken and not used yet, in bytes: once it was only filled, that is what
    /// the next objects will use.
    pub(super) fn spare_bytes(&self) -> u64 {
        self.ground.spare_bytes()
    }

    /// The kernel's count for arena and side tables, in bytes, once a pool's spare is given back.
    pub(super) fn pool_bytes(&self, bench: &mut Bench) -> Result<u64> {
        self.ground.trim();
        bench.copies.make_fresh()?;
        Ok(machine::private_dirty_bytes()?.saturating_sub(self.base_bytes))
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// As many objects as a batch takes.
    fn contents(&mut self) -> [&'a [u8]; BATCH] {
        let objects = self.objects;
        std::array::from_fn(|_| objects.draw(&mut self.rng))
    }
}

fn copy(bench: &mut Bench, floor: &mut Latencies, contents: &[&[u8]; BATCH]) -> Result<()> {
    let copies = &mut bench.copies;
    let cells: [usize; BATCH] = std::array::from_fn(|_| copies.place());
    let copy = |at: usize| -> Result<()> {
        copies.overwrite(cells[at], contents[at]);
        Ok(())
    };
    bench.clock.batch(BATCH, floor, copy)
}

fn total_bytes(contents: &[&[u8]]) -> u64 {
    contents.iter().map(|content| content.len() as u64).sum()
}
