//! uzram's side: the library's public API, nothing else.

use std::sync::Arc;

use uzram::{Bio, BlockDevice, PageIndex, Store, Zram};

use crate::corpus::PAGE_BYTES;
use crate::error::Result;
use crate::side::Pages;
use crate::sink::SEQUENTIAL_BYTES;
use crate::workload::{Case, Workload};

/// A disk as large as the working set; threads may share it.
pub(crate) fn disk(algorithm: &str, workload: &Workload) -> Result<Arc<Zram>> {
    let builder = Store::builder()
        .size(workload.bytes() as u64)
        .algorithm(algorithm);
    Ok(Arc::new(Zram::new(builder.build()?)))
}

impl Pages for Arc<Zram> {
    fn begin(&mut self, case: Case) -> Result<()> {
        if case == Case::FirstWrite {
            self.store().reset();
        }
        Ok(())
    }

    fn request_pages(&self) -> usize {
        SEQUENTIAL_BYTES / PAGE_BYTES
    }

    #[inline]
    fn write(&mut self, place: usize, pages: &[u8]) -> Result<()> {
        for (place, page) in (place..).zip(pages.chunks_exact(PAGE_BYTES)) {
            self.store().write(PageIndex(place as u64), page)?;
        }
        Ok(())
    }

    #[inline]
    fn read(&mut self, place: usize, pages: &mut [u8]) -> Result<()> {
        if pages.len() == PAGE_BYTES {
            return Ok(self.store().read(PageIndex(place as u64), pages)?);
        }
        let (offset, buffer) = ((place * PAGE_BYTES) as u64, pages);
        Ok(self.submit(Bio::Read { offset, buffer })?)
    }

    fn compressed_bytes(&self) -> Result<Option<u64>> {
        Ok(Some(self.store().stats().compr_data_size_bytes))
    }
}
