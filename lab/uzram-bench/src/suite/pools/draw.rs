//! Objects: pages of a corpus as a codec leaves them, drawn at random with a fixed seed.

use uzram::{Compression, Unit};

use crate::corpus::{Corpus, PAGE_BYTES};
use crate::error::{Error, Result};
use uzram_testkit::Rng;

/// A corpus's pages, compressed; those that did not shrink are kept as they are, as a store does.
#[derive(Debug)]
pub(super) struct Packed {
    bytes: Vec<u8>,
    /// Where each object ends in `bytes`.
    ends: Vec<u32>,
}

impl Packed {
    /// The pages of `corpus` that are not same-filled, by `algorithm`.
    pub(super) fn new(corpus: &Corpus, algorithm: &str) -> Result<Packed> {
        let compression = Compression::new(algorithm, Unit::DEFAULT)?;
        let mut compressor = compression.codec().compressor(Unit::DEFAULT)?;
        let mut destination = vec![0; 2 * PAGE_BYTES];
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for page in corpus.pages().chunks_exact(PAGE_BYTES) {
            let length = compressor.compress(page, &mut destination);
            match length.filter(|length| (1..PAGE_BYTES).contains(length)) {
                Some(length) => bytes.extend_from_slice(&destination[..length]),
                None => bytes.extend_from_slice(page),
            }
            let end = u32::try_from(bytes.len()).map_err(|_| too_large(&corpus.name))?;
            ends.push(end);
        }
        bytes.shrink_to_fit();
        Ok(Packed { bytes, ends })
    }

    #[inline]
    pub(super) fn draw(&self, rng: &mut Rng) -> &[u8] {
        let at = rng.below(self.ends.len());
        let start = match at {
            0 => 0,
            _ => self.ends[at - 1],
        };
        &self.bytes[start as usize..self.ends[at] as usize]
    }

    pub(super) fn mean_bytes(&self) -> f64 {
        self.bytes.len() as f64 / self.ends.len() as f64
    }
}

fn too_large(name: &str) -> Error {
    Error::Usage(format!(
        "corpus {name}: over 4 GiB after compression; take fewer pages"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_is_a_whole_compressed_page_and_the_seed_decides_it() {
        let corpus = &crate::synthetic::corpora()[2];
        let packed = Packed::new(corpus, "lz4").unwrap();
        let drawn = |seed| {
            let mut rng = Rng::new(seed);
            let lengths = (0..2000).map(|_| packed.draw(&mut rng).len());
            lengths.collect::<Vec<_>>()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        let lengths = drawn(1);
        // Half of these pages are random bytes, which stay whole.
        assert!(
            lengths
                .iter()
                .all(|length| (1..=PAGE_BYTES).contains(length))
        );
        assert!(lengths.contains(&PAGE_BYTES) && lengths.iter().any(|&length| length < 3000));
        let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
        assert!((mean / packed.mean_bytes() - 1.0).abs() < 0.1);
    }

    #[test]
    fn fio_s_percentages_are_what_a_codec_can_take_away() {
        for (percentage, expected) in [(50, 0.5), (70, 0.3)] {
            let packed = Packed::new(&crate::synthetic::fio(percentage, 64), "lz4").unwrap();
            let part = packed.mean_bytes() / PAGE_BYTES as f64;
            assert!(
                (expected..expected + 0.05).contains(&part),
                "{percentage}: {part}"
            );
        }
    }
}
