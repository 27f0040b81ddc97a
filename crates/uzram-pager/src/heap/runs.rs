//! Free and taken pages: runs of them, in tables beside the range.
//!
//! Free runs next to each other are one, and none lies at the end: the pages there are new. A run's first and last page
//! know its length, so that neighbours find each other. Free runs are in lists by length, four for each power of two; a
//! request takes from the first list in which every run suffices. Nothing is allocated after the tables were made.

use uzram::Result;

use super::lists::{Lists, reserved};

/// Lists of free runs, for lengths below 2^32.
const BINS: usize = 124;
/// Most runs of the request's own list that are looked at.
const LOOKS_MAX: usize = 256;
/// The owner of a free run.
const FREE: u32 = u32::MAX;
/// The owner of a run that is one allocation.
pub(super) const ALONE: u32 = u32::MAX - 1;

/// The knowledge of a run at its first and last page. The owner stands at all pages of a run that is used.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    length: u32,
    owner: u32,
}

/// The pages of a range.
#[derive(Debug)]
pub(super) struct Runs {
    count: usize,
    /// The number of the range's first page in the address space, for alignments.
    base: usize,
    /// Up to the last page that is used.
    records: Vec<Record>,
    free: Lists<BINS>,
    /// Lists that are not empty.
    filled: u128,
    used: usize,
}

impl Runs {
    /// `count` free pages, the first of which has the address `base` in pages.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](uzram::ErrorKind::NoMemory).
    pub fn new(count: usize, base: usize) -> Result<Runs> {
        Ok(Runs {
            count,
            base,
            records: reserved(count)?,
            free: Lists::new(count)?,
            filled: 0,
            used: 0,
        })
    }

    /// Pages that are not free.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Takes `pages` pages in a row whose address is a multiple of `align` pages, and returns the first.
    pub fn take(&mut self, pages: usize, align: usize, owner: u32) -> Option<usize> {
        let (first, length) = self.find(pages, align)?;
        let start = self.aligned(first, align);
        let end = start + pages;
        if start > first {
            self.add(first, start - first);
        }
        if end < first + length {
            self.add(end, first + length - end);
        }
        self.records[start..end].fill(Record {
            length: pages as u32,
            owner,
        });
        self.used += pages;
        Some(start)
    }

    /// Gives a run that was taken back. Its pages are empty.
    pub fn give(&mut self, first: usize, pages: usize) {
        debug_assert_eq!(self.records[first].length as usize, pages);
        debug_assert_ne!(self.records[first].owner, FREE, "page {first} is free");
        self.used -= pages;
        let (mut first, mut end) = (first, first + pages);
        if first > 0 && self.records[first - 1].owner == FREE {
            let before = self.records[first - 1].length as usize;
            first -= before;
            self.remove(first, before);
        }
        if let Some(next) = self.records.get(end).filter(|next| next.owner == FREE) {
            let behind = next.length as usize;
            self.remove(end, behind);
            end += behind;
        }
        if end == self.records.len() {
            self.records.truncate(first);
        } else {
            self.add(first, end - first);
        }
    }

    /// Makes a run longer where it is, if the pages behind it are free.
    pub fn grow(&mut self, first: usize, from: usize, to: usize) -> bool {
        let (end, more) = (first + from, to - from);
        match self.records.get(end) {
            Some(next) if next.owner != FREE || (next.length as usize) < more => return false,
            Some(next) => {
                let length = next.length as usize;
                self.remove(end, length);
                if length > more {
                    self.add(end + more, length - more);
                }
            }
            None if self.count - end < more => return false,
            None => self.records.resize(end + more, Record::default()),
        }
        self.set_length(first, to);
        self.used += more;
        true
    }

    /// Gives the end of a run back. Its pages are empty.
    pub fn shrink(&mut self, first: usize, from: usize, to: usize) {
        self.set_length(first, to);
        self.records[first + to].length = (from - to) as u32;
        self.give(first + to, from - to);
    }

    /// The owner of a page that is used.
    pub fn owner(&self, page: usize) -> u32 {
        self.records[page].owner
    }

    fn set_length(&mut self, first: usize, pages: usize) {
        let owner = self.records[first].owner;
        self.records[first..first + pages].fill(Record {
            length: pages as u32,
            owner,
        });
    }

    /// Takes out a free run, or makes one of new pages, that `pages` aligned pages fit into.
    fn find(&mut self, pages: usize, align: usize) -> Option<(usize, usize)> {
        let wanted = pages.checked_add(align - 1)?;
        if let Some(first) = self.find_free(wanted) {
            let length = self.records[first].length as usize;
            self.remove(first, length);
            return Some((first, length));
        }
        let first = self.records.len();
        let end = self.aligned(first, align).checked_add(pages)?;
        if end > self.count {
            return None;
        }
        self.records.resize(end, Record::default());
        Some((first, end - first))
    }

    fn find_free(&self, pages: usize) -> Option<usize> {
        if pages > self.count {
            return None;
        }
        let own = bin(pages);
        // Every run suffices from this list on.
        let sure = if bin(pages - 1) < own { own } else { own + 1 };
        let above = self.filled >> sure << sure;
        if above != 0 {
            return self.free.head(above.trailing_zeros() as usize);
        }
        let looks = std::iter::successors(self.free.head(own), |first| self.free.next(*first));
        let suffices = |first: &usize| self.records[*first].length as usize >= pages;
        looks.take(LOOKS_MAX).find(suffices)
    }

    fn aligned(&self, page: usize, align: usize) -> usize {
        (self.base + page).next_multiple_of(align) - self.base
    }

    fn add(&mut self, first: usize, length: usize) {
        let record = Record {
            length: length as u32,
            owner: FREE,
        };
        self.records[first] = record;
        self.records[first + length - 1] = record;
        let bin = bin(length);
        self.free.push(bin, first);
        self.filled |= 1 << bin;
    }

    fn remove(&mut self, first: usize, length: usize) {
        let bin = bin(length);
        self.free.remove(bin, first);
        if self.free.head(bin).is_none() {
            self.filled &= !(1 << bin);
        }
    }
}

/// The list of free runs of a length.
fn bin(length: usize) -> usize {
    if length < 4 {
        return length;
    }
    let power = length.ilog2() as usize;
    4 * (power - 1) + (length >> (power - 2)) % 4
}

#[cfg(test)]
mod tests {
    use uzram_testkit::Rng;

    use super::*;

    /// Every page belongs to the run that has it, free runs are known and not neighbours.
    fn check(runs: &Runs, taken: &[(usize, usize)]) {
        let mut all: Vec<_> = taken.to_vec();
        for list in 0..BINS {
            let mut next = runs.free.head(list);
            assert_eq!(next.is_some(), runs.filled >> list & 1 == 1);
            while let Some(first) = next {
                all.push((first, runs.records[first].length as usize));
                next = runs.free.next(first);
            }
        }
        all.sort_unstable();
        let mut end = 0;
        for (first, length) in all {
            assert_eq!(first, end, "a hole, or two owners");
            end = first + length;
        }
        assert_eq!(end, runs.records.len(), "no free run at the end");
        assert_eq!(runs.used(), taken.iter().map(|run| run.1).sum());
    }

    #[test]
    fn random_runs_have_pages_of_their_own() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut runs = Runs::new(600, 1001).unwrap();
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for step in 0..3000 {
                let nth = rng.below(taken.len().max(1));
                let pages = 1 + rng.below(40);
                match rng.below(6) {
                    0..=2 => {
                        let align = 1 << rng.below(6);
                        let Some(first) = runs.take(pages, align, step) else {
                            continue;
                        };
                        assert!((first + 1001).is_multiple_of(align) && first + pages <= 600);
                        taken.push((first, pages));
                    }
                    _ if taken.is_empty() => {}
                    3 => {
                        let (first, pages) = taken.swap_remove(nth);
                        runs.give(first, pages);
                    }
                    4 => {
                        let (first, from) = taken[nth];
                        if runs.grow(first, from, from + pages) {
                            taken[nth].1 = from + pages;
                        }
                    }
                    _ => {
                        let (first, from) = taken[nth];
                        let to = 1 + rng.below(from);
                        if to < from {
                            runs.shrink(first, from, to);
                            taken[nth].1 = to;
                        }
                    }
                }
                check(&runs, &taken);
            }
            while let Some((first, pages)) = taken.pop() {
                runs.give(first, pages);
            }
            check(&runs, &[]);
            assert_eq!(
                runs.take(600, 1, ALONE),
                Some(0),
                "all of it is one run again"
            );
        }
    }

    #[test]
    fn a_run_that_fits_exactly_is_taken_before_a_longer_one() {
        let mut runs = Runs::new(200, 0).unwrap();
        let lengths = [16, 1, 17, 1, 40, 1];
        let firsts = lengths.map(|length| runs.take(length, 1, ALONE).unwrap());
        for nth in [4, 2, 0] {
            runs.give(firsts[nth], lengths[nth]);
        }
        assert_eq!(runs.take(16, 1, ALONE), Some(0));
        assert_eq!(runs.take(17, 1, ALONE), Some(firsts[4]));
        assert_eq!(runs.take(17, 1, ALONE), Some(firsts[4] + 17));
        assert_eq!(runs.take(17, 1, ALONE), Some(firsts[2]), "by looking");
        assert_eq!(runs.take(200, 1, ALONE), None);
        assert_eq!(runs.take(usize::MAX, 8, ALONE), None);
    }
}
