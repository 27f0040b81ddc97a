//! Pages of 64-bit words, as heaps are: the crate `uzram-words` behind the codecs' interface.
//!
//! On heaps it is denser than lz4, and with AVX-512 faster. It finds little in text.

use uzram_words::{Decoder, Encoder, Level, Version};

use super::{
    Codec, Compressor, DecompressShared, Decompressor, Malformed, NO_DICTIONARY, Parameters,
};
use crate::error::Result;
use crate::memory;
use crate::page::Unit;

pub(super) const NAME: &str = "words";

const LEVEL_DEFAULT: i32 = 1;

pub(super) struct Words {
    level: Level,
    /// Found here, since to look at the environment takes memory that a context may lack.
    version: Version,
}

impl Words {
    pub(super) fn new(parameters: &Parameters) -> Result<Words> {
        Ok(Words {
            level: level(NAME, parameters)?,
            version: Version::best(),
        })
    }
}

/// The level that the parameters of codec `name` ask for; no codec of words takes a dictionary.
pub(super) fn level(name: &str, parameters: &Parameters) -> Result<Level> {
    parameters.no_dictionary(name, NO_DICTIONARY)?;
    match parameters.level_within(name, 1..=2, LEVEL_DEFAULT)? {
        1 => Ok(Level::Fast),
        _ => Ok(Level::Dense),
    }
}

impl Codec for Words {
    fn name(&self) -> &str {
        NAME
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        Ok(memory::boxed(Encoder::new(self.level, self.version))?)
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        let decoder = memory::boxed(Decoder::new(self.version))?;
        Ok(Decompressor::Shared(decoder))
    }
}

impl Compressor for Encoder {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        Encoder::compress(self, source, destination).ok()
    }
}

impl DecompressShared for Decoder {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        Decoder::decompress(self, source, destination).map_err(|_| Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_2_is_smaller_and_both_come_back_and_others_are_refused() {
        let heap = &uzram_testkit::pages::synthetic()[1].1;
        let length = |level: i32| {
            let words = Words::new(&Parameters::default().level(level)).unwrap();
            let mut compressor = words.compressor(Unit::DEFAULT).unwrap();
            let Ok(Decompressor::Shared(decoder)) = words.decompressor(Unit::DEFAULT) else {
                panic!("words has no state");
            };
            let pages = heap.chunks_exact(4096).take(64);
            let lengths = pages.map(|page| {
                let mut packed = [0; 8192];
                let length = compressor.compress(page, &mut packed).unwrap();
                let mut back = [0; 4096];
                decoder.decompress(&packed[..length], &mut back).unwrap();
                assert!(back == *page);
                length
            });
            lengths.sum::<usize>()
        };
        assert!(length(2) < length(1));
        let error = Words::new(&Parameters::default().level(3)).err().unwrap();
        assert_eq!(error.to_string(), "level 3: words takes 1 to 2");
    }
}
