//! The content that jobs write: pages of a corpus, or buffers filled by fio's rules.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use crate::corpus::{Corpus, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::mapping::{Backing, Mapping};
use uzram_testkit::Rng;

/// Pages at which a block of [`Pages`] may begin: 4 MiB, several times what a CPU's own cache holds.
const STARTS: u64 = 1024;
/// Largest block, in bytes: as much lies behind the last start.
pub(crate) const BLOCK_MAX_BYTES: u64 = 16 << 20;
const LENGTH_BYTES: usize = STARTS as usize * PAGE_BYTES + BLOCK_MAX_BYTES as usize;
/// fio's `buffer_compress_chunk`, in bytes: so often random and fixed bytes take turns.
const COMPRESS_CHUNK_BYTES: usize = 512;
/// So often a scrambled buffer is changed, in bytes.
const SCRAMBLE_BYTES: usize = 512;

/// The content that a job writes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Buffers {
    /// Content that a block's place and the job's seed decide, so that it can be told what must lie there.
    Pages(Arc<Pages>),
    /// Content by fio's rules.
    Filled(Filled),
}

/// fio's options for buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    /// `refill_buffers`: anew for each write.
    pub(crate) is_refilled: bool,
    /// `scramble_buffers`: a few bytes changed for each write.
    pub(crate) is_scrambled: bool,
    /// `buffer_compress_percentage`: this part of each 512 bytes is fixed, the rest before it random.
    pub(crate) compress_percentage: Option<u32>,
    /// `buffer_pattern`: repeated where the buffer is fixed; zeroes, or no fixed part, without one.
    pub(crate) pattern: Vec<u8>,
}

impl Default for Filled {
    fn default() -> Filled {
        Filled {
            is_refilled: false,
            is_scrambled: true,
            compress_percentage: None,
            pattern: Vec::new(),
        }
    }
}

impl Buffers {
    /// # Errors
    /// [`Error::Usage`] for options that cannot be.
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Buffers::Filled(Filled {
                compress_percentage: Some(percentage @ 101..),
                ..
            }) => Err(Error::Usage(format!(
                "buffer_compress_percentage {percentage}: 0 to 100"
            ))),
            _ => Ok(()),
        }
    }
}

/// Pages in one piece, from which blocks are taken without a copy.
#[derive(Debug)]
pub(crate) struct Pages {
    bytes: Mapping,
    /// The fingerprints of all of them, once somebody asks.
    known: OnceLock<HashSet<u64>>,
}

impl PartialEq for Pages {
    fn eq(&self, other: &Pages) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Pages {
    /// Pages of all `corpora`, repeated in a new order each time; same-filled ones are left out.
    pub(crate) fn of(corpora: &[Corpus]) -> Result<Pages> {
        let mut pages = Pages::zeroed()?;
        let mut source: Vec<&[u8]> = corpora
            .iter()
            .flat_map(|corpus| corpus.pages().chunks_exact(PAGE_BYTES))
            .collect();
        let mut rng = Rng::new(0x10_20e);
        for repetition in pages.bytes.chunks_mut(source.len() * PAGE_BYTES) {
            rng.shuffle(&mut source);
            for (to, from) in repetition.chunks_exact_mut(PAGE_BYTES).zip(&source) {
                to.copy_from_slice(from);
            }
        }
        Ok(pages)
    }

    /// Random bytes.
    pub(crate) fn random() -> Result<Pages> {
        let mut pages = Pages::zeroed()?;
        Rng::new(0x10_20e).fill(&mut pages.bytes);
        Ok(pages)
    }

    fn zeroed() -> Result<Pages> {
        let mapped = Mapping::new(LENGTH_BYTES, Backing::Huge);
        let bytes = mapped.map_err(|error| Error::io("memory for a job's pages", error))?;
        let known = OnceLock::new();
        Ok(Pages { bytes, known })
    }

    /// Whether each page of `block` is one of these, or was never written.
    pub(super) fn are_known(&self, block: &[u8]) -> bool {
        let all = || {
            self.bytes
                .chunks_exact(PAGE_BYTES)
                .map(fingerprint)
                .collect()
        };
        let known = self.known.get_or_init(all);
        let mut pages = block.chunks_exact(PAGE_BYTES);
        pages.all(|page| known.contains(&fingerprint(page)) || page.iter().all(|byte| *byte == 0))
    }

    /// The content of a block of `length` bytes at `offset` after the job of `seed`.
    pub(super) fn block(&self, offset: u64, seed: u64, length: usize) -> &[u8] {
        let number = offset / PAGE_BYTES as u64;
        // 421 is prime to the number of starts: neighbours begin far from each other.
        let start = number.wrapping_add(seed.wrapping_mul(97)).wrapping_mul(421) % STARTS;
        let begin = start as usize * PAGE_BYTES + offset as usize % PAGE_BYTES;
        // An odd offset at the last start would reach beyond the end by less than a page.
        let begin = begin.min(LENGTH_BYTES - length);
        &self.bytes[begin..begin + length]
    }
}

fn fingerprint(page: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    page.hash(&mut hasher);
    hasher.finish()
}

/// A worker's source of blocks.
#[derive(Debug)]
pub(super) struct Source<'a> {
    buffers: &'a Buffers,
    seed: u64,
    rng: Rng,
    /// Filled buffers only; aligned for direct I/O.
    buffer: Mapping,
    written: u64,
}

impl<'a> Source<'a> {
    pub(super) fn new(
        buffers: &'a Buffers,
        length: usize,
        seed: u64,
        worker: u32,
    ) -> Result<Source<'a>> {
        let mapped = Mapping::new(length, Backing::Default);
        let mut source = Source {
            buffers,
            seed,
            rng: Rng::new(seed ^ u64::from(worker) << 32),
            buffer: mapped.map_err(|error| Error::io("memory for a job's buffer", error))?,
            written: 0,
        };
        if let Buffers::Filled(filled) = buffers {
            filled.fill(&mut source.buffer, &mut source.rng);
        }
        Ok(source)
    }

    /// The bytes to write at `offset` of the device.
    #[inline]
    pub(super) fn next(&mut self, offset: u64) -> &[u8] {
        let length = self.buffer.len();
        match self.buffers {
            Buffers::Pages(pages) => pages.block(offset, self.seed, length),
            Buffers::Filled(filled) => {
                if filled.is_refilled && self.written > 0 {
                    filled.fill(&mut self.buffer, &mut self.rng);
                }
                if filled.scrambles() {
                    scramble(&mut self.buffer, offset, self.rng.next());
                }
                self.written += 1;
                &self.buffer
            }
        }
    }
}

impl Filled {
    /// Whether a write changes the buffer a little: seen of fio 3.33, which leaves patterns alone and
    /// buffers that are new anyway.
    fn scrambles(&self) -> bool {
        let is_random = self.pattern.is_empty() && self.compress_percentage.is_none();
        self.is_scrambled && !self.is_refilled && is_random
    }

    fn fill(&self, buffer: &mut [u8], rng: &mut Rng) {
        match (self.compress_percentage, self.pattern.as_slice()) {
            (None, []) => rng.fill(buffer),
            (None, pattern) => repeat(pattern, buffer),
            (Some(percentage), pattern) => {
                for chunk in buffer.chunks_mut(COMPRESS_CHUNK_BYTES) {
                    let fixed = chunk.len() * percentage.min(100) as usize / 100;
                    let (random, fixed) = chunk.split_at_mut(chunk.len() - fixed);
                    rng.fill(random);
                    match pattern {
                        [] => fixed.fill(0),
                        pattern => repeat(pattern, fixed),
                    }
                }
            }
        }
    }
}

/// Fills `buffer` with a pattern that is not empty, from its start on.
fn repeat(pattern: &[u8], buffer: &mut [u8]) {
    let first = pattern.len().min(buffer.len());
    buffer[..first].copy_from_slice(&pattern[..first]);
    let mut done = first;
    // Doubling: each copy is of whole patterns until the last.
    while done < buffer.len() {
        let more = done.min(buffer.len() - done);
        buffer.copy_within(..more, done);
        done += more;
    }
}

/// Changes some bytes in each 512, so that no two writes are alike.
fn scramble(buffer: &mut [u8], offset: u64, stamp: u64) {
    for (nth, chunk) in buffer.chunks_exact_mut(SCRAMBLE_BYTES).enumerate() {
        let place = offset + (nth * SCRAMBLE_BYTES) as u64;
        chunk[..8].copy_from_slice(&place.to_le_bytes());
        chunk[SCRAMBLE_BYTES - 8..].copy_from_slice(&stamp.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(filled: Filled, length: usize, writes: u64) -> Vec<Vec<u8>> {
        let buffers = Buffers::Filled(filled);
        let mut source = Source::new(&buffers, length, 100, 0).unwrap();
        let blocks = (0..writes).map(|nth| source.next(nth * length as u64).to_vec());
        blocks.collect()
    }

    fn filled(change: fn(&mut Filled)) -> Filled {
        let mut filled = Filled::default();
        change(&mut filled);
        filled
    }

    /// Each as fio 3.33 was seen to write it.
    #[test]
    fn buffers_are_filled_as_fio_fills_them() {
        let scrambled = written(filled(|_| {}), 4096, 3);
        let differ = |one: &[u8], other: &[u8]| {
            let pairs = one.iter().zip(other);
            pairs.filter(|(one, other)| one != other).count()
        };
        let changed = differ(&scrambled[0], &scrambled[1]);
        assert!((8..=128).contains(&changed), "{changed} bytes");
        let same = written(filled(|of| of.is_scrambled = false), 4096, 3);
        assert_eq!(same[0], same[2]);
        let refilled = written(filled(|of| of.is_refilled = true), 4096, 2);
        assert!(differ(&refilled[0], &refilled[1]) > 3500);
        let pattern = written(filled(|of| of.pattern = b"uzram".to_vec()), 8192, 2);
        assert_eq!(pattern[0], pattern[1], "a pattern is not scrambled");
        assert!(pattern[0].iter().eq(b"uzram".iter().cycle().take(8192)));
    }

    #[test]
    fn a_part_of_each_512_bytes_is_fixed() {
        let half = |pattern: &[u8]| Filled {
            is_refilled: true,
            compress_percentage: Some(50),
            pattern: pattern.to_vec(),
            ..Filled::default()
        };
        let zeroes = written(half(&[]), 4096, 2);
        assert_ne!(zeroes[0], zeroes[1]);
        let patterned = written(half(b"uzram"), 4096, 1);
        for (zeroes, patterned) in zeroes[1].chunks(512).zip(patterned[0].chunks(512)) {
            assert!(zeroes[256..].iter().all(|&byte| byte == 0));
            assert!(zeroes[..256].iter().filter(|&&byte| byte == 0).count() < 10);
            assert!(patterned[256..].starts_with(b"uzramuzram"));
        }
        let whole = |percentage| {
            written(
                Filled {
                    compress_percentage: Some(percentage),
                    ..Filled::default()
                },
                4096,
                1,
            )
        };
        assert!(whole(100)[0].iter().all(|&byte| byte == 0));
        assert!(whole(0)[0][..512].iter().filter(|&&byte| byte == 0).count() < 20);
    }

    #[test]
    fn a_blocks_content_is_decided_by_its_place_and_the_jobs_seed() {
        let pages = Pages::of(&crate::synthetic::corpora()).unwrap();
        let of = |offset, seed| pages.block(offset, seed, 8192);
        assert_eq!(of(4096, 1), of(4096, 1));
        assert_ne!(of(4096, 1), of(4096, 2));
        assert_ne!(of(4096, 1), of(12_288, 1));
        assert_eq!(of(4096, 1)[4096..], of(4096, 1)[4096..]);
        for offset in [0, 1, 511, 4095, u64::MAX - (1 << 25)] {
            let most = BLOCK_MAX_BYTES as usize;
            assert_eq!(pages.block(offset, u64::MAX, most).len(), most);
        }
        let mut block = of(4096, 1).to_vec();
        assert!(pages.are_known(&block));
        block[8191] ^= 1;
        assert!(!pages.are_known(&block), "a torn page");
    }
}
