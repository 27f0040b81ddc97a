//! Other uses of the range by a program and the system: forks, mappings, pins.

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use io_uring::{IoUring, opcode, types};
use uzram_pager::CompressedMemory;

use super::{
    PAGE, apart, die_of_segv, killed_by, mark, marked, memory, present, serves_the_system,
};

const PAGES: usize = 1000;

fn filled() -> Option<CompressedMemory> {
    let mut memory = memory(PAGES, 64)?;
    for (seed, page) in memory.chunks_exact_mut(PAGE).enumerate() {
        mark(page, seed as u64);
    }
    Some(memory)
}

fn check(memory: &CompressedMemory, pages: std::ops::Range<usize>) {
    for page in pages {
        assert!(
            memory[page * PAGE..][..PAGE] == marked(page as u64),
            "page {page}"
        );
    }
}

/// How a child ended that ran `body`.
pub(super) fn in_child(body: impl FnOnce()) -> i32 {
    // SAFETY: this process has one thread besides the pager, and the child ends without returning.
    match unsafe { libc::fork() } {
        0 => {
            die_of_segv();
            body();
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            status
        }
    }
}

#[test]
fn a_child_sees_no_zeroes_and_does_the_parent_no_harm() {
    apart(
        "system::a_child_sees_no_zeroes_and_does_the_parent_no_harm",
        || {
            let Some(memory) = filled() else {
                return;
            };
            for page in [0, PAGES - 1] {
                let status = in_child(|| {
                    std::hint::black_box(memory[page * PAGE]);
                });
                assert!(libc::WIFSIGNALED(status), "page {page}: {status:#x}");
                assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
            }
            // SAFETY: the child drops a bitwise copy, its own; the parent's value lives on.
            let status = in_child(|| drop(unsafe { std::ptr::read(&memory) }));
            assert_eq!(status, 0, "a child drops it");
            check(&memory, 0..PAGES);
        },
    );
}

/// Replaces 100 pages of `memory`: moves them to `to`, or unmaps them.
fn take_away(memory: &CompressedMemory, first: usize, is_moved: bool) -> *mut u8 {
    let at = memory.as_ptr().cast_mut().wrapping_add(first * PAGE).cast();
    let length = 100 * PAGE;
    let map = |at, flag| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flag;
        // SAFETY: new memory, at an address where nothing is.
        unsafe { libc::mmap(at, length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }
    };
    let to = if is_moved {
        let to = map(std::ptr::null_mut(), 0);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: replaces the mapping just made; the test does not touch the old range.
        unsafe { libc::mremap(at, length, length, flags, to) }
    } else {
        // SAFETY: the test touches the range only when other memory is there.
        assert_eq!(unsafe { libc::munmap(at, length) }, 0);
        map(at, libc::MAP_FIXED_NOREPLACE)
    };
    assert_ne!(to, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    to.cast()
}

#[test]
fn other_memory_in_place_of_an_unmapped_part_is_left_alone() {
    apart(
        "system::other_memory_in_place_of_an_unmapped_part_is_left_alone",
        || {
            let Some(memory) = filled() else {
                return;
            };
            for first in [200, 900] {
                let other = take_away(&memory, first, false);
                // SAFETY: the pages were just mapped, for this alone.
                let other = unsafe { std::slice::from_raw_parts_mut(other, 100 * PAGE) };
                assert!(other.iter().all(|byte| *byte == 0), "old bytes came back");
                other.fill(9);
                check(&memory, 0..200);
                check(&memory, 300..900);
                assert!(present(other).iter().all(|is_present| *is_present));
                assert!(other.iter().all(|byte| *byte == 9));
            }
            assert!(!memory.statistics().has_failed);
            // Dropping it would unmap what is not its own any more.
            std::mem::forget(memory);
        },
    );
}

#[test]
fn a_moved_part_whose_pages_had_left_is_a_sigbus() {
    killed_by(
        libc::SIGBUS,
        "system::a_moved_part_whose_pages_had_left_is_a_sigbus",
        || {
            let Some(memory) = filled() else {
                return;
            };
            assert!(!present(&memory)[250]);
            let moved = take_away(&memory, 200, true);
            check(&memory, 0..200);
            check(&memory, 300..PAGES);
            // SAFETY: the pages are mapped there.
            println!("it reads as {}", unsafe {
                moved.wrapping_add(50 * PAGE).read()
            });
        },
    );
}

#[test]
fn a_part_that_was_moved_away_and_back_is_a_sigbus() {
    killed_by(
        libc::SIGBUS,
        "system::a_part_that_was_moved_away_and_back_is_a_sigbus",
        || {
            let Some(memory) = filled() else {
                return;
            };
            let (moved, length) = (take_away(&memory, 200, true), 100 * PAGE);
            let back = memory.as_ptr().cast_mut().wrapping_add(200 * PAGE).cast();
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: the part goes to where it was, and nothing is there.
            let at = unsafe { libc::mremap(moved.cast(), length, length, flags, back) };
            assert_eq!(at, back);
            println!("it reads as {}", memory[250 * PAGE]);
        },
    );
}

#[test]
fn new_memory_in_several_mappings_is_brought_in_a_row() {
    apart(
        "system::new_memory_in_several_mappings_is_brought_in_a_row",
        || {
            for budget in [2 * PAGES, 64] {
                let Some(mut memory) = memory(PAGES, budget) else {
                    return;
                };
                for first in (7..PAGES).step_by(50) {
                    let at = memory[first * PAGE..].as_mut_ptr().cast();
                    // SAFETY: nothing writes to those pages before they are writable again.
                    assert_eq!(unsafe { libc::mprotect(at, 3 * PAGE, libc::PROT_READ) }, 0);
                }
                assert!(memory.iter().step_by(PAGE).all(|byte| *byte == 0));
                let at = memory.as_mut_ptr().cast();
                let access = libc::PROT_READ | libc::PROT_WRITE;
                // SAFETY: as it was at first.
                assert_eq!(unsafe { libc::mprotect(at, PAGES * PAGE, access) }, 0);
                for (seed, page) in memory.chunks_exact_mut(PAGE).enumerate() {
                    mark(page, seed as u64);
                }
                check(&memory, 0..PAGES);
                let statistics = memory.statistics();
                assert!(
                    !statistics.has_failed && statistics.pages_poisoned == 0,
                    "{statistics:?}"
                );
            }
        },
    );
}

#[test]
fn locked_and_read_only_pages_are_brought_and_stay() {
    apart(
        "system::locked_and_read_only_pages_are_brought_and_stay",
        || {
            let Some(memory) = filled() else {
                return;
            };
            let at = |page: usize| memory.as_ptr().wrapping_add(page * PAGE).cast_mut().cast();
            // SAFETY: locking changes no content.
            let is_locked = unsafe { libc::mlock(at(100), 40 * PAGE) } == 0;
            // Absent pages are locked when they come.
            assert!(is_locked || !serves_the_system());
            // SAFETY: nothing writes to those pages.
            let result = unsafe { libc::mprotect(at(300), 40 * PAGE, libc::PROT_READ) };
            assert_eq!(result, 0);
            check(&memory, 0..PAGES);
            check(&memory, 0..PAGES);
            assert!(
                present(&memory)[100..140]
                    .iter()
                    .all(|is_present| *is_present)
            );
            assert!(!memory.statistics().has_failed);
        },
    );
}

#[test]
fn what_the_system_writes_into_pinned_pages_is_not_lost() {
    apart(
        "system::what_the_system_writes_into_pinned_pages_is_not_lost",
        || {
            const PINNED: std::ops::Range<usize> = 10 * PAGE..20 * PAGE;
            let Some(mut memory) = filled() else {
                return;
            };
            let Ok(mut ring) = IoUring::new(4) else {
                println!("skipped: this system has no io_uring");
                return;
            };
            let buffer = libc::iovec {
                iov_base: memory[PINNED].as_mut_ptr().cast(),
                iov_len: PINNED.len(),
            };
            // Where the system's touches fail, they must be present.
            check(&memory, 10..20);
            // SAFETY: the memory outlives the ring's use of it.
            unsafe { ring.submitter().register_buffers(&[buffer]) }.unwrap();
            let file = tempfile::tempfile().unwrap();
            for round in 1..20u8 {
                // All other pages pass through memory, so the pinned ones are the oldest.
                check(&memory, 20..PAGES);
                assert!(
                    present(&memory)[10..20]
                        .iter()
                        .all(|is_present| *is_present)
                );
                file.write_all_at(&vec![round; PINNED.len()], 0).unwrap();
                let fd = types::Fd(file.as_raw_fd());
                let length = PINNED.len() as u32;
                let read = opcode::ReadFixed::new(fd, buffer.iov_base.cast(), length, 0).build();
                // SAFETY: the buffer is registered, and nobody touches it before the read is complete.
                unsafe { ring.submission().push(&read) }.unwrap();
                ring.submit_and_wait(1).unwrap();
                let result = ring.completion().next().unwrap().result();
                assert_eq!(result, length as i32);
                assert!(
                    memory[PINNED].iter().all(|byte| *byte == round),
                    "round {round}"
                );
            }
            assert!(memory.statistics().pages_kept > 0);
        },
    );
}
