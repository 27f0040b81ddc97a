//! Programs that change their mappings while pages are away.

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::area::{Area, MIB, Pressure, done, expect, read_of};
use crate::pages::{PAGE, check, fill, map};
use crate::processes::in_child;

/// `linux/mman.h`, since Linux 6.13.
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;
/// Since Linux 6.1.
const MADV_COLLAPSE: i32 = 25;
/// Pages of a huge page.
const HUGE_PAGES: usize = 512;

fn advise(area: &Area, range: std::ops::Range<usize>, advice: i32) -> i32 {
    let bytes = range.len() * PAGE;
    // SAFETY: the pages are the area's, and its model follows.
    unsafe { libc::madvise(area.address(range.start), bytes, advice) }
}

/// Locked pages come, and stay until they are unlocked.
pub fn locks() {
    let area = Area::away(32 * MIB);
    // SAFETY: locking changes no bytes.
    done(
        "mlock",
        unsafe { libc::mlock(area.address(0), area.bytes()) }.into(),
    );
    expect(
        "absent pages that are locked",
        area.absent(0..area.pages()),
        0,
    );
    let mut pressure = Pressure::new();
    for _ in 0..3 {
        pressure.round();
        expect(
            "absent pages that are locked",
            area.absent(0..area.pages()),
            0,
        );
    }
    area.check_all();
    // SAFETY: as above.
    done(
        "munlock",
        unsafe { libc::munlock(area.address(0), area.bytes()) }.into(),
    );
    drop(pressure);
    area.push_out();
    area.check_all();
}

/// Huge pages leave, are made anew of what came back, and leave again.
pub fn has_huge_pages() {
    let pages = 48 * MIB;
    let base = map(None, pages + HUGE_PAGES).next_multiple_of(HUGE_PAGES * PAGE);
    let mut area = Area {
        base,
        versions: vec![0; pages],
    };
    done(
        "MADV_HUGEPAGE",
        advise(&area, 0..pages, libc::MADV_HUGEPAGE).into(),
    );
    area.write(0..pages, 1);
    for version in 2..4 {
        area.push_out();
        for chunk in (0..pages).step_by(HUGE_PAGES) {
            let written = chunk..chunk + HUGE_PAGES / 2;
            area.check(written.clone());
            area.write(written, version);
            // The kernel may refuse, as it does of memory that it finds too empty.
            advise(&area, chunk..chunk + HUGE_PAGES, MADV_COLLAPSE);
        }
        area.check_all();
    }
    area.push_out();
    area.check_all();
}

/// Freed pages are the old ones or zeroes, and later bytes stay.
pub fn frees() {
    let mut area = Area::away(48 * MIB);
    let pages = area.pages();
    // Some are in memory when they are freed.
    area.check(0..pages / 8);
    done(
        "MADV_FREE",
        advise(&area, 0..pages / 2, libc::MADV_FREE).into(),
    );
    for at in 0..pages / 4 {
        let page = area.page(at);
        check(
            page,
            at,
            if page.iter().all(|byte| *byte == 0) {
                0
            } else {
                1
            },
        );
    }
    area.write(0..pages / 4, 2);
    area.push_out();
    area.check(0..pages / 4);
    area.check(pages / 2..pages);
    for at in pages / 4..pages / 2 {
        let page = area.page(at);
        check(
            page,
            at,
            if page.iter().all(|byte| *byte == 0) {
                0
            } else {
                1
            },
        );
    }
}

/// The heap shrinks over pages that are away, and grows over the same addresses.
pub fn shrinks_the_heap() {
    let pages = 48 * MIB;
    let kept = pages / 3;
    let grow = |bytes: isize| {
        // SAFETY: only what this function has added is taken away.
        unsafe { libc::sbrk(bytes) as usize }
    };
    let end = grow(0);
    grow((end.next_multiple_of(PAGE) - end) as isize);
    let base = grow((pages * PAGE) as isize);
    let mut area = Area::at(base, pages);
    for version in 2..5 {
        area.push_out();
        expect("the end of the heap", grow(0), base + pages * PAGE);
        grow(-(((pages - kept) * PAGE) as isize));
        area.check(0..kept);
        grow(((pages - kept) * PAGE) as isize);
        area.versions[kept..].fill(0);
        let half = usize::midpoint(kept, pages);
        area.write(kept..half, 100 + version);
        area.push_out();
        area.check_all();
        area.write(kept..pages, version);
    }
    area.push_out();
    area.check_all();
}

/// Other memory is mapped over pages that are away: fresh, a file's, and none that may be touched.
pub fn maps_over() {
    let mut area = Area::away(48 * MIB);
    let (pages, part) = (area.pages(), area.pages() / 4);
    let file = tempfile::tempfile().unwrap();
    for at in 0..part {
        let mut page = [0; PAGE];
        fill(&mut page, 2 * part + at, 7);
        file.write_all_at(&page, (at * PAGE) as u64).unwrap();
    }
    map(Some(area.base), part);
    area.versions[..part].fill(0);
    let start = area.address(0);
    let map_over = |at: usize, access, flags, file| {
        let (length, flags) = (part * PAGE, flags | libc::MAP_PRIVATE | libc::MAP_FIXED);
        let to = start.wrapping_byte_add(at * PAGE);
        // SAFETY: the place is the area's, and its model follows.
        let mapped = unsafe { libc::mmap(to, length, access, flags, file, 0) };
        expect("the place of a mapping", mapped, to);
    };
    map_over(part, libc::PROT_NONE, libc::MAP_ANONYMOUS, -1);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    map_over(2 * part, access, 0, file.as_raw_fd());
    area.versions[2 * part..3 * part].fill(7);
    // Half of what is new is touched only when the mapping is served again.
    area.write(0..part / 2, 6);
    area.check(2 * part..pages);
    area.push_out();
    area.check(0..part);
    map_over(part, access, libc::MAP_ANONYMOUS, -1);
    area.versions[part..2 * part].fill(0);
    area.check_all();
    area.write(0..pages, 8);
    area.push_out();
    area.check_all();
}

/// Mappings that the kernel has merged move as one, also over what else was there, grow and shrink.
pub fn moves() {
    let pages = 48 * MIB;
    let base = map(None, 2 * pages);
    map(Some(base), pages / 2);
    map(Some(base + pages / 2 * PAGE), pages / 2);
    let mut area = Area::at(base, pages);
    area.push_out();
    let to = map(None, pages);
    let old = Area::at(to, pages);
    old.push_out();
    let moves = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (from, bytes) = (area.address(0), area.bytes());
    // SAFETY: both are mappings of this program, and the model follows.
    let moved = unsafe { libc::mremap(from, bytes, bytes, moves, to as *mut libc::c_void) };
    expect("the new place", moved as usize, to);
    area.base = to;
    area.check_all();
    // What comes to the old place is new.
    map(Some(base), pages);
    Area {
        base,
        versions: vec![0; pages],
    }
    .check_all();
    area.write(0..pages, 2);
    area.push_out();
    // SAFETY: as above.
    let moved = unsafe { libc::mremap(area.address(0), bytes, 2 * bytes, libc::MREMAP_MAYMOVE) };
    expect("that it grows", moved == libc::MAP_FAILED, false);
    area.base = moved as usize;
    area.versions.resize(2 * pages, 0);
    area.check_all();
    area.write(pages..2 * pages, 3);
    area.push_out();
    // SAFETY: as above.
    let moved = unsafe { libc::mremap(area.address(0), 2 * bytes, bytes / 2, 0) };
    expect("that it shrinks in its place", moved as usize, area.base);
    area.versions.truncate(pages / 2);
    area.check_all();
}

/// Guards over pages that are away and others stay guards, whatever is touched beside them.
pub fn guards() {
    const STEP: usize = 64;
    const GUARDS: usize = 8;
    let mut area = Area::away(48 * MIB);
    let pages = area.pages();
    let guarded: Vec<usize> = (STEP / 2..pages).step_by(STEP).collect();
    area.check(0..pages / 4);
    for at in &guarded {
        let result = advise(&area, *at..at + GUARDS, MADV_GUARD_INSTALL);
        if result != 0 {
            return println!("left out: guards need Linux 6.13");
        }
    }
    for round in 0..3 {
        for at in 0..pages {
            match at % STEP {
                place if (STEP / 2..STEP / 2 + GUARDS).contains(&place) => {
                    expect(
                        &format!("round {round}: that guard {at} can be read"),
                        can_read(&area, at),
                        false,
                    );
                }
                _ => area.check(at..at + 1),
            }
        }
        Pressure::new().round();
    }
    for at in &guarded {
        done(
            "MADV_GUARD_REMOVE",
            advise(&area, *at..at + GUARDS, MADV_GUARD_REMOVE).into(),
        );
        for at in *at..at + GUARDS {
            // Old bytes are a known difference from a program without a budget, whose pages are zeroes.
            let page = area.page(at);
            check(
                page,
                at,
                if page.iter().all(|byte| *byte == 0) {
                    0
                } else {
                    1
                },
            );
        }
        area.write(*at..at + GUARDS, 2);
    }
    area.push_out();
    area.check_all();
}

/// The kernel is asked, so that no signal comes.
fn can_read(area: &Area, at: usize) -> bool {
    read_of(std::process::id(), area.address(at), &mut [0]) == 1
}

/// Memory to be wiped in a child is left alone, and the child sees zeroes.
pub fn is_wiped_on_fork() {
    let pages = 16 * MIB;
    let wiped = Area {
        base: map(None, pages),
        versions: vec![0; pages],
    };
    done(
        "MADV_WIPEONFORK",
        advise(&wiped, 0..pages, libc::MADV_WIPEONFORK).into(),
    );
    let mut wiped = wiped;
    wiped.write(0..pages, 1);
    let area = Area::away(32 * MIB);
    expect(
        "absent pages that are to be wiped",
        wiped.absent(0..pages),
        0,
    );
    in_child(|| {
        let mut its = wiped.clone();
        its.versions.fill(0);
        its.check_all();
        area.check_all();
        its.write(0..pages, 2);
        its.check_all();
    });
    wiped.check_all();
    area.check_all();
}

/// Shared memory is left alone. Parent and child see each other's bytes, and private pages leave beside it.
pub fn shares_with_a_child() {
    let pages = 32 * MIB;
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping anywhere.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, access, flags, -1, 0) };
    expect("that it maps", base == libc::MAP_FAILED, false);
    let mut shared = Area::at(base as usize, pages);
    let private = Area::away(32 * MIB);
    expect("absent pages that are shared", shared.absent(0..pages), 0);
    for version in 2..4 {
        in_child(|| {
            shared.clone().write(0..pages, version);
            private.check_all();
            Pressure::new().round();
        });
        shared.versions.fill(version);
        shared.check_all();
        private.check_all();
    }
}
