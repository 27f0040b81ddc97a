//! The bits of a slot word, and what can be told from a word without its lock.
//!
//! ```text
//! bits 0-1    the lock's
//! bits 2-4    kind: empty, same-filled, raw, packed, written-back, lost (shared is reserved)
//! bits 5-7    flags: idle, mark, incompressible
//! bits 8-9    the priority of the codec that packed the object: 0 for the store's own
//! bits 10-25  size in bytes, less one
//! bits 26-63  payload: the object's granule in the arena, its block in the backing file, or the fill word
//! ```
//!
//! Only words of objects have flags, in memory or in the backing file.

use std::ops::Range;

use super::lock::LOCK_BITS;
use crate::config::PRIORITY_MAX;
use crate::page::PageState;
use crate::pool::{GRANULE_BITS, GRANULE_BYTES};

pub(super) const KIND_SHIFT: u32 = 2;
const KIND_BITS: u32 = 3;
const FLAGS_SHIFT: u32 = KIND_SHIFT + KIND_BITS;
const PRIORITY_SHIFT: u32 = FLAGS_SHIFT + 3;
const PRIORITY_BITS: u32 = 2;
pub(super) const SIZE_SHIFT: u32 = PRIORITY_SHIFT + PRIORITY_BITS;
const SIZE_BITS: u32 = 16;
pub(super) const PAYLOAD_SHIFT: u32 = SIZE_SHIFT + SIZE_BITS;
const PAYLOAD_BITS: u32 = 38;

const _: () = {
    assert!(LOCK_BITS == (1 << KIND_SHIFT) - 1);
    assert!(PAYLOAD_SHIFT + PAYLOAD_BITS == u64::BITS);
    assert!(PAYLOAD_BITS >= GRANULE_BITS && PAYLOAD_BITS >= u32::BITS);
    assert!(1 << SIZE_BITS == crate::page::UNIT_MAX_BYTES);
    assert!(PRIORITY_MAX == (1 << PRIORITY_BITS) - 1);
};

pub(super) const KIND_EMPTY: u64 = 0;
pub(super) const KIND_SAME: u64 = 1;
pub(super) const KIND_RAW: u64 = 2;
pub(super) const KIND_PACKED: u64 = 3;
pub(super) const KIND_BACK: u64 = 5;
pub(super) const KIND_LOST: u64 = 6;

const IDLE: u64 = 1 << FLAGS_SHIFT;
const MARK: u64 = 1 << (FLAGS_SHIFT + 1);
const INCOMPRESSIBLE: u64 = 1 << (FLAGS_SHIFT + 2);
const PRIORITY: u64 = ((1 << PRIORITY_BITS) - 1) << PRIORITY_SHIFT;
const FLAGS: u64 = IDLE | MARK | INCOMPRESSIBLE | PRIORITY;

/// The kind of a word.
#[inline]
pub(super) fn kind(word: u64) -> u64 {
    word >> KIND_SHIFT & ((1 << KIND_BITS) - 1)
}

/// The size in a word, in bytes.
#[inline]
pub(super) fn size_bytes(word: u64) -> u32 {
    u32::from((word >> SIZE_SHIFT) as u16) + 1
}

/// Whether a store could have made this word: of a kind that there is, without bits that its kind has not, and its object no
/// larger than a page.
#[cfg(not(uzram_shuttle))]
pub(super) fn is_sound(word: u64, unit_bytes: usize) -> bool {
    let rest = word & !(LOCK_BITS | ((1 << KIND_BITS) - 1) << KIND_SHIFT);
    let without_flags = rest & !FLAGS;
    match kind(word) {
        KIND_EMPTY | KIND_LOST => rest == 0,
        KIND_SAME => rest >> PAYLOAD_SHIFT <= u32::MAX.into() && rest << (64 - PAYLOAD_SHIFT) == 0,
        KIND_RAW => size_bytes(without_flags) as usize == unit_bytes,
        KIND_PACKED => (size_bytes(without_flags) as usize) < unit_bytes,
        KIND_BACK => rest & FLAGS & !PRIORITY == 0 && size_bytes(word) as usize <= unit_bytes,
        _ => false,
    }
}

/// A word after a read: its page is no longer idle.
#[inline]
pub(super) fn without_idle(word: u64) -> u64 {
    word & !IDLE
}

/// A word without the mark of a pass.
#[cfg(not(uzram_shuttle))]
pub(super) fn without_mark(word: u64) -> u64 {
    word & !MARK
}

/// Facts in a word about an object, beside its kind, size and place. A publish of other content clears them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u64);

impl Flags {
    pub(crate) const NONE: Flags = Flags(0);

    /// Those of an object that the codec of this priority packed.
    pub(crate) fn packed_by(priority: u8) -> Flags {
        debug_assert!(priority <= PRIORITY_MAX);
        Flags(u64::from(priority) << PRIORITY_SHIFT & PRIORITY)
    }

    #[inline]
    pub(super) fn of(word: u64) -> Flags {
        Flags(word & FLAGS)
    }

    /// The word with these flags in place of its own.
    #[inline]
    pub(super) fn put_into(self, word: u64) -> u64 {
        word & !FLAGS | self.0
    }

    /// The priority of the codec that packed the object.
    #[inline]
    pub(crate) fn priority(self) -> u8 {
        ((self.0 & PRIORITY) >> PRIORITY_SHIFT) as u8
    }

    /// Nobody has read or written the page since it was marked so.
    pub(crate) fn is_idle(self) -> bool {
        self.0 & IDLE != 0
    }

    /// The content is being written back or recompressed, and is still what it was then.
    pub(crate) fn is_marked(self) -> bool {
        self.0 & MARK != 0
    }

    /// No codec makes the object smaller.
    pub(crate) fn is_incompressible(self) -> bool {
        self.0 & INCOMPRESSIBLE != 0
    }

    pub(crate) fn with_idle(self, on: bool) -> Flags {
        self.with(IDLE, on)
    }

    pub(crate) fn with_mark(self, on: bool) -> Flags {
        self.with(MARK, on)
    }

    pub(crate) fn with_incompressible(self) -> Flags {
        self.with(INCOMPRESSIBLE, true)
    }

    fn with(self, bit: u64, on: bool) -> Flags {
        Flags(self.0 & !bit | if on { bit } else { 0 })
    }

    /// Whether any of those is set that are counted.
    #[inline]
    pub(crate) fn are_counted(self) -> bool {
        self.0 & (INCOMPRESSIBLE | PRIORITY) != 0
    }
}

/// A word that was seen without its lock. It was true a moment ago.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen(pub(super) u64);

impl Seen {
    pub(crate) fn state(self) -> PageState {
        match kind(self.0) {
            KIND_SAME => PageState::Same((self.0 >> PAYLOAD_SHIFT) as u32),
            KIND_RAW => PageState::Raw,
            KIND_PACKED => PageState::Compressed {
                size_bytes: size_bytes(self.0),
            },
            KIND_BACK => PageState::WrittenBack,
            KIND_LOST => PageState::Lost,
            _ => PageState::Hole,
        }
    }

    /// Whether the page has an object in memory.
    #[inline]
    pub(crate) fn has_object(self) -> bool {
        matches!(kind(self.0), KIND_RAW | KIND_PACKED)
    }

    /// Where that object lies in the arena, in bytes.
    #[inline]
    pub(crate) fn place(self) -> Option<Range<usize>> {
        let start = (self.0 >> PAYLOAD_SHIFT) as usize * GRANULE_BYTES;
        self.has_object()
            .then_some(start..start + self.size_bytes())
    }

    /// The number of its block, if the page is in the backing file.
    #[cfg(not(uzram_shuttle))]
    pub(crate) fn block(self) -> Option<u64> {
        (kind(self.0) == KIND_BACK).then_some(self.0 >> PAYLOAD_SHIFT)
    }

    /// The size of an object, in memory or in the backing file.
    pub(crate) fn size_bytes(self) -> usize {
        size_bytes(self.0) as usize
    }

    pub(crate) fn flags(self) -> Flags {
        Flags::of(self.0)
    }
}
