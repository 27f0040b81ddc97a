//! Hostile Block Translation Tables: a small sound table with the input's bytes patched in, and with the
//! checksums that then belong there. Opened, checked, written to, repaired: errors, never a panic, and what
//! opens holds what is written.

#![no_main]

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use uzram::{Bio, BlockDevice};
use uzram_media::{Btt, Persistence, PmemFile};

const SECTORS: u32 = 6;
const LANES: u32 = 2;
const MAP: usize = 8192;
const FLOG: usize = 12288;
const COPY: usize = 16384;
const SIZE: usize = 20480;

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The checksum that belongs to an info block.
fn seal(block: &mut [u8]) {
    block[4088..].fill(0);
    let (mut low, mut high) = (0u32, 0u32);
    for word in block.chunks_exact(4) {
        low = low.wrapping_add(u32::from_le_bytes(word.try_into().unwrap()));
        high = high.wrapping_add(low);
    }
    block[4088..4092].copy_from_slice(&low.to_le_bytes());
    block[4092..].copy_from_slice(&high.to_le_bytes());
}

fn sound() -> Vec<u8> {
    let mut image = vec![0; SIZE];
    put(&mut image, 0, b"BTT_ARENA_INFO");
    put(&mut image, 52, &2u16.to_le_bytes());
    for (at, word) in [512, SECTORS, 512, SECTORS + LANES, LANES, 4096]
        .into_iter()
        .enumerate()
    {
        put(&mut image, 56 + at * 4, &word.to_le_bytes());
    }
    for (at, offset) in [0, 4096, MAP, FLOG, COPY].into_iter().enumerate() {
        put(&mut image, 80 + at * 8, &(offset as u64).to_le_bytes());
    }
    for lane in 0..LANES {
        let block = SECTORS + lane;
        for (at, word) in [lane, block, block, 1].into_iter().enumerate() {
            put(
                &mut image,
                FLOG + lane as usize * 64 + at * 4,
                &word.to_le_bytes(),
            );
        }
    }
    image
}

fn patched(data: &[u8]) -> Vec<u8> {
    let mut image = sound();
    let (flags, patches) = data.split_first().unwrap_or((&0, &[]));
    for patch in patches.chunks_exact(4) {
        let at = usize::from(patch[1]);
        // Which part of the metadata the byte goes to.
        let place = match patch[0] % 3 {
            0 => at % 120,
            1 => MAP + at % (SECTORS as usize * 4),
            _ => FLOG + at % (LANES as usize * 64),
        };
        image[place] = patch[2];
    }
    let (first, rest) = image.split_at_mut(4096);
    if flags & 1 == 0 {
        seal(first);
    }
    let copy = &mut rest[COPY - 4096..];
    copy.copy_from_slice(first);
    if flags & 2 != 0 {
        copy[300] ^= 1;
        seal(copy);
    }
    let cut = usize::from(flags >> 4 & 3);
    image.truncate(SIZE - cut * 4096);
    image
}

/// A path to a file in memory that holds `image`, and the file that keeps it.
fn in_memory(image: &[u8]) -> (File, PathBuf) {
    let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.write_all(image).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    (file, path)
}

fn works(btt: &Btt) {
    let sector = u64::from(btt.sector_bytes());
    let count = (btt.geometry().size_bytes / sector).min(8);
    for round in 1..3u8 {
        for index in 0..count {
            let data = vec![round * 16 + index as u8; sector as usize];
            let offset = index * sector;
            btt.submit(Bio::Write {
                offset,
                data: &data,
            })
            .unwrap();
        }
        for index in 0..count {
            let mut buffer = vec![0; sector as usize];
            let offset = index * sector;
            let bio = Bio::Read {
                offset,
                buffer: &mut buffer,
            };
            btt.submit(bio).unwrap();
            assert!(buffer.iter().all(|byte| *byte == round * 16 + index as u8));
        }
    }
}

uzram_fuzz::sanitizer_options!();

fuzz_target!(|data: &[u8]| {
    let (_file, path) = in_memory(&patched(data));
    let open = || {
        PmemFile::open(&path)
            .unwrap()
            .with_persistence(Persistence::Never)
    };
    let checked = Btt::check(&open());
    match Btt::open(open()) {
        Ok(btt) => {
            assert_eq!(checked.unwrap().problem_count, 0);
            works(&btt);
        }
        Err(_) => {
            if Btt::repair(&open()).is_ok() {
                works(&Btt::open(open()).unwrap());
            }
        }
    }
});
