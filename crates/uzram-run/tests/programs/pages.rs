//! Pages whose bytes tell where they belong, for programs that check their memory.

use std::process::exit;

use nix::sys::mman::{MapFlags, ProtFlags};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Fills a page with words that depend on place and version, and compress to about half.
pub fn fill(page: &mut [u8], place: usize, version: u64) {
    for (at, word) in page.chunks_exact_mut(8).enumerate() {
        let value = match at % 2 {
            0 => version,
            _ => (place as u64 * 512 + at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version,
        };
        word.copy_from_slice(&value.to_ne_bytes());
    }
}

/// Ends the program if the page does not hold what `version` says. Version 0 is zeroes.
pub fn check(page: &[u8], place: usize, version: u64) {
    let mut right = [0; PAGE];
    if version > 0 {
        fill(&mut right, place, version);
    }
    if page != right {
        let at = page
            .iter()
            .zip(&right)
            .position(|(is, was)| is != was)
            .unwrap();
        println!(
            "wrong: page {place}, version {version}, byte {at}: {} for {}",
            page[at], right[at]
        );
        exit(9);
    }
}

/// Numbers that a seed decides. The seed must not be 0.
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Maps private memory, at an address that is this program's, or anywhere.
pub fn map(at: Option<usize>, pages: usize) -> usize {
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = match at {
        Some(_) => MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED,
        None => MapFlags::MAP_PRIVATE,
    };
    let length = (pages * PAGE).try_into().unwrap();
    let at = at.and_then(|at| at.try_into().ok());
    // SAFETY: a fixed address is of memory that this program has mapped for this.
    let mapped = unsafe { nix::sys::mman::mmap_anonymous(at, length, access, flags) };
    mapped.unwrap().as_ptr() as usize
}

/// The page number `at` of the mapping at `base`.
pub fn page(base: usize, at: usize) -> &'static mut [u8] {
    // SAFETY: the page is of a mapping of this program, and each thread has its own.
    unsafe { std::slice::from_raw_parts_mut((base + at * PAGE) as *mut u8, PAGE) }
}
