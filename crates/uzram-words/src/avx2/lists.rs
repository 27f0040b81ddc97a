//! Lists of bytes in AVX2. Eight at a time are pushed together or apart by a shuffle from a table, so that
//! no CPU's slow pext or pdep is in the way.

#![allow(unsafe_code)]

use core::arch::x86_64::*;
use core::mem::MaybeUninit;

use super::register::store_bytes;
use crate::decode::Source;
use crate::encode::Room;
use crate::error::Error;
use crate::format::{LANES, NEAR_MAX, PAGE_WORDS};
use crate::shared::{APART, RANKS, TOGETHER, eight, from, low_bits, put_bits};

/// A byte for each word of a page, and room for the last register.
pub(super) type List = [u8; LIST_BYTES];
const LIST_BYTES: usize = PAGE_WORDS + 64;

/// Such a list that is filled in registers and not cleared before: that would take as long as much of what is
/// done with it.
pub(super) struct Filled {
    bytes: MaybeUninit<List>,
    /// How many of them were written, from the first on.
    filled: usize,
}

impl Filled {
    #[inline(always)]
    pub(super) fn new() -> Filled {
        Filled {
            bytes: MaybeUninit::uninit(),
            filled: 0,
        }
    }

    /// Writes `count` bytes, one more than a page's words at most, sixteen at a time, and zeroes behind them.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn fill(&mut self, count: usize, mut of: impl FnMut(usize) -> __m128i) {
        assert!(count <= PAGE_WORDS + 1, "a byte for each word");
        let to = self.bytes.as_mut_ptr().cast::<u8>();
        let mut at = 0;
        while at < count {
            // SAFETY: 16 bytes from `PAGE_WORDS` on at most, and there is room for 64.
            unsafe { _mm_storeu_si128(to.wrapping_add(at).cast(), of(at)) };
            at += 16;
        }
        let zero = _mm256_setzero_si256();
        // SAFETY: `at` is `PAGE_WORDS` + 16 at most, which leaves room for 48.
        unsafe { _mm256_storeu_si256(to.wrapping_add(at).cast(), zero) };
        self.filled = at + 32;
    }

    /// The sixteen bytes from `at` on.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn sixteen(&self, at: usize) -> __m128i {
        assert!(at + 16 <= self.filled, "bytes that were written");
        // SAFETY: the line above.
        unsafe { _mm_loadu_si128(self.bytes.as_ptr().cast::<u8>().wrapping_add(at).cast()) }
    }

    /// The eight bytes from `at` on.
    #[inline(always)]
    pub(super) fn eight(&self, at: usize) -> u64 {
        assert!(at + 8 <= self.filled, "bytes that were written");
        let from = self.bytes.as_ptr().cast::<u8>().wrapping_add(at);
        // SAFETY: the line above.
        u64::from_le_bytes(unsafe { from.cast::<[u8; 8]>().read() })
    }
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

/// As [`encode::distances`](crate::encode::distances).
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn put_distances(
    distances: &List,
    count: usize,
    (changes, parts): (&mut List, &mut [List; 2]),
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
    let [near, far] = parts;
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
    let at = put_nibbles(near, near_count, out, at, |near| {
        _mm256_subs_epu8(near, one)
    });
    out[at..at + far_count].copy_from_slice(&far[..far_count]);
    at + far_count
}

/// As [`encode::deltas`](crate::encode::deltas).
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn put_deltas(
    deltas: &[u16; PAGE_WORDS + 32],
    count: usize,
    [highs, given]: &mut [List; 2],
    out: &mut Room,
    at: usize,
) -> usize {
    let low = _mm256_set1_epi16(0xff);
    for (first, deltas) in (0..count).step_by(32).zip(deltas.as_chunks::<32>().0) {
        let [one, two] = halves(deltas);
        let both = [_mm256_and_si256(one, low), _mm256_and_si256(two, low)];
        store_32(out, at + first, narrow(both));
        let both = [_mm256_srli_epi16::<8>(one), _mm256_srli_epi16::<8>(two)];
        store_32(highs, first, narrow(both));
    }
    let bitmap = at + count;
    let mut given_count = 0;
    for first in (0..count).step_by(64) {
        let is_low = bits(highs, first, |these| {
            _mm256_cmpeq_epi8(these, _mm256_setzero_si256())
        });
        let is_high = !is_low & low_bits(count - first);
        put_bits(out, bitmap + first / 8, is_high);
        given_count += gather(is_high, &highs[first..], &mut given[given_count..]);
    }
    let at = bitmap + count.div_ceil(8);
    out[at..at + given_count].copy_from_slice(&given[..given_count]);
    at + given_count
}

/// 32 numbers of 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn halves(numbers: &[u16; 32]) -> [__m256i; 2] {
    let sixteen = numbers.as_chunks::<16>().0;
    [0, 1].map(|half| {
        let sixteen: *const [u16; 16] = &sixteen[half];
        // SAFETY: 32 bytes.
        unsafe { _mm256_loadu_si256(sixteen.cast()) }
    })
}

/// 32 numbers below 256 as bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn narrow([one, two]: [__m256i; 2]) -> __m256i {
    // Packs work in halves of a register.
    _mm256_permute4x64_epi64::<0xd8>(_mm256_packus_epi16(one, two))
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_32(to: &mut [u8], at: usize, value: __m256i) {
    store_bytes(to[at..].first_chunk_mut().expect("room"), value);
}

/// As [`encode::masks`](crate::encode::masks).
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn put_masks(
    masks: &mut List,
    highs: &mut List,
    count: usize,
    out: &mut Room,
    at: usize,
) -> usize {
    let nibble = _mm256_set1_epi8(0xf);
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
    put_nibbles(highs, high_count, out, at, |mask| {
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
pub(super) fn take_distances(count: usize, source: &mut Source<'_>) -> Result<Filled, Error> {
    let differs = source.take_open(count.div_ceil(8))?;
    let changed = ones(differs, count);
    let is_near = source.take_open(changed.div_ceil(8))?;
    let near_count = ones(is_near, changed);
    let packed = source.take_open(near_count.div_ceil(2))?;
    let far = source.take_open(changed - near_count)?;
    let mut near = Filled::new();
    near.fill(near_count, |first| {
        _mm_add_epi8(nibbles(packed, first), _mm_set1_epi8(1))
    });
    // The changes, behind the zero that stands before a first one, which makes one more.
    let mut changes = Filled::new();
    let (mut nears, mut fars) = (0, 0);
    let mut last = _mm_setzero_si128();
    changes.fill(changed + 1, |first| {
        let is_near = eight(is_near, first / 8) as u16;
        let these = apart_16(near.sixteen(nears), is_near);
        let those = apart_16(sixteen(far, fars), !is_near);
        nears += is_near.count_ones() as usize;
        fars += is_near.count_zeros() as usize;
        let both = _mm_or_si128(these, those);
        let behind = _mm_alignr_epi8::<15>(both, last);
        last = both;
        behind
    });
    let mut distances = Filled::new();
    let mut change = 0;
    distances.fill(count, |first| {
        let differ = eight(differs, first / 8) as u16;
        let ranks = |byte: u16| i64::from_le_bytes(RANKS[usize::from(byte as u8)]);
        let low_count = (differ & 0xff).count_ones() as usize;
        let low = _mm_shuffle_epi8(changes.sixteen(change), _mm_cvtsi64_si128(ranks(differ)));
        let high = changes.sixteen(change + low_count);
        let high = _mm_shuffle_epi8(high, _mm_cvtsi64_si128(ranks(differ >> 8)));
        change += differ.count_ones() as usize;
        _mm_unpacklo_epi64(low, high)
    });
    Ok(distances)
}

/// As [`decode::masks`](crate::decode::masks), and zeroes up to the end of the last group.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn take_masks(count: usize, source: &mut Source<'_>) -> Result<Filled, Error> {
    let is_high = source.take_open(count.div_ceil(8))?;
    let lows = source.take_open(count.div_ceil(2))?;
    let high_count = ones(is_high, count);
    let packed = source.take_open(high_count.div_ceil(2))?;
    let mut highs = Filled::new();
    highs.fill(high_count, |first| {
        _mm_slli_epi16::<4>(nibbles(packed, first))
    });
    let mut masks = Filled::new();
    let mut high = 0;
    masks.fill(count, |first| {
        let is_high = eight(is_high, first / 8) as u16;
        let these = apart_16(highs.sixteen(high), is_high);
        high += is_high.count_ones() as usize;
        let valid = first_bytes(count - first);
        _mm_and_si128(_mm_or_si128(nibbles(lows, first), these), valid)
    });
    Ok(masks)
}

/// A bit for each of `count` bytes, whether it is given; those that are; the others are zero.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn take_some(count: usize, source: &mut Source<'_>) -> Result<Filled, Error> {
    let is_given = source.take_open(count.div_ceil(8))?;
    let given = source.take_open(ones(is_given, count))?;
    let mut list = Filled::new();
    let mut at = 0;
    list.fill(count, |first| {
        let is_given = eight(is_given, first / 8) as u16;
        let these = apart_16(sixteen(given, at), is_given);
        at += is_given.count_ones() as usize;
        these
    });
    Ok(list)
}

/// The bytes themselves.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn take_bytes(count: usize, source: &mut Source<'_>) -> Result<Filled, Error> {
    let bytes = source.take_open(count)?;
    let mut list = Filled::new();
    list.fill(count, |first| sixteen(bytes, first));
    Ok(list)
}

/// A byte for each of sixteen nibbles from `first` on.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(packed: &[u8], first: usize) -> __m128i {
    let wide = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(eight(packed, first / 2) as i64));
    let both = _mm_or_si128(wide, _mm_slli_epi16::<4>(wide));
    _mm_and_si128(both, _mm_set1_epi8(0xf))
}

/// All bits of the first `count` of sixteen bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn first_bytes(count: usize) -> __m128i {
    let numbers = _mm_set_epi64x(0x0f0e_0d0c_0b0a_0908, 0x0706_0504_0302_0100);
    _mm_cmpgt_epi8(_mm_set1_epi8(count.min(16) as i8), numbers)
}

/// The bytes that `mask` names, together, and how many. Up to 8 bytes more are written.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn gather(mask: u64, from: &[u8], to: &mut [u8]) -> usize {
    let mut count = 0;
    for (part, bytes) in from[..64].as_chunks::<16>().0.iter().enumerate() {
        count = put_16(load_16(bytes), (mask >> (16 * part)) as u16, to, count);
    }
    count
}

/// The same of a group's words, to the end of what was written.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn put_together(
    words: &[u64; LANES],
    mask: u64,
    out: &mut Room,
    mut at: usize,
) -> usize {
    for pair in 0..LANES / 2 {
        let bytes = _mm_set_epi64x(words[2 * pair + 1] as i64, words[2 * pair] as i64);
        at = put_16(bytes, (mask >> (16 * pair)) as u16, out, at);
    }
    at
}

/// Of sixteen bytes those that `mask` names, from place `at` on; the end. Each half is pushed together in itself.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn put_16(bytes: __m128i, mask: u16, to: &mut [u8], mut at: usize) -> usize {
    let half = |mask: u16| i64::from_le_bytes(TOGETHER[usize::from(mask as u8)]);
    let table = _mm_set_epi64x(half(mask >> 8), half(mask));
    let table = _mm_add_epi8(table, _mm_set_epi64x(0x0808_0808_0808_0808, 0));
    let these = _mm_shuffle_epi8(bytes, table);
    to[at..at + 8].copy_from_slice(&_mm_cvtsi128_si64(these).to_le_bytes());
    at += (mask & 0xff).count_ones() as usize;
    to[at..at + 8].copy_from_slice(&_mm_extract_epi64::<1>(these).to_le_bytes());
    at + (mask >> 8).count_ones() as usize
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

/// A bit for each of 64 bytes from `first` on of which `is_set` makes all bits set.
#[inline]
#[target_feature(enable = "avx2")]
fn bits(list: &List, first: usize, mut is_set: impl FnMut(__m256i) -> __m256i) -> u64 {
    let low = _mm256_movemask_epi8(is_set(load_at(list, first))) as u32;
    let high = _mm256_movemask_epi8(is_set(load_at(list, first + 32))) as u32;
    u64::from(high) << 32 | u64::from(low)
}

#[inline]
#[target_feature(enable = "popcnt,bmi2")]
fn ones(bytes: &[u8], count: usize) -> usize {
    let words = (0..count).step_by(64);
    let ones = words.map(|first| (eight(bytes, first / 8) & low_bits(count - first)).count_ones());
    ones.sum::<u32>() as usize
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

#[inline]
#[target_feature(enable = "avx2")]
fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes.
    unsafe { _mm_loadu_si128((bytes as *const [u8; 16]).cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_at(list: &List, at: usize) -> __m256i {
    let bytes: &[u8; 32] = list[at..].first_chunk().expect("a register's width");
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256((bytes as *const [u8; 32]).cast()) }
}
