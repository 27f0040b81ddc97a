//! The plain RAM disk: pages as they are, in memory that comes with the first write and goes with a
//! trim.
//!
//! A page's place is its index: the address space of the whole disk is reserved, and one bit a page
//! says whether it has memory. Looking a page up takes one load and no lock. Its content is copied
//! under the page's turn, so that concurrent requests see pages whole.

#![allow(unsafe_code)]

use super::parts::{Part, parts, whole_blocks};
use super::turns::Turns;
use super::{Bio, BlockDevice, Geometry, PAGE_BYTES, PAGE_SHIFT, PageTransfer, check_range};
use crate::error::Result;
use crate::memory;
use crate::page::{PageIndex, Zeroing};
use crate::region::{Backing, Region};
use crate::sync::{AtomicU64, Ordering};

/// Pages whose memory goes back to the system at once: as many as a word has bits.
const RUN_PAGES: u64 = u64::BITS as u64;

/// A RAM disk that compresses nothing.
///
/// ```
/// use uzram::{Bio, BlockDevice, Brd};
///
/// let disk = Brd::new(1 << 20)?;
/// disk.submit(Bio::Write { offset: 5000, data: b"anything" })?;
/// assert_eq!(disk.used_bytes(), 4096);
/// disk.submit(Bio::Trim { offset: 0, length: 1 << 20 })?;
/// assert_eq!(disk.used_bytes(), 0);
/// # Ok::<(), uzram::Error>(())
/// ```
#[derive(Debug)]
pub struct Brd {
    memory: Region,
    /// One bit a page: whether it has memory. Changed in the page's turn only.
    present: Box<[PresentWord]>,
    pages_used: AtomicU64,
    turns: Turns,
    size_bytes: u64,
}

/// Cloned only while the table is made.
#[derive(Debug, Default)]
struct PresentWord(AtomicU64);

impl Clone for PresentWord {
    fn clone(&self) -> PresentWord {
        PresentWord::default()
    }
}

impl Brd {
    /// A disk of `size_bytes`, rounded up to whole pages of 4096 bytes, that reads as zeroes.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory) if the address space does not hold it.
    pub fn new(size_bytes: u64) -> Result<Brd> {
        let length = usize::try_from(size_bytes).unwrap_or(usize::MAX);
        let memory = Region::reserve(length, Backing::Private)?;
        memory.keep_small();
        let size_bytes = memory.length_bytes() as u64;
        let words = (size_bytes >> PAGE_SHIFT).div_ceil(RUN_PAGES) as usize;
        Ok(Brd {
            memory,
            present: memory::boxed_slice(words, PresentWord::default())?,
            pages_used: AtomicU64::new(0),
            turns: Turns::new()?,
            size_bytes,
        })
    }

    /// Memory that pages take now, in bytes.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.pages_used.load(Ordering::Relaxed) << PAGE_SHIFT
    }

    fn read_part(&self, page: u64, start: usize, buffer: &mut [u8]) {
        if self.is_present(page) {
            let _turn = self.turns.take(page);
            if self.is_present(page) {
                let from = self.at(page, start, buffer.len());
                // SAFETY: the page has memory and stays as it is during its turn; `at` checked that
                // the bytes lie in it. The buffer is a Rust reference, hence elsewhere.
                unsafe { std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len()) };
                return;
            }
        }
        buffer.fill(0);
    }

    fn write_part(&self, page: u64, start: usize, data: &[u8]) -> Result<()> {
        let _turn = self.turns.take(page);
        if !self.is_present(page) {
            let first = (page << PAGE_SHIFT) as usize;
            self.memory.populate_as_advised(first..first + PAGE_BYTES)?;
            self.set_present(page);
        }
        let to = self.at(page, start, data.len());
        // SAFETY: as in `read_part`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    fn zero_part(&self, part: &Part, zeroing: Zeroing) -> Result<()> {
        const ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        if zeroing == Zeroing::MayPunch && !self.is_present(part.index) {
            return Ok(());
        }
        self.write_part(part.index, part.start, &ZEROES[..part.bytes.len()])
    }

    /// Takes the memory of `pages` away, runs of [`RUN_PAGES`] at once.
    fn trim_pages(&self, pages: std::ops::Range<u64>) {
        let mut at = pages.start;
        while at < pages.end {
            let run_end = (at / RUN_PAGES + 1) * RUN_PAGES;
            if self.present[(at / RUN_PAGES) as usize]
                .0
                .load(Ordering::Acquire)
                == 0
            {
                at = run_end;
            } else if at.is_multiple_of(RUN_PAGES) && run_end <= pages.end {
                let _turns = self.turns.take_run::<{ RUN_PAGES as usize }>(at);
                self.release(at..run_end);
                at = run_end;
            } else {
                let _turn = self.turns.take(at);
                self.release(at..at + 1);
                at += 1;
            }
        }
    }

    /// Releases the memory of `pages`, of one run, in their turns.
    fn release(&self, pages: std::ops::Range<u64>) {
        let count = (pages.end - pages.start) as u32;
        let mask = (u64::MAX >> (u64::BITS - count)) << (pages.start % RUN_PAGES);
        let word = &self.present[(pages.start / RUN_PAGES) as usize].0;
        let had = word.fetch_and(!mask, Ordering::AcqRel) & mask;
        if had != 0 {
            let bytes = pages.start << PAGE_SHIFT..pages.end << PAGE_SHIFT;
            self.memory
                .release(bytes.start as usize..bytes.end as usize);
            let gone = u64::from(had.count_ones());
            self.pages_used.fetch_sub(gone, Ordering::Relaxed);
        }
    }

    #[inline]
    fn is_present(&self, page: u64) -> bool {
        let word = self.present[(page / RUN_PAGES) as usize]
            .0
            .load(Ordering::Acquire);
        word >> (page % RUN_PAGES) & 1 != 0
    }

    fn set_present(&self, page: u64) {
        let bit = 1 << (page % RUN_PAGES);
        self.present[(page / RUN_PAGES) as usize]
            .0
            .fetch_or(bit, Ordering::Release);
        self.pages_used.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn at(&self, page: u64, start: usize, length: usize) -> *mut u8 {
        let first = (page << PAGE_SHIFT) as usize + start;
        self.memory.pointer(&(first..first + length)).as_ptr()
    }
}

impl BlockDevice for Brd {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes,
            preferred_block_bytes: PAGE_BYTES as u32,
        }
    }

    fn submit(&self, bio: Bio<'_>) -> Result<()> {
        if let Some((offset, length)) = bio.range() {
            check_range(offset, length, self.size_bytes)?;
        }
        match bio {
            Bio::Read { offset, buffer } => {
                for part in parts(offset, buffer.len() as u64, PAGE_SHIFT) {
                    self.read_part(part.index, part.start, &mut buffer[part.bytes]);
                }
                Ok(())
            }
            Bio::Write { offset, data } => parts(offset, data.len() as u64, PAGE_SHIFT)
                .try_for_each(|part| self.write_part(part.index, part.start, &data[part.bytes])),
            Bio::Flush => Ok(()),
            Bio::Trim { offset, length } => {
                self.trim_pages(whole_blocks(offset, length, PAGE_SHIFT));
                Ok(())
            }
            Bio::Zero {
                offset,
                length,
                zeroing,
            } => {
                let whole = whole_blocks(offset, length, PAGE_SHIFT);
                if zeroing == Zeroing::MayPunch {
                    self.trim_pages(whole.clone());
                }
                parts(offset, length, PAGE_SHIFT)
                    .filter(|part| zeroing == Zeroing::NoHole || !whole.contains(&part.index))
                    .try_for_each(|part| self.zero_part(&part, zeroing))
            }
        }
    }

    fn rw_page(&self, page: PageIndex, transfer: PageTransfer<'_>) -> Result<()> {
        check_range(
            page.0.saturating_mul(PAGE_BYTES as u64),
            PAGE_BYTES as u64,
            self.size_bytes,
        )?;
        match transfer {
            PageTransfer::Read(buffer) => {
                self.read_part(page.0, 0, buffer);
                Ok(())
            }
            PageTransfer::Write(data) => self.write_part(page.0, 0, data),
        }
    }
}
