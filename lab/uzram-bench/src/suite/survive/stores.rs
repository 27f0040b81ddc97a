//! A store in files of memory beside one in private memory.

use std::time::{Duration, Instant};

use uzram::{PageIndex, Remains, Store, StoreBuilder};

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::machine::private_dirty_bytes;
use crate::mapping::Backing;
use crate::peers::raw_codec::RawCodec;
use crate::side::Pages;
use crate::workload::{Generation, Workload};

/// Figures of a run.
pub(super) const COUNT: usize = 20;
/// Pages whose first reads after a take-over are timed.
const FIRST_READS: usize = 4096;

/// Both stores, and their pages.
struct Pair<'a> {
    workload: &'a Workload,
    private: Store,
    files: Store,
}

/// All figures once, in the order of the suite's list.
pub(super) fn one_run(workload: &Workload, algorithm: &str) -> Result<[f64; COUNT]> {
    let make = |outliving| builder(workload, algorithm, outliving).build();
    let memory = [
        weigh(workload, make(false)?)?,
        weigh(workload, make(true)?)?,
    ];
    let bare_read = bare_reads(workload, algorithm)?;
    let mut pair = Pair {
        workload,
        private: make(false)?,
        files: make(true)?,
    };
    let first_write = pair.write(Generation::First)?;
    let small_write = pair.write(Generation::Second)?;
    let small_read = pair.read(Generation::Second)?;
    let (small_end, files, small_open) = taken_over(workload, algorithm, pair.files)?;
    pair.files = files;
    while pair.files.maintain(Duration::from_secs(1)) {}
    let huge_write = pair.write(Generation::First)?;
    let huge_read = pair.read(Generation::First)?;
    while pair.files.maintain(Duration::from_secs(1)) {}
    let (huge_end, files, huge_open) = taken_over(workload, algorithm, pair.files)?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok([
        first_write[0],
        first_write[1],
        small_write[0],
        small_write[1],
        small_read[0],
        small_read[1],
        bare_read[0],
        bare_read[1],
        huge_write[0],
        huge_write[1],
        huge_read[0],
        huge_read[1],
        memory[0],
        memory[1],
        ms(small_end),
        ms(small_open),
        ms(huge_end),
        ms(huge_open),
        workload.pages() as f64 / huge_open.as_secs_f64(),
        first_reads(workload, &files)?,
    ])
}

fn builder(workload: &Workload, algorithm: &str, outliving: bool) -> StoreBuilder {
    let builder = Store::builder().size(workload.bytes() as u64);
    builder.algorithm(algorithm).outliving(outliving)
}

impl Pair<'_> {
    /// The time of a write of each page to either, in nanoseconds.
    fn write(&self, generation: Generation) -> Result<[f64; 2]> {
        in_turns(self.workload, self.sides(), |store, chunk| {
            let start = self.workload.first_place(chunk);
            let pages = self.workload.content(chunk, generation);
            for (place, page) in pages.chunks_exact(PAGE_BYTES).enumerate() {
                store.write(PageIndex((start + place) as u64), page)?;
            }
            Ok(())
        })
    }

    /// The same of reads at random places. A page of each chunk is compared.
    fn read(&self, generation: Generation) -> Result<[f64; 2]> {
        let mut page = vec![0; PAGE_BYTES];
        in_turns(self.workload, self.sides(), |store, chunk| {
            let places = self.workload.random_places(chunk);
            for place in places {
                store.read(PageIndex(u64::from(*place)), &mut page)?;
            }
            let last = places.last().map_or(0, |place| *place as usize);
            match page[..] == *self.workload.page(last, generation) {
                true => Ok(()),
                false => Err(Error::Failed(format!("page {last} holds other bytes"))),
            }
        })
    }

    fn sides(&self) -> [&Store; 2] {
        [&self.private, &self.files]
    }
}

/// The time of a read of pages at random places by the bare codec, in nanoseconds: from huge pages, and from small ones. It is
/// what small pages cost whoever reads from them.
fn bare_reads(workload: &Workload, algorithm: &str) -> Result<[f64; 2]> {
    let filled = |backing| -> Result<RawCodec> {
        let mut codec = RawCodec::backed_by(backing, algorithm, workload, 0..workload.chunks())?;
        for place in 0..workload.pages() {
            codec.write(place, workload.page(place, Generation::First))?;
        }
        Ok(codec)
    };
    let sides = [filled(Backing::Huge)?, filled(Backing::Small)?];
    let mut page = vec![0; PAGE_BYTES];
    in_turns(workload, sides, |codec, chunk| {
        let mut places = workload.random_places(chunk).iter();
        places.try_for_each(|place| codec.read(*place as usize, &mut page))
    })
}

/// Does `work` with either side, chunk by chunk: the time a page, in nanoseconds. Each is first at every other chunk.
fn in_turns<S>(
    workload: &Workload,
    mut sides: [S; 2],
    mut work: impl FnMut(&mut S, usize) -> Result<()>,
) -> Result<[f64; 2]> {
    let mut spent = [Duration::ZERO; 2];
    for chunk in 0..workload.chunks() {
        for turn in 0..2 {
            let side = (chunk + turn) % 2;
            let start = Instant::now();
            work(&mut sides[side], chunk)?;
            spent[side] += start.elapsed();
        }
    }
    let pages = workload.pages() as f64;
    Ok(spent.map(|time| time.as_secs_f64() * 1e9 / pages))
}

/// Memory that the system has given this process for a store full of pages, in MiB.
fn weigh(workload: &Workload, store: Store) -> Result<f64> {
    let before = private_dirty_bytes()?;
    for place in 0..workload.pages() {
        let page = workload.page(place, Generation::First);
        store.write(PageIndex(place as u64), page)?;
    }
    while store.maintain(Duration::from_secs(1)) {}
    let after = private_dirty_bytes()?;
    drop(store);
    Ok((after as f64 - before as f64) / f64::from(1 << 20))
}

/// Leaves a store and opens it again: the time of the end, the store, and the time of the start.
fn taken_over(
    workload: &Workload,
    algorithm: &str,
    store: Store,
) -> Result<(Duration, Store, Duration)> {
    let remains: Remains = store.remains()?.ok_or_else(no_files)?;
    let start = Instant::now();
    drop(store);
    let end = start.elapsed();
    let start = Instant::now();
    let (store, recovery) = builder(workload, algorithm, true).recover(remains)?;
    let opened = start.elapsed();
    match recovery.lost_pages {
        0 => Ok((end, store, opened)),
        lost => Err(Error::Failed(format!("{lost} pages were lost"))),
    }
}

fn no_files() -> Error {
    Error::Failed("a store that outlives its process has no files".into())
}

/// The time of a read of pages that nobody has read since the take-over, in nanoseconds.
fn first_reads(workload: &Workload, store: &Store) -> Result<f64> {
    let places = workload.random_places(0).iter().take(FIRST_READS);
    let mut page = [0; PAGE_BYTES];
    let start = Instant::now();
    for place in places.clone() {
        store.read(PageIndex(u64::from(*place)), &mut page)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / places.count() as f64)
}
