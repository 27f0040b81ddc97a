//! The decoder. It checks every bit read and every byte copied. The result is `None` unless the
//! stream fills the page exactly and ends in its CRC.

use super::format::{
    BLOCK, CRC_BITS, END, OPERATION_BITS, PADDING, Part, REPEAT, REPEAT_BITS, TEMPLATES, ZEROES,
    crc32, ring,
};

/// Most padding behind the end, in bytes: some producers pad to multiples of 32.
const PADDING_MAX: usize = 32;

pub(super) fn decompress(source: &[u8], page: &mut [u8]) -> Option<()> {
    if !source.len().is_multiple_of(PADDING) {
        return None;
    }
    let mut bits = Bits { source, at: 0 };
    let mut at = 0;
    loop {
        let operation = bits.take(OPERATION_BITS) as u8;
        match operation {
            END => break,
            REPEAT => {
                let times = 1 + bits.take(REPEAT_BITS) as usize;
                at = repeat(page, at, times)?;
            }
            _ => {
                let made = block(operation, &mut bits, page, at)?;
                *page.get_mut(at..)?.first_chunk_mut()? = made.to_be_bytes();
                at += BLOCK;
            }
        }
    }
    let crc = bits.take(CRC_BITS) as u32;
    // Bits beyond the end read as zeroes until here. The loop ends all the same: the page gets full.
    let padding = source.len().checked_sub(bits.at.div_ceil(8))?;
    (at == page.len() && padding < PADDING_MAX && crc == crc32(page)).then_some(())
}

/// Writes the block before `at` `times` more. Returns the end.
fn repeat(page: &mut [u8], at: usize, times: usize) -> Option<usize> {
    let last = *page
        .get(at.checked_sub(BLOCK)?..at)?
        .first_chunk::<BLOCK>()?;
    let end = at + times * BLOCK;
    for block in page.get_mut(at..end)?.chunks_exact_mut(BLOCK) {
        block.copy_from_slice(&last);
    }
    Some(end)
}

/// The eight bytes that `operation` makes at `at`, the first in the highest bits.
#[inline(always)]
fn block(operation: u8, bits: &mut Bits<'_>, page: &[u8], at: usize) -> Option<u64> {
    macro_rules! by_template {
        ($($number:literal)*) => {
            match operation {
                ZEROES => Some(0),
                0 => Some(bits.take(32) << 32 | bits.take(32)),
                $($number => parts::<$number>(bits, page, at),)*
                _ => None,
            }
        };
    }
    by_template!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25)
}

/// The parts of a template other than the first. The compiler knows the template and unrolls the loop. All
/// bits of the template are in one window.
#[inline(always)]
fn parts<const TEMPLATE: usize>(bits: &mut Bits<'_>, page: &[u8], at: usize) -> Option<u64> {
    let mut window = bits.window();
    let mut made = 0;
    for part in TEMPLATES[TEMPLATE] {
        let value = window >> (u64::BITS - part.bits());
        window <<= part.bits();
        bits.at += part.bits() as usize;
        made = match *part {
            Part::Data(bytes) => made << (8 * bytes) | value,
            Part::Index(2) => made << 16 | u64::from(u16::from_be_bytes(seen(page, value, at)?)),
            Part::Index(4) => made << 32 | u64::from(u32::from_be_bytes(seen(page, value, at)?)),
            Part::Index(_) => u64::from_be_bytes(seen(page, value, at)?),
        };
    }
    Some(made)
}

/// The part of `N` bytes that is number `index` of its ring when `at` bytes are complete.
#[inline(always)]
fn seen<const N: usize>(page: &[u8], index: u64, at: usize) -> Option<[u8; N]> {
    page.get(place(index as usize, N, at)?..)?
        .first_chunk()
        .copied()
}

/// The place of the part with number `index` in its ring, when `at` bytes are complete.
#[inline(always)]
fn place(index: usize, bytes: usize, at: usize) -> Option<usize> {
    let ring = ring(bytes);
    let place = at / ring * ring + index * bytes;
    match place < at {
        true => Some(place),
        false => place.checked_sub(ring),
    }
}

/// Reads bits, the highest of each byte first.
struct Bits<'a> {
    source: &'a [u8],
    /// In bits.
    at: usize,
}

impl Bits<'_> {
    /// The next bits, 57 or more, from the highest on; zeroes behind the end.
    #[inline(always)]
    fn window(&self) -> u64 {
        let (byte, skip) = (self.at / 8, self.at % 8);
        let word = match self.source.get(byte..).and_then(<[u8]>::first_chunk) {
            Some(word) => u64::from_be_bytes(*word),
            None => last_word(self.source, byte),
        };
        word << skip
    }

    /// The next `bits`, 1 to 57, as a number.
    #[inline(always)]
    fn take(&mut self, bits: u32) -> u64 {
        let value = self.window() >> (u64::BITS - bits);
        self.at += bits as usize;
        value
    }
}

/// The rest of the source from `byte` on, and zeroes.
#[cold]
fn last_word(source: &[u8], byte: usize) -> u64 {
    let rest = source.get(byte..).unwrap_or_default();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    u64::from_be_bytes(last)
}
