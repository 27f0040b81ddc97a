//! Where reads go: the same buffers for every side, aligned for O_DIRECT.

use std::hint::black_box;

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::mapping::{Backing, Mapping};

/// Size of a sequential read, in bytes: 1 MiB, the larger of the kernel's two sizes.
pub(crate) const SEQUENTIAL_BYTES: usize = 1 << 20;

/// Buffers for one reader.
pub(crate) struct Sink {
    buffer: Mapping,
}

impl Sink {
    pub(crate) fn new() -> Result<Sink> {
        let mapped = Mapping::new(SEQUENTIAL_BYTES, Backing::Default);
        let mut buffer = mapped.map_err(|error| Error::io("memory for reads", error))?;
        // Touched here, so that no side pays for it.
        buffer.fill(1);
        Ok(Sink { buffer })
    }

    /// Where a page read alone goes: always the same 4 KiB.
    pub(crate) fn single(&mut self) -> &mut [u8] {
        &mut self.buffer[..PAGE_BYTES]
    }

    /// Where pages from `place` on of a sequential read go, which may be all of them.
    pub(crate) fn sequential(&mut self, place: usize, pages: usize) -> &mut [u8] {
        let at = place % (SEQUENTIAL_BYTES / PAGE_BYTES) * PAGE_BYTES;
        &mut self.buffer[at..at + pages * PAGE_BYTES]
    }

    /// Keeps the compiler from dropping copies that nobody looks at.
    pub(crate) fn consume(&self) {
        black_box(&self.buffer[..]);
    }
}
