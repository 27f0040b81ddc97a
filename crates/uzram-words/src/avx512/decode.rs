//! The decoder in AVX-512.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::register::{
    chosen, lane_numbers, load, load_at, load_halves, load_words, low_bits, store, store_halves,
    store_words,
};
use crate::decode::{Head, Source};
use crate::error::Error;
use crate::format::{BLOCKS, DENSE, LANES, PAGE_BYTES, PAGE_WORDS, selector_bits};

#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
pub(super) fn page<'a, const LEVEL: u8>(
    is_plain: bool,
    source: &'a [u8],
    page: &mut [u8; PAGE_BYTES],
) -> Result<&'a [u8], Error> {
    let mut reader = Source::new(source);
    let head = Head::read::<LEVEL>(&mut reader)?;
    let mut input = Input {
        bytes: source,
        at: source.len() - reader.rest().len(),
    };
    let mut copies = [0; PAGE_WORDS + 64];
    take_distances(head.copies, &mut input, &mut copies)?;
    let mut nears = [0; PAGE_WORDS + 64];
    let mut deltas = [0; PAGE_WORDS + 32];
    if LEVEL == DENSE {
        take_distances(head.nears, &mut input, &mut nears)?;
        take_deltas(head.nears, &mut input, &mut deltas)?;
    }
    let mut coded = [0; PAGE_WORDS + 2 * LANES];
    if is_plain {
        let at = input.skip(head.coded * 8)?;
        for (word, bytes) in coded.iter_mut().zip(source[at..input.at].as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
    } else {
        take_coded::<LEVEL>(head.coded, &mut input, &mut coded)?;
    }
    place::<LEVEL>(&head, &copies, &nears, &deltas, &coded, page)?;
    Ok(&source[input.at..])
}

/// A source that is read in whole registers, also beyond a part and beyond its end, where it is zero.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    /// Takes `count` bytes and says where they start.
    #[inline(always)]
    fn skip(&mut self, count: usize) -> Result<usize, Error> {
        let start = self.at;
        if self.bytes.len() - start < count {
            return Err(Error::Malformed);
        }
        self.at += count;
        Ok(start)
    }

    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
    )]
    fn register(&self, at: usize) -> __m512i {
        let rest = self.bytes.get(at..).unwrap_or(&[]);
        match rest.first_chunk() {
            Some(bytes) => load(bytes),
            // SAFETY: no byte beyond the slice is touched: the mask leaves them out.
            None => unsafe { _mm512_maskz_loadu_epi8(low_bits(rest.len()), rest.as_ptr().cast()) },
        }
    }

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        let rest = self.bytes.get(at..).unwrap_or(&[]);
        match rest.first_chunk() {
            Some(bytes) => u64::from_le_bytes(*bytes),
            None => {
                let mut bytes = [0; 8];
                bytes[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(bytes)
            }
        }
    }

    /// How many of the `count` bits are set that start at `at`.
    #[inline]
    #[target_feature(enable = "popcnt,bmi2")]
    fn ones(&self, at: usize, count: usize) -> usize {
        let words = (0..count).step_by(64);
        let ones =
            words.map(|first| (self.word(at + first / 8) & low_bits(count - first)).count_ones());
        ones.sum::<u32>() as usize
    }
}

/// As [`decode::distances`](crate::decode::distances).
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn take_distances(
    count: usize,
    input: &mut Input<'_>,
    distances: &mut [u8; PAGE_WORDS + 64],
) -> Result<(), Error> {
    let differ_at = input.skip(count.div_ceil(8))?;
    let changed = input.ones(differ_at, count);
    let near_at = input.skip(changed.div_ceil(8))?;
    let near_count = input.ones(near_at, changed);
    let nibbles_at = input.skip(near_count.div_ceil(2))?;
    let mut far_at = input.skip(changed - near_count)?;
    let mut nibbles = [0; PAGE_WORDS + 64];
    take_nibbles(input, nibbles_at, near_count, &mut nibbles);
    let mut changes = [0; PAGE_WORDS + 64];
    let mut nears = 0;
    let one = _mm512_set1_epi8(1);
    for first in (0..changed).step_by(64) {
        let valid = low_bits(changed - first);
        let near = input.word(near_at + first / 8) & valid;
        let less = _mm512_maskz_expand_epi8(near, load_at(&nibbles, nears));
        let distances = _mm512_add_epi8(less, one);
        let far = valid & !near;
        let both = _mm512_mask_expand_epi8(distances, far, input.register(far_at));
        store(&mut changes, first, both);
        nears += near.count_ones() as usize;
        far_at += far.count_ones() as usize;
    }
    let mut last = _mm512_setzero_si512();
    let mut change = 0;
    for first in (0..count).step_by(64) {
        let differ = input.word(differ_at + first / 8) & low_bits(count - first);
        let index = _mm512_sub_epi8(ranks(differ), one);
        let these = _mm512_permutexvar_epi8(index, load_at(&changes, change));
        let unchanged = differ.wrapping_sub(1) & !differ;
        let these = _mm512_mask_mov_epi8(these, unchanged, last);
        store(distances, first, these);
        change += differ.count_ones() as usize;
        last = _mm512_permutexvar_epi8(_mm512_set1_epi8(63), these);
    }
    Ok(())
}

/// For each bit, how many up to it are set.
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn ranks(bits: u64) -> __m512i {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let within = _mm512_maskz_set1_epi8(bits, 1);
    let within = _mm512_mullo_epi64(within, _mm512_set1_epi64(EACH as i64));
    let pairs = bits - (bits >> 1 & 0x5555_5555_5555_5555);
    let fours = (pairs & 0x3333_3333_3333_3333) + (pairs >> 2 & 0x3333_3333_3333_3333);
    let eights = (fours + (fours >> 4)) & 0x0f0f_0f0f_0f0f_0f0f;
    // Of the bytes before each byte of bits; the last of all eight may be 64 and is not among them.
    let before = _mm512_set1_epi64((eights.wrapping_mul(EACH) << 8) as i64);
    let byte = _mm512_srli_epi16(lane_numbers(), 3);
    let byte = _mm512_and_si512(byte, _mm512_set1_epi8(7));
    _mm512_add_epi8(within, _mm512_permutexvar_epi8(byte, before))
}

#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn take_nibbles(input: &Input<'_>, at: usize, count: usize, to: &mut [u8; PAGE_WORDS + 64]) {
    for first in (0..count).step_by(64) {
        let packed = _mm512_castsi512_si256(input.register(at + first / 2));
        let wide = _mm512_cvtepu8_epi16(packed);
        let both = _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4));
        store(to, first, _mm512_and_si512(both, _mm512_set1_epi8(0xf)));
    }
}

/// As [`decode::deltas`](crate::decode::deltas).
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn take_deltas(
    count: usize,
    input: &mut Input<'_>,
    deltas: &mut [u16; PAGE_WORDS + 32],
) -> Result<(), Error> {
    let low_at = input.skip(count)?;
    let is_high_at = input.skip(count.div_ceil(8))?;
    let mut high_at = input.skip(input.ones(is_high_at, count))?;
    for first in (0..count).step_by(32) {
        let is_high = input.word(is_high_at + first / 8) & low_bits(count - first);
        let is_high = is_high & u64::from(u32::MAX);
        let high = _mm512_maskz_expand_epi8(is_high, input.register(high_at));
        high_at += is_high.count_ones() as usize;
        let low = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(input.register(low_at + first)));
        let high = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(high));
        let both = _mm512_or_si512(low, _mm512_slli_epi16(high, 8));
        store_halves(deltas, first, both);
    }
    Ok(())
}

/// As [`decode::coded`](crate::decode).
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn take_coded<const LEVEL: u8>(
    count: usize,
    input: &mut Input<'_>,
    coded: &mut [u64; PAGE_WORDS + 2 * LANES],
) -> Result<(), Error> {
    let bits = selector_bits(LEVEL);
    let kept = ((1u64 << bits) - 1) * 0x0101_0101_0101_0101;
    let groups = count.div_ceil(LANES);
    let selectors_at = input.skip(groups * bits)?;
    let mut masks = [0; PAGE_WORDS + 64];
    take_masks(count, input, &mut masks)?;
    let mut at = input.at;
    let mut previous = [_mm512_setzero_si512(); 2];
    for group in 0..groups {
        let mask = load_mask(&masks, group);
        let rest = _mm512_maskz_expand_epi8(mask, input.register(at));
        at += mask.count_ones() as usize;
        let packed = input.word(selectors_at + group * bits);
        let bytes = _pdep_u64(packed, kept);
        let selectors = _mm512_cvtepu8_epi64(_mm_cvtsi64_si128(bytes as i64));
        let words = _mm512_xor_si512(rest, chosen::<LEVEL>(selectors, previous));
        previous = [words, previous[0]];
        store_words(coded, group * LANES, words);
    }
    input.skip(at - input.at)?;
    Ok(())
}

#[inline(always)]
fn load_mask(masks: &[u8; PAGE_WORDS + 64], group: usize) -> u64 {
    u64::from_le_bytes(*masks[group * 8..].first_chunk().expect("a group's masks"))
}

/// As [`decode::masks`](crate::decode::masks), and zeroes behind the last.
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn take_masks(
    count: usize,
    input: &mut Input<'_>,
    masks: &mut [u8; PAGE_WORDS + 64],
) -> Result<(), Error> {
    let is_high_at = input.skip(count.div_ceil(8))?;
    let low_at = input.skip(count.div_ceil(2))?;
    let high_count = input.ones(is_high_at, count);
    let high_at = input.skip(high_count.div_ceil(2))?;
    let mut highs = [0; PAGE_WORDS + 64];
    take_nibbles(input, high_at, high_count, &mut highs);
    let mut high = 0;
    for first in (0..count).step_by(64) {
        let valid = low_bits(count - first);
        let is_high = input.word(is_high_at + first / 8) & valid;
        let packed = _mm512_castsi512_si256(input.register(low_at + first / 2));
        let wide = _mm512_cvtepu8_epi16(packed);
        let lows = _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4));
        let lows = _mm512_and_si512(lows, _mm512_set1_epi8(0xf));
        let these = _mm512_maskz_expand_epi8(is_high, load_at(&highs, high));
        high += is_high.count_ones() as usize;
        let both = _mm512_or_si512(lows, _mm512_slli_epi16(these, 4));
        store(masks, first, _mm512_maskz_mov_epi8(valid, both));
    }
    Ok(())
}

/// As [`decode::place`](crate::decode).
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn place<const LEVEL: u8>(
    head: &Head,
    copies: &[u8; PAGE_WORDS + 64],
    nears: &[u8; PAGE_WORDS + 64],
    deltas: &[u16; PAGE_WORDS + 32],
    coded: &[u64; PAGE_WORDS + 2 * LANES],
    page: &mut [u8; PAGE_BYTES],
) -> Result<(), Error> {
    let mut to = [0u16; PAGE_WORDS + 32];
    let mut from = [0u16; PAGE_WORDS + 32];
    let mut change = [0u16; PAGE_WORDS + 32];
    let (mut code, mut copy, mut near, mut reference) = (0, 0, 0, 0);
    let mut is_wrong = 0;
    let mut index = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(lane_numbers()));
    for block in 0..BLOCKS {
        let [in_full, copied, nearby] = head.block(block);
        let bytes: &mut [u8; 512] = page[block * 512..].first_chunk_mut().expect("a block");
        for (part, bytes) in bytes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let kept = (in_full >> (8 * part)) as u8;
            let words = _mm512_maskz_expand_epi64(kept, load_words(coded, code));
            code += kept.count_ones() as usize;
            store(bytes, 0, words);
        }
        let mut distances = _mm512_maskz_expand_epi8(copied, load_at(copies, copy));
        copy += copied.count_ones() as usize;
        if LEVEL == DENSE {
            distances = _mm512_mask_expand_epi8(distances, nearby, load_at(nears, near));
        }
        for half in 0..2 {
            let copied = (copied >> (32 * half)) as u32;
            let nearby = (nearby >> (32 * half)) as u32;
            let both = copied | nearby;
            let distance = match half {
                0 => _mm512_castsi512_si256(distances),
                _ => _mm512_extracti64x4_epi64::<1>(distances),
            };
            let distance = _mm512_cvtepu8_epi16(distance);
            // A distance of none, and one to before the page.
            let other = _mm512_sub_epi16(index, distance);
            is_wrong |= _mm512_mask_cmpge_epu16_mask(both, other, index);
            store_halves(&mut to, reference, _mm512_maskz_compress_epi16(both, index));
            store_halves(
                &mut from,
                reference,
                _mm512_maskz_compress_epi16(both, other),
            );
            if LEVEL == DENSE {
                let delta = _mm512_maskz_expand_epi16(nearby, load_halves(deltas, near));
                store_halves(
                    &mut change,
                    reference,
                    _mm512_maskz_compress_epi16(both, delta),
                );
                near += nearby.count_ones() as usize;
            }
            reference += both.count_ones() as usize;
            index = _mm512_add_epi16(index, _mm512_set1_epi16(32));
        }
    }
    if is_wrong != 0 {
        return Err(Error::Malformed);
    }
    let words = page.as_chunks_mut::<8>().0;
    for n in 0..reference {
        let (to, from) = (usize::from(to[n]), usize::from(from[n]));
        // SAFETY: an index of a word, less a distance that is not larger.
        let mut word = unsafe { *words.get_unchecked(from) };
        if LEVEL == DENSE {
            word = (u64::from_le_bytes(word) ^ u64::from(change[n])).to_le_bytes();
        }
        // SAFETY: as above.
        *unsafe { words.get_unchecked_mut(to) } = word;
    }
    Ok(())
}
