//! Block devices: byte ranges in, the engine's pages underneath. A device knows no protocol.

mod brd;
mod btt;
mod medium;
mod parts;
mod pmem;
mod queue;
mod turns;
mod zram;

use crate::error::{Error, ErrorKind, Result};
use crate::page::{PageIndex, PageState, Zeroing};

pub use brd::Brd;
pub use btt::{Btt, BttProblem, BttReport, BttVersion};
pub use medium::{Persistence, PmemFile};
pub use pmem::Pmem;
pub use queue::{AllocatedBio, BioPool, CompletedBio, Direction, EndIo, PageBuffer, Waiter};
pub use zram::Zram;

/// Size of the page that [`BlockDevice::rw_page`] moves, in bytes: the system's, whatever a store's
/// unit is.
pub const PAGE_BYTES: usize = 4096;
/// log2 of [`PAGE_BYTES`].
const PAGE_SHIFT: u32 = PAGE_BYTES.trailing_zeros();

/// What a device tells its clients about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes; every request lies within.
    pub size_bytes: u64,
    /// Requests of this alignment and size avoid read-modify-write, in bytes.
    pub preferred_block_bytes: u32,
}

/// One request to a device. Offsets and lengths are in bytes and need no alignment.
///
/// Its buffers may fault but must be private to the process: a codec reads them more than once.
/// Memory that a guest or another process can change is copied by the frontend first.
#[derive(Debug)]
pub enum Bio<'a> {
    /// Fill `buffer` from `offset` on. On an error the content of `buffer` is unspecified but never
    /// bytes of another page.
    Read {
        /// First byte of the device to read.
        offset: u64,
        /// Where the data goes.
        buffer: &'a mut [u8],
    },
    /// Store `data` from `offset` on. On an error any page of the range holds its old or its new
    /// content, whole.
    Write {
        /// First byte of the device to write.
        offset: u64,
        /// What is written.
        data: &'a [u8],
    },
    /// Complete when everything acknowledged before is as durable as this device makes it.
    Flush,
    /// The range is no longer needed: whole pages become holes that read as zeroes, partial pages
    /// stay as they are.
    Trim {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// The range reads as zeroes afterwards, partial pages included.
    Zero {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Whether whole pages may become holes.
        zeroing: Zeroing,
    },
}

impl Bio<'_> {
    /// The byte range that the request touches, `None` for a flush.
    #[must_use]
    pub fn range(&self) -> Option<(u64, u64)> {
        match self {
            Bio::Read { offset, buffer } => Some((*offset, buffer.len() as u64)),
            Bio::Write { offset, data } => Some((*offset, data.len() as u64)),
            Bio::Flush => None,
            Bio::Trim { offset, length } | Bio::Zero { offset, length, .. } => {
                Some((*offset, *length))
            }
        }
    }
}

/// One page on its way, with nothing else to say about it.
#[derive(Debug)]
pub enum PageTransfer<'a> {
    /// From the device.
    Read(&'a mut [u8; PAGE_BYTES]),
    /// To the device.
    Write(&'a [u8; PAGE_BYTES]),
}

/// A block device. There are three ways to hand it a page: [`rw_page`](BlockDevice::rw_page), a [`Bio`] on the
/// stack, which is complete when `submit` returns, and an [`AllocatedBio`], which may be completed later.
///
/// Implementations take requests from any number of threads at once. Overlapping requests that run
/// at the same time take effect page by page (sector by sector where sectors are smaller) in some
/// order; a request that was acknowledged before
/// another was submitted is never undone by it outside its own byte range.
pub trait BlockDevice: Send + Sync {
    /// Size and preferences; constant for the life of the device.
    fn geometry(&self) -> Geometry;

    /// Carries out one request.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for a range past the end, else what the device says.
    fn submit(&self, bio: Bio<'_>) -> Result<()>;

    /// Moves page `page`, counted in [`PAGE_BYTES`] from the start of the device, straight in or out: the
    /// shortest way for who has a page and waits for it.
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

    /// Whether a page moves at the speed of memory: then waiting for it costs less than giving the CPU
    /// away, and a request on the stack or none at all will do. Otherwise [`BlockDevice::queue`] is
    /// the way.
    fn is_synchronous(&self) -> bool {
        true
    }

    /// How the bytes from `offset` on are kept: at least one and at most `length` bytes that are
    /// alike, and not necessarily all of them: a device bounds how far it looks. A device that does
    /// not know says that it keeps bytes as they are.
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

/// Neighbouring bytes that are kept alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many, in bytes.
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
