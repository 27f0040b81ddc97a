//! Requests: byte ranges with their buffers, and single pages.

use crate::page::Zeroing;

/// Size of the page that [`BlockDevice::rw_page`](super::BlockDevice::rw_page) moves, in bytes:
/// the system's page size, whatever the store's unit.
pub const PAGE_BYTES: usize = 4096;
/// log2 of [`PAGE_BYTES`].
pub const PAGE_SHIFT: u32 = PAGE_BYTES.trailing_zeros();

/// One request to a device. Offsets and lengths are in bytes and need no alignment.
///
/// Its buffers may fault but must be private to the process, because a codec reads them more than
/// once. A frontend first copies memory that a guest or another process can change.
#[derive(Debug)]
pub enum Bio<'a> {
    /// Fill `buffer` from `offset` on. On an error the content of `buffer` is unspecified but never
    /// bytes of another page.
    Read {
        /// First byte of the device to read.
        offset: u64,
        /// The buffer for the data.
        buffer: &'a mut [u8],
    },
    /// Store `data` from `offset` on. On an error any page of the range holds its old or its new
    /// content, whole.
    Write {
        /// First byte of the device to write.
        offset: u64,
        /// The data.
        data: &'a [u8],
    },
    /// Completes when everything acknowledged before is as durable as this device makes it.
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

/// The direction and memory of one page.
#[derive(Debug)]
pub enum PageTransfer<'a> {
    /// From the device.
    Read(&'a mut [u8; PAGE_BYTES]),
    /// To the device.
    Write(&'a [u8; PAGE_BYTES]),
}
