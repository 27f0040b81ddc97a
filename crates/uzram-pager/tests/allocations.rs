//! A handler of SIGBUS that brings a page allocates nothing, but for the state of a codec at its first use. (Where it also evicts, the tables of the store's pool may grow.)

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use uzram::ErrorKind;
use uzram_pager::{CompressedMemory, FaultHandler};
use uzram_testkit::Rng;

const PAGE: usize = 4096;
const PAGES: usize = 4000;
/// Allocations for the states of a codec: it has some, which their first uses make.
const STATE_MAX: usize = 100;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator, and a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn touches_that_bring_a_page_allocate_nothing_but_the_state_of_a_codec() {
    for algorithm in ["lz4", "words", "zstd"] {
        let store = uzram::Store::builder().algorithm(algorithm);
        let builder = CompressedMemory::builder(PAGES * PAGE, 2 * PAGES * PAGE).store(store);
        let memory = builder.fault_handler(FaultHandler::FaultingThread).build();
        let mut memory = match memory {
            Ok(memory) => memory,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return println!("skipped: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        let mut rng = Rng::new(5);
        for (seed, page) in memory.chunks_exact_mut(PAGE).enumerate() {
            // Some do not shrink, and some are of one byte.
            let count = seed % 7 * PAGE / 6;
            page.fill(seed as u8);
            for word in page[..count].chunks_exact_mut(8) {
                word.copy_from_slice(&rng.next().to_le_bytes());
            }
        }
        memory.set_budget(64 * PAGE).unwrap();
        while memory.statistics().resident_bytes > 64 * PAGE as u64 {
            std::thread::yield_now();
        }
        memory.set_budget(2 * PAGES * PAGE).unwrap();
        let before = (ALLOCATIONS.with(Cell::get), memory.statistics());
        for _ in 0..PAGES {
            memory[rng.below(PAGES) * PAGE + 4000] ^= 1;
        }
        let count = ALLOCATIONS.with(Cell::get) - before.0;
        let faults = memory.statistics().faults_stored - before.1.faults_stored;
        assert!(faults > 1000, "{faults}");
        assert!(
            count <= STATE_MAX,
            "{algorithm}: {count} in {faults} faults"
        );
    }
}
