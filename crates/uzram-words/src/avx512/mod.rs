//! The codec in AVX-512, with the extensions that all CPUs have that have VBMI2: Ice Lake, Zen 4 and
//! later. What the portable code does word by word it does for 8 words or 64 bytes at once; the table of
//! earlier words and the words that are copied stay one after the other.

#![allow(unsafe_code)]

mod decode;
mod encode;
mod register;

use crate::encode::{Room, Scratch};
use crate::error::Error;
use crate::format::PAGE_BYTES;

/// Proof that the CPU has what this file uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Present(());

impl Present {
    pub(crate) fn detect() -> Option<Present> {
        let has_all = std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512dq")
            && std::is_x86_feature_detected!("avx512vl")
            && std::is_x86_feature_detected!("avx512vbmi")
            && std::is_x86_feature_detected!("avx512vbmi2")
            && std::is_x86_feature_detected!("bmi1")
            && std::is_x86_feature_detected!("bmi2")
            && std::is_x86_feature_detected!("popcnt");
        has_all.then_some(Present(()))
    }
}

/// As [`encode::page`](crate::encode::page).
pub(crate) fn encode<const LEVEL: u8>(
    _: Present,
    page: &[u8; PAGE_BYTES],
    scratch: &mut Scratch,
    out: &mut Room,
) -> usize {
    // SAFETY: `Present` is made only where the CPU has the features.
    unsafe { encode::page::<LEVEL>(page, scratch, out) }
}

/// As [`decode::page`](crate::decode::page).
pub(crate) fn decode<'a, const LEVEL: u8>(
    _: Present,
    is_plain: bool,
    source: &'a [u8],
    page: &mut [u8; PAGE_BYTES],
) -> Result<&'a [u8], Error> {
    // SAFETY: as above.
    unsafe { decode::page::<LEVEL>(is_plain, source, page) }
}
