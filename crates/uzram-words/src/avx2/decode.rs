//! The decoder in AVX2.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::lists::{List, apart_16, eight, sixteen_at, take_distances, take_masks, take_some};
use super::register::{WORDS, load_table, load_words, store, store_bytes};
use crate::decode::{self, Head, Source};
use crate::encode::LEAD;
use crate::error::Error;
use crate::format::{BLOCKS, DENSE, LANES, PAGE_BYTES, PAGE_WORDS, selector_bits};

/// The words that were coded, behind [`LEAD`] zeroes.
type Coded = [u64; LEAD + PAGE_WORDS + LANES];

/// A group of words.
type Group = [__m256i; 2];

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn page<'a, const LEVEL: u8>(
    is_plain: bool,
    source: &'a [u8],
    page: &mut [u8; PAGE_BYTES],
) -> Result<&'a [u8], Error> {
    let mut source = Source::new(source);
    let head = Head::read::<LEVEL>(&mut source)?;
    let mut copies = [0; PAGE_WORDS + 64];
    take_distances(head.copies, &mut source, &mut copies)?;
    let mut nears = Nears::new();
    if LEVEL == DENSE {
        nears.take(head.nears, &mut source)?;
    }
    let mut coded = [0; LEAD + PAGE_WORDS + LANES];
    if is_plain {
        decode::plain(head.coded, &mut source, &mut coded)?;
    } else {
        take_coded::<LEVEL>(head.coded, &mut source, &mut coded)?;
    }
    place::<LEVEL>(&head, &copies, &nears, &coded, page)?;
    Ok(source.rest())
}

/// Near references: how far back, and the low and high bytes of what differs.
struct Nears {
    distances: List,
    deltas: [List; 2],
}

impl Nears {
    #[inline(always)]
    fn new() -> Nears {
        Nears {
            distances: [0; PAGE_WORDS + 64],
            deltas: [[0; PAGE_WORDS + 64]; 2],
        }
    }

    /// As [`decode::references`] reads them.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    fn take(&mut self, count: usize, source: &mut Source<'_>) -> Result<(), Error> {
        take_distances(count, source, &mut self.distances)?;
        let [low, high] = &mut self.deltas;
        low[..count].copy_from_slice(source.take(count)?);
        take_some(count, source, high)
    }
}

/// As [`decode::page`] reads coded words.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn take_coded<const LEVEL: u8>(
    count: usize,
    source: &mut Source<'_>,
    coded: &mut Coded,
) -> Result<(), Error> {
    let bits = selector_bits(LEVEL);
    let selectors = source.take_open(count.div_ceil(LANES) * bits)?;
    let mut masks = [0; PAGE_WORDS + 64];
    take_masks(count, source, &mut masks)?;
    let mut bytes = Ahead::new(source.rest());
    let mut previous = [[_mm256_setzero_si256(); 2]; 2];
    let groups = coded[LEAD..].as_chunks_mut::<LANES>().0.iter_mut();
    for (group, words) in groups.take(count.div_ceil(LANES)).enumerate() {
        let mask = eight(&masks, group * LANES);
        let rest = rest(bytes.window(), mask);
        bytes.at += mask.count_ones() as usize;
        let packed = eight(selectors, group * bits) as u32;
        let others = others::<LEVEL>(packed, previous);
        let these = [0, 1].map(|half| _mm256_xor_si256(rest[half], others[half]));
        previous = [these, previous[0]];
        store(words, 0, these[0]);
        store(words, 4, these[1]);
    }
    source.take(bytes.at)?;
    Ok(())
}

/// Bytes that are read in windows, also beyond the end, where they are zero.
struct Ahead<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The last bytes, from `tail_at` on, once a window reached beyond them.
    tail: [u8; 2 * WINDOW_BYTES],
    tail_at: Option<usize>,
}

/// The bytes of a group at most.
const WINDOW_BYTES: usize = LANES * 8;

impl<'a> Ahead<'a> {
    #[inline(always)]
    fn new(bytes: &'a [u8]) -> Ahead<'a> {
        Ahead {
            bytes,
            at: 0,
            tail: [0; 2 * WINDOW_BYTES],
            tail_at: None,
        }
    }

    #[inline(always)]
    fn window(&mut self) -> &[u8; WINDOW_BYTES] {
        let rest = self.bytes.get(self.at..).unwrap_or(&[]);
        if let Some(window) = rest.first_chunk() {
            return window;
        }
        let start = *self.tail_at.get_or_insert_with(|| {
            self.tail[..rest.len()].copy_from_slice(rest);
            self.at
        });
        let at = (self.at - start).min(WINDOW_BYTES);
        self.tail[at..].first_chunk().expect("two windows")
    }
}

/// The bytes of a group put where their mask says.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn rest(bytes: &[u8; WINDOW_BYTES], mask: u64) -> Group {
    let pair = |nth: usize| {
        let before = mask & !(!0 << (16 * nth));
        let these = sixteen_at(bytes, before.count_ones() as usize);
        apart_16(these, (mask >> (16 * nth)) as u16)
    };
    [0, 2].map(|nth| _mm256_set_m128i(pair(nth + 1), pair(nth)))
}

/// The neighbours that a group's selectors name, zero for none.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn others<const LEVEL: u8>(packed: u32, [last, before]: [Group; 2]) -> Group {
    let bits = selector_bits(LEVEL) as i32;
    let places = _mm256_mullo_epi32(
        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
        _mm256_set1_epi32(bits),
    );
    let selectors = _mm256_srlv_epi32(_mm256_set1_epi32(packed as i32), places);
    let selectors = _mm256_and_si256(selectors, _mm256_set1_epi32((1 << bits) - 1));
    // Twice the lane: where the halves of its word are, above 7 in the group's upper register.
    let lanes = _mm256_setr_epi32(2, 4, 6, 8, 10, 12, 14, 16);
    let lanes = _mm256_sub_epi32(lanes, _mm256_add_epi32(selectors, selectors));
    let is_none = _mm256_cmpeq_epi32(selectors, _mm256_setzero_si256());
    let is_before = _mm256_cmpgt_epi32(selectors, _mm256_set1_epi32(LANES as i32));
    [
        _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3),
        _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7),
    ]
    .map(|twice| {
        let both = |each| _mm256_permutevar8x32_epi32(each, twice);
        let halves = _mm256_or_si256(both(lanes), _mm256_setr_epi32(0, 1, 0, 1, 0, 1, 0, 1));
        let mut other = pick(last, halves);
        if LEVEL == DENSE {
            other = _mm256_blendv_epi8(other, pick(before, halves), both(is_before));
        }
        _mm256_andnot_si256(both(is_none), other)
    })
}

/// The halves of a group's words by their numbers, whose higher bits are ignored.
#[inline]
#[target_feature(enable = "avx2")]
fn pick([low, high]: Group, halves: __m256i) -> __m256i {
    let is_high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(halves));
    let low = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(low, halves));
    let high = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(high, halves));
    _mm256_castps_si256(_mm256_blendv_ps(low, high, is_high))
}

/// As [`decode::page`] puts the words in their places: of each block first those that are coded, then
/// references.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn place<const LEVEL: u8>(
    head: &Head,
    copies: &List,
    nears: &Nears,
    coded: &Coded,
    page: &mut [u8; PAGE_BYTES],
) -> Result<(), Error> {
    let (mut code, mut copy, mut near) = (LEAD, 0, 0);
    for block in 0..BLOCKS {
        let [in_full, copied, nearby] = head.block(block);
        let parts = page[block * 512..][..512].as_chunks_mut().0;
        for (part, to) in parts.iter_mut().enumerate() {
            let kept = (in_full >> (4 * part)) as usize & 0xf;
            let [_, from, all] = &WORDS[kept];
            let these = _mm256_permutevar8x32_epi32(load_words(coded, code), load_table(from));
            store_bytes(to, _mm256_and_si256(these, load_table(all)));
            code += kept.count_ones() as usize;
        }
        let mut list = Copies {
            from: [0; 64],
            change: [0; 64],
        };
        let mut wrong = _mm256_setzero_si256();
        for half in 0..2 {
            let part = |plane: u64| (plane >> (32 * half)) as u32;
            let (copied, nearby) = (part(copied), part(nearby));
            let mut distances = apart_32(copies, copy, copied);
            copy += copied.count_ones() as usize;
            let mut delta = [_mm256_setzero_si256(); 2];
            if LEVEL == DENSE {
                let those = apart_32(&nears.distances, near, nearby);
                distances = _mm256_or_si256(distances, those);
                delta = [0, 1].map(|byte| apart_32(&nears.deltas[byte], near, nearby));
                near += nearby.count_ones() as usize;
            }
            let first = block * 64 + half * 32;
            let all = lanes_of(copied | nearby);
            wrong = _mm256_or_si256(wrong, unfit(distances, all, first));
            list.resolve::<LEVEL>(half * 32, first, distances, delta);
        }
        if _mm256_testz_si256(wrong, wrong) == 0 {
            return Err(Error::Malformed);
        }
        list.carry_out::<LEVEL>(block * 64, copied | nearby, page);
    }
    Ok(())
}

/// As [`apart_16`], of 32 bytes from `at` on.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn apart_32(list: &List, at: usize, mask: u32) -> __m256i {
    let low = mask as u16;
    let high_at = at + low.count_ones() as usize;
    let high = apart_16(sixteen_at(list, high_at), (mask >> 16) as u16);
    _mm256_set_m128i(high, apart_16(sixteen_at(list, at), low))
}

/// All bits of the bytes that `mask` names.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes_of(mask: u32) -> __m256i {
    let bytes = _mm256_shuffle_epi8(
        _mm256_set1_epi32(mask as i32),
        _mm256_setr_epi64x(
            0,
            0x0101_0101_0101_0101,
            0x0202_0202_0202_0202,
            0x0303_0303_0303_0303,
        ),
    );
    let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bits), bits)
}

/// Not zero where one of the references `all` is to itself or to before the page; word 0 of the register
/// is word `first` of the page.
#[inline]
#[target_feature(enable = "avx2")]
fn unfit(distances: __m256i, all: __m256i, first: usize) -> __m256i {
    let is_none = _mm256_cmpeq_epi8(distances, _mm256_setzero_si256());
    let farthest = _mm256_set1_epi8(first.min(255) as u8 as i8);
    let farthest = _mm256_adds_epu8(farthest, lane_numbers());
    let too_far = _mm256_subs_epu8(distances, farthest);
    _mm256_or_si256(_mm256_and_si256(is_none, all), too_far)
}

/// 0 to 31.
#[inline]
#[target_feature(enable = "avx2")]
fn lane_numbers() -> __m256i {
    _mm256_setr_epi64x(
        0x0706_0504_0302_0100,
        0x0f0e_0d0c_0b0a_0908,
        0x1716_1514_1312_1110,
        0x1f1e_1d1c_1b1a_1918,
    )
}

/// The references of one block: from which word, and what is changed.
///
/// Words that were copied again and again make long chains. Within 16 words each reference is led to its
/// chain's first word by shuffles of their numbers, so that what is left to copy one after the other
/// waits for 32 others at most. A reference that is led less far is a copy of a copy, which is as right.
struct Copies {
    from: [u16; 64],
    change: [u16; 64],
}

impl Copies {
    /// Leads 32 references from `at` on, whose first word is word `first` of the page.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    fn resolve<const LEVEL: u8>(
        &mut self,
        at: usize,
        first: usize,
        distances: __m256i,
        delta: [__m256i; 2],
    ) {
        let lanes = _mm256_and_si256(lane_numbers(), _mm256_set1_epi8(15));
        let inside = _mm256_cmpeq_epi8(_mm256_min_epu8(distances, lanes), distances);
        // What each lane refers to, itself if that is outside or it is no reference.
        let mut other = _mm256_sub_epi8(lanes, _mm256_and_si256(inside, distances));
        let mut change = delta.map(|byte| _mm256_and_si256(inside, byte));
        // A chain of up to 15 halves each time.
        for _ in 0..4 {
            if LEVEL == DENSE {
                change =
                    change.map(|byte| _mm256_xor_si256(byte, _mm256_shuffle_epi8(byte, other)));
            }
            other = _mm256_shuffle_epi8(other, other);
        }
        let outside = |byte| _mm256_shuffle_epi8(_mm256_andnot_si256(inside, byte), other);
        let distances = wide(outside(distances));
        let others = wide(other);
        for half in 0..2 {
            let base = _mm256_set1_epi16((first + 16 * half) as i16);
            let from = _mm256_sub_epi16(_mm256_add_epi16(base, others[half]), distances[half]);
            store_halves(&mut self.from, at + 16 * half, from);
        }
        if LEVEL == DENSE {
            let [low, high] = [0, 1].map(|n| wide(_mm256_xor_si256(change[n], outside(delta[n]))));
            for half in 0..2 {
                let both = _mm256_or_si256(low[half], _mm256_slli_epi16::<8>(high[half]));
                store_halves(&mut self.change, at + 16 * half, both);
            }
        }
    }

    /// Copies the words of one block that `mask` names, in their order.
    #[inline]
    #[target_feature(enable = "bmi1")]
    fn carry_out<const LEVEL: u8>(&self, first: usize, mask: u64, page: &mut [u8; PAGE_BYTES]) {
        let words: &mut [[u8; 8]; PAGE_WORDS] =
            page.as_chunks_mut().0.try_into().expect("a page's words");
        let mut left = mask;
        while left != 0 {
            let lane = left.trailing_zeros() as usize & 63;
            left &= left - 1;
            // A remainder, though no index is larger: it costs less than to ask.
            let mut word = u64::from_le_bytes(words[usize::from(self.from[lane]) % PAGE_WORDS]);
            if LEVEL == DENSE {
                word ^= u64::from(self.change[lane]);
            }
            words[(first + lane) % PAGE_WORDS] = word.to_le_bytes();
        }
    }
}

/// The lower and the upper 16 bytes as 16-bit numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn wide(bytes: __m256i) -> [__m256i; 2] {
    [
        _mm256_cvtepu8_epi16(_mm256_castsi256_si128(bytes)),
        _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(bytes)),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_halves(list: &mut [u16; 64], at: usize, value: __m256i) {
    let to: &mut [u16; 16] = list[at..].first_chunk_mut().expect("a register's width");
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256((to as *mut [u16; 16]).cast(), value) };
}
