//! Whole registers of words, to and from slices, and permutes of their halves.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

/// For each mask of four words, where the halves of those that it names come from when they go together.
pub(super) static TOGETHER: [[u32; 8]; 16] = moves(true);
/// The same when they come apart.
pub(super) static APART: [[u32; 8]; 16] = moves(false);
/// All bits of those words.
pub(super) static NAMED: [[u32; 8]; 16] = {
    let mut table = [[0; 8]; 16];
    let mut mask = 0;
    while mask < 16 {
        let mut half = 0;
        while half < 8 {
            if mask >> (half / 2) & 1 == 1 {
                table[mask][half] = !0;
            }
            half += 1;
        }
        mask += 1;
    }
    table
};

const fn moves(is_together: bool) -> [[u32; 8]; 16] {
    let mut table = [[0; 8]; 16];
    let mut mask = 0;
    while mask < 16 {
        let (mut word, mut rank) = (0, 0);
        while word < 4 {
            if mask >> word & 1 == 1 {
                let (to, from) = if is_together {
                    (rank, word)
                } else {
                    (word, rank)
                };
                table[mask][2 * to] = 2 * from as u32;
                table[mask][2 * to + 1] = 2 * from as u32 + 1;
                rank += 1;
            }
            word += 1;
        }
        mask += 1;
    }
    table
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256((bytes as *const [u8; 32]).cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_table(table: &[u32; 8]) -> __m256i {
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256((table as *const [u32; 8]).cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_words(words: &[u64], at: usize) -> __m256i {
    let words: &[u64; 4] = words[at..].first_chunk().expect("a register's width");
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256((words as *const [u64; 4]).cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store(words: &mut [u64], at: usize, value: __m256i) {
    let to: &mut [u64; 4] = words[at..].first_chunk_mut().expect("a register's width");
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256((to as *mut [u64; 4]).cast(), value) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_bytes(to: &mut [u8; 32], value: __m256i) {
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256((to as *mut [u8; 32]).cast(), value) }
}
