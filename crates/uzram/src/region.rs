//! The engine's only memory mapping: a range of address space whose pages are populated and
//! released.
//!
//! A region reserves addresses, not memory. [`Region::populate`] makes pages, and reports failure
//! as an error where a plain store would fault. [`Region::release`] gives them back. A region is
//! advised against huge pages, except for the moment in which some are populated. Otherwise the
//! system would join the rest of a huge page again, with pages that nobody asked for. So a region
//! is one mapping to the system, and two more for each thread that is populating. Offsets into a
//! region mean the same in every process that maps it, so nothing stored in one may hold a
//! pointer.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::fd::OwnedFd;
use rustix::fs::SeekFrom;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Error, ErrorKind, Result};
use crate::headroom;
use crate::memory;
use crate::sync::{MappedU32, MappedU64};
use crate::system_page;

/// Size of a huge page, and the granularity of a region's start address, in bytes.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The granularity of what the engine keeps in regions, in bytes. The system's pages may be larger.
pub(crate) const PAGE_BYTES: usize = 4096;

/// The backing of a region's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Anonymous memory of this process.
    Private,
    /// An anonymous file. Another process can map it, and it outlives this process there.
    Memfd,
}

/// A mapped range, zero-filled where nothing was written, aligned to [`HUGE_PAGE_BYTES`].
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    length_bytes: usize,
    mapping: NonNull<c_void>,
    mapping_bytes: usize,
    /// Bytes of the system's page: a power of two, and at most [`HUGE_PAGE_BYTES`].
    system_page_bytes: usize,
    file: Option<OwnedFd>,
}

// SAFETY: a region is plain memory owned by this value; it hands out shared references only to
// atomics, and raw pointers whose use is its caller's duty.
unsafe impl Send for Region {}
// SAFETY: as above; all methods take `&self` and change nothing but page tables.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `length_bytes`, rounded up to whole pages, of the system too.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`] if the address space or the system does not have that much.
    pub(crate) fn reserve(length_bytes: usize, backing: Backing) -> Result<Region> {
        memory::gate()?;
        headroom::prepare();
        let file = match backing {
            Backing::Private => None,
            Backing::Memfd => {
                let length_bytes = round_up(length_bytes)?;
                let file = memfd(length_bytes as u64);
                Some(file.map_err(|errno| reserve_error(length_bytes, errno))?)
            }
        };
        Region::map(length_bytes, file)
    }

    /// Maps the memory of `file`, a region of `length_bytes` that another process may have reserved, once more. `what` names
    /// it in errors.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] unless it is a memfd of that length which cannot shrink and can be written;
    /// [`ErrorKind::NoMemory`] if the address space does not suffice.
    pub(crate) fn attach(file: OwnedFd, length_bytes: usize, what: &str) -> Result<Region> {
        memory::gate()?;
        let refused = |why: String| {
            let text =
                format!("the {what} of the store to take over {why}; pass on what its maker had");
            Error::new(ErrorKind::InvalidInput, text)
        };
        // Another file might be cut short by anybody at any time, and then a mere look at it would end the process.
        let seals = rustix::fs::fcntl_get_seals(&file)
            .map_err(|errno| refused("is no memfd".into()).with_source(errno))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(refused("can shrink".into()));
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(refused("is sealed against writing".into()));
        }
        let has_bytes = rustix::fs::fstat(&file)
            .map_err(|errno| refused("has no size".into()).with_source(errno))?
            .st_size;
        let wanted_bytes = round_up(length_bytes)?;
        if u64::try_from(has_bytes) != Ok(wanted_bytes as u64) {
            let why = format!("has {has_bytes} bytes instead of {wanted_bytes}");
            return Err(refused(why));
        }
        Region::map(length_bytes, Some(file))
    }

    /// The next bytes from `from` on that the file has pages for. None for private memory.
    pub(crate) fn next_data(&self, from: usize) -> Option<Range<usize>> {
        self.next_data_within(from..self.length_bytes)
    }

    /// The same within a range. The system walks over all data up to the next hole, so it is not asked of data behind.
    fn next_data_within(&self, range: Range<usize>) -> Option<Range<usize>> {
        let file = self.file.as_ref()?;
        let seek = |to| rustix::fs::seek(file, to).ok().map(|at| at as usize);
        let start = seek(SeekFrom::Data(range.start as u64))?;
        if start >= range.end {
            return None;
        }
        let end = seek(SeekFrom::Hole(start as u64))?.min(range.end);
        (start < end).then_some(start..end)
    }

    /// Maps the same file once more, without a descriptor of it, so that nothing of it is ever given back there; none for
    /// private memory.
    ///
    /// # Errors
    /// As [`Region::reserve`] and [`Region::file`].
    pub(crate) fn again(&self) -> Result<Option<Region>> {
        memory::gate()?;
        let Some(file) = self.file()? else {
            return Ok(None);
        };
        let mut region = Region::map(self.length_bytes, Some(file))?;
        region.file = None;
        Ok(Some(region))
    }

    /// Another descriptor of the memory, if it is a file's.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no more descriptors may be had.
    pub(crate) fn file(&self) -> Result<Option<OwnedFd>> {
        let cloned = self.file.as_ref().map(OwnedFd::try_clone).transpose();
        cloned.map_err(|error| {
            let text = "no descriptor for a store's memory; raise the limit of open files";
            Error::new(ErrorKind::Io, text).with_source(error)
        })
    }

    fn map(length_bytes: usize, file: Option<OwnedFd>) -> Result<Region> {
        let length_bytes = round_up(length_bytes)?;
        // An anonymous mapping over-reserves so that an aligned start exists within; the file is
        // then mapped over that part.
        let mapping_bytes = length_bytes
            .checked_add(HUGE_PAGE_BYTES)
            .ok_or_else(|| reserve_error(length_bytes, Errno::NOMEM))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let mapping = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapping_bytes,
                protection,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|errno| reserve_error(length_bytes, errno))?;
        let padding = mapping.addr().wrapping_neg() % HUGE_PAGE_BYTES;
        let mut region = Region {
            start: NonNull::new(mapping.wrapping_byte_add(padding).cast())
                .expect("mmap does not return page zero"),
            length_bytes,
            mapping: NonNull::new(mapping).expect("mmap does not return page zero"),
            mapping_bytes,
            system_page_bytes: system_page::size_bytes(),
            file: None,
        };
        if file.is_none() {
            region.have_had_memory();
        }
        if let Some(file) = file {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
            let at = region.start.as_ptr().cast();
            // SAFETY: replaces a part of the mapping made above, which nothing refers to yet.
            unsafe { rustix::mm::mmap(at, length_bytes, protection, flags, &file, 0) }
                .map_err(|errno| reserve_error(length_bytes, errno))?;
            region.file = Some(file);
            // A core dump would make a page of each hole, and write all of it before a successor may come.
            region.advise(&(0..length_bytes), Advice::LinuxDontDump);
        }
        region.advise(&(0..length_bytes), Advice::LinuxNoHugepage);
        Ok(region)
    }

    /// Gives the region a page and takes it back. Before Linux 6.16 a mapping that has had memory is not joined with a
    /// neighbour that never had, so parts that were advised apart for a moment would stay apart.
    fn have_had_memory(&self) {
        // The system may answer with a huge page: all of it goes.
        let parts = [
            (self.system_page_bytes, Advice::LinuxPopulateWrite),
            (self.length_bytes, Advice::LinuxDontNeed),
        ];
        for (end, advice) in parts {
            let (at, length) = self.span(&(0..end));
            // SAFETY: `span` checked the range, and nobody knows the region yet. Refused advice costs mappings only.
            let _ = unsafe { rustix::mm::madvise(at, length, advice) };
        }
    }

    pub(crate) fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// Bytes that are populated and released together: a page of the system, or one of 4 KiB if that is larger.
    pub(crate) fn page_bytes(&self) -> usize {
        PAGE_BYTES.max(self.system_page_bytes)
    }

    /// Behaves as on a system with pages of this size, a multiple of the real one.
    #[cfg(test)]
    pub(crate) fn with_system_pages(mut self, bytes: usize) -> Region {
        self.system_page_bytes = bytes;
        self
    }

    /// Bytes that are mapped: of private memory all that is there.
    #[cfg(test)]
    pub(crate) fn resident_bytes(&self) -> usize {
        use std::os::unix::fs::FileExt;
        const PRESENT_BIT: u32 = 63;
        let page = system_page::size_bytes();
        let mut table = vec![0; self.length_bytes / page * 8];
        let file = std::fs::File::open("/proc/self/pagemap").expect("Linux has it");
        let at = self.start.addr().get() / page * 8;
        file.read_exact_at(&mut table, at as u64)
            .expect("it tells of each address");
        let entries = table.as_chunks().0.iter();
        let present = entries.filter(|entry| u64::from_ne_bytes(**entry) >> PRESENT_BIT == 1);
        present.count() * page
    }

    /// Whether huge pages can back this region from the first touch on: only private memory, because a file depends on a
    /// system-wide setting.
    pub(crate) fn takes_huge_pages(&self) -> bool {
        self.file.is_none()
    }

    /// Makes one huge page of the pages of `range`, which is one of that size and resident, whatever the system-wide
    /// setting; false if the system does not. It copies them, while others read and write them. Pages that are not
    /// resident become so.
    pub(crate) fn collapse(&self, range: Range<usize>) -> bool {
        #[cfg(all(test, not(uzram_shuttle)))]
        crate::crash::point();
        self.advise(&range, Advice::LinuxHugepage);
        let (at, length) = self.span(&range);
        // SAFETY: `span` checked the range; the advice changes no content.
        let collapsed = unsafe { libc::madvise(at, length, libc::MADV_COLLAPSE) };
        // What is huge by now stays so.
        self.advise(&range, Advice::LinuxNoHugepage);
        collapsed == 0
    }

    /// Makes the pages of `range`, of which none is, resident as huge pages where possible. Those of a file come small and
    /// are then copied into a huge one, which takes milliseconds.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`]; some of the range may be resident then.
    pub(crate) fn populate_huge(&self, range: Range<usize>) -> Result<()> {
        self.advise(&range, Advice::LinuxHugepage);
        let populated = self.populate(range.clone());
        // Pages that are huge by now stay so.
        self.advise(&range, Advice::LinuxNoHugepage);
        if populated.is_ok() && self.file.is_some() {
            self.collapse(range);
        }
        populated
    }

    /// Maps all pages that the region's file has, so that a mapping that locks its pages has them locked. Nobody else may
    /// change the file meanwhile: pages that left it would come back as zeroes.
    #[cfg(not(uzram_shuttle))]
    pub(crate) fn map_present(&self) {
        let mut next = 0;
        while let Some(data) = self.next_data(next) {
            next = data.end;
            let (at, length) = self.span(&data);
            // SAFETY: `span` checked that the range lies in this region; mapping pages changes no content. Before Linux 5.14
            // they are mapped as they are used.
            let _ = unsafe { rustix::mm::madvise(at, length, Advice::LinuxPopulateWrite) };
        }
    }

    /// Makes the pages of `range` resident.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`], also where a memory cgroup's limit is near; some of the range may be resident
    /// then.
    pub(crate) fn populate(&self, range: Range<usize>) -> Result<()> {
        memory::gate()?;
        let _admitted = headroom::admit(self.missing_bytes(&range))?;
        // An advice must begin with a page of the system. The one around the start gets memory whole.
        let (at, length) = self.span(&system_page::around(&range, self.system_page_bytes));
        // SAFETY: `span` checked that the range lies in this region; populating changes no content.
        match unsafe { rustix::mm::madvise(at, length, Advice::LinuxPopulateWrite) } {
            Ok(()) => Ok(()),
            // Before Linux 5.14 pages come at the first store.
            Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(Error::new(
                ErrorKind::NoMemory,
                "the system gave no memory for compressed pages; free some or set a mem_limit",
            )
            .with_source(errno)),
        }
    }

    /// Bytes of `range` for which the system must give memory. A file may have some that is not mapped yet.
    fn missing_bytes(&self, range: &Range<usize>) -> usize {
        let mut missing = range.len();
        let mut next = range.start;
        while let Some(data) = self.next_data_within(next..range.end) {
            next = data.end;
            missing -= data.len();
        }
        missing
    }

    /// A kernel may refuse an advice, as one without huge pages does. Small pages do as well.
    fn advise(&self, range: &Range<usize>, advice: Advice) {
        let (at, length) = self.span(range);
        // SAFETY: `span` checked that the range lies in this region; no such advice changes content.
        let _ = unsafe { rustix::mm::madvise(at, length, advice) };
    }

    /// Gives the pages of `range` back to the system; it reads as zeroes afterwards.
    ///
    /// Where the system refuses even that (memory locked on a kernel before 5.18), the pages stay and the
    /// result is false. This is correct where the next owner of the range overwrites it, but it frees nothing.
    /// It is false too where the range ends within a page of the system, which may hold what others own.
    pub(crate) fn release(&self, range: Range<usize>) -> bool {
        if let Some(file) = &self.file {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let (_, length) = self.span(&range);
            let punched =
                rustix::fs::fallocate(file, punch, range.start as u64, length as u64).is_ok();
            #[cfg(all(test, not(uzram_shuttle)))]
            crate::crash::point();
            return punched;
        }
        // The system rounds the end of an advice up to its page, and would drop what follows the range.
        let whole = system_page::whole(&range, self.system_page_bytes);
        let is_all = whole == range;
        let (at, length) = self.span(&whole);
        // SAFETY: `span` checked the range. Nobody holds a reference to bytes in it: the caller owns them.
        // Words of a table are atomics that others may hold. Those become zero at once, as by a store, and
        // every value of a word is valid; that the zero loses nothing is the store's part (words.rs).
        let dropped = unsafe { rustix::mm::madvise(at, length, Advice::LinuxDontNeed) };
        if dropped == Err(Errno::INVAL) {
            // SAFETY: as above, for memory that is locked.
            let unlocked = unsafe { rustix::mm::madvise(at, length, Advice::LinuxDontneedLocked) };
            return is_all && unlocked.is_ok();
        }
        is_all && dropped.is_ok()
    }

    /// Breaks up the huge page that `range` is part of. Otherwise releasing the part would unmap
    /// it and free nothing, because the system keeps a huge page whole until it is short of
    /// memory.
    ///
    /// Where the system refuses (locked memory, or before Linux 5.4) the memory goes back late.
    pub(crate) fn split_huge_page(&self, range: Range<usize>) {
        let (at, length) = self.span(&range);
        // SAFETY: `span` checked the range; the advice changes no content. Any advice that is given
        // to a part makes the kernel split; "cold" is also true.
        let _ = unsafe { rustix::mm::madvise(at, length, Advice::LinuxCold) };
    }

    /// The whole region as words.
    pub(crate) fn words(&self) -> &[MappedU64] {
        // SAFETY: the memory is mapped for as long as `self`, aligned to 2 MiB, a multiple of
        // 4096 bytes long, and any bit pattern is a valid u64.
        unsafe {
            std::slice::from_raw_parts(
                self.start.as_ptr().cast::<MappedU64>(),
                self.length_bytes / size_of::<MappedU64>(),
            )
        }
    }

    /// The whole region as half words.
    pub(crate) fn half_words(&self) -> &[MappedU32] {
        // SAFETY: as in `words`.
        unsafe {
            std::slice::from_raw_parts(
                self.start.as_ptr().cast::<MappedU32>(),
                self.length_bytes / size_of::<MappedU32>(),
            )
        }
    }

    /// The address of byte `offset`, which may lie outside: for hints only.
    #[inline]
    pub(crate) fn address(&self, offset: usize) -> usize {
        self.start.addr().get().wrapping_add(offset)
    }

    /// A pointer to the bytes of `range`.
    pub(crate) fn pointer(&self, range: &Range<usize>) -> NonNull<u8> {
        let (at, _) = self.span(range);
        NonNull::new(at.cast()).expect("an address inside a mapping")
    }

    /// Start and length of `range`, which must lie inside. Panics otherwise: such a bug of the
    /// caller must not become a wild access.
    fn span(&self, range: &Range<usize>) -> (*mut c_void, usize) {
        assert!(
            range.start <= range.end && range.end <= self.length_bytes,
            "range {range:?} outside a region of {} bytes",
            self.length_bytes
        );
        // SAFETY: the assertion keeps the result inside the mapping.
        let at = unsafe { self.start.as_ptr().add(range.start) };
        (at.cast(), range.end - range.start)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `map` made; references into it borrow `self` and are gone.
        let unmapped = unsafe { rustix::mm::munmap(self.mapping.as_ptr(), self.mapping_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// An anonymous file that keeps its length.
fn memfd(length_bytes: u64) -> std::result::Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("uzram", flags)?;
    rustix::fs::ftruncate(&file, length_bytes)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

fn round_up(length_bytes: usize) -> Result<usize> {
    length_bytes
        .max(1)
        .checked_next_multiple_of(PAGE_BYTES.max(system_page::size_bytes()))
        .ok_or_else(|| reserve_error(length_bytes, Errno::NOMEM))
}

fn reserve_error(length_bytes: usize, errno: Errno) -> Error {
    Error::new(
        ErrorKind::NoMemory,
        format!("cannot reserve {length_bytes} bytes of address space; choose a smaller size"),
    )
    .with_source(errno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    fn both_backings_keep_what_is_written_and_zero_what_is_released() {
        for backing in [Backing::Private, Backing::Memfd] {
            let region = Region::reserve(4 * HUGE_PAGE_BYTES, backing).unwrap();
            region.populate_huge(0..HUGE_PAGE_BYTES).unwrap();
            region.words()[7].store(42, Ordering::Relaxed);
            assert_eq!(region.words()[7].load(Ordering::Relaxed), 42);
            region.release(0..HUGE_PAGE_BYTES);
            assert_eq!(region.words()[7].load(Ordering::Relaxed), 0);
        }
    }

    /// A dump of a process that died would take memory for each hole of the file, and time before its successor.
    #[test]
    fn a_file_is_not_in_core_dumps_and_asks_for_no_memory_that_it_has() {
        let region = Region::reserve(4 * HUGE_PAGE_BYTES, Backing::Memfd).unwrap();
        let part = HUGE_PAGE_BYTES..2 * HUGE_PAGE_BYTES;
        region.populate(part.clone()).unwrap();
        assert_eq!(region.missing_bytes(&part), 0);
        assert_eq!(
            region.missing_bytes(&(0..3 * HUGE_PAGE_BYTES)),
            2 * HUGE_PAGE_BYTES
        );
        let private = Region::reserve(HUGE_PAGE_BYTES, Backing::Private).unwrap();
        assert_eq!(private.missing_bytes(&(0..4096)), 4096);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", region.start.addr());
        let at = maps.find(&format!("\n{start}")).expect("it is mapped");
        let flags = maps[at..].lines().find(|line| line.starts_with("VmFlags:"));
        assert!(flags.unwrap().contains(" dd"), "{flags:?}");
    }

    /// On a system with larger pages than ours, a page of ours has neighbours in the system's page.
    #[test]
    fn no_release_reaches_into_a_system_page_that_others_use() {
        let mut region = Region::reserve(HUGE_PAGE_BYTES, Backing::Private).unwrap();
        region.system_page_bytes = 16384;
        let words = |page: usize| page * PAGE_BYTES / size_of::<u64>();
        let fill =
            || (0..16).for_each(|page| region.words()[words(page)].store(1, Ordering::Relaxed));
        let kept = |region: &Region| -> Vec<usize> {
            let has = |page: &usize| region.words()[words(*page)].load(Ordering::Relaxed) == 1;
            (0..16).filter(has).collect()
        };
        fill();
        assert!(!region.release(0..PAGE_BYTES));
        assert_eq!(kept(&region), (0..16).collect::<Vec<_>>());
        assert!(!region.release(PAGE_BYTES..10 * PAGE_BYTES));
        assert_eq!(kept(&region), [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert!(region.release(8 * PAGE_BYTES..16 * PAGE_BYTES));
        assert_eq!(kept(&region), [0, 1, 2, 3]);
    }

    #[test]
    fn a_memfd_region_is_the_same_memory_when_attached_again() {
        let region = Region::reserve(8192, Backing::Memfd).unwrap();
        region.words()[3].store(9, Ordering::Relaxed);
        let again = Region::attach(region.file().unwrap().unwrap(), 8192, "memory").unwrap();
        drop(region);
        assert_eq!(again.words()[3].load(Ordering::Relaxed), 9);
    }

    /// The system's lines about a region's mappings: whether huge pages are advised against.
    fn are_kept_small(region: &Region) -> Vec<bool> {
        let start = region.start.addr().get();
        let end = start + region.length_bytes;
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_in = false;
        let mut kept = Vec::new();
        for line in smaps.lines() {
            let (first, rest) = line.split_once([' ', '-']).unwrap();
            let last = rest.split(' ').next().unwrap_or_default();
            let address = |hex: &str| usize::from_str_radix(hex, 16);
            if let (Ok(first), Ok(last)) = (address(first), address(last)) {
                is_in = first < end && last > start;
            } else if is_in && first == "VmFlags:" {
                kept.push(rest.split(' ').any(|flag| flag == "nh"));
            }
        }
        kept
    }

    /// Pages that came back as part of a huge page would belong to nobody. One mapping per span
    /// would soon reach the number that a process may have.
    #[test]
    fn no_part_of_a_region_stays_open_to_huge_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            println!("skipped: a kernel without huge pages");
            return;
        }
        for backing in [Backing::Private, Backing::Memfd] {
            let region = Region::reserve(8 * HUGE_PAGE_BYTES, backing).unwrap();
            assert_eq!(are_kept_small(&region), [true], "{backing:?}");
            for at in [0, 2, 3, 7] {
                let span = at * HUGE_PAGE_BYTES..(at + 1) * HUGE_PAGE_BYTES;
                region.populate_huge(span.clone()).unwrap();
                region.split_huge_page(span.start + 8192..span.end);
                region.release(span.start + 8192..span.end);
                region.populate(span.start + 16384..span.end).unwrap();
                assert_eq!(are_kept_small(&region), [true], "{backing:?}");
            }
        }
    }

    #[test]
    fn sizes_over_the_address_space_are_refused() {
        for length in [usize::MAX, usize::MAX - 4096, 1 << 60] {
            let error = Region::reserve(length, Backing::Private).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoMemory);
        }
    }

    #[test]
    #[should_panic(expected = "outside a region")]
    fn a_range_outside_is_caught() {
        let region = Region::reserve(4096, Backing::Private).unwrap();
        region.release(0..2 * region.length_bytes());
    }
}
