//! lz4 and lz4hc with a dictionary: liblz4 indexes it once, and every context attaches to the index.
//!
//! The format reaches back 64 KiB, so only that much of a dictionary's end is useful, and less
//! with units larger than 4 KiB. Attaching costs nothing per page, but matches are then searched
//! in two tables.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use super::{Compressor, DecompressShared, Decompressor, Malformed, Parameters};
use crate::error::Result;
use crate::memory;
use crate::sync::Arc;

/// The farthest distance of the format, in bytes.
const REACH_BYTES: usize = 64 << 10;

// Functions of liblz4 1.10 that lz4-sys links but does not declare; signatures from lz4.h and lz4hc.h.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_initStream(state: *mut c_void, size: usize) -> *mut c_void;
    fn LZ4_resetStream_fast(state: *mut c_void);
    fn LZ4_loadDictSlow(state: *mut c_void, bytes: *const c_char, length: c_int) -> c_int;
    fn LZ4_attach_dictionary(state: *mut c_void, dictionary: *const c_void);
    fn LZ4_compress_fast_continue(
        state: *mut c_void,
        source: *const c_char,
        destination: *mut c_char,
        source_bytes: c_int,
        destination_bytes: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_initStreamHC(state: *mut c_void, size: usize) -> *mut c_void;
    fn LZ4_resetStreamHC_fast(state: *mut c_void, level: c_int);
    fn LZ4_loadDictHC(state: *mut c_void, bytes: *const c_char, length: c_int) -> c_int;
    fn LZ4_attach_HC_dictionary(state: *mut c_void, dictionary: *const c_void);
    fn LZ4_compress_HC_continue(
        state: *mut c_void,
        source: *const c_char,
        destination: *mut c_char,
        source_bytes: c_int,
        destination_bytes: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_usingDict(
        source: *const c_char,
        destination: *mut c_char,
        source_bytes: c_int,
        destination_bytes: c_int,
        dictionary: *const c_char,
        dictionary_bytes: c_int,
    ) -> c_int;
}

/// One of the library's compressors, with its acceleration or level.
#[derive(Clone, Copy, Debug)]
pub(super) enum Search {
    Fast(c_int),
    High(c_int),
}

/// A dictionary and the library's index of it, which points into it.
pub(super) struct Prepared {
    index: State,
    bytes: Arc<[u8]>,
    search: Search,
}

impl Prepared {
    /// The dictionary of `parameters`, if there is one.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub(super) fn new(parameters: &Parameters, search: Search) -> Result<Option<Arc<Prepared>>> {
        let Some(bytes) = parameters.loaded_dictionary() else {
            return Ok(None);
        };
        let mut index = State::new(search)?;
        index.reset(search);
        let tail = tail(&bytes);
        let (state, start, length) = (index.pointer(), tail.as_ptr().cast(), tail.len() as c_int);
        match search {
            // SAFETY: the state was initialised; the bytes are valid for the length given, and stay
            // where they are as long as the index is used, for both are parts of `Prepared`.
            Search::Fast(_) => unsafe { LZ4_loadDictSlow(state, start, length) },
            // SAFETY: as above; the level was set before, as the library wants it.
            Search::High(_) => unsafe { LZ4_loadDictHC(state, start, length) },
        };
        let prepared = Prepared {
            index,
            bytes,
            search,
        };
        Ok(Some(Arc::new(prepared)))
    }

    pub(super) fn compressor(self: &Arc<Prepared>) -> Result<Box<dyn Compressor>> {
        Ok(memory::boxed(Attached {
            state: State::new(self.search)?,
            dictionary: Arc::clone(self),
        })?)
    }

    pub(super) fn decompressor(self: &Arc<Prepared>) -> Result<Decompressor> {
        Ok(Decompressor::Shared(memory::boxed(Decoder {
            dictionary: Arc::clone(self),
        })?))
    }
}

/// The library's state between calls: an `LZ4_stream_t` or `LZ4_streamHC_t`.
struct State {
    words: Box<[u64]>,
}

impl State {
    fn new(search: Search) -> Result<State> {
        let size_bytes = match search {
            // SAFETY: a function without arguments that returns a constant.
            Search::Fast(_) => unsafe { LZ4_sizeofState() },
            // SAFETY: likewise.
            Search::High(_) => unsafe { LZ4_sizeofStateHC() },
        };
        let words = memory::boxed_slice((size_bytes as usize).div_ceil(8), 0u64)?;
        let mut state = State { words };
        state.initialise(search);
        Ok(state)
    }

    fn initialise(&mut self, search: Search) {
        let (state, size_bytes) = (self.pointer(), self.words.len() * 8);
        let made = match search {
            // SAFETY: the words are writable, aligned to 8 and as many bytes as said.
            Search::Fast(_) => unsafe { LZ4_initStream(state, size_bytes) },
            // SAFETY: likewise.
            Search::High(_) => unsafe { LZ4_initStreamHC(state, size_bytes) },
        };
        assert!(
            !made.is_null(),
            "liblz4 takes any buffer of its own size and alignment"
        );
    }

    /// Forgets the last page and the attached dictionary.
    fn reset(&mut self, search: Search) {
        let state = self.pointer();
        match search {
            // SAFETY: the state was initialised.
            Search::Fast(_) => unsafe { LZ4_resetStream_fast(state) },
            // SAFETY: the state was initialised.
            Search::High(level) => unsafe { LZ4_resetStreamHC_fast(state, level) },
        }
    }

    fn pointer(&mut self) -> *mut c_void {
        self.words.as_mut_ptr().cast()
    }
}

/// A context that searches the dictionary's index.
struct Attached {
    state: State,
    dictionary: Arc<Prepared>,
}

impl Compressor for Attached {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        let Prepared { index, search, .. } = &*self.dictionary;
        let index: *const c_void = index.words.as_ptr().cast();
        self.state.reset(*search);
        let state = self.state.pointer();
        let (from, from_bytes) = (source.as_ptr().cast(), c_int::try_from(source.len()).ok()?);
        let to_bytes = c_int::try_from(destination.len()).ok()?;
        let to = destination.as_mut_ptr().cast();
        let length = match *search {
            Search::Fast(acceleration) => {
                // SAFETY: the state is freshly reset and ours alone; the index was prepared for this
                // and nobody writes to it any more.
                unsafe { LZ4_attach_dictionary(state, index) };
                // SAFETY: both buffers are valid for the lengths given, and the library writes no
                // more than `to_bytes`.
                unsafe {
                    LZ4_compress_fast_continue(state, from, to, from_bytes, to_bytes, acceleration)
                }
            }
            Search::High(_) => {
                // SAFETY: as above.
                unsafe { LZ4_attach_HC_dictionary(state, index) };
                // SAFETY: as above.
                unsafe { LZ4_compress_HC_continue(state, from, to, from_bytes, to_bytes) }
            }
        };
        let length = usize::try_from(length).ok().filter(|length| *length > 0);
        if length.is_none() {
            // A state that has failed must not be reused otherwise.
            self.state.initialise(*search);
        }
        length
    }
}

/// Decodes the output of any compressor with this dictionary.
struct Decoder {
    dictionary: Arc<Prepared>,
}

impl DecompressShared for Decoder {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        let tail = tail(&self.dictionary.bytes);
        let bytes = |length: usize| c_int::try_from(length).map_err(|_| Malformed);
        let (source_bytes, page_bytes) = (bytes(source.len())?, bytes(destination.len())?);
        // SAFETY: all three buffers are valid for the lengths given; the library checks every read
        // and write against them, whatever the bytes are.
        let length = unsafe {
            LZ4_decompress_safe_usingDict(
                source.as_ptr().cast(),
                destination.as_mut_ptr().cast(),
                source_bytes,
                page_bytes,
                tail.as_ptr().cast(),
                tail.len() as c_int,
            )
        };
        match length == page_bytes {
            true => Ok(()),
            false => Err(Malformed),
        }
    }
}

/// The part of a dictionary that the format can reach.
fn tail(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.len().saturating_sub(REACH_BYTES)..]
}
