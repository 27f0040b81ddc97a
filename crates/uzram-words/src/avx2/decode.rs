//! The decoder in AVX2.

#![allow(unsafe_code)]

use core::arch::x86_64::*;
use core::mem::MaybeUninit;

use super::lists::{Filled, apart_16, take_bytes, take_distances, take_masks, take_some};
use super::register::{APART, NAMED, load, load_table, store_bytes};
use crate::decode::{Head, Source};
use crate::error::Error;
use crate::format::{BLOCKS, DENSE, LANES, PAGE_BYTES, PAGE_WORDS, selector_bits};
use crate::shared::{Ahead, WINDOW_BYTES, eight};

/// A group of words.
pub(super) type Group = [__m256i; 2];

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn page<'a, const LEVEL: u8>(
    is_plain: bool,
    source: &'a [u8],
    page: &mut [u8; PAGE_BYTES],
) -> Result<&'a [u8], Error> {
    let mut source = Source::new(source);
    let head = Head::read::<LEVEL>(&mut source)?;
    let copies = take_distances(head.copies, &mut source)?;
    let nears = match LEVEL {
        DENSE => Nears::take(head.nears, &mut source)?,
        _ => Nears::none(),
    };
    let mut coded = Words::new();
    if is_plain {
        coded.fill(source.take(head.coded * 8)?);
    } else {
        take_coded::<LEVEL>(head.coded, &mut source, &mut coded)?;
    }
    place::<LEVEL>(&head, &copies, &nears, &coded, page)?;
    Ok(source.rest())
}

/// Near references: how far back, and the low and high bytes of what differs.
struct Nears {
    distances: Filled,
    deltas: [Filled; 2],
}

impl Nears {
    #[inline(always)]
    fn none() -> Nears {
        Nears {
            distances: Filled::new(),
            deltas: [Filled::new(), Filled::new()],
        }
    }

    /// As [`decode::references`](crate::decode::references) reads them.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    fn take(count: usize, source: &mut Source<'_>) -> Result<Nears, Error> {
        Ok(Nears {
            distances: take_distances(count, source)?,
            deltas: [take_bytes(count, source)?, take_some(count, source)?],
        })
    }
}

/// As [`decode::page`] reads coded words.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn take_coded<const LEVEL: u8>(
    count: usize,
    source: &mut Source<'_>,
    coded: &mut Words,
) -> Result<(), Error> {
    let bits = selector_bits(LEVEL);
    let selectors = source.take_open(count.div_ceil(LANES) * bits)?;
    let masks = take_masks(count, source)?;
    let mut bytes = Ahead::new(source.rest());
    let mut previous = [[_mm256_setzero_si256(); 2]; 2];
    for group in 0..count.div_ceil(LANES) {
        let mask = masks.eight(group * LANES);
        let rest = rest(bytes.window(), mask);
        bytes.at += mask.count_ones() as usize;
        let packed = eight(selectors, group * bits) as u32;
        let others = others::<LEVEL>(packed, previous);
        let these = [0, 1].map(|half| _mm256_xor_si256(rest[half], others[half]));
        previous = [these, previous[0]];
        coded.push(these);
    }
    coded.end();
    source.take(bytes.at)?;
    Ok(())
}

/// The words that were coded, which are not cleared before either.
struct Words {
    words: MaybeUninit<[u64; WORDS_MAX]>,
    /// How many of them were written, from the first on.
    filled: usize,
}

/// A page's, a group that was not whole, and those behind the last.
const WORDS_MAX: usize = PAGE_WORDS + LANES + 64 + LANES;

impl Words {
    #[inline(always)]
    fn new() -> Words {
        Words {
            words: MaybeUninit::uninit(),
            filled: 0,
        }
    }

    /// Appends a group.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn push(&mut self, group: Group) {
        assert!(self.filled <= WORDS_MAX - LANES, "a page's words");
        let to = self.words.as_mut_ptr().cast::<u64>();
        let to = to.wrapping_add(self.filled).cast::<Group>();
        // SAFETY: the assertion leaves room for a group.
        unsafe { to.write_unaligned(group) };
        self.filled += LANES;
    }

    /// Appends zeroes, so that a block can be read from behind the last word.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn end(&mut self) {
        for _ in 0..=64 / LANES {
            self.push([_mm256_setzero_si256(); 2]);
        }
    }

    /// As [`decode::plain`](crate::decode::plain), in whole groups.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn fill(&mut self, bytes: &[u8]) {
        let (groups, rest) = bytes.as_chunks::<WINDOW_BYTES>();
        // Behind a last group that is whole it is the zeroes that end the list.
        let mut last = [0; WINDOW_BYTES];
        last[..rest.len()].copy_from_slice(rest);
        for group in groups.iter().chain([&last]) {
            let halves = group.as_chunks().0;
            self.push([load(&halves[0]), load(&halves[1])]);
        }
        self.end();
    }

    /// As many words from `at` on as a block has, and what a register reads beyond.
    #[inline(always)]
    fn block(&self, at: usize) -> &[u64; 64 + LANES] {
        assert!(at + 64 + LANES <= self.filled, "words that were written");
        let from = self.words.as_ptr().cast::<u64>().wrapping_add(at);
        // SAFETY: the line above.
        unsafe { &*from.cast() }
    }
}

/// The bytes of a group put where their mask says.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn rest(bytes: &[u8; WINDOW_BYTES], mask: u64) -> Group {
    let pair = |nth: usize| {
        let before = mask & !(!0 << (16 * nth));
        let at = before.count_ones() as usize;
        debug_assert!(at + 16 <= WINDOW_BYTES);
        // SAFETY: `before` has bits for three pairs at most, so `at` is 48 at most.
        let these = unsafe { _mm_loadu_si128(bytes.as_ptr().wrapping_add(at).cast()) };
        apart_16(these, (mask >> (16 * nth)) as u16)
    };
    [0, 2].map(|nth| _mm256_set_m128i(pair(nth + 1), pair(nth)))
}

/// The neighbours that a group's packed selectors name, zero for none.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn others<const LEVEL: u8>(packed: u32, earlier: [Group; 2]) -> Group {
    let bits = selector_bits(LEVEL) as i32;
    let packed = _mm256_set1_epi32(packed as i32);
    let selectors = _mm256_srlv_epi32(packed, selector_places::<LEVEL>());
    let selectors = _mm256_and_si256(selectors, _mm256_set1_epi32((1 << bits) - 1));
    neighbours::<LEVEL>(selectors, earlier)
}

/// A number for each of a group's words, in the order in which registers of selectors have them: each half
/// has two words of either half of the group.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes(n: [i32; LANES]) -> __m256i {
    _mm256_setr_epi32(n[0], n[1], n[4], n[5], n[2], n[3], n[6], n[7])
}

/// The lowest bit of each selector where they are packed.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn selector_places<const LEVEL: u8>() -> __m256i {
    lanes([0, 1, 2, 3, 4, 5, 6, 7].map(|n| n * selector_bits(LEVEL) as i32))
}

/// From that order, for each half of the group a register with both halves of each word.
#[inline]
#[target_feature(enable = "avx2")]
fn in_halves(low: __m256i, high: __m256i) -> Group {
    [
        _mm256_unpacklo_epi32(low, high),
        _mm256_unpackhi_epi32(low, high),
    ]
}

/// The neighbours of a group after two others, the last first, by its selectors; zero for none.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn neighbours<const LEVEL: u8>(selectors: __m256i, [last, before]: [Group; 2]) -> Group {
    // Twice the lane: where the halves of its word are, above 7 in the group's upper register.
    let twice = _mm256_add_epi32(selectors, selectors);
    let first = _mm256_sub_epi32(lanes([2, 4, 6, 8, 10, 12, 14, 16]), twice);
    let halves = in_halves(first, _mm256_or_si256(first, _mm256_set1_epi32(1)));
    let is_none = _mm256_cmpeq_epi32(selectors, _mm256_setzero_si256());
    let is_none = in_halves(is_none, is_none);
    let is_before = _mm256_cmpgt_epi32(selectors, _mm256_set1_epi32(LANES as i32));
    let is_before = in_halves(is_before, is_before);
    [0, 1].map(|half| {
        let mut other = pick(last, halves[half]);
        if LEVEL == DENSE {
            let others = pick(before, halves[half]);
            other = _mm256_blendv_epi8(other, others, is_before[half]);
        }
        _mm256_andnot_si256(is_none[half], other)
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
    copies: &Filled,
    nears: &Nears,
    coded: &Words,
    page: &mut [u8; PAGE_BYTES],
) -> Result<(), Error> {
    let (mut code, mut copy, mut near) = (0, 0, 0);
    for block in 0..BLOCKS {
        let [in_full, copied, nearby] = head.block(block);
        let parts = &mut page.as_chunks_mut::<32>().0.as_chunks_mut::<16>().0[block];
        code += put_apart(in_full, coded.block(code), parts);
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
        if copied | nearby != 0 {
            list.carry_out::<LEVEL>(block * 64, page);
        }
    }
    Ok(())
}

/// The next of `words` where `mask` says, zeroes elsewhere; how many they were.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn put_apart(mask: u64, words: &[u64; 64 + LANES], to: &mut [[u8; 32]; 16]) -> usize {
    let mut count = 0;
    for (part, to) in to.iter_mut().enumerate() {
        let these = (mask >> (4 * part)) as usize & 0xf;
        let from = load_table(&APART[these]);
        debug_assert!(count + 4 <= words.len());
        // SAFETY: the parts before have four words each at most, so `count` is 60 at most.
        let next = unsafe { _mm256_loadu_si256(words.as_ptr().wrapping_add(count).cast()) };
        let words = _mm256_permutevar8x32_epi32(next, from);
        store_bytes(to, _mm256_and_si256(words, load_table(&NAMED[these])));
        count += these.count_ones() as usize;
    }
    count
}

/// As [`apart_16`], of 32 bytes from `at` on.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn apart_32(list: &Filled, at: usize, mask: u32) -> __m256i {
    let low = mask as u16;
    let high_at = at + low.count_ones() as usize;
    let high = apart_16(list.sixteen(high_at), (mask >> 16) as u16);
    _mm256_set_m128i(high, apart_16(list.sixteen(at), low))
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

    /// Copies the words of the block whose first word is word `first`, in their order. Those that are no references
    /// are copied from themselves: to find the others costs more.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn carry_out<const LEVEL: u8>(&self, first: usize, page: &mut [u8; PAGE_BYTES]) {
        let words: &mut [[u8; 8]; PAGE_WORDS] =
            page.as_chunks_mut().0.try_into().expect("a page's words");
        assert!(first + 64 <= PAGE_WORDS, "a block of the page");
        let words = words.as_mut_ptr();
        for lane in 0..64 {
            let from = usize::from(self.from[lane]);
            debug_assert!(from <= first + lane, "a reference that was checked");
            // SAFETY: a reference to before the page, or to behind its own word, was refused.
            let mut word = u64::from_le_bytes(unsafe { words.wrapping_add(from).read() });
            if LEVEL == DENSE {
                word ^= u64::from(self.change[lane]);
            }
            // SAFETY: the block is in the page.
            unsafe { words.wrapping_add(first + lane).write(word.to_le_bytes()) };
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
