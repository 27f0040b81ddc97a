//! The compressed RAM disk: byte ranges of any alignment to pages of a [`Store`].

use super::parts::{Part, parts, whole_blocks};
use super::{Bio, BlockDevice, Geometry, PAGE_BYTES, PageTransfer, check_range};
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
                .read_at(PageIndex(part.index), part.start, &mut buffer[part.bytes])?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        for part in self.parts(offset, data.len() as u64) {
            self.store
                .write_at(PageIndex(part.index), part.start, &data[part.bytes])?;
        }
        Ok(())
    }

    fn trim(&self, offset: u64, length: u64) -> Result<()> {
        whole_blocks(offset, length, self.store.unit().shift())
            .try_for_each(|index| self.store.trim(PageIndex(index)))
    }

    fn zero(&self, offset: u64, length: u64, zeroing: Zeroing) -> Result<()> {
        for part in self.parts(offset, length) {
            self.store
                .zero_at(PageIndex(part.index), part.start, part.bytes.len(), zeroing)?;
        }
        Ok(())
    }

    /// Splits a range at page borders.
    fn parts(&self, offset: u64, length: u64) -> impl Iterator<Item = Part> + use<> {
        parts(offset, length, self.store.unit().shift())
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

    fn rw_page(&self, page: PageIndex, transfer: PageTransfer<'_>) -> Result<()> {
        if self.store.unit().bytes() == PAGE_BYTES {
            return match transfer {
                PageTransfer::Read(buffer) => self.store.read(page, buffer),
                PageTransfer::Write(data) => self.store.write(page, data),
            };
        }
        let offset = page.0.saturating_mul(PAGE_BYTES as u64);
        self.submit(match transfer {
            PageTransfer::Read(buffer) => Bio::Read { offset, buffer },
            PageTransfer::Write(data) => Bio::Write { offset, data },
        })
    }
}
