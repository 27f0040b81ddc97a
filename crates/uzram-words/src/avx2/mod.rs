//! The codec in AVX2. Words are pushed together by permutes from a table, and lists of bytes in a file of
//! their own.

#![allow(unsafe_code)]

mod coded;
mod decode;
mod earlier;
mod lists;
mod register;

use core::arch::x86_64::*;

use crate::encode::{self, Classes, DELTA_BITS, LEAD, Room, Scratch};
use crate::error::Error;
use crate::format::{BLOCKS, DENSE, LANES, PAGE_BYTES, PAGE_WORDS};
use coded::put_coded;
use earlier::distances;
use lists::{gather, put_deltas, put_distances};
use register::{TOGETHER, load, load_table, store};

/// Proof that the CPU has what this file uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Present(());

impl Present {
    pub(crate) fn detect() -> Option<Present> {
        let has_all = std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("bmi1")
            && std::is_x86_feature_detected!("bmi2")
            && std::is_x86_feature_detected!("popcnt");
        has_all.then_some(Present(()))
    }
}

/// As [`encode::page`].
pub(crate) fn encode<const LEVEL: u8>(
    _: Present,
    page: &[u8; PAGE_BYTES],
    scratch: &mut Scratch,
    out: &mut Room,
) -> usize {
    // SAFETY: `Present` is made only where the CPU has the features.
    unsafe { encode_page::<LEVEL>(page, scratch, out) }
}

/// As [`decode::page`](crate::decode::page).
pub(crate) fn decode<'a, const LEVEL: u8>(
    _: Present,
    is_plain: bool,
    source: &'a [u8],
    page: &mut [u8; PAGE_BYTES],
) -> Result<&'a [u8], Error> {
    fetch(&source[..source.len().min(PAGE_BYTES)]);
    // SAFETY: as above.
    unsafe { decode::page::<LEVEL>(is_plain, source, page) }
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn encode_page<const LEVEL: u8>(
    page: &[u8; PAGE_BYTES],
    scratch: &mut Scratch,
    out: &mut Room,
) -> usize {
    fetch(page);
    let classes = classify::<LEVEL>(page, scratch);
    let at = encode::head(&classes, out);
    let at = put_references::<LEVEL>(&classes, scratch, out, at);
    let end = put_coded::<LEVEL>(classes.coded, scratch, out, at);
    encode::finish(LEVEL, page, &classes, scratch, out, at, end)
}

/// Asks for lines all at once: pages and what was made of them are seldom in the nearest cache, and the CPU's own
/// foresight begins anew with each.
#[inline]
fn fetch(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        // SAFETY: a hint, which reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// As [`encode::references`].
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn put_references<const LEVEL: u8>(
    classes: &Classes,
    scratch: &mut Scratch,
    out: &mut Room,
    at: usize,
) -> usize {
    let (changes, parts) = (&mut scratch.changes, &mut scratch.parts);
    let room = (&mut *changes, &mut *parts);
    let at = put_distances(&scratch.copies, classes.copies, room, out, at);
    if LEVEL != DENSE {
        return at;
    }
    let room = (&mut *changes, &mut *parts);
    let at = put_distances(&scratch.nears, classes.nears, room, out, at);
    put_deltas(&scratch.deltas, classes.nears, parts, out, at)
}

/// Sorts the words; see [`encode`].
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn classify<const LEVEL: u8>(page: &[u8; PAGE_BYTES], scratch: &mut Scratch) -> Classes {
    let mut same_distances = [0; PAGE_WORDS];
    let mut near_distances = [0; PAGE_WORDS];
    let [same, zero] = distances::<0>(page, &mut scratch.table_same, &mut same_distances);
    let near = match LEVEL {
        DENSE => {
            let table = &mut scratch.table_near;
            distances::<{ DELTA_BITS as i32 }>(page, table, &mut near_distances)[0]
        }
        _ => [0; BLOCKS],
    };
    let mut planes = [[0; BLOCKS]; 2];
    let (mut copies, mut nears, mut coded) = (0, 0, 0);
    scratch.coded[..LEAD].fill(0);
    for block in 0..BLOCKS {
        let bytes = &page[block * 512..][..512];
        let copied = same[block];
        let nearby = near[block] & !copied;
        let in_full = !zero[block] & !copied & !nearby;
        planes[0][block] = in_full | nearby;
        planes[1][block] = copied | nearby;
        let parts = bytes.as_chunks().0.first_chunk().expect("a block");
        let to = scratch.coded[LEAD + coded..].first_chunk_mut();
        coded += put_together(in_full, parts, to.expect("room for a block"));
        copies += gather(
            copied,
            &same_distances[block * 64..],
            &mut scratch.copies[copies..],
        );
        if LEVEL == DENSE {
            let mut left = nearby;
            for delta in &mut scratch.deltas[nears..][..nearby.count_ones() as usize] {
                let index = block * 64 + left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                let other = index - usize::from(near_distances[index]);
                let low = |index: usize| u16::from_le_bytes([page[index * 8], page[index * 8 + 1]]);
                *delta = low(index) ^ low(other);
            }
            nears += gather(
                nearby,
                &near_distances[block * 64..],
                &mut scratch.nears[nears..],
            );
        }
    }
    Classes {
        planes,
        copies,
        nears,
        coded,
    }
}

/// The words that `mask` names, together; how many they are.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn put_together(mask: u64, words: &[[u8; 32]; 16], to: &mut [u64; 64 + LANES]) -> usize {
    let mut count = 0;
    for (part, words) in words.iter().enumerate() {
        let these = (mask >> (4 * part)) as usize & 0xf;
        let from = load_table(&TOGETHER[these]);
        store(to, count, _mm256_permutevar8x32_epi32(load(words), from));
        count += these.count_ones() as usize;
    }
    count
}
