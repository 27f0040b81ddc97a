//! For each word of a page, how far back it stood last: products and places of four words at a time by
//! vectors, the table word by word.

use core::arch::x86_64::*;

use super::register::{load, store, store_bytes};
use crate::encode::{MULTIPLIER, TABLE_BITS, Table};
use crate::format::{BLOCKS, PAGE_BYTES, PAGE_WORDS, Plane};

/// For each word, less its `SHIFT` low bits, how far back it stood last, zero where that is not near enough; a bit where
/// it is, and a bit for each word that is zero.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn distances<const SHIFT: i32>(
    page: &[u8; PAGE_BYTES],
    table: &mut Table,
    distances: &mut [u8; PAGE_WORDS],
) -> [Plane; 2] {
    clear(table);
    let [mut near, mut lost] = [[0; BLOCKS]; 2];
    let mut of_lost = _mm256_setzero_si256();
    let halves = page.as_chunks::<256>().0.iter().enumerate();
    for (half, bytes) in halves {
        let [low, high] = bytes.as_chunks::<128>().0 else {
            unreachable!("half of a block");
        };
        let low = Sixteen::look_up::<SHIFT>(32 * half, low, table);
        let high = Sixteen::look_up::<SHIFT>(32 * half + 16, high, table);
        let bytes = in_order(_mm256_packus_epi16(low.distances, high.distances));
        store_bytes(&mut distances.as_chunks_mut().0[half], bytes);
        let is_none = _mm256_cmpeq_epi8(bytes, _mm256_setzero_si256());
        let is_lost = in_order(_mm256_packs_epi16(low.lost, high.lost));
        let bits = |bytes| u64::from(_mm256_movemask_epi8(bytes) as u32) << (half % 2 * 32);
        lost[half / 2] |= bits(is_lost);
        near[half / 2] |= bits(_mm256_set1_epi8(-1)) & !bits(is_none) & !bits(is_lost);
        of_lost = _mm256_or_si256(of_lost, _mm256_or_si256(low.of_lost, high.of_lost));
    }
    if _mm256_testz_si256(of_lost, of_lost) == 0 {
        lost = zeroes(page);
    }
    [near, lost]
}

/// Sixteen words after their look-up, 16 bits each: of every four first the first two, then the others.
struct Sixteen {
    distances: __m256i,
    /// All bits of the keys that lose theirs by the shift that makes room for an index: of zeroes, and of few others.
    /// None of them is an earlier word, as [`encode`](crate::encode) has it.
    lost: __m256i,
    /// The bits of all words that are lost.
    of_lost: __m256i,
}

impl Sixteen {
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    fn look_up<const SHIFT: i32>(first: usize, bytes: &[u8; 128], table: &mut Table) -> Sixteen {
        let zero = _mm256_setzero_si256();
        let mut four = |part: usize| {
            let word = load(&bytes.as_chunks().0[part]);
            let key = _mm256_srli_epi64::<SHIFT>(word);
            let product = spread(key);
            let index = _mm256_set1_epi64x((first + 4 * part) as i64);
            let index = _mm256_add_epi64(index, _mm256_setr_epi64x(0, 1, 2, 3));
            let new = _mm256_or_si256(_mm256_slli_epi64::<{ TABLE_BITS as i32 }>(product), index);
            let places = _mm256_srli_epi64::<{ 64 - TABLE_BITS as i32 }>(product);
            let distance = _mm256_sub_epi64(new, replace(table, places, new));
            let is_near = _mm256_cmpeq_epi64(_mm256_srli_epi64::<8>(distance), zero);
            let shifted = _mm256_slli_epi64::<{ TABLE_BITS as i32 }>(key);
            let lost = _mm256_cmpeq_epi64(shifted, zero);
            [
                _mm256_and_si256(is_near, distance),
                lost,
                _mm256_and_si256(lost, word),
            ]
        };
        let [a, b, c, d] = [four(0), four(1), four(2), four(3)];
        let pair = |n: usize, one: [__m256i; 3], two: [__m256i; 3]| lower(one[n], two[n]);
        let of_lost = _mm256_or_si256(_mm256_or_si256(a[2], b[2]), _mm256_or_si256(c[2], d[2]));
        Sixteen {
            distances: _mm256_packus_epi32(pair(0, a, b), pair(0, c, d)),
            lost: _mm256_packs_epi32(pair(1, a, b), pair(1, c, d)),
            of_lost,
        }
    }
}

/// The lower halves of eight words.
#[inline]
#[target_feature(enable = "avx2")]
fn lower(one: __m256i, two: __m256i) -> __m256i {
    let [one, two] = [_mm256_castsi256_ps(one), _mm256_castsi256_ps(two)];
    _mm256_castps_si256(_mm256_shuffle_ps::<0x88>(one, two))
}

/// The bytes of 32 words in their order, of what packing two [`Sixteen`] leaves.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(bytes: __m256i) -> __m256i {
    let bytes = _mm256_permute4x64_epi64::<0xd8>(bytes);
    let order = _mm256_setr_epi64x(
        0x0b0a_0302_0908_0100,
        0x0f0e_0706_0d0c_0504,
        0x0b0a_0302_0908_0100,
        0x0f0e_0706_0d0c_0504,
    );
    _mm256_shuffle_epi8(bytes, order)
}

/// Clears the table by stores of this loop. A call of memset, which the compiler would make of it, takes several times
/// as long for so few bytes on some CPUs.
#[inline]
#[target_feature(enable = "avx2")]
fn clear(table: &mut Table) {
    let zero = core::hint::black_box(_mm256_setzero_si256());
    for entries in table.as_chunks_mut::<16>().0 {
        for part in 0..4 {
            store(entries, 4 * part, zero);
        }
    }
}

/// A bit for each word that is zero.
#[cold]
fn zeroes(page: &[u8; PAGE_BYTES]) -> Plane {
    let mut plane = [0; BLOCKS];
    for (index, word) in page.as_chunks::<8>().0.iter().enumerate() {
        plane[index / 64] |= u64::from(*word == [0; 8]) << (index % 64);
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
