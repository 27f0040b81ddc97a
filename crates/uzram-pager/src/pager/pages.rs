//! Where each page of the program is, and in which order the present ones came.
//!
//! Four bytes per page, and four more in the queue. One thread reads and changes them.

use std::collections::VecDeque;

use uzram::{Error, ErrorKind, Result};

use super::around::Window;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere: its next touch gives zeroes.
    Fresh,
    /// In the program's memory.
    Present,
    /// In this slot of the ring, not compressed yet.
    Staged(usize),
    /// In the store.
    Stored,
    /// Lost: touching it is a SIGBUS until the program discards it.
    Poisoned,
    /// Unmapped by the program. Other memory may be at its address.
    Gone,
}

const TAG: u32 = 0b111;
/// The page is in the queue.
const QUEUED: u32 = 1 << 3;
/// The program has discarded the page before. The system drops it some time after it has told so.
const DISCARDED: u32 = 1 << 4;
/// The store has a copy of the page, which is present or staged.
const HAS_COPY: u32 = 1 << 5;
const SLOT_SHIFT: u32 = 6;

/// The pages of the program.
#[derive(Debug)]
pub(super) struct Pages {
    words: Vec<u32>,
    /// Pages that are present, the oldest first, and some that no longer are.
    queue: VecDeque<u32>,
    present: usize,
    copies: usize,
}

impl Pages {
    /// `count` fresh pages.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub fn new(count: usize) -> Result<Pages> {
        let mut pages = Pages {
            words: Vec::new(),
            queue: VecDeque::new(),
            present: 0,
            copies: 0,
        };
        let words = pages.words.try_reserve_exact(count);
        let both = words.and_then(|()| pages.queue.try_reserve_exact(count));
        both.map_err(|_| {
            let text = format!("no memory for a table of {count} pages; choose a smaller length");
            Error::new(ErrorKind::NoMemory, text)
        })?;
        pages.words.resize(count, 0);
        Ok(pages)
    }

    pub fn count(&self) -> usize {
        self.words.len()
    }

    /// Pages whose place is [`Place::Present`].
    pub fn present(&self) -> usize {
        self.present
    }

    pub fn place(&self, page: usize) -> Place {
        let word = self.words[page];
        match word & TAG {
            0 => Place::Fresh,
            1 => Place::Present,
            2 => Place::Staged((word >> SLOT_SHIFT) as usize),
            3 => Place::Stored,
            4 => Place::Poisoned,
            _ => Place::Gone,
        }
    }

    /// Notes where `page` is now. A present page is the youngest, unless it is in the queue already.
    pub fn put(&mut self, page: usize, place: Place) {
        let word = &mut self.words[page];
        let was_present = *word & TAG == 1;
        let kept = match place {
            Place::Present | Place::Staged(_) => *word & (QUEUED | DISCARDED | HAS_COPY),
            _ => *word & (QUEUED | DISCARDED),
        };
        let (tag, slot) = match place {
            Place::Fresh => (0, 0),
            Place::Present => (1, 0),
            Place::Staged(slot) => (2, slot as u32),
            Place::Stored => (3, 0),
            Place::Poisoned => (4, 0),
            Place::Gone => (5, 0),
        };
        self.copies -= usize::from(*word & !kept & HAS_COPY != 0);
        *word = kept | tag | slot << SLOT_SHIFT;
        if place == Place::Present && *word & QUEUED == 0 {
            *word |= QUEUED;
            self.queue.push_back(page as u32);
        }
        self.present += usize::from(place == Place::Present);
        self.present -= usize::from(was_present);
    }

    /// Notes that the program has discarded `page`, whose content nobody keeps.
    pub fn discard(&mut self, page: usize) {
        self.put(page, Place::Fresh);
        self.words[page] |= DISCARDED;
    }

    /// Notes that the system has dropped all that was discarded.
    pub fn forget_discards(&mut self) {
        self.words.iter_mut().for_each(|word| *word &= !DISCARDED);
    }

    /// Whether the system may drop `page` without telling again.
    pub fn was_discarded(&self, page: usize) -> bool {
        self.words[page] & DISCARDED != 0
    }

    /// Notes that what the store has of `page`, which is present, is a copy.
    pub fn keep_copy(&mut self, page: usize) {
        debug_assert_eq!(self.place(page), Place::Present);
        self.copies += usize::from(!self.has_copy(page));
        self.words[page] |= HAS_COPY;
    }

    /// Pages that have one.
    pub fn copies(&self) -> usize {
        self.copies
    }

    pub fn has_copy(&self, page: usize) -> bool {
        self.words[page] & HAS_COPY != 0
    }

    /// Notes that `page` has no copy. Returns whether it had one.
    pub fn drop_copy(&mut self, page: usize) -> bool {
        let had_one = self.has_copy(page);
        self.words[page] &= !HAS_COPY;
        self.copies -= usize::from(had_one);
        had_one
    }

    /// Takes the oldest present pages from the queue, as many in a row as follow each other, `most` at most.
    pub fn take_oldest(&mut self, most: usize) -> Option<(usize, usize)> {
        let first = loop {
            let page = self.queue.pop_front()? as usize;
            self.words[page] &= !QUEUED;
            if self.place(page) == Place::Present {
                break page;
            }
        };
        let mut count = 1;
        while count < most
            && self.queue.front().map(|page| *page as usize) == Some(first + count)
            && self.place(first + count) == Place::Present
        {
            self.queue.pop_front();
            self.words[first + count] &= !QUEUED;
            count += 1;
        }
        Some((first, count))
    }

    /// Puts pages that were taken back as the oldest.
    pub fn put_back(&mut self, first: usize, count: usize) {
        for page in (first..first + count).rev() {
            self.words[page] |= QUEUED;
            self.queue.push_front(page as u32);
        }
    }

    /// How many pages of a window that begins with `page` have its place, up to the first that has not.
    pub fn alike(&self, page: usize, window: Window) -> usize {
        let place = self.place(page);
        let is_alike = |nth: &usize| {
            let next = window.page(page, *nth).filter(|next| *next < self.count());
            next.is_some_and(|next| self.place(next) == place)
        };
        1 + (1..window.pages).take_while(is_alike).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_queued_once_and_taken_in_the_order_of_its_coming() {
        let mut pages = Pages::new(10).unwrap();
        for page in [4, 5, 6, 1] {
            pages.put(page, Place::Present);
        }
        pages.discard(5);
        pages.put(5, Place::Present);
        assert_eq!(pages.present(), 4);
        assert_eq!(pages.take_oldest(2), Some((4, 2)));
        pages.put_back(4, 2);
        assert_eq!(pages.take_oldest(64), Some((4, 3)));
        pages.put(1, Place::Stored);
        assert_eq!(pages.take_oldest(64), None);
        assert!(pages.was_discarded(5) && !pages.was_discarded(4));
        pages.forget_discards();
        assert!(!pages.was_discarded(5));
        assert_eq!(pages.place(5), Place::Present);
    }

    #[test]
    fn a_copy_stays_while_its_page_is_here_and_is_counted() {
        let mut pages = Pages::new(4).unwrap();
        for page in [1, 2] {
            pages.put(page, Place::Present);
            pages.keep_copy(page);
            pages.keep_copy(page);
        }
        pages.put(1, Place::Staged(7));
        assert!(pages.has_copy(1) && !pages.has_copy(0));
        assert_eq!(pages.copies(), 2);
        pages.put(1, Place::Stored);
        pages.put(1, Place::Present);
        assert!(!pages.has_copy(1) && !pages.drop_copy(1));
        assert_eq!(pages.copies(), 1);
        assert!(pages.drop_copy(2));
        assert_eq!((pages.copies(), pages.place(2)), (0, Place::Present));
    }

    #[test]
    fn every_place_is_read_as_it_was_put() {
        let mut pages = Pages::new(2).unwrap();
        for place in [
            Place::Present,
            Place::Staged(70_000),
            Place::Stored,
            Place::Poisoned,
            Place::Gone,
            Place::Fresh,
        ] {
            pages.put(1, place);
            assert_eq!(pages.place(1), place);
            assert_eq!(pages.place(0), Place::Fresh);
        }
        assert_eq!(pages.present(), 0);
        let window = |stride| Window { stride, pages: 64 };
        assert_eq!(pages.alike(0, window(1)), 2);
        assert_eq!(pages.alike(1, window(-1)), 2);
        assert_eq!(pages.alike(0, window(2)), 1);
    }
}
