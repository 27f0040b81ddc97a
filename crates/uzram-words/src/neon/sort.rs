//! Sorts the words of a page in NEON. The table is looked into word by word, as in the portable code.

use core::arch::aarch64::*;

use super::lists::{Deltas, gather};
use super::register::{bits, load_four, load_group, not_zero};
use crate::encode::{self, Classes, DELTA_BITS, LEAD, Scratch, Table};
use crate::format::{BLOCKS, DENSE, LANES, PAGE_BYTES, PAGE_WORDS};
use crate::shared::Ones;

/// As [`encode`](crate::encode) sorts the words.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn classify<const LEVEL: u8>(
    page: &[u8; PAGE_BYTES],
    scratch: &mut Scratch,
    deltas: &mut Deltas,
) -> Classes {
    let words = encode::words(page);
    let mut same_distances = [0; PAGE_WORDS];
    let mut near_distances = [0; PAGE_WORDS];
    distances::<0>(&words, &mut scratch.table_same, &mut same_distances);
    if LEVEL == DENSE {
        distances::<DELTA_BITS>(&words, &mut scratch.table_near, &mut near_distances);
    }
    let [mut first_plane, mut second_plane] = [[0; BLOCKS]; 2];
    let (mut copies, mut nears, mut coded) = (0, 0, 0);
    for block in 0..BLOCKS {
        let first = block * 64;
        let copied = not_zero_64(&same_distances, first);
        let nearby = match LEVEL {
            DENSE => not_zero_64(&near_distances, first) & !copied,
            _ => 0,
        };
        let in_full = words_not_zero(&words, first) & !copied & !nearby;
        first_plane[block] = in_full | nearby;
        second_plane[block] = copied | nearby;
        for lane in Ones(in_full) {
            scratch.coded[LEAD + coded] = words[first + lane];
            coded += 1;
        }
        let to = &mut scratch.copies[copies..];
        copies += gather(copied, &same_distances[first..], to);
        if LEVEL == DENSE {
            for (nth, lane) in Ones(nearby).enumerate() {
                let index = first + lane;
                let other = words[index - usize::from(near_distances[index])];
                let delta = (words[index] ^ other) as u16;
                let [low, high] = delta.to_le_bytes();
                deltas[0][nears + nth] = low;
                deltas[1][nears + nth] = high;
            }
            let to = &mut scratch.nears[nears..];
            nears += gather(nearby, &near_distances[first..], to);
        }
    }
    Classes {
        planes: [first_plane, second_plane],
        copies,
        nears,
        coded,
    }
}

/// For each word, less its `SHIFT` low bits, how far back it stood last; zero where that is not near enough.
#[inline(always)]
fn distances<const SHIFT: u32>(
    words: &[u64; PAGE_WORDS],
    table: &mut Table,
    distances: &mut [u8; PAGE_WORDS],
) {
    table.fill(0);
    for (index, (word, distance)) in words.iter().zip(distances).enumerate() {
        *distance = encode::distance(table, *word >> SHIFT, index).unwrap_or(0);
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn not_zero_64(list: &[u8; PAGE_WORDS], first: usize) -> u64 {
    not_zero(load_four(list[first..].first_chunk().expect("a block")))
}

/// A bit for each of 64 words that is not zero.
#[inline]
#[target_feature(enable = "neon")]
fn words_not_zero(words: &[u64; PAGE_WORDS], first: usize) -> u64 {
    let groups = words[first..][..64].as_chunks::<LANES>().0;
    let eight = |group: usize| {
        let words = load_group(&groups[group]);
        let is_word = |two: uint8x16_t| {
            let two = vreinterpretq_u64_u8(two);
            vreinterpretq_u32_u64(vtstq_u64(two, two))
        };
        let narrow = |one, two| vreinterpretq_u16_u32(vuzp1q_u32(one, two));
        let low = narrow(is_word(words.0), is_word(words.1));
        let high = narrow(is_word(words.2), is_word(words.3));
        vreinterpretq_u8_u16(vuzp1q_u16(low, high))
    };
    let sixteen = |group| vuzp1q_u8(eight(group), eight(group + 1));
    bits(uint8x16x4_t(sixteen(0), sixteen(2), sixteen(4), sixteen(6)))
}
