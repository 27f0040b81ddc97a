//! `instructions [FILE]…`: how long a page takes, written to a store and read from it, and through the codec alone.
//! Without a file pages are made that imitate text, a heap, and both mixed with random ones.
//!
//! The engine's own part is the first less the second. On a machine whose clock counts instructions
//! (`cargo xtask vm instructions`) a nanosecond is an instruction, so that machines that are emulated can be compared.

use std::error::Error;
use std::time::Instant;

use uzram::{PageIndex, Store};
use uzram_testkit::pages::synthetic;
use uzram_words::{Decoder, Encoder, Level, PAGE_BYTES, Version, bound};

type Page = [u8; PAGE_BYTES];

/// Pages of each file at most, spread over it.
const PAGES: usize = 256;
/// Rounds of each measurement; only the first finds memory that is not there yet.
const ROUNDS: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    let mut kinds = Vec::new();
    for file in files {
        let bytes = std::fs::read(&file)?;
        kinds.push((file, bytes));
    }
    if kinds.is_empty() {
        kinds.extend(synthetic().map(|(name, bytes)| (name.to_owned(), bytes)));
    }
    for (name, bytes) in kinds {
        let all = bytes.as_chunks::<PAGE_BYTES>().0;
        let step = all.len().div_ceil(PAGES).max(1);
        // Of a page of one repeated word a store makes no use of the codec.
        let is_mixed = |page: &&Page| page[8..] != page[..PAGE_BYTES - 8];
        let pages = all.iter().step_by(step).filter(is_mixed);
        let pages: Vec<Page> = pages.copied().collect();
        println!("{name}: {} pages, nanoseconds per page", pages.len());
        let codec = codec(&pages, Level::Fast, Version::best())?;
        for algorithm in ["words", "lz4"] {
            let store = store(&pages, algorithm)?;
            println!("  store, {algorithm}: write {}, read {}", store.0, store.1);
            if algorithm == "words" {
                let beyond = (store.0 - codec.0, store.1 - codec.1);
                println!(
                    "    beyond the codec: write {}, read {}",
                    beyond.0, beyond.1
                );
            }
        }
        for version in Version::all() {
            for level in [Level::Fast, Level::Dense] {
                let (encode, decode) = self::codec(&pages, level, version)?;
                let version = version.name();
                println!("  words, {level:?}, {version}: encode {encode}, decode {decode}");
            }
        }
    }
    Ok(())
}

/// To overwrite a page and to read it.
fn store(pages: &[Page], algorithm: &str) -> Result<(i64, i64), Box<dyn Error>> {
    let size = pages.len() * PAGE_BYTES;
    let store = Store::builder()
        .size(size as u64)
        .algorithm(algorithm)
        .build()?;
    let write = per_page(
        pages,
        |index, page| Ok(store.write(PageIndex(index), page)?),
    )?;
    let mut back = [0; PAGE_BYTES];
    let read = per_page(pages, |index, _| {
        Ok(store.read(PageIndex(index), &mut back)?)
    })?;
    Ok((write, read))
}

/// To compress and to decompress a page.
fn codec(pages: &[Page], level: Level, version: Version) -> Result<(i64, i64), Box<dyn Error>> {
    let mut encoder = Box::new(Encoder::new(level, version));
    let mut packed = vec![[0; 2 * bound(PAGE_BYTES)]; pages.len()];
    let mut lengths = vec![0; pages.len()];
    let encode = per_page(pages, |index, page| {
        lengths[index as usize] = encoder.compress(page, &mut packed[index as usize])?;
        Ok(())
    })?;
    let decoder = Decoder::new(version);
    let mut back = [0; PAGE_BYTES];
    let decode = per_page(pages, |index, _| {
        let packed = &packed[index as usize][..lengths[index as usize]];
        Ok(decoder.decompress(packed, &mut back)?)
    })?;
    Ok((encode, decode))
}

/// The nanoseconds of `work` for each page, in the round in which the system did the least beside it.
fn per_page(
    pages: &[Page],
    mut work: impl FnMut(u64, &Page) -> Result<(), Box<dyn Error>>,
) -> Result<i64, Box<dyn Error>> {
    let mut least = i64::MAX;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        (0..)
            .zip(pages)
            .try_for_each(|(index, page)| work(index, page))?;
        least = least.min(started.elapsed().as_nanos() as i64);
    }
    Ok(least / pages.len().max(1) as i64)
}
