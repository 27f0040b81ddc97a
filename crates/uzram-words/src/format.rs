//! The parts of a compressed page and their sizes; `docs/words-format.md` specifies them.

/// A unit is coded in pages of this size.
pub const PAGE_BYTES: usize = 4096;
pub(crate) const PAGE_WORDS: usize = PAGE_BYTES / 8;
/// Blocks of 64 words, whose classes fit one word of a plane.
pub(crate) const BLOCKS: usize = PAGE_WORDS / 64;
/// Words that are coded side by side.
pub(crate) const LANES: usize = 8;
/// The bytes of one plane.
pub(crate) const PLANE_BYTES: usize = PAGE_WORDS / 8;
/// The method byte and both planes.
pub(crate) const HEAD_BYTES: usize = 1 + 2 * PLANE_BYTES;
/// The farthest word that a reference names.
pub(crate) const DISTANCE_MAX: u64 = 255;
/// The farthest distance that takes a nibble.
pub(crate) const NEAR_MAX: u8 = 16;

/// The method byte of a page that is kept as it is.
pub(crate) const RAW: u8 = 0;
/// The method byte's bit for coded words that are kept as they are.
pub(crate) const PLAIN: u8 = 0x80;

/// Room for one page while it is made: the longest that may come out before it is found to be longer
/// than the page itself, and what the last wide store may write beyond. In bytes.
pub(crate) const ROOM_BYTES: usize = 82 * 64;
/// The longest page that comes out: raw, behind its method byte.
pub(crate) const PAGE_MAX_BYTES: usize = 1 + PAGE_BYTES;

// A coded word takes most: its bytes, a selector, its mask and a bit that says whether that has a high half.
const _: () = assert!(ROOM_BYTES >= HEAD_BYTES + PAGE_WORDS * 77 / 8 + 32 + 64);

/// Bits of a selector at `level`, which is also its method byte.
pub(crate) const fn selector_bits(level: u8) -> usize {
    match level {
        FAST => 3,
        _ => 4,
    }
}

/// The method byte of level 1.
pub(crate) const FAST: u8 = 1;
/// The method byte of level 2.
pub(crate) const DENSE: u8 = 2;

/// The planes' words.
pub(crate) type Plane = [u64; BLOCKS];

pub(crate) fn ones(plane: &Plane) -> usize {
    plane.iter().map(|bits| bits.count_ones() as usize).sum()
}
