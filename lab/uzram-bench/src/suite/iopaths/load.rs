//! A program with more pages than memory, in the manner of pmbench: it reads and writes pages of its
//! working set in some pattern; a part of them fits, the rest is swapped.

use crate::swap::{SwapArea, SwapSlot};
use uzram::PageBuffer;

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use uzram_testkit::Rng;

/// The choice of the page that is touched next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pattern {
    /// Any, all alike
    Uniform,
    /// Mostly those in the middle
    Normal,
    /// One after the other
    Linear,
}

/// The behaviour of the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) pattern: Pattern,
    /// Pages of the program.
    pub(super) working_set: usize,
    /// The number of them that fit into memory.
    pub(super) resident: usize,
    /// Reads among 100 touches.
    pub(super) reads: u32,
}

/// The program. A page's first word says which page it is and its second counts writes to it; all the
/// rest is the corpus's.
pub(super) struct Load<'a> {
    plan: Plan,
    area: &'a SwapArea,
    corpus: &'a [u8],
    pages: Vec<Page>,
    frames: Vec<Frame>,
    /// The clock's hand.
    hand: usize,
    rng: Rng,
    touches: usize,
}

#[derive(Default)]
struct Page {
    frame: Option<usize>,
    /// The page's slot in the area, which has its content while the frame is clean.
    slot: Option<SwapSlot>,
    writes: u64,
    is_touched: bool,
}

struct Frame {
    page: usize,
    buffer: Option<PageBuffer>,
    is_dirty: bool,
    is_referenced: bool,
}

impl<'a> Load<'a> {
    pub(super) fn new(plan: Plan, area: &'a SwapArea, corpus: &'a [u8]) -> Load<'a> {
        Load {
            plan,
            area,
            corpus,
            pages: (0..plan.working_set).map(|_| Page::default()).collect(),
            frames: Vec::new(),
            hand: 0,
            rng: Rng::new(11),
            touches: 0,
        }
    }

    /// Writes every page once, so that all that does not fit is swapped.
    pub(super) fn fill(&mut self) -> Result<()> {
        (0..self.plan.working_set).try_for_each(|page| self.touch(page, true))
    }

    /// Touches pages `times` times.
    pub(super) fn run(&mut self, times: usize) -> Result<()> {
        for _ in 0..times {
            let page = self.next_page();
            let is_write = self.rng.below(100) as u32 >= self.plan.reads;
            self.touch(page, is_write)?;
        }
        Ok(())
    }

    fn next_page(&mut self) -> usize {
        let count = self.plan.working_set;
        self.touches += 1;
        match self.plan.pattern {
            Pattern::Uniform => self.rng.below(count),
            Pattern::Linear => self.touches % count,
            // The mean of four uniform numbers is near enough to a normal one.
            Pattern::Normal => (0..4).map(|_| self.rng.below(count)).sum::<usize>() / 4,
        }
    }

    fn touch(&mut self, page: usize, is_write: bool) -> Result<()> {
        let frame = match self.pages[page].frame {
            Some(frame) => frame,
            None => self.fault(page)?,
        };
        self.frames[frame].is_referenced = true;
        if !is_write {
            return self.check(page, frame);
        }
        self.pages[page].writes += 1;
        self.frames[frame].is_dirty = true;
        // What the area holds is out of date.
        if let Some(slot) = self.pages[page].slot.take() {
            self.area.free(slot)?;
        }
        let words = [page as u64, self.pages[page].writes];
        let buffer = self.frames[frame].buffer.as_mut();
        let buffer = buffer.expect("a frame has a buffer between calls");
        for (at, word) in words.into_iter().enumerate() {
            buffer[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }

    /// Brings a page in: from the area, or afresh.
    fn fault(&mut self, page: usize) -> Result<usize> {
        let frame = self.free_frame()?;
        let buffer = self.frames[frame].buffer.take();
        let mut buffer = buffer.expect("a frame has a buffer between calls");
        if let Some(slot) = &self.pages[page].slot {
            let done = self.area.swap_readpage(slot, buffer);
            buffer = done.buffer;
            done.result?;
        } else if self.pages[page].is_touched {
            return Err(Error::Failed(format!(
                "page {page} is neither in memory nor swapped"
            )));
        } else {
            let count = self.corpus.len() / PAGE_BYTES;
            let from = page % count * PAGE_BYTES;
            buffer.copy_from_slice(&self.corpus[from..from + PAGE_BYTES]);
            self.pages[page].is_touched = true;
        }
        self.frames[frame] = Frame {
            page,
            buffer: Some(buffer),
            is_dirty: false,
            is_referenced: true,
        };
        self.pages[page].frame = Some(frame);
        Ok(frame)
    }

    /// A new frame while there may be more, else one whose page is swapped out: the clock's choice.
    fn free_frame(&mut self) -> Result<usize> {
        if self.frames.len() < self.plan.resident {
            self.frames.push(Frame {
                page: 0,
                buffer: Some(Box::new([0; PAGE_BYTES])),
                is_dirty: false,
                is_referenced: false,
            });
            return Ok(self.frames.len() - 1);
        }
        loop {
            self.hand = (self.hand + 1) % self.frames.len();
            let frame = &mut self.frames[self.hand];
            if !std::mem::take(&mut frame.is_referenced) {
                return self.evict(self.hand).map(|()| self.hand);
            }
        }
    }

    fn evict(&mut self, at: usize) -> Result<()> {
        let frame = &mut self.frames[at];
        let page = &mut self.pages[frame.page];
        page.frame = None;
        if !frame.is_dirty && page.slot.is_some() {
            return Ok(());
        }
        let slot = self.area.allocate();
        let slot = slot.ok_or_else(|| Error::Failed("the swap area is full".into()))?;
        let buffer = frame
            .buffer
            .take()
            .expect("a frame has a buffer between calls");
        let done = self.area.swap_writepage(&slot, buffer);
        frame.buffer = Some(done.buffer);
        page.slot = Some(slot);
        done.result.map_err(Into::into)
    }

    /// A page that is read is the one that was written last.
    fn check(&self, page: usize, frame: usize) -> Result<()> {
        let writes = self.pages[page].writes;
        let buffer = self.frames[frame].buffer.as_ref();
        let buffer = buffer.expect("a frame has a buffer between calls");
        let word = |at: usize| {
            let bytes = buffer[at * 8..at * 8 + 8].try_into();
            u64::from_le_bytes(bytes.expect("eight bytes"))
        };
        if writes > 0 && (word(0), word(1)) != (page as u64, writes) {
            return Err(Error::Failed(format!(
                "page {page} came back from swap as page {}, write {} of {writes}",
                word(0),
                word(1)
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::swap::IoPath;
    use uzram::BlockDevice;
    use uzram_media::Brd;

    use super::*;

    #[test]
    fn every_pattern_swaps_and_finds_its_pages_again() {
        for pattern in [Pattern::Uniform, Pattern::Normal, Pattern::Linear] {
            let plan = Plan {
                pattern,
                working_set: 400,
                resident: 100,
                reads: 50,
            };
            let disk: Arc<dyn BlockDevice> = Arc::new(Brd::new(400 << 12).unwrap());
            let area = SwapArea::new(disk, IoPath::AllocatedBio).unwrap();
            let corpus = vec![7; 3 * PAGE_BYTES];
            let mut load = Load::new(plan, &area, &corpus);
            load.fill().unwrap();
            assert_eq!(area.used_slots(), 300);
            load.run(5000).unwrap();
            assert!(area.read_latency().summary().calls > 500, "{pattern:?}");
            assert!(area.write_latency().summary().calls > 500, "{pattern:?}");
        }
    }

    #[test]
    fn a_page_that_comes_back_wrong_is_seen() {
        let plan = Plan {
            pattern: Pattern::Linear,
            working_set: 50,
            resident: 10,
            reads: 100,
        };
        let disk = Arc::new(Brd::new(50 << 12).unwrap());
        let area = SwapArea::new(Arc::clone(&disk) as _, IoPath::RwPage).unwrap();
        let corpus = vec![7; PAGE_BYTES];
        let mut load = Load::new(plan, &area, &corpus);
        load.fill().unwrap();
        let data = &[0; PAGE_BYTES][..];
        for page in 0..40 {
            let offset = page * PAGE_BYTES as u64;
            disk.submit(uzram::Bio::Write { offset, data }).unwrap();
        }
        assert!(
            load.run(50)
                .unwrap_err()
                .to_string()
                .contains("came back from swap")
        );
    }
}
