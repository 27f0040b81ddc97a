//! Early rejection: the store's look at a page before it asks the codec, against a store that asks it
//! about every page.
//!
//! On the corpus alone the look is a cost; on a mix in which every fourth page is random, it is to pay.

use std::sync::Arc;

use uzram::{Codec, Compression, Compressor, Decompressor, PageIndex, Store, Unit};

use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::figures::{Cell, Metric};
use crate::machine::Stopwatch;
use crate::progress::Progress;
use crate::report::Block;
use crate::sample::Series;
use crate::suite::turns::{Runs, Turns};
use crate::suite::{Options, SUBJECT};
use uzram_testkit::Rng;

/// Pages of a turn.
const TURN_PAGES: usize = 256;
/// Of so many pages of the mix one is random.
const RANDOM_EVERY: usize = 4;
/// The variant that asks its codec about every page.
const ASKING: &str = "asks-every-page";

const TIME: Metric = ("write_time_per_page", "ns");

/// A built-in codec handed over as the caller's, about whose pages the store makes no guesses.
struct AsCallers(Arc<Compression>);

impl Codec for AsCallers {
    fn name(&self) -> &str {
        self.0.codec().name()
    }

    fn compressor(&self, unit: Unit) -> uzram::Result<Box<dyn Compressor>> {
        self.0.codec().compressor(unit)
    }

    fn decompressor(&self, unit: Unit) -> uzram::Result<Decompressor> {
        self.0.codec().decompressor(unit)
    }
}

/// Measures an algorithm on the `pages` of a corpus, alone and mixed.
pub(super) fn measure(
    (corpus, algorithm): (&str, &str),
    pages: &[&[u8]],
    options: &Options,
    cpu: usize,
    progress: &mut Progress,
    block: &mut Block,
) -> Result<()> {
    let random = random_pages(pages.len() / (RANDOM_EVERY - 1));
    let mut random_pages = random.chunks_exact(PAGE_BYTES);
    let mut mix: Vec<&[u8]> = Vec::new();
    for (nth, page) in pages.iter().enumerate() {
        mix.push(page);
        if nth % (RANDOM_EVERY - 1) == RANDOM_EVERY - 2 {
            mix.extend(random_pages.next());
        }
    }
    let sides = || {
        Ok::<_, crate::Error>([
            store(algorithm, true, mix.len())?,
            store(algorithm, false, mix.len())?,
        ])
    };
    let note = judge(algorithm, pages, &random, &sides()?)?;
    block.notes.push(note);
    let names = [SUBJECT, ASKING];
    for (name, pages) in [("corpus", pages), ("mixed", &mix[..])] {
        let case = format!("{corpus}/write-{algorithm}-{name}");
        let times = times(&sides()?, pages, &case, options, progress)?;
        let cell = Cell::new(case, TIME, (pages.len() * PAGE_BYTES) as u64).pinned(&[cpu]);
        cell.add_all(&names, &times, |top, bottom| [top, bottom] == names, block);
    }
    Ok(())
}

fn store(algorithm: &str, guesses: bool, pages: usize) -> Result<Store> {
    let built_in = Compression::new(algorithm, Unit::DEFAULT)?;
    let compression = match guesses {
        true => built_in,
        false => Compression::with_codec(Box::new(AsCallers(built_in)), Unit::DEFAULT)?,
    };
    let builder = Store::builder().size((pages * PAGE_BYTES) as u64);
    Ok(builder.compression(compression).build()?)
}

fn random_pages(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count.max(1) * PAGE_BYTES];
    Rng::new(0x4e0e).fill(&mut bytes);
    bytes
}

/// How many random pages are caught, and how many pages are refused that would have become smaller.
fn judge(algorithm: &str, pages: &[&[u8]], random: &[u8], sides: &[Store; 2]) -> Result<String> {
    let [guessing, asking] = sides;
    let rejected = |page: &[u8]| -> Result<bool> {
        let before = guessing.stats().early_rejections;
        guessing.write(PageIndex(0), page)?;
        Ok(guessing.stats().early_rejections > before)
    };
    let shrinks = |page: &[u8]| -> Result<bool> {
        asking.write(PageIndex(0), page)?;
        Ok(asking.stats().huge_pages == 0)
    };
    let (mut compressible, mut refused) = (0, 0);
    for page in pages {
        if shrinks(page)? {
            compressible += 1;
            refused += usize::from(rejected(page)?);
        }
    }
    let mut caught = 0;
    for page in random.chunks_exact(PAGE_BYTES) {
        caught += usize::from(rejected(page)?);
    }
    let part = |some: usize, all: usize| 100.0 * some as f64 / all.max(1) as f64;
    let all_random = random.len() / PAGE_BYTES;
    Ok(format!(
        "early rejection, {algorithm}: {:.1} % of {all_random} random pages caught, {:.2} % of {compressible} \
         compressible ones refused",
        part(caught, all_random),
        part(refused, compressible),
    ))
}

/// Nanoseconds a page of both sides, which take turns.
fn times(
    sides: &[Store; 2],
    pages: &[&[u8]],
    what: &str,
    options: &Options,
    progress: &mut Progress,
) -> Result<Vec<Series>> {
    let turns = Turns {
        what,
        sides: sides.len(),
        parts: pages.len().div_ceil(TURN_PAGES),
        runs: Runs::Few,
        // It takes memory.
        warms_up: true,
    };
    turns.measure(options, progress, |turn| {
        let first = turn.part * TURN_PAGES;
        let stopwatch = Stopwatch::start();
        for (place, page) in (first..).zip(pages[first..].iter().take(TURN_PAGES)) {
            sides[turn.side].write(PageIndex(place as u64), page)?;
        }
        Ok(stopwatch.stop().own().as_nanos() as f64 / pages.len() as f64)
    })
}
