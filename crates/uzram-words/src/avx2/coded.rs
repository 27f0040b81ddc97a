//! Coded words in AVX2: the choice of neighbours, and the bytes that are left of the words.

use core::arch::x86_64::*;

use super::decode::{Group, neighbours, selector_places};
use super::lists::{put_masks, put_together};
use super::register::{load_words, store};
use crate::encode::{LEAD, Room, Scratch};
use crate::format::{LANES, selector_bits};

/// As [`encode::page`](crate::encode::page) writes coded words.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn put_coded<const LEVEL: u8>(
    count: usize,
    scratch: &mut Scratch,
    out: &mut Room,
    start: usize,
) -> usize {
    let groups = count.div_ceil(LANES);
    let Scratch {
        coded,
        twice,
        masks,
        rests,
        parts: [highs, _],
        ..
    } = scratch;
    coded[LEAD + count..LEAD + groups * LANES].fill(0);
    let all = coded.as_chunks::<LANES>().0;
    // All of them before the first is read, at other places than it was written: a load of parts of several
    // stores waits for these.
    for (twice, group) in twice.iter_mut().zip(&all[..groups + 1]) {
        let [low, high] = [load_words(group, 0), load_words(group, 4)];
        store(twice, 0, low);
        store(twice, 4, high);
        store(twice, 8, low);
        store(twice, 12, high);
    }
    let places = (0..groups).map(|group| start + group * selector_bits(LEVEL));
    let words = all[2..].iter().zip(twice.windows(2)).zip(places);
    let rests_of = rests.as_chunks_mut().0.iter_mut();
    let masks_of = masks.as_chunks_mut().0.iter_mut();
    for (((own, earlier), place), (rest, mask)) in words.zip(rests_of.zip(masks_of)) {
        let own = [load_words(own, 0), load_words(own, 4)];
        let (selectors, other) = select::<LEVEL>(own, &earlier[1], &earlier[0]);
        out[place..place + 4].copy_from_slice(&selectors.to_le_bytes());
        *mask = put_rest(own, other, rest);
    }
    let at = start + groups * selector_bits(LEVEL);
    let mut at = put_masks(masks, highs, count, out, at);
    let both = rests.as_chunks().0.iter().zip(masks.as_chunks().0);
    for (rest, mask) in both.take(groups) {
        at = put_together(rest, u64::from_le_bytes(*mask), out, at);
    }
    at
}

/// A group, and the group before it twice.
type Twice = [u64; 2 * LANES];

/// Puts down what remains of a group's words; a bit for each byte of it that is not zero.
#[inline]
#[target_feature(enable = "avx2")]
fn put_rest(own: Group, other: Group, to: &mut [u64; LANES]) -> [u8; LANES] {
    let rest = [0, 1].map(|half| _mm256_xor_si256(own[half], other[half]));
    store(to, 0, rest[0]);
    store(to, 4, rest[1]);
    let zero = rest.map(|rest| {
        let zero = _mm256_cmpeq_epi8(rest, _mm256_setzero_si256());
        u64::from(_mm256_movemask_epi8(zero) as u32)
    });
    (!(zero[1] << 32 | zero[0])).to_le_bytes()
}

/// The selectors of a group after two others, packed, and the neighbours that they name.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn select<const LEVEL: u8>(own: Group, last: &Twice, before: &Twice) -> (u32, Group) {
    let bits = selector_bits(LEVEL) as i32;
    let none = (1 << bits) - 1;
    let group = |of: &Twice, at: usize| [load_words(of, at), load_words(of, at + 4)];
    let mut best = likeness(own, [_mm256_setzero_si256(); 2], none);
    for selector in 1..=LANES.min(none as usize) {
        let other = group(last, LANES + 1 - selector);
        best = _mm256_max_epi16(best, likeness(own, other, none - selector as i32));
    }
    for selector in LANES + 1..=none as usize {
        let other = group(before, 2 * LANES + 1 - selector);
        best = _mm256_max_epi16(best, likeness(own, other, none - selector as i32));
    }
    let selectors = _mm256_sub_epi32(_mm256_set1_epi32(none), rank(best));
    let packed = _mm256_sllv_epi32(selectors, selector_places::<LEVEL>());
    let other = neighbours::<LEVEL>(selectors, [group(last, 0), group(before, 0)]);
    (any(packed), other)
}

/// All lanes, or-ed.
#[inline]
#[target_feature(enable = "avx2")]
fn any(lanes: __m256i) -> u32 {
    let four = _mm_or_si128(
        _mm256_castsi256_si128(lanes),
        _mm256_extracti128_si256::<1>(lanes),
    );
    let two = _mm_or_si128(four, _mm_shuffle_epi32::<0x4e>(four));
    let one = _mm_or_si128(two, _mm_shuffle_epi32::<0xb1>(two));
    _mm_cvtsi128_si32(one) as u32
}

/// For each of a group's words 255 times the bytes that it has in common with another, and `rank`, which is less
/// than 16.
#[inline]
#[target_feature(enable = "avx2")]
fn likeness(words: Group, others: Group, rank: i32) -> __m256i {
    let sums = [0, 1].map(|half| {
        let same = _mm256_cmpeq_epi8(words[half], others[half]);
        _mm256_sad_epu8(same, _mm256_setzero_si256())
    });
    let sums = _mm256_packs_epi32(sums[0], sums[1]);
    _mm256_add_epi16(sums, _mm256_set1_epi32(rank))
}

/// The rank of each [`likeness`].
#[inline]
#[target_feature(enable = "avx2")]
fn rank(keys: __m256i) -> __m256i {
    // 255 n + rank, with n up to 8, is 256 n + (rank - n).
    let n = _mm256_srli_epi32::<8>(_mm256_add_epi32(keys, _mm256_set1_epi32(8)));
    _mm256_and_si256(_mm256_add_epi32(keys, n), _mm256_set1_epi32(0xff))
}
