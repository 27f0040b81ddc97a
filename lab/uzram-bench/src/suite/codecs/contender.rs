//! The sides of the suite: a codec behind the engine's interface, a library alone, a copy.

use uzram::{Compression, Compressor, Decompressor, Parameters, Unit};

use crate::error::Result;

/// A side: it compresses a page and restores it.
pub(super) trait Contender: Send {
    /// The variant's name in reports.
    fn name(&self) -> &str;

    /// Compresses `page` into `packed`, two pages long, and returns the length in bytes.
    fn compress(&mut self, page: &[u8], packed: &mut [u8]) -> Option<usize>;

    /// Fills `page` from what `compress` made; `None` if that is malformed.
    fn decompress(&mut self, packed: &[u8], page: &mut [u8]) -> Option<()>;
}

/// An algorithm of the engine, at a level of its own or at another.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) algorithm: String,
    pub(super) level: Option<i32>,
}

impl Setting {
    pub(super) fn default_of(algorithm: &str) -> Setting {
        Setting {
            algorithm: algorithm.to_owned(),
            level: None,
        }
    }

    /// As in the command's options: `ALGORITHM` or `ALGORITHM:level=N`, without the words.
    pub(super) fn name(&self) -> String {
        match self.level {
            Some(level) => format!("{}:{level}", self.algorithm),
            None => self.algorithm.clone(),
        }
    }

    pub(super) fn parameters(&self) -> Parameters {
        let parameters = Parameters::default();
        match self.level {
            Some(level) => parameters.level(level),
            None => parameters,
        }
    }
}

/// A codec as the store calls it.
pub(super) struct Engine {
    name: String,
    compressor: Box<dyn Compressor>,
    decompressor: Decompressor,
}

impl Engine {
    pub(super) fn new(setting: &Setting) -> Result<Engine> {
        let (algorithm, parameters) = (&setting.algorithm, setting.parameters());
        let compression = Compression::with_parameters(algorithm, &parameters, Unit::DEFAULT)?;
        let codec = compression.codec();
        Ok(Engine {
            name: setting.name(),
            compressor: codec.compressor(Unit::DEFAULT)?,
            decompressor: codec.decompressor(Unit::DEFAULT)?,
        })
    }
}

impl Contender for Engine {
    fn name(&self) -> &str {
        &self.name
    }

    fn compress(&mut self, page: &[u8], packed: &mut [u8]) -> Option<usize> {
        self.compressor.compress(page, packed)
    }

    fn decompress(&mut self, packed: &[u8], page: &mut [u8]) -> Option<()> {
        let result = match &mut self.decompressor {
            Decompressor::Shared(shared) => shared.decompress(packed, page),
            Decompressor::Stateful(state) => state.decompress(packed, page),
        };
        result.ok()
    }
}

/// The floor: the page as it is.
pub(super) struct Copy;

impl Contender for Copy {
    fn name(&self) -> &str {
        "memcpy"
    }

    fn compress(&mut self, page: &[u8], packed: &mut [u8]) -> Option<usize> {
        packed.get_mut(..page.len())?.copy_from_slice(page);
        Some(page.len())
    }

    fn decompress(&mut self, packed: &[u8], page: &mut [u8]) -> Option<()> {
        (packed.len() == page.len()).then(|| page.copy_from_slice(packed))
    }
}
