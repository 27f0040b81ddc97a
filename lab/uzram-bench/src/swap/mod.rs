//! A swap area: slots of one page on a block device.
//!
//! A slot is a value that cannot be copied. Its holder owns the slot and gives it back once, and
//! nobody else reads or writes it. Giving it back tells the device that the page is not needed (a
//! trim), so a compressing device frees its memory at once and not only when the slot is written
//! again.
//!
//! A page is passed by value and comes back with the result: a failed write loses nothing.

mod latency;
mod slots;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use uzram::{
    Bio, BioPool, BlockDevice, CompletedBio, Direction, EndIo, Error, ErrorKind, PageBuffer,
    PageIndex, PageTransfer, Result, Waiter,
};

pub use latency::Latency;
use slots::SlotMap;
pub use slots::SwapSlot;

/// Size of a page, in bytes.
const PAGE_BYTES: u64 = 4096;
/// Requests under way at once by allocated bio.
const REQUESTS: usize = 64;

/// The way in which a page is handed to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPath {
    /// Straight into the device.
    RwPage,
    /// By a request on the stack.
    OnStackBio,
    /// By a request from a pool, which any thread may complete.
    AllocatedBio,
}

impl IoPath {
    /// All of them, the shortest first.
    pub const ALL: [IoPath; 3] = [IoPath::RwPage, IoPath::OnStackBio, IoPath::AllocatedBio];

    /// Its name, as the kernel's history has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IoPath::RwPage => "rw_page",
            IoPath::OnStackBio => "on-stack bio",
            IoPath::AllocatedBio => "allocated bio",
        }
    }
}

/// Slots on a device, and the way to them.
pub struct SwapArea {
    device: Arc<dyn BlockDevice>,
    path: IoPath,
    slots: SlotMap,
    bios: BioPool,
    read: Latency,
    write: Latency,
}

impl SwapArea {
    /// An area of all whole pages of `device`, whose content is lost.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a device of less than a page or more than 16 TiB, or for a
    /// way that needs a synchronous device on one that is not; [`ErrorKind::NoMemory`].
    pub fn new(device: Arc<dyn BlockDevice>, path: IoPath) -> Result<SwapArea> {
        if path != IoPath::AllocatedBio && !device.is_synchronous() {
            let text = format!(
                "{}: only for devices at the speed of memory; take allocated bios",
                path.name()
            );
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let pages = device.geometry().size_bytes / PAGE_BYTES;
        Ok(SwapArea {
            slots: SlotMap::new(pages)?,
            device,
            path,
            bios: BioPool::new(REQUESTS)?,
            read: Latency::new()?,
            write: Latency::new()?,
        })
    }

    /// A free slot, or `None` if all are taken. Successive slots of a thread lie next to each
    /// other where possible.
    #[must_use]
    pub fn allocate(&self) -> Option<SwapSlot> {
        self.slots.allocate()
    }

    /// Slots that are taken.
    #[cfg(test)]
    pub fn used_slots(&self) -> u64 {
        self.slots.used()
    }

    /// Gives a slot back. Its content is gone.
    ///
    /// # Errors
    /// Those of the device's trim; the slot is free all the same.
    pub fn free(&self, slot: SwapSlot) -> Result<()> {
        // Before somebody else can have the slot and write to it.
        let told = self.device.submit(Bio::Trim {
            offset: slot.page().0 * PAGE_BYTES,
            length: PAGE_BYTES,
        });
        self.slots.free(slot);
        told
    }

    /// Writes `page` to `slot`. The page comes back whatever happens.
    pub fn swap_writepage(&self, slot: &SwapSlot, page: PageBuffer) -> CompletedBio {
        let started = Instant::now();
        let done = self.carry(slot.page(), Direction::Write, page);
        self.write.record(started.elapsed());
        done
    }

    /// Reads the content of `slot` into `page`.
    pub fn swap_readpage(&self, slot: &SwapSlot, page: PageBuffer) -> CompletedBio {
        let started = Instant::now();
        let done = self.carry(slot.page(), Direction::Read, page);
        self.read.record(started.elapsed());
        done
    }

    /// The latencies of writes.
    #[must_use]
    pub fn write_latency(&self) -> &Latency {
        &self.write
    }

    /// The latencies of reads.
    #[must_use]
    pub fn read_latency(&self) -> &Latency {
        &self.read
    }

    fn carry(&self, page: PageIndex, direction: Direction, mut buffer: PageBuffer) -> CompletedBio {
        let result = match self.path {
            IoPath::RwPage => self.device.rw_page(
                page,
                match direction {
                    Direction::Read => PageTransfer::Read(&mut buffer),
                    Direction::Write => PageTransfer::Write(&buffer),
                },
            ),
            IoPath::OnStackBio => {
                let offset = page.0 * PAGE_BYTES;
                self.device.submit(match direction {
                    Direction::Read => Bio::Read {
                        offset,
                        buffer: &mut buffer[..],
                    },
                    Direction::Write => Bio::Write {
                        offset,
                        data: &buffer[..],
                    },
                })
            }
            IoPath::AllocatedBio => {
                return WAITER.with(|waiter| {
                    let end = Arc::clone(waiter) as Arc<dyn EndIo>;
                    self.device
                        .queue(self.bios.allocate(page, direction, buffer, end));
                    waiter.wait()
                });
            }
        };
        CompletedBio { buffer, result }
    }
}

thread_local! {
    /// A thread waits for one request at a time.
    static WAITER: Arc<Waiter> = Arc::default();
}
