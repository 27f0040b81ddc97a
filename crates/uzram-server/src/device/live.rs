//! The data of a device while it has a size, and the way to it of a file that is there longer.

use std::sync::{Arc, PoisonError, RwLock};

use uzram::{
    Bio, BlockDevice, Error, ErrorKind, Extent, Geometry, PageIndex, PageTransfer, Remains, Result,
    Stats, Store,
};

use crate::backing::Backing;
use crate::latencies::Latencies;
use crate::requests::{Counted, Requests};

/// The block that a device without a size prefers, in bytes.
const BLOCK_BYTES: u32 = 4096;

/// The data of a device, from the write of its `disksize` to its reset.
pub struct Live {
    backing: Backing,
    counted: Arc<Counted>,
}

impl Live {
    pub(super) fn new(backing: Backing) -> Live {
        let counted = Arc::new(Counted::new(backing.device()));
        Live { backing, counted }
    }

    /// Its pages, if it compresses any.
    #[must_use]
    pub fn store(&self) -> Option<&Store> {
        self.backing.store()
    }

    /// Its counters; those that its kind does not have are 0.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.backing.stats()
    }

    /// The requests to it since it was made or emptied.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.counted.requests()
    }

    /// The times of its reads and of its writes, over the same time.
    #[must_use]
    pub fn latencies(&self) -> [Latencies; 2] {
        self.counted.latencies()
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.backing.device().geometry().size_bytes
    }

    /// The device as frontends read and write it.
    pub(super) fn block_device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.counted) as _
    }

    /// As [`Backing::remains`].
    pub(super) fn remains(&self) -> crate::error::Result<Option<Remains>> {
        self.backing.remains()
    }

    pub(super) fn empty(&self) -> crate::error::Result<()> {
        self.backing.reset()?;
        self.counted.reset();
        Ok(())
    }
}

/// A block device that is another one, or none: then its size is 0. A mounted file is one, because it is
/// there before its device has a size and after. Who changes it keeps everybody else away meanwhile.
#[derive(Default)]
pub(super) struct Switch(RwLock<Option<Arc<dyn BlockDevice>>>);

impl Switch {
    pub(super) fn set(&self, device: Option<Arc<dyn BlockDevice>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = device;
    }

    fn with<T>(&self, ask: impl FnOnce(&dyn BlockDevice) -> T) -> Option<T> {
        let device = self.0.read().unwrap_or_else(PoisonError::into_inner);
        device.as_deref().map(ask)
    }
}

fn nothing() -> Error {
    Error::new(ErrorKind::OutOfRange, "the disk has no size")
}

impl BlockDevice for Switch {
    fn geometry(&self) -> Geometry {
        self.with(|device| device.geometry()).unwrap_or(Geometry {
            size_bytes: 0,
            preferred_block_bytes: BLOCK_BYTES,
        })
    }

    fn submit(&self, bio: Bio<'_>) -> Result<()> {
        self.with(|device| device.submit(bio))
            .unwrap_or_else(|| Err(nothing()))
    }

    fn rw_page(&self, page: PageIndex, transfer: PageTransfer<'_>) -> Result<()> {
        self.with(|device| device.rw_page(page, transfer))
            .unwrap_or_else(|| Err(nothing()))
    }

    fn extent(&self, offset: u64, length: u64) -> Result<Extent> {
        self.with(|device| device.extent(offset, length))
            .unwrap_or_else(|| Err(nothing()))
    }
}
