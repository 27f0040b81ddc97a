//! The codec in NEON, which every aarch64 CPU has that runs Linux. Bytes are pushed together and apart by shuffles
//! from a table, neighbours are chosen and found eight words at a time; the table of earlier words and the words that
//! are copied stay one after the other.

#![allow(unsafe_code)]

mod coded;
mod lists;
mod place;
mod register;
mod sort;

use crate::decode::{Head, Source};
use crate::encode::{self, Room, Scratch};
use crate::error::Error;
use crate::format::{DENSE, PAGE_BYTES};
use coded::{Words, put_coded, take_coded};
use lists::{NO_LIST, put_distances, put_some, take_distances, take_some};
use place::place;
use sort::classify;

/// Proof that this file can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Present(());

impl Present {
    /// Lanes are counted from the lowest byte here.
    pub(crate) fn detect() -> Option<Present> {
        let has_all =
            cfg!(target_endian = "little") && std::arch::is_aarch64_feature_detected!("neon");
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
    // SAFETY: `Present` is made only where the CPU has NEON.
    unsafe { encode_page::<LEVEL>(page, scratch, out) }
}

/// As [`decode::page`](crate::decode::page).
pub(crate) fn decode<'a, const LEVEL: u8>(
    _: Present,
    is_plain: bool,
    source: &'a [u8],
    page: &mut [u8; PAGE_BYTES],
) -> Result<&'a [u8], Error> {
    // SAFETY: as above.
    unsafe { decode_page::<LEVEL>(is_plain, source, page) }
}

#[target_feature(enable = "neon")]
fn encode_page<const LEVEL: u8>(
    page: &[u8; PAGE_BYTES],
    scratch: &mut Scratch,
    out: &mut Room,
) -> usize {
    let mut deltas = [NO_LIST; 2];
    let classes = classify::<LEVEL>(page, scratch, &mut deltas);
    let at = encode::head(&classes, out);
    let mut at = put_distances(&scratch.copies, classes.copies, out, at);
    if LEVEL == DENSE {
        let [low, high] = &deltas;
        at = put_distances(&scratch.nears, classes.nears, out, at);
        out[at..at + classes.nears].copy_from_slice(&low[..classes.nears]);
        at = put_some(high, classes.nears, out, at + classes.nears);
    }
    let end = put_coded::<LEVEL>(classes.coded, scratch, out, at);
    encode::finish(LEVEL, page, &classes, scratch, out, at, end)
}

#[target_feature(enable = "neon")]
fn decode_page<'a, const LEVEL: u8>(
    is_plain: bool,
    source: &'a [u8],
    page: &mut [u8; PAGE_BYTES],
) -> Result<&'a [u8], Error> {
    let mut source = Source::new(source);
    let head = Head::read::<LEVEL>(&mut source)?;
    let copies = take_distances(head.copies, &mut source)?;
    let (mut nears, mut deltas) = (NO_LIST, [NO_LIST; 2]);
    if LEVEL == DENSE {
        nears = take_distances(head.nears, &mut source)?;
        let [low, high] = &mut deltas;
        low[..head.nears].copy_from_slice(source.take(head.nears)?);
        *high = take_some(head.nears, &mut source)?;
    }
    let mut coded: Words = [0; _];
    if is_plain {
        let words = source.take(head.coded * 8)?.as_chunks().0;
        for (word, bytes) in coded.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
    } else {
        take_coded::<LEVEL>(head.coded, &mut source, &mut coded)?;
    }
    place::<LEVEL>(&head, &copies, &nears, &deltas, &coded, page)?;
    Ok(source.rest())
}
