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
use register::{WORDS, load, load_table, load_words, store, store_bytes};

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
    let same = distances::<0>(page, &mut scratch.table_same, &mut same_distances);
    let near = match LEVEL {
        DENSE => {
            distances::<{ DELTA_BITS as i32 }>(page, &mut scratch.table_near, &mut near_distances)
        }
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
fn distances<const SHIFT: i32>(
    page: &[u8; PAGE_BYTES],
    table: &mut Table,
    distances: &mut [u8; PAGE_WORDS],
) -> Plane {
    table.fill(0);
    let mut plane = [0; BLOCKS];
    let mut indexes = _mm256_setr_epi64x(0, 1, 2, 3);
    let halves = page.as_chunks::<256>().0.iter().enumerate();
    for (half, bytes) in halves {
        let mut far_back = [_mm256_setzero_si256(); 8];
        for (part, bytes) in bytes.as_chunks::<32>().0.iter().enumerate() {
            let keys = _mm256_srli_epi64::<SHIFT>(load(bytes));
            let products = spread(keys);
            let new = _mm256_or_si256(
                _mm256_slli_epi64::<{ TABLE_BITS as i32 }>(products),
                indexes,
            );
            indexes = _mm256_add_epi64(indexes, _mm256_set1_epi64x(4));
            let places = _mm256_srli_epi64::<{ 64 - TABLE_BITS as i32 }>(products);
            let distance = _mm256_sub_epi64(new, replace(table, places, new));
            far_back[part] = distance;
            let near = is_zero(_mm256_srli_epi64::<8>(distance));
            let lost = is_zero(_mm256_slli_epi64::<{ TABLE_BITS as i32 }>(keys));
            plane[half / 2] |= (near & !lost) << (half % 2 * 32 + part * 4);
        }
        store_bytes(&mut distances.as_chunks_mut().0[half], low_bytes(far_back));
    }
    plane
}

/// Each key by [`MULTIPLIER`], of which AVX2 multiplies only halves.
#[inline]
#[target_feature(enable = "avx2")]
fn spread(keys: __m256i) -> __m256i {
    let low = _mm256_set1_epi64x((MULTIPLIER & 0xffff_ffff) as i64);
    let high = _mm256_set1_epi64x((MULTIPLIER >> 32) as i64);
    let crossed = _mm256_add_epi64(
        _mm256_mul_epu32(keys, high),
        _mm256_mul_epu32(_mm256_srli_epi64::<32>(keys), low),
    );
    _mm256_add_epi64(
        _mm256_mul_epu32(keys, low),
        _mm256_slli_epi64::<32>(crossed),
    )
}

/// The entries of four places, each read after the words before have taken theirs; then `new` takes them.
#[inline]
#[target_feature(enable = "avx2")]
fn replace(table: &mut Table, places: __m256i, new: __m256i) -> __m256i {
    let mut two = |places: __m128i, new: __m128i| {
        let place = |place: i64| place as usize % (1 << TABLE_BITS);
        let entry = &mut table[place(_mm_cvtsi128_si64(places))];
        let old = _mm_cvtsi64_si128(*entry as i64);
        *entry = _mm_cvtsi128_si64(new) as u64;
        let entry = &mut table[place(_mm_extract_epi64::<1>(places))];
        let old = _mm_insert_epi64::<1>(old, *entry as i64);
        *entry = _mm_extract_epi64::<1>(new) as u64;
        old
    };
    let low = two(_mm256_castsi256_si128(places), _mm256_castsi256_si128(new));
    let high = two(
        _mm256_extracti128_si256::<1>(places),
        _mm256_extracti128_si256::<1>(new),
    );
    _mm256_set_m128i(high, low)
}

/// The lowest bytes of 32 words.
#[inline]
#[target_feature(enable = "avx2")]
fn low_bytes(words: [__m256i; 8]) -> __m256i {
    let words = words.map(|words| _mm256_and_si256(words, _mm256_set1_epi64x(0xff)));
    let pack = |a, b| _mm256_packus_epi32(a, b);
    let [a, b] = [0, 4].map(|n| {
        pack(
            pack(words[n], words[n + 1]),
            pack(words[n + 2], words[n + 3]),
        )
    });
    // Packs work in halves of a register: each has two bytes of every four.
    let pairs = _mm256_packus_epi16(a, b);
    let (low, high) = (
        _mm256_castsi256_si128(pairs),
        _mm256_extracti128_si256::<1>(pairs),
    );
    _mm256_set_m128i(_mm_unpackhi_epi16(low, high), _mm_unpacklo_epi16(low, high))
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
