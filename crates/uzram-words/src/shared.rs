//! The versions for more than one kind of CPU share this: tables of shuffles, bits of bytes, and reads beyond the end
//! of a source.

use crate::encode::Room;
use crate::format::LANES;

/// For each mask of eight bytes, where those that it names come from when they go together. A shuffle
/// makes the others zero.
pub(crate) static TOGETHER: [[u8; 8]; 256] = moves(true);
/// The same when they come apart.
pub(crate) static APART: [[u8; 8]; 256] = moves(false);

const fn moves(is_together: bool) -> [[u8; 8]; 256] {
    let mut table = [[0x80; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut byte, mut rank) = (0, 0);
        while byte < 8 {
            if mask >> byte & 1 == 1 {
                let (to, from) = if is_together {
                    (rank, byte)
                } else {
                    (byte, rank)
                };
                table[mask][to] = from as u8;
                rank += 1;
            }
            byte += 1;
        }
        mask += 1;
    }
    table
}

/// For each bit of a mask, how many up to it are set.
pub(crate) static RANKS: [[u8; 8]; 256] = {
    let mut ranks = [[0; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut bit, mut rank) = (0, 0);
        while bit < 8 {
            rank += (mask >> bit & 1) as u8;
            ranks[mask][bit] = rank;
            bit += 1;
        }
        mask += 1;
    }
    ranks
};

/// The lowest `count` bits, or all.
#[inline(always)]
pub(crate) fn low_bits(count: usize) -> u64 {
    match count {
        0..64 => !(!0 << count),
        _ => !0,
    }
}

/// The eight bytes from `at` on, zeroes behind the end.
#[inline(always)]
pub(crate) fn eight(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(from(bytes, at))
}

/// As many bytes from `at` on, zeroes behind the end.
#[inline(always)]
pub(crate) fn from<const BYTES: usize>(bytes: &[u8], at: usize) -> [u8; BYTES] {
    let rest = bytes.get(at..).unwrap_or(&[]);
    match rest.first_chunk() {
        Some(bytes) => *bytes,
        None => {
            let mut bytes = [0; BYTES];
            bytes[..rest.len()].copy_from_slice(rest);
            bytes
        }
    }
}

#[inline(always)]
pub(crate) fn put_bits(out: &mut Room, at: usize, bits: u64) {
    out[at..at + 8].copy_from_slice(&bits.to_le_bytes());
}

/// Bytes that are read in windows, also beyond the end, where they are zero.
pub(crate) struct Ahead<'a> {
    bytes: &'a [u8],
    pub(crate) at: usize,
    /// The last bytes, from `tail_at` on, once a window reached beyond them.
    tail: [u8; 2 * WINDOW_BYTES],
    tail_at: Option<usize>,
}

/// The bytes of a group at most.
pub(crate) const WINDOW_BYTES: usize = LANES * 8;

impl<'a> Ahead<'a> {
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8]) -> Ahead<'a> {
        Ahead {
            bytes,
            at: 0,
            tail: [0; 2 * WINDOW_BYTES],
            tail_at: None,
        }
    }

    #[inline(always)]
    pub(crate) fn window(&mut self) -> &[u8; WINDOW_BYTES] {
        let rest = self.bytes.get(self.at..).unwrap_or(&[]);
        if let Some(window) = rest.first_chunk() {
            return window;
        }
        let start = *self.tail_at.get_or_insert_with(|| {
            self.tail[..rest.len()].copy_from_slice(rest);
            self.at
        });
        let at = (self.at - start).min(WINDOW_BYTES);
        self.tail[at..].first_chunk().expect("two windows")
    }
}

/// The places of the bits that are set, from the lowest on.
#[cfg(target_arch = "aarch64")]
pub(crate) struct Ones(pub(crate) u64);

#[cfg(target_arch = "aarch64")]
impl Iterator for Ones {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let place = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(place)
    }
}
