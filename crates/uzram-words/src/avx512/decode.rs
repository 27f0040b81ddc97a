//! The decoder in AVX-512.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::register::{Bytes, Halves, Words, chosen, lane_numbers, load, low_bits, store};
use crate::decode::{Head, Source};
use crate::error::Error;
use crate::format::{BLOCKS, DENSE, LANES, PAGE_BYTES, selector_bits};

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
    let mut copies = Bytes::new();
    take_distances(head.copies, &mut input, &mut copies)?;
    let mut nears = Bytes::new();
    let mut deltas = [Bytes::new(), Bytes::new()];
    if LEVEL == DENSE {
        take_distances(head.nears, &mut input, &mut nears)?;
        take_deltas(head.nears, &mut input, &mut deltas)?;
    }
    let mut coded = Words::new();
    if is_plain {
        let at = input.skip(head.coded * 8)?;
        for first in (0..head.coded * 8).step_by(64) {
            coded.store(first, input.register(at + first));
        }
        coded.pad();
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
fn take_distances(count: usize, input: &mut Input<'_>, distances: &mut Bytes) -> Result<(), Error> {
    let differ_at = input.skip(count.div_ceil(8))?;
    let changed = input.ones(differ_at, count);
    let near_at = input.skip(changed.div_ceil(8))?;
    let near_count = input.ones(near_at, changed);
    let nibbles_at = input.skip(near_count.div_ceil(2))?;
    let mut far_at = input.skip(changed - near_count)?;
    let mut nibbles = Bytes::new();
    take_nibbles(input, nibbles_at, near_count, &mut nibbles);
    let mut changes = Bytes::new();
    let mut nears = 0;
    let one = _mm512_set1_epi8(1);
    for first in (0..changed).step_by(64) {
        let valid = low_bits(changed - first);
        let near = input.word(near_at + first / 8) & valid;
        let less = _mm512_maskz_expand_epi8(near, nibbles.load(nears));
        let distances = _mm512_add_epi8(less, one);
        let far = valid & !near;
        let both = _mm512_mask_expand_epi8(distances, far, input.register(far_at));
        changes.store(first, both);
        nears += near.count_ones() as usize;
        far_at += far.count_ones() as usize;
    }
    changes.pad();
    let mut last = _mm512_setzero_si512();
    let mut change = 0;
    for first in (0..count).step_by(64) {
        let differ = input.word(differ_at + first / 8) & low_bits(count - first);
        let index = _mm512_sub_epi8(ranks(differ), one);
        let these = _mm512_permutexvar_epi8(index, changes.load(change));
        let unchanged = differ.wrapping_sub(1) & !differ;
        let these = _mm512_mask_mov_epi8(these, unchanged, last);
        distances.store(first, these);
        change += differ.count_ones() as usize;
        last = _mm512_permutexvar_epi8(_mm512_set1_epi8(63), these);
    }
    distances.pad();
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
fn take_nibbles(input: &Input<'_>, at: usize, count: usize, to: &mut Bytes) {
    for first in (0..count).step_by(64) {
        let packed = _mm512_castsi512_si256(input.register(at + first / 2));
        let wide = _mm512_cvtepu8_epi16(packed);
        let both = _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4));
        to.store(first, _mm512_and_si512(both, _mm512_set1_epi8(0xf)));
    }
    to.pad();
}

/// As [`decode::deltas`](crate::decode::deltas), low and high bytes apart.
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn take_deltas(count: usize, input: &mut Input<'_>, deltas: &mut [Bytes; 2]) -> Result<(), Error> {
    let low_at = input.skip(count)?;
    let is_high_at = input.skip(count.div_ceil(8))?;
    let mut high_at = input.skip(input.ones(is_high_at, count))?;
    for first in (0..count).step_by(64) {
        let is_high = input.word(is_high_at + first / 8) & low_bits(count - first);
        let high = _mm512_maskz_expand_epi8(is_high, input.register(high_at));
        high_at += is_high.count_ones() as usize;
        deltas[0].store(first, input.register(low_at + first));
        deltas[1].store(first, high);
    }
    deltas.iter_mut().for_each(|bytes| bytes.pad());
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
    coded: &mut Words,
) -> Result<(), Error> {
    let bits = selector_bits(LEVEL);
    let kept = ((1u64 << bits) - 1) * 0x0101_0101_0101_0101;
    let groups = count.div_ceil(LANES);
    let selectors_at = input.skip(groups * bits)?;
    let mut masks = Bytes::new();
    take_masks(count, input, &mut masks)?;
    let mut at = input.at;
    let mut previous = [_mm512_setzero_si512(); 2];
    for group in 0..groups {
        let mask = masks.word(group * 8);
        let rest = _mm512_maskz_expand_epi8(mask, input.register(at));
        at += mask.count_ones() as usize;
        let packed = input.word(selectors_at + group * bits);
        let bytes = _pdep_u64(packed, kept);
        let selectors = _mm512_cvtepu8_epi64(_mm_cvtsi64_si128(bytes as i64));
        let words = _mm512_xor_si512(rest, chosen::<LEVEL>(selectors, previous));
        previous = [words, previous[0]];
        coded.store(group * 64, words);
    }
    coded.pad();
    input.skip(at - input.at)?;
    Ok(())
}

/// As [`decode::masks`](crate::decode::masks), and zeroes behind the last.
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn take_masks(count: usize, input: &mut Input<'_>, masks: &mut Bytes) -> Result<(), Error> {
    let is_high_at = input.skip(count.div_ceil(8))?;
    let low_at = input.skip(count.div_ceil(2))?;
    let high_count = input.ones(is_high_at, count);
    let high_at = input.skip(high_count.div_ceil(2))?;
    let mut highs = Bytes::new();
    take_nibbles(input, high_at, high_count, &mut highs);
    let mut high = 0;
    for first in (0..count).step_by(64) {
        let valid = low_bits(count - first);
        let is_high = input.word(is_high_at + first / 8) & valid;
        let packed = _mm512_castsi512_si256(input.register(low_at + first / 2));
        let wide = _mm512_cvtepu8_epi16(packed);
        let lows = _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4));
        let lows = _mm512_and_si512(lows, _mm512_set1_epi8(0xf));
        let these = _mm512_maskz_expand_epi8(is_high, highs.load(high));
        high += is_high.count_ones() as usize;
        let both = _mm512_or_si512(lows, _mm512_slli_epi16(these, 4));
        masks.store(first, _mm512_maskz_mov_epi8(valid, both));
    }
    Ok(())
}

/// As [`decode::place`](crate::decode).
///
/// Words that were copied again and again make long chains. Within a block of 64 words each reference is
/// led to its chain's first word by permuting the block's lane numbers, so that what is left to copy
/// one after the other waits for as many words as there are blocks, at most.
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
fn place<const LEVEL: u8>(
    head: &Head,
    copies: &Bytes,
    nears: &Bytes,
    deltas: &[Bytes; 2],
    coded: &Words,
    page: &mut [u8; PAGE_BYTES],
) -> Result<(), Error> {
    let mut list = Copies {
        to: Halves::new(),
        from: Halves::new(),
        change: Halves::new(),
        count: 0,
    };
    let (mut code, mut copy, mut near) = (0, 0, 0);
    let mut is_wrong = 0;
    // The farthest distance from each word of a block that is not before the page.
    let mut farthest = lane_numbers();
    for block in 0..BLOCKS {
        let [in_full, copied, nearby] = head.block(block);
        let bytes: &mut [u8; 512] = page[block * 512..].first_chunk_mut().expect("a block");
        for (part, bytes) in bytes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let kept = (in_full >> (8 * part)) as u8;
            let words = _mm512_maskz_expand_epi64(kept, coded.load(code * 8));
            code += kept.count_ones() as usize;
            store(bytes, 0, words);
        }
        let mut distances = _mm512_maskz_expand_epi8(copied, copies.load(copy));
        copy += copied.count_ones() as usize;
        let mut delta = [_mm512_setzero_si512(); 2];
        if LEVEL == DENSE {
            distances = _mm512_mask_expand_epi8(distances, nearby, nears.load(near));
            delta = [0, 1].map(|byte| _mm512_maskz_expand_epi8(nearby, deltas[byte].load(near)));
            near += nearby.count_ones() as usize;
        }
        let both = copied | nearby;
        is_wrong |= both & !_mm512_test_epi8_mask(distances, distances);
        is_wrong |= _mm512_cmpgt_epu8_mask(distances, farthest);
        farthest = _mm512_adds_epu8(farthest, _mm512_set1_epi8(64));
        list.resolve::<LEVEL>(block, both, distances, delta);
    }
    if is_wrong != 0 {
        return Err(Error::Malformed);
    }
    list.carry_out::<LEVEL>(page);
    Ok(())
}

/// Words that are copied, in an order in which each is there before it is copied.
struct Copies {
    to: Halves,
    from: Halves,
    change: Halves,
    count: usize,
}

impl Copies {
    /// Appends the references of one block, each to a word that is coded or in a block before.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
    )]
    fn resolve<const LEVEL: u8>(
        &mut self,
        block: usize,
        references: u64,
        distances: __m512i,
        delta: [__m512i; 2],
    ) {
        let lanes = lane_numbers();
        let inside = _mm512_mask_cmple_epu8_mask(references, distances, lanes);
        // What each lane refers to, itself if that is outside.
        let mut other = _mm512_mask_sub_epi8(lanes, inside, lanes, distances);
        let mut change = delta.map(|byte| _mm512_maskz_mov_epi8(inside, byte));
        // A chain of up to 63 halves each time.
        for _ in 0..6 {
            if LEVEL == DENSE {
                change =
                    change.map(|byte| _mm512_xor_si512(byte, _mm512_permutexvar_epi8(other, byte)));
            }
            other = _mm512_permutexvar_epi8(other, other);
        }
        let outside =
            |byte| _mm512_maskz_permutexvar_epi8(!0, other, _mm512_maskz_mov_epi8(!inside, byte));
        let distances = outside(distances);
        let first = _mm512_set1_epi16((block * 64) as i16);
        for half in 0..2 {
            let kept = (references >> (32 * half)) as u32;
            let to = _mm512_add_epi16(first, wide(lanes, half));
            let from = _mm512_add_epi16(first, wide(other, half));
            let from = _mm512_sub_epi16(from, wide(distances, half));
            self.to
                .store(2 * self.count, _mm512_maskz_compress_epi16(kept, to));
            self.from
                .store(2 * self.count, _mm512_maskz_compress_epi16(kept, from));
            if LEVEL == DENSE {
                let [low, high] =
                    [0, 1].map(|n| wide(_mm512_xor_si512(change[n], outside(delta[n])), half));
                let change = _mm512_or_si512(low, _mm512_slli_epi16(high, 8));
                self.change
                    .store(2 * self.count, _mm512_maskz_compress_epi16(kept, change));
            }
            self.count += kept.count_ones() as usize;
        }
    }

    /// Copies, where every reference is known to be to a word before.
    #[inline(always)]
    fn carry_out<const LEVEL: u8>(&self, page: &mut [u8; PAGE_BYTES]) {
        let words = page.as_chunks_mut::<8>().0;
        let mut copy = |from: u16, to: u16, change: u16| {
            // SAFETY: an index of a word, less distances that are not larger.
            let word = u64::from_le_bytes(*unsafe { words.get_unchecked(usize::from(from)) });
            let word = (word ^ u64::from(change)).to_le_bytes();
            // SAFETY: as above.
            *unsafe { words.get_unchecked_mut(usize::from(to)) } = word;
        };
        let all = self
            .from
            .halves(self.count)
            .iter()
            .zip(self.to.halves(self.count));
        match LEVEL {
            DENSE => {
                let changes = self.change.halves(self.count);
                all.zip(changes)
                    .for_each(|((from, to), change)| copy(*from, *to, *change));
            }
            _ => all.for_each(|(from, to)| copy(*from, *to, 0)),
        }
    }
}

/// The lower or the upper 32 bytes as 16-bit numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn wide(bytes: __m512i, half: usize) -> __m512i {
    _mm512_cvtepu8_epi16(match half {
        0 => _mm512_castsi512_si256(bytes),
        _ => _mm512_extracti64x4_epi64::<1>(bytes),
    })
}
