//! Whole registers of NEON, to and from slices; a bit for each byte, which NEON lacks; shuffles from tables.

#![allow(unsafe_code)]

use core::arch::aarch64::*;

use crate::format::LANES;
use crate::shared::{APART, TOGETHER, from};

/// 64 bytes in four registers: two words in each if it is a group of words.
pub(super) type Four = uint8x16x4_t;

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: 16 bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_four(bytes: &[u8; 64]) -> Four {
    // SAFETY: 64 bytes.
    unsafe { vld1q_u8_x4(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_group(words: &[u64; LANES]) -> Four {
    // SAFETY: 64 bytes, of which every pattern is bytes.
    unsafe { vld1q_u8_x4(words.as_ptr().cast()) }
}

/// The bytes at even places and those at odd ones.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_pairs(bytes: &[u8; 32]) -> [uint8x16_t; 2] {
    // SAFETY: 32 bytes.
    let both = unsafe { vld2q_u8(bytes.as_ptr()) };
    [both.0, both.1]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store(to: &mut [u8; 16], value: uint8x16_t) {
    // SAFETY: 16 bytes.
    unsafe { vst1q_u8(to.as_mut_ptr(), value) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_group(to: &mut [u64; LANES], value: Four) {
    // SAFETY: 64 bytes, and every pattern of them is words.
    unsafe { vst1q_u8_x4(to.as_mut_ptr().cast(), value) }
}

/// The sixteen bytes from `at` on, zeroes behind the end.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn sixteen(bytes: &[u8], at: usize) -> uint8x16_t {
    match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(bytes) => load(bytes),
        None => load(&from(bytes, at)),
    }
}

/// Eight bytes as a number, the first lowest.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn number(bytes: uint8x8_t) -> u64 {
    vget_lane_u64::<0>(vreinterpret_u64_u8(bytes))
}

/// `of` each register.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn each(four: Four, of: impl Fn(uint8x16_t) -> uint8x16_t) -> Four {
    uint8x16x4_t(of(four.0), of(four.1), of(four.2), of(four.3))
}

/// `of` each two registers.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn both(
    one: Four,
    two: Four,
    of: impl Fn(uint8x16_t, uint8x16_t) -> uint8x16_t,
) -> Four {
    uint8x16x4_t(
        of(one.0, two.0),
        of(one.1, two.1),
        of(one.2, two.2),
        of(one.3, two.3),
    )
}

/// A bit for each of 64 bytes, all of whose bits are alike.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn bits(bytes: Four) -> u64 {
    let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
    let bits = each(bytes, |bytes| vandq_u8(bytes, bit));
    let half = vpaddq_u8(vpaddq_u8(bits.0, bits.1), vpaddq_u8(bits.2, bits.3));
    number(vget_low_u8(vpaddq_u8(half, half)))
}

/// A bit for each of 64 bytes that is not zero.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn not_zero(bytes: Four) -> u64 {
    bits(each(bytes, |bytes| vtstq_u8(bytes, bytes)))
}

/// Of the eight bytes from `first` on those that `mask` names, together; zeroes behind them.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn together(bytes: uint8x16_t, first: u8, mask: u8) -> u64 {
    let places = vadd_u8(table(&TOGETHER, mask), vdup_n_u8(first));
    // What is to be zero stays above 0x80, which names no byte.
    number(vqtbl1_u8(bytes, places))
}

/// The first of the bytes where `mask` says, zeroes elsewhere.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn apart(bytes: uint8x16_t, mask: u8) -> uint8x8_t {
    vqtbl1_u8(bytes, table(&APART, mask))
}

/// The entry of `mask`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn table(table: &[[u8; 8]; 256], mask: u8) -> uint8x8_t {
    vcreate_u8(u64::from_le_bytes(table[usize::from(mask)]))
}
