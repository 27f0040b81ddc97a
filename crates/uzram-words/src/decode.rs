//! The decoder in portable, safe code. What it refuses is refused by every version, and what it makes of
//! other bytes they all make.

use crate::encode::LEAD;
use crate::error::Error;
use crate::format::{
    BLOCKS, DENSE, HEAD_BYTES, LANES, PAGE_BYTES, PAGE_WORDS, PLANE_BYTES, Plane, ones,
    selector_bits,
};
use crate::swar;

/// Bytes that are taken from the front.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    bytes: &'a [u8],
}

impl<'a> Source<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Source<'a> {
        Source { bytes }
    }

    #[inline(always)]
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(Error::Malformed)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// As [`take`](Source::take), and what stands behind it: whoever reads whole registers of it finds the
    /// source's end much more seldom.
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), feature = "std"))]
    #[inline(always)]
    pub(crate) fn take_open(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let open = self.bytes;
        self.take(count)?;
        Ok(open)
    }

    #[inline(always)]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The head of a compressed page: its planes and counts.
pub(crate) struct Head {
    pub(crate) planes: [Plane; 2],
    pub(crate) copies: usize,
    pub(crate) nears: usize,
    pub(crate) coded: usize,
}

impl Head {
    /// The planes behind the method byte.
    #[inline(always)]
    pub(crate) fn read<const LEVEL: u8>(source: &mut Source<'_>) -> Result<Head, Error> {
        let bytes = source.take(HEAD_BYTES - 1)?;
        let mut planes = [[0; BLOCKS]; 2];
        for (plane, bytes) in planes.iter_mut().zip(bytes.chunks_exact(PLANE_BYTES)) {
            for (bits, bytes) in plane.iter_mut().zip(bytes.as_chunks().0) {
                *bits = u64::from_le_bytes(*bytes);
            }
        }
        let nears = (0..BLOCKS).map(|n| (planes[0][n] & planes[1][n]).count_ones() as usize);
        let nears = nears.sum();
        if LEVEL != DENSE && nears != 0 {
            return Err(Error::Malformed);
        }
        Ok(Head {
            copies: ones(&planes[1]) - nears,
            coded: ones(&planes[0]) - nears,
            nears,
            planes,
        })
    }

    /// The words of one block that are coded, those that are copies, those that are near references.
    #[inline(always)]
    pub(crate) fn block(&self, block: usize) -> [u64; 3] {
        let [first, second] = [self.planes[0][block], self.planes[1][block]];
        [first & !second, second & !first, first & second]
    }
}

/// Distances of references and deltas of near ones, with room to read in whole registers.
pub(crate) struct References {
    pub(crate) copies: [u8; PAGE_WORDS + 64],
    pub(crate) nears: [u8; PAGE_WORDS + 64],
    pub(crate) deltas: [u16; PAGE_WORDS + 32],
}

impl References {
    #[inline(always)]
    pub(crate) fn new() -> References {
        References {
            copies: [0; PAGE_WORDS + 64],
            nears: [0; PAGE_WORDS + 64],
            deltas: [0; PAGE_WORDS + 32],
        }
    }
}

/// Fills `page` from the front of `source`, behind the method byte, and says what is left.
pub(crate) fn page<'a, const LEVEL: u8>(
    is_plain: bool,
    source: &'a [u8],
    page: &mut [u8; PAGE_BYTES],
) -> Result<&'a [u8], Error> {
    let mut source = Source::new(source);
    let head = Head::read::<LEVEL>(&mut source)?;
    let references = references::<LEVEL>(&head, &mut source)?;
    let mut coded = [0; LEAD + PAGE_WORDS + LANES];
    if is_plain {
        plain(head.coded, &mut source, &mut coded)?;
    } else {
        self::coded::<LEVEL>(head.coded, &mut source, &mut coded)?;
    }
    place(&head, &references, &coded, page)?;
    Ok(source.rest())
}

/// Distances and deltas.
#[inline(always)]
pub(crate) fn references<const LEVEL: u8>(
    head: &Head,
    source: &mut Source<'_>,
) -> Result<References, Error> {
    let mut references = References::new();
    distances(head.copies, source, &mut references.copies)?;
    if LEVEL == DENSE {
        distances(head.nears, source, &mut references.nears)?;
        deltas(head.nears, source, &mut references.deltas)?;
    }
    Ok(references)
}

/// Repeats the distances that did not change. One that has none before it is left zero, which no
/// reference may be.
#[inline(always)]
pub(crate) fn distances(
    count: usize,
    source: &mut Source<'_>,
    distances: &mut [u8; PAGE_WORDS + 64],
) -> Result<(), Error> {
    let differs = Bits::take(source, count)?;
    let changed = differs.ones();
    let is_near = Bits::take(source, changed)?;
    let near_count = is_near.ones();
    let near = source.take(near_count.div_ceil(2))?;
    let far = source.take(changed - near_count)?;
    let (mut last, mut change, mut nears) = (0, 0, 0);
    for (index, distance) in distances[..count].iter_mut().enumerate() {
        if differs.at(index) {
            last = if is_near.at(change) {
                nears += 1;
                nibble(near, nears - 1) + 1
            } else {
                far[change - nears]
            };
            change += 1;
        }
        *distance = last;
    }
    Ok(())
}

#[inline(always)]
pub(crate) fn deltas(
    count: usize,
    source: &mut Source<'_>,
    deltas: &mut [u16; PAGE_WORDS + 32],
) -> Result<(), Error> {
    let low = source.take(count)?;
    let is_high = Bits::take(source, count)?;
    let mut high = source.take(is_high.ones())?.iter();
    for (index, delta) in deltas[..count].iter_mut().enumerate() {
        let high = match is_high.at(index) {
            true => *high.next().unwrap_or(&0),
            false => 0,
        };
        *delta = u16::from_le_bytes([low[index], high]);
    }
    Ok(())
}

#[inline(always)]
pub(crate) fn plain(
    count: usize,
    source: &mut Source<'_>,
    coded: &mut [u64; LEAD + PAGE_WORDS + LANES],
) -> Result<(), Error> {
    let bytes = source.take(count * 8)?.as_chunks().0;
    for (word, bytes) in coded[LEAD..].iter_mut().zip(bytes) {
        *word = u64::from_le_bytes(*bytes);
    }
    Ok(())
}

#[inline(always)]
fn coded<const LEVEL: u8>(
    count: usize,
    source: &mut Source<'_>,
    coded: &mut [u64; LEAD + PAGE_WORDS + LANES],
) -> Result<(), Error> {
    let bits = selector_bits(LEVEL);
    let selectors = source.take(count.div_ceil(LANES) * bits)?;
    let mut masks = [0; PAGE_WORDS + 64];
    self::masks(count, source, &mut masks)?;
    let bytes = source.take(
        masks[..count]
            .iter()
            .map(|mask| mask.count_ones() as usize)
            .sum(),
    )?;
    let mut at = 0;
    for (index, mask) in masks[..count].iter().enumerate() {
        let (group, lane) = (index / LANES, index % LANES);
        let mut eight = [0; 8];
        let rest = &bytes[at..];
        match rest.first_chunk() {
            Some(chunk) => eight = *chunk,
            None => eight[..rest.len()].copy_from_slice(rest),
        }
        at += mask.count_ones() as usize;
        let selector = selector(&selectors[group * bits..][..bits], lane);
        let other = match selector {
            0 => 0,
            _ => coded[LEAD + group * LANES - crate::encode::back(lane, selector)],
        };
        coded[LEAD + index] = swar::unpack(u64::from_le_bytes(eight), *mask) ^ other;
    }
    Ok(())
}

/// The selector of `lane` in its group's.
#[inline(always)]
fn selector(group: &[u8], lane: usize) -> usize {
    let mut bytes = [0; 4];
    bytes[..group.len()].copy_from_slice(group);
    let bits = group.len();
    (u32::from_le_bytes(bytes) >> (lane * bits)) as usize & ((1 << bits) - 1)
}

#[inline(always)]
pub(crate) fn masks(
    count: usize,
    source: &mut Source<'_>,
    masks: &mut [u8; PAGE_WORDS + 64],
) -> Result<(), Error> {
    let is_high = Bits::take(source, count)?;
    let low = source.take(count.div_ceil(2))?;
    let high = source.take(is_high.ones().div_ceil(2))?;
    let mut highs = 0;
    for (index, mask) in masks[..count].iter_mut().enumerate() {
        *mask = nibble(low, index);
        if is_high.at(index) {
            *mask |= nibble(high, highs) << 4;
            highs += 1;
        }
    }
    Ok(())
}

/// Puts the words in their places, in order: a reference may name any word before it.
#[inline(always)]
fn place(
    head: &Head,
    references: &References,
    coded: &[u64; LEAD + PAGE_WORDS + LANES],
    page: &mut [u8; PAGE_BYTES],
) -> Result<(), Error> {
    let mut words = [0; PAGE_WORDS];
    let (mut code, mut copy, mut near) = (LEAD, 0, 0);
    for index in 0..PAGE_WORDS {
        let [is_coded, is_copy, is_near] = head
            .block(index / 64)
            .map(|bits| bits >> (index % 64) & 1 == 1);
        words[index] = if is_coded {
            code += 1;
            coded[code - 1]
        } else if is_copy {
            copy += 1;
            earlier(&words, index, references.copies[copy - 1])?
        } else if is_near {
            near += 1;
            let delta = u64::from(references.deltas[near - 1]);
            earlier(&words, index, references.nears[near - 1])? ^ delta
        } else {
            0
        };
    }
    for (bytes, word) in page.as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = u64::to_le_bytes(word);
    }
    Ok(())
}

#[inline(always)]
pub(crate) fn earlier(words: &[u64; PAGE_WORDS], index: usize, distance: u8) -> Result<u64, Error> {
    match index.checked_sub(usize::from(distance)) {
        Some(other) if distance != 0 => Ok(words[other]),
        _ => Err(Error::Malformed),
    }
}

/// A bit for each of a number of items. Bits beyond are ignored.
pub(crate) struct Bits<'a> {
    pub(crate) bytes: &'a [u8],
    count: usize,
}

impl<'a> Bits<'a> {
    #[inline(always)]
    pub(crate) fn take(source: &mut Source<'a>, count: usize) -> Result<Bits<'a>, Error> {
        let bytes = source.take(count.div_ceil(8))?;
        Ok(Bits { bytes, count })
    }

    #[inline(always)]
    fn at(&self, index: usize) -> bool {
        self.bytes[index / 8] >> (index % 8) & 1 == 1
    }

    #[inline(always)]
    pub(crate) fn ones(&self) -> usize {
        let (whole, rest) = self.bytes.split_at(self.count / 8);
        let kept = !(0xffu8 << (self.count % 8));
        let rest = rest.first().map_or(0, |byte| byte & kept);
        let whole: usize = whole.iter().map(|byte| byte.count_ones() as usize).sum();
        whole + rest.count_ones() as usize
    }
}

#[inline(always)]
fn nibble(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 2] >> (index % 2 * 4) & 0xf
}
