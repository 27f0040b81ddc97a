//! Lists of bytes in NEON.

use core::arch::aarch64::*;

use super::register::{
    Four, apart, bits, both, each, load, load_four, load_pairs, not_zero, sixteen, store, table,
    together,
};
use crate::decode::{Bits, Source};
use crate::encode::Room;
use crate::error::Error;
use crate::format::{NEAR_MAX, PAGE_WORDS};
use crate::shared::{APART, RANKS, eight, from, low_bits, put_bits};

/// A byte for each word of a page, and room for the last registers.
pub(super) type List = [u8; PAGE_WORDS + 64];
/// The low and the high bytes of what near references change.
pub(super) type Deltas = [List; 2];
pub(super) const NO_LIST: List = [0; PAGE_WORDS + 64];

/// As [`encode::distances`](crate::encode::distances).
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn put_distances(distances: &List, count: usize, out: &mut Room, at: usize) -> usize {
    let mut changes = NO_LIST;
    let mut changed = 0;
    let mut last = vdupq_n_u8(0);
    for first in (0..count).step_by(64) {
        let these = four(distances, first);
        let before = uint8x16x4_t(
            vextq_u8::<15>(last, these.0),
            vextq_u8::<15>(these.0, these.1),
            vextq_u8::<15>(these.1, these.2),
            vextq_u8::<15>(these.2, these.3),
        );
        last = these.3;
        let differ = not_zero(both(these, before, |one, two| veorq_u8(one, two)));
        let differ = differ & low_bits(count - first);
        put_bits(out, at + first / 8, differ);
        changed += gather(differ, &distances[first..], &mut changes[changed..]);
    }
    let bitmap = at + count.div_ceil(8);
    let at = bitmap + changed.div_ceil(8);
    let [mut near, mut far] = [NO_LIST; 2];
    let (mut near_count, mut far_count) = (0, 0);
    for first in (0..changed).step_by(64) {
        let is_near = |these| vcleq_u8(these, vdupq_n_u8(NEAR_MAX));
        let is_near = bits(each(four(&changes, first), is_near));
        let valid = low_bits(changed - first);
        put_bits(out, bitmap + first / 8, is_near & valid);
        let these = &changes[first..];
        near_count += gather(is_near & valid, these, &mut near[near_count..]);
        far_count += gather(!is_near & valid, these, &mut far[far_count..]);
    }
    let one = vdupq_n_u8(1);
    let at = put_nibbles(&near, near_count, out, at, |near| vqsubq_u8(near, one));
    out[at..at + far_count].copy_from_slice(&far[..far_count]);
    at + far_count
}

/// A bit for each of `count` bytes that is not zero; those.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn put_some(list: &List, count: usize, out: &mut Room, at: usize) -> usize {
    let mut given = NO_LIST;
    let mut given_count = 0;
    for first in (0..count).step_by(64) {
        let is_given = not_zero(four(list, first)) & low_bits(count - first);
        put_bits(out, at + first / 8, is_given);
        given_count += gather(is_given, &list[first..], &mut given[given_count..]);
    }
    let at = at + count.div_ceil(8);
    out[at..at + given_count].copy_from_slice(&given[..given_count]);
    at + given_count
}

/// As [`encode::masks`](crate::encode::masks).
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn put_masks(masks: &List, count: usize, out: &mut Room, at: usize) -> usize {
    let mut highs = NO_LIST;
    let mut high_count = 0;
    for first in (0..count).step_by(64) {
        let is_high = |these| vcgtq_u8(these, vdupq_n_u8(0xf));
        let is_high = bits(each(four(masks, first), is_high)) & low_bits(count - first);
        put_bits(out, at + first / 8, is_high);
        high_count += gather(is_high, &masks[first..], &mut highs[high_count..]);
    }
    let at = at + count.div_ceil(8);
    let at = put_nibbles(masks, count, out, at, |mask| mask);
    put_nibbles(&highs, high_count, out, at, |mask| vshrq_n_u8::<4>(mask))
}

/// The low halves of bytes, two to a byte, each after `of`, which makes zero of zero. Behind an odd number of them
/// stands a zero.
#[inline]
#[target_feature(enable = "neon")]
fn put_nibbles(
    list: &List,
    count: usize,
    out: &mut Room,
    at: usize,
    of: impl Fn(uint8x16_t) -> uint8x16_t,
) -> usize {
    for first in (0..count).step_by(32) {
        let bytes = list[first..].first_chunk().expect("two registers");
        let [even, odd] = load_pairs(bytes);
        let to = out[at + first / 2..].first_chunk_mut().expect("room");
        store(to, vsliq_n_u8::<4>(of(even), of(odd)));
    }
    at + count.div_ceil(2)
}

/// The bytes that `mask` names of the first 64, together, and how many. Up to 8 bytes more are written.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn gather(mask: u64, from: &[u8], to: &mut [u8]) -> usize {
    let mut at = 0;
    for (part, bytes) in from[..64].as_chunks().0.iter().enumerate() {
        let bytes = load(bytes);
        for (first, half) in [(0, 2 * part), (8, 2 * part + 1)] {
            let mask = (mask >> (8 * half)) as u8;
            to[at..at + 8].copy_from_slice(&together(bytes, first, mask).to_le_bytes());
            at += mask.count_ones() as usize;
        }
    }
    at
}

/// As [`decode::distances`](crate::decode::distances).
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn take_distances(count: usize, source: &mut Source<'_>) -> Result<List, Error> {
    let differs = Bits::take(source, count)?;
    let changed = differs.ones();
    let is_near = Bits::take(source, changed)?;
    let near_count = is_near.ones();
    let packed = source.take_open(near_count.div_ceil(2))?;
    let far = source.take_open(changed - near_count)?;
    let one = vdupq_n_u8(1);
    let near = filled(near_count, |first| vaddq_u8(nibbles(packed, first), one));
    // The changes, behind the zero that stands before a first one, which makes one more.
    let (mut nears, mut fars) = (0, 0);
    let mut last = vdupq_n_u8(0);
    let changes = filled(changed + 1, |first| {
        let is_near = two(is_near.bytes, first);
        let these = apart_16(sixteen(&near, nears), is_near);
        let those = apart_16(sixteen(far, fars), is_near.map(|bits| !bits));
        let near_count = (is_near[0].count_ones() + is_near[1].count_ones()) as usize;
        nears += near_count;
        fars += 16 - near_count;
        let both = vorrq_u8(these, those);
        let behind = vextq_u8::<15>(last, both);
        last = both;
        behind
    });
    let mut change = 0;
    Ok(filled(count, |first| {
        let [low, high] = two(differs.bytes, first);
        let mut eight = |mask: u8| {
            let these = vqtbl1_u8(sixteen(&changes, change), table(&RANKS, mask));
            change += mask.count_ones() as usize;
            these
        };
        vcombine_u8(eight(low), eight(high))
    }))
}

/// As [`decode::masks`](crate::decode::masks), and zeroes up to the end of the last group.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn take_masks(count: usize, source: &mut Source<'_>) -> Result<List, Error> {
    let is_high = Bits::take(source, count)?;
    let lows = source.take_open(count.div_ceil(2))?;
    let high_count = is_high.ones();
    let packed = source.take_open(high_count.div_ceil(2))?;
    let highs = filled(high_count, |first| vshlq_n_u8::<4>(nibbles(packed, first)));
    let mut high = 0;
    let mut masks = filled(count, |first| {
        let is_high = two(is_high.bytes, first);
        let these = apart_16(sixteen(&highs, high), is_high);
        high += (is_high[0].count_ones() + is_high[1].count_ones()) as usize;
        vorrq_u8(nibbles(lows, first), these)
    });
    masks[count..].fill(0);
    Ok(masks)
}

/// A bit for each of `count` bytes, whether it is given; those that are; the others are zero.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn take_some(count: usize, source: &mut Source<'_>) -> Result<List, Error> {
    let is_given = Bits::take(source, count)?;
    let given = source.take_open(is_given.ones())?;
    let mut at = 0;
    Ok(filled(count, |first| {
        let is_given = two(is_given.bytes, first);
        let these = apart_16(sixteen(given, at), is_given);
        at += (is_given[0].count_ones() + is_given[1].count_ones()) as usize;
        these
    }))
}

/// A list of at least `count` bytes, sixteen at a time.
#[inline]
#[target_feature(enable = "neon")]
fn filled(count: usize, mut of: impl FnMut(usize) -> uint8x16_t) -> List {
    let mut list = NO_LIST;
    for (nth, to) in list.as_chunks_mut().0[..count.div_ceil(16)]
        .iter_mut()
        .enumerate()
    {
        store(to, of(16 * nth));
    }
    list
}

/// Sixteen bits from bit `first` on, zeroes behind the end.
#[inline(always)]
fn two(bytes: &[u8], first: usize) -> [u8; 2] {
    from(bytes, first / 8)
}

/// A byte for each of sixteen nibbles from `first` on.
#[inline]
#[target_feature(enable = "neon")]
fn nibbles(packed: &[u8], first: usize) -> uint8x16_t {
    let eight = vcreate_u8(eight(packed, first / 2));
    let low = vand_u8(eight, vdup_n_u8(0xf));
    let high = vshr_n_u8::<4>(eight);
    vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high))
}

/// The first of sixteen bytes where the masks say, zeroes elsewhere.
#[inline]
#[target_feature(enable = "neon")]
fn apart_16(bytes: uint8x16_t, [low, high]: [u8; 2]) -> uint8x16_t {
    let farther = vdup_n_u8(low.count_ones() as u8);
    // What is to be zero stays above 0x80, which names no byte.
    let farther = vadd_u8(table(&APART, high), farther);
    vcombine_u8(apart(bytes, low), vqtbl1_u8(bytes, farther))
}

/// The 64 bytes from `first` on.
#[inline]
#[target_feature(enable = "neon")]
fn four(list: &List, first: usize) -> Four {
    load_four(list[first..].first_chunk().expect("four registers"))
}
