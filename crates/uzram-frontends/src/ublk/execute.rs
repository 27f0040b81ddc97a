//! One request from its description to its result, without a ring and without the kernel's memory.
//! The tests and the fuzzer drive it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use uzram::{Bio, BlockDevice, Error, ErrorKind, PageIndex, PageTransfer, Result, Zeroing};

use super::protocol::{Descriptor, Operation};

/// Size of the page that goes the shortest way, in bytes.
const PAGE_BYTES: u64 = uzram::device::PAGE_BYTES as u64;
/// The result of a request whose device panicked: `EIO`.
const PANICKED: i32 = -ErrorKind::Io.errno();

/// Carries `request` out on `device`. Data to write comes from `buffer`, and data that is read
/// goes there. Returns the kernel's result: the number of bytes moved, or a negative errno.
///
/// The request is not trusted: the range may lie outside of the device, and the data may not fit
/// the buffer. A device that panics fails the request, and the queue goes on.
pub(super) fn execute(device: &dyn BlockDevice, request: &Descriptor, buffer: &mut [u8]) -> i32 {
    match catch_unwind(AssertUnwindSafe(|| carry_out(device, request, buffer))) {
        // No more than a buffer, which the caller keeps below 2 GiB.
        Ok(Ok(bytes)) => i32::try_from(bytes).unwrap_or(i32::MAX),
        Ok(Err(error)) => -error.errno(),
        Err(_panic) => PANICKED,
    }
}

/// The bytes that were moved.
fn carry_out(device: &dyn BlockDevice, request: &Descriptor, buffer: &mut [u8]) -> Result<u64> {
    let operation = request.operation();
    if operation == Operation::Flush {
        return device.submit(Bio::Flush).map(|()| 0);
    }
    let (offset, length) = request.range().ok_or_else(outside)?;
    let zeroing = match request.keeps_blocks() {
        true => Zeroing::NoHole,
        false => Zeroing::MayPunch,
    };
    match operation {
        Operation::Read => read(device, offset, data(buffer, length)?).map(|()| length),
        Operation::Write => {
            write(device, offset, data(buffer, length)?)?;
            if request.is_forced() {
                device.submit(Bio::Flush)?;
            }
            Ok(length)
        }
        Operation::Discard => device.submit(Bio::Trim { offset, length }).map(|()| 0),
        Operation::WriteZeroes => device
            .submit(Bio::Zero {
                offset,
                length,
                zeroing,
            })
            .map(|()| 0),
        Operation::Flush | Operation::Unknown(_) => Err(Error::new(
            ErrorKind::Unsupported,
            "request of a kind that was not offered",
        )),
    }
}

fn read(device: &dyn BlockDevice, offset: u64, buffer: &mut [u8]) -> Result<()> {
    match (<&mut [u8; _]>::try_from(&mut *buffer).ok(), page(offset)) {
        (Some(whole), Some(page)) => device.rw_page(page, PageTransfer::Read(whole)),
        _ => device.submit(Bio::Read { offset, buffer }),
    }
}

fn write(device: &dyn BlockDevice, offset: u64, data: &[u8]) -> Result<()> {
    match (<&[u8; _]>::try_from(data).ok(), page(offset)) {
        (Some(whole), Some(page)) => device.rw_page(page, PageTransfer::Write(whole)),
        _ => device.submit(Bio::Write { offset, data }),
    }
}

/// The page that starts at `offset`.
fn page(offset: u64) -> Option<PageIndex> {
    offset
        .is_multiple_of(PAGE_BYTES)
        .then_some(PageIndex(offset / PAGE_BYTES))
}

/// The part of the buffer for a request. A request without data is refused like one with too much.
fn data(buffer: &mut [u8], length: u64) -> Result<&mut [u8]> {
    let length = usize::try_from(length).ok().filter(|length| *length > 0);
    let data = length.and_then(|length| buffer.get_mut(..length));
    data.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "request larger than its buffer"))
}

fn outside() -> Error {
    Error::new(
        ErrorKind::OutOfRange,
        "request reaches past the end of the device",
    )
}
