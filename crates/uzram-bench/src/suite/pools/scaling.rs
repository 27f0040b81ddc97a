//! Two threads, or more, that overwrite their own objects of one variant: how much faster than one,
//! next to the copy alone of the same bytes.
//!
//! The four measurements of a run (both sides, one thread and several) take turns. Each of several threads
//! has its CPU, its places and, for the copy, its memory. One thread alone has those of all in turn: on its
//! own share it would work in a part of the memory, and gain by caches what several threads cannot have.

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
/// Turns of each measurement in one run.
const TURNS: usize = 4;
/// Memory of all copies alone, over that of each thread's.
const COPY_PARTS: usize = 8;

/// What each of several threads has.
struct Lane<'a> {
    heap: Box<dyn Heap>,
    places: usize,
    copies: Copies,
    objects: &'a Packed,
    rng: Rng,
}

/// Steps of a block, for the estimate of the time left.
pub(super) fn steps(options: &Options) -> usize {
    usize::from(options.threads > 1)
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
    let count = cells.scale.alternated_objects;
    let mut floors = Vec::new();
    for &variant in cells.variants {
        progress.at(&format!("{case}, {}", variant.name()), 0.0);
        let [ours, floor] = speedups(variant, cells, objects, count, cpus)?;
        let bytes = (count * PAGE_BYTES) as u64;
        block.results.extend(row(
            &case,
            variant.name(),
            SPEEDUP,
            &ours,
            bytes,
            Some(&pinned),
        ));
        let sides = ((variant.name(), &ours), (COPY, &floor));
        block
            .ratios
            .extend(Ratio::of(&case, SPEEDUP.0, sides.0, sides.1, None));
        floors.push(floor);
    }
    let all: Vec<f64> = floors
        .iter()
        .flat_map(|floor| floor.values().iter().copied())
        .collect();
    let copy = row(&case, COPY, SPEEDUP, &Series::from(all), 0, Some(&pinned));
    block.results.extend(copy);
    progress.step();
    Ok(())
}

/// For each run the speed-up of the variant and of the copy.
fn speedups(
    variant: Variant,
    cells: &Cells<'_>,
    objects: &Packed,
    count: usize,
    cpus: &[usize],
) -> Result<[Series; 2]> {
    let ground = variant.open((count * PAGE_BYTES) as u64)?;
    let (places, copy_bytes) = (count / cpus.len(), cells.scale.copy_bytes / COPY_PARTS);
    let lanes = (0..cpus.len()).map(|lane| Lane::new(&ground, objects, places, copy_bytes, lane));
    let mut lanes = lanes.collect::<Result<Vec<_>>>()?;
    let mut speedups = [Series::default(), Series::default()];
    for _ in 0..cells.scale.thread_runs {
        let mut seconds = [[0.0; 2]; 2];
        for turn in 0..4 * TURNS {
            cells.options.stop.check()?;
            // The order of the four changes from turn to turn.
            let at = (turn + turn / 4) % 4;
            let (copies, threads) = (at / 2, [1, cpus.len()][at % 2]);
            let overwrites = cells.scale.thread_overwrites;
            let shares = lanes.chunks_mut(cpus.len() / threads).zip(cpus);
            let works = shares.map(|(share, &cpu)| {
                let work = move || match copies {
                    0 => in_turn(share, overwrites, Lane::overwrite),
                    _ => in_turn(share, overwrites, Lane::copy),
                };
                (cpu, work)
            });
            seconds[copies][at % 2] += run_together(works.collect())?.as_secs_f64();
        }
        for (series, [one, several]) in speedups.iter_mut().zip(seconds) {
            series.push(one * cpus.len() as f64 / several);
        }
    }
    Ok(speedups)
}

/// `count` times the work, in one lane after another.
fn in_turn<'a>(
    lanes: &mut [Lane<'a>],
    count: usize,
    work: impl Fn(&mut Lane<'a>) -> Result<()>,
) -> Result<()> {
    for _ in 0..count / lanes.len() {
        for lane in &mut *lanes {
            work(lane)?;
        }
    }
    Ok(())
}

impl<'a> Lane<'a> {
    fn new(
        ground: &Ground,
        objects: &'a Packed,
        places: usize,
        copy_bytes: usize,
        lane: usize,
    ) -> Result<Lane<'a>> {
        let mut copies = Copies::new(copy_bytes)?;
        copies.warm();
        let mut lane = Lane {
            heap: ground.heap(places + 1),
            places,
            copies,
            objects,
            rng: Rng::new(lane as u64),
        };
        for place in 0..places {
            lane.heap.insert(place, objects.draw(&mut lane.rng))?;
        }
        Ok(lane)
    }

    fn overwrite(&mut self) -> Result<()> {
        let content = self.objects.draw(&mut self.rng);
        self.heap.insert(self.places, content)?;
        self.heap.swap(self.rng.below(self.places), self.places);
        self.heap.remove(self.places);
        Ok(())
    }

    fn copy(&mut self) -> Result<()> {
        let content = self.objects.draw(&mut self.rng);
        let place = self.copies.place();
        self.copies.overwrite(place, content);
        Ok(())
    }
}
