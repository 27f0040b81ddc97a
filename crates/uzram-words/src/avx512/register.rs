//! Whole registers, to and from slices, and what both directions do with them.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use core::mem::MaybeUninit;

use crate::format::{DENSE, PAGE_BYTES, PAGE_WORDS};

/// A list that is written from its start in whole registers, each of which may cover a part of the one
/// before. It is not cleared before: that would take longer than much of what is done with it.
#[repr(C, align(64))]
pub(super) struct List<const BYTES: usize> {
    bytes: MaybeUninit<[u8; BYTES]>,
    /// How many bytes were written.
    filled: usize,
}

/// A byte for each word of a page, and a register behind them.
pub(super) type Bytes = List<{ PAGE_WORDS + 64 }>;
/// Two bytes for each.
pub(super) type Halves = List<{ PAGE_WORDS * 2 + 64 }>;
/// The words themselves.
pub(super) type Words = List<{ PAGE_BYTES + 64 }>;

impl<const BYTES: usize> List<BYTES> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        List {
            bytes: MaybeUninit::uninit(),
            filled: 0,
        }
    }

    /// Writes 64 bytes from byte `at` on. No byte before that was left out, or it panics.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn store(&mut self, at: usize, value: __m512i) {
        assert!(at <= self.filled && at + 64 <= BYTES, "a list without gaps");
        // SAFETY: the line above.
        unsafe {
            _mm512_storeu_si512(
                self.bytes.as_mut_ptr().cast::<u8>().wrapping_add(at).cast(),
                value,
            );
        };
        self.filled = self.filled.max(at + 64);
    }

    /// Appends zeroes, so that a register can be read from behind the last item.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn pad(&mut self) {
        self.store(self.filled, _mm512_setzero_si512());
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn load(&self, at: usize) -> __m512i {
        assert!(at + 64 <= self.filled, "bytes that were written");
        // SAFETY: the line above.
        unsafe { _mm512_loadu_si512(self.bytes.as_ptr().cast::<u8>().wrapping_add(at).cast()) }
    }

    #[inline(always)]
    pub(super) fn word(&self, at: usize) -> u64 {
        assert!(at + 8 <= self.filled, "bytes that were written");
        // SAFETY: the line above.
        u64::from_le_bytes(unsafe {
            self.bytes
                .as_ptr()
                .cast::<u8>()
                .wrapping_add(at)
                .cast::<[u8; 8]>()
                .read()
        })
    }

    /// The first `count` pairs of bytes as numbers.
    #[inline(always)]
    pub(super) fn halves(&self, count: usize) -> &[u16] {
        assert!(count * 2 <= self.filled, "bytes that were written");
        // SAFETY: the line above, and the list starts where a line of the cache does.
        unsafe { core::slice::from_raw_parts(self.bytes.as_ptr().cast(), count) }
    }
}

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
