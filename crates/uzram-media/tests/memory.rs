//! A RAM disk takes the memory of what was written to it. The test has a process of its own, because it
//! looks at its resident set.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::fs;
use std::path::Path;

use uzram::{Bio, BlockDevice, ErrorKind};
use uzram_media::Brd;

/// Near what fits: a program in the middle of its 128 TiB of addresses leaves some 85 on one side.
const DISK_BYTES: u64 = 64 << 40;

/// For a disk with a few pages in it: its locks, page tables and what the test itself needs.
const GROWTH_MAX_BYTES: u64 = 8 << 20;

/// Pages written, each where a huge page of its own would lie.
const PAGES: u64 = 64;

const HUGE_PAGE_BYTES: u64 = 2 << 20;

fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    let pages = text.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    pages * 4096
}

/// Names of this process's mappings above a GiB, each with whether the system keeps huge pages out.
fn vast_mappings() -> Vec<(String, bool)> {
    let text = fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut mappings, mut name, mut is_vast) = (Vec::new(), "", false);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Size:") => is_vast = words.next().unwrap().parse::<u64>().unwrap() > 1 << 20,
            Some("VmFlags:") if is_vast => {
                mappings.push((name.to_owned(), words.any(|flag| flag == "nh")));
            }
            Some(word) if !word.ends_with(':') => name = word,
            _ => {}
        }
    }
    mappings
}

#[test]
fn a_vast_disk_costs_what_is_written_to_it() {
    let before = resident_bytes();
    let grown = || resident_bytes().saturating_sub(before);
    let disk = match Brd::new(DISK_BYTES) {
        Ok(disk) => disk,
        Err(error) => {
            // Strict accounting refuses what no machine has.
            assert_eq!(error.kind(), ErrorKind::NoMemory);
            let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap();
            assert_eq!(mode.trim(), "2", "{error}");
            eprintln!("not tested: overcommit_memory is 2");
            return;
        }
    };
    assert!(grown() < GROWTH_MAX_BYTES, "made: {} bytes", grown());

    let end = DISK_BYTES - PAGES * HUGE_PAGE_BYTES;
    let places = || (0..PAGES).map(|page| end + page * HUGE_PAGE_BYTES + 5);
    let read = |offset| {
        let mut bytes = [0xee; 10];
        let buffer = &mut bytes;
        disk.submit(Bio::Read { offset, buffer }).unwrap();
        bytes
    };
    for offset in places().chain([0, DISK_BYTES / 2, DISK_BYTES - 10]) {
        assert_eq!(read(offset), [0; 10]);
    }
    assert!(grown() < GROWTH_MAX_BYTES, "read: {} bytes", grown());
    let data = &[7; 10];
    for offset in places().chain([DISK_BYTES - 10]) {
        disk.submit(Bio::Write { offset, data }).unwrap();
        assert_eq!(read(offset), [7; 10]);
    }
    assert_eq!(disk.used_bytes(), (PAGES + 1) * 4096);
    assert!(grown() < GROWTH_MAX_BYTES, "written: {} bytes", grown());

    let mut byte = [0];
    let beyond = Bio::Read {
        offset: DISK_BYTES,
        buffer: &mut byte,
    };
    assert_eq!(
        disk.submit(beyond).unwrap_err().kind(),
        ErrorKind::OutOfRange
    );
    disk.submit(Bio::Trim {
        offset: end,
        length: DISK_BYTES - end,
    })
    .unwrap();
    assert_eq!(disk.used_bytes(), 0);
    assert_eq!(read(end + 5), [0; 10]);

    if Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        let mappings = vast_mappings();
        assert!(!mappings.is_empty());
        for (name, is_kept_small) in mappings {
            assert!(is_kept_small, "{name} may become huge pages");
        }
    }
}
