//! The codec in AVX2. Words are pushed together by permutes from a table, and lists of bytes in a file of
//! their own.

#![allow(unsafe_code)]

mod decode;
mod lists;
mod register;

use core::arch::x86_64::*;

use crate::encode::{
    self, Classes, DELTA_BITS, LEAD, MULTIPLIER, Room, Scratch, TABLE_BITS, Table,
};
use crate::error::Error;
use crate::format::{BLOCKS, DENSE, LANES, PAGE_BYTES, PAGE_WORDS, Plane, selector_bits};
use lists::{gather, put_distances, put_masks, together};
use register::{WORDS, load, load_table, load_words, store};

/// Proof that the CPU has what this file uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Present(());

impl Present {
    pub(crate) fn detect() -> Option<Present> {
        let has_all = std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("bmi1")
            && std::is_x86_feature_detected!("bmi2")
            && std::is_x86_feature_detected!("popcnt");
        has_all.then_some(Present(()))
    }
}

/// As [`encode::page`].
pub(crate) fn encode<const LEVEL: u8>(
    _: Present,
    page: &[u8; PAGE_BYTES],
    scratch: &mut Scratch,
    out: &mut Room,
) -> usize {
    // SAFETY: `Present` is made only where the CPU has the features.
    unsafe { encode_page::<LEVEL>(page, scratch, out) }
}

/// As [`decode::page`](crate::decode::page).
pub(crate) fn decode<'a, const LEVEL: u8>(
    _: Present,
    is_plain: bool,
    source: &'a [u8],
    page: &mut [u8; PAGE_BYTES],
) -> Result<&'a [u8], Error> {
    // SAFETY: as above.
    unsafe { decode::page::<LEVEL>(is_plain, source, page) }
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn encode_page<const LEVEL: u8>(
    page: &[u8; PAGE_BYTES],
    scratch: &mut Scratch,
    out: &mut Room,
) -> usize {
    let classes = classify::<LEVEL>(page, scratch);
    let at = encode::head(&classes, out);
    let at = put_references::<LEVEL>(&classes, scratch, out, at);
    let end = put_coded::<LEVEL>(classes.coded, scratch, out, at);
    encode::finish(LEVEL, page, &classes, scratch, out, at, end)
}

/// As [`encode::references`].
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn put_references<const LEVEL: u8>(
    classes: &Classes,
    scratch: &mut Scratch,
    out: &mut Room,
    at: usize,
) -> usize {
    let changes = &mut scratch.changes;
    let at = put_distances(&scratch.copies, classes.copies, changes, out, at);
    if LEVEL != DENSE {
        return at;
    }
    let at = put_distances(&scratch.nears, classes.nears, changes, out, at);
    encode::deltas(&scratch.deltas[..classes.nears], out, at)
}

/// Sorts the words; see [`encode`].
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn classify<const LEVEL: u8>(page: &[u8; PAGE_BYTES], scratch: &mut Scratch) -> Classes {
    let mut same_distances = [0; PAGE_WORDS];
    let mut near_distances = [0; PAGE_WORDS];
    let Scratch {
        table_same,
        table_near,
        products,
        ..
    } = scratch;
    let same = distances::<0>(page, table_same, products, &mut same_distances);
    let near = match LEVEL {
        DENSE => distances::<DELTA_BITS>(page, table_near, products, &mut near_distances),
        _ => [0; BLOCKS],
    };
    let mut planes = [[0; BLOCKS]; 2];
    let (mut copies, mut nears, mut coded) = (0, 0, 0);
    scratch.coded[..LEAD].fill(0);
    for block in 0..BLOCKS {
        let bytes = &page[block * 512..][..512];
        let zeroes = bytes.as_chunks::<32>().0.iter().enumerate();
        let zeroes = zeroes.fold(0, |zeroes, (part, bytes)| {
            zeroes | is_zero(load(bytes)) << (4 * part)
        });
        let copied = same[block];
        let nearby = near[block] & !copied;
        let in_full = !zeroes & !copied & !nearby;
        planes[0][block] = in_full | nearby;
        planes[1][block] = copied | nearby;
        for (part, bytes) in bytes.as_chunks::<32>().0.iter().enumerate() {
            let kept = (in_full >> (4 * part)) as usize & 0xf;
            let together = _mm256_permutevar8x32_epi32(load(bytes), load_table(&WORDS[kept][0]));
            store(&mut scratch.coded, LEAD + coded, together);
            coded += kept.count_ones() as usize;
        }
        copies += gather(
            copied,
            &same_distances[block * 64..],
            &mut scratch.copies[copies..],
        );
        if LEVEL == DENSE {
            let mut left = nearby;
            for delta in &mut scratch.deltas[nears..][..nearby.count_ones() as usize] {
                let index = block * 64 + left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                let other = index - usize::from(near_distances[index]);
                let low = |index: usize| u16::from_le_bytes([page[index * 8], page[index * 8 + 1]]);
                *delta = low(index) ^ low(other);
            }
            nears += gather(
                nearby,
                &near_distances[block * 64..],
                &mut scratch.nears[nears..],
            );
        }
    }
    Classes {
        planes,
        copies,
        nears,
        coded,
    }
}

/// For each word, less its `SHIFT` low bits, how far back it stood last; a bit where that is near enough.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn distances<const SHIFT: u32>(
    page: &[u8; PAGE_BYTES],
    table: &mut Table,
    wide: &mut [u64; PAGE_WORDS],
    distances: &mut [u8; PAGE_WORDS],
) -> Plane {
    table.fill(0);
    let mut plane = [0; BLOCKS];
    let mut keyed = [0; BLOCKS];
    let others = _mm256_set1_epi64x((!0u64 >> TABLE_BITS << SHIFT) as i64);
    let keys = _mm256_set1_epi64x((!0u64 << SHIFT) as i64);
    let blocks = page.as_chunks::<512>().0.iter().enumerate();
    for (block, bytes) in blocks {
        let parts = bytes.as_chunks::<32>().0;
        let zeroes = |of| {
            let parts = parts.iter().enumerate();
            parts.fold(0, |zeroes, (part, bytes)| {
                zeroes | is_zero(_mm256_and_si256(load(bytes), of)) << (4 * part)
            })
        };
        keyed[block] = !zeroes(keys);
        let mut left = keyed[block];
        while left != 0 {
            let index = block * 64 + left.trailing_zeros() as usize % 64;
            left &= left - 1;
            let key = word(page, index) >> SHIFT;
            let product = key.wrapping_mul(MULTIPLIER);
            let new = product << TABLE_BITS | index as u64;
            let place = (product >> (64 - TABLE_BITS)) as usize;
            if place == 0 {
                forget_before_zero(&mut table[0], &keyed, index);
            }
            let distance = new.wrapping_sub(core::mem::replace(&mut table[place], new));
            wide[index] = distance;
            distances[index] = distance as u8;
        }
        let wide = wide[block * 64..][..64].as_chunks::<4>().0;
        let near = wide.iter().enumerate().fold(0, |near, (part, wide)| {
            let is_near = is_zero(_mm256_srli_epi64::<8>(load_words(wide, 0)));
            near | is_near << (4 * part)
        });
        plane[block] = near & !zeroes(others);
    }
    plane
}

/// Clears entry 0 if a key of zero, which [`distances`] leaves out, would have taken it since a word did.
#[cold]
#[inline(never)]
fn forget_before_zero(entry: &mut u64, keyed: &Plane, index: usize) {
    let last = *entry as usize % PAGE_WORDS;
    let is_keyed = |index: usize| keyed[index / 64] >> (index % 64) & 1 == 1;
    if *entry != 0 && !(last..index).all(is_keyed) {
        *entry = 0;
    }
}

#[inline(always)]
fn word(page: &[u8; PAGE_BYTES], index: usize) -> u64 {
    u64::from_le_bytes(page.as_chunks().0[index])
}

/// As [`encode::page`] writes coded words.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn put_coded<const LEVEL: u8>(
    count: usize,
    scratch: &mut Scratch,
    out: &mut Room,
    start: usize,
) -> usize {
    let groups = count.div_ceil(LANES);
    let Scratch {
        coded,
        masks,
        rest_bytes,
        ..
    } = scratch;
    coded[LEAD + count..LEAD + groups * LANES].fill(0);
    let mut length = 0;
    for group in 0..groups {
        let words = coded[group * LANES..].first_chunk().expect("three groups");
        let (selectors, rest) = select::<LEVEL>(words);
        let place = start + group * selector_bits(LEVEL);
        out[place..place + 4].copy_from_slice(&selectors.to_le_bytes());
        let zero = rest.map(|rest| {
            _mm256_movemask_epi8(_mm256_cmpeq_epi8(rest, _mm256_setzero_si256())) as u32
        });
        let zero = u64::from(zero[1]) << 32 | u64::from(zero[0]);
        let mask = (!zero).to_le_bytes();
        masks[group * LANES..][..LANES].copy_from_slice(&mask);
        let mut words = [0; LANES];
        store(&mut words, 0, rest[0]);
        store(&mut words, 4, rest[1]);
        for (rest, mask) in words.iter().zip(mask) {
            let bytes = together(*rest, mask).to_le_bytes();
            rest_bytes[length..length + 8].copy_from_slice(&bytes);
            length += mask.count_ones() as usize;
        }
    }
    let at = start + groups * selector_bits(LEVEL);
    let at = put_masks(masks, count, out, at);
    out[at..at + length].copy_from_slice(&rest_bytes[..length]);
    at + length
}

/// The selectors of the last of three groups of words, packed, and what remains of its words.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn select<const LEVEL: u8>(words: &[u64; 3 * LANES]) -> (u32, [__m256i; 2]) {
    let bits = selector_bits(LEVEL);
    let group = |first| [load_words(words, first), load_words(words, first + 4)];
    let own = group(2 * LANES);
    let all = [turns(group(LANES)), turns(group(0))];
    let all = all.as_flattened();
    let last = (1 << bits) - 1;
    let mut best = own.map(|half| likeness(half, _mm256_setzero_si256(), last));
    for selector in 1..=last {
        for half in 0..2 {
            let key = likeness(own[half], all[selector - 1][half], last - selector);
            best[half] = _mm256_max_epi16(best[half], key);
        }
    }
    let selectors = best.map(|key| selector(key, last));
    let bits = bits as i64;
    let places = _mm256_set_epi64x(3 * bits, 2 * bits, bits, 0);
    let low = _mm256_sllv_epi64(selectors[0], places);
    let high = _mm256_sllv_epi64(
        selectors[1],
        _mm256_add_epi64(places, _mm256_set1_epi64x(4 * bits)),
    );
    let lanes = _mm256_or_si256(low, high);
    let pair = _mm_or_si128(
        _mm256_castsi256_si128(lanes),
        _mm256_extracti128_si256::<1>(lanes),
    );
    let packed = (_mm_cvtsi128_si64(pair) | _mm_extract_epi64::<1>(pair)) as u32;
    let others = decode::others::<LEVEL>(packed, [group(LANES), group(0)]);
    let rest = [0, 1].map(|half| _mm256_xor_si256(own[half], others[half]));
    (packed, rest)
}

/// For each of four words 255 times the bytes that it has in common with another, and `rank`, which is less than 16.
#[inline]
#[target_feature(enable = "avx2")]
fn likeness(words: __m256i, others: __m256i, rank: usize) -> __m256i {
    let same = _mm256_cmpeq_epi8(words, others);
    let sum = _mm256_sad_epu8(same, _mm256_setzero_si256());
    _mm256_add_epi16(sum, _mm256_set1_epi64x(rank as i64))
}

/// The selector of each [`likeness`], whose rank is `last` less the selector.
#[inline]
#[target_feature(enable = "avx2")]
fn selector(keys: __m256i, last: usize) -> __m256i {
    // 255 n + rank, with n up to 8, is 256 n + (rank - n).
    let n = _mm256_srli_epi64::<8>(_mm256_add_epi64(keys, _mm256_set1_epi64x(8)));
    let rank = _mm256_and_si256(_mm256_add_epi64(keys, n), _mm256_set1_epi64x(0xff));
    _mm256_sub_epi64(_mm256_set1_epi64x(last as i64), rank)
}

/// A group's words, turned by each number of lanes.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn turns([low, high]: [__m256i; 2]) -> [[__m256i; 2]; LANES] {
    macro_rules! turn {
        ($lanes:literal, $carried:literal) => {{
            let low = _mm256_permute4x64_epi64::<$lanes>(low);
            let high = _mm256_permute4x64_epi64::<$lanes>(high);
            [
                _mm256_blend_epi32::<$carried>(low, high),
                _mm256_blend_epi32::<$carried>(high, low),
            ]
        }};
    }
    let [one, two, three] = [turn!(0x93, 0x03), turn!(0x4e, 0x0f), turn!(0x39, 0x3f)];
    let back = |[low, high]: [__m256i; 2]| [high, low];
    let none = [low, high];
    [
        none,
        one,
        two,
        three,
        back(none),
        back(one),
        back(two),
        back(three),
    ]
}

/// A bit for each of four words that is zero.
#[inline]
#[target_feature(enable = "avx2")]
fn is_zero(words: __m256i) -> u64 {
    let zero = _mm256_cmpeq_epi64(words, _mm256_setzero_si256());
    _mm256_movemask_pd(_mm256_castsi256_pd(zero)) as u64
}
