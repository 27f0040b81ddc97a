//! Codecs of others that the engine does not have.

use super::contender::Contender;
use crate::peers::wkdm;

/// Snappy, in the raw format, by the crate `snap`.
pub(super) struct Snappy {
    encoder: snap::raw::Encoder,
    decoder: snap::raw::Decoder,
}

impl Snappy {
    pub(super) fn new() -> Snappy {
        Snappy {
            encoder: snap::raw::Encoder::new(),
            decoder: snap::raw::Decoder::new(),
        }
    }
}

impl Contender for Snappy {
    fn name(&self) -> &str {
        "snappy"
    }

    fn compress(&mut self, page: &[u8], packed: &mut [u8]) -> Option<usize> {
        self.encoder.compress(page, packed).ok()
    }

    fn decompress(&mut self, packed: &[u8], page: &mut [u8]) -> Option<()> {
        let length = self.decoder.decompress(packed, page).ok()?;
        (length == page.len()).then_some(())
    }
}

/// WKdm, as published.
pub(super) struct Wkdm(Box<wkdm::Wkdm>);

impl Wkdm {
    pub(super) fn new() -> Wkdm {
        Wkdm(wkdm::Wkdm::new())
    }
}

impl Contender for Wkdm {
    fn name(&self) -> &str {
        "wkdm"
    }

    fn compress(&mut self, page: &[u8], packed: &mut [u8]) -> Option<usize> {
        self.0.compress(page.try_into().ok()?, packed)
    }

    fn decompress(&mut self, packed: &[u8], page: &mut [u8]) -> Option<()> {
        self.0.decompress(packed, page.try_into().ok()?)
    }
}
