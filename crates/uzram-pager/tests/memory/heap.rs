//! The heap: what it hands out, takes back and gives to the system.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as HeapVec;
use hashbrown::HashMap;
use uzram_pager::CompressedHeap;
use uzram_testkit::Rng;

use super::system::in_child;
use super::{PAGE, apart, killed_by, memory, until_true};

/// The most that slabs without allocations take: one of each class.
const KEPT_BYTES: usize = 27 * 3 * PAGE;

pub(crate) fn heap(pages: usize, budget_pages: usize) -> Option<CompressedHeap> {
    Some(CompressedHeap::new(memory(pages, budget_pages)?).unwrap())
}

/// An allocation, and what its bytes are made of.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
    seed: u64,
}

// SAFETY: it owns what it points to.
unsafe impl Send for Block {}

impl Block {
    fn new(heap: &CompressedHeap, layout: Layout, seed: u64) -> Option<Block> {
        let start = match seed % 3 {
            0 => heap.allocate_zeroed(layout),
            _ => heap.allocate(layout),
        };
        let start = start.ok()?.cast::<u8>();
        assert!(start.addr().get().is_multiple_of(layout.align()));
        let mut block = Block {
            start,
            layout,
            seed,
        };
        assert!(
            !seed.is_multiple_of(3) || block.bytes().iter().all(|byte| *byte == 0),
            "{layout:?}"
        );
        block.fill(seed, 0);
        Some(block)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated and not freed, of that size, zeroed or filled.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }

    /// Writes what the seed makes, from byte `from` on.
    fn fill(&mut self, seed: u64, from: usize) {
        self.seed = seed;
        for (at, byte) in self.bytes().iter_mut().enumerate().skip(from) {
            *byte = made_of(seed, at);
        }
    }

    fn check(&mut self, length: usize) {
        let seed = self.seed;
        let wrong = self.bytes()[..length].iter().enumerate();
        let wrong = wrong
            .filter(|(at, byte)| **byte != made_of(seed, *at))
            .count();
        assert_eq!(wrong, 0, "bytes of {:?} are another's", self.layout);
    }

    fn resize(&mut self, heap: &CompressedHeap, layout: Layout, is_zeroed: bool) {
        let (start, from) = (self.start, self.layout);
        let is_longer = layout.size() >= from.size();
        let resized = match (is_longer, is_zeroed) {
            // SAFETY: allocated with that layout and not freed.
            (true, true) => unsafe { heap.grow_zeroed(start, from, layout) },
            // SAFETY: as above.
            (true, false) => unsafe { heap.grow(start, from, layout) },
            // SAFETY: as above.
            (false, _) => unsafe { heap.shrink(start, from, layout) },
        };
        let Ok(resized) = resized else {
            return self.check(from.size());
        };
        self.start = resized.cast();
        self.layout = layout;
        assert!(self.start.addr().get().is_multiple_of(layout.align()));
        self.check(from.size().min(layout.size()));
        if is_longer {
            let rest = self.start.as_ptr().wrapping_add(from.size());
            // SAFETY: so many bytes were added.
            let rest = unsafe { std::slice::from_raw_parts(rest, layout.size() - from.size()) };
            assert!(
                !is_zeroed || rest.iter().all(|byte| *byte == 0),
                "{from:?} to {layout:?}"
            );
        }
        self.fill(self.seed, from.size().min(layout.size()));
    }

    fn free(mut self, heap: &CompressedHeap) {
        self.check(self.layout.size());
        // SAFETY: allocated with that layout, and gone with `self`.
        unsafe { heap.deallocate(self.start, self.layout) };
    }
}

/// Most bytes are the seed's own, and all tell their place in a page.
fn made_of(seed: u64, at: usize) -> u8 {
    ((seed >> (at % 4 * 8)) as u8) ^ (at / 64) as u8
}

fn layout(rng: &mut Rng) -> Layout {
    let size = match rng.below(10) {
        0..=5 => 1 + rng.below(600),
        6..=7 => 1 + rng.below(3 * PAGE),
        _ => 1 + rng.below(60 * PAGE),
    };
    let align = match rng.below(4) {
        0 => 1 << rng.below(17),
        _ => 8,
    };
    Layout::from_size_align(size, align).unwrap()
}

#[test]
fn random_allocations_by_threads_keep_their_bytes() {
    apart(
        "heap::random_allocations_by_threads_keep_their_bytes",
        || {
            // Content of some 10 MiB in a budget of 256 KiB.
            let Some(heap) = heap(8000, 64) else {
                return;
            };
            let shared = Mutex::new(Vec::new());
            std::thread::scope(|scope| {
                for seed in 0..4 {
                    let (heap, shared) = (&heap, &shared);
                    scope.spawn(move || work(seed, heap, shared));
                }
            });
            shared
                .into_inner()
                .unwrap()
                .into_iter()
                .for_each(|block: Block| block.free(&heap));
            let statistics = heap.statistics();
            assert!(statistics.pages_out > 1000, "{statistics:?}");
            assert!(
                !statistics.has_failed && statistics.pages_poisoned == 0,
                "{statistics:?}"
            );
            assert!(
                heap.used_bytes() <= KEPT_BYTES,
                "{} bytes are lost",
                heap.used_bytes()
            );
        },
    );
}

fn work(seed: u64, heap: &CompressedHeap, shared: &Mutex<Vec<Block>>) {
    let mut rng = Rng::new(seed);
    let mut blocks: Vec<Block> = Vec::new();
    for step in 0..2500 {
        let nth = rng.below(blocks.len().max(1));
        match rng.below(12) {
            0..=4 => blocks.extend(Block::new(heap, layout(&mut rng), rng.next())),
            _ if blocks.is_empty() => {}
            5..=6 => blocks.swap_remove(nth).free(heap),
            7..=8 => {
                let to = layout(&mut rng);
                blocks[nth].resize(heap, to, step % 2 == 0);
            }
            // Another thread frees it, and this one that of another.
            9 => {
                let block = blocks.swap_remove(nth);
                let mut shared = shared.lock().unwrap();
                shared.push(block);
                let other = rng.below(shared.len());
                blocks.push(shared.swap_remove(other));
            }
            _ => {
                let length = blocks[nth].layout.size();
                blocks[nth].check(length);
            }
        }
        if blocks.len() > 150 {
            blocks.swap_remove(nth).free(heap);
        }
    }
    blocks.into_iter().for_each(|block| block.free(heap));
}

/// Pages of no allocation are neither in memory nor compressed.
#[test]
fn what_is_freed_takes_nothing() {
    apart("heap::what_is_freed_takes_nothing", || {
        let Some(heap) = heap(4000, 200) else {
            return;
        };
        for size in [40, 1000, 3000, 5000, 300_000] {
            let count = 8_000_000 / size;
            let one = Layout::from_size_align(size, 8).unwrap();
            let blocks: Vec<_> = (0..count)
                .map(|seed| Block::new(&heap, one, seed as u64).unwrap())
                .collect();
            assert!(heap.used_bytes() >= 8_000_000 - size);
            let before = heap.statistics();
            assert!(before.stored_bytes > 6_000_000, "{before:?}");
            blocks.into_iter().for_each(|block| block.free(&heap));
            assert!(heap.used_bytes() <= KEPT_BYTES);
            until_true(&heap, "freed pages are forgotten", || {
                let statistics = heap.statistics();
                let present = statistics.resident_bytes - statistics.staged_bytes;
                // What counts as present are slots of the ring.
                statistics.stored_bytes + statistics.staged_bytes <= KEPT_BYTES as u64
                    && present <= (200 * PAGE) as u64
            });
        }
        let whole = Layout::from_size_align(4000 * PAGE, 1).unwrap();
        assert!(heap.allocate(whole).is_ok(), "free pages are one run again");
    });
}

#[test]
fn every_alignment_is_kept_and_nothing_has_an_address() {
    apart(
        "heap::every_alignment_is_kept_and_nothing_has_an_address",
        || {
            let Some(heap) = heap(5000, 64) else {
                return;
            };
            let mut blocks = Vec::new();
            for align in (0..=23).map(|power| 1 << power) {
                for size in [1, align / 2 + 1, align, align + 1] {
                    let one = Layout::from_size_align(size, align).unwrap();
                    let seed = blocks.len() as u64;
                    blocks.extend(Block::new(&heap, one, seed));
                    let none = Layout::from_size_align(0, align).unwrap();
                    let nothing = heap.allocate(none).unwrap();
                    assert_eq!(nothing.len(), 0);
                    assert_eq!(nothing.cast::<u8>().addr().get(), align);
                    // SAFETY: allocated with that layout.
                    unsafe { heap.deallocate(nothing.cast(), none) };
                }
            }
            assert!(blocks.len() > 80, "{}", blocks.len());
            blocks.into_iter().for_each(|block| block.free(&heap));
            assert!(heap.used_bytes() <= KEPT_BYTES);
            let too_much = Layout::from_size_align(1, 1 << 40).unwrap();
            assert!(heap.allocate(too_much).is_err());
        },
    );
}

#[test]
fn a_full_heap_refuses_and_serves_again_after_a_free() {
    apart(
        "heap::a_full_heap_refuses_and_serves_again_after_a_free",
        || {
            const PAGES: usize = 300;
            let Some(heap) = heap(PAGES, 64) else {
                return;
            };
            for size in [64, 2000, PAGE, 5 * PAGE] {
                let one = Layout::from_size_align(size, 8).unwrap();
                let mut blocks = Vec::new();
                while let Some(block) = Block::new(&heap, one, blocks.len() as u64) {
                    blocks.push(block);
                }
                assert!(
                    blocks.len() * size > PAGES * PAGE * 8 / 10,
                    "{} of {size}",
                    blocks.len()
                );
                assert!(
                    heap.allocate(Layout::from_size_align(PAGES * PAGE, 1).unwrap())
                        .is_err()
                );
                // A resize that has no room leaves the allocation as it was.
                blocks[0].resize(
                    &heap,
                    Layout::from_size_align(PAGES * PAGE, 8).unwrap(),
                    false,
                );
                blocks.swap_remove(7).free(&heap);
                blocks.extend(Some(Block::new(&heap, one, 1).unwrap()));
                assert!(Block::new(&heap, one, 1).is_none());
                blocks.into_iter().for_each(|block| block.free(&heap));
            }
            let huge = Layout::from_size_align(isize::MAX as usize - 4095, 4096).unwrap();
            assert!(heap.allocate(huge).is_err());
        },
    );
}

#[test]
fn a_vector_grows_and_shrinks_in_place() {
    apart("heap::a_vector_grows_and_shrinks_in_place", || {
        let Some(heap) = heap(4000, 64) else {
            return;
        };
        let mut numbers = HeapVec::new_in(&heap);
        numbers.extend(0..1000u64);
        let place = numbers.as_ptr();
        numbers.extend(1000..1_000_000);
        assert_eq!(numbers.as_ptr(), place, "the pages behind it are free");
        numbers.truncate(5000);
        numbers.shrink_to_fit();
        assert_eq!(numbers.as_ptr(), place);
        assert_eq!(heap.used_bytes(), 10 * PAGE);
        let other: HeapVec<u64, _> = HeapVec::with_capacity_in(1000, &heap);
        numbers.extend(5000..10_000);
        assert_ne!(numbers.as_ptr(), place, "another's pages are behind it");
        assert!(numbers.iter().copied().eq(0..10_000));
        drop(other);
    });
}

/// Counts its drops.
struct Counted<'a>(&'a AtomicUsize, [u64; 20]);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        assert!(
            self.1.iter().all(|word| *word == self.1[0]),
            "dropped whole"
        );
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn values_are_dropped_once_and_the_heap_after_them() {
    apart(
        "heap::values_are_dropped_once_and_the_heap_after_them",
        || {
            let Some(heap) = heap(8000, 64) else {
                return;
            };
            let drops = AtomicUsize::new(0);
            let mut map = HashMap::new_in(heap.clone());
            for key in 0..30_000u64 {
                map.insert(key, Counted(&drops, [key; 20]));
            }
            let mut list = HeapVec::new_in(heap.clone());
            list.extend((0..10_000).map(|word| Counted(&drops, [word; 20])));
            assert!(heap.statistics().pages_out > 1000);
            // Its last owners are the collections.
            drop(heap);
            for key in (0..30_000).step_by(3) {
                assert_eq!(map.remove(&key).unwrap().1[19], key);
            }
            assert_eq!(drops.load(Ordering::Relaxed), 10_000);
            drop(map);
            assert_eq!(drops.load(Ordering::Relaxed), 30_000);
            assert_eq!(list.pop().unwrap().1[3], 9_999);
            drop(list);
            assert_eq!(drops.load(Ordering::Relaxed), 40_000);
        },
    );
}

#[test]
fn a_child_is_refused_and_frees_nothing() {
    apart("heap::a_child_is_refused_and_frees_nothing", || {
        let Some(heap) = heap(1000, 64) else {
            return;
        };
        let small = Layout::from_size_align(100, 8).unwrap();
        let large = Layout::from_size_align(100 * PAGE, 8).unwrap();
        let blocks = [small, large].map(|layout| Block::new(&heap, layout, 7).unwrap());
        let status = in_child(|| {
            let is_refused = [small, large]
                .iter()
                .all(|layout| heap.allocate(*layout).is_err());
            for block in &blocks {
                // SAFETY: allocated with that layout; the child does not touch it.
                unsafe { heap.deallocate(block.start, block.layout) };
            }
            if !is_refused {
                // SAFETY: ends the child.
                unsafe { libc::_exit(1) };
            }
        });
        assert_eq!(status, 0);
        let used = heap.used_bytes();
        assert_eq!(used, 101 * PAGE);
        blocks.into_iter().for_each(|block| block.free(&heap));
        Block::new(&heap, large, 8).unwrap().free(&heap);
    });
}

#[test]
fn pages_that_were_locked_are_zero_for_the_next() {
    apart("heap::pages_that_were_locked_are_zero_for_the_next", || {
        let Some(heap) = heap(100, 64) else {
            return;
        };
        let layout = Layout::from_size_align(8 * PAGE, 8).unwrap();
        let block = Block::new(&heap, layout, 7).unwrap();
        let start = block.start;
        // SAFETY: locking changes no content.
        let locked = unsafe { libc::mlock(start.as_ptr().cast(), layout.size()) };
        assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
        block.free(&heap);
        let block = Block::new(&heap, layout, 9).unwrap();
        assert_eq!(block.start, start);
        block.free(&heap);
    });
}

/// A page of a new heap that is gone without a message is not taken for one that was discarded.
#[test]
fn a_page_of_a_new_heap_that_vanishes_is_a_sigbus() {
    const GUARD_INSTALL: i32 = 102;
    const GUARD_REMOVE: i32 = 103;
    let name = "heap::a_page_of_a_new_heap_that_vanishes_is_a_sigbus";
    killed_by(libc::SIGBUS, name, || {
        let Some(heap) = heap(100, 64) else {
            return;
        };
        let layout = Layout::from_size_align(PAGE, PAGE).unwrap();
        let mut block = Block::new(&heap, layout, 4).unwrap();
        // The system tells nobody about these two, which empty the page.
        for advice in [GUARD_INSTALL, GUARD_REMOVE] {
            // SAFETY: the page is the block's, and any content of it is valid.
            let result = unsafe { libc::madvise(block.start.as_ptr().cast(), PAGE, advice) };
            if result != 0 {
                println!("skipped: no guard pages before Linux 6.13");
                return;
            }
        }
        println!("it reads as {:?}", &block.bytes()[..8]);
    });
}
