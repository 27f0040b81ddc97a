//! The blocks of a backing file: those that are taken, and free ones that still take room on the disk.
//!
//! Two bits per block that was ever used. The lowest free block is taken first, so a file stays as short as it can.
//!
//! A block that is being read is pinned. If it is given back meanwhile, it becomes free when the last reader is done, so
//! nobody reads another object's bytes.

use std::ops::Range;

use crate::error::Result;
#[cfg(not(uzram_shuttle))]
use crate::error::{Error, ErrorKind};
use crate::memory;

const BITS: u64 = u64::BITS as u64;

/// The blocks of a file. Block 0 is nobody's.
#[derive(Debug)]
pub(super) struct Blocks {
    count: u64,
    taken: Vec<u64>,
    /// Free, and not made a hole yet.
    stale: Vec<u64>,
    /// No word before this one has a free block.
    first_free: usize,
    /// No word before this one has a stale block.
    first_stale: usize,
    /// Those that are being read: no more than there are threads.
    pinned: Vec<Pinned>,
}

#[derive(Debug)]
struct Pinned {
    number: u64,
    readers: usize,
    /// It was given back.
    is_given: bool,
}

impl Blocks {
    pub fn new(count: u64) -> Blocks {
        Blocks {
            count,
            taken: Vec::new(),
            stale: Vec::new(),
            first_free: 0,
            first_stale: 0,
            pinned: Vec::new(),
        }
    }

    /// Takes the lowest free block. None: all are taken.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub fn take(&mut self) -> Result<Option<u64>> {
        while self.taken.get(self.first_free) == Some(&u64::MAX) {
            self.first_free += 1;
        }
        let word = self.first_free;
        self.grow(word)?;
        let bit = u64::from(self.taken[word].trailing_ones());
        let number = word as u64 * BITS + bit;
        if number >= self.count {
            return Ok(None);
        }
        self.taken[word] |= 1 << bit;
        self.stale[word] &= !(1 << bit);
        Ok(Some(number))
    }

    /// Has this word, and those before it.
    fn grow(&mut self, word: usize) -> Result<()> {
        while self.taken.len() <= word {
            memory::push(&mut self.stale, 0)?;
            let first = u64::from(self.taken.is_empty());
            if let Err(error) = memory::push(&mut self.taken, first) {
                self.stale.pop();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes a block that a slot of a dead process names.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for one that the file has not, [`ErrorKind::Corrupt`] for one that another slot names too,
    /// [`ErrorKind::NoMemory`].
    #[cfg(not(uzram_shuttle))]
    pub fn adopt(&mut self, number: u64) -> Result<()> {
        if number == 0 || number >= self.count {
            let text = "a block outside the backing file";
            return Err(Error::new(ErrorKind::OutOfRange, text));
        }
        let (word, bit) = place(number);
        self.grow(word)?;
        if self.taken[word] & bit != 0 {
            let text = "a block of the backing file that two pages have";
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        self.taken[word] |= bit;
        Ok(())
    }

    /// Notes that a dead process wrote to this block, which takes room on the disk even if it is free.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    #[cfg(not(uzram_shuttle))]
    pub fn note_written(&mut self, number: u64) -> Result<()> {
        let (word, bit) = place(number);
        self.grow(word)?;
        self.stale[word] |= bit & !self.taken[word];
        Ok(())
    }

    /// No block from this one on has been written to. Block 0 has.
    #[cfg(not(uzram_shuttle))]
    pub fn end(&self) -> u64 {
        self.count.min(self.taken.len().max(1) as u64 * BITS)
    }

    /// Keeps a taken block from becoming free until [`Blocks::unpin`].
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub fn pin(&mut self, number: u64) -> Result<()> {
        match self
            .pinned
            .iter_mut()
            .find(|pinned| pinned.number == number)
        {
            Some(pinned) => pinned.readers += 1,
            None => {
                let pinned = Pinned {
                    number,
                    readers: 1,
                    is_given: false,
                };
                memory::push(&mut self.pinned, pinned)?;
            }
        }
        Ok(())
    }

    /// Ends a [`Blocks::pin`].
    pub fn unpin(&mut self, number: u64) {
        let mut pinned = self.pinned.iter();
        let Some(at) = pinned.position(|pinned| pinned.number == number) else {
            debug_assert!(false, "block {number} is not pinned");
            return;
        };
        self.pinned[at].readers -= 1;
        if self.pinned[at].readers == 0 && self.pinned.swap_remove(at).is_given {
            self.free(number);
        }
    }

    /// Gives a block back that was taken.
    pub fn give(&mut self, number: u64) {
        match self
            .pinned
            .iter_mut()
            .find(|pinned| pinned.number == number)
        {
            Some(pinned) => {
                debug_assert!(!pinned.is_given, "block {number} is given twice");
                pinned.is_given = true;
            }
            None => self.free(number),
        }
    }

    fn free(&mut self, number: u64) {
        let (word, bit) = place(number);
        let Some(taken) = self.taken.get_mut(word).filter(|taken| **taken & bit != 0) else {
            debug_assert!(false, "block {number} is free");
            return;
        };
        *taken &= !bit;
        self.stale[word] |= bit;
        self.first_free = self.first_free.min(word);
        self.first_stale = self.first_stale.min(word);
    }

    /// Takes stale blocks in a row, to make a hole of them.
    pub fn begin_discard(&mut self) -> Option<Range<u64>> {
        while self.stale.get(self.first_stale) == Some(&0) {
            self.first_stale += 1;
        }
        let word = self.first_stale;
        let stale = *self.stale.get(word)?;
        let first = stale.trailing_zeros();
        let length = (stale >> first).trailing_ones();
        let mask = u64::MAX >> (u64::BITS - length) << first;
        self.stale[word] &= !mask;
        self.taken[word] |= mask;
        let start = word as u64 * BITS + u64::from(first);
        Some(start..start + u64::from(length))
    }

    /// Frees what [`Blocks::begin_discard`] took.
    pub fn end_discard(&mut self, run: Range<u64>) {
        let (word, first) = ((run.start / BITS) as usize, run.start % BITS);
        let mask = u64::MAX >> (BITS - (run.end - run.start)) << first;
        self.taken[word] &= !mask;
        self.first_free = self.first_free.min(word);
    }
}

/// The word of a block, and its bit there.
fn place(number: u64) -> (usize, u64) {
    ((number / BITS) as usize, 1 << (number % BITS))
}

#[cfg(all(test, not(uzram_shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "all of this is a test")]

    use std::collections::BTreeSet;

    use super::*;
    use uzram_testkit::Rng;

    #[test]
    fn a_successor_has_what_slots_name_and_discards_what_else_was_written() {
        let mut blocks = Blocks::new(200);
        for number in [70, 1, 199] {
            blocks.adopt(number).unwrap();
        }
        let refusals = [
            (0, ErrorKind::OutOfRange),
            (200, ErrorKind::OutOfRange),
            (u64::MAX, ErrorKind::OutOfRange),
            (70, ErrorKind::Corrupt),
        ];
        for (number, kind) in refusals {
            assert_eq!(blocks.adopt(number).unwrap_err().kind(), kind);
        }
        for number in [1, 2, 3, 70, 71] {
            blocks.note_written(number).unwrap();
        }
        assert_eq!(blocks.end(), 200);
        assert_eq!(blocks.begin_discard(), Some(2..4));
        assert_eq!(
            blocks.take().unwrap(),
            Some(4),
            "nobody has those meanwhile"
        );
        blocks.end_discard(2..4);
        assert_eq!(blocks.begin_discard(), Some(71..72));
        assert_eq!(blocks.begin_discard(), None);
        blocks.end_discard(71..72);
        let rest: Vec<u64> = std::iter::from_fn(|| blocks.take().unwrap()).collect();
        let free = (2..199).filter(|number| ![4, 70].contains(number));
        assert_eq!(rest, free.collect::<Vec<u64>>());
    }

    /// Against a set of numbers: no block has two owners, the lowest comes first, what is being discarded is nobody's, and
    /// what is being read is not free.
    #[test]
    fn a_map_of_blocks_is_a_set() {
        let (mut blocks, mut rng) = (Blocks::new(200), Rng::new(1));
        let mut free: BTreeSet<u64> = (1..200).collect();
        let mut stale = BTreeSet::new();
        let (mut taken, mut runs) = (Vec::new(), Vec::new());
        // Those that are read, once for each reader, and whether they were given back.
        let mut read: Vec<u64> = Vec::new();
        let mut given = BTreeSet::new();
        for _ in 0..20_000 {
            match rng.below(10) {
                0..=3 => {
                    let number = blocks.take().unwrap();
                    assert_eq!(number, free.pop_first());
                    if let Some(number) = number {
                        stale.remove(&number);
                        taken.push(number);
                    }
                }
                4..=5 if !taken.is_empty() => {
                    let number = taken.swap_remove(rng.below(taken.len()));
                    blocks.give(number);
                    match read.contains(&number) {
                        true => assert!(given.insert(number)),
                        false => assert!(free.insert(number) && stale.insert(number)),
                    }
                }
                6 => {
                    let run = blocks.begin_discard();
                    assert_eq!(run.is_none(), stale.is_empty());
                    for number in run.clone().into_iter().flatten() {
                        assert!(stale.remove(&number) && free.remove(&number));
                    }
                    runs.extend(run);
                }
                7 if !runs.is_empty() => {
                    let run = runs.swap_remove(rng.below(runs.len()));
                    blocks.end_discard(run.clone());
                    free.extend(run);
                }
                8 if !taken.is_empty() => {
                    let number = taken[rng.below(taken.len())];
                    blocks.pin(number).unwrap();
                    read.push(number);
                }
                9 if !read.is_empty() => {
                    let number = read.swap_remove(rng.below(read.len()));
                    blocks.unpin(number);
                    if !read.contains(&number) && given.remove(&number) {
                        assert!(free.insert(number) && stale.insert(number));
                    }
                }
                _ => {}
            }
        }
        assert!(!taken.contains(&0));
    }
}
