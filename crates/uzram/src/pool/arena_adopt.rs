//! Taking over the runs of a dead process's arena, whose state is rebuilt from the slot words.

#[cfg(not(uzram_shuttle))]
use std::os::fd::OwnedFd;

use super::{Arena, Bits, Mode, SPAN_PAGES, Span, State};
#[cfg(not(uzram_shuttle))]
use super::{HUGE_PAGE_BYTES, RUN_PAGES_MAX};
use crate::error::{Error, ErrorKind, Result};
use crate::memory;

impl Arena {
    /// As [`Region::file`](crate::region::Region::file).
    #[cfg(not(uzram_shuttle))]
    pub(crate) fn file(&self) -> Result<Option<OwnedFd>> {
        self.region.file()
    }

    /// Marks a run of a predecessor as taken.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if it is outside the arena or crosses a span, [`ErrorKind::Corrupt`] if it is taken,
    /// [`ErrorKind::NoMemory`].
    pub(crate) fn adopt(&self, first: usize, length: usize) -> Result<()> {
        let (index, start) = (first / SPAN_PAGES, first % SPAN_PAGES);
        if first + length > self.pages() || start + length > SPAN_PAGES {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                "a block lies outside its arena",
            ));
        }
        let mut state = self.state.lock();
        let span = state.span_at(index)?;
        if span.used.contains_any(start, length) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "two blocks lie on each other",
            ));
        }
        // What is resident around the blocks is unknown, so it is given back: singly.
        span.mode = Mode::Small;
        span.used.set(start, length);
        span.populated.set(start, length);
        state.used_pages += length;
        state.resident_pages += length;
        state.used_max_pages = state.used_max_pages.max(state.used_pages);
        Ok(())
    }

    /// Gives everything that was not adopted back to the system, but for whole spans where the predecessor had a spare:
    /// what is free of them is the spare, or would soon be.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub(crate) fn adopted(&self) -> Result<()> {
        let mut state = self.state.lock();
        #[cfg(not(uzram_shuttle))]
        if self.huge {
            self.adopt_whole_spans(&mut state)?;
        }
        let mut kept = 0;
        for (index, span) in state.spans.iter_mut().enumerate() {
            if span.mode == Mode::Huge {
                kept += SPAN_PAGES;
                continue;
            }
            // A page of the system that a block has a part of stays whole.
            span.populated = Bits::below(SPAN_PAGES);
            let gone = span.whole_free(0..SPAN_PAGES, self.grain());
            for (start, length) in gone.runs() {
                let first = index * SPAN_PAGES + start;
                self.region.release(self.bytes_of(first..first + length));
                span.populated.clear(start, length);
            }
            kept += span.populated.count();
        }
        state.resident_pages = kept;
        let end = state.spans.len() * SPAN_PAGES;
        self.region.release(self.bytes_of(end..self.pages()));
        #[cfg(not(uzram_shuttle))]
        if state.spare_spans_min > 0 {
            // Whoever asks for a spare is swapped to, also where the disk is too small to have one. What is swapped to must not
            // be swapped out itself, nor wait for memory.
            self.region.map_present();
        }
        Ok(())
    }

    /// Bytes that this process has mapped.
    #[cfg(all(test, not(uzram_shuttle)))]
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.region.resident_bytes()
    }

    /// Takes the spans over whose pages are all there.
    #[cfg(not(uzram_shuttle))]
    fn adopt_whole_spans(&self, state: &mut State) -> Result<()> {
        let mut next = 0;
        while let Some(data) = self.region.next_data(next) {
            next = data.end;
            for index in data.start.div_ceil(HUGE_PAGE_BYTES)..data.end / HUGE_PAGE_BYTES {
                let span = state.span_at(index)?;
                span.mode = Mode::Huge;
                span.populated = Bits::below(SPAN_PAGES);
                span.longest = RUN_PAGES_MAX as u8;
                let is_free = span.used.is_empty();
                state.free_spans += usize::from(is_free);
            }
        }
        Ok(())
    }
}

impl State {
    /// The span of this index, which a successor does not know yet if none before it lay as high.
    fn span_at(&mut self, index: usize) -> Result<&mut Span> {
        while self.spans.len() <= index {
            memory::push(&mut self.spans, Span::UNCLAIMED)?;
        }
        Ok(&mut self.spans[index])
    }
}
