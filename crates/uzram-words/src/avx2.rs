//! The codec in AVX2. Bytes and words are pushed together by shuffles from tables, so that no CPU's slow
//! pext or pdep is in the way. Lists and bitmaps are those of the portable code, built for this CPU.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use crate::decode::{self, Head, Source};
use crate::encode::{
    self, Classes, DELTA_BITS, LEAD, MULTIPLIER, Room, Scratch, TABLE_BITS, Table, back,
};
use crate::error::Error;
use crate::format::{BLOCKS, DENSE, LANES, PAGE_BYTES, PAGE_WORDS, Plane, selector_bits};

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

/// As [`decode::page`].
pub(crate) fn decode<'a, const LEVEL: u8>(
    _: Present,
    is_plain: bool,
    source: &'a [u8],
    page: &mut [u8; PAGE_BYTES],
) -> Result<&'a [u8], Error> {
    // SAFETY: as above.
    unsafe { decode_page::<LEVEL>(is_plain, source, page) }
}

/// For each mask of a word's bytes, where those that it names go together, and from where they come apart.
/// A shuffle makes the others zero.
static BYTES: [[[u8; 8]; 2]; 256] = {
    let mut tables = [[[0x80; 8]; 2]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut byte, mut rank) = (0, 0);
        while byte < 8 {
            if mask >> byte & 1 == 1 {
                tables[mask][0][rank] = byte as u8;
                tables[mask][1][byte] = rank as u8;
                rank += 1;
            }
            byte += 1;
        }
        mask += 1;
    }
    tables
};

/// The same for the halves of four words.
static WORDS: [[[u32; 8]; 2]; 16] = {
    let mut tables = [[[0; 8]; 2]; 16];
    let mut mask = 0;
    while mask < 16 {
        let (mut word, mut rank) = (0, 0);
        while word < 4 {
            if mask >> word & 1 == 1 {
                tables[mask][0][2 * rank] = 2 * word as u32;
                tables[mask][0][2 * rank + 1] = 2 * word as u32 + 1;
                tables[mask][1][2 * word] = 2 * rank as u32;
                tables[mask][1][2 * word + 1] = 2 * rank as u32 + 1;
                rank += 1;
            }
            word += 1;
        }
        mask += 1;
    }
    tables
};

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn encode_page<const LEVEL: u8>(
    page: &[u8; PAGE_BYTES],
    scratch: &mut Scratch,
    out: &mut Room,
) -> usize {
    let classes = classify::<LEVEL>(page, scratch);
    let at = encode::head(&classes, out);
    let at = encode::references::<LEVEL>(&classes, scratch, out, at);
    let end = put_coded::<LEVEL>(classes.coded, scratch, out, at);
    encode::finish(LEVEL, page, &classes, scratch, out, at, end)
}

/// Sorts the words; see [`encode`].
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn classify<const LEVEL: u8>(page: &[u8; PAGE_BYTES], scratch: &mut Scratch) -> Classes {
    let mut same_distances = [0; PAGE_WORDS];
    let mut near_distances = [0; PAGE_WORDS];
    let Scratch {
        table_same,
        table_near,
        products,
        ..
    } = scratch;
    let same = distances::<0>(page, table_same, products, &mut same_distances);
    let near = match LEVEL {
        DENSE => distances::<DELTA_BITS>(page, table_near, products, &mut near_distances),
        _ => [0; BLOCKS],
    };
    let mut planes = [[0; BLOCKS]; 2];
    let (mut copies, mut nears, mut coded) = (0, 0, 0);
    scratch.coded[..LEAD].fill(0);
    for block in 0..BLOCKS {
        let bytes = &page[block * 512..][..512];
        let zeroes = bytes.as_chunks::<32>().0.iter().enumerate();
        let zeroes = zeroes.fold(0, |zeroes, (part, bytes)| {
            zeroes | is_zero(load(bytes)) << (4 * part)
        });
        let copied = same[block];
        let nearby = near[block] & !copied;
        let in_full = !zeroes & !copied & !nearby;
        planes[0][block] = in_full | nearby;
        planes[1][block] = copied | nearby;
        for (part, bytes) in bytes.as_chunks::<32>().0.iter().enumerate() {
            let kept = (in_full >> (4 * part)) as usize & 0xf;
            let together = _mm256_permutevar8x32_epi32(load(bytes), load_table(&WORDS[kept][0]));
            store(&mut scratch.coded, LEAD + coded, together);
            coded += kept.count_ones() as usize;
        }
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

/// For each word, less its `SHIFT` low bits, how far back it stood last; a bit where that is near enough.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn distances<const SHIFT: u32>(
    page: &[u8; PAGE_BYTES],
    table: &mut Table,
    wide: &mut [u64; PAGE_WORDS],
    distances: &mut [u8; PAGE_WORDS],
) -> Plane {
    table.fill(0);
    let words = page.as_chunks::<8>().0.iter().zip(0u64..);
    let both = wide.iter_mut().zip(distances);
    for ((bytes, index), (wide, distance)) in words.zip(both) {
        let key = u64::from_le_bytes(*bytes) >> SHIFT;
        let product = key.wrapping_mul(MULTIPLIER);
        let new = product << TABLE_BITS | index;
        let entry = &mut table[(product >> (64 - TABLE_BITS)) as usize];
        *wide = new.wrapping_sub(*entry);
        *distance = *wide as u8;
        *entry = new;
    }
    let mut plane = [0; BLOCKS];
    let others = _mm256_set1_epi64x((!0u64 >> TABLE_BITS << SHIFT) as i64);
    let parts = page.as_chunks::<32>().0.iter().zip(wide.as_chunks::<4>().0);
    for (part, (bytes, wide)) in parts.enumerate() {
        let is_none = is_zero(_mm256_and_si256(load(bytes), others));
        // SAFETY: four words are 32 bytes.
        let distance = unsafe { _mm256_loadu_si256((wide as *const [u64; 4]).cast()) };
        let is_near = is_zero(_mm256_srli_epi64::<8>(distance));
        plane[part / 16] |= (is_near & !is_none) << (part % 16 * 4);
    }
    plane
}

/// The bytes that `mask` names, together, and how many. Up to 8 bytes more are written.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn gather(mask: u64, from: &[u8], to: &mut [u8]) -> usize {
    let mut count = 0;
    for (part, bytes) in from[..64].as_chunks::<8>().0.iter().enumerate() {
        let mask = (mask >> (8 * part)) as u8;
        let together = shuffle(u64::from_le_bytes(*bytes), &BYTES[usize::from(mask)][0]);
        to[count..count + 8].copy_from_slice(&together.to_le_bytes());
        count += mask.count_ones() as usize;
    }
    count
}

/// As [`encode::page`] writes coded words.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn put_coded<const LEVEL: u8>(
    count: usize,
    scratch: &mut Scratch,
    out: &mut Room,
    start: usize,
) -> usize {
    let groups = count.div_ceil(LANES);
    let Scratch {
        coded,
        masks,
        rest_bytes,
        ..
    } = scratch;
    coded[LEAD + count..LEAD + groups * LANES].fill(0);
    let mut length = 0;
    for group in 0..groups {
        let words = coded[group * LANES..].first_chunk().expect("three groups");
        let (selectors, rest) = select::<LEVEL>(words);
        let place = start + group * selector_bits(LEVEL);
        out[place..place + 4].copy_from_slice(&selectors.to_le_bytes());
        for (lane, rest) in rest.iter().enumerate() {
            let mask = crate::swar::mask(*rest);
            masks[group * LANES + lane] = mask;
            let together = shuffle(*rest, &BYTES[usize::from(mask)][0]);
            rest_bytes[length..length + 8].copy_from_slice(&together.to_le_bytes());
            length += mask.count_ones() as usize;
        }
    }
    let at = start + groups * selector_bits(LEVEL);
    let at = encode::masks(&masks[..count], out, at);
    out[at..at + length].copy_from_slice(&rest_bytes[..length]);
    at + length
}

/// The selectors of the last of three groups of words, packed, and what remains of its words.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn select<const LEVEL: u8>(words: &[u64; 3 * LANES]) -> (u32, [u64; LANES]) {
    let bits = selector_bits(LEVEL);
    // Each group twice, so that its turns are where a register may be loaded from.
    let mut turns = [0; 4 * LANES];
    turns[..LANES].copy_from_slice(&words[LANES..2 * LANES]);
    turns[LANES..2 * LANES].copy_from_slice(&words[LANES..2 * LANES]);
    if LEVEL == DENSE {
        turns[2 * LANES..3 * LANES].copy_from_slice(&words[..LANES]);
        turns[3 * LANES..].copy_from_slice(&words[..LANES]);
    }
    let own = [
        load_words(words, 2 * LANES),
        load_words(words, 2 * LANES + 4),
    ];
    let mut best = own.map(|half| count::<LEVEL>(half, 0));
    for selector in 1..1 << bits {
        let (group, turn) = ((selector - 1) / LANES, (selector - 1) % LANES);
        let at = group * 2 * LANES + (LANES - turn) % LANES;
        for (half, best) in best.iter_mut().enumerate() {
            let rest = _mm256_xor_si256(own[half], load_words(&turns, at + 4 * half));
            *best = _mm256_min_epu16(*best, count::<LEVEL>(rest, selector));
        }
    }
    let mut keys = [0; LANES];
    store(&mut keys, 0, best[0]);
    store(&mut keys, 4, best[1]);
    let mut selectors = 0;
    let mut rest = [0; LANES];
    for (lane, key) in keys.iter().enumerate() {
        let selector = *key as usize & ((1 << bits) - 1);
        selectors |= (selector as u32) << (lane * bits);
        let other = match selector {
            0 => 0,
            _ => words[2 * LANES - back(lane, selector)],
        };
        rest[lane] = words[2 * LANES + lane] ^ other;
    }
    (selectors, rest)
}

/// How many bytes of each word are not zero, above the bits of the selector.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn count<const LEVEL: u8>(words: __m256i, selector: usize) -> __m256i {
    let ones = _mm256_min_epu8(words, _mm256_set1_epi8(1));
    let counts = _mm256_sad_epu8(ones, _mm256_setzero_si256());
    let above = match LEVEL {
        DENSE => _mm256_slli_epi64::<4>(counts),
        _ => _mm256_slli_epi64::<3>(counts),
    };
    _mm256_or_si256(above, _mm256_set1_epi64x(selector as i64))
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn decode_page<'a, const LEVEL: u8>(
    is_plain: bool,
    source: &'a [u8],
    page: &mut [u8; PAGE_BYTES],
) -> Result<&'a [u8], Error> {
    let mut source = Source::new(source);
    let head = Head::read::<LEVEL>(&mut source)?;
    let references = decode::references::<LEVEL>(&head, &mut source)?;
    let mut coded = [0; LEAD + PAGE_WORDS + LANES];
    if is_plain {
        decode::plain(head.coded, &mut source, &mut coded)?;
    } else {
        take_coded::<LEVEL>(head.coded, &mut source, &mut coded)?;
    }
    place::<LEVEL>(&head, &references, &coded, page)?;
    Ok(source.rest())
}

/// As [`decode::page`] reads coded words.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn take_coded<const LEVEL: u8>(
    count: usize,
    source: &mut Source<'_>,
    coded: &mut [u64; LEAD + PAGE_WORDS + LANES],
) -> Result<(), Error> {
    let bits = selector_bits(LEVEL);
    let selectors = source.take(count.div_ceil(LANES) * bits)?;
    let mut masks = [0; PAGE_WORDS + 64];
    decode::masks(count, source, &mut masks)?;
    let bytes = source.rest();
    let mut at = 0;
    for group in 0..count.div_ceil(LANES) {
        let mut packed = [0; 4];
        packed[..bits].copy_from_slice(&selectors[group * bits..][..bits]);
        let mut packed = u32::from_le_bytes(packed) as usize;
        for lane in 0..LANES {
            let mask = masks[group * LANES + lane];
            let rest = shuffle(eight(bytes, at), &BYTES[usize::from(mask)][1]);
            at += mask.count_ones() as usize;
            let selector = packed & ((1 << bits) - 1);
            packed >>= bits;
            // For none a neighbour is looked at too, and masked.
            let distance = back(lane, selector.max(1));
            let other = coded[LEAD + group * LANES - distance];
            let is_any = u64::from(selector != 0).wrapping_neg();
            coded[LEAD + group * LANES + lane] = rest ^ (other & is_any);
        }
    }
    source.take(at)?;
    Ok(())
}

/// The eight bytes from `at` on, zeroes behind the end.
#[inline(always)]
fn eight(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or(&[]);
    match rest.first_chunk() {
        Some(eight) => u64::from_le_bytes(*eight),
        None => {
            let mut eight = [0; 8];
            eight[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(eight)
        }
    }
}

/// As [`decode::page`] puts the words in their places: first those that are coded, then references.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn place<const LEVEL: u8>(
    head: &Head,
    references: &decode::References,
    coded: &[u64; LEAD + PAGE_WORDS + LANES],
    page: &mut [u8; PAGE_BYTES],
) -> Result<(), Error> {
    let mut words = [0; PAGE_WORDS];
    let (mut code, mut copy, mut near) = (LEAD, 0, 0);
    for block in 0..BLOCKS {
        let [in_full, copied, nearby] = head.block(block);
        for part in 0..16 {
            let kept = (in_full >> (4 * part)) as usize & 0xf;
            let apart =
                _mm256_permutevar8x32_epi32(load_words(coded, code), load_table(&WORDS[kept][1]));
            let lanes = _mm256_sllv_epi64(
                _mm256_set1_epi64x((kept as i64) << 60),
                _mm256_set_epi64x(0, 1, 2, 3),
            );
            // The sign says whether a word belongs here.
            let is_kept = _mm256_cmpgt_epi64(_mm256_setzero_si256(), lanes);
            store(
                &mut words,
                block * 64 + part * 4,
                _mm256_and_si256(apart, is_kept),
            );
            code += kept.count_ones() as usize;
        }
        let mut left = copied | nearby;
        while left != 0 {
            let lane = left.trailing_zeros();
            let index = block * 64 + lane as usize;
            left &= left - 1;
            words[index] = if LEVEL == DENSE && nearby >> lane & 1 == 1 {
                near += 1;
                let delta = u64::from(references.deltas[near - 1]);
                decode::earlier(&words, index, references.nears[near - 1])? ^ delta
            } else {
                copy += 1;
                decode::earlier(&words, index, references.copies[copy - 1])?
            };
        }
    }
    for (bytes, word) in page.as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = u64::to_le_bytes(word);
    }
    Ok(())
}

/// The bytes of `word` where `table` says.
#[inline]
#[target_feature(enable = "avx2")]
fn shuffle(word: u64, table: &[u8; 8]) -> u64 {
    let table = _mm_cvtsi64_si128(i64::from_le_bytes(*table));
    let shuffled = _mm_shuffle_epi8(_mm_cvtsi64_si128(word as i64), table);
    _mm_cvtsi128_si64(shuffled) as u64
}

/// A bit for each of four words that is zero.
#[inline]
#[target_feature(enable = "avx2")]
fn is_zero(words: __m256i) -> u64 {
    let zero = _mm256_cmpeq_epi64(words, _mm256_setzero_si256());
    _mm256_movemask_pd(_mm256_castsi256_pd(zero)) as u64
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256((bytes as *const [u8; 32]).cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_table(table: &[u32; 8]) -> __m256i {
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256((table as *const [u32; 8]).cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_words(words: &[u64], at: usize) -> __m256i {
    let words: &[u64; 4] = words[at..].first_chunk().expect("a register's width");
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256((words as *const [u64; 4]).cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(words: &mut [u64], at: usize, value: __m256i) {
    let to: &mut [u64; 4] = words[at..].first_chunk_mut().expect("a register's width");
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256((to as *mut [u64; 4]).cast(), value) }
}
