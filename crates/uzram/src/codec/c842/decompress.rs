//! The decoder: every bit read and every byte copied is checked, and `None` is the answer to anything
//! that does not fill the page exactly and end in its CRC.

use super::{
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
        let operation = bits.take(OPERATION_BITS)? as u8;
        match operation {
            END => break,
            ZEROES => page.get_mut(at..at + BLOCK)?.fill(0),
            REPEAT => {
                let times = 1 + bits.take(REPEAT_BITS)? as usize;
                at = repeat(page, at, times)?;
                continue;
            }
            template => {
                let parts = TEMPLATES.get(usize::from(template))?;
                block(&mut bits, parts, page, at)?;
            }
        }
        at += BLOCK;
    }
    let crc = bits.take(CRC_BITS)? as u32;
    let padding = source.len() - bits.at.div_ceil(8);
    (at == page.len() && padding < PADDING_MAX && crc == crc32(page)).then_some(())
}

/// Writes the block before `at` `times` more and returns where that ends.
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

/// Fills the block at `at` with its parts.
#[inline(always)]
fn block(bits: &mut Bits<'_>, parts: &[Part], page: &mut [u8], at: usize) -> Option<()> {
    let mut made = [0; BLOCK];
    let mut filled = 0;
    for part in parts {
        let to = &mut made[filled..filled + part.bytes()];
        match *part {
            Part::Data(BLOCK) => {
                let (high, low) = (bits.take(32)?, bits.take(32)?);
                to.copy_from_slice(&(high << 32 | low).to_be_bytes());
            }
            Part::Data(bytes) => {
                let value = bits.take(part.bits())?;
                to.copy_from_slice(&value.to_be_bytes()[8 - bytes..]);
            }
            Part::Index(bytes) => {
                let from = place(bits.take(part.bits())? as usize, bytes, at)?;
                to.copy_from_slice(page.get(from..from + bytes)?);
            }
        }
        filled += part.bytes();
    }
    page.get_mut(at..at + BLOCK)?.copy_from_slice(&made);
    Some(())
}

/// Where the part lies that is number `index` of its ring when `at` bytes are complete.
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
    /// The next `bits`, at most 32, as a number.
    #[inline(always)]
    fn take(&mut self, bits: u32) -> Option<u64> {
        let (byte, skip) = (self.at / 8, self.at as u32 % 8);
        let rest = self.source.get(byte..)?;
        let word = match rest.first_chunk() {
            Some(word) => u64::from_be_bytes(*word),
            None => {
                let mut last = [0; 8];
                last[..rest.len()].copy_from_slice(rest);
                u64::from_be_bytes(last)
            }
        };
        self.at += bits as usize;
        (self.at <= 8 * self.source.len()).then_some(word << skip >> (64 - bits))
    }
}
