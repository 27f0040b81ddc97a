//! Programs that have the kernel read and write memory that is away: at once, past the page cache, and by a ring.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{IoUring, opcode, squeue, types};

use crate::area::{Area, MIB, Pressure, expect};
use crate::pages::{PAGE, check, fill};

/// Pages of one request.
const PART: usize = 64;

/// A file of the pages that an area has in this version.
fn file_of(file: &File, pages: usize, version: u64) {
    for at in 0..pages {
        let mut page = [0; PAGE];
        fill(&mut page, at, version);
        file.write_all_at(&page, (at * PAGE) as u64).unwrap();
    }
    file.sync_all().unwrap();
}

fn check_file(file: &File, area: &Area) {
    for at in 0..area.pages() {
        let mut page = [0; PAGE];
        file.read_exact_at(&mut page, (at * PAGE) as u64).unwrap();
        check(&page, at, area.versions[at]);
    }
}

/// Does `part` while another thread needs all memory.
fn under_pressure(part: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut pressure = Pressure::new();
            while !is_over.load(Ordering::Relaxed) {
                pressure.round();
            }
        });
        part();
        is_over.store(true, Ordering::Relaxed);
    });
}

/// One call reads a file that is larger than the budget, into memory whose pages are away.
pub fn reads_all_at_once() {
    let mut area = Area::away(48 * MIB);
    let mut file = tempfile::tempfile().unwrap();
    for version in 2..4 {
        file_of(&file, area.pages(), version);
        file.rewind().unwrap();
        area.push_out();
        // SAFETY: the bytes are the area's, and this is the only reference to them.
        let bytes = unsafe { std::slice::from_raw_parts_mut(area.base as *mut u8, area.bytes()) };
        file.read_exact(bytes).unwrap();
        area.versions.fill(version);
        area.check_all();
    }
}

/// Reads and writes with O_DIRECT, whose pages are pinned meanwhile.
pub fn reads_directly() {
    let mut area = Area::away(16 * MIB);
    let pages = area.pages();
    let named = tempfile::NamedTempFile::new().unwrap();
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    let direct = options.open(named.path()).unwrap();
    under_pressure(|| {
        for version in 2..10 {
            file_of(named.as_file(), pages, version);
            for at in (0..pages).step_by(PART) {
                // SAFETY: the bytes are the area's, and this is the only reference to them.
                let part =
                    unsafe { std::slice::from_raw_parts_mut(area.address(at).cast(), PART * PAGE) };
                direct.read_exact_at(part, (at * PAGE) as u64).unwrap();
            }
            area.versions.fill(version);
            area.check_all();
            area.write(0..pages, 100 + version);
            for at in (0..pages).step_by(PART) {
                // SAFETY: the bytes are the area's, and nobody writes to them.
                let part =
                    unsafe { std::slice::from_raw_parts(area.address(at).cast(), PART * PAGE) };
                direct.write_all_at(part, (at * PAGE) as u64).unwrap();
            }
            check_file(named.as_file(), &area);
        }
    });
    area.check_all();
}

/// io_uring reads into memory that is away, and into memory that is registered with it, and so pinned.
pub fn reads_by_a_ring() {
    let mut area = Area::away(16 * MIB);
    let pages = area.pages();
    let file = tempfile::tempfile().unwrap();
    let mut ring = match IoUring::new(8) {
        Ok(ring) => ring,
        Err(error) => return println!("left out: io_uring: {error}"),
    };
    let number = types::Fd(file.as_raw_fd());
    let length = (PART * PAGE) as u32;
    file_of(&file, pages, 2);
    each_part(&mut ring, &area, |at, to| {
        opcode::Read::new(number, to, length)
            .offset((at * PAGE) as u64)
            .build()
    });
    area.versions.fill(2);
    area.check_all();
    area.write(0..pages, 3);
    area.push_out();
    each_part(&mut ring, &area, |at, from| {
        opcode::Write::new(number, from, length)
            .offset((at * PAGE) as u64)
            .build()
    });
    check_file(&file, &area);
    area.push_out();
    let buffer = libc::iovec {
        iov_base: area.address(0),
        iov_len: area.bytes(),
    };
    // SAFETY: the memory lives as long as the program.
    unsafe { ring.submitter().register_buffers(&[buffer]) }.unwrap();
    under_pressure(|| {
        for version in 4..12 {
            expect("absent pages that are pinned", area.absent(0..pages), 0);
            file_of(&file, pages, version);
            each_part(&mut ring, &area, |at, to| {
                opcode::ReadFixed::new(number, to, length, 0)
                    .offset((at * PAGE) as u64)
                    .build()
            });
            area.versions.fill(version);
            area.check_all();
        }
    });
    ring.submitter().unregister_buffers().unwrap();
    area.push_out();
    area.check_all();
}

/// Has one request made for each part of the area.
fn each_part(ring: &mut IoUring, area: &Area, request: impl Fn(usize, *mut u8) -> squeue::Entry) {
    for at in (0..area.pages()).step_by(PART) {
        let entry = request(at, area.address(at).cast());
        // SAFETY: the memory and the file live until the request has ended, which is waited for.
        unsafe { ring.submission().push(&entry) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        let completed = ring.completion().next().unwrap();
        expect(
            "bytes of a request",
            completed.result(),
            (PART * PAGE) as i32,
        );
    }
}
