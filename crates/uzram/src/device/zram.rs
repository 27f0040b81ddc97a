//! The compressed RAM disk: byte ranges of any alignment to pages of a [`Store`].

use super::parts::{Part, parts, whole_blocks};
use super::{Bio, BlockDevice, Extent, Geometry, PAGE_BYTES, PageTransfer, check_range};
use crate::error::Result;
use crate::page::{PageIndex, PageState, Zeroing};
use crate::store::Store;

/// Most pages of one look for an extent: about a millisecond.
const EXTENT_PAGES_MAX: u64 = 1 << 18;

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

    /// The store below.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut parts = self.parts(offset, buffer.len() as u64).peekable();
        while let Some(part) = parts.next() {
            if let Some(next) = parts.peek() {
                self.store.expect(PageIndex(next.index));
            }
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
        let pages = whole_blocks(offset, length, self.store.unit().shift());
        self.store.trim_range(pages)
    }

    fn zero(&self, offset: u64, length: u64, zeroing: Zeroing) -> Result<()> {
        let shift = self.store.unit().shift();
        let pages = whole_blocks(offset, length, shift);
        if zeroing == Zeroing::NoHole || pages.is_empty() {
            return self.zero_parts(offset, length, zeroing);
        }
        // What lies around the whole pages is at most a part of one on either side.
        let (first, end) = (pages.start << shift, pages.end << shift);
        self.zero_parts(offset, first - offset, zeroing)?;
        self.store.punch_range(pages)?;
        self.zero_parts(end, offset + length - end, zeroing)
    }

    fn zero_parts(&self, offset: u64, length: u64, zeroing: Zeroing) -> Result<()> {
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

    fn extent(&self, offset: u64, length: u64) -> Result<Extent> {
        // Nothing is not alike to anything.
        check_range(offset, length.max(1), self.store.size_bytes())?;
        let unit = self.store.unit();
        let end = offset + length.max(1);
        let index = offset >> unit.shift();
        let state = self.store.state(PageIndex(index))?;
        let pages_end = ((end - 1) >> unit.shift()).saturating_add(1);
        let mut next = index + 1;
        for _look in 0..EXTENT_PAGES_MAX {
            if state == PageState::Hole {
                next = self.store.next_touched(next);
            }
            if next >= pages_end || self.store.state(PageIndex(next))? != state {
                break;
            }
            next += 1;
        }
        Ok(Extent {
            length_bytes: end.min(next.min(pages_end) << unit.shift()) - offset,
            state,
        })
    }
}

#[cfg(all(test, not(uzram_shuttle)))]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn extents_tell_how_pages_are_kept_and_end_where_that_changes() {
        for unit in [4096, 16384] {
            let unit_of_store = crate::Unit::new(unit).unwrap();
            let store = Store::builder().size(64 * unit).unit(unit_of_store);
            let disk = Zram::new(store.build().unwrap());
            let text: Vec<u8> = b"words "
                .iter()
                .copied()
                .cycle()
                .take(unit as usize)
                .collect();
            let write = |page: u64, data: &[u8]| {
                let offset = page * unit;
                disk.submit(Bio::Write { offset, data }).unwrap();
            };
            write(3, &text);
            write(4, &vec![0; unit as usize]);
            let zeroing = Zeroing::NoHole;
            let (offset, length) = (5 * unit, unit);
            disk.submit(Bio::Zero {
                offset,
                length,
                zeroing,
            })
            .unwrap();
            write(6, &vec![9; unit as usize]);
            let at = |offset, length| {
                let extent = disk.extent(offset, length).unwrap();
                (extent.length_bytes, extent.state)
            };
            assert_eq!(at(0, 64 * unit), (3 * unit, PageState::Hole));
            assert_eq!(at(unit + 7, unit), (unit, PageState::Hole));
            let (length, state) = at(3 * unit, 2 * unit);
            let size = disk.store().stats().compr_data_size_bytes;
            let size_bytes = u32::try_from(size).unwrap();
            assert_eq!(
                (length, state),
                (unit, PageState::Compressed { size_bytes })
            );
            assert_eq!(at(4 * unit, 60 * unit), (2 * unit, PageState::Same(0)));
            assert!(state != PageState::Hole && !state.is_zero());
            assert_eq!(at(7 * unit - 1, 2), (1, PageState::Same(0x0909_0909)));
            disk.submit(Bio::Trim {
                offset: 3 * unit,
                length: unit,
            })
            .unwrap();
            assert_eq!(at(0, 64 * unit), (4 * unit, PageState::Hole));
            for (offset, length) in [
                (0, 64 * unit + 1),
                (64 * unit, 0),
                (64 * unit, 1),
                (u64::MAX, 2),
            ] {
                let error = disk.extent(offset, length).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::OutOfRange, "{offset} {length}");
            }
        }
    }
}
