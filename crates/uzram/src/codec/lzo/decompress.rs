//! The decoder: every byte read and written is checked, and `None` is the answer to anything that
//! does not fill the page exactly.

use super::{END, FAR_MIN, RUN_MIN, VERSIONED};

/// Copies are made in pieces of this size where there is room, in bytes.
const PIECE: usize = 16;

/// Shortest stream that can say its version, in bytes.
const VERSIONED_MIN: usize = 5;

/// Highest version of the format.
const VERSION_MAX: u8 = 1;

pub(super) fn decompress(source: &[u8], page: &mut [u8]) -> Option<()> {
    let mut decoder = Decoder {
        source,
        from: 0,
        page,
        at: 0,
        has_runs: false,
        state: 0,
    };
    decoder.start()?;
    while !decoder.instruction()? {}
    (decoder.from == source.len() && decoder.at == decoder.page.len()).then_some(())
}

struct Decoder<'a> {
    source: &'a [u8],
    from: usize,
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
            self.from = 2;
        }
        let first = usize::from(*self.source.get(self.from)?);
        if first > 17 {
            self.from += 1;
            self.literals(first - 17)?;
            self.state = (first - 17).min(4);
        }
        Some(())
    }

    /// Carries out one instruction and the literals behind it; true if it ends the stream.
    #[inline(always)]
    fn instruction(&mut self) -> Option<bool> {
        let code = usize::from(self.byte()?);
        let (distance, length, literals) = match code {
            64.. => {
                let high = usize::from(self.byte()?);
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
                let rest = self.source.get(self.from..)?;
                if code == usize::from(END[0]) && rest.starts_with(&END[1..]) {
                    self.from += 2;
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
                4 => (
                    (usize::from(self.byte()?) << 2) + (code >> 2) + 2049,
                    3,
                    code & 3,
                ),
                _ => (
                    (usize::from(self.byte()?) << 2) + (code >> 2) + 1,
                    2,
                    code & 3,
                ),
            },
        };
        self.copy(distance, length)?;
        self.behind(literals)
    }

    /// The literals behind an instruction, 0 to 3.
    #[inline(always)]
    fn behind(&mut self, literals: usize) -> Option<bool> {
        self.state = literals;
        if literals > 0 {
            self.literals(literals)?;
        }
        Some(false)
    }

    #[inline(always)]
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.source.get(self.from)?;
        self.from += 1;
        Some(byte)
    }

    #[inline(always)]
    fn word(&mut self) -> Option<usize> {
        let bytes = self.source.get(self.from..self.from + 2)?;
        self.from += 2;
        Some(usize::from(bytes[0]) | usize::from(bytes[1]) << 8)
    }

    /// A length whose field is `field`: 0 there means that it is over `most` and goes on.
    #[inline(always)]
    fn length(&mut self, field: usize, most: usize) -> Option<usize> {
        match field {
            0 => self.long_length(most),
            _ => Some(field),
        }
    }

    fn long_length(&mut self, most: usize) -> Option<usize> {
        let rest = self.source.get(self.from..)?;
        let zeroes = rest.iter().take_while(|byte| **byte == 0).count();
        let last = usize::from(*rest.get(zeroes)?);
        self.from += zeroes + 1;
        Some(most + 255 * zeroes + last)
    }

    #[inline(always)]
    fn literals(&mut self, count: usize) -> Option<()> {
        let (from, at) = (self.from, self.at);
        let piece = self
            .source
            .get(from..from + PIECE)
            .filter(|_| count <= PIECE);
        match (piece, self.page.get_mut(at..at + PIECE)) {
            (Some(piece), Some(room)) => room.copy_from_slice(piece),
            _ => {
                let room = self.page.get_mut(at..at + count)?;
                room.copy_from_slice(self.source.get(from..from + count)?);
            }
        }
        self.from += count;
        self.at += count;
        Some(())
    }

    #[inline(always)]
    fn copy(&mut self, distance: usize, length: usize) -> Option<()> {
        let (at, end) = (self.at, self.at + length);
        let from = at.checked_sub(distance)?;
        self.at = end;
        if distance >= PIECE && end + PIECE <= self.page.len() {
            let mut done = 0;
            while done < length {
                let piece = *self.page[from + done..].first_chunk::<PIECE>()?;
                *self.page[at + done..].first_chunk_mut::<PIECE>()? = piece;
                done += PIECE;
            }
            return Some(());
        }
        if end > self.page.len() {
            return None;
        }
        self.copy_repeating(from, at, end);
        Some(())
    }

    /// A copy that may overlap itself, whose source then repeats.
    fn copy_repeating(&mut self, from: usize, mut at: usize, end: usize) {
        while at < end {
            let piece = (at - from).min(end - at);
            self.page.copy_within(from..from + piece, at);
            at += piece;
        }
    }

    /// The number of literals behind it, if `code` starts a run of zeroes.
    #[inline(always)]
    fn run_of_zeroes(&mut self, code: usize) -> Option<Option<usize>> {
        let Some(&[low, high, more]) = self.source[self.from..].first_chunk() else {
            return Some(None);
        };
        if !self.has_runs || code & 8 == 0 || low & 0xfc != 0xfc || high != 0xff {
            return Some(None);
        }
        let length = (usize::from(more) << 3 | code & 7) + RUN_MIN;
        self.page.get_mut(self.at..self.at + length)?.fill(0);
        self.at += length;
        self.from += 3;
        Some(Some(usize::from(low & 3)))
    }
}
