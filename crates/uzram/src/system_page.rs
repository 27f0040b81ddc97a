//! The system's page: its size, and the part of a range that consists of whole pages of it.
//!
//! The engine's own pages are of 4 KiB, and the system's may be larger: 16 KiB on some ARM boards, 64 KiB on some
//! servers. Advice about memory works on whole pages of the system, and is rounded up to them. It stands here
//! because the crates around the engine map memory too.

use std::ops::Range;

use crate::page::{UNIT_MAX_BYTES, Unit};

/// Bytes of a page of this system, a power of two.
#[must_use]
pub fn size_bytes() -> usize {
    rustix::param::page_size()
}

/// The unit of the system's page, as swap wants it: the kernel swaps its own pages, one at a time. The largest
/// unit where pages are larger still.
///
/// ```
/// assert!(uzram::system_page::unit().bytes() >= 4096);
/// ```
#[must_use]
pub fn unit() -> Unit {
    unit_of(size_bytes())
}

fn unit_of(page_bytes: usize) -> Unit {
    Unit::new(page_bytes.min(UNIT_MAX_BYTES) as u64).unwrap_or(Unit::DEFAULT)
}

/// The part of `range` that consists of whole pages of `page_bytes`, a power of two. Empty, at the range's end,
/// where there is none.
///
/// ```
/// use uzram::system_page::whole;
/// assert_eq!(whole(&(4096..40960), 16384), 16384..32768);
/// assert_eq!(whole(&(4096..16384), 16384), 16384..16384);
/// ```
#[must_use]
pub fn whole(range: &Range<usize>, page_bytes: usize) -> Range<usize> {
    let end = range.end / page_bytes * page_bytes;
    match range.start.checked_next_multiple_of(page_bytes) {
        Some(start) if start < end => start..end,
        _ => range.end..range.end,
    }
}

/// `range` from the start of the page of `page_bytes`, a power of two, in which it begins: advice must begin with a
/// page, and is rounded up at its end.
///
/// ```
/// use uzram::system_page::around;
/// assert_eq!(around(&(20480..24576), 16384), 16384..24576);
/// ```
#[must_use]
pub fn around(range: &Range<usize>, page_bytes: usize) -> Range<usize> {
    range.start / page_bytes * page_bytes..range.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_only_within_the_range() {
        for (range, expected) in [
            (0..16384, 0..16384),
            (0..16383, 16383..16383),
            (1..32768, 16384..32768),
            (1..32767, 32767..32767),
            (5..5, 5..5),
            (usize::MAX..usize::MAX, usize::MAX..usize::MAX),
        ] {
            assert_eq!(whole(&range, 16384), expected, "{range:?}");
        }
    }

    #[test]
    fn a_unit_is_a_page_up_to_the_largest() {
        assert_eq!(unit_of(4096), Unit::DEFAULT);
        assert_eq!(unit_of(16384).bytes(), 16384);
        assert_eq!(unit_of(256 << 10).bytes(), 65536);
    }
}
