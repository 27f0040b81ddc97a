//! Several threads at once: how much faster a store gets, next to the codec alone.
//!
//! The codec alone shares nothing but the machine, so its speed-up is what the machine gives; the
//! ratio of the two speed-ups is what the store's sharing costs. Each thread is pinned to a CPU of
//! its own and has pages of its own, and for the codec a context and an arena of its own. The four
//! measurements of a run (both sides, one thread and several) take turns block by block.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use uzram::Zram;

use super::subject;
use crate::error::{Error, Result};
use crate::figures::Cell;
use crate::peers::Peer;
use crate::peers::raw_codec::RawCodec;
use crate::progress::Progress;
use crate::report::Block;
use crate::sample::Series;
use crate::side::{Pages, Task};
use crate::sink::Sink;
use crate::suite::together::run_together;
use crate::suite::turns::{Runs, Turns};
use crate::suite::{Options, SUBJECT};
use crate::workload::{CHUNK_PAGES, Case, Generation, Workload};
use uzram_testkit::Rng;

/// Chunks that a thread handles in one measurement, where there are so many: 32 MiB, so that
/// starting is a per mille.
const BLOCK_CHUNKS_MAX: usize = 4;
/// The cases that are measured with several threads.
pub(crate) const CASES: [Case; 2] = [Case::Overwrite, Case::RandomRead];

/// A store and the codec alone, each ready for several threads.
struct Lanes<'a> {
    workload: &'a Workload,
    cpus: &'a [usize],
    lanes: Vec<Lane>,
    block_chunks: usize,
    holds: Generation,
}

/// The state of one thread: all but the store is its own.
struct Lane {
    chunks: Range<usize>,
    /// Its places in the order of random reads.
    random: Vec<u32>,
    disk: Arc<Zram>,
    raw: RawCodec,
    sink: Sink,
}

/// Measures `CASES` with a thread on each of `cpus`.
pub(crate) fn measure(
    algorithm: &str,
    workload: &Workload,
    case_prefix: &str,
    cpus: &[usize],
    options: &Options,
    progress: &mut Progress,
    block: &mut Block,
) -> Result<()> {
    let mut lanes = Lanes::new(algorithm, workload, cpus)?;
    let names = [SUBJECT, Peer::RawCodec.name()];
    for case in CASES {
        let name = format!("{case_prefix}/{}-{}-threads", case.name(), cpus.len());
        let speedups = lanes.speedups(case, &name, options, progress)?;
        let cell = Cell::new(name, ("speedup", "x"), workload.bytes() as u64).pinned(cpus);
        cell.add_all(
            &names,
            &speedups,
            |top, bottom| [top, bottom] == names,
            block,
        );
    }
    Ok(())
}

impl<'a> Lanes<'a> {
    fn new(algorithm: &str, workload: &'a Workload, cpus: &'a [usize]) -> Result<Lanes<'a>> {
        let each = workload.chunks() / cpus.len();
        if each == 0 {
            let (threads, most) = (cpus.len(), workload.chunks());
            return Err(Error::Usage(format!(
                "threads {threads}: at most {most} for a working set this small"
            )));
        }
        let block_chunks = each.min(BLOCK_CHUNKS_MAX);
        let each = each / block_chunks * block_chunks;
        let disk = subject::disk(algorithm, workload)?;
        let lanes = (0..cpus.len())
            .map(|lane| Lane::new(algorithm, workload, &disk, lane * each..(lane + 1) * each));
        let mut lanes = Lanes {
            workload,
            cpus,
            lanes: lanes.collect::<Result<_>>()?,
            block_chunks,
            holds: Generation::First,
        };
        lanes.fill()?;
        Ok(lanes)
    }

    /// The first write, and the warm-up of both sides' memory.
    fn fill(&mut self) -> Result<()> {
        for lane in &mut self.lanes {
            for chunk in lane.chunks.clone() {
                for is_raw in [true, false] {
                    lane.run(is_raw, self.workload, Case::FirstWrite, chunk, self.holds)?;
                }
            }
        }
        Ok(())
    }

    /// For each run the speed-up of the store and of the codec alone.
    fn speedups(
        &mut self,
        case: Case,
        what: &str,
        options: &Options,
        progress: &mut Progress,
    ) -> Result<[Series; 2]> {
        let holds = self.holds;
        let turns = Turns {
            what,
            // Each of the two by one thread and by all.
            sides: 4,
            parts: self.lanes[0].chunks.len() / self.block_chunks,
            runs: Runs::AtLeast(0),
            warms_up: true,
        };
        let seconds = turns.measure(options, progress, |turn| {
            self.holds = holds.after(case, turn.run + 1);
            let is_raw = turn.side / 2 == 1;
            let threads = [1, self.cpus.len()][turn.side % 2];
            // The codec works half the lane away, on pages that are not warm from the store.
            let away = if is_raw { turns.parts / 2 } else { 0 };
            let block = (turn.part + away) % turns.parts;
            let time = self.turn(case, block, is_raw, threads)?;
            Ok(time.as_secs_f64() / threads as f64)
        })?;
        Ok([0, 2].map(|side| seconds[side].over(&seconds[side + 1])))
    }

    /// One block of one or all lanes.
    fn turn(&mut self, case: Case, block: usize, is_raw: bool, threads: usize) -> Result<Duration> {
        let (workload, holds, block_chunks) = (self.workload, self.holds, self.block_chunks);
        let lanes = self.lanes.iter_mut().zip(self.cpus).take(threads);
        let works = lanes.map(|(lane, &cpu)| {
            let first = lane.chunks.start + block * block_chunks;
            let work = move || {
                let mut chunks = first..first + block_chunks;
                chunks.try_for_each(|chunk| lane.run(is_raw, workload, case, chunk, holds))
            };
            (cpu, work)
        });
        run_together(works.collect())
    }
}

impl Lane {
    fn new(
        algorithm: &str,
        workload: &Workload,
        disk: &Arc<Zram>,
        chunks: Range<usize>,
    ) -> Result<Lane> {
        let places = workload.first_place(chunks.start)..workload.first_place(chunks.end);
        let mut random: Vec<u32> = places.map(|place| place as u32).collect();
        Rng::new(chunks.start as u64).shuffle(&mut random);
        Ok(Lane {
            raw: RawCodec::new(algorithm, workload, chunks.clone())?,
            chunks,
            random,
            disk: Arc::clone(disk),
            sink: Sink::new()?,
        })
    }

    fn run(
        &mut self,
        is_raw: bool,
        workload: &Workload,
        case: Case,
        chunk: usize,
        generation: Generation,
    ) -> Result<()> {
        let work = match case.is_write() {
            true => workload.work(case, chunk, generation),
            false => {
                let first = (chunk - self.chunks.start) * CHUNK_PAGES;
                Task::ReadAt(&self.random[first..][..CHUNK_PAGES])
            }
        };
        if is_raw && case.is_write() {
            self.raw.rewind_to(workload.first_place(chunk));
        }
        match is_raw {
            true => self.raw.run(work, &mut self.sink),
            false => self.disk.run(work, &mut self.sink),
        }
    }
}
