//! Pages in a file: the coldest and those that do not shrink. A failing disk costs no byte, a damaged file its page alone.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use uzram::{ErrorKind, Store, StoreBuilder};
use uzram_pager::CompressedMemory;
use uzram_testkit::{Loop, Rng, noise};

use super::{PAGE, apart, discard, lost, mark, marked, until, with_spill};

const PAGES: usize = 2000;
const BUDGET: usize = 128;

fn with_file(store: StoreBuilder) -> Option<(CompressedMemory, File)> {
    with_spill(PAGES, BUDGET, store)
}

/// A page that does not shrink.
fn random(page: usize) -> Vec<u8> {
    noise(page as u64 + 1, PAGE)
}

/// Fills `memory` with pages that do not shrink, and waits until most are in the file.
fn fill(memory: &mut CompressedMemory) {
    for page in 0..PAGES {
        memory[page * PAGE..][..PAGE].copy_from_slice(&random(page));
    }
    let most = ((PAGES - 3 * BUDGET) * PAGE) as u64;
    until(memory, "most pages are in the file", |memory| {
        memory.statistics().spilled_bytes > most
    });
}

#[test]
fn pages_that_do_not_shrink_go_to_the_file_and_come_back() {
    let name = "spill::pages_that_do_not_shrink_go_to_the_file_and_come_back";
    apart(name, || {
        let Some((mut memory, file)) = with_file(Store::builder()) else {
            return;
        };
        fill(&mut memory);
        let statistics = memory.statistics();
        assert!(statistics.compressed_memory_bytes < (3 * BUDGET * PAGE) as u64);
        assert!(file.metadata().unwrap().blocks() * 512 >= statistics.spilled_bytes / 2);
        for page in (0..PAGES).rev() {
            assert!(memory[page * PAGE..][..PAGE] == random(page), "page {page}");
        }
        let statistics = memory.statistics();
        assert!(statistics.faults_spilled > 1000, "{statistics:?}");
        assert_eq!(
            (statistics.spill_failures, statistics.pages_poisoned),
            (0, 0)
        );
        // What is discarded leaves the file, too.
        discard(&mut memory[..PAGES * PAGE], libc::MADV_DONTNEED);
        until(&memory, "the file is empty", |memory| {
            memory.statistics().spilled_bytes == 0
        });
    });
}

#[test]
fn the_coldest_pages_go_to_the_file_when_the_store_is_nearly_full() {
    let name = "spill::the_coldest_pages_go_to_the_file_when_the_store_is_nearly_full";
    apart(name, || {
        let limit = 1 << 20;
        let Some((mut memory, _)) = with_file(Store::builder().mem_limit(limit)) else {
            return;
        };
        // Pages shrink to half, so the limit has room for a quarter of them.
        for page in 0..PAGES {
            mark(&mut memory[page * PAGE..][..PAGE], page as u64);
        }
        let statistics = memory.statistics();
        assert!(statistics.compressed_memory_bytes <= limit);
        assert!(statistics.pages_spilled > 1000, "{statistics:?}");
        // The budget holds: who needs memory waits for the disk.
        assert_eq!(statistics.pages_over_budget, 0, "{statistics:?}");
        assert!(statistics.resident_bytes <= (BUDGET * PAGE) as u64);
        for page in 0..PAGES {
            assert!(memory[page * PAGE..][..PAGE] == marked(page as u64));
        }
        assert!(memory.statistics().faults_spilled > 500);
    });
}

#[test]
fn memory_with_a_file_is_a_slice() {
    apart("spill::memory_with_a_file_is_a_slice", || {
        let store = Store::builder().mem_limit(1 << 20);
        let Some((mut memory, _)) = with_file(store) else {
            return;
        };
        let (mut copy, mut rng) = (vec![0u8; PAGES * PAGE], Rng::new(5));
        for step in 0..2_000_usize {
            let page = rng.below(PAGES);
            let range = page * PAGE..(page + 1 + rng.below(4).min(PAGES - 1 - page)) * PAGE;
            match rng.below(10) {
                0..=1 => copy[range.clone()]
                    .chunks_exact_mut(PAGE)
                    .for_each(|bytes| bytes.copy_from_slice(&noise(step as u64, PAGE))),
                2..=4 => copy[range.clone()]
                    .chunks_exact_mut(PAGE)
                    .for_each(|bytes| mark(bytes, step as u64)),
                5 => {
                    discard(&mut memory[range.clone()], libc::MADV_DONTNEED);
                    copy[range].fill(0);
                    continue;
                }
                _ => {
                    assert!(
                        memory[range.clone()] == copy[range],
                        "step {step}, page {page}"
                    );
                    continue;
                }
            }
            memory[range.clone()].copy_from_slice(&copy[range]);
        }
        for page in 0..PAGES {
            let range = page * PAGE..(page + 1) * PAGE;
            assert!(memory[range.clone()] == copy[range], "page {page}");
        }
        let statistics = memory.statistics();
        assert!(statistics.faults_spilled > 300, "{statistics:?}");
        assert_eq!(
            (statistics.pages_poisoned, statistics.has_failed),
            (0, false)
        );
    });
}

#[test]
fn a_full_disk_leaves_pages_in_memory() {
    apart("spill::a_full_disk_leaves_pages_in_memory", || {
        // Files of this process end at a megabyte. Then a write fails, as on a disk that is full.
        let limit = libc::rlimit {
            rlim_cur: 1 << 20,
            rlim_max: 1 << 20,
        };
        // SAFETY: reads the limit.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
        assert_eq!(set, 0);
        let Some((mut memory, _)) = with_file(Store::builder()) else {
            return;
        };
        for page in 0..PAGES {
            memory[page * PAGE..][..PAGE].copy_from_slice(&random(page));
        }
        until(&memory, "the disk is full", |memory| {
            std::hint::black_box(memory[0]);
            memory.statistics().spill_failures > 0
        });
        for page in 0..PAGES {
            assert!(memory[page * PAGE..][..PAGE] == random(page), "page {page}");
        }
        let statistics = memory.statistics();
        assert_eq!(
            (statistics.pages_poisoned, statistics.has_failed),
            (0, false)
        );
        assert!(statistics.spilled_bytes <= 1 << 20);
        assert!(statistics.compressed_memory_bytes > 4 << 20);
    });
}

/// Damages the file, and reads a page that was in it.
fn read_damaged(damage: impl Fn(&File)) {
    let Some((mut memory, file)) = with_file(Store::builder()) else {
        return;
    };
    fill(&mut memory);
    damage(&file);
    println!("it reads as {:?}", &memory[5 * PAGE..][..8]);
}

fn flip(file: &File) {
    let length = file.metadata().unwrap().len();
    for at in (PAGE as u64 + 1..length).step_by(PAGE) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    }
}

#[test]
fn a_flipped_bit_in_the_file_is_a_sigbus() {
    lost("spill::a_flipped_bit_in_the_file_is_a_sigbus", || {
        read_damaged(flip);
    });
}

#[test]
fn a_file_that_was_cut_off_is_a_sigbus() {
    lost("spill::a_file_that_was_cut_off_is_a_sigbus", || {
        read_damaged(|file| file.set_len(4096).unwrap());
    });
}

#[test]
fn damage_in_the_file_costs_its_page_alone() {
    apart("spill::damage_in_the_file_costs_its_page_alone", || {
        let Some((mut memory, file)) = with_file(Store::builder()) else {
            return;
        };
        fill(&mut memory);
        // One page's block, found by its bytes.
        let (wanted, mut bytes) = (random(500), vec![0; PAGE]);
        let mut at = 0;
        while bytes != wanted {
            at += PAGE as u64;
            file.read_exact_at(&mut bytes, at).unwrap();
        }
        file.write_all_at(&[!bytes[100]], at + 100).unwrap();
        for page in (0..PAGES).filter(|page| *page != 500) {
            assert!(memory[page * PAGE..][..PAGE] == random(page), "page {page}");
        }
        // It is lost, until the program discards it.
        discard(&mut memory[500 * PAGE..501 * PAGE], libc::MADV_DONTNEED);
        assert!(memory[500 * PAGE..501 * PAGE].iter().all(|byte| *byte == 0));
        assert!(!memory.statistics().has_failed);
    });
}

#[test]
fn a_file_of_somebody_else_is_refused() {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, b"a letter").unwrap();
    let builder = CompressedMemory::builder(PAGES * PAGE, BUDGET * PAGE);
    let error = builder.spill(file).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("other content"), "{error}");
}

fn open(device: &Loop) -> File {
    let mut options = File::options();
    options.read(true).write(true).open(&device.path).unwrap()
}

fn spill_to(device: &Loop) -> uzram::Result<CompressedMemory> {
    let builder = CompressedMemory::builder(PAGES * PAGE, BUDGET * PAGE);
    let builder = builder.fault_handler(super::handler());
    builder.spill(open(device)).build()
}

/// Pages that find no room on the device stay in memory.
#[test]
fn a_block_device_takes_pages_until_it_is_full() {
    let name = "spill::a_block_device_takes_pages_until_it_is_full";
    apart(name, || {
        let room = 1200;
        let Some(device) = Loop::new((room * PAGE) as u64) else {
            return;
        };
        // Somebody's file system is left alone.
        open(&device).write_all_at(&[0x53, 0xef], 1080).unwrap();
        match spill_to(&device) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return,
            made => assert_eq!(made.unwrap_err().kind(), ErrorKind::InvalidInput),
        }
        open(&device).write_all_at(&[0, 0], 1080).unwrap();
        let mut memory = spill_to(&device).unwrap();
        for page in 0..PAGES {
            memory[page * PAGE..][..PAGE].copy_from_slice(&random(page));
        }
        until(&memory, "the device is nearly full", |memory| {
            memory.statistics().spilled_bytes > ((room - 100) * PAGE) as u64
        });
        for page in (0..PAGES).rev() {
            assert!(memory[page * PAGE..][..PAGE] == random(page), "page {page}");
        }
        let statistics = memory.statistics();
        assert!(statistics.spilled_bytes < (room * PAGE) as u64);
        assert!(statistics.spill_failures > 0, "{statistics:?}");
        assert_eq!(statistics.pages_poisoned, 0, "{statistics:?}");
    });
}
