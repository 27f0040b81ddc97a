//! Several threads at once: how much faster a store gets, next to the codec alone.
//!
//! The codec alone shares nothing but the machine, so its speed-up is what the machine gives; the
//! ratio of the two speed-ups is what the store's sharing costs. Each thread is pinned to a CPU of
//! its own and has pages of its own, and for the codec a context and an arena of its own. The four
//! measurements of a run (both sides, one thread and several) take turns block by block.

use std::ops::Range;
use std::time::{Duration, Instant};

use uzram::Store;

use crate::error::{Error, Result};
use crate::peers::Side;
use crate::peers::raw_codec::RawCodec;
use crate::progress::Progress;
use crate::report::{Aim, Measured, Ratio};
use crate::rng::Rng;
use crate::sample::Series;
use crate::sink::Sink;
use crate::suite::store::subject::{read_places, write_chunk};
use crate::suite::together::run_together;
use crate::suite::{Options, SUBJECT};
use crate::workload::{CHUNK_PAGES, Case, Generation, Workload};

const AIM: Aim = Aim::AtLeast(0.95);
/// Chunks that a thread handles in one measurement, where there are so many: 32 MiB, so that
/// starting is a per mille.
const BLOCK_CHUNKS_MAX: usize = 4;
/// The cases that are measured with several threads.
pub(crate) const CASES: [Case; 2] = [Case::Overwrite, Case::RandomRead];

/// A store and the codec alone, each ready for several threads.
struct Lanes<'a> {
    workload: &'a Workload,
    cpus: &'a [usize],
    store: Store,
    lanes: Vec<Lane>,
    block_chunks: usize,
    holds: Generation,
}

/// What one thread has for itself.
struct Lane {
    chunks: Range<usize>,
    /// Its places in the order of random reads.
    random: Vec<u32>,
    raw: RawCodec,
    sink: Sink,
}

/// Whose turn, with how many threads.
#[derive(Clone, Copy)]
struct Turn {
    raw: bool,
    threads: usize,
}

/// Measures `CASES` with `options.threads` threads on the first of `cpus`.
pub(crate) fn measure(
    algorithm: &str,
    workload: &Workload,
    case_prefix: &str,
    cpus: &[usize],
    options: &Options,
    progress: &mut Progress,
) -> Result<(Vec<Measured>, Vec<Ratio>)> {
    let cpus = &cpus[..options.threads];
    let mut lanes = Lanes::new(algorithm, workload, cpus)?;
    let (mut results, mut ratios) = (Vec::new(), Vec::new());
    for case in CASES {
        let name = format!("{case_prefix}/{}-{}-threads", case.name(), cpus.len());
        let [ours, theirs] = lanes.speedups(case, &name, options, progress)?;
        for (variant, series) in [(SUBJECT, &ours), ("raw-codec", &theirs)] {
            let Some(spread) = series.spread() else {
                continue;
            };
            results.push(Measured {
                case: name.clone(),
                variant: variant.to_owned(),
                metric: "speedup",
                unit: "x",
                spread,
                working_set_bytes: workload.bytes() as u64,
                pinned: Some(
                    cpus.iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join(","),
                ),
            });
        }
        let sides = ((SUBJECT, &ours), ("raw-codec", &theirs));
        ratios.extend(Ratio::of(&name, "speedup", sides.0, sides.1, Some(AIM)));
    }
    Ok((results, ratios))
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
        let store = Store::builder()
            .size(workload.bytes() as u64)
            .algorithm(algorithm)
            .build()?;
        let lanes = (0..cpus.len())
            .map(|lane| Lane::new(algorithm, workload, lane * each..(lane + 1) * each));
        let lanes = lanes.collect::<Result<Vec<_>>>()?;
        let holds = Generation::First;
        let mut lanes = Lanes {
            workload,
            cpus,
            store,
            lanes,
            block_chunks,
            holds,
        };
        lanes.fill()?;
        Ok(lanes)
    }

    /// The first write, and the warm-up of both sides' memory.
    fn fill(&mut self) -> Result<()> {
        for lane in &mut self.lanes {
            for chunk in lane.chunks.clone() {
                lane.run_raw(self.workload, Case::FirstWrite, chunk, self.holds)?;
                lane.run_store(
                    &self.store,
                    self.workload,
                    Case::FirstWrite,
                    chunk,
                    self.holds,
                )?;
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
        let mut speedups = [Series::default(), Series::default()];
        self.run(case, options, &mut |_| ())?;
        let started = Instant::now();
        let schedule = options.schedule;
        while schedule.wants_more(speedups[0].len(), started.elapsed()) {
            let part = schedule.part(speedups[0].len(), started.elapsed());
            let rates = self.run(case, options, &mut |()| progress.at(what, part))?;
            for (speedup, [one, several]) in speedups.iter_mut().zip(rates) {
                speedup.push(several / one);
            }
        }
        progress.step();
        Ok(speedups)
    }

    /// One run: chunks a second of store and codec, each with one thread and with several.
    fn run(
        &mut self,
        case: Case,
        options: &Options,
        before_block: &mut dyn FnMut(()),
    ) -> Result<[[f64; 2]; 2]> {
        let lanes = self.cpus.len();
        let generation = match (case, self.holds) {
            (Case::Overwrite, Generation::First) => Generation::Second,
            (Case::Overwrite, Generation::Second) => Generation::First,
            (_, holds) => holds,
        };
        let blocks = self.lanes[0].chunks.len() / self.block_chunks;
        let mut times = [[Duration::ZERO; 2]; 2];
        for block in 0..blocks {
            options.stop.check()?;
            before_block(());
            for position in 0..4 {
                let at = (position + block) % 4;
                let turn = Turn {
                    raw: at / 2 == 1,
                    threads: if at % 2 == 0 { 1 } else { lanes },
                };
                // The codec works half the lane away, on pages that are not warm from the store.
                let block = if turn.raw {
                    (block + blocks / 2) % blocks
                } else {
                    block
                };
                times[at / 2][at % 2] += self.turn(case, generation, block, turn)?;
            }
        }
        self.holds = generation;
        let chunks = (blocks * self.block_chunks) as f64;
        let work = [chunks, chunks * lanes as f64];
        Ok(times.map(|times| [0, 1].map(|at| work[at] / times[at].as_secs_f64())))
    }

    /// One block of one or all lanes.
    fn turn(
        &mut self,
        case: Case,
        generation: Generation,
        block: usize,
        turn: Turn,
    ) -> Result<Duration> {
        let (workload, store, block_chunks) = (self.workload, &self.store, self.block_chunks);
        let lanes = self.lanes.iter_mut().zip(self.cpus).take(turn.threads);
        let works = lanes.map(|(lane, &cpu)| {
            let first = lane.chunks.start + block * block_chunks;
            let work = move || {
                (first..first + block_chunks).try_for_each(|chunk| match turn.raw {
                    true => lane.run_raw(workload, case, chunk, generation),
                    false => lane.run_store(store, workload, case, chunk, generation),
                })
            };
            (cpu, work)
        });
        run_together(works.collect())
    }
}

impl Lane {
    fn new(algorithm: &str, workload: &Workload, chunks: Range<usize>) -> Result<Lane> {
        let places = workload.first_place(chunks.start)..workload.first_place(chunks.end);
        let mut random: Vec<u32> = places.map(|place| place as u32).collect();
        Rng::new(chunks.start as u64).shuffle(&mut random);
        let raw = RawCodec::new(algorithm, workload, chunks.clone())?;
        Ok(Lane {
            chunks,
            random,
            raw,
            sink: Sink::new()?,
        })
    }

    fn run_raw(
        &mut self,
        workload: &Workload,
        case: Case,
        chunk: usize,
        generation: Generation,
    ) -> Result<()> {
        if case.is_write() {
            self.raw.rewind_to(workload.first_place(chunk));
            return self.raw.run(workload, case, chunk, generation);
        }
        let places = &self.random[(chunk - self.chunks.start) * CHUNK_PAGES..][..CHUNK_PAGES];
        self.raw.read_places(places)
    }

    fn run_store(
        &mut self,
        store: &Store,
        workload: &Workload,
        case: Case,
        chunk: usize,
        generation: Generation,
    ) -> Result<()> {
        if case.is_write() {
            let content = workload.content(chunk, generation);
            return write_chunk(store, workload.first_place(chunk), content);
        }
        let places = &self.random[(chunk - self.chunks.start) * CHUNK_PAGES..][..CHUNK_PAGES];
        read_places(store, places, &mut self.sink)
    }
}
