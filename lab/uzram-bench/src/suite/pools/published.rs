//! The published comparison of ztree with zsmalloc, z3fold and zbud, done again in user space.
//!
//! Source of the figures: A. Badmaev and V. Wool, "mm: add ztree - new allocator for use via zpool
//! API", linux-mm, March 2022; an arm64 virtual machine, zram over zpool, disks of 1000M, 1500M and
//! 2G. Two fio jobs at once on one disk, of `buffer_compress_percentage` 50 and 70, each
//! `bs=4k numjobs=1 refill_buffers scramble_buffers=1`, one after another: sequential write, read, mixed,
//! then random mixed.
//!
//! Here each stream is a thread on its CPU, and objects are what lz4 leaves of pages as fio fills
//! them. Both jobs cover the whole disk: a phase has two passes, and the streams change halves in
//! between, so that the second pass of the writes replaces the other stream's objects. Pools are
//! called back to back, without the codec between the calls: caches are warmer than under zram. In front of
//! each variant as much memory as the disk is touched and given back, since a host that has taken free
//! memory away takes milliseconds to back 2 MiB again, and whoever came first would pay for all.

use super::churn::Round;
use super::clock::{Clock, IDLE_PART};
use super::draw::Packed;
use super::heap::{Copies, Ground, Variant};
use super::places::Heap;
use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::machine;
use crate::stop::Stop;
use crate::suite::together::run_together;
use uzram_testkit::Rng;

/// Published disk sizes, in MiB: 1000M, 1500M, 2G.
pub(super) const DISKS_MIB: [usize; 3] = [1000, 1500, 2048];
/// Distinct pages of each stream.
const STREAM_PAGES: usize = 1024;
/// `buffer_compress_percentage` of the two streams.
const PERCENTAGES: [usize; 2] = [50, 70];
const ALGORITHM: &str = "lz4";
/// fio's `randseed`.
const SEED: u64 = 100;
/// Operations between two looks at Ctrl-C.
const STOP_EVERY: usize = 1 << 16;

/// One of the phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Write,
    Read,
    ReadWrite,
    RandomReadWrite,
}

const PHASES: [Phase; 4] = [
    Phase::Write,
    Phase::Read,
    Phase::ReadWrite,
    Phase::RandomReadWrite,
];

/// The two streams' contents.
pub(super) struct Streams([Packed; 2]);

impl Streams {
    pub(super) fn new() -> Result<Streams> {
        let [half, more] = PERCENTAGES.map(|percentage| {
            Packed::new(&crate::synthetic::fio(percentage, STREAM_PAGES), ALGORITHM)
        });
        Ok(Streams([half?, more?]))
    }
}

/// The figures of a variant over all phases.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) done: Round,
    /// Pool bytes a stored byte after the last phase, by the kernel's count.
    pub(super) density: f64,
}

impl Outcome {
    /// The operations' time over the empty loop's.
    pub(super) fn longer_than_idle(&self) -> f64 {
        self.done.operations().total_ns as f64 / self.done.idle.total_ns.max(1) as f64
    }
}

/// All phases on a fresh disk of `pages` pages.
pub(super) fn run(
    variant: Variant,
    streams: &Streams,
    pages: usize,
    cpus: &[usize],
    stop: &Stop,
) -> Result<Outcome> {
    super::heap::forget_the_past();
    Copies::new(pages * PAGE_BYTES)?.warm();
    let before_bytes = machine::private_dirty_bytes()?;
    let ground = variant.open((pages * PAGE_BYTES) as u64)?;
    let made_bytes = machine::private_dirty_bytes()?.saturating_sub(before_bytes);
    let mut disk = Disk::new(&ground, pages, streams, cpus);
    let base_bytes = machine::private_dirty_bytes()?.saturating_sub(made_bytes);
    let mut done = Round::default();
    for phase in PHASES {
        for pass in 0..2 {
            done.add(&disk.pass(phase, pass, stop)?);
        }
    }
    ground.trim();
    let pool_bytes = machine::private_dirty_bytes()?.saturating_sub(base_bytes);
    let busy = done.operations().total() / IDLE_PART;
    Clock::calibrate().idle(busy, &mut done.idle);
    let density = pool_bytes as f64 / disk.stored_bytes() as f64;
    Ok(Outcome { done, density })
}

/// A disk in two halves, each in the hands of one stream at a time.
struct Disk<'a> {
    halves: [Box<dyn Heap>; 2],
    /// Pages of a half; behind them one place for what is on its way in or out.
    pages: usize,
    order: Vec<u32>,
    streams: &'a Streams,
    cpus: [usize; 2],
}

impl<'a> Disk<'a> {
    fn new(ground: &Ground, pages: usize, streams: &'a Streams, cpus: &[usize]) -> Disk<'a> {
        let pages = pages / 2;
        let mut order: Vec<u32> = (0..pages as u32).collect();
        Rng::new(SEED).shuffle(&mut order);
        Disk {
            halves: [ground.heap(pages + 1), ground.heap(pages + 1)],
            pages,
            order,
            streams,
            cpus: [cpus[0], cpus[cpus.len() - 1]],
        }
    }

    fn pass(&mut self, phase: Phase, pass: usize, stop: &Stop) -> Result<Round> {
        let mut outcomes = [Round::default(), Round::default()];
        let (pages, order, streams) = (self.pages, &self.order, self.streams);
        let hands = self.halves.iter_mut().zip(&mut outcomes).enumerate();
        let works = hands.map(|(half, (heap, outcome))| {
            let stream = (half + pass) % 2;
            let mut hand = Hand {
                heap: &mut **heap,
                pages,
                objects: &streams.0[stream],
                rng: Rng::new(SEED + (phase as u64) * 4 + (pass * 2 + stream) as u64),
                outcome,
            };
            let work = move || hand.sweep(phase, order, stop);
            (self.cpus[stream], work)
        });
        run_together(works.collect())?;
        let [mut both, other] = outcomes;
        both.add(&other);
        Ok(both)
    }

    fn stored_bytes(&self) -> u64 {
        let halves = self.halves.iter();
        let bytes = halves.flat_map(|half| (0..self.pages).map(|at| half.bytes(at).len() as u64));
        bytes.sum()
    }
}

/// A stream at work on a half.
struct Hand<'a> {
    heap: &'a mut dyn Heap,
    pages: usize,
    objects: &'a Packed,
    rng: Rng,
    outcome: &'a mut Round,
}

impl Hand<'_> {
    fn sweep(&mut self, phase: Phase, order: &[u32], stop: &Stop) -> Result<()> {
        for (turn, &random) in order.iter().enumerate() {
            if turn % STOP_EVERY == 0 {
                stop.check()?;
            }
            let place = match phase {
                Phase::RandomReadWrite => random as usize,
                _ => turn,
            };
            let reads = match phase {
                Phase::Write => false,
                Phase::Read => true,
                Phase::ReadWrite | Phase::RandomReadWrite => self.rng.next() & 1 == 0,
            };
            match reads {
                true => self.read(place),
                false => self.write(place)?,
            }
        }
        Ok(())
    }

    /// As a store does: the new object in, then the old one out.
    fn write(&mut self, place: usize) -> Result<()> {
        let content = self.objects.draw(&mut self.rng);
        let spare = self.pages;
        Clock::once(&mut self.outcome.insert, || {
            self.heap.insert(spare, content)
        })?;
        self.heap.swap(place, spare);
        if !self.heap.bytes(spare).is_empty() {
            Clock::once(&mut self.outcome.remove, || self.heap.remove(spare));
        }
        Ok(())
    }

    /// Up to the object's first byte: what is done with the bytes is the codec's.
    fn read(&mut self, place: usize) {
        let heap = &self.heap;
        Clock::once(&mut self.outcome.access, || {
            std::hint::black_box(heap.bytes(place).first().copied())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_covers_the_disk_once_for_each_stream() {
        let streams = Streams::new().unwrap();
        let cpus = machine::allowed_cpus();
        for variant in Variant::all(&[]) {
            let outcome = run(variant, &streams, 512, &cpus, &Stop::default()).unwrap();
            let (writes, reads) = (outcome.done.insert.count(), outcome.done.access.count());
            // Write and read twice 512 each, and twice that in the mixed phases.
            assert_eq!(writes + reads, 8 * 512);
            assert!((1300..2800).contains(&writes), "{writes}");
            // All but the first 512 replace an object.
            assert_eq!(outcome.done.remove.count(), writes - 512);
        }
    }
}
