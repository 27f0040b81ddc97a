//! A byte range, split at block borders.

use std::ops::Range;

/// The part of a request that lies in one block.
#[derive(Clone, Debug)]
pub struct Part {
    /// The block's index.
    pub index: u64,
    /// The offset of the part in the block, in bytes.
    pub start: usize,
    /// The part's place in the request's buffer.
    pub bytes: Range<usize>,
}

/// Splits the range at multiples of `2^shift` bytes. The range must lie within a device (see
/// [`check_range`](super::check_range)), so that its end does not overflow.
pub fn parts(offset: u64, length: u64, shift: u32) -> impl Iterator<Item = Part> {
    let block_bytes = 1u64 << shift;
    let end = offset + length;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let start = at & (block_bytes - 1);
        let part_bytes = (block_bytes - start).min(end - at);
        let done = (at - offset) as usize;
        let part = Part {
            index: at >> shift,
            start: start as usize,
            bytes: done..done + part_bytes as usize,
        };
        at += part_bytes;
        Some(part)
    })
}

/// The whole blocks of `2^shift` bytes within the range, which must lie within a device.
#[must_use]
pub fn whole_blocks(offset: u64, length: u64, shift: u32) -> Range<u64> {
    let first = offset.div_ceil(1 << shift);
    first..((offset + length) >> shift).max(first)
}
