//! The codec in AVX2. Words are pushed together by permutes from a table, and lists of bytes in a file of
//! their own.

#![allow(unsafe_code)]

mod lists;

use core::arch::x86_64::*;

use crate::decode::{self, Head, References, Source};
use crate::encode::{
    self, Classes, DELTA_BITS, LEAD, MULTIPLIER, Room, Scratch, TABLE_BITS, Table, back,
};
use crate::error::Error;
use crate::format::{BLOCKS, DENSE, LANES, PAGE_BYTES, PAGE_WORDS, Plane, selector_bits};
use lists::{apart, eight, gather, put_distances, put_masks, take_distances, take_masks, together};

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

/// For each mask of four words, where the halves of those that it names go together, from where they come
/// apart, and all bits of those.
static WORDS: [[[u32; 8]; 3]; 16] = {
    let mut tables = [[[0; 8]; 3]; 16];
    let mut mask = 0;
    while mask < 16 {
        let (mut word, mut rank) = (0, 0);
        while word < 4 {
            if mask >> word & 1 == 1 {
                tables[mask][0][2 * rank] = 2 * word as u32;
                tables[mask][0][2 * rank + 1] = 2 * word as u32 + 1;
                tables[mask][1][2 * word] = 2 * rank as u32;
                tables[mask][1][2 * word + 1] = 2 * rank as u32 + 1;
                tables[mask][2][2 * word] = !0;
                tables[mask][2][2 * word + 1] = !0;
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
    let at = put_references::<LEVEL>(&classes, scratch, out, at);
    let end = put_coded::<LEVEL>(classes.coded, scratch, out, at);
    encode::finish(LEVEL, page, &classes, scratch, out, at, end)
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
    let changes = &mut scratch.changes;
    let at = put_distances(&scratch.copies, classes.copies, changes, out, at);
    if LEVEL != DENSE {
        return at;
    }
    let at = put_distances(&scratch.nears, classes.nears, changes, out, at);
    encode::deltas(&scratch.deltas[..classes.nears], out, at)
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
        let zero = rest.map(|rest| {
            _mm256_movemask_epi8(_mm256_cmpeq_epi8(rest, _mm256_setzero_si256())) as u32
        });
        let zero = u64::from(zero[1]) << 32 | u64::from(zero[0]);
        let mask = (!zero).to_le_bytes();
        masks[group * LANES..][..LANES].copy_from_slice(&mask);
        let mut words = [0; LANES];
        store(&mut words, 0, rest[0]);
        store(&mut words, 4, rest[1]);
        for (rest, mask) in words.iter().zip(mask) {
            let bytes = together(*rest, mask).to_le_bytes();
            rest_bytes[length..length + 8].copy_from_slice(&bytes);
            length += mask.count_ones() as usize;
        }
    }
    let at = start + groups * selector_bits(LEVEL);
    let at = put_masks(masks, count, out, at);
    out[at..at + length].copy_from_slice(&rest_bytes[..length]);
    at + length
}

/// The selectors of the last of three groups of words, packed, and what remains of its words.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn select<const LEVEL: u8>(words: &[u64; 3 * LANES]) -> (u32, [__m256i; 2]) {
    let bits = selector_bits(LEVEL);
    let group = |first| [load_words(words, first), load_words(words, first + 4)];
    let own = group(2 * LANES);
    let all = [turns(group(LANES)), turns(group(0))];
    let all = all.as_flattened();
    let mut best = own.map(|half| count::<LEVEL>(half, 0));
    for selector in 1..1 << bits {
        for half in 0..2 {
            let rest = _mm256_xor_si256(own[half], all[selector - 1][half]);
            best[half] = _mm256_min_epu16(best[half], count::<LEVEL>(rest, selector));
        }
    }
    let kept = _mm256_set1_epi64x((1 << bits) - 1);
    let selectors = best.map(|best| _mm256_and_si256(best, kept));
    let mut rest = own;
    for selector in 1..1 << bits {
        let this = _mm256_set1_epi64x(selector as i64);
        for half in 0..2 {
            let is_this = _mm256_cmpeq_epi64(selectors[half], this);
            let other = _mm256_and_si256(is_this, all[selector - 1][half]);
            rest[half] = _mm256_xor_si256(rest[half], other);
        }
    }
    let bits = bits as i64;
    let places = _mm256_set_epi64x(3 * bits, 2 * bits, bits, 0);
    let low = _mm256_sllv_epi64(selectors[0], places);
    let high = _mm256_sllv_epi64(
        selectors[1],
        _mm256_add_epi64(places, _mm256_set1_epi64x(4 * bits)),
    );
    let packed = _mm256_or_si256(low, high);
    let mut lanes = [0; 4];
    store(&mut lanes, 0, packed);
    (lanes.iter().fold(0, |all, lane| all | *lane as u32), rest)
}

/// A group's words, turned by each number of lanes.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn turns([low, high]: [__m256i; 2]) -> [[__m256i; 2]; LANES] {
    macro_rules! turn {
        ($lanes:literal, $carried:literal) => {{
            let low = _mm256_permute4x64_epi64::<$lanes>(low);
            let high = _mm256_permute4x64_epi64::<$lanes>(high);
            [
                _mm256_blend_epi32::<$carried>(low, high),
                _mm256_blend_epi32::<$carried>(high, low),
            ]
        }};
    }
    let [one, two, three] = [turn!(0x93, 0x03), turn!(0x4e, 0x0f), turn!(0x39, 0x3f)];
    let back = |[low, high]: [__m256i; 2]| [high, low];
    let none = [low, high];
    [
        none,
        one,
        two,
        three,
        back(none),
        back(one),
        back(two),
        back(three),
    ]
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
    let references = take_references::<LEVEL>(&head, &mut source)?;
    let mut coded = [0; LEAD + PAGE_WORDS + LANES];
    if is_plain {
        decode::plain(head.coded, &mut source, &mut coded)?;
    } else {
        take_coded::<LEVEL>(head.coded, &mut source, &mut coded)?;
    }
    place::<LEVEL>(&head, &references, &coded, page)?;
    Ok(source.rest())
}

/// As [`decode::references`].
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn take_references<const LEVEL: u8>(
    head: &Head,
    source: &mut Source<'_>,
) -> Result<References, Error> {
    let mut references = References::new();
    take_distances(head.copies, source, &mut references.copies)?;
    if LEVEL == DENSE {
        take_distances(head.nears, source, &mut references.nears)?;
        decode::deltas(head.nears, source, &mut references.deltas)?;
    }
    Ok(references)
}

/// How far before its group's first word the one stands that a selector names for a lane.
static BACK: [[u8; 16]; LANES] = {
    let mut table = [[0; 16]; LANES];
    let mut lane = 0;
    while lane < LANES {
        let mut selector = 1;
        while selector < 16 {
            table[lane][selector] = back(lane, selector) as u8;
            selector += 1;
        }
        lane += 1;
    }
    table
};

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
    take_masks(count, source, &mut masks)?;
    let bytes = source.rest();
    let mut at = 0;
    for group in 0..count.div_ceil(LANES) {
        let mut packed = eight(selectors, group * bits) as usize;
        for lane in 0..LANES {
            let mask = masks[group * LANES + lane];
            let rest = apart(eight(bytes, at), mask);
            at += mask.count_ones() as usize;
            let selector = packed & ((1 << bits) - 1);
            packed >>= bits;
            // For none the first word is taken, which is zero.
            let is_any = usize::from(selector != 0).wrapping_neg();
            let other = LEAD + group * LANES - usize::from(BACK[lane][selector]);
            coded[LEAD + group * LANES + lane] = rest ^ coded[other & is_any];
        }
    }
    source.take(at)?;
    Ok(())
}

/// As [`decode::page`] puts the words in their places: first those that are coded, then references.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn place<const LEVEL: u8>(
    head: &Head,
    references: &References,
    coded: &[u64; LEAD + PAGE_WORDS + LANES],
    page: &mut [u8; PAGE_BYTES],
) -> Result<(), Error> {
    let mut words = [0; PAGE_WORDS];
    let (mut code, mut copy, mut near) = (LEAD, 0, 0);
    for block in 0..BLOCKS {
        let [in_full, copied, nearby] = head.block(block);
        for part in 0..16 {
            let kept = (in_full >> (4 * part)) as usize & 0xf;
            let [_, from, all] = &WORDS[kept];
            let these = _mm256_permutevar8x32_epi32(load_words(coded, code), load_table(from));
            let these = _mm256_and_si256(these, load_table(all));
            store(&mut words, block * 64 + part * 4, these);
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
