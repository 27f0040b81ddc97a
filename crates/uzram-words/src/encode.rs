//! The encoder in portable, safe code. Its choices are the truth: every other version writes the same
//! bytes. Its stages are inlined so that a version for some CPU may take those that it does not replace.

use crate::format::{
    BLOCKS, DENSE, DISTANCE_MAX, HEAD_BYTES, LANES, NEAR_MAX, PAGE_BYTES, PAGE_WORDS, PLAIN,
    PLANE_BYTES, Plane, RAW, ROOM_BYTES, selector_bits,
};
use crate::swar;

/// Log2 of the entries of a table of earlier words, at least 9: an entry holds a word's product less
/// the bits that place it, and an index of 9 bits.
pub(crate) const TABLE_BITS: u32 = 9;
/// An odd number, so that different words have different products; they spread: 2^64 by the golden ratio.
pub(crate) const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// The low bits in which a near reference may differ from its word.
pub(crate) const DELTA_BITS: u32 = 16;
/// Words of zero that stand before the first coded word: two groups.
pub(crate) const LEAD: usize = 2 * LANES;

pub(crate) type Table = [u64; 1 << TABLE_BITS];
/// Coded words, with room for a block's width behind each.
pub(crate) type Coded = [u64; LEAD + PAGE_WORDS + 64];
pub(crate) type Room = [u8; ROOM_BYTES];

/// The encoder's memory while it works on a page.
#[repr(C, align(64))]
pub(crate) struct Scratch {
    /// The words that were coded in full, behind [`LEAD`] zeroes.
    pub(crate) coded: Coded,
    /// The groups of those, each twice, by the version that turns them as it reads them.
    pub(crate) twice: [[u64; 2 * LANES]; LEAD / LANES + PAGE_WORDS / LANES],
    /// Earlier words by their hash: see [`distance`].
    pub(crate) table_same: Table,
    pub(crate) table_near: Table,
    /// How far back each copy goes, in words.
    pub(crate) copies: [u8; PAGE_WORDS + 64],
    /// The same of near references.
    pub(crate) nears: [u8; PAGE_WORDS + 64],
    /// Kept between passes by the versions that look up many words at once.
    pub(crate) products: [u64; PAGE_WORDS],
    pub(crate) entries: [u64; PAGE_WORDS],
    pub(crate) places: [u16; PAGE_WORDS],
    /// The coded words less their neighbours.
    pub(crate) rests: [u64; PAGE_WORDS],
    /// The bytes of coded words until their place is known.
    pub(crate) rest_bytes: [u8; PAGE_BYTES + 64],
    /// The distances that differ from the one before.
    pub(crate) changes: [u8; PAGE_WORDS + 64],
    /// Two parts of a list, by the version that takes it apart before it writes it.
    pub(crate) parts: [[u8; PAGE_WORDS + 64]; 2],
    /// How each near reference differs from its word.
    pub(crate) deltas: [u16; PAGE_WORDS + 32],
    /// A bit for each byte of each coded word: set where it is not zero.
    pub(crate) masks: [u8; PAGE_WORDS + 64],
}

impl Scratch {
    pub(crate) const fn new() -> Scratch {
        Scratch {
            coded: [0; LEAD + PAGE_WORDS + 64],
            twice: [[0; 2 * LANES]; LEAD / LANES + PAGE_WORDS / LANES],
            table_same: [0; 1 << TABLE_BITS],
            table_near: [0; 1 << TABLE_BITS],
            copies: [0; PAGE_WORDS + 64],
            nears: [0; PAGE_WORDS + 64],
            products: [0; PAGE_WORDS],
            entries: [0; PAGE_WORDS],
            places: [0; PAGE_WORDS],
            rests: [0; PAGE_WORDS],
            rest_bytes: [0; PAGE_BYTES + 64],
            changes: [0; PAGE_WORDS + 64],
            parts: [[0; PAGE_WORDS + 64]; 2],
            deltas: [0; PAGE_WORDS + 32],
            masks: [0; PAGE_WORDS + 64],
        }
    }
}

/// The class of every word.
pub(crate) struct Classes {
    pub(crate) planes: [Plane; 2],
    pub(crate) copies: usize,
    pub(crate) nears: usize,
    pub(crate) coded: usize,
}

/// Writes `page` at the start of `out` and returns the length.
pub(crate) fn page<const LEVEL: u8>(
    page: &[u8; PAGE_BYTES],
    scratch: &mut Scratch,
    out: &mut Room,
) -> usize {
    let words = words(page);
    let classes = classify::<LEVEL>(&words, scratch);
    let at = head(&classes, out);
    let at = references::<LEVEL>(&classes, scratch, out, at);
    let start = at;
    let at = coded::<LEVEL>(classes.coded, scratch, out, at);
    finish(LEVEL, page, &classes, scratch, out, start, at)
}

#[inline(always)]
pub(crate) fn words(page: &[u8; PAGE_BYTES]) -> [u64; PAGE_WORDS] {
    let mut words = [0; PAGE_WORDS];
    for (word, bytes) in words.iter_mut().zip(page.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// Sorts the words into zeroes, references and coded ones. Every store is made and only some count:
/// what follows what is as random as the page.
#[inline(always)]
fn classify<const LEVEL: u8>(words: &[u64; PAGE_WORDS], scratch: &mut Scratch) -> Classes {
    scratch.table_same.fill(0);
    scratch.table_near.fill(0);
    let mut planes = [[0; BLOCKS]; 2];
    let (mut copies, mut nears, mut coded) = (0, 0, 0);
    for (index, word) in words.iter().enumerate() {
        let copy = distance(&mut scratch.table_same, *word, index);
        let near = match LEVEL {
            DENSE => distance(&mut scratch.table_near, *word >> DELTA_BITS, index),
            _ => None,
        };
        let is_copy = copy.is_some();
        let is_near = !is_copy && near.is_some();
        let is_coded = *word != 0 && !is_copy && !is_near;
        scratch.copies[copies] = copy.unwrap_or(0);
        let near = near.unwrap_or(0);
        scratch.nears[nears] = near;
        scratch.deltas[nears] = (*word ^ words[index - usize::from(near)]) as u16;
        scratch.coded[LEAD + coded] = *word;
        copies += usize::from(is_copy);
        nears += usize::from(is_near);
        coded += usize::from(is_coded);
        planes[0][index / 64] |= u64::from(is_coded | is_near) << (index % 64);
        planes[1][index / 64] |= u64::from(is_copy | is_near) << (index % 64);
    }
    Classes {
        planes,
        copies,
        nears,
        coded,
    }
}

/// How far back `key` stood last, if that is near enough and no other fell on its entry since; then
/// `key` takes the entry.
///
/// The high bits of a key's product place it, and the entry holds the others above the index: the
/// product says the key, so entries of the same key differ by their distance and all others by more.
/// Only keys that have none of those other bits, zero among them, could be taken for an empty entry.
#[inline(always)]
pub(crate) fn distance(table: &mut Table, key: u64, index: usize) -> Option<u8> {
    let product = key.wrapping_mul(MULTIPLIER);
    let new = product << TABLE_BITS | index as u64;
    let entry = &mut table[(product >> (64 - TABLE_BITS)) as usize];
    let distance = new.wrapping_sub(core::mem::replace(entry, new));
    (key << TABLE_BITS != 0 && distance <= DISTANCE_MAX).then_some(distance as u8)
}

/// Writes the planes; the method byte is known last.
#[inline(always)]
pub(crate) fn head(classes: &Classes, out: &mut Room) -> usize {
    let planes = classes.planes.as_flattened().iter();
    for (bytes, bits) in out[1..HEAD_BYTES].chunks_exact_mut(8).zip(planes) {
        bytes.copy_from_slice(&bits.to_le_bytes());
    }
    HEAD_BYTES
}

/// Writes copies and near references.
#[inline(always)]
pub(crate) fn references<const LEVEL: u8>(
    classes: &Classes,
    scratch: &mut Scratch,
    out: &mut Room,
    at: usize,
) -> usize {
    let changes = &mut scratch.changes;
    let at = distances(&scratch.copies[..classes.copies], changes, out, at);
    if LEVEL != DENSE {
        return at;
    }
    let at = distances(&scratch.nears[..classes.nears], changes, out, at);
    deltas(&scratch.deltas[..classes.nears], out, at)
}

/// A bit for each distance that differs from the one before; of those a bit for each near one; the near
/// ones less one in nibbles; the far ones in bytes.
#[inline(always)]
pub(crate) fn distances(
    distances: &[u8],
    changes: &mut [u8; PAGE_WORDS + 64],
    out: &mut Room,
    at: usize,
) -> usize {
    let (mut last, mut changed) = (0, 0);
    let at = bitmap(distances, out, at, |distance| {
        let differs = distance != last;
        changes[changed] = distance;
        changed += usize::from(differs);
        last = distance;
        differs
    });
    let changes = &changes[..changed];
    let at = bitmap(changes, out, at, is_near);
    let near = changes.iter().filter(|distance| is_near(**distance));
    let at = nibbles(near.map(|distance| distance - 1), out, at);
    let far = changes.iter().filter(|distance| !is_near(**distance));
    append(far.copied(), out, at)
}

fn is_near(distance: u8) -> bool {
    distance <= NEAR_MAX
}

/// The low bytes, a bit for each high byte that is not zero, those high bytes.
#[inline(always)]
pub(crate) fn deltas(deltas: &[u16], out: &mut Room, at: usize) -> usize {
    let at = append(deltas.iter().map(|delta| *delta as u8), out, at);
    let at = bitmap(deltas, out, at, |delta| delta > 0xff);
    let high = deltas.iter().filter(|delta| **delta > 0xff);
    append(high.map(|delta| (*delta >> 8) as u8), out, at)
}

/// Selectors, masks and the bytes that are not zero.
#[inline(always)]
fn coded<const LEVEL: u8>(
    count: usize,
    scratch: &mut Scratch,
    out: &mut Room,
    start: usize,
) -> usize {
    let groups = count.div_ceil(LANES);
    // So that the last group's idle lanes are the same in all versions.
    scratch.coded[LEAD + count..LEAD + groups * LANES].fill(0);
    let mut at = start + groups * selector_bits(LEVEL);
    // Each word's rest replaces it only once its group was used twice.
    let mut rests = [0u64; PAGE_WORDS];
    for group in 0..groups {
        let mut selectors = 0u32;
        for lane in 0..LANES {
            let (selector, rest) = select::<LEVEL>(&scratch.coded, group, lane);
            selectors |= selector << (lane * selector_bits(LEVEL));
            rests[group * LANES + lane] = rest;
        }
        let bytes = selectors.to_le_bytes();
        let place = start + group * selector_bits(LEVEL);
        out[place..place + selector_bits(LEVEL)].copy_from_slice(&bytes[..selector_bits(LEVEL)]);
    }
    for (mask, rest) in scratch.masks.iter_mut().zip(&rests[..count]) {
        *mask = swar::mask(*rest);
    }
    at = masks(&scratch.masks[..count], out, at);
    for (rest, mask) in rests.iter().zip(&scratch.masks[..count]) {
        let (bytes, length) = swar::pack(*rest, *mask);
        out[at..at + 8].copy_from_slice(&bytes.to_le_bytes());
        at += length;
    }
    at
}

/// The neighbour whose exclusive or with the word has the fewest bytes that are not zero, the first of
/// several; none before all others.
#[inline(always)]
fn select<const LEVEL: u8>(coded: &Coded, group: usize, lane: usize) -> (u32, u64) {
    let word = coded[LEAD + group * LANES + lane];
    let mut best = (swar::count(word), 0, word);
    for selector in 1..1 << selector_bits(LEVEL) {
        let rest = word ^ coded[LEAD + group * LANES - back(lane, selector)];
        let count = swar::count(rest);
        if count < best.0 {
            best = (count, selector as u32, rest);
        }
    }
    (best.1, best.2)
}

/// How many words before its group's first the one stands that `selector` names for `lane`.
#[inline(always)]
pub(crate) const fn back(lane: usize, selector: usize) -> usize {
    let (groups, turn) = ((selector - 1) / LANES + 1, (selector - 1) % LANES);
    groups * LANES - (lane + LANES - turn) % LANES
}

/// A bit for each word with bytes in its high half, all low halves' masks, those high halves' masks.
#[inline(always)]
pub(crate) fn masks(masks: &[u8], out: &mut Room, at: usize) -> usize {
    let at = bitmap(masks, out, at, |mask| mask > 0xf);
    let at = nibbles(masks.iter().map(|mask| mask & 0xf), out, at);
    let high = masks.iter().map(|mask| mask >> 4);
    nibbles(high.filter(|high| *high != 0), out, at)
}

/// Keeps coded words, or the whole page, as they are where that is not longer; then writes the method.
#[inline(always)]
pub(crate) fn finish(
    level: u8,
    page: &[u8; PAGE_BYTES],
    classes: &Classes,
    scratch: &Scratch,
    out: &mut Room,
    start: usize,
    end: usize,
) -> usize {
    let plain_bytes = classes.coded * 8;
    let is_plain = end - start >= plain_bytes && classes.coded > 0;
    let end = if is_plain { start + plain_bytes } else { end };
    if end > PAGE_BYTES {
        out[0] = RAW;
        out[1..=PAGE_BYTES].copy_from_slice(page);
        return 1 + PAGE_BYTES;
    }
    out[0] = level;
    if is_plain {
        out[0] = level | PLAIN;
        let words = &scratch.coded[LEAD..LEAD + classes.coded];
        for (bytes, word) in out[start..end].chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
    end
}

/// A bit for each item of which `is_set` holds, from the lowest bit of the first byte.
#[inline(always)]
fn bitmap<T: Copy>(
    items: &[T],
    out: &mut Room,
    at: usize,
    mut is_set: impl FnMut(T) -> bool,
) -> usize {
    let bytes = out[at..].iter_mut().zip(items.chunks(8));
    for (byte, items) in bytes {
        let bits = (0..).zip(items);
        *byte = bits.fold(0, |byte, (bit, item)| byte | u8::from(is_set(*item)) << bit);
    }
    at + items.len().div_ceil(8)
}

/// Two to a byte, the first in the low half.
#[inline(always)]
fn nibbles(items: impl Iterator<Item = u8>, out: &mut Room, at: usize) -> usize {
    let mut count = 0;
    for nibble in items {
        let byte = &mut out[at + count / 2];
        *byte = match count % 2 {
            0 => nibble,
            _ => *byte | nibble << 4,
        };
        count += 1;
    }
    at + count.div_ceil(2)
}

#[inline(always)]
fn append(items: impl Iterator<Item = u8>, out: &mut Room, at: usize) -> usize {
    let mut end = at;
    for item in items {
        out[end] = item;
        end += 1;
    }
    end
}

const _: () = assert!(2 * PLANE_BYTES + 1 == HEAD_BYTES);
