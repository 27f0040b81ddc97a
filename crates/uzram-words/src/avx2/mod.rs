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
    let words = page.as_chunks::<8>().0.iter().zip(0u64..);
    let both = wide.iter_mut().zip(distances);
    for ((bytes, index), (wide, distance)) in words.zip(both) {
        let key = u64::from_le_bytes(*bytes) >> SHIFT;
        let product = key.wrapping_mul(MULTIPLIER);
        let new = product << TABLE_BITS | index;
        let entry = &mut table[(product >> (64 - TABLE_BITS)) as usize];
        *wide = new.wrapping_sub(*entry);
        *distance = *wide as u8;
        *entry = new;
    }
    let mut plane = [0; BLOCKS];
    let others = _mm256_set1_epi64x((!0u64 >> TABLE_BITS << SHIFT) as i64);
    let parts = page.as_chunks::<32>().0.iter().zip(wide.as_chunks::<4>().0);
    for (part, (bytes, wide)) in parts.enumerate() {
        let is_none = is_zero(_mm256_and_si256(load(bytes), others));
        // SAFETY: four words are 32 bytes.
        let distance = unsafe { _mm256_loadu_si256((wide as *const [u64; 4]).cast()) };
        let is_near = is_zero(_mm256_srli_epi64::<8>(distance));
        plane[part / 16] |= (is_near & !is_none) << (part % 16 * 4);
    }
    plane
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
    let mut best = own.map(|half| count::<LEVEL>(half, 0));
    for selector in 1..1 << bits {
        for half in 0..2 {
            let rest = _mm256_xor_si256(own[half], all[selector - 1][half]);
            best[half] = _mm256_min_epu16(best[half], count::<LEVEL>(rest, selector));
        }
    }
    let kept = _mm256_set1_epi64x((1 << bits) - 1);
    let selectors = best.map(|best| _mm256_and_si256(best, kept));
    let mut rest = own;
    for selector in 1..1 << bits {
        let this = _mm256_set1_epi64x(selector as i64);
        for half in 0..2 {
            let is_this = _mm256_cmpeq_epi64(selectors[half], this);
            let other = _mm256_and_si256(is_this, all[selector - 1][half]);
            rest[half] = _mm256_xor_si256(rest[half], other);
        }
    }
    let bits = bits as i64;
    let places = _mm256_set_epi64x(3 * bits, 2 * bits, bits, 0);
    let low = _mm256_sllv_epi64(selectors[0], places);
    let high = _mm256_sllv_epi64(
        selectors[1],
        _mm256_add_epi64(places, _mm256_set1_epi64x(4 * bits)),
    );
    let packed = _mm256_or_si256(low, high);
    let mut lanes = [0; 4];
    store(&mut lanes, 0, packed);
    (lanes.iter().fold(0, |all, lane| all | *lane as u32), rest)
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

/// How many bytes of each word are not zero, above the bits of the selector.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn count<const LEVEL: u8>(words: __m256i, selector: usize) -> __m256i {
    let ones = _mm256_min_epu8(words, _mm256_set1_epi8(1));
    let counts = _mm256_sad_epu8(ones, _mm256_setzero_si256());
    let above = match LEVEL {
        DENSE => _mm256_slli_epi64::<4>(counts),
        _ => _mm256_slli_epi64::<3>(counts),
    };
    _mm256_or_si256(above, _mm256_set1_epi64x(selector as i64))
}

/// A bit for each of four words that is zero.
#[inline]
#[target_feature(enable = "avx2")]
fn is_zero(words: __m256i) -> u64 {
    let zero = _mm256_cmpeq_epi64(words, _mm256_setzero_si256());
    _mm256_movemask_pd(_mm256_castsi256_pd(zero)) as u64
}
