//! One side of a comparison, whatever the suite: a name, and what is driven under it. Sides that hold pages
//! share one loop over the cases of a workload ([`Pages::run`]).

use std::ops::Range;

use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::report::SUBJECT;
use crate::sink::Sink;
use crate::workload::{CHUNK_PAGES, Case, Generation, Workload};

/// uzram, a variant of it, or a peer.
#[derive(Debug)]
pub(crate) struct Side<D> {
    /// The variant in reports; ours begin with [`SUBJECT`].
    pub(crate) name: String,
    /// The store, device or program that does the work.
    pub(crate) driven: D,
}

impl<D> Side<D> {
    pub(crate) fn new(name: impl Into<String>, driven: D) -> Side<D> {
        let name = name.into();
        Side { name, driven }
    }

    pub(crate) fn is_ours(&self) -> bool {
        is_ours(&self.name)
    }

    /// The names of `sides`.
    pub(crate) fn names(sides: &[Side<D>]) -> Vec<&str> {
        sides.iter().map(|side| side.name.as_str()).collect()
    }
}

/// A side that holds pages.
pub(crate) type PageSide = Side<Box<dyn Pages>>;

impl PageSide {
    pub(crate) fn of(name: impl Into<String>, pages: impl Pages + 'static) -> PageSide {
        Side::new(name, Box::new(pages))
    }
}

/// Whether a variant is uzram.
pub(crate) fn is_ours(variant: &str) -> bool {
    variant.starts_with(SUBJECT)
}

/// Each of ours is compared with each peer.
pub(crate) fn ours_over_theirs(top: &str, bottom: &str) -> bool {
    is_ours(top) && !is_ours(bottom)
}

/// A holder of pages, each at its place.
pub(crate) trait Pages {
    /// Whether the case means anything here.
    fn takes(&self, _case: Case) -> bool {
        true
    }

    /// Makes ready for a whole pass of `case`; not timed.
    fn begin(&mut self, _case: Case) -> Result<()> {
        Ok(())
    }

    /// Makes ready for `case` on some places; not timed.
    fn prepare(&mut self, _case: Case, _places: Range<usize>) -> Result<()> {
        Ok(())
    }

    /// Pages of a request that writes or reads in order.
    fn request_pages(&self) -> usize {
        1
    }

    /// Writes whole pages from `place` on.
    fn write(&mut self, place: usize, pages: &[u8]) -> Result<()>;

    /// Reads whole pages from `place` on.
    fn read(&mut self, place: usize, pages: &mut [u8]) -> Result<()>;

    /// Bytes stored for the working set as compressed, where pages are compressed.
    fn compressed_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Does all of `work`. Written out once, compiled for each side: the calls in it are direct.
    fn run(&mut self, work: Task<'_>, sink: &mut Sink) -> Result<()> {
        let step = self.request_pages();
        match work {
            Task::Write { first, content } => {
                let places = (first..).step_by(step);
                for (place, pages) in places.zip(content.chunks_exact(step * PAGE_BYTES)) {
                    self.write(place, pages)?;
                }
            }
            Task::WriteAt { places, source } => {
                let pages = source.len() / PAGE_BYTES;
                for &place in places {
                    let from = place as usize % pages * PAGE_BYTES;
                    self.write(place as usize, &source[from..from + PAGE_BYTES])?;
                }
            }
            Task::Read(places) => {
                for place in places.step_by(step) {
                    self.read(place, sink.sequential(place, step))?;
                }
            }
            Task::ReadAt(places) => {
                for &place in places {
                    self.read(place as usize, sink.single())?;
                }
            }
        }
        sink.consume();
        Ok(())
    }
}

/// An operation on some places.
#[derive(Clone, Debug)]
pub(crate) enum Task<'a> {
    /// Whole pages, written from `first` on.
    Write { first: usize, content: &'a [u8] },
    /// Pages of `source` by turns, written to each of these places.
    WriteAt { places: &'a [u32], source: &'a [u8] },
    /// In order.
    Read(Range<usize>),
    /// One by one.
    ReadAt(&'a [u32]),
}

impl Workload {
    /// The operation of `case` on a chunk; `generation` is the content that is written.
    pub(crate) fn work(&self, case: Case, chunk: usize, generation: Generation) -> Task<'_> {
        let first = self.first_place(chunk);
        match case {
            Case::FirstWrite | Case::Overwrite => {
                let content = self.content(chunk, generation);
                Task::Write { first, content }
            }
            Case::SequentialRead => Task::Read(first..first + CHUNK_PAGES),
            Case::RandomRead => Task::ReadAt(self.random_places(chunk)),
        }
    }
}
