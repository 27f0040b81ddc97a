//! Copies: compressed pages that stay in the store after they came back. A page that has not changed when it leaves
//! again need not be compressed: it is compared with its copy, which takes a third to a half of the time.
//!
//! No interface of the system tells for nothing whether a page was written: to write-protect one costs a call, and its
//! first write a fault. So what became of earlier copies decides whether more are kept.
//!
//! A copy takes memory while its page does, too. It goes first where the store is full. Where pages go to a file none
//! are kept.

/// The share of all, and the one below which a copy does not pay.
const WHOLE: u32 = 1 << 16;
const SHARE_MIN: u32 = WHOLE / 2;
/// The weight of the last copy in the share, as a divisor.
const WEIGHT: u32 = 16;
/// Where copies do not pay, one of this many pages has one all the same: to learn of a change.
const PROBE: u32 = 16;

/// The fate of copies so far.
#[derive(Debug)]
pub(super) struct Copies {
    /// The share of pages that were as their copies when they left, the last ones counting most.
    unchanged: u32,
    /// Pages that came without a copy since the last that came with one.
    without: u32,
    /// The page where the search for copies goes on.
    pub next: usize,
}

impl Copies {
    pub fn new() -> Copies {
        Copies {
            unchanged: WHOLE,
            without: 0,
            next: 0,
        }
    }

    /// Whether the next page that comes keeps its copy.
    pub fn keeps(&mut self) -> bool {
        self.without += 1;
        let keeps = self.unchanged >= SHARE_MIN || self.without >= PROBE;
        if keeps {
            self.without = 0;
        }
        keeps
    }

    pub fn note(&mut self, is_unchanged: bool) {
        let now = if is_unchanged { WHOLE } else { 0 };
        self.unchanged = self.unchanged - self.unchanged / WEIGHT + now / WEIGHT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_kept_while_they_pay_and_tried_again() {
        let mut copies = Copies::new();
        assert!((0..100).all(|_| copies.keeps()));
        (0..WEIGHT).for_each(|_| copies.note(false));
        let kept = (0..160).filter(|_| copies.keeps()).count();
        assert_eq!(kept, 10);
        (0..WEIGHT).for_each(|_| copies.note(true));
        assert!((0..100).all(|_| copies.keeps()));
        // It neither overflows nor sticks at either end.
        (0..1000).for_each(|_| copies.note(true));
        assert!(copies.unchanged <= WHOLE);
        (0..1000).for_each(|_| copies.note(false));
        assert!(copies.unchanged < SHARE_MIN);
    }
}
