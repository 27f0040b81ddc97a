//! The measurement of a choice: memory and cost.
//!
//! **Memory.** Each unit of the sample is put into a store of one unit, which tells the result: an
//! object of some size, a raw one, or none. Then a real store with the chosen pool is filled with
//! objects of exactly these sizes, over and over until they take 32 MiB, and its memory is read.
//! In a store of a few megabytes, blocks that are not full yet would count for more than the
//! choices differ. The sizes go in through a codec that produces them and compresses nothing.
//!
//! **Cost.** A second store, with the codec itself, holds the whole sample. Pages of 4 KiB at
//! random places are overwritten and read for some milliseconds at a time. Same-filled pages are
//! left out: they cost next to nothing and would flatter all choices. The sample fits the caches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uzram::{
    Codec, Compression, Compressor, DecompressShared, Decompressor, Malformed, PageIndex,
    PageState, Store, Unit,
};

use super::choice::Choice;
use super::split::{Split, is_same_filled};
use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::sample::{Series, Spread};
use crate::stop::Stop;

/// Operations that are timed together, unless they take longer than the limit.
const BATCH: u32 = 16;
const BATCH_LIMIT: Duration = Duration::from_micros(500);
/// Most units of a store that weighs a choice, in bytes before compression.
const POPULATION_MAX_BYTES: usize = 512 << 20;
/// A batch that takes this many times as long as the median was interrupted.
const INTERRUPTED_FROM: f64 = 4.0;

/// The times of measuring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) runs: usize,
    /// Time of a run of writes, and of one of reads.
    pub(super) run: Duration,
    /// Objects that a store is filled with to weigh a choice, in bytes.
    pub(super) objects_bytes: usize,
}

impl Effort {
    pub(super) fn new(quick: bool) -> Effort {
        let milliseconds = if quick { 3 } else { 6 };
        Effort {
            runs: 5,
            run: Duration::from_millis(milliseconds),
            objects_bytes: 32 << 20,
        }
    }
}

/// The measurements of a choice.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// Memory saved: 0 nothing, 1 everything; below 0 it costs more.
    pub(super) saved: f64,
    /// Bytes of the pages over the pool's memory, same-filled ones left out of both.
    pub(super) ratio: f64,
    pub(super) times: Times,
}

/// Nanoseconds to put a 4 KiB page in, and to get one out, run by run; at least one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) writes: Series,
    pub(super) reads: Series,
}

impl Times {
    pub(super) fn write_ns(&self) -> Spread {
        self.writes.spread().expect("there is at least one run")
    }

    pub(super) fn read_ns(&self) -> Spread {
        self.reads.spread().expect("there is at least one run")
    }

    /// Appends the runs of `more`.
    pub(super) fn extend(&mut self, more: &Times) {
        for (own, more) in [
            (&mut self.writes, &more.writes),
            (&mut self.reads, &more.reads),
        ] {
            for value in more.values() {
                own.push(*value);
            }
        }
    }
}

impl Figures {
    /// Nanoseconds per page, in and out. The least of the runs counts, because other processes
    /// only ever add to it.
    pub(super) fn cost_ns(&self) -> f64 {
        self.times.write_ns().min + self.times.read_ns().min
    }

    /// Share of the memory that the pages still take.
    pub(super) fn remaining(&self) -> f64 {
        1.0 - self.saved
    }
}

/// A choice with its measurements.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub(super) choice: Choice,
    pub(super) figures: Figures,
    /// No other is at least as good in memory and in cost and better in one of them.
    pub(super) is_on_front: bool,
    /// It is not the recommended one, and as good within the margins of the rule.
    pub(super) is_tied: bool,
}

/// A choice and the pages that it is tried on.
pub(super) struct Measuring<'a> {
    choice: &'a Choice,
    split: &'a Split,
    compression: Arc<Compression>,
    /// All pages of the source, sampled or not, in bytes.
    stored_bytes: f64,
}

impl<'a> Measuring<'a> {
    /// A choice for `stored_bytes` of pages like these.
    pub(super) fn new(
        choice: &'a Choice,
        split: &'a Split,
        stored_bytes: f64,
    ) -> Result<Measuring<'a>> {
        let compression = choice.compression()?;
        Ok(Measuring {
            choice,
            split,
            compression,
            stored_bytes,
        })
    }

    pub(super) fn run(&self, effort: Effort, stop: &Stop) -> Result<Figures> {
        let weight = self.weigh(&self.split.judged, effort)?;
        stop.check()?;
        let times = self.time(effort, stop)?;
        // All the pages share one dictionary.
        let dictionary = self.choice.setting.dictionary_bytes as f64 / self.stored_bytes;
        Ok(Figures {
            saved: weight.saved - dictionary,
            ratio: weight.ratio,
            times,
        })
    }

    /// Measures the cost once more and adds the runs.
    pub(super) fn time_again(
        &self,
        figures: &mut Figures,
        effort: Effort,
        stop: &Stop,
    ) -> Result<()> {
        figures.times.extend(&self.time(effort, stop)?);
        Ok(())
    }

    fn weigh(&self, pages: &[u8], effort: Effort) -> Result<Weight> {
        let (unit, pool) = (self.choice.unit, self.choice.pool);
        let sizes = states(&self.compression, pages, pool)?;
        weigh(&sizes, unit, pool, effort.objects_bytes)
    }

    fn time(&self, effort: Effort, stop: &Stop) -> Result<Times> {
        let pages: Vec<&[u8]> = super::split::pages_of(&self.split.judged).collect();
        let store = Store::builder()
            .size((pages.len() * PAGE_BYTES) as u64)
            .compression(Arc::clone(&self.compression))
            .pool(self.choice.pool)
            .build()?;
        let unit = self.choice.unit.bytes();
        for (index, content) in (0..).zip(pages.chunks_exact(unit / PAGE_BYTES)) {
            store.write(PageIndex(index), &content.concat())?;
        }
        // Places and contents: those that a codec has work with.
        let busy: Vec<usize> = (0..pages.len())
            .filter(|&at| !is_same_filled(pages[at]))
            .collect();
        let mut rng = fastrand::Rng::with_seed(0xadd);
        let mut page = vec![0; PAGE_BYTES];
        let mut times = Times::default();
        // The first run warms up.
        for run in 0..=effort.runs {
            stop.check()?;
            let write = timed(effort.run, || {
                let (place, from) = (busy[rng.usize(..busy.len())], busy[rng.usize(..busy.len())]);
                put(&store, place, pages[from])
            })?;
            let read = timed(effort.run, || {
                get(&store, busy[rng.usize(..busy.len())], &mut page)
            })?;
            if run > 0 {
                times.writes.push(write);
                times.reads.push(read);
            }
        }
        Ok(times)
    }
}

/// Nanoseconds per operation, over as many as fit into `at_least`.
///
/// Batches in which another process had the CPU stand out by milliseconds and are left out.
fn timed(at_least: Duration, mut operation: impl FnMut() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    let mut batches = Vec::new();
    while started.elapsed() < at_least || batches.is_empty() {
        let batch = Instant::now();
        let mut operations = 0;
        while operations < BATCH && batch.elapsed() < BATCH_LIMIT {
            operation()?;
            operations += 1;
        }
        batches.push(batch.elapsed().as_nanos() as f64 / f64::from(operations));
    }
    batches.sort_by(f64::total_cmp);
    let most = batches[batches.len() / 2] * INTERRUPTED_FROM;
    let kept = batches.iter().copied().take_while(|&time| time <= most);
    let (count, sum) = kept.fold((0.0, 0.0), |(count, sum), time| (count + 1.0, sum + time));
    Ok(sum / count)
}

/// Writes the 4 KiB page `place`, whatever the store's unit.
fn put(store: &Store, place: usize, page: &[u8]) -> Result<()> {
    let (index, start) = within(store, place);
    let written = match store.unit().bytes() {
        PAGE_BYTES => store.write(index, page),
        _ => store.write_at(index, start, page),
    };
    Ok(written?)
}

fn get(store: &Store, place: usize, page: &mut [u8]) -> Result<()> {
    let (index, start) = within(store, place);
    let read = match store.unit().bytes() {
        PAGE_BYTES => store.read(index, page),
        _ => store.read_at(index, start, page),
    };
    Ok(read?)
}

fn within(store: &Store, place: usize) -> (PageIndex, usize) {
    let bytes = place * PAGE_BYTES;
    let unit = store.unit().bytes();
    (PageIndex((bytes / unit) as u64), bytes % unit)
}

/// The store's result for each unit of `pages`.
fn states(compression: &Arc<Compression>, pages: &[u8], pool: &str) -> Result<Vec<PageState>> {
    let unit = compression.unit();
    let store = Store::builder()
        .size(unit.bytes() as u64)
        .compression(Arc::clone(compression))
        .pool(pool)
        .build()?;
    let states = pages.chunks_exact(unit.bytes()).map(|content| {
        store.write(PageIndex(0), content)?;
        Ok(store.state(PageIndex(0))?)
    });
    states.collect()
}

/// The memory that a population saves, as a share and as a ratio.
#[derive(Clone, Copy, Debug)]
struct Weight {
    saved: f64,
    ratio: f64,
}

/// How often these objects are stored to take about `objects_bytes`, within a population's limit.
fn repeats(objects: &[PageState], unit: Unit, objects_bytes: usize) -> usize {
    let size = |object: &PageState| match *object {
        PageState::Hole | PageState::Same(_) => 0,
        PageState::Compressed { size_bytes } => size_bytes as usize,
        _ => unit.bytes(),
    };
    let all_bytes: usize = objects.iter().map(size).sum();
    let most = POPULATION_MAX_BYTES / (objects.len() * unit.bytes());
    objects_bytes.div_ceil(all_bytes.max(1)).min(most).max(1)
}

/// Fills a store with objects of these sizes, over and over until they take `objects_bytes`.
/// Returns the memory that it takes: the blocks that hold the objects, the pool's bookkeeping and
/// the table.
fn weigh(objects: &[PageState], unit: Unit, pool: &str, objects_bytes: usize) -> Result<Weight> {
    let population = objects.len() * repeats(objects, unit, objects_bytes);
    let size_bytes = (population * unit.bytes()) as u64;
    let compression = Compression::with_codec(Box::new(SizesOnly), unit)?;
    let store = Store::builder()
        .size(size_bytes)
        .compression(compression)
        .pool(pool)
        .build()?;
    let mut content = vec![0; unit.bytes()];
    let objects = objects.iter().cycle().take(population);
    for (index, object) in (0..).zip(objects) {
        if SizesOnly::ask(*object, &mut content) {
            store.write(PageIndex(index), &content)?;
        } else {
            store.zero(PageIndex(index), uzram::Zeroing::NoHole)?;
        }
    }
    let stats = store.stats();
    let used = (stats.mem_used_total_bytes + stats.side_tables_bytes) as f64;
    let stored = (stats.orig_data_size_bytes - stats.same_pages * unit.bytes() as u64) as f64;
    Ok(Weight {
        saved: 1.0 - (used + stats.table_bytes as f64) / size_bytes as f64,
        ratio: stored / used.max(1.0),
    })
}

/// A codec whose "compressed" size stands in the first bytes of the unit.
struct SizesOnly;

/// In place of a size: the codec gives up.
const GIVE_UP: u32 = u32::MAX;

impl SizesOnly {
    /// Makes `content` ask for `object`; false if there is none.
    fn ask(object: PageState, content: &mut [u8]) -> bool {
        let size = match object {
            PageState::Hole | PageState::Same(_) => return false,
            PageState::Compressed { size_bytes } => size_bytes,
            _ => GIVE_UP,
        };
        content[..4].copy_from_slice(&size.to_le_bytes());
        // Unlike the first word, so that the unit is never same-filled.
        content[4..8].copy_from_slice(&(!size).to_le_bytes());
        true
    }
}

impl Codec for SizesOnly {
    fn name(&self) -> &str {
        "sizes-only"
    }

    fn compressor(&self, _unit: Unit) -> uzram::Result<Box<dyn Compressor>> {
        Ok(Box::new(SizesOnly))
    }

    fn decompressor(&self, _unit: Unit) -> uzram::Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(SizesOnly)))
    }
}

impl Compressor for SizesOnly {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        let size = u32::from_le_bytes(*source.first_chunk()?);
        let size = usize::try_from(size).ok()?;
        (size <= destination.len()).then_some(size)
    }
}

impl DecompressShared for SizesOnly {
    fn decompress(&self, _source: &[u8], _destination: &mut [u8]) -> Result<(), Malformed> {
        Err(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::Corpus;

    /// The sizes alone have to weigh what the pages do.
    #[test]
    fn objects_of_the_same_sizes_weigh_what_the_pages_weigh() {
        const OBJECTS: usize = 4 << 20;
        let [.., (name, pages)] = uzram_testkit::pages::synthetic();
        let corpus = Corpus::new(name, &pages).unwrap();
        let pages = corpus.pages();
        for pool in uzram::pools() {
            for unit in [4096, 16384] {
                let unit = Unit::new(unit).unwrap();
                let pages = &pages[..pages.len() / unit.bytes() * unit.bytes()];
                let compression = Compression::new("lz4", unit).unwrap();
                let objects = states(&compression, pages, pool).unwrap();
                let repeats = repeats(&objects, unit, OBJECTS);
                let size = (pages.len() * repeats) as u64;
                let store = Store::builder()
                    .size(size)
                    .compression(compression)
                    .pool(pool);
                let store = store.build().unwrap();
                let units = pages.chunks_exact(unit.bytes()).cycle();
                for (index, content) in (0..size / unit.bytes() as u64).zip(units) {
                    store.write(PageIndex(index), content).unwrap();
                }
                let stats = store.stats();
                let used = stats.mem_used_total_bytes + stats.side_tables_bytes;
                let real = 1.0 - (used + stats.table_bytes) as f64 / size as f64;
                let weighed = weigh(&objects, unit, pool, OBJECTS).unwrap();
                assert!(
                    (weighed.saved - real).abs() < 1e-9,
                    "{pool}: {weighed:?} and {real}"
                );
            }
        }
    }
}
