//! Guest memory that vanishes: its owner truncates the file that this process has mapped too. The
//! next access is a SIGBUS, which would end the server and with it all disks.
//!
//! A table has the mapped regions. The signal's handler finds the region of the address, marks it,
//! and puts plain memory in place of the whole region. A reader of a zero that the guest never
//! wrote therefore finds the mark. Data that was copied in before the mark was checked is thrown
//! away.
//!
//! Considered: guarded copies in assembly, as pmem has for its own files. They would have to
//! replace every access to a ring, so the libraries for rings and guest memory could not be used.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use uzram_media::sigbus::{self, Fault};

use super::mark::Mark;

/// Most regions of all guests of a process.
const REGIONS_MAX: usize = 4096;

/// A place in the table. `start` 0 is free and 1 taken but not filled in; nothing is mapped there.
struct Place {
    start: AtomicUsize,
    length: AtomicUsize,
    vanished: Mark,
}

const FREE: usize = 0;
const TAKEN: usize = 1;

static TABLE: [Place; REGIONS_MAX] = [const {
    Place {
        start: AtomicUsize::new(FREE),
        length: AtomicUsize::new(0),
        vanished: Mark(AtomicBool::new(false)),
    }
}; REGIONS_MAX];

/// Watched memory: its loss is an error until this is dropped. Drop it before the memory is
/// unmapped.
#[derive(Debug)]
pub(super) struct Watched(&'static Place);

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Place").field(&self.vanished).finish()
    }
}

impl Watched {
    /// Watches `length` bytes of whole pages, mapped at `start`.
    ///
    /// # Errors
    /// [`io::ErrorKind::QuotaExceeded`] if the table is full; the system's error.
    pub fn new(start: *mut u8, length: usize) -> io::Result<Watched> {
        sigbus::claim(replace)?;
        let take = |place: &&Place| {
            place
                .start
                .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        let place = TABLE.iter().find(take);
        let place = place.ok_or(io::Error::from(io::ErrorKind::QuotaExceeded))?;
        place.vanished.clear();
        place.length.store(length, Ordering::Relaxed);
        place.start.store(start.addr(), Ordering::Release);
        Ok(Watched(place))
    }

    /// Whether bytes that were read there may be zeroes of the replacement.
    pub fn has_vanished(&self) -> bool {
        self.0.vanished.is_set()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.start.store(FREE, Ordering::Release);
    }
}

/// Puts plain memory in place of a region that has vanished. Runs in a signal's handler.
fn replace(fault: &Fault) -> bool {
    let holds = |place: &&Place| {
        let start = place.start.load(Ordering::Acquire);
        let length = place.length.load(Ordering::Relaxed);
        start > TAKEN && fault.address.wrapping_sub(start) < length
    };
    let Some(place) = TABLE.iter().find(holds) else {
        return false;
    };
    let start = place.start.load(Ordering::Relaxed) as *mut std::ffi::c_void;
    let length = place.length.load(Ordering::Relaxed);
    place.vanished.set();
    // SAFETY: the region is mapped for as long as it is watched, and only reached through volatile
    // accesses and copies that expect any content. Huge pages can be replaced as a whole only, which is
    // why all of it is. The call is made without the C library, so `errno` stays as it was.
    let replaced = unsafe {
        rustix::mm::mmap_anonymous(
            start,
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
        )
    };
    replaced.is_ok()
}
