//! A codec as a library's user may write one: it pads, it expands, it keeps state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use uzram::{Codec, Compressor, Decompress, Decompressor, Malformed, Result, Unit};

/// Lengths are multiples of this, in bytes.
const PADDING: usize = 8;

/// Run lengths, padded to 8 bytes. Noise expands to exactly two units. Decoding keeps state, which
/// notices when two threads are in it.
#[derive(Clone, Default)]
pub struct Runs {
    /// Contexts made so far.
    pub compressors: Arc<AtomicUsize>,
    /// Likewise.
    pub decompressors: Arc<AtomicUsize>,
}

/// One context.
pub struct RunsState {
    inside: AtomicBool,
    scratch: Vec<u8>,
}

impl RunsState {
    pub fn new() -> RunsState {
        RunsState {
            inside: AtomicBool::new(false),
            scratch: Vec::new(),
        }
    }

    fn alone<T>(&mut self, work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "state is shared");
        self.scratch.clear();
        let done = work(&mut self.scratch);
        self.inside.store(false, Ordering::SeqCst);
        done
    }
}

impl Codec for Runs {
    fn name(&self) -> &str {
        "runs"
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        self.compressors.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(RunsState::new()))
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        self.decompressors.fetch_add(1, Ordering::Relaxed);
        Ok(Decompressor::Stateful(Box::new(RunsState::new())))
    }
}

impl Compressor for RunsState {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        self.alone(|pairs| {
            for run in source.chunk_by(|a, b| a == b) {
                for part in run.chunks(255) {
                    pairs.extend_from_slice(&[part.len() as u8, part[0]]);
                }
            }
            pairs.resize(pairs.len().next_multiple_of(PADDING), 0);
            destination.get_mut(..pairs.len())?.copy_from_slice(pairs);
            Some(pairs.len())
        })
    }
}

impl Decompress for RunsState {
    fn decompress(&mut self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        self.alone(|page| {
            if !source.len().is_multiple_of(PADDING) {
                return Err(Malformed);
            }
            // A run of no bytes is padding, of which there is less than what pads.
            let end = source.chunks_exact(2).take_while(|pair| pair[0] > 0);
            let (pairs, padding) = source.split_at(2 * end.count());
            if padding.len() >= PADDING || padding.iter().any(|byte| *byte > 0) {
                return Err(Malformed);
            }
            for pair in pairs.chunks_exact(2) {
                page.resize(page.len() + usize::from(pair[0]), pair[1]);
            }
            if page.len() != destination.len() {
                return Err(Malformed);
            }
            destination.copy_from_slice(page);
            Ok(())
        })
    }
}
