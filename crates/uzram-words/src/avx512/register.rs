//! Whole registers, to and from slices, and what both directions do with them.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use crate::format::DENSE;

/// The neighbours that selectors name, zero for none.
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
pub(super) fn chosen<const LEVEL: u8>(selectors: __m512i, previous: [__m512i; 2]) -> __m512i {
    let [last, before] = previous;
    let lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    let is_any = _mm512_test_epi64_mask(selectors, selectors);
    let turn = _mm512_sub_epi64(selectors, _mm512_set1_epi64(1));
    let lane = _mm512_sub_epi64(lanes, turn);
    match LEVEL {
        DENSE => {
            // Bit 3 of a lane's number chooses the group.
            let lane = _mm512_ternarylogic_epi64::<0xd8>(lane, turn, _mm512_set1_epi64(8));
            _mm512_maskz_permutex2var_epi64(is_any, last, lane, before)
        }
        _ => _mm512_maskz_permutexvar_epi64(is_any, lane, last),
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_halves(halves: &[u16], at: usize) -> __m512i {
    let halves: &[u16; 32] = halves[at..].first_chunk().expect("a register's width");
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512((halves as *const [u16; 32]).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_halves(halves: &mut [u16], at: usize, value: __m512i) {
    let to: &mut [u16; 32] = halves[at..].first_chunk_mut().expect("a register's width");
    // SAFETY: 64 bytes.
    unsafe { _mm512_storeu_si512((to as *mut [u16; 32]).cast(), value) }
}

/// 0 to 63.
#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt"
)]
pub(super) fn lane_numbers() -> __m512i {
    static NUMBERS: [u8; 64] = {
        let mut numbers = [0; 64];
        let mut n = 0;
        while n < 64 {
            numbers[n] = n as u8;
            n += 1;
        }
        numbers
    };
    load(&NUMBERS)
}

/// The lowest `count` bits, or all.
#[inline(always)]
pub(super) fn low_bits(count: usize) -> u64 {
    match count {
        0..64 => !(!0 << count),
        _ => !0,
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512((bytes as *const [u8; 64]).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_at(bytes: &[u8], at: usize) -> __m512i {
    load(bytes[at..].first_chunk().expect("a register's width"))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_words(words: &[u64], at: usize) -> __m512i {
    let words: &[u64; 8] = words[at..].first_chunk().expect("a register's width");
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512((words as *const [u64; 8]).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(bytes: &mut [u8], at: usize, value: __m512i) {
    let to: &mut [u8; 64] = bytes[at..].first_chunk_mut().expect("a register's width");
    // SAFETY: 64 bytes.
    unsafe { _mm512_storeu_si512((to as *mut [u8; 64]).cast(), value) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_words(words: &mut [u64], at: usize, value: __m512i) {
    let to: &mut [u64; 8] = words[at..].first_chunk_mut().expect("a register's width");
    // SAFETY: 64 bytes.
    unsafe { _mm512_storeu_si512((to as *mut [u64; 8]).cast(), value) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_half(bytes: &mut [u8], at: usize, value: __m256i) {
    let to: &mut [u8; 32] = bytes[at..].first_chunk_mut().expect("half a register");
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256((to as *mut [u8; 32]).cast(), value) }
}
