//! The coder that suits each page: words for heaps, lz4 for the rest.
//!
//! The first byte of an object says who made it: a method byte of `words`, or [`LZ4`] before
//! a block of lz4. A reader asks nothing else. A unit that does not look like words goes to lz4. One that
//! does goes to words, and to lz4 too if little came of that; then the smaller is kept.
//!
//! Pages that look random do not come here, and what neither shrinks is kept raw: both by the store.
//!
//! The portable version of words is slower than lz4 in both directions. Where the CPU has no better
//! one all units go to lz4; objects of words are still read.

mod look;

use uzram_words::{Decoder, Encoder, Level, Version};

use super::lz4::{self, Lz4Decoder};
use super::words;
use super::{Codec, Compressor, DecompressShared, Decompressor, Malformed, Parameters};
use crate::error::Result;
use crate::memory;
use crate::page::Unit;

pub(super) const NAME: &str = "auto";

/// The look at a unit, whose cost the laboratory measures.
#[cfg(feature = "lab")]
pub fn looks_like_words(unit: &[u8]) -> bool {
    look::is_words(unit)
}

/// The version of the code of words that runs here, by which the laboratory names its figures.
#[cfg(feature = "lab")]
pub fn words_version() -> &'static str {
    Version::best().name()
}

/// Lz4's default.
const ACCELERATION: i32 = 1;

/// The first byte before a block of lz4; no method byte of `words` has this value.
const LZ4: u8 = b'4';
/// Of a unit's bytes, the eighths from which an object of words is so poor that lz4 is tried too.
const POOR_EIGHTHS: usize = 5;

pub(super) struct Auto {
    level: Level,
    /// Found here, since to look at the environment takes memory that a context may lack.
    version: Version,
    /// Whether words may be faster than lz4.
    tries_words: bool,
}

impl Auto {
    pub(super) fn new(parameters: &Parameters) -> Result<Auto> {
        let level = words::level(NAME, parameters)?;
        let version = Version::best();
        Ok(Auto {
            level,
            version,
            tries_words: version != Version::SCALAR,
        })
    }
}

impl Codec for Auto {
    fn name(&self) -> &str {
        NAME
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        Ok(memory::boxed(AutoEncoder {
            words: Encoder::new(self.level, self.version),
            tries_words: self.tries_words,
            lz4: lz4::State::new(ACCELERATION)?,
        })?)
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        let decoder = memory::boxed(AutoDecoder(Decoder::new(self.version)))?;
        Ok(Decompressor::Shared(decoder))
    }
}

struct AutoEncoder {
    words: Encoder,
    tries_words: bool,
    lz4: lz4::State,
}

impl Compressor for AutoEncoder {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        if !self.tries_words || !look::is_words(source) {
            return self.lz4(source, destination);
        }
        let length = self.words.compress(source, destination).ok()?;
        if length * 8 < source.len() * POOR_EIGHTHS {
            return Some(length);
        }
        self.smaller(length, source, destination)
    }
}

impl AutoEncoder {
    fn lz4(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        let (tag, block) = destination.split_first_mut()?;
        *tag = LZ4;
        Some(1 + self.lz4.compress(source, block)?)
    }

    /// Lz4's object if it is smaller than the `length` bytes of words, and those once more if not. Both
    /// are made in the whole destination: lz4 in Rust takes none that its worst case does not fit.
    fn smaller(&mut self, length: usize, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        match self.lz4(source, destination) {
            Some(other) if other < length => Some(other),
            _ => self.words.compress(source, destination).ok(),
        }
    }
}

struct AutoDecoder(Decoder);

impl DecompressShared for AutoDecoder {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        match source.split_first() {
            Some((&LZ4, block)) => Lz4Decoder.decompress(block, destination),
            // The words' decoder refuses every method byte that is not its own.
            _ => self
                .0
                .decompress(source, destination)
                .map_err(|_| Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn level(level: i32) -> Auto {
        Auto {
            tries_words: true,
            ..Auto::new(&Parameters::default().level(level)).unwrap()
        }
    }

    fn decoder(auto: &Auto) -> Box<dyn DecompressShared> {
        match auto.decompressor(Unit::DEFAULT).unwrap() {
            Decompressor::Shared(decoder) => decoder,
            Decompressor::Stateful(_) => panic!("auto has no state"),
        }
    }

    fn pack(auto: &Auto, page: &[u8]) -> Vec<u8> {
        let mut compressor = auto.compressor(Unit::DEFAULT).unwrap();
        let mut packed = vec![0; 2 * page.len()];
        let length = compressor.compress(page, &mut packed).unwrap();
        packed.truncate(length);
        packed
    }

    fn words(word: impl Fn(u64) -> u64) -> Vec<u8> {
        (0..512).flat_map(|at| word(at).to_le_bytes()).collect()
    }

    fn text() -> Vec<u8> {
        b"let it = a_name_or_two(1);\n"
            .iter()
            .copied()
            .cycle()
            .take(4096)
            .collect()
    }

    /// Small enough numbers for the look; the rest of a period of 501 bytes suits lz4 alone.
    fn deceiving() -> Vec<u8> {
        let period = uzram_testkit::noise(3, 501);
        let mut page: Vec<u8> = period.iter().copied().cycle().take(4096).collect();
        page.as_chunks_mut::<64>()
            .0
            .iter_mut()
            .for_each(|line| line[..24].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0].repeat(3)));
        page
    }

    #[test]
    fn the_first_byte_says_who_made_the_object_and_all_come_back() {
        for number in [1, 2] {
            let auto = level(number);
            let noise = uzram_testkit::noise(1, 4096);
            let heap = words(|at| 0x7f00_0000_1000 + at % 40 * 64);
            for (page, first) in [(heap, number as u8), (text(), LZ4), (noise, LZ4)] {
                let packed = pack(&auto, &page);
                assert_eq!(packed[0] & 0x7f, first);
                let mut back = vec![0xa5; 4096];
                decoder(&auto).decompress(&packed, &mut back).unwrap();
                assert!(back == page);
            }
        }
    }

    #[test]
    fn a_page_that_only_looks_like_words_goes_to_lz4_after_all() {
        let page = deceiving();
        assert!(look::is_words(&page));
        let auto = level(1);
        let packed = pack(&auto, &page);
        assert_eq!(packed[0], LZ4);
        let mut back = vec![0; 4096];
        decoder(&auto).decompress(&packed, &mut back).unwrap();
        assert!(back == page);
    }

    #[test]
    fn of_two_poor_objects_the_smaller_is_kept() {
        let mut page = uzram_testkit::noise(5, 4096);
        page.chunks_mut(8).for_each(|word| word[6..].fill(0));
        let packed = pack(&level(1), &page);
        assert!(look::is_words(&page));
        assert!(
            packed.len() * 8 >= page.len() * POOR_EIGHTHS,
            "{}",
            packed.len()
        );
        assert_eq!(packed[0] & 0x7f, 1, "lz4 finds no match in it");
    }

    #[test]
    fn an_object_of_nobody_is_refused() {
        let auto = level(1);
        let decoder = decoder(&auto);
        for page in [words(|at| at * at), text()] {
            let mut packed = pack(&auto, &page);
            let own = packed[0];
            for first in 0..=255 {
                packed[0] = first;
                let decoded = decoder.decompress(&packed, &mut [0; 4096]);
                assert!(
                    first == own || decoded.is_err(),
                    "{first} in place of {own}"
                );
            }
            assert!(decoder.decompress(&packed[1..], &mut [0; 4096]).is_err());
            assert!(decoder.decompress(&[own], &mut [0; 4096]).is_err());
        }
        assert_eq!(decoder.decompress(&[], &mut [0; 4096]), Err(Malformed));
    }

    #[test]
    fn a_buffer_of_any_size_gets_an_object_or_none() {
        let auto = level(2);
        let mut compressor = auto.compressor(Unit::DEFAULT).unwrap();
        for page in [
            words(|at| at * at * at),
            text(),
            deceiving(),
            uzram_testkit::noise(1, 4096),
        ] {
            for room in (0..200).chain(3900..4200) {
                let mut packed = vec![0; room];
                if let Some(length) = compressor.compress(&page, &mut packed) {
                    let mut back = vec![0; 4096];
                    decoder(&auto)
                        .decompress(&packed[..length], &mut back)
                        .unwrap();
                    assert!(back == page, "{room}");
                }
            }
        }
    }

    #[test]
    fn without_a_fast_version_all_goes_to_lz4_and_words_are_still_read() {
        let slow = Auto {
            tries_words: false,
            ..level(1)
        };
        let heap = words(|at| 0x7f00_0000_1000 + at % 40 * 64);
        assert_eq!(pack(&slow, &heap)[0], LZ4);
        let mut back = vec![0; 4096];
        let fast = pack(&level(1), &heap);
        decoder(&slow).decompress(&fast, &mut back).unwrap();
        assert!(back == heap);
    }

    #[test]
    fn levels_are_those_of_words() {
        let error = Auto::new(&Parameters::default().level(3)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.to_string(), "level 3: auto takes 1 to 2");
    }
}
