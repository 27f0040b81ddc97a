//! Two threads, or more, that overwrite their own objects of one variant: how much faster than one,
//! next to the copy alone of the same bytes.
//!
//! Each thread has its CPU, its places and, for the copy, its memory; the threads take turns at being the one
//! that works alone. There are as many objects as the aims are for: of few, one thread's part stays in
//! caches where that of several does not, and what is measured is the caches. Beside the default pool stands the
//! same pool once a thread: two that share nothing are as fast as the machine lets two be, and what is
//! lost to locks is the difference.

use std::ops::Range;

use super::cells::{Cells, Metric};
use super::draw::Packed;
use super::heap::{Copies, Ground, Heap, Variant};
use super::row;
use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::progress::Progress;
use crate::report::{Block, Column, Ratio};
use crate::rng::Rng;
use crate::sample::Series;
use crate::suite::Options;
use crate::suite::together::run_together;

pub(super) const SPEEDUP: Metric = ("speedup", "x");
/// The variant name of the copy alone.
pub(super) const COPY: &str = "memcpy";
/// What a pool's name has where each thread has one of its own.
const APART: &str = "-apart";
/// Turns of each measurement in one run; with each number of threads that divides it, all are alone as often.
const TURNS: usize = 4;
/// Memory of all copies alone, over that of each thread's.
const COPY_PARTS: usize = 4;

/// What one thread overwrites.
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
struct Side<'a> {
    name: String,
    /// What the lanes' heaps share: one, or one a lane; none of the copy.
    grounds: Vec<Ground>,
    lanes: Vec<Lane<'a>>,
    speedups: Series,
}

/// Steps of a block, for the estimate of the time left.
pub(super) fn steps(options: &Options) -> usize {
    usize::from(options.threads > 1)
}

/// The variant name of `pool` where each thread has one of its own.
pub(super) fn apart(pool: &str) -> String {
    format!("{pool}{APART}")
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
    let pinned: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    let pinned = pinned.join(",");
    let bytes = (count * PAGE_BYTES) as u64;
    let result = |side: &str, series: &Series, bytes: u64| {
        row(&case, side, SPEEDUP, series, bytes, Some(&pinned))
    };
    let mut floors = Vec::new();
    for (at, &variant) in cells.variants.iter().enumerate() {
        progress.at(&format!("{case}, {}", variant.name()), 0.0);
        let mut sides = sides(variant, at == 0, cells, objects, count / threads)?;
        run(&mut sides, cells, cpus)?;
        let floor = sides.pop().expect("the copy is the last").speedups;
        for side in &sides {
            block
                .results
                .extend(result(&side.name, &side.speedups, bytes));
            let both = ((side.name.as_str(), &side.speedups), (COPY, &floor));
            let ratio = Ratio::of(&case, SPEEDUP.0, both.0, both.1, None);
            block.ratios.extend(ratio);
        }
        if let [shared, apart] = &sides[..] {
            let both = [shared, apart].map(|side| (side.name.as_str(), &side.speedups));
            let ratio = Ratio::of(&case, SPEEDUP.0, both[0], both[1], None);
            block.ratios.extend(ratio);
        }
        floors.extend(floor.values().iter().copied());
    }
    block.results.extend(result(COPY, &Series::from(floors), 0));
    progress.step();
    Ok(())
}

/// The variant's lanes, those with a pool each if `apart`, and the copy's.
fn sides<'a>(
    variant: Variant,
    apart: bool,
    cells: &Cells<'_>,
    objects: &'a Packed,
    places: usize,
) -> Result<Vec<Side<'a>>> {
    let threads = cells.options.threads;
    let size_bytes = (threads * places * PAGE_BYTES) as u64;
    let side = |name: String, grounds: usize| -> Result<Side<'a>> {
        let grounds: Result<Vec<Ground>> = (0..grounds).map(|_| variant.open(size_bytes)).collect();
        let grounds = grounds?;
        let heaps = (0..threads).map(|lane| Memory::Heap {
            heap: grounds[lane % grounds.len()].heap(places + 1),
            places,
        });
        let heaps = heaps.collect();
        Ok(Side::new(name, grounds, heaps, objects))
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
    sides.push(Side::new(COPY.to_owned(), Vec::new(), copies, objects));
    Ok(sides)
}

/// Fills the lanes, overwrites as much as there is, and takes each side's speed-up run by run.
fn run(sides: &mut [Side<'_>], cells: &Cells<'_>, cpus: &[usize]) -> Result<()> {
    for side in &mut *sides {
        side.work(cpus, 0..cpus.len(), Lane::fill)?;
        side.work(cpus, 0..cpus.len(), Lane::overwrite_all)?;
    }
    let overwrites = cells.scale.thread_overwrites;
    let work = |lane: &mut Lane<'_>| (0..overwrites).try_for_each(|_| lane.overwrite());
    for _ in 0..cells.scale.thread_runs {
        // Of each side the time of one alone, and of all.
        let mut seconds = vec![[0.0; 2]; sides.len()];
        for turn in 0..TURNS {
            for at in 0..2 * sides.len() {
                cells.options.stop.check()?;
                // The order changes from turn to turn.
                let at = (at + turn) % (2 * sides.len());
                let lanes = match at % 2 {
                    0 => turn % cpus.len()..turn % cpus.len() + 1,
                    _ => 0..cpus.len(),
                };
                seconds[at / 2][at % 2] += sides[at / 2].work(cpus, lanes, work)?;
                // As a store's does beside its writers.
                sides[at / 2].grounds.iter().for_each(Ground::maintain);
            }
        }
        for (side, [one, several]) in sides.iter_mut().zip(seconds) {
            side.speedups.push(one * cpus.len() as f64 / several);
        }
    }
    Ok(())
}

impl<'a> Side<'a> {
    fn new(
        name: String,
        grounds: Vec<Ground>,
        memories: Vec<Memory>,
        objects: &'a Packed,
    ) -> Side<'a> {
        let lanes = memories.into_iter().zip(0..).map(|(memory, seed)| Lane {
            memory,
            objects,
            rng: Rng::new(seed),
        });
        Side {
            name,
            grounds,
            lanes: lanes.collect(),
            speedups: Series::default(),
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
