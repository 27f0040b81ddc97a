//! Memory of which a model knows every page, and most of which has left.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::exit;
use std::time::{Duration, Instant};

use crate::pages::{PAGE, check, fill, map, page};

/// Pages of a MiB.
pub const MIB: usize = 256;
/// Memory that pushes other memory out: more than the budget of all tests.
const PRESSURE_PAGES: usize = 96 * MIB;
/// Time until most of an area has left, on a machine that does many other things.
const TIME_MAX: Duration = Duration::from_secs(40);
const PRESENT: u64 = 1 << 63;

/// A mapping, and the version of each page. Version 0 is zeroes.
#[derive(Clone)]
pub struct Area {
    pub base: usize,
    pub versions: Vec<u64>,
}

impl Area {
    /// Pages of version 1 at `base`.
    pub fn at(base: usize, pages: usize) -> Area {
        let mut area = Area {
            base,
            versions: vec![0; pages],
        };
        area.write(0..pages, 1);
        area
    }

    /// A mapping of its own, of which most has left.
    pub fn away(pages: usize) -> Area {
        let area = Area::at(map(None, pages), pages);
        area.push_out();
        area
    }

    /// Memory of a process that is left alone: more than the budget, and all of it stays.
    pub fn stays() {
        let pages = 96 * MIB;
        let area = Area::at(map(None, pages), pages);
        for _ in 0..3 {
            area.check_all();
        }
        expect("absent pages", area.absent(0..pages), 0);
    }

    /// Its pages.
    pub fn pages(&self) -> usize {
        self.versions.len()
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.pages() * PAGE
    }

    /// Page number `at`.
    pub fn page(&self, at: usize) -> &'static mut [u8] {
        page(self.base, at)
    }

    /// The address of page number `at`.
    pub fn address(&self, at: usize) -> *mut libc::c_void {
        (self.base + at * PAGE) as *mut libc::c_void
    }

    /// Writes pages of `version`.
    pub fn write(&mut self, range: std::ops::Range<usize>, version: u64) {
        for at in range {
            fill(self.page(at), at, version);
            self.versions[at] = version;
        }
    }

    /// Checks these pages.
    pub fn check(&self, range: std::ops::Range<usize>) {
        range.for_each(|at| check(self.page(at), at, self.versions[at]));
    }

    /// Checks all pages.
    pub fn check_all(&self) {
        self.check(0..self.pages());
    }

    /// How many of these pages are not in memory.
    pub fn absent(&self, range: std::ops::Range<usize>) -> usize {
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        // No memory is allocated for it: the heap may be what is looked at.
        let is_absent = |at: &usize| {
            let mut word = [0; 8];
            let place = ((self.base / PAGE + at) * 8) as u64;
            pagemap.read_exact_at(&mut word, place).unwrap();
            u64::from_ne_bytes(word) & PRESENT == 0
        };
        range.filter(is_absent).count()
    }

    /// Uses other memory until most of this has left.
    pub fn push_out(&self) {
        let mut pressure = Pressure::new();
        let begin = Instant::now();
        while begin.elapsed() < TIME_MAX {
            if self.absent(0..self.pages()) > self.pages() * 2 / 3 {
                return;
            }
            pressure.round();
        }
        let absent = self.absent(0..self.pages());
        println!("{absent} pages of {} have left", self.pages());
        exit(9);
    }
}

/// Memory whose use pushes other memory out.
pub struct Pressure {
    base: usize,
    round: u64,
}

impl Pressure {
    /// None is used yet.
    pub fn new() -> Pressure {
        Pressure {
            base: map(None, PRESSURE_PAGES),
            round: 0,
        }
    }

    /// Checks and changes every page of it.
    pub fn round(&mut self) {
        for at in 0..PRESSURE_PAGES {
            let word = &mut page(self.base, at)[at % PAGE / 8 * 8..][..8];
            let was = u64::from_ne_bytes(word.try_into().unwrap());
            expect("a page of the pressure", was, self.round * at as u64);
            word.copy_from_slice(&((self.round + 1) * at as u64).to_ne_bytes());
        }
        self.round += 1;
    }
}

impl Drop for Pressure {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nobody refers to it.
        let result = unsafe { libc::munmap(self.base as *mut _, PRESSURE_PAGES * PAGE) };
        expect("unmapping", result, 0);
    }
}

/// Ends the program if something is not as it should be.
pub fn expect<T: PartialEq + std::fmt::Debug>(what: &str, is: T, should_be: T) {
    if is != should_be {
        println!("wrong: {what}: {is:?} for {should_be:?}");
        exit(9);
    }
}

/// Ends the program if a system call has failed, and gives its result otherwise.
pub fn done(what: &str, result: libc::c_long) -> libc::c_long {
    if result < 0 {
        let error = std::io::Error::last_os_error();
        println!("wrong: {what}: {error}");
        exit(9);
    }
    result
}

/// Copies from the memory of process `pid`, and gives the result of the call.
pub fn read_of(pid: u32, from: *mut libc::c_void, to: &mut [u8]) -> isize {
    let bytes = to.len();
    let part = |base| libc::iovec {
        iov_base: base,
        iov_len: bytes,
    };
    let (ours, theirs) = (part(to.as_mut_ptr().cast()), part(from));
    let (ours, theirs) = (&raw const ours, &raw const theirs);
    // SAFETY: so many bytes are copied at most.
    unsafe { libc::process_vm_readv(pid as i32, ours, 1, theirs, 1, 0) }
}
