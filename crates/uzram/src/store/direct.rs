//! Reads and writes past the page cache (O_DIRECT): whether a file takes them, and memory as they want it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, OFlags, StatxFlags};

use crate::error::Result;
use crate::memory;
use crate::page::Unit;

/// Buffers begin at multiples of this many bytes, and what is written is a multiple long: the most that file systems want
/// where units are of 4 KiB.
pub(super) const ALIGN_BYTES: usize = 4096;

/// Makes the file write directly, and returns the multiple of bytes in which it is then read. None: it does not take
/// that, and goes through the page cache as before. `first` is the content of its first unit, which is written either way
/// if the system writes at all.
///
/// # Errors
/// The system's for the write through the page cache.
pub(super) fn begin(
    file: &File,
    unit: Unit,
    first: &AlignedBytes,
) -> std::io::Result<Option<usize>> {
    if let Some(multiple) = multiple_bytes(file, unit)
        && set(file, true)
    {
        if file.write_all_at(first.bytes(), 0).is_ok() {
            return Ok(Some(multiple));
        }
        end(file);
    }
    file.write_all_at(first.bytes(), 0).map(|()| None)
}

/// As [`begin`], of a file that has its first unit, which says whether it takes direct reads, or whether it cannot be read at all.
///
/// # Errors
/// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
#[cfg(not(uzram_shuttle))]
pub(super) fn begin_again(file: &File, unit: Unit) -> Result<Option<usize>> {
    let mut first = AlignedBytes::new(unit.bytes())?;
    let multiple = multiple_bytes(file, unit).filter(|_| set(file, true));
    if multiple.is_some() && file.read_exact_at(first.bytes_mut(), 0).is_err() {
        end(file);
        return Ok(None);
    }
    Ok(multiple)
}

/// The multiple of bytes in which the file is read and written directly, as far as it is known. None if it does not fit.
fn multiple_bytes(file: &File, unit: Unit) -> Option<usize> {
    let known = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    // Before Linux 6.1, in a sandbox, and of some file systems nothing is known: the first write shows it.
    let (memory, offset) = match known {
        Ok(known)
            if StatxFlags::from_bits_retain(known.stx_mask).contains(StatxFlags::DIOALIGN) =>
        {
            (
                known.stx_dio_mem_align as usize,
                known.stx_dio_offset_align as usize,
            )
        }
        _ => (ALIGN_BYTES, ALIGN_BYTES),
    };
    let fits =
        (1..=ALIGN_BYTES).contains(&memory) && offset.is_power_of_two() && offset <= unit.bytes();
    fits.then_some(offset.max(ALIGN_BYTES))
}

/// Makes the file go through the page cache, as an earlier store or its opener may have left it otherwise.
pub(super) fn end(file: &File) {
    set(file, false);
}

/// Whether it could be done.
fn set(file: &File, direct: bool) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|mut flags| {
        flags.set(OFlags::DIRECT, direct);
        rustix::fs::fcntl_setfl(file, flags).is_ok()
    })
}

/// Bytes that begin at a multiple of [`ALIGN_BYTES`].
#[derive(Debug, Default)]
pub(super) struct AlignedBytes {
    memory: Box<[u8]>,
    start: usize,
    length: usize,
}

impl AlignedBytes {
    /// That many zeroes.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory).
    pub fn new(length: usize) -> Result<AlignedBytes> {
        let memory = memory::boxed_slice(length + ALIGN_BYTES - 1, 0)?;
        let start = memory.as_ptr().align_offset(ALIGN_BYTES);
        Ok(AlignedBytes {
            memory,
            start,
            length,
        })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.length]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_begin_at_a_multiple() {
        for length in [0, 1, 4095, 4096, 4097, 1 << 20] {
            let mut bytes = AlignedBytes::new(length).unwrap();
            assert_eq!(bytes.bytes().as_ptr().addr() % ALIGN_BYTES, 0);
            assert_eq!(bytes.bytes_mut().len(), length);
        }
    }
}
