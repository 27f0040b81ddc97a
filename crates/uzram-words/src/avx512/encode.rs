//! The encoder in AVX-512.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::register::{
    chosen, lane_numbers, load, load_at, load_words, low_bits, store, store_half, store_words,
};
use crate::encode::{
    Classes, DELTA_BITS, LEAD, MULTIPLIER, Room, Scratch, TABLE_BITS, Table, deltas, finish, head,
};
use crate::format::{
    BLOCKS, DENSE, DISTANCE_MAX, LANES, NEAR_MAX, PAGE_BYTES, PAGE_WORDS, Plane, selector_bits,
};

#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
pub(super) fn page<const LEVEL: u8>(
    page: &[u8; PAGE_BYTES],
    scratch: &mut Scratch,
    out: &mut Room,
) -> usize {
    let classes = classify::<LEVEL>(page, scratch);
    let at = head(&classes, out);
    let at = put_distances(
        &scratch.copies,
        classes.copies,
        &mut scratch.changes,
        out,
        at,
    );
    let at = if LEVEL == DENSE {
        let at = put_distances(&scratch.nears, classes.nears, &mut scratch.changes, out, at);
        deltas(&scratch.deltas[..classes.nears], out, at)
    } else {
        at
    };
    let end = put_coded::<LEVEL>(classes.coded, scratch, out, at);
    finish(LEVEL, page, &classes, scratch, out, at, end)
}

/// Sorts the words; see [`encode`](crate::encode).
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn classify<const LEVEL: u8>(page: &[u8; PAGE_BYTES], scratch: &mut Scratch) -> Classes {
    let mut same_distances = [0; PAGE_WORDS];
    let mut near_distances = [0; PAGE_WORDS];
    let Scratch {
        table_same,
        table_near,
        products,
        entries,
        places,
        ..
    } = scratch;
    let same = distances::<0>(
        page,
        table_same,
        products,
        entries,
        places,
        &mut same_distances,
    );
    let near = match LEVEL {
        DENSE => distances::<DELTA_BITS>(
            page,
            table_near,
            products,
            entries,
            places,
            &mut near_distances,
        ),
        _ => [0; BLOCKS],
    };
    let mut planes = [[0; BLOCKS]; 2];
    let (mut copies, mut nears, mut coded) = (0, 0, 0);
    let zero = _mm512_setzero_si512();
    store_words(&mut scratch.coded, 0, zero);
    store_words(&mut scratch.coded, LANES, zero);
    for block in 0..BLOCKS {
        let bytes: &[u8; 512] = page[block * 512..].first_chunk().expect("a block");
        let mut nonzero = 0;
        for (part, bytes) in bytes.as_chunks().0.iter().enumerate() {
            let words = load(bytes);
            nonzero |= u64::from(_mm512_test_epi64_mask(words, words)) << (8 * part);
        }
        let copied = same[block];
        let nearby = near[block] & !copied;
        let in_full = nonzero & !copied & !nearby;
        planes[0][block] = in_full | nearby;
        planes[1][block] = copied | nearby;
        for (part, bytes) in bytes.as_chunks().0.iter().enumerate() {
            let kept = (in_full >> (8 * part)) as u8;
            let words = _mm512_maskz_compress_epi64(kept, load(bytes));
            store_words(&mut scratch.coded, LEAD + coded, words);
            coded += kept.count_ones() as usize;
        }
        let distances = load(same_distances[block * 64..].first_chunk().expect("a block"));
        store(
            &mut scratch.copies,
            copies,
            _mm512_maskz_compress_epi8(copied, distances),
        );
        copies += copied.count_ones() as usize;
        if LEVEL == DENSE {
            let distances = load(near_distances[block * 64..].first_chunk().expect("a block"));
            store(
                &mut scratch.nears,
                nears,
                _mm512_maskz_compress_epi8(nearby, distances),
            );
            let mut left = nearby;
            while left != 0 {
                let index = block * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                let other = index - usize::from(near_distances[index]);
                let low = |index: usize| u16::from_le_bytes([page[index * 8], page[index * 8 + 1]]);
                scratch.deltas[nears] = low(index) ^ low(other);
                nears += 1;
            }
        }
    }
    store_words(&mut scratch.coded, LEAD + coded, zero);
    Classes {
        planes,
        copies,
        nears,
        coded,
    }
}

/// For each word, less its `SHIFT` low bits, how far back it stood last; a bit where that is near enough.
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn distances<const SHIFT: u32>(
    page: &[u8; PAGE_BYTES],
    table: &mut Table,
    products: &mut [u64; PAGE_WORDS],
    entries: &mut [u64; PAGE_WORDS],
    places: &mut [u16; PAGE_WORDS],
    distances: &mut [u8; PAGE_WORDS],
) -> Plane {
    let multiplier = _mm512_set1_epi64(MULTIPLIER as i64);
    let mut index = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    let shift = _mm512_set1_epi64(i64::from(SHIFT));
    let entry = _mm512_set1_epi64((1 << TABLE_BITS) - 1);
    let parts = page.as_chunks().0.iter();
    let parts = parts
        .zip(products.as_chunks_mut::<8>().0)
        .zip(places.as_chunks_mut::<8>().0);
    for ((bytes, products), places) in parts {
        let keys = _mm512_srlv_epi64(load(bytes), shift);
        let product = _mm512_mullo_epi64(keys, multiplier);
        // A rotation, since the compiler makes a second product of a shift.
        let turned = _mm512_rol_epi64::<{ TABLE_BITS as i32 }>(product);
        let place = _mm512_and_si512(turned, entry);
        store_words(
            products,
            0,
            _mm512_ternarylogic_epi64::<0xf2>(index, entry, turned),
        );
        index = _mm512_add_epi64(index, _mm512_set1_epi64(8));
        let place = _mm512_cvtepi64_epi16(place);
        // SAFETY: 8 numbers of 16 bits are 16 bytes.
        unsafe { _mm_storeu_si128((places as *mut [u16; 8]).cast(), place) };
    }
    table.fill(0);
    for ((entry, place), product) in entries.iter_mut().zip(&*places).zip(&*products) {
        // SAFETY: a place is a product's high `TABLE_BITS` bits, and the table has an entry for each.
        let old = unsafe { table.get_unchecked_mut(usize::from(*place)) };
        *entry = core::mem::replace(old, *product);
    }
    let mut plane = [0; BLOCKS];
    let others = _mm512_set1_epi64((!0u64 >> TABLE_BITS << SHIFT) as i64);
    let farthest = _mm512_set1_epi64(DISTANCE_MAX as i64);
    for part in 0..PAGE_WORDS / 8 {
        let words = load(page[part * 64..].first_chunk().expect("a part"));
        let distance = _mm512_sub_epi64(
            load_words(products, part * 8),
            load_words(entries, part * 8),
        );
        let is_word = _mm512_test_epi64_mask(words, others);
        let is_near = _mm512_mask_cmple_epu64_mask(is_word, distance, farthest);
        plane[part / 8] |= u64::from(is_near) << (part % 8 * 8);
        let bytes = _mm_cvtsi128_si64(_mm512_cvtepi64_epi8(distance)) as u64;
        distances[part * 8..][..8].copy_from_slice(&bytes.to_le_bytes());
    }
    plane
}

/// As [`encode::distances`](crate::encode::distances).
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn put_distances(
    distances: &[u8; PAGE_WORDS + 64],
    count: usize,
    changes: &mut [u8; PAGE_WORDS + 64],
    out: &mut Room,
    at: usize,
) -> usize {
    // Lane 0 is -1, which is lane 63 of the second source.
    let before = _mm512_sub_epi8(lane_numbers(), _mm512_set1_epi8(1));
    let mut last = _mm512_setzero_si512();
    let mut changed = 0;
    for first in (0..count).step_by(64) {
        let these = load_at(distances, first);
        let those = _mm512_permutex2var_epi8(these, before, last);
        let differ = _mm512_mask_cmpneq_epi8_mask(low_bits(count - first), these, those);
        put_bits(out, at + first / 8, differ);
        store(changes, changed, _mm512_maskz_compress_epi8(differ, these));
        changed += differ.count_ones() as usize;
        last = these;
    }
    let mut at = at + count.div_ceil(8);
    let bitmap = at;
    at += changed.div_ceil(8);
    let mut nibbles = [0; PAGE_WORDS + 64];
    let mut far = [0; PAGE_WORDS + 64];
    let (mut near_count, mut far_count) = (0, 0);
    for first in (0..changed).step_by(64) {
        let these = load_at(changes, first);
        let valid = low_bits(changed - first);
        let near = _mm512_mask_cmple_epu8_mask(valid, these, _mm512_set1_epi8(NEAR_MAX as i8));
        put_bits(out, bitmap + first / 8, near);
        let less = _mm512_sub_epi8(these, _mm512_set1_epi8(1));
        store(
            &mut nibbles,
            near_count,
            _mm512_maskz_compress_epi8(near, less),
        );
        store(
            &mut far,
            far_count,
            _mm512_maskz_compress_epi8(valid & !near, these),
        );
        near_count += near.count_ones() as usize;
        far_count += (valid & !near).count_ones() as usize;
    }
    let at = put_nibbles(&mut nibbles, near_count, out, at);
    for first in (0..far_count).step_by(64) {
        store(out, at + first, load_at(&far, first));
    }
    at + far_count
}

/// Two to a byte, zero behind the last.
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn put_nibbles(
    nibbles: &mut [u8; PAGE_WORDS + 64],
    count: usize,
    out: &mut Room,
    at: usize,
) -> usize {
    nibbles[count] = 0;
    for first in (0..count).step_by(64) {
        let these = load_at(nibbles, first);
        let pairs = _mm512_maddubs_epi16(these, _mm512_set1_epi16(0x1001));
        let packed = _mm512_cvtepi16_epi8(pairs);
        store_half(out, at + first / 2, packed);
    }
    at + count.div_ceil(2)
}

/// As [`encode::page`](crate::encode::page) writes coded words.
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
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
        changes,
        ..
    } = scratch;
    let mut previous = [_mm512_setzero_si512(); 2];
    let mut length = 0;
    for group in 0..groups {
        let words = load_words(coded, LEAD + group * LANES);
        let (selectors, rest) = select::<LEVEL>(words, previous);
        previous = [words, previous[0]];
        let place = start + group * selector_bits(LEVEL);
        out[place..place + 4].copy_from_slice(&selectors.to_le_bytes());
        let mask = _mm512_test_epi8_mask(rest, rest);
        masks[group * 8..][..8].copy_from_slice(&mask.to_le_bytes());
        store(rest_bytes, length, _mm512_maskz_compress_epi8(mask, rest));
        length += mask.count_ones() as usize;
    }
    let at = start + groups * selector_bits(LEVEL);
    let at = put_masks(masks, changes, count, out, at);
    for first in (0..length).step_by(64) {
        store(out, at + first, load_at(rest_bytes, first));
    }
    at + length
}

/// The selectors of a group of words, packed, and what remains of the words.
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn select<const LEVEL: u8>(words: __m512i, previous: [__m512i; 2]) -> (u32, __m512i) {
    let [last, before] = previous;
    let mut best = count::<LEVEL, 0>(words);
    macro_rules! candidates {
        ($group:expr, $($selector:literal $turn:literal),*) => {$(
            let other = _mm512_alignr_epi64::<$turn>($group, $group);
            let key = count::<LEVEL, $selector>(_mm512_xor_si512(words, other));
            best = _mm512_min_epu16(best, key);
        )*};
    }
    candidates!(last, 1 0, 2 7, 3 6, 4 5, 5 4, 6 3, 7 2);
    if LEVEL == DENSE {
        candidates!(last, 8 1);
        candidates!(before, 9 0, 10 7, 11 6, 12 5, 13 4, 14 3, 15 2);
    }
    let kept = (1 << selector_bits(LEVEL)) - 1;
    let selectors = _mm512_and_si512(best, _mm512_set1_epi64(kept));
    let others = chosen::<LEVEL>(selectors, previous);
    let bytes = _mm_cvtsi128_si64(_mm512_cvtepi64_epi8(selectors)) as u64;
    let packed = _pext_u64(bytes, kept as u64 * 0x0101_0101_0101_0101);
    (packed as u32, _mm512_xor_si512(words, others))
}

/// How many bytes of each word are not zero, above the bits of the selector.
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn count<const LEVEL: u8, const SELECTOR: i64>(words: __m512i) -> __m512i {
    let ones = _mm512_min_epu8(words, _mm512_set1_epi8(1));
    let counts = _mm512_sad_epu8(ones, _mm512_setzero_si512());
    match LEVEL {
        DENSE => _mm512_shldi_epi64::<4>(counts, _mm512_set1_epi64(SELECTOR << 60)),
        _ => _mm512_shldi_epi64::<3>(counts, _mm512_set1_epi64(SELECTOR << 61)),
    }
}

/// As [`encode::masks`](crate::encode::masks).
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn put_masks(
    masks: &[u8; PAGE_WORDS + 64],
    highs: &mut [u8; PAGE_WORDS + 64],
    count: usize,
    out: &mut Room,
    at: usize,
) -> usize {
    let nibble = _mm512_set1_epi8(0xf);
    let low_at = at + count.div_ceil(8);
    let mut high_count = 0;
    for first in (0..count).step_by(64) {
        let these = load_at(masks, first);
        let high = _mm512_and_si512(_mm512_srli_epi16(these, 4), nibble);
        let is_high = _mm512_mask_test_epi8_mask(low_bits(count - first), high, high);
        put_bits(out, at + first / 8, is_high);
        store(highs, high_count, _mm512_maskz_compress_epi8(is_high, high));
        high_count += is_high.count_ones() as usize;
    }
    let mut lows = [0; PAGE_WORDS + 64];
    for first in (0..count).step_by(64) {
        store(
            &mut lows,
            first,
            _mm512_and_si512(load_at(masks, first), nibble),
        );
    }
    let at = put_nibbles(&mut lows, count, out, low_at);
    put_nibbles(highs, high_count, out, at)
}

#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn put_bits(out: &mut Room, at: usize, bits: u64) {
    out[at..at + 8].copy_from_slice(&bits.to_le_bytes());
}
