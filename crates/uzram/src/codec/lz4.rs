//! LZ4 blocks: <https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md>.
//!
//! With C codecs this is liblz4's fast compressor with a reused state, whose reset costs nothing
//! between pages. Without them it is lz4_flex, which has neither acceleration nor prepared
//! dictionaries.

#![allow(unsafe_code)]

#[cfg(feature = "c-codecs")]
use super::lz4_dictionary::{Prepared, Search};
use super::{Codec, Compressor, DecompressShared, Decompressor, Malformed, Parameters};
use crate::error::Result;
use crate::memory;
use crate::page::Unit;
#[cfg(feature = "c-codecs")]
use crate::sync::Arc;

pub(super) use imp::State;

pub(super) const NAME: &str = "lz4";

const ACCELERATION_DEFAULT: i32 = 1;

pub(super) struct Lz4 {
    acceleration: i32,
    #[cfg(feature = "c-codecs")]
    dictionary: Option<Arc<Prepared>>,
}

impl Lz4 {
    pub(super) fn new(parameters: &Parameters) -> Result<Lz4> {
        let range = 1..=imp::ACCELERATION_MAX;
        let acceleration = parameters.level_within(NAME, range, ACCELERATION_DEFAULT)?;
        #[cfg(not(feature = "c-codecs"))]
        parameters.no_dictionary(NAME, "built without C codecs; build with them")?;
        Ok(Lz4 {
            acceleration,
            #[cfg(feature = "c-codecs")]
            dictionary: Prepared::new(parameters, Search::Fast(acceleration))?,
        })
    }
}

impl Codec for Lz4 {
    fn name(&self) -> &str {
        NAME
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        #[cfg(feature = "c-codecs")]
        if let Some(dictionary) = &self.dictionary {
            return dictionary.compressor();
        }
        Ok(memory::boxed(State::new(self.acceleration)?)?)
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        #[cfg(feature = "c-codecs")]
        if let Some(dictionary) = &self.dictionary {
            return dictionary.decompressor();
        }
        Ok(Decompressor::Shared(memory::boxed(Lz4Decoder)?))
    }
}

/// Decodes LZ4 blocks without dictionary, from any compressor.
pub(super) struct Lz4Decoder;

impl DecompressShared for Lz4Decoder {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        match imp::decompress(source, destination) {
            Some(length) if length == destination.len() => Ok(()),
            _ => Err(Malformed),
        }
    }
}

#[cfg(feature = "c-codecs")]
mod imp {
    use std::ffi::{c_char, c_int, c_void};

    use crate::codec::Compressor;
    use crate::error::Result;
    use crate::memory;

    pub(super) const ACCELERATION_MAX: c_int = 65537;

    // Functions of liblz4 1.10 that lz4-sys links but does not declare; signatures from lz4.h.
    unsafe extern "C" {
        fn LZ4_sizeofState() -> c_int;
        fn LZ4_initStream(state: *mut c_void, size: usize) -> *mut c_void;
        fn LZ4_compress_fast_extState_fastReset(
            state: *mut c_void,
            source: *const c_char,
            destination: *mut c_char,
            source_bytes: c_int,
            destination_bytes: c_int,
            acceleration: c_int,
        ) -> c_int;
    }

    pub(in crate::codec) struct State {
        words: Box<[u64]>,
        acceleration: c_int,
    }

    impl State {
        pub(in crate::codec) fn new(acceleration: c_int) -> Result<State> {
            // SAFETY: a function without arguments that returns a constant.
            let size_bytes = unsafe { LZ4_sizeofState() } as usize;
            let mut words = memory::boxed_slice(size_bytes.div_ceil(8), 0u64)?;
            // SAFETY: `words` is writable, aligned to 8 and at least `size_bytes` long.
            let stream = unsafe { LZ4_initStream(words.as_mut_ptr().cast(), words.len() * 8) };
            assert!(
                !stream.is_null(),
                "liblz4 takes any buffer of its own size and alignment"
            );
            Ok(State {
                words,
                acceleration,
            })
        }
    }

    impl Compressor for State {
        fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
            // SAFETY: the state was initialised and is exclusively ours; both buffers are valid
            // for the lengths given, and the library writes no more than `destination_bytes`.
            let length = unsafe {
                LZ4_compress_fast_extState_fastReset(
                    self.words.as_mut_ptr().cast(),
                    source.as_ptr().cast(),
                    destination.as_mut_ptr().cast(),
                    c_int::try_from(source.len()).ok()?,
                    c_int::try_from(destination.len()).ok()?,
                    self.acceleration,
                )
            };
            usize::try_from(length).ok().filter(|length| *length > 0)
        }
    }

    pub(super) fn decompress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
        // SAFETY: both buffers are valid for the lengths given; the library checks every read and
        // write against them, whatever the bytes are.
        let length = unsafe {
            lz4_sys::LZ4_decompress_safe(
                source.as_ptr().cast(),
                destination.as_mut_ptr().cast(),
                c_int::try_from(source.len()).ok()?,
                c_int::try_from(destination.len()).ok()?,
            )
        };
        usize::try_from(length).ok()
    }
}

#[cfg(not(feature = "c-codecs"))]
mod imp {
    use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};

    use crate::codec::Compressor;
    use crate::error::Result;

    pub(super) const ACCELERATION_MAX: i32 = 1;

    pub(in crate::codec) struct State {
        table: CompressTable,
    }

    impl State {
        /// The table lies in the state itself, so the box is the only allocation.
        pub(in crate::codec) fn new(_acceleration: i32) -> Result<State> {
            Ok(State {
                table: CompressTable::small(),
            })
        }
    }

    impl Compressor for State {
        fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
            compress_into_with_table(source, destination, &mut self.table).ok()
        }
    }

    pub(super) fn decompress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
        decompress_into(source, destination).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter;

    /// `literals` literals, a match of `length` bytes at `offset`, and literals up to the unit.
    fn block(literals: usize, offset: u16, length: usize) -> Vec<u8> {
        let extended = |over: usize| [vec![255; over / 255], vec![(over % 255) as u8]].concat();
        let mut block = vec![(literals as u8) << 4 | 15];
        block.extend(vec![b'x'; literals]);
        block.extend(offset.to_le_bytes());
        block.extend(extended(length - 19));
        let rest = 4096 - literals - length;
        if rest < 15 {
            block.push((rest as u8) << 4);
        } else {
            block.push(15 << 4);
            block.extend(extended(rest - 15));
        }
        block.extend(vec![b'y'; rest]);
        block
    }

    /// A decoder with a dictionary, and the farthest offset after four literals.
    #[cfg(feature = "c-codecs")]
    fn with_two_bytes() -> Option<(Box<dyn DecompressShared>, u16)> {
        let parameters = Parameters::default().dictionary(&b"de"[..]);
        let lz4 = Lz4::new(&parameters).unwrap();
        match lz4.decompressor(Unit::DEFAULT).unwrap() {
            Decompressor::Shared(decoder) => Some((decoder, 6)),
            Decompressor::Stateful(_) => None,
        }
    }

    #[cfg(not(feature = "c-codecs"))]
    fn with_two_bytes() -> Option<(Box<dyn DecompressShared>, u16)> {
        None
    }

    /// Offset 0 is invalid: a copy onto itself would keep the old bytes.
    #[test]
    fn matches_of_what_is_not_yet_written_show_no_old_bytes() {
        let plain: (Box<dyn DecompressShared>, u16) = (Box::new(Lz4Decoder), 4);
        let decoders: Vec<_> = iter::once(plain).chain(with_two_bytes()).collect();
        let lengths = || (19..80).chain(4040..4088);
        for (offset, length) in (0..=8).flat_map(|o| lengths().map(move |l| (o, l))) {
            let block = block(4, offset, length);
            let decode = |decoder: &dyn DecompressShared, old: u8| {
                let mut page = vec![old; 4096];
                decoder.decompress(&block, &mut page).map(|()| page)
            };
            for (decoder, reach) in &decoders {
                assert!(
                    decode(&**decoder, 0xa5) == decode(&**decoder, 0x5a),
                    "offset {offset}, length {length}, reach {reach}"
                );
                assert!(
                    offset == 0 || decode(&**decoder, 0).is_ok() == (offset <= *reach),
                    "{offset}"
                );
            }
        }
    }
}
