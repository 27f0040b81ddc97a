//! Every device behaves as a file of bytes: random unaligned requests of several threads, each in stripes
//! of its own on pages that all share, are compared with a model.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use uzram::{BlockDevice, Store, Unit, Zram};
use uzram_testkit::Rng;

use crate::device::Bytes;
use crate::{Mounted, O_DIRECT, read};

const SIZE: usize = 768 << 10;
const THREADS: usize = 4;
const ROUNDS: usize = 400;
/// Longer than a request, so that the kernel has to split.
const LONG: usize = 3 << 20;

#[test]
fn bytes_are_kept() {
    let Some(mounted) = Mounted::new(Bytes::new(SIZE)) else {
        return;
    };
    conform(&mounted);
}

#[test]
fn compressed_memory_is_kept() {
    for (algorithm, unit) in [("lz4", 4096), ("lzo-rle", 16384)] {
        let builder = Store::builder().size(SIZE as u64).algorithm(algorithm);
        let store = builder.unit(Unit::new(unit).unwrap()).build().unwrap();
        let device: Arc<dyn BlockDevice> = Arc::new(Zram::new(store));
        let Some(mounted) = Mounted::new(device) else {
            return;
        };
        conform(&mounted);
    }
}

#[test]
fn long_requests_arrive_whole() {
    let Some(mounted) = Mounted::new(Bytes::new(2 * LONG)) else {
        return;
    };
    let data: Vec<u8> = (0..LONG).map(|at| (at / 7) as u8).collect();
    let file = mounted.open();
    assert_eq!(file.write_at(&data, 4097).unwrap(), LONG);
    assert!(read(&mounted.open(), 4097, LONG).unwrap() == data);
    assert_eq!(read(&file, 4096, 1).unwrap(), [0]);
}

#[test]
fn direct_io_of_programs_is_served_the_same() {
    let Some(mounted) = Mounted::new(Bytes::new(SIZE)) else {
        return;
    };
    let file = mounted.open_with(O_DIRECT);
    file.write_all_at(&[5; 8192], 4096).unwrap();
    assert_eq!(read(&mounted.open(), 4095, 2).unwrap(), [0, 5]);
}

fn conform(mounted: &Mounted) {
    let share = SIZE / THREADS;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let file = mounted.open();
            // Odd borders: neighbours meet inside a page.
            let start = thread * share + if thread > 0 { 77 } else { 0 };
            let end = match thread + 1 {
                THREADS => SIZE,
                next => next * share + 77,
            };
            scope.spawn(move || work(&file, start, end, 0x5eed_0001 + thread as u64));
        }
    });
}

/// Random requests within `start..end`; what they read is decided by this thread alone.
fn work(file: &File, start: usize, end: usize, seed: u64) {
    let mut model = vec![0u8; end - start];
    let mut random = Rng::new(seed);
    for round in 0..ROUNDS {
        let at = random.below(model.len() - 1);
        let longest = match random.below(8) {
            0 => model.len() - at,
            _ => (model.len() - at).min(6000),
        };
        let length = 1 + random.below(longest);
        let offset = (start + at) as u64;
        let part = &mut model[at..at + length];
        match random.below(6) {
            0 | 1 => {
                let byte = random.below(256) as u8;
                let step = 1 + random.below(64);
                for (index, target) in part.iter_mut().enumerate() {
                    *target = byte.wrapping_add((index / step) as u8);
                }
                file.write_all_at(part, offset).unwrap();
            }
            2 => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, flags, offset, length as u64).unwrap();
                part.fill(0);
            }
            3 => {
                let flags = FallocateFlags::ZERO_RANGE;
                rustix::fs::fallocate(file, flags, offset, length as u64).unwrap();
                part.fill(0);
            }
            _ => assert!(
                read(file, offset, length).unwrap() == *part,
                "seed {seed:#x}, round {round}: {length} bytes at {offset}"
            ),
        }
    }
    file.sync_all().unwrap();
    assert!(
        read(file, start as u64, model.len()).unwrap() == model,
        "at the end"
    );
}
