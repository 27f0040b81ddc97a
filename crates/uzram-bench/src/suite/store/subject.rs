//! uzram's side: the library's public API, nothing else.

use uzram::{PageIndex, Store};

use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::peers::Side;
use crate::sink::Sink;
use crate::suite::SUBJECT;
use crate::workload::{CHUNK_PAGES, Case, Generation, Workload};

/// A store as large as the working set.
pub(crate) struct Subject {
    store: Store,
    sink: Sink,
}

impl Subject {
    pub(crate) fn new(algorithm: &str, workload: &Workload) -> Result<Subject> {
        let builder = Store::builder()
            .size(workload.bytes() as u64)
            .algorithm(algorithm);
        Ok(Subject {
            store: builder.build()?,
            sink: Sink::new()?,
        })
    }
}

impl Side for Subject {
    fn name(&self) -> &str {
        SUBJECT
    }

    fn begin(&mut self, case: Case) -> Result<()> {
        if case == Case::FirstWrite {
            self.store.reset();
        }
        Ok(())
    }

    fn run(
        &mut self,
        workload: &Workload,
        case: Case,
        chunk: usize,
        generation: Generation,
    ) -> Result<()> {
        let first = workload.first_place(chunk);
        match case {
            Case::FirstWrite | Case::Overwrite => {
                write_chunk(&self.store, first, workload.content(chunk, generation))?;
            }
            Case::SequentialRead => {
                for place in first..first + CHUNK_PAGES {
                    let page = self.sink.sequential(place);
                    self.store.read(PageIndex(place as u64), page)?;
                }
            }
            Case::RandomRead => {
                read_places(&self.store, workload.random_places(chunk), &mut self.sink)?;
            }
        }
        self.sink.consume();
        Ok(())
    }

    fn read_back(&mut self, place: usize, page: &mut [u8]) -> Result<()> {
        Ok(self.store.read(PageIndex(place as u64), page)?)
    }

    fn compressed_bytes(&mut self) -> Result<Option<u64>> {
        Ok(Some(self.store.stats().compr_data_size_bytes))
    }
}

/// Writes pages from place `first` on.
pub(crate) fn write_chunk(store: &Store, first: usize, content: &[u8]) -> Result<()> {
    for (place, page) in (first..).zip(content.chunks_exact(PAGE_BYTES)) {
        store.write(PageIndex(place as u64), page)?;
    }
    Ok(())
}

/// Reads `places` in their order.
pub(crate) fn read_places(store: &Store, places: &[u32], sink: &mut Sink) -> Result<()> {
    for &place in places {
        store.read(PageIndex(u64::from(place)), sink.single())?;
    }
    Ok(())
}
