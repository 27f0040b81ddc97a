//! Failures, and what a program sees then: never zeroes in place of bytes.

use std::os::unix::fs::FileExt;

use uzram::{
    Codec, Compression, Compressor, DecompressShared, Decompressor, ErrorKind, Malformed, Unit,
};
use uzram_pager::{CompressedMemory, FaultHandler};

use super::{
    PAGE, apart, apart_with, killed_by, killed_with, lost, mark, marked, present,
    serves_the_system, until, with_store,
};

/// The codec below panics at a page that begins so.
const PANIC: u64 = u64::from_le_bytes(*b"panic!!!");
const DAMAGE: u64 = u64::from_le_bytes(*b"damaged!");

/// Keeps half of a page whose halves are alike.
struct Half;

impl Codec for Half {
    fn name(&self) -> &str {
        "half"
    }

    fn compressor(&self, _: Unit) -> uzram::Result<Box<dyn Compressor>> {
        Ok(Box::new(Half))
    }

    fn decompressor(&self, _: Unit) -> uzram::Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(Half)))
    }
}

impl Compressor for Half {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        assert!(first(source) != PANIC, "asked to");
        let (half, other) = source.split_at(source.len() / 2);
        destination[..half.len()].copy_from_slice(half);
        (half == other).then_some(half.len())
    }
}

impl DecompressShared for Half {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        let (half, other) = destination.split_at_mut(source.len());
        half.copy_from_slice(source);
        other.copy_from_slice(source);
        if first(source) == DAMAGE {
            Err(Malformed)
        } else {
            Ok(())
        }
    }
}

fn first(page: &[u8]) -> u64 {
    u64::from_le_bytes(page[..8].try_into().unwrap())
}

fn put(page: &mut [u8], word: u64) {
    for half in page.chunks_exact_mut(PAGE / 2) {
        mark(half, 5);
        half[..8].copy_from_slice(&word.to_le_bytes());
    }
}

fn with_half(pages: usize, budget: usize) -> Option<CompressedMemory> {
    let codec = Compression::with_codec(Box::new(Half), Unit::DEFAULT).unwrap();
    with_store(pages, budget, uzram::Store::builder().compression(codec))
}

/// Fills pages of memory that has room for all, and then lets the pager's own thread compress them: one makes it fail.
fn fill_and_fail(memory: &mut CompressedMemory, pages: std::ops::Range<usize>) {
    memory.set_budget(2000 * PAGE).unwrap();
    for page in pages {
        let word = if page == 300 { PANIC } else { 1 + page as u64 };
        put(&mut memory[page * PAGE..][..PAGE], word);
    }
    memory.set_budget(64 * PAGE).unwrap();
    until(memory, "the pager fails", |memory| {
        memory.statistics().has_failed
    });
}

/// Memory whose pager has failed after some pages were compressed, and which pages are present.
fn with_failed_pager() -> Option<(CompressedMemory, Vec<bool>)> {
    let mut memory = with_half(600, 2000)?;
    fill_and_fail(&mut memory, 0..500);
    let present = present(&memory);
    Some((memory, present))
}

#[test]
fn a_pager_that_panics_leaves_what_is_present_and_what_is_fresh() {
    apart(
        "failure::a_pager_that_panics_leaves_what_is_present_and_what_is_fresh",
        || {
            let Some((memory, present)) = with_failed_pager() else {
                return;
            };
            let mut seen = 0;
            for page in (0..500).filter(|page| present[*page]) {
                let word = first(&memory[page * PAGE..]);
                let put = if page == 300 { PANIC } else { 1 + page as u64 };
                assert_eq!(word, put, "page {page}");
                seen += 1;
            }
            assert!(seen > 20, "{seen} pages");
            assert!(memory[599 * PAGE..].iter().all(|byte| *byte == 0));
            drop(memory);
        },
    );
}

#[test]
fn a_page_that_only_a_failed_pager_had_is_a_sigbus() {
    lost(
        "failure::a_page_that_only_a_failed_pager_had_is_a_sigbus",
        || {
            let Some((memory, present)) = with_failed_pager() else {
                return;
            };
            let gone = present.iter().position(|is_present| !is_present).unwrap();
            assert!(gone < 300, "the first pages were compressed");
            println!("page {gone} reads as {}", first(&memory[gone * PAGE..]));
        },
    );
}

/// Moves 20 pages of memory whose pager fails, and reads one that had left: before and after the failure.
fn moved(moves: impl Fn(*mut u8) -> *mut u8) {
    let Some(mut memory) = with_half(600, 64) else {
        return;
    };
    for (page, bytes) in memory.chunks_exact_mut(PAGE).enumerate().take(200) {
        put(bytes, 1 + page as u64);
    }
    assert!(
        present(&memory[..20 * PAGE]).iter().all(|is| !is),
        "they left"
    );
    let at = moves(memory.as_mut_ptr());
    fill_and_fail(&mut memory, 200..500);
    // SAFETY: the page is mapped there.
    println!("it reads as {}", unsafe {
        at.wrapping_add(7 * PAGE).read()
    });
}

fn remap(at: *mut u8, to: *mut u8) -> *mut u8 {
    let length = 20 * PAGE;
    // The old range stays mapped, so that nothing else comes there.
    let how = match to.is_null() {
        true => libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP,
        false => libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
    };
    // SAFETY: nothing else is at the new address; nobody reads the old one meanwhile.
    let moved = unsafe { libc::mremap(at.cast(), length, length, how, to) };
    assert_ne!(moved, libc::MAP_FAILED);
    moved.cast()
}

#[test]
fn a_moved_part_is_a_sigbus_after_the_pager_failed() {
    killed_by(
        libc::SIGBUS,
        "failure::a_moved_part_is_a_sigbus_after_the_pager_failed",
        || moved(|at| remap(at, std::ptr::null_mut())),
    );
}

#[test]
fn a_part_moved_away_and_back_is_a_sigbus_after_the_pager_failed() {
    killed_by(
        libc::SIGBUS,
        "failure::a_part_moved_away_and_back_is_a_sigbus_after_the_pager_failed",
        || moved(|at| remap(remap(at, std::ptr::null_mut()), at)),
    );
}

/// Lets a page that the codec panics at leave while a thread touches others all the time.
fn panic_between_faults() {
    let Some(mut memory) = with_half(2000, 64) else {
        return;
    };
    for (page, bytes) in memory.chunks_exact_mut(PAGE).enumerate() {
        put(bytes, 1 + page as u64);
    }
    // Evicted soon, while other pages are waited for.
    put(&mut memory[1999 * PAGE..], PANIC);
    for page in (0..1999).cycle() {
        let word = first(&memory[page * PAGE..]);
        assert_eq!(word, 1 + page as u64);
    }
}

#[test]
fn a_thread_that_waits_while_the_pager_fails_does_not_read_zeroes() {
    killed_with(
        &[FaultHandler::OwnThread],
        libc::SIGBUS,
        "failure::a_thread_that_waits_while_the_pager_fails_does_not_read_zeroes",
        panic_between_faults,
    );
}

#[test]
fn a_codec_that_panics_in_a_handler_aborts() {
    killed_with(
        &[FaultHandler::FaultingThread],
        libc::SIGABRT,
        "failure::a_codec_that_panics_in_a_handler_aborts",
        panic_between_faults,
    );
}

#[test]
fn a_damaged_object_is_a_sigbus() {
    lost("failure::a_damaged_object_is_a_sigbus", || {
        let Some(memory) = with_damage() else {
            return;
        };
        println!("it reads as {}", first(&memory[7 * PAGE..]));
    });
}

#[test]
fn a_damaged_object_costs_its_page_only() {
    apart("failure::a_damaged_object_costs_its_page_only", || {
        let Some(mut memory) = with_damage() else {
            return;
        };
        for page in (0..500).filter(|page| *page != 7) {
            assert_eq!(first(&memory[page * PAGE..]), 1 + page as u64);
        }
        // The system answers for the page in place of the SIGBUS.
        let file = tempfile::tempfile().unwrap();
        assert!(file.write_all_at(&memory[7 * PAGE..8 * PAGE], 0).is_err());
        if serves_the_system() {
            until(&memory, "the page is counted", |memory| {
                memory.statistics().pages_poisoned == 1
            });
        }
        // Discarding a page heals it.
        super::discard(&mut memory[7 * PAGE..8 * PAGE], libc::MADV_DONTNEED);
        assert_eq!(first(&memory[7 * PAGE..]), 0);
        assert!(!memory.statistics().has_failed);
    });
}

/// Memory in which page 7 is damaged in the store.
fn with_damage() -> Option<CompressedMemory> {
    let mut memory = with_half(500, 64)?;
    for (page, bytes) in memory.chunks_exact_mut(PAGE).enumerate() {
        put(bytes, if page == 7 { DAMAGE } else { 1 + page as u64 });
    }
    assert!(!present(&memory)[7]);
    Some(memory)
}

#[test]
fn the_programs_descriptors_are_not_the_pagers() {
    apart_with(
        &[FaultHandler::OwnThread],
        "failure::the_programs_descriptors_are_not_the_pagers",
        || {
            const PAGES: usize = 1000;
            let Some(mut memory) = super::memory(PAGES, 64) else {
                return;
            };
            for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
                let target = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
                assert!(
                    !target.to_string_lossy().contains("userfaultfd"),
                    "{target:?}"
                );
            }
            for (seed, page) in memory.chunks_exact_mut(PAGE).enumerate() {
                mark(page, seed as u64);
            }
            // As a program does that becomes a daemon.
            // SAFETY: nothing of this process uses those descriptors afterwards.
            assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
            for (seed, page) in memory.chunks_exact(PAGE).enumerate() {
                assert!(page == marked(seed as u64), "page {seed}");
            }
        },
    );
}

#[test]
fn who_may_not_use_userfaultfd_is_told_the_remedy() {
    apart_with(
        &[FaultHandler::OwnThread],
        "failure::who_may_not_use_userfaultfd_is_told_the_remedy",
        || {
            let sysctl = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
            // SAFETY: asks for a number.
            let is_root = unsafe { libc::geteuid() } == 0;
            if !is_root || sysctl.unwrap_or_default().trim() != "0" {
                println!("skipped: needs root, and vm.unprivileged_userfaultfd=0");
                return;
            }
            // SAFETY: this process gives up its rights for good.
            assert_eq!(unsafe { libc::setuid(65_534) }, 0);
            if std::fs::File::open("/dev/userfaultfd").is_ok() {
                println!("skipped: everybody may use /dev/userfaultfd here");
                return;
            }
            let error = CompressedMemory::new(1 << 20, 1 << 20).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let text = error.to_string();
            for remedy in [
                "vm.unprivileged_userfaultfd=1",
                "/dev/userfaultfd",
                "seccomp",
            ] {
                assert!(text.contains(remedy), "{text}");
            }
        },
    );
}
