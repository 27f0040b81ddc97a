//! Persistent memory as a disk: bytes at their place in a [`PmemFile`], nothing else.
//!
//! A write goes past the caches and is published when it is acknowledged. A flush makes all writes
//! durable. Concurrent requests see pages of 4096 bytes whole; after a power cut pages may be
//! torn, which [`Btt`](crate::Btt) avoids.

use uzram::device::{PAGE_BYTES, PAGE_SHIFT, check_range, parts, whole_blocks};
use uzram::{Bio, BlockDevice, Geometry, PageIndex, PageTransfer, Result};

use crate::medium::{Medium, PmemFile};
use crate::turns::Turns;

/// A disk on persistent memory.
///
/// Its blocks stay allocated: a trim stores zeroes.
#[derive(Debug)]
pub struct Pmem {
    medium: PmemFile,
    turns: Turns,
}

impl Pmem {
    /// A disk of the file's size and content.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](uzram::ErrorKind::NoMemory).
    pub fn new(medium: PmemFile) -> Result<Pmem> {
        Ok(Pmem {
            medium,
            turns: Turns::new()?,
        })
    }

    /// The file below.
    #[must_use]
    pub fn medium(&self) -> &PmemFile {
        &self.medium
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        for part in parts(offset, buffer.len() as u64, PAGE_SHIFT) {
            let _turn = self.turns.take(part.index);
            let at = offset + part.bytes.start as u64;
            self.medium.read(at, &mut buffer[part.bytes])?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        for part in parts(offset, data.len() as u64, PAGE_SHIFT) {
            let _turn = self.turns.take(part.index);
            let at = offset + part.bytes.start as u64;
            self.medium.write(at, &data[part.bytes])?;
            // Within the turn: who takes the next one must see it.
            self.medium.publish();
        }
        Ok(())
    }

    fn zero(&self, offset: u64, length: u64) -> Result<()> {
        for part in parts(offset, length, PAGE_SHIFT) {
            let _turn = self.turns.take(part.index);
            let at = offset + part.bytes.start as u64;
            self.medium.zero(at, part.bytes.len() as u64)?;
            self.medium.publish();
        }
        Ok(())
    }
}

impl BlockDevice for Pmem {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.medium.size_bytes(),
            preferred_block_bytes: PAGE_BYTES as u32,
        }
    }

    fn submit(&self, bio: Bio<'_>) -> Result<()> {
        if let Some((offset, length)) = bio.range() {
            check_range(offset, length, self.medium.size_bytes())?;
        }
        match bio {
            Bio::Read { offset, buffer } => self.read(offset, buffer),
            Bio::Write { offset, data } => self.write(offset, data),
            Bio::Flush => self.medium.flush(),
            Bio::Trim { offset, length } => {
                let whole = whole_blocks(offset, length, PAGE_SHIFT);
                self.zero(
                    whole.start << PAGE_SHIFT,
                    (whole.end - whole.start) << PAGE_SHIFT,
                )
            }
            Bio::Zero { offset, length, .. } => self.zero(offset, length),
        }
    }

    fn rw_page(&self, page: PageIndex, transfer: PageTransfer<'_>) -> Result<()> {
        let offset = page.0.saturating_mul(PAGE_BYTES as u64);
        let _turn = self.turns.take(page.0);
        match transfer {
            PageTransfer::Read(buffer) => self.medium.read(offset, buffer),
            PageTransfer::Write(data) => {
                self.medium.write(offset, data)?;
                self.medium.publish();
                Ok(())
            }
        }
    }
}
