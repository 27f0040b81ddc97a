//! The decoder. It checks every byte read and written. The result is `None` unless the stream
//! fills the page exactly.

use super::format::{END, FAR_MIN, RUN_MIN, VERSIONED};

/// Copies are made in pieces of this size where there is room, in bytes.
const PIECE: usize = 16;

/// Longest copy that is made in pieces, in bytes.
const PIECES_MAX: usize = 64;

/// A short instruction needs at most this much of the source and of the page, in bytes.
const SHORT_SOURCE: usize = 24;
const SHORT_PAGE: usize = 64;

/// Shortest stream that can state its version, in bytes.
const VERSIONED_MIN: usize = 5;

/// Highest version of the format.
const VERSION_MAX: u8 = 1;

pub(super) fn decompress(source: &[u8], page: &mut [u8]) -> Option<()> {
    let mut decoder = Decoder {
        source,
        page,
        at: 0,
        has_runs: false,
        state: 0,
    };
    decoder.start()?;
    loop {
        decoder.short_instructions()?;
        if decoder.instruction()? {
            break;
        }
    }
    (decoder.source.is_empty() && decoder.at == decoder.page.len()).then_some(())
}

struct Decoder<'a> {
    /// The compressed bytes that are not decoded yet.
    source: &'a [u8],
    page: &'a mut [u8],
    at: usize,
    /// Version 1.
    has_runs: bool,
    /// Literals that the last instruction copied: 0 to 3, or 4 for more.
    state: usize,
}

impl Decoder<'_> {
    fn start(&mut self) -> Option<()> {
        if self.source.len() >= VERSIONED_MIN && self.source[0] == VERSIONED {
            let version = self.source[1];
            if version > VERSION_MAX {
                return None;
            }
            self.has_runs = version > 0;
            self.source = &self.source[2..];
        }
        let (&first, rest) = self.source.split_first()?;
        if let Some(count @ 1..) = usize::from(first).checked_sub(17) {
            self.source = rest;
            self.literals(count)?;
            self.state = count.min(4);
        }
        Some(())
    }

    /// Carries out short literals and short copies, the most frequent instructions, until another one
    /// comes or an end is near. One check per instruction covers all of its bytes.
    #[inline(always)]
    fn short_instructions(&mut self) -> Option<()> {
        loop {
            let (done, room) = self.page.split_at_mut_checked(self.at)?;
            let (Some(head), Some(room)) = (
                self.source.first_chunk::<SHORT_SOURCE>(),
                room.first_chunk_mut::<SHORT_PAGE>(),
            ) else {
                return Some(());
            };
            let code = usize::from(head[0]);
            let (distance, length, literals, used) = match code {
                64.. => {
                    let distance = (usize::from(head[1]) << 3) + (code >> 2 & 7) + 1;
                    (distance, (code >> 5) + 1, code & 3, 2)
                }
                33..=63 => {
                    let word = usize::from(u16::from_le_bytes([head[1], head[2]]));
                    ((word >> 2) + 1, 2 + (code & 31), word & 3, 3)
                }
                1..=13 if self.state == 0 => {
                    let count = 3 + (code & 15);
                    room[..PIECE].copy_from_slice(&head[1..=PIECE]);
                    self.source = &self.source[1 + count..];
                    self.at += count;
                    self.state = 4;
                    continue;
                }
                _ => return Some(()),
            };
            let from = done.len().checked_sub(distance)?;
            let before = &done[from..];
            let Some(piece) = before.first_chunk::<PIECE>() else {
                self.source = &self.source[used..];
                self.copy(distance, length)?;
                self.behind(literals)?;
                continue;
            };
            room[..PIECE].copy_from_slice(piece);
            if length > PIECE {
                self.source = &self.source[used..];
                let at = self.at;
                self.at += length;
                self.copy_pieces::<PIECE>(from + PIECE, at + PIECE, at + length)?;
                self.behind(literals)?;
                continue;
            }
            let next = head[used..].first_chunk::<4>()?;
            room[length..length + 4].copy_from_slice(next);
            self.source = &self.source[used + literals..];
            self.at += length + literals;
            self.state = literals;
        }
    }

    /// Carries out one instruction and the literals behind it; true if it ends the stream.
    #[inline(always)]
    fn instruction(&mut self) -> Option<bool> {
        let code = self.byte()?;
        let (distance, length, literals) = match code {
            64.. => {
                let high = self.byte()?;
                ((high << 3) + (code >> 2 & 7) + 1, (code >> 5) + 1, code & 3)
            }
            32.. => {
                let length = 2 + self.length(code & 31, 31)?;
                let word = self.word()?;
                ((word >> 2) + 1, length, word & 3)
            }
            16.. => {
                if let Some(literals) = self.run_of_zeroes(code)? {
                    return self.behind(literals);
                }
                if code == usize::from(END[0]) && self.source.starts_with(&END[1..]) {
                    self.source = &self.source[2..];
                    return Some(true);
                }
                let length = 2 + self.length(code & 7, 7)?;
                let word = self.word()?;
                let distance = FAR_MIN - 1 + ((code & 8) << 11) + (word >> 2);
                if distance < FAR_MIN {
                    return None;
                }
                (distance, length, word & 3)
            }
            _ => match self.state {
                0 => {
                    let count = 3 + self.length(code, 15)?;
                    self.literals(count)?;
                    self.state = 4;
                    return Some(false);
                }
                4 => ((self.byte()? << 2) + (code >> 2) + 2049, 3, code & 3),
                _ => ((self.byte()? << 2) + (code >> 2) + 1, 2, code & 3),
            },
        };
        self.copy(distance, length)?;
        self.behind(literals)
    }

    /// The literals behind an instruction, 0 to 3. Zero is no case of its own: the branch could not be
    /// predicted.
    #[inline(always)]
    fn behind(&mut self, literals: usize) -> Option<bool> {
        self.state = literals;
        let room = self.page.get_mut(self.at..)?.first_chunk_mut::<4>();
        match (self.source.first_chunk::<4>(), room) {
            (Some(piece), Some(room)) => {
                *room = *piece;
                self.source = &self.source[literals & 3..];
                self.at += literals;
            }
            _ => self.literals(literals)?,
        }
        Some(false)
    }

    #[inline(always)]
    fn byte(&mut self) -> Option<usize> {
        let (&byte, rest) = self.source.split_first()?;
        self.source = rest;
        Some(usize::from(byte))
    }

    #[inline(always)]
    fn word(&mut self) -> Option<usize> {
        let (&bytes, rest) = self.source.split_first_chunk()?;
        self.source = rest;
        Some(usize::from(u16::from_le_bytes(bytes)))
    }

    /// A length whose field is `field`. A field of 0 means that the length is over `most` and goes
    /// on.
    #[inline(always)]
    fn length(&mut self, field: usize, most: usize) -> Option<usize> {
        match field {
            0 => {
                let (over, rest) = long_length(self.source)?;
                self.source = rest;
                Some(most + over)
            }
            _ => Some(field),
        }
    }

    #[inline(always)]
    fn literals(&mut self, count: usize) -> Option<()> {
        let room = self.page.get_mut(self.at..)?;
        let pieces = count.div_ceil(PIECE) * PIECE;
        match (self.source.get(..pieces), room.get_mut(..pieces)) {
            (Some(source), Some(room)) if count <= PIECES_MAX => {
                let (source, _) = source.as_chunks::<PIECE>();
                let (room, _) = room.as_chunks_mut::<PIECE>();
                for (source, room) in source.iter().zip(room) {
                    *room = *source;
                }
            }
            _ => room
                .get_mut(..count)?
                .copy_from_slice(self.source.get(..count)?),
        }
        self.source = self.source.get(count..)?;
        self.at += count;
        Some(())
    }

    #[inline(always)]
    fn copy(&mut self, distance: usize, length: usize) -> Option<()> {
        let (at, end) = (self.at, self.at + length);
        let from = at.checked_sub(distance)?;
        self.at = end;
        match distance {
            _ if end + PIECE > self.page.len() => copy_exactly(self.page, from, at, end),
            PIECE.. => self.copy_pieces::<PIECE>(from, at, end),
            8.. => self.copy_pieces::<8>(from, at, end),
            _ => self.copy_repeating(from, at, end),
        }
    }

    /// Copies from `at` to `end`, and less than `N` bytes more. The distance is at least `N`.
    #[inline(always)]
    fn copy_pieces<const N: usize>(
        &mut self,
        from: usize,
        mut at: usize,
        end: usize,
    ) -> Option<()> {
        let distance = at - from;
        loop {
            let piece = *self.page.get(at - distance..)?.first_chunk::<N>()?;
            *self.page.get_mut(at..)?.first_chunk_mut::<N>()? = piece;
            at += N;
            if at >= end {
                return Some(());
            }
        }
    }

    /// Repeats the fewer than eight bytes before `at`.
    #[inline(always)]
    fn copy_repeating(&mut self, from: usize, mut at: usize, end: usize) -> Option<()> {
        let distance = at - from;
        let bytes = u64::from_le_bytes(*self.page.get(from..)?.first_chunk()?);
        let mut pattern = bytes & ((1 << (8 * distance)) - 1);
        let mut filled = distance;
        while filled < 8 {
            pattern |= pattern << (8 * filled);
            filled *= 2;
        }
        let step = 8 / distance * distance;
        while at < end {
            *self.page.get_mut(at..)?.first_chunk_mut()? = pattern.to_le_bytes();
            at += step;
        }
        Some(())
    }

    /// The number of literals behind it, if `code` starts a run of zeroes.
    #[inline(always)]
    fn run_of_zeroes(&mut self, code: usize) -> Option<Option<usize>> {
        let Some((&[low, high, more], rest)) = self.source.split_first_chunk() else {
            return Some(None);
        };
        if !self.has_runs || code & 8 == 0 || low & 0xfc != 0xfc || high != 0xff {
            return Some(None);
        }
        let length = (usize::from(more) << 3 | code & 7) + RUN_MIN;
        self.page.get_mut(self.at..self.at + length)?.fill(0);
        self.at += length;
        self.source = rest;
        Some(Some(usize::from(low & 3)))
    }
}

/// The part of a length beyond the field of its instruction, and the source behind it.
fn long_length(source: &[u8]) -> Option<(usize, &[u8])> {
    let zeroes = source.iter().take_while(|byte| **byte == 0).count();
    let (&last, rest) = source.get(zeroes..)?.split_first()?;
    Some((255 * zeroes + usize::from(last), rest))
}

/// A copy near the page's end. It may overlap itself; its source then repeats.
#[cold]
fn copy_exactly(page: &mut [u8], from: usize, mut at: usize, end: usize) -> Option<()> {
    if end > page.len() {
        return None;
    }
    while at < end {
        let piece = (at - from).min(end - at);
        page.copy_within(from..from + piece, at);
        at += piece;
    }
    Some(())
}
