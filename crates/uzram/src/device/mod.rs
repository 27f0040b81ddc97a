//! Block devices: byte ranges above, the engine's pages below. A device knows no protocol.

mod bio;
mod parts;
mod queue;
mod zram;

use crate::error::{Error, ErrorKind, Result};
use crate::page::{PageIndex, PageState};

pub use bio::{Bio, PAGE_BYTES, PAGE_SHIFT, PageTransfer};
pub use parts::{Part, parts, whole_blocks};
pub use queue::{AllocatedBio, BioPool, CompletedBio, Direction, EndIo, PageBuffer, Waiter};
pub use zram::Zram;

/// The properties of a device for its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes; every request lies within.
    pub size_bytes: u64,
    /// Requests of this alignment and size avoid read-modify-write, in bytes.
    pub preferred_block_bytes: u32,
}

/// A block device. There are three ways to pass it a page: [`rw_page`](BlockDevice::rw_page), a
/// [`Bio`] on the stack, which is complete when `submit` returns, and an [`AllocatedBio`], which
/// may be completed later.
///
/// Implementations take requests from any number of threads at once. Overlapping requests that run
/// at the same time take effect page by page (sector by sector where sectors are smaller) in some
/// order. A request that was acknowledged before another was submitted is never undone by it
/// outside of the other's byte range.
pub trait BlockDevice: Send + Sync {
    /// Size and preferences; constant while anybody uses the device.
    fn geometry(&self) -> Geometry;

    /// Carries out one request.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for a range past the end, or the device's error.
    fn submit(&self, bio: Bio<'_>) -> Result<()>;

    /// Moves page `page`, counted in [`PAGE_BYTES`] from the start of the device, straight in or
    /// out: the shortest way for a caller that has a page and waits for it.
    ///
    /// # Errors
    /// As for [`BlockDevice::submit`].
    fn rw_page(&self, page: PageIndex, transfer: PageTransfer<'_>) -> Result<()> {
        let offset = page.0.saturating_mul(PAGE_BYTES as u64);
        self.submit(match transfer {
            PageTransfer::Read(buffer) => Bio::Read { offset, buffer },
            PageTransfer::Write(data) => Bio::Write { offset, data },
        })
    }

    /// Takes a request, and completes it before it returns or later from any thread.
    fn queue(&self, mut bio: AllocatedBio) {
        let result = self.rw_page(bio.page(), bio.transfer());
        bio.complete(result);
    }

    /// Whether a page moves at the speed of memory. Waiting for it then costs less than giving the
    /// CPU away, so `rw_page` or a request on the stack is best. Otherwise use
    /// [`BlockDevice::queue`].
    fn is_synchronous(&self) -> bool {
        true
    }

    /// The state of the bytes from `offset` on: at least one and at most `length` bytes of equal
    /// state, and not necessarily all of them, because a device bounds its search. A device
    /// without this knowledge says that the bytes are kept raw.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for a range past the end or of no length.
    fn extent(&self, offset: u64, length: u64) -> Result<Extent> {
        check_range(offset, length.max(1), self.geometry().size_bytes)?;
        Ok(Extent {
            length_bytes: length.max(1),
            state: PageState::Raw,
        })
    }
}

/// Neighbouring bytes of equal state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Their number, in bytes.
    pub length_bytes: u64,
    /// The state of each page that they lie in.
    pub state: PageState,
}

/// Refuses a range that does not lie within `size_bytes`, overflow included.
///
/// # Errors
/// [`ErrorKind::OutOfRange`].
pub fn check_range(offset: u64, length: u64, size_bytes: u64) -> Result<()> {
    match offset.checked_add(length) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(Error::new(
            ErrorKind::OutOfRange,
            "request reaches past the end of the device",
        )),
    }
}
