//! The compressed RAM disk: byte ranges of any alignment to pages of a [`Store`].

use std::ops::Range;

use super::{Bio, BlockDevice, Geometry, check_range};
use crate::error::Result;
use crate::page::{PageIndex, Zeroing};
use crate::store::Store;

/// A block device over a [`Store`].
///
/// ```
/// use uzram::{Bio, BlockDevice, Store, Zram};
///
/// let disk = Zram::new(Store::builder().size(1 << 20).build()?);
/// disk.submit(Bio::Write { offset: 1000, data: b"any offset, any length" })?;
/// let mut back = [0; 10];
/// disk.submit(Bio::Read { offset: 1004, buffer: &mut back })?;
/// assert_eq!(&back, b"offset, an");
/// # Ok::<(), uzram::Error>(())
/// ```
#[derive(Debug)]
pub struct Zram {
    store: Store,
}

/// The part of a request that lies in one page.
struct Part {
    index: PageIndex,
    /// Where it begins in the page, in bytes.
    start: usize,
    /// Where it lies in the request's buffer.
    bytes: Range<usize>,
}

impl Zram {
    /// A device with the store's size.
    #[must_use]
    pub fn new(store: Store) -> Zram {
        Zram { store }
    }

    /// What the device stands on.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        for part in self.parts(offset, buffer.len() as u64) {
            self.store
                .read_at(part.index, part.start, &mut buffer[part.bytes])?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        for part in self.parts(offset, data.len() as u64) {
            self.store
                .write_at(part.index, part.start, &data[part.bytes])?;
        }
        Ok(())
    }

    fn trim(&self, offset: u64, length: u64) -> Result<()> {
        let unit = self.store.unit();
        let first = offset.div_ceil(unit.bytes() as u64);
        let end = (offset + length) >> unit.shift();
        (first..end).try_for_each(|index| self.store.trim(PageIndex(index)))
    }

    fn zero(&self, offset: u64, length: u64, zeroing: Zeroing) -> Result<()> {
        for part in self.parts(offset, length) {
            self.store
                .zero_at(part.index, part.start, part.bytes.len(), zeroing)?;
        }
        Ok(())
    }

    /// Splits a range at page borders.
    fn parts(&self, offset: u64, length: u64) -> impl Iterator<Item = Part> + use<> {
        let unit = self.store.unit();
        let unit_bytes = unit.bytes() as u64;
        let end = offset + length;
        let mut at = offset;
        std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let start = at % unit_bytes;
            let part_bytes = (unit_bytes - start).min(end - at);
            let done = (at - offset) as usize;
            let part = Part {
                index: PageIndex(at >> unit.shift()),
                start: start as usize,
                bytes: done..done + part_bytes as usize,
            };
            at += part_bytes;
            Some(part)
        })
    }
}

impl BlockDevice for Zram {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.store.size_bytes(),
            preferred_block_bytes: self.store.unit().bytes() as u32,
        }
    }

    fn submit(&self, bio: Bio<'_>) -> Result<()> {
        if let Some((offset, length)) = bio.range() {
            check_range(offset, length, self.store.size_bytes())
                .inspect_err(|_| self.store.count_invalid_io())?;
        }
        match bio {
            Bio::Read { offset, buffer } => self.read(offset, buffer),
            Bio::Write { offset, data } => self.write(offset, data),
            // Memory is as durable as it gets the moment a write returns.
            Bio::Flush => Ok(()),
            Bio::Trim { offset, length } => self.trim(offset, length),
            Bio::Zero {
                offset,
                length,
                zeroing,
            } => self.zero(offset, length, zeroing),
        }
    }
}
