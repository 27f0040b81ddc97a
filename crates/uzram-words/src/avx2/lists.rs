//! Lists of bytes in AVX2. Eight at a time are pushed together or apart by a shuffle from a table, so that
//! no CPU's slow pext or pdep is in the way.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use crate::decode::Source;
use crate::encode::Room;
use crate::error::Error;
use crate::format::{NEAR_MAX, PAGE_WORDS};

/// A byte for each word of a page, and room for the last register.
pub(super) type List = [u8; PAGE_WORDS + 64];

/// For each mask of eight bytes, where those that it names come from when they go together. A shuffle
/// makes the others zero.
static TOGETHER: [[u8; 8]; 256] = moves(true);
/// The same when they come apart.
static APART: [[u8; 8]; 256] = moves(false);

const fn moves(is_together: bool) -> [[u8; 8]; 256] {
    let mut table = [[0x80; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut byte, mut rank) = (0, 0);
        while byte < 8 {
            if mask >> byte & 1 == 1 {
                let (to, from) = if is_together {
                    (rank, byte)
                } else {
                    (byte, rank)
                };
                table[mask][to] = from as u8;
                rank += 1;
            }
            byte += 1;
        }
        mask += 1;
    }
    table
}

/// How much farther the upper eight of sixteen bytes come from than the lower, by the lower's count.
static FARTHER: [[u8; 16]; 9] = {
    let mut table = [[0; 16]; 9];
    let mut count = 0;
    while count < 9 {
        let mut byte = 8;
        while byte < 16 {
            table[count][byte] = count as u8;
            byte += 1;
        }
        count += 1;
    }
    table
};

/// For each bit of a mask, how many up to it are set.
static RANKS: [[u8; 8]; 256] = {
    let mut ranks = [[0; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut bit, mut rank) = (0, 0);
        while bit < 8 {
            rank += (mask >> bit & 1) as u8;
            ranks[mask][bit] = rank;
            bit += 1;
        }
        mask += 1;
    }
    ranks
};

/// As [`encode::distances`](crate::encode::distances).
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn put_distances(
    distances: &List,
    count: usize,
    changes: &mut List,
    out: &mut Room,
    at: usize,
) -> usize {
    let mut last = _mm256_setzero_si256();
    let mut changed = 0;
    for first in (0..count).step_by(64) {
        let same = bits(distances, first, |these| {
            let before = _mm256_permute2x128_si256::<0x21>(last, these);
            let before = _mm256_alignr_epi8::<15>(these, before);
            last = these;
            _mm256_cmpeq_epi8(these, before)
        });
        let differ = !same & low_bits(count - first);
        put_bits(out, at + first / 8, differ);
        changed += gather(differ, &distances[first..], &mut changes[changed..]);
    }
    let bitmap = at + count.div_ceil(8);
    let at = bitmap + changed.div_ceil(8);
    let (mut near, mut far) = ([0; PAGE_WORDS + 64], [0; PAGE_WORDS + 64]);
    let (mut near_count, mut far_count) = (0, 0);
    let farthest = _mm256_set1_epi8(NEAR_MAX as i8);
    for first in (0..changed).step_by(64) {
        let is_near = bits(changes, first, |these| {
            _mm256_cmpeq_epi8(_mm256_min_epu8(these, farthest), these)
        });
        let valid = low_bits(changed - first);
        put_bits(out, bitmap + first / 8, is_near & valid);
        let these = &changes[first..];
        near_count += gather(is_near & valid, these, &mut near[near_count..]);
        far_count += gather(!is_near & valid, these, &mut far[far_count..]);
    }
    let one = _mm256_set1_epi8(1);
    let at = put_nibbles(&mut near, near_count, out, at, |near| {
        _mm256_subs_epu8(near, one)
    });
    out[at..at + far_count].copy_from_slice(&far[..far_count]);
    at + far_count
}

/// As [`encode::masks`](crate::encode::masks).
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn put_masks(masks: &mut List, count: usize, out: &mut Room, at: usize) -> usize {
    let nibble = _mm256_set1_epi8(0xf);
    let mut highs = [0; PAGE_WORDS + 64];
    let mut high_count = 0;
    for first in (0..count).step_by(64) {
        let is_low = bits(masks, first, |these| {
            _mm256_cmpeq_epi8(_mm256_min_epu8(these, nibble), these)
        });
        let is_high = !is_low & low_bits(count - first);
        put_bits(out, at + first / 8, is_high);
        high_count += gather(is_high, &masks[first..], &mut highs[high_count..]);
    }
    let at = at + count.div_ceil(8);
    let at = put_nibbles(masks, count, out, at, |mask| _mm256_and_si256(mask, nibble));
    put_nibbles(&mut highs, high_count, out, at, |mask| {
        _mm256_and_si256(_mm256_srli_epi16::<4>(mask), nibble)
    })
}

/// Two to a byte, each after `of`, which makes zero of zero.
#[inline]
#[target_feature(enable = "avx2")]
fn put_nibbles(
    list: &mut List,
    count: usize,
    out: &mut Room,
    at: usize,
    of: impl Fn(__m256i) -> __m256i,
) -> usize {
    list[count] = 0;
    for first in (0..count).step_by(32) {
        let pairs = _mm256_maddubs_epi16(of(load_at(list, first)), _mm256_set1_epi16(0x1001));
        let packed = _mm256_packus_epi16(pairs, pairs);
        let packed = _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0x08>(packed));
        let to: &mut [u8; 16] = out[at + first / 2..].first_chunk_mut().expect("room");
        // SAFETY: 16 bytes.
        unsafe { _mm_storeu_si128((to as *mut [u8; 16]).cast(), packed) };
    }
    at + count.div_ceil(2)
}

/// As [`decode::distances`](crate::decode::distances).
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn take_distances(
    count: usize,
    source: &mut Source<'_>,
    distances: &mut List,
) -> Result<(), Error> {
    let differs = source.take(count.div_ceil(8))?;
    let changed = ones(differs, count);
    let is_near = source.take_open(changed.div_ceil(8))?;
    let near_count = ones(is_near, changed);
    let packed = source.take_open(near_count.div_ceil(2))?;
    let far = source.take_open(changed - near_count)?;
    let mut near = [0; PAGE_WORDS + 64];
    let one = _mm256_set1_epi8(1);
    take_nibbles(packed, near_count, &mut near, |less| {
        _mm256_add_epi8(less, one)
    });
    // The first is what stands before a first change.
    let mut changes = [0; PAGE_WORDS + 64];
    let (mut nears, mut fars) = (0, 0);
    for first in (0..changed).step_by(16) {
        let is_near = eight(is_near, first / 8) as u16;
        let these = apart_16(sixteen_at(&near, nears), is_near);
        let those = apart_16(sixteen(far, fars), !is_near);
        store_16(&mut changes, 1 + first, _mm_or_si128(these, those));
        nears += is_near.count_ones() as usize;
        fars += is_near.count_zeros() as usize;
    }
    let mut change = 0;
    for (differ, distances) in differs.iter().zip(distances.as_chunks_mut::<8>().0) {
        let ranks = u64::from_le_bytes(RANKS[usize::from(*differ)]);
        let these = _mm_shuffle_epi8(
            sixteen_at(&changes, change),
            _mm_cvtsi64_si128(ranks as i64),
        );
        *distances = _mm_cvtsi128_si64(these).to_le_bytes();
        change += differ.count_ones() as usize;
    }
    Ok(())
}

/// As [`decode::masks`](crate::decode::masks), and zeroes up to the end of the last group.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn take_masks(
    count: usize,
    source: &mut Source<'_>,
    masks: &mut List,
) -> Result<(), Error> {
    let is_high = source.take_open(count.div_ceil(8))?;
    let lows = source.take_open(count.div_ceil(2))?;
    let high_count = ones(is_high, count);
    let packed = source.take_open(high_count.div_ceil(2))?;
    let mut highs = [0; PAGE_WORDS + 64];
    take_nibbles(packed, high_count, &mut highs, |high| {
        _mm256_slli_epi16::<4>(high)
    });
    take_nibbles(lows, count, masks, |low| low);
    let mut high = 0;
    for first in (0..count).step_by(16) {
        let is_high = eight(is_high, first / 8) as u16;
        let these = apart_16(sixteen_at(&highs, high), is_high);
        let both = _mm_or_si128(sixteen_at(masks, first), these);
        store_16(masks, first, both);
        high += is_high.count_ones() as usize;
    }
    masks[count..count.next_multiple_of(8)].fill(0);
    Ok(())
}

/// A bit for each of `count` bytes, whether it is given; those that are; the others are zero.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn take_some(count: usize, source: &mut Source<'_>, to: &mut List) -> Result<(), Error> {
    let is_given = source.take_open(count.div_ceil(8))?;
    let given = source.take_open(ones(is_given, count))?;
    let mut at = 0;
    for first in (0..count).step_by(16) {
        let is_given = eight(is_given, first / 8) as u16;
        store_16(to, first, apart_16(sixteen(given, at), is_given));
        at += is_given.count_ones() as usize;
    }
    Ok(())
}

/// A byte for each nibble, after `of`.
#[inline]
#[target_feature(enable = "avx2")]
fn take_nibbles(packed: &[u8], count: usize, to: &mut List, of: impl Fn(__m256i) -> __m256i) {
    let nibble = _mm256_set1_epi8(0xf);
    for first in (0..count).step_by(32) {
        let wide = _mm256_cvtepu8_epi16(sixteen(packed, first / 2));
        let both = _mm256_or_si256(wide, _mm256_slli_epi16::<4>(wide));
        let to: &mut [u8; 32] = to[first..].first_chunk_mut().expect("a register's width");
        let these = of(_mm256_and_si256(both, nibble));
        // SAFETY: 32 bytes.
        unsafe { _mm256_storeu_si256((to as *mut [u8; 32]).cast(), these) };
    }
}

/// The bytes that `mask` names, together, and how many. Up to 8 bytes more are written.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn gather(mask: u64, from: &[u8], to: &mut [u8]) -> usize {
    let mut count = 0;
    for (part, bytes) in from[..64].as_chunks::<8>().0.iter().enumerate() {
        let mask = (mask >> (8 * part)) as u8;
        let these = together(u64::from_le_bytes(*bytes), mask);
        to[count..count + 8].copy_from_slice(&these.to_le_bytes());
        count += mask.count_ones() as usize;
    }
    count
}

/// The bytes of `word` that `mask` names, pushed together; zeroes behind them.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn together(word: u64, mask: u8) -> u64 {
    shuffle(word, &TOGETHER[usize::from(mask)])
}

/// The first of sixteen bytes where `mask` says, zeroes elsewhere.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn apart_16(bytes: __m128i, mask: u16) -> __m128i {
    let half = |mask: u16| i64::from_le_bytes(APART[usize::from(mask as u8)]);
    let table = _mm_set_epi64x(half(mask >> 8), half(mask));
    let low_count = (mask & 0xff).count_ones() as usize;
    // A byte that is to be zero stays above 0x80.
    let table = _mm_add_epi8(table, load_16(&FARTHER[low_count]));
    _mm_shuffle_epi8(bytes, table)
}

#[inline]
#[target_feature(enable = "avx2")]
fn shuffle(word: u64, table: &[u8; 8]) -> u64 {
    let table = _mm_cvtsi64_si128(i64::from_le_bytes(*table));
    let shuffled = _mm_shuffle_epi8(_mm_cvtsi64_si128(word as i64), table);
    _mm_cvtsi128_si64(shuffled) as u64
}

/// A bit for each of 64 bytes from `first` on of which `is_set` makes all bits set.
#[inline]
#[target_feature(enable = "avx2")]
fn bits(list: &List, first: usize, mut is_set: impl FnMut(__m256i) -> __m256i) -> u64 {
    let low = _mm256_movemask_epi8(is_set(load_at(list, first))) as u32;
    let high = _mm256_movemask_epi8(is_set(load_at(list, first + 32))) as u32;
    u64::from(high) << 32 | u64::from(low)
}

#[inline(always)]
fn put_bits(out: &mut Room, at: usize, bits: u64) {
    out[at..at + 8].copy_from_slice(&bits.to_le_bytes());
}

/// The lowest `count` bits, or all.
#[inline(always)]
fn low_bits(count: usize) -> u64 {
    match count {
        0..64 => !(!0 << count),
        _ => !0,
    }
}

/// How many of the first `count` bits are set.
#[inline]
#[target_feature(enable = "popcnt,bmi2")]
fn ones(bytes: &[u8], count: usize) -> usize {
    let words = (0..count).step_by(64);
    let ones = words.map(|first| (eight(bytes, first / 8) & low_bits(count - first)).count_ones());
    ones.sum::<u32>() as usize
}

/// The eight bytes from `at` on, zeroes behind the end.
#[inline(always)]
pub(super) fn eight(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(from(bytes, at))
}

/// The sixteen bytes from `at` on, zeroes behind the end.
#[inline]
#[target_feature(enable = "avx2")]
fn sixteen(bytes: &[u8], at: usize) -> __m128i {
    match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(bytes) => load_16(bytes),
        None => load_16(&from(bytes, at)),
    }
}

/// The same where the end is known to be farther.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sixteen_at(list: &[u8], at: usize) -> __m128i {
    load_16(list[at..].first_chunk().expect("a register's width"))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes.
    unsafe { _mm_loadu_si128((bytes as *const [u8; 16]).cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_16(list: &mut List, at: usize, value: __m128i) {
    let to: &mut [u8; 16] = list[at..].first_chunk_mut().expect("a register's width");
    // SAFETY: 16 bytes.
    unsafe { _mm_storeu_si128((to as *mut [u8; 16]).cast(), value) };
}

/// As many bytes from `at` on, zeroes behind the end.
#[inline(always)]
fn from<const BYTES: usize>(bytes: &[u8], at: usize) -> [u8; BYTES] {
    let rest = bytes.get(at..).unwrap_or(&[]);
    match rest.first_chunk() {
        Some(bytes) => *bytes,
        None => {
            let mut bytes = [0; BYTES];
            bytes[..rest.len()].copy_from_slice(rest);
            bytes
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_at(list: &List, at: usize) -> __m256i {
    let bytes: &[u8; 32] = list[at..].first_chunk().expect("a register's width");
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256((bytes as *const [u8; 32]).cast()) }
}
