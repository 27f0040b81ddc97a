//! A codec for pages of memory whose content is mostly 64-bit words: heaps. It takes units that are a
//! multiple of 4 KiB, needs no dictionary, allocates nothing, and refuses every malformed input.
//!
//! A word is zero, or the same as one of the 255 words before it, or it is coded as what differs from
//! a neighbour. Level 2 has more neighbours, and references to words that share all but 16 bits.
//!
//! Versions for AVX-512, AVX2 and NEON write and read the same bytes as the portable one. With the feature
//! `std` the best that the CPU has is chosen at run time; `UZRAM_WORDS_CPU=scalar` or `avx2` in the
//! environment chooses a lesser one. Without it the crate is `no_std`.
//!
//! ```
//! use uzram_words::{Decoder, Encoder, Level, Version};
//! let page: Vec<u8> = (0..512u64).flat_map(|n| (0x7f00_0000_1000 + n % 40 * 64).to_le_bytes()).collect();
//! let mut encoder = Encoder::new(Level::Fast, Version::best());
//! let mut packed = vec![0; uzram_words::bound(page.len())];
//! let length = encoder.compress(&page, &mut packed)?;
//! assert!(length < 600);
//! let mut back = vec![0; page.len()];
//! Decoder::new(Version::best()).decompress(&packed[..length], &mut back)?;
//! assert_eq!(back, page);
//! # Ok::<(), uzram_words::Error>(())
//! ```

#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![deny(unsafe_code)]

#[cfg(all(target_arch = "x86_64", feature = "std"))]
mod avx2;
#[cfg(all(target_arch = "x86_64", feature = "std"))]
mod avx512;
mod decode;
mod encode;
mod error;
mod format;
#[cfg(all(target_arch = "aarch64", feature = "std"))]
mod neon;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), feature = "std"))]
mod shared;
mod swar;
mod version;

use encode::{Room, Scratch};
pub use error::Error;
pub use format::PAGE_BYTES;
use format::{DENSE, FAST, PAGE_MAX_BYTES, PLAIN, RAW, ROOM_BYTES};
use version::Kind;
pub use version::Version;

/// How much time is given for density. A decoder takes pages of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Level 1.
    Fast,
    /// Level 2.
    Dense,
}

/// The length in bytes that no compressed unit of `unit_bytes` exceeds.
#[must_use]
pub const fn bound(unit_bytes: usize) -> usize {
    unit_bytes.div_ceil(PAGE_BYTES) * PAGE_MAX_BYTES
}

/// Compresses units, one at a time. It takes some 35 KiB and keeps nothing from call to call.
pub struct Encoder {
    level: Level,
    version: Version,
    scratch: Scratch,
    /// Where a page is made for which the destination may have too little room.
    room: Room,
}

impl Encoder {
    /// An encoder whose output does not depend on `version`.
    #[must_use]
    pub const fn new(level: Level, version: Version) -> Encoder {
        Encoder {
            level,
            version,
            scratch: Scratch::new(),
            room: [0; ROOM_BYTES],
        }
    }

    /// Compresses `source`, one unit, to the start of `destination` and returns the length in bytes.
    ///
    /// # Errors
    /// [`Error::Unit`], [`Error::Destination`].
    pub fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Result<usize, Error> {
        let (pages, rest) = source.as_chunks();
        if pages.is_empty() || !rest.is_empty() {
            return Err(Error::Unit(source.len()));
        }
        let room_bytes = destination.len();
        let mut at = 0;
        for page in pages {
            at += self
                .compress_page(page, &mut destination[at..])
                .ok_or(Error::Destination(room_bytes))?;
        }
        Ok(at)
    }

    /// Compresses straight into the destination if that has room for whatever may come, and by way of
    /// room of our own otherwise.
    fn compress_page(&mut self, page: &[u8; PAGE_BYTES], destination: &mut [u8]) -> Option<usize> {
        let (level, version) = (self.level, self.version);
        if let Some(room) = destination.first_chunk_mut::<ROOM_BYTES>() {
            return Some(compress_page(level, version, page, &mut self.scratch, room));
        }
        let room = &mut self.room;
        let length = compress_page(level, version, page, &mut self.scratch, room);
        destination
            .get_mut(..length)?
            .copy_from_slice(&room[..length]);
        Some(length)
    }
}

fn compress_page(
    level: Level,
    version: Version,
    page: &[u8; PAGE_BYTES],
    scratch: &mut Scratch,
    out: &mut Room,
) -> usize {
    match (version.kind(), level) {
        (Kind::Scalar, Level::Fast) => encode::page::<FAST>(page, scratch, out),
        (Kind::Scalar, Level::Dense) => encode::page::<DENSE>(page, scratch, out),
        #[cfg(all(target_arch = "x86_64", feature = "std"))]
        (Kind::Avx2(cpu), Level::Fast) => avx2::encode::<FAST>(cpu, page, scratch, out),
        #[cfg(all(target_arch = "x86_64", feature = "std"))]
        (Kind::Avx2(cpu), Level::Dense) => avx2::encode::<DENSE>(cpu, page, scratch, out),
        #[cfg(all(target_arch = "x86_64", feature = "std"))]
        (Kind::Avx512(cpu), Level::Fast) => avx512::encode::<FAST>(cpu, page, scratch, out),
        #[cfg(all(target_arch = "x86_64", feature = "std"))]
        (Kind::Avx512(cpu), Level::Dense) => avx512::encode::<DENSE>(cpu, page, scratch, out),
        #[cfg(all(target_arch = "aarch64", feature = "std"))]
        (Kind::Neon(cpu), Level::Fast) => neon::encode::<FAST>(cpu, page, scratch, out),
        #[cfg(all(target_arch = "aarch64", feature = "std"))]
        (Kind::Neon(cpu), Level::Dense) => neon::encode::<DENSE>(cpu, page, scratch, out),
    }
}

/// Decompresses units.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    version: Version,
}

impl Decoder {
    /// A decoder that takes the same bytes whatever its `version`.
    #[must_use]
    pub const fn new(version: Version) -> Decoder {
        Decoder { version }
    }

    /// Fills all of `destination`, one unit, from all of `source`. After an error the destination's
    /// content is unspecified.
    ///
    /// # Errors
    /// [`Error::Unit`]; [`Error::Malformed`] for a source that no encoder could have made for a unit of
    /// this size.
    pub fn decompress(&self, mut source: &[u8], destination: &mut [u8]) -> Result<(), Error> {
        let unit_bytes = destination.len();
        let (pages, rest) = destination.as_chunks_mut();
        if pages.is_empty() || !rest.is_empty() {
            return Err(Error::Unit(unit_bytes));
        }
        for page in pages {
            source = decompress_page(self.version, source, page)?;
        }
        if source.is_empty() {
            Ok(())
        } else {
            Err(Error::Malformed)
        }
    }
}

/// Fills `page` from the front of `source` and returns what is left.
fn decompress_page<'a>(
    version: Version,
    source: &'a [u8],
    page: &mut [u8; PAGE_BYTES],
) -> Result<&'a [u8], Error> {
    let (&method, source) = source.split_first().ok_or(Error::Malformed)?;
    let is_plain = method & PLAIN != 0;
    match (version.kind(), method & !PLAIN) {
        (_, RAW) if !is_plain => {
            let (raw, rest) = source.split_first_chunk().ok_or(Error::Malformed)?;
            *page = *raw;
            Ok(rest)
        }
        (Kind::Scalar, FAST) => decode::page::<FAST>(is_plain, source, page),
        (Kind::Scalar, DENSE) => decode::page::<DENSE>(is_plain, source, page),
        #[cfg(all(target_arch = "x86_64", feature = "std"))]
        (Kind::Avx2(cpu), FAST) => avx2::decode::<FAST>(cpu, is_plain, source, page),
        #[cfg(all(target_arch = "x86_64", feature = "std"))]
        (Kind::Avx2(cpu), DENSE) => avx2::decode::<DENSE>(cpu, is_plain, source, page),
        #[cfg(all(target_arch = "x86_64", feature = "std"))]
        (Kind::Avx512(cpu), FAST) => avx512::decode::<FAST>(cpu, is_plain, source, page),
        #[cfg(all(target_arch = "x86_64", feature = "std"))]
        (Kind::Avx512(cpu), DENSE) => avx512::decode::<DENSE>(cpu, is_plain, source, page),
        #[cfg(all(target_arch = "aarch64", feature = "std"))]
        (Kind::Neon(cpu), FAST) => neon::decode::<FAST>(cpu, is_plain, source, page),
        #[cfg(all(target_arch = "aarch64", feature = "std"))]
        (Kind::Neon(cpu), DENSE) => neon::decode::<DENSE>(cpu, is_plain, source, page),
        _ => Err(Error::Malformed),
    }
}
