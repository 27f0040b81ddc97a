//! A queue without the driver: a ring whose commands do nothing and complete at once, each as a
//! request. It measures what a request costs in this process where the kernel has no driver.
//! Everything from the submission of an answer to the device's call is the code that serves a real
//! disk.

use io_uring::{cqueue, opcode, squeue};
use rustix::io::Errno;
use uzram::{BlockDevice, Error, ErrorKind, Result};

use super::REQUEST_BYTES_MAX;
use super::protocol::{Descriptor, Io};
use super::queue::{Arrival, Queue};
use super::ring::{Ring, Source};

/// Sectors of a page.
const PAGE_SECTORS: u32 = 8;

/// Requests without a driver.
struct Bare {
    is_write: bool,
    pages: u64,
    left: u64,
    /// Requests that are still reads, so that there is data to write.
    reads_left: u64,
}

impl Source for Bare {
    fn entry(&self, _tag: u16, _command: Io, _result: i32, _address: u64) -> squeue::Entry {
        opcode::Nop::new().build()
    }

    fn descriptor(&self, _tag: u16) -> Descriptor {
        Descriptor {
            operation_and_flags: u32::from(self.is_write && self.reads_left == 0),
            sectors: PAGE_SECTORS,
            first_sector: self.left % self.pages * u64::from(PAGE_SECTORS),
        }
    }

    fn arrival(&mut self, entry: &cqueue::Entry) -> Arrival {
        let is_over = self.left == 0;
        self.left = self.left.saturating_sub(1);
        self.reads_left = self.reads_left.saturating_sub(1);
        Arrival {
            tag: entry.user_data(),
            result: match is_over {
                true => -Errno::NODEV.raw_os_error(),
                false => 0,
            },
        }
    }
}

/// Lets a queue carry out `requests` reads or writes of pages on `device`, one page after the
/// other, `depth` at once. The first ones are reads in any case, so that writes have the device's
/// pages to write.
///
/// # Errors
/// [`ErrorKind::Io`] without io_uring.
pub fn drive(device: &dyn BlockDevice, is_write: bool, requests: u64, depth: u16) -> Result<()> {
    let source = Bare {
        is_write,
        pages: (device.geometry().size_bytes / 4096).max(1),
        left: requests,
        reads_left: u64::from(depth) + 1,
    };
    let failed = |error| Error::new(ErrorKind::Io, "io_uring").with_source(error);
    let ring = Ring::over(source, depth, REQUEST_BYTES_MAX).map_err(failed)?;
    Queue::begin(ring, device)
        .map_err(failed)?
        .run()
        .map_err(failed)
}
