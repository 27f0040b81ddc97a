//! The plain RAM disk: uncompressed pages, in memory that the first write takes and a trim frees.
//!
//! A page's place is its index: the address space of the whole disk is reserved, and one bit per
//! page says whether the page has memory. The bits lie in reserved space too and take memory only
//! where they are set. So a disk costs the memory of what was written to it, whatever its size.
//! Looking a page up takes one load and no lock. Its content is copied under the page's turn, so
//! that concurrent requests see pages whole.

#![allow(unsafe_code)]

use std::ops::Range;

use uzram::device::{PAGE_BYTES, PAGE_SHIFT, Part, check_range, parts, whole_blocks};
use uzram::{Bio, BlockDevice, Geometry, PageIndex, PageTransfer, Result, Zeroing};

use crate::mapping::Mapping;
use crate::sync::{AtomicU64, Ordering};
use crate::turns::Turns;

/// Pages whose memory goes back to the system at once: one word of bits.
const RUN_PAGES: u64 = u64::BITS as u64;

/// A RAM disk that compresses nothing.
///
/// ```
/// use uzram::{Bio, BlockDevice};
/// use uzram_media::Brd;
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
    memory: Mapping,
    /// One bit per page: whether it has memory. Changed in the page's turn only.
    present: Bits,
    pages_used: AtomicU64,
    turns: Turns,
    size_bytes: u64,
}

/// One bit per page, all clear at first.
#[derive(Debug)]
struct Bits {
    /// Words of [`RUN_PAGES`] bits.
    words: Mapping,
}

impl Bits {
    fn new(bits: u64) -> Result<Bits> {
        let words = bits.div_ceil(RUN_PAGES) as usize;
        Ok(Bits {
            words: Mapping::reserve(words * size_of::<u64>())?,
        })
    }

    /// The word of `page`'s bit.
    #[inline]
    fn word(&self, page: u64) -> &AtomicU64 {
        let at = Self::place(page);
        let word = self.words.pointer(at.start, at.len()).cast();
        // SAFETY: `pointer` checked that the word lies in the mapping, which lives as long as the
        // reference and begins at a page, hence the alignment; all access to it is through atomics.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Makes memory for `page`'s bit, which keeps its value.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](uzram::ErrorKind::NoMemory).
    fn populate(&self, page: u64) -> Result<()> {
        // A word with a bit in it has memory.
        if self.word(page).load(Ordering::Relaxed) != 0 {
            return Ok(());
        }
        let first = Self::place(page).start / PAGE_BYTES * PAGE_BYTES;
        self.words.populate(first..first + PAGE_BYTES)
    }

    /// Sets `page`'s bit. [`Bits::populate`] must have made memory for it.
    fn set(&self, page: u64) {
        let bit = 1 << (page % RUN_PAGES);
        self.word(page).fetch_or(bit, Ordering::Release);
    }

    /// The offset of the word of `page`'s bit, in bytes.
    #[inline]
    fn place(page: u64) -> Range<usize> {
        let start = (page / RUN_PAGES) as usize * size_of::<u64>();
        start..start + size_of::<u64>()
    }
}

impl Brd {
    /// A disk of `size_bytes`, rounded up to whole pages of 4096 bytes, that reads as zeroes.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`](uzram::ErrorKind::NoMemory) if the address space is too small for
    /// it.
    pub fn new(size_bytes: u64) -> Result<Brd> {
        let length = usize::try_from(size_bytes).unwrap_or(usize::MAX);
        let memory = Mapping::reserve(length)?;
        let size_bytes = memory.length_bytes() as u64;
        Ok(Brd {
            memory,
            present: Bits::new(size_bytes >> PAGE_SHIFT)?,
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
            self.present.populate(page)?;
            let first = (page << PAGE_SHIFT) as usize;
            self.memory.populate(first..first + PAGE_BYTES)?;
            self.present.set(page);
            self.pages_used.fetch_add(1, Ordering::Relaxed);
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

    /// Frees the memory of `pages`, in runs of [`RUN_PAGES`].
    fn trim_pages(&self, pages: Range<u64>) {
        let mut at = pages.start;
        while at < pages.end {
            let run_end = (at / RUN_PAGES + 1) * RUN_PAGES;
            if self.present.word(at).load(Ordering::Acquire) == 0 {
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

    /// Frees the memory of `pages`, which lie in one run, in their turns.
    fn release(&self, pages: Range<u64>) {
        let count = (pages.end - pages.start) as u32;
        let mask = (u64::MAX >> (u64::BITS - count)) << (pages.start % RUN_PAGES);
        let word = self.present.word(pages.start);
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
        let word = self.present.word(page).load(Ordering::Acquire);
        word >> (page % RUN_PAGES) & 1 != 0
    }

    #[inline]
    fn at(&self, page: u64, start: usize, length: usize) -> *mut u8 {
        let first = (page << PAGE_SHIFT) as usize + start;
        self.memory.pointer(first, length)
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
