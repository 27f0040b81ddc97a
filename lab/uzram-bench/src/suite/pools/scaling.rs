//! Two threads, or more, that overwrite their own objects of one variant: how much faster than one,
//! next to the copy alone of the same bytes.
//!
//! Each thread has its CPU, its places and, for the copy, its memory; the threads take turns at being the one
//! that works alone. There are as many objects as the aims are for: of few, one thread's part stays in
//! caches where that of several does not, and what is measured is the caches. Beside the default pool stands the
//! same pool once a thread: two that share nothing are as fast as the machine lets two be, and what is
//! lost to locks is the difference.

use std::ops::Range;

use super::draw::Packed;
use super::heap::{Copies, Ground, Variant};
use super::metrics::{COPY, SPEEDUP, apart};
use super::places::Heap;
use super::scope::Cells;
use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::figures::Cell;
use crate::progress::Progress;
use crate::report::{Block, Column};
use crate::sample::Series;
use crate::side::Side;
use crate::suite::Options;
use crate::suite::together::run_together;
use crate::suite::turns::{Runs, Turns};
use uzram_testkit::Rng;

/// Parts of a run; with each number of threads that divides them, all are alone as often.
const PARTS: usize = 4;
/// Memory of all copies alone, over that of each thread's.
const COPY_PARTS: usize = 4;

/// The objects that one thread overwrites.
struct Lane<'a> {
    memory: Memory,
    objects: &'a Packed,
    rng: Rng,
}

enum Memory {
    Heap { heap: Box<dyn Heap>, places: usize },
    Copies(Copies),
}

/// The lanes of a variant, or of the copy alone.
struct Lanes<'a> {
    /// The ground that the lanes' heaps share: one, or one per lane; none for the copy.
    grounds: Vec<Ground>,
    lanes: Vec<Lane<'a>>,
}

/// Steps of a block, for the estimate of the time left.
pub(super) fn steps(options: &Options, variants: &[Variant]) -> usize {
    if options.threads > 1 {
        variants.len()
    } else {
        0
    }
}

/// The name of the case.
pub(super) fn case(cells: &Cells<'_>) -> String {
    format!(
        "{}/overwrite-{}-threads",
        cells.prefix(),
        cells.options.threads
    )
}

/// The column of the speed-ups, where there are several threads.
pub(super) fn column(cells: &Cells<'_>) -> Option<Column> {
    (cells.options.threads > 1).then(|| {
        let head = format!("{} threads", cells.options.threads);
        Column::median(&head, &case(cells), SPEEDUP.0)
    })
}

/// The speed-ups of every variant and of the copy beside it, and their ratios.
pub(super) fn measure(
    cells: &Cells<'_>,
    objects: &Packed,
    count: usize,
    block: &mut Block,
    progress: &mut Progress,
) -> Result<()> {
    let threads = cells.options.threads;
    if threads < 2 {
        return Ok(());
    }
    let (case, cpus) = (case(cells), &cells.cpus[..threads]);
    let bytes = (count * PAGE_BYTES) as u64;
    let cell = Cell::new(case.as_str(), SPEEDUP, bytes).pinned(cpus);
    let mut floors = Vec::new();
    for (at, &variant) in cells.variants.iter().enumerate() {
        let mut sides = sides(variant, at == 0, cells, objects, count / threads)?;
        let mut speedups = run(&mut sides, cells, cpus, &case, progress)?;
        let floor = speedups.pop().expect("the copy is the last");
        let speedups: Vec<(&str, &Series)> =
            Side::names(&sides).into_iter().zip(&speedups).collect();
        for side in &speedups {
            cell.add(side.0, side.1, block);
            cell.compare(*side, (COPY, &floor), block);
        }
        if let [shared, apart] = speedups[..] {
            cell.compare(shared, apart, block);
        }
        floors.extend(floor.values().iter().copied());
    }
    let floors = Series::from(floors);
    Cell {
        working_set_bytes: 0,
        ..cell
    }
    .add(COPY, &floors, block);
    Ok(())
}

/// The variant's lanes, those with a pool each if `apart`, and the copy's.
fn sides<'a>(
    variant: Variant,
    apart: bool,
    cells: &Cells<'_>,
    objects: &'a Packed,
    places: usize,
) -> Result<Vec<Side<Lanes<'a>>>> {
    let threads = cells.options.threads;
    let size_bytes = (threads * places * PAGE_BYTES) as u64;
    let side = |name: String, grounds: usize| -> Result<Side<Lanes<'a>>> {
        let grounds: Result<Vec<Ground>> = (0..grounds).map(|_| variant.open(size_bytes)).collect();
        let grounds = grounds?;
        let heaps = (0..threads).map(|lane| Memory::Heap {
            heap: grounds[lane % grounds.len()].heap(places + 1),
            places,
        });
        let heaps = heaps.collect();
        Ok(Side::new(name, Lanes::new(grounds, heaps, objects)))
    };
    let mut sides = vec![side(variant.name().to_owned(), 1)?];
    if apart {
        sides.push(side(self::apart(variant.name()), threads)?);
    }
    let copies = (0..threads).map(|_| {
        let mut copies = Copies::new(cells.scale.copy_bytes / COPY_PARTS)?;
        copies.warm();
        Ok(Memory::Copies(copies))
    });
    let copies = copies.collect::<Result<Vec<Memory>>>()?;
    sides.push(Side::new(COPY, Lanes::new(Vec::new(), copies, objects)));
    Ok(sides)
}

/// Fills the lanes, overwrites as much as there is, and takes each side's speed-up run by run.
fn run(
    sides: &mut [Side<Lanes<'_>>],
    cells: &Cells<'_>,
    cpus: &[usize],
    what: &str,
    progress: &mut Progress,
) -> Result<Vec<Series>> {
    for side in &mut *sides {
        side.driven.work(cpus, 0..cpus.len(), Lane::fill)?;
        side.driven.work(cpus, 0..cpus.len(), Lane::overwrite_all)?;
    }
    let overwrites = cells.scale.thread_overwrites;
    let work = |lane: &mut Lane<'_>| (0..overwrites).try_for_each(|_| lane.overwrite());
    let turns = Turns {
        what,
        // Of each side one lane alone, and all.
        sides: 2 * sides.len(),
        parts: PARTS,
        runs: Runs::Exactly(cells.scale.thread_runs),
        warms_up: false,
    };
    let seconds = turns.measure(cells.options, progress, |turn| {
        let lanes = match turn.side % 2 {
            0 => turn.part % cpus.len()..turn.part % cpus.len() + 1,
            _ => 0..cpus.len(),
        };
        let (side, threads) = (&mut sides[turn.side / 2].driven, lanes.len() as f64);
        let seconds = side.work(cpus, lanes, work)?;
        // As a store's does beside its writers.
        side.grounds.iter().for_each(Ground::maintain);
        Ok(seconds / threads)
    })?;
    let speedups = seconds.chunks_exact(2).map(|both| both[0].over(&both[1]));
    Ok(speedups.collect())
}

impl<'a> Lanes<'a> {
    fn new(grounds: Vec<Ground>, memories: Vec<Memory>, objects: &'a Packed) -> Lanes<'a> {
        let lanes = memories.into_iter().zip(0..).map(|(memory, seed)| Lane {
            memory,
            objects,
            rng: Rng::new(seed),
        });
        Lanes {
            grounds,
            lanes: lanes.collect(),
        }
    }

    /// Does the work in these lanes at once, each on its CPU; the seconds that it took.
    fn work(
        &mut self,
        cpus: &[usize],
        lanes: Range<usize>,
        work: impl Fn(&mut Lane<'a>) -> Result<()> + Sync,
    ) -> Result<f64> {
        let work = &work;
        let cpus = cpus[lanes.clone()].iter().copied();
        let lanes = self.lanes[lanes].iter_mut();
        let works = cpus.zip(lanes.map(|lane| move || work(lane)));
        Ok(run_together(works.collect())?.as_secs_f64())
    }
}

impl Lane<'_> {
    fn fill(&mut self) -> Result<()> {
        if let Memory::Heap { heap, places } = &mut self.memory {
            for place in 0..*places {
                heap.insert(place, self.objects.draw(&mut self.rng))?;
            }
        }
        Ok(())
    }

    /// As often as there are places.
    fn overwrite_all(&mut self) -> Result<()> {
        match &self.memory {
            Memory::Heap { places, .. } => (0..*places).try_for_each(|_| self.overwrite()),
            Memory::Copies(_) => Ok(()),
        }
    }

    fn overwrite(&mut self) -> Result<()> {
        let content = self.objects.draw(&mut self.rng);
        match &mut self.memory {
            Memory::Heap { heap, places } => {
                heap.insert(*places, content)?;
                heap.swap(self.rng.below(*places), *places);
                heap.remove(*places);
            }
            Memory::Copies(copies) => {
                let place = copies.place();
                copies.overwrite(place, content);
            }
        }
        Ok(())
    }
}
