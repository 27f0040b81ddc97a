//! The encoder: for each 8 bytes it takes the template with the fewest bits among those whose
//! parts occur in their rings.

use super::format::{
    BLOCK, CRC_BITS, END, OPERATION_BITS, PADDING, Part, REPEAT, REPEAT_BITS, REPEAT_MAX,
    TEMPLATES, ZEROES, crc32, ring,
};
use crate::error::Result;
use crate::memory;

/// log2 of the table sizes for parts of 2, 4 and 8 bytes: many times the ring's, so that few
/// entries are overwritten by others.
const SLOTS_BITS: [u32; 3] = [12, 12, 12];

/// Fewer zero blocks than this are cheaper one by one than as a repetition.
const ZEROES_REPEAT_MIN: usize = 3;

/// The last place of each part. It is cleared for each page.
pub(super) struct Finder {
    by_size: [Seen; 3],
}

/// Parts of one size, by hash: one more than the part's number within the page, 0 for none.
struct Seen {
    slots: Box<[u16]>,
    shift: u32,
}

/// The parts of a block that indexes can encode, one bit each: parts of 2 bytes in bits 0 to 3, of
/// 4 in bits 4 and 5, of 8 in bit 6.
type Known = usize;

/// A block's indexes, in the order of the bits of [`Known`].
type Indexes = [u16; 7];

impl Finder {
    pub(super) fn new() -> Result<Finder> {
        let seen = |bits: u32| {
            Ok(Seen {
                slots: memory::boxed_slice(1 << bits, 0)?,
                shift: 64 - bits,
            })
        };
        let [twos, fours, eights] = SLOTS_BITS;
        Ok(Finder {
            by_size: [seen(twos)?, seen(fours)?, seen(eights)?],
        })
    }

    /// `None` if `source` is not in whole blocks or `destination` is too small.
    pub(super) fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        let (blocks, []) = source.as_chunks::<BLOCK>() else {
            return None;
        };
        for seen in &mut self.by_size {
            seen.slots.fill(0);
        }
        let mut out = Bits {
            bytes: destination,
            at: 0,
            pending: 0,
            pending_bits: 0,
        };
        let mut number = 0;
        while number < blocks.len() {
            let repeated = repetitions(blocks, number);
            if repeated > 0 {
                out.put(REPEAT.into(), OPERATION_BITS)?;
                out.put(repeated as u32 - 1, REPEAT_BITS)?;
            } else if blocks[number] == [0; BLOCK] {
                out.put(ZEROES.into(), OPERATION_BITS)?;
            } else {
                let (known, indexes) = self.find(source, number);
                put_block(&mut out, &blocks[number], known, &indexes)?;
            }
            let done = repeated.max(1);
            for (block, number) in blocks[number..][..done].iter().zip(number..) {
                self.remember(block, number);
            }
            number += done;
        }
        out.put(END.into(), OPERATION_BITS)?;
        out.put(crc32(source), CRC_BITS)?;
        out.finish()
    }

    /// The parts of block `number` that indexes can encode.
    #[inline(always)]
    fn find(&self, source: &[u8], number: usize) -> (Known, Indexes) {
        let (mut known, mut indexes) = (0, [0; 7]);
        let [twos, fours, eights] = &self.by_size;
        twos.find::<2>(source, number, &mut known, &mut indexes);
        fours.find::<4>(source, number, &mut known, &mut indexes);
        eights.find::<8>(source, number, &mut known, &mut indexes);
        (known, indexes)
    }

    #[inline(always)]
    fn remember(&mut self, block: &[u8; BLOCK], number: usize) {
        let [twos, fours, eights] = &mut self.by_size;
        twos.remember::<2>(block, number);
        fours.remember::<4>(block, number);
        eights.remember::<8>(block, number);
    }
}

impl Seen {
    /// Adds the parts of `BYTES` bytes of block `number` that occurred before to `known`.
    #[inline(always)]
    fn find<const BYTES: usize>(
        &self,
        source: &[u8],
        number: usize,
        known: &mut Known,
        indexes: &mut Indexes,
    ) {
        let places = ring(BYTES) / BYTES;
        let before = number * (BLOCK / BYTES);
        let (parts, _) = source.as_chunks::<BYTES>();
        for (nth, part) in parts[before..][..BLOCK / BYTES].iter().enumerate() {
            let Some(met) = usize::from(self.slots[self.slot(part)]).checked_sub(1) else {
                continue;
            };
            if before - met <= places && parts[met] == *part {
                let bit = bit(BYTES, nth * BYTES);
                *known |= 1 << bit;
                indexes[bit] = (met % places) as u16;
            }
        }
    }

    #[inline(always)]
    fn remember<const BYTES: usize>(&mut self, block: &[u8; BLOCK], number: usize) {
        let (parts, _) = block.as_chunks::<BYTES>();
        for (part, number) in parts.iter().zip(number * (BLOCK / BYTES)..) {
            let slot = self.slot(part);
            self.slots[slot] = number as u16 + 1;
        }
    }

    #[inline(always)]
    fn slot<const BYTES: usize>(&self, part: &[u8; BYTES]) -> usize {
        /// 2^64 over the golden ratio, odd: it spreads a value into the high bits.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        (number(part).wrapping_mul(SPREAD) >> self.shift) as usize
    }
}

/// The number of times that the block before `number` repeats from there on, up to the useful
/// maximum.
fn repetitions(blocks: &[[u8; BLOCK]], number: usize) -> usize {
    let Some(last) = number.checked_sub(1).map(|last| blocks[last]) else {
        return 0;
    };
    let ahead = blocks[number..].iter().take(REPEAT_MAX);
    let equal = ahead.take_while(|block| **block == last).count();
    match last == [0; BLOCK] && equal < ZEROES_REPEAT_MIN {
        true => 0,
        false => equal,
    }
}

fn put_block(
    out: &mut Bits<'_>,
    block: &[u8; BLOCK],
    known: Known,
    indexes: &Indexes,
) -> Option<()> {
    let template = BEST[known];
    out.put(template.into(), OPERATION_BITS)?;
    let mut at = 0;
    for part in TEMPLATES[usize::from(template)] {
        match part {
            Part::Index(bytes) => out.put(indexes[bit(*bytes, at)].into(), part.bits())?,
            Part::Data(bytes) => {
                for half in block[at..at + bytes].chunks(4) {
                    out.put(number(half) as u32, 8 * half.len() as u32)?;
                }
            }
        }
        at += part.bytes();
    }
    Some(())
}

/// The bit of [`Known`] for the part of `bytes` bytes at `at`.
const fn bit(bytes: usize, at: usize) -> usize {
    let before = match bytes {
        2 => 0,
        4 => 4,
        _ => 6,
    };
    before + at / bytes
}

/// The template with the fewest bits, for every set of known parts.
const BEST: [u8; 1 << 7] = {
    let mut best = [0; 1 << 7];
    let mut known = 0;
    while known < best.len() {
        let mut fewest = u32::MAX;
        let mut template = 0;
        while template < TEMPLATES.len() {
            if let Some(bits) = bits(TEMPLATES[template], known)
                && bits < fewest
            {
                fewest = bits;
                best[known] = template as u8;
            }
            template += 1;
        }
        known += 1;
    }
    best
};

/// The bits of a template's arguments, if the parts that it wants as indexes are known.
const fn bits(parts: &[Part], known: Known) -> Option<u32> {
    let (mut bits, mut at, mut nth) = (0, 0, 0);
    while nth < parts.len() {
        let part = parts[nth];
        if let Part::Index(bytes) = part
            && known & 1 << bit(bytes, at) == 0
        {
            return None;
        }
        bits += part.bits();
        at += part.bytes();
        nth += 1;
    }
    Some(bits)
}

/// At most 8 bytes as the number that the format makes of them.
#[inline(always)]
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Writes bits, the highest of each byte first.
struct Bits<'a> {
    bytes: &'a mut [u8],
    at: usize,
    /// Only the lowest `pending_bits`, fewer than 32 between calls, are not written yet.
    pending: u64,
    pending_bits: u32,
}

impl Bits<'_> {
    /// Appends the lowest `bits` of `value`, at most 32. Its other bits are zero.
    #[inline(always)]
    fn put(&mut self, value: u32, bits: u32) -> Option<()> {
        self.pending = self.pending << bits | u64::from(value);
        self.pending_bits += bits;
        if self.pending_bits >= 32 {
            self.pending_bits -= 32;
            let word = (self.pending >> self.pending_bits) as u32;
            *self.bytes.get_mut(self.at..)?.first_chunk_mut()? = word.to_be_bytes();
            self.at += 4;
        }
        Some(())
    }

    /// Pads with zeroes and returns the length in bytes.
    fn finish(mut self) -> Option<usize> {
        self.put(0, 32 - self.pending_bits)?;
        if !self.at.is_multiple_of(PADDING) {
            self.put(0, 32)?;
        }
        Some(self.at)
    }
}
