//! Statistics of a corpus's pages, in words and bytes: the facts that the format rests on.
//!
//! `cargo run --release -p uzram-words --example statistics -- FILE…` with files of whole 4 KiB pages.

use std::env;
use std::fs;
use std::io;

use uzram_words::{Encoder, Level, PAGE_BYTES, Version, bound};

/// How far back a word is looked for, in words.
const WINDOW: usize = 255;

/// Sums over the pages of a corpus.
#[derive(Default)]
struct Counts {
    pages: usize,
    words: usize,
    zero: usize,
    copies: usize,
    /// The same but for the low 16 bits.
    near: usize,
    /// All others.
    rest: usize,
    /// Of those the bytes that are not zero.
    rest_bytes: usize,
    bytes: Vec<usize>,
    /// Bytes of both levels.
    packed: [usize; 2],
}

impl Counts {
    fn add(&mut self, page: &[u8]) {
        let words: Vec<u64> = page
            .as_chunks()
            .0
            .iter()
            .map(|bytes| u64::from_le_bytes(*bytes))
            .collect();
        self.pages += 1;
        self.words += words.len();
        for (index, word) in words.iter().enumerate() {
            let before = &words[index.saturating_sub(WINDOW)..index];
            if *word == 0 {
                self.zero += 1;
            } else if before.contains(word) {
                self.copies += 1;
            } else if before.iter().any(|other| other >> 16 == word >> 16) {
                self.near += 1;
            } else {
                self.rest += 1;
                for byte in word.to_le_bytes().into_iter().filter(|byte| *byte != 0) {
                    self.rest_bytes += 1;
                    self.bytes[usize::from(byte)] += 1;
                }
            }
        }
    }

    /// Bits that a byte of the rest takes at least if each is coded by its frequency in the corpus.
    fn entropy(&self) -> f64 {
        let all = self.rest_bytes.max(1) as f64;
        let part = |count: &usize| *count as f64 / all;
        let bits = |part: f64| if part > 0.0 { -part * part.log2() } else { 0.0 };
        self.bytes.iter().map(part).map(bits).sum()
    }
}

fn main() -> io::Result<()> {
    println!(
        "of 100 words: zero, copies, near, rest; bytes a word of the rest and bits a byte; ratios of both levels"
    );
    let mut encoders =
        [Level::Fast, Level::Dense].map(|level| Encoder::new(level, Version::best()));
    for file in env::args().skip(1) {
        let corpus = fs::read(&file)?;
        let mut counts = Counts {
            bytes: vec![0; 256],
            ..Counts::default()
        };
        let mut packed = vec![0; bound(PAGE_BYTES)];
        for page in corpus.chunks_exact(PAGE_BYTES) {
            // Pages of one repeated word are no codec's work.
            if page[4..] == page[..PAGE_BYTES - 4] {
                continue;
            }
            counts.add(page);
            for (encoder, sum) in encoders.iter_mut().zip(&mut counts.packed) {
                let length = encoder
                    .compress(page, &mut packed)
                    .map_err(io::Error::other)?;
                *sum += length.min(PAGE_BYTES);
            }
        }
        let part = |count: usize| 100.0 * count as f64 / counts.words.max(1) as f64;
        let ratio = |packed: usize| (counts.pages * PAGE_BYTES) as f64 / packed.max(1) as f64;
        println!(
            "{file}: {:.0} {:.0} {:.0} {:.0}; {:.1} {:.2}; {:.2} {:.2}",
            part(counts.zero),
            part(counts.copies),
            part(counts.near),
            part(counts.rest),
            counts.rest_bytes as f64 / counts.rest.max(1) as f64,
            counts.entropy(),
            ratio(counts.packed[0]),
            ratio(counts.packed[1]),
        );
    }
    Ok(())
}
