//! The floor: pages copied into memory of the engine's kind and out of it, nothing else.

use std::hint::black_box;

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::mapping::{Backing, Mapping};
use crate::peers::Side;
use crate::sink::Sink;
use crate::workload::{CHUNK_PAGES, Case, Generation, Workload};

/// One uncompressed page a place.
pub(crate) struct Memcpy {
    memory: Mapping,
    sink: Sink,
}

impl Memcpy {
    pub(crate) fn new(workload: &Workload) -> Result<Memcpy> {
        let failed = |error| Error::io("memory for memcpy", error);
        let memory = Mapping::new(workload.bytes(), Backing::Huge).map_err(failed)?;
        Ok(Memcpy {
            memory,
            sink: Sink::new()?,
        })
    }

    fn page(&self, place: usize) -> &[u8] {
        &self.memory[place * PAGE_BYTES..][..PAGE_BYTES]
    }
}

impl Side for Memcpy {
    fn name(&self) -> &str {
        "memcpy"
    }

    fn begin(&mut self, _case: Case) -> Result<()> {
        Ok(())
    }

    /// Only the chunk's memory is made fresh, right before it is touched again. All of it at once
    /// would be more memory than all other sides give back, and where a host takes free memory away
    /// it would make *their* first touches dear.
    fn prepare(&mut self, workload: &Workload, case: Case, chunk: usize) -> Result<()> {
        if case != Case::FirstWrite {
            return Ok(());
        }
        let places = workload.first_place(chunk)..workload.first_place(chunk + 1);
        let range = places.start * PAGE_BYTES..places.end * PAGE_BYTES;
        let fresh = self.memory.make_range_fresh(range);
        fresh.map_err(|error| Error::io("memory for memcpy", error))
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
                let content = workload.content(chunk, generation);
                let memory = &mut self.memory[first * PAGE_BYTES..][..content.len()];
                for (to, from) in memory
                    .chunks_exact_mut(PAGE_BYTES)
                    .zip(content.chunks_exact(PAGE_BYTES))
                {
                    to.copy_from_slice(black_box(from));
                }
            }
            Case::SequentialRead => {
                for place in first..first + CHUNK_PAGES {
                    let page = &self.memory[place * PAGE_BYTES..][..PAGE_BYTES];
                    self.sink.sequential(place).copy_from_slice(black_box(page));
                }
            }
            Case::RandomRead => {
                for &place in workload.random_places(chunk) {
                    let page = &self.memory[place as usize * PAGE_BYTES..][..PAGE_BYTES];
                    self.sink.single().copy_from_slice(black_box(page));
                }
            }
        }
        self.sink.consume();
        Ok(())
    }

    fn read_back(&mut self, place: usize, page: &mut [u8]) -> Result<()> {
        page.copy_from_slice(self.page(place));
        Ok(())
    }
}
