//! The greedy compressor: a table with the last place of each group of four bytes, longer strides
//! where nothing repeats, and no search for better matches.

use crate::error::Result;
use crate::memory;

use super::format::{END, FAR_MIN, MIDDLE_MAX, NEAR_MAX, RUN_MAX, RUN_MIN, VERSIONED};

/// The instructions that a stream may use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    Original,
    Rle,
}

/// Shortest match that is searched for, in bytes.
const MATCH_MIN: usize = 4;

/// Farthest match, in bytes: one more would be the mark of a run of zeroes.
const FAR_MAX: usize = 0xbffe;

/// Bytes at the start that are always literals: a first instruction of any other kind would be
/// ambiguous.
const FIRST_LITERALS: usize = 4;

/// Bytes at the end in which no match starts, so that eight bytes can be read anywhere before.
const TAIL: usize = 8;

/// Shortest run of zeroes that gets an instruction. At four bytes, a shorter run is better left to
/// matches. At most [`TAIL`].
const RUN_WORTH: usize = 8;

/// After this many literals strides get longer by one byte.
const PATIENCE: usize = 32;

/// Places for units of 4 and 8 KiB. The compressor clears its table for each page, which takes time, so
/// small units get a small table.
pub(super) const SMALL: usize = 1 << 12;

/// Places for larger units.
pub(super) const LARGE: usize = 1 << 14;

/// Literals are copied in pieces of this size where there is room, in bytes.
const PIECE: usize = 16;

/// The last place of each of `PLACES` groups of four bytes in the page.
pub(super) struct Finder<const PLACES: usize> {
    places: Box<[u16]>,
}

impl<const PLACES: usize> Finder<PLACES> {
    pub(super) fn new() -> Result<Finder<PLACES>> {
        Ok(Finder {
            places: memory::boxed_slice(PLACES, 0)?,
        })
    }

    /// Compresses at most [`longest`] bytes. `None` unless `destination` has room for the worst case.
    pub(super) fn compress<const RLE: bool>(
        &mut self,
        source: &[u8],
        destination: &mut [u8],
    ) -> Option<usize> {
        if source.len() > longest::<PLACES>() || destination.len() < worst_case(source.len()) {
            return None;
        }
        let places: &mut [u16; PLACES] = (&mut *self.places).try_into().ok()?;
        places.fill(0);
        let mut writer = Writer::new(destination);
        if RLE {
            writer.bytes([VERSIONED, 1]);
        }
        let anchor = body::<RLE, PLACES>(places, source, &mut writer);
        writer.literals(source, anchor, source.len());
        writer.bytes(END);
        Some(writer.at)
    }
}

/// Longest source, in bytes. With the small table, every distance fits an instruction.
const fn longest<const PLACES: usize>() -> usize {
    match PLACES {
        ..=SMALL => 8192,
        _ => 1 << 16,
    }
}

/// A run of literals costs one byte, and another for each 255. No other instruction is longer than
/// its bytes. The value is generous, because copies in pieces need room.
fn worst_case(length: usize) -> usize {
    length + length / 16 + 64
}

/// Writes everything but the last literals. Returns the place where those start.
fn body<const RLE: bool, const PLACES: usize>(
    places: &mut [u16; PLACES],
    source: &[u8],
    writer: &mut Writer<'_>,
) -> usize {
    let Some(end) = source.len().checked_sub(TAIL) else {
        return 0;
    };
    let mut anchor = 0_usize;
    // A stride is the distance from here over PATIENCE. Starting before the anchor saves an addition.
    let mut eager = anchor.wrapping_sub(PATIENCE);
    let mut at = FIRST_LITERALS;
    while at < end {
        let next = load8(source, at);
        if RLE && next == 0 {
            let run = RUN_WORTH + zeroes(&source[at + RUN_WORTH..]);
            writer.literals(source, anchor, at);
            writer.run_of_zeroes(run);
            at += run;
            anchor = at;
            eager = anchor.wrapping_sub(PATIENCE);
            continue;
        }
        let word = next as u32;
        let place = &mut places[hash::<PLACES>(word)];
        let candidate = usize::from(*place);
        *place = at as u16;
        let distance = at.wrapping_sub(candidate);
        // No candidate is ahead. The comparison tells the compiler that each is within the page.
        if candidate >= at || load4(source, candidate) != word || is_too_far::<PLACES>(distance) {
            at += at.wrapping_sub(eager) / PATIENCE;
            continue;
        }
        let mut length = MATCH_MIN + common(source, candidate + MATCH_MIN, at + MATCH_MIN);
        if RLE {
            length = without_ambiguity(distance, length);
        }
        writer.literals(source, anchor, at);
        writer.copy(distance, length);
        at += length;
        anchor = at;
        eager = anchor.wrapping_sub(PATIENCE);
    }
    anchor
}

/// Whether the distance is beyond every instruction. With the small table none is.
#[inline(always)]
fn is_too_far<const PLACES: usize>(distance: usize) -> bool {
    PLACES > SMALL && distance > FAR_MAX
}

#[inline(always)]
fn hash<const PLACES: usize>(word: u32) -> usize {
    // A multiplier near 2^32 over the golden ratio spreads low bits into the high ones.
    (word.wrapping_mul(0x9e37_79b1) >> (32 - PLACES.ilog2())) as usize
}

/// A far copy of these lengths could be read as a run of zeroes.
fn without_ambiguity(distance: usize, length: usize) -> usize {
    if distance & 0x803f == 0x803f && (261..=264).contains(&length) {
        260
    } else {
        length
    }
}

#[inline(always)]
fn load4(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

#[inline(always)]
fn load8(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The number of equal bytes from `early` and from `late` on.
#[inline(always)]
fn common(source: &[u8], early: usize, late: usize) -> usize {
    let late = &source[late..];
    let early = &source[early..][..late.len()];
    let words = early.chunks_exact(8).zip(late.chunks_exact(8));
    let mut same = 0;
    for (a, b) in words {
        let difference = load8(a, 0) ^ load8(b, 0);
        if difference != 0 {
            return same + difference.trailing_zeros() as usize / 8;
        }
        same += 8;
    }
    let rest = early[same..].iter().zip(&late[same..]);
    same + rest.take_while(|(a, b)| a == b).count()
}

/// The number of zeroes at the start of `bytes`.
fn zeroes(bytes: &[u8]) -> usize {
    let mut same = 0;
    for word in bytes.chunks_exact(8) {
        let word = load8(word, 0);
        if word != 0 {
            return same + word.trailing_zeros() as usize / 8;
        }
        same += 8;
    }
    same + bytes[same..].iter().take_while(|byte| **byte == 0).count()
}

/// Instructions as they are written.
struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
    /// The place in the last instruction of the two bits for the number of literals behind it;
    /// `None` if there was no instruction yet.
    state: Option<usize>,
}

impl Writer<'_> {
    fn new(bytes: &mut [u8]) -> Writer<'_> {
        Writer {
            bytes,
            at: 0,
            state: None,
        }
    }

    #[inline(always)]
    fn bytes<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
    }

    /// The part of a length beyond the field of its instruction; at least 1.
    #[inline(always)]
    fn length(&mut self, over: usize) {
        if over <= 255 {
            self.bytes([over as u8]);
        } else {
            self.at = long_length(self.bytes, self.at, over);
        }
    }

    /// Literals from `start` to `end` of `source`, none to all.
    #[inline(always)]
    fn literals(&mut self, source: &[u8], start: usize, end: usize) {
        let count = end - start;
        match (self.state, count) {
            // Zero literals are no case of their own: the branch could not be predicted.
            (Some(state), 0..=3) => {
                self.bytes[state] |= count as u8;
                if let Some(piece) = source[start..].first_chunk::<4>() {
                    self.bytes[self.at..self.at + 4].copy_from_slice(piece);
                    self.at += count;
                    return;
                }
            }
            (None, 0) => return,
            (None, 1..=238) => self.bytes([17 + count as u8]),
            (_, ..=18) => self.bytes([count as u8 - 3]),
            _ => {
                self.bytes([0]);
                self.length(count - 18);
            }
        }
        match source[start..].first_chunk::<PIECE>() {
            Some(piece) if count <= PIECE => {
                self.bytes[self.at..self.at + PIECE].copy_from_slice(piece);
            }
            _ => self.bytes[self.at..self.at + count].copy_from_slice(&source[start..end]),
        }
        self.at += count;
    }

    /// A copy of `length` bytes, 3 or more, from `distance` bytes before.
    #[inline(always)]
    fn copy(&mut self, distance: usize, length: usize) {
        if length <= 8 && distance <= NEAR_MAX {
            let distance = distance - 1;
            let first = (length - 1) << 5 | (distance & 7) << 2;
            self.state = Some(self.at);
            self.bytes([first as u8, (distance >> 3) as u8]);
        } else if distance <= MIDDLE_MAX {
            self.long_copy(32, 33, distance - 1, length);
        } else {
            let distance = distance - (FAR_MIN - 1);
            let half = (distance >> 14) << 3;
            self.long_copy(16 | half as u8, 9, distance & 0x3fff, length);
        }
    }

    /// A copy instruction with room for lengths up to `fits`.
    #[inline(always)]
    fn long_copy(&mut self, code: u8, fits: usize, distance: usize, length: usize) {
        if length <= fits {
            self.bytes([code | (length - 2) as u8]);
        } else {
            self.bytes([code]);
            self.length(length - fits);
        }
        self.state = Some(self.at);
        self.bytes(((distance << 2) as u16).to_le_bytes());
    }

    fn run_of_zeroes(&mut self, mut length: usize) {
        while length > 0 {
            // What is left must be worth an instruction or nothing.
            let run = match length {
                ..=RUN_MAX => length,
                _ => RUN_MAX.min(length - RUN_WORTH),
            };
            let over = run - RUN_MIN;
            self.state = Some(self.at + 1);
            self.bytes([0x18 | (over & 7) as u8, 0xfc, 0xff, (over >> 3) as u8]);
            length -= run;
        }
    }
}

/// Writes a length above 255 at `at` and returns its end.
#[cold]
fn long_length(bytes: &mut [u8], at: usize, over: usize) -> usize {
    let zeroes = (over - 1) / 255;
    bytes[at..at + zeroes].fill(0);
    bytes[at + zeroes] = (over - 255 * zeroes) as u8;
    at + zeroes + 1
}
