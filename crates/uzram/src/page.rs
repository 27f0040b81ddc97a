//! The store's page: its size, its index, and the test for one repeated word.

use std::fmt;

use crate::cpu;
use crate::error::{Error, ErrorKind, Result};

/// Smallest unit, and the page size of the operating system, in bytes.
pub const UNIT_MIN_BYTES: usize = 4096;
/// Largest unit, in bytes: a stored size minus one must fit the 16 bits of a slot word.
pub const UNIT_MAX_BYTES: usize = 65536;

/// The size of a store's page: a power of two from 4 KiB to 64 KiB.
///
/// A unit is compressed at once. Larger units compress better and cost more per small read.
///
/// ```
/// use uzram::Unit;
/// assert_eq!(Unit::new(16384)?.bytes(), 16384);
/// assert!(Unit::new(5000).is_err());
/// # Ok::<(), uzram::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit {
    shift: u8,
}

impl Unit {
    /// 4 KiB, as in the kernel's zram.
    pub const DEFAULT: Unit = Unit { shift: 12 };

    /// A unit of `bytes` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] unless `bytes` is 4096, 8192, 16384, 32768 or 65536.
    pub fn new(bytes: u64) -> Result<Unit> {
        let in_range = (UNIT_MIN_BYTES as u64..=UNIT_MAX_BYTES as u64).contains(&bytes);
        if !in_range || !bytes.is_power_of_two() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("unit {bytes}: must be 4096, 8192, 16384, 32768 or 65536 bytes"),
            ));
        }
        Ok(Unit {
            shift: bytes.trailing_zeros() as u8,
        })
    }

    /// Size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << self.shift
    }

    /// log2 of the size in bytes: 12 to 16.
    #[must_use]
    pub const fn shift(self) -> u32 {
        self.shift as u32
    }
}

impl Default for Unit {
    fn default() -> Unit {
        Unit::DEFAULT
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}K", self.bytes() >> 10)
    }
}

/// The place of a page in a store, counted in units from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageIndex(pub u64);

impl fmt::Display for PageIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageState {
    /// Never written, or trimmed: reads as zeroes.
    Hole,
    /// Filled with one repeated word, which takes no memory.
    Same(u32),
    /// Raw: compressing it did not pay.
    Raw,
    /// Compressed to this many bytes.
    Compressed {
        /// Size of the object, in bytes.
        size_bytes: u32,
    },
    /// In the backing file.
    WrittenBack,
    /// Lost when the store was taken over: reading it is an error until it is written or trimmed.
    Lost,
}

impl PageState {
    /// Whether the page reads as zeroes, as far as that is known without reading it.
    #[must_use]
    pub fn is_zero(self) -> bool {
        matches!(self, PageState::Hole | PageState::Same(0))
    }
}

/// Whether zeroed pages keep their allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeroing {
    /// Whole pages may become holes.
    MayPunch,
    /// Whole pages are stored as zero-filled pages: allocated, and zero.
    NoHole,
}

/// The 32-bit word (native byte order) that fills all of `page`, if there is one.
///
/// Most pages differ in the first or last word, and cost two loads. A page that repeats a 64-bit
/// word with unequal halves is not same-filled here: it does not fit a slot word and compresses to
/// some thirty bytes.
#[must_use]
pub(crate) fn same_filled(page: &[u8]) -> Option<u32> {
    let (first, rest) = page.split_first_chunk::<4>()?;
    if page.last_chunk::<4>()? != first {
        return None;
    }
    // Equal to itself shifted by one word means periodic in one word; memcmp does the scan.
    (rest == &page[..rest.len()]).then(|| u32::from_ne_bytes(*first))
}

/// Whether `page` looks like random bytes, as compressed and encrypted data does, so that
/// compressing it is not worth a try.
///
/// Counts equal pairs among 256 bytes, in groups of 8 spread over the page. Random bytes have
/// 127.5 of them, with a standard deviation of 11.3. If a tenth of the bytes is alike there are
/// over twice as many. The count stops as soon as it exceeds that of random bytes, which for most
/// pages is after 16 to 64 bytes. Pages of two equal halves are recognized, other repetitions of
/// random bytes are not.
#[must_use]
pub(crate) fn looks_random(page: &[u8]) -> bool {
    /// log2 of the number of parts of a page. One group is taken from each part.
    const PARTS_BITS: u32 = 5;
    const GROUP: usize = 8;
    /// Numbers of groups after which to judge, and the count of pairs that random bytes do not
    /// reach by then: more than 4.2 standard deviations over their mean.
    const JUDGE: [(u8, u32); 5] = [(2, 6), (4, 8), (8, 20), (16, 57), (32, 180)];
    /// Number of groups after which all remaining lines are prefetched at once. Most pages are
    /// decided by then, and the writer reads the others as a whole.
    const AHEAD_FROM: u8 = 4;

    let part_bytes = page.len() >> PARTS_BITS;
    let mut met = [0u8; 256];
    let (mut pairs, mut nth) = (0, 0u8);
    for (groups, pairs_max) in JUDGE {
        while nth < groups {
            // From all over the page first, then in between.
            let part = usize::from(nth.reverse_bits() >> (u8::BITS - PARTS_BITS));
            let phase = part % 16 / 2;
            let group = page[part * part_bytes..].as_chunks::<GROUP>().0[phase];
            for byte in group {
                let met = &mut met[usize::from(byte)];
                pairs += u32::from(*met);
                *met = met.wrapping_add(1);
            }
            nth += 1;
        }
        if pairs > pairs_max {
            return false;
        }
        if groups == AHEAD_FROM {
            let addresses = (page.as_ptr().addr()..).step_by(part_bytes.max(1));
            addresses.take(1 << PARTS_BITS).for_each(cpu::prefetch);
        }
    }
    true
}

/// Fills `part`, which begins `start` bytes into a page, as if the page were filled with `word`.
pub(crate) fn fill(part: &mut [u8], start: usize, word: u32) {
    let mut bytes = word.to_ne_bytes();
    bytes.rotate_left(start % 4);
    if bytes == [bytes[0]; 4] {
        part.fill(bytes[0]);
        return;
    }
    for chunk in part.chunks_mut(4) {
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_filled_finds_every_single_deviation() {
        for word in [0u32, 0x0101_0101, 0xdead_beef] {
            let mut page = vec![0; 4096];
            fill(&mut page, 0, word);
            assert_eq!(same_filled(&page), Some(word));
            for at in 0..page.len() {
                page[at] ^= 0x40;
                assert_eq!(same_filled(&page), None, "byte {at}");
                page[at] ^= 0x40;
            }
        }
    }

    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(2).wrapping_add(1);
        let next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    #[test]
    fn random_pages_look_random_and_pages_that_compress_do_not() {
        for unit in [4096, 16384, 65536] {
            let random = (0..200).filter(|seed| looks_random(&noise(*seed, unit)));
            assert!(random.count() > 197);
            let mistaken = (0..200).filter(|seed| {
                let bytes = noise(*seed, unit);
                let mut letters = bytes.clone();
                letters.iter_mut().for_each(|byte| *byte %= 96);
                let mut gaps = bytes.clone();
                gaps.chunks_mut(64).for_each(|part| part[..8].fill(0));
                let halves = bytes[..unit / 2].repeat(2);
                let numbers: Vec<u8> = bytes
                    .iter()
                    .flat_map(|byte| [*byte, 0, 0, 0])
                    .take(unit)
                    .collect();
                let up: Vec<u8> = (0..unit).map(|at| at as u8).collect();
                [letters, gaps, halves, numbers, up]
                    .iter()
                    .any(|page| looks_random(page))
            });
            assert_eq!(mistaken.count(), 0);
        }
    }

    #[test]
    fn a_part_is_filled_in_the_phase_of_its_page() {
        let mut page = vec![0; 4096];
        fill(&mut page, 0, 0x0403_0201);
        for start in 0..9 {
            let mut part = vec![0; 11];
            fill(&mut part, start, 0x0403_0201);
            assert_eq!(part, page[start..start + 11]);
        }
    }

    #[test]
    fn a_repeated_unequal_64_bit_word_is_not_same_filled() {
        let page: Vec<u8> = (0..4096).map(|i| (i % 8) as u8).collect();
        assert_eq!(same_filled(&page), None);
    }

    #[test]
    fn units_outside_the_range_are_refused() {
        for bytes in [0, 1, 2048, 4097, 12288, 131_072, u64::MAX] {
            assert_eq!(
                Unit::new(bytes).unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
        }
    }
}
