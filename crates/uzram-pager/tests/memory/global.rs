//! The global allocator of this very program, once a test has started it.

use uzram::{
    Codec, Compression, Compressor, DecompressShared, Decompressor, ErrorKind, Malformed,
    PageIndex, Parameters, Store, Unit,
};
use uzram_pager::{CompressedHeap, FaultHandler};
use uzram_testkit::Rng;

use super::heap::heap;
use super::system::in_child;
use super::{GLOBAL, PAGE, apart_with, mark, marked, with_store};

/// Starts the global allocator. False: the system has no userfaultfd.
fn started(pages: usize, budget_pages: usize) -> bool {
    heap(pages, budget_pages).is_some_and(|heap| GLOBAL.start(heap).is_ok())
}

/// As [`super::apart`], with the only handler that a global allocator's heap may have.
fn with_own_thread(name: &str, body: fn()) {
    apart_with(&[FaultHandler::OwnThread], name, body);
}

fn used_bytes() -> usize {
    GLOBAL.heap().unwrap().used_bytes()
}

#[test]
fn large_vectors_of_threads_are_compressed_and_whole() {
    with_own_thread(
        "global::large_vectors_of_threads_are_compressed_and_whole",
        || {
            if !started(12_000, 64) {
                return;
            }
            let before = used_bytes();
            std::thread::scope(|scope| {
                for seed in 0..3 {
                    scope.spawn(move || grow_and_shrink(seed));
                }
            });
            assert_eq!(used_bytes(), before);
            let statistics = GLOBAL.heap().unwrap().statistics();
            assert!(
                statistics.pages_out > 1000 && !statistics.has_failed,
                "{statistics:?}"
            );
            let error = GLOBAL.start(heap(100, 64).unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        },
    );
}

#[test]
fn a_heap_whose_faults_are_answered_by_the_thread_that_touches_is_refused() {
    apart_with(
        &[FaultHandler::FaultingThread],
        "global::a_heap_whose_faults_are_answered_by_the_thread_that_touches_is_refused",
        || {
            if let Some(heap) = heap(100, 64) {
                let error = GLOBAL.start(heap).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                assert!(GLOBAL.heap().is_none());
            }
        },
    );
}

fn grow_and_shrink(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut lists: Vec<Vec<u64>> = vec![Vec::new(); 8];
    for _ in 0..400 {
        let list = &mut lists[rng.below(8)];
        match rng.below(5) {
            0..=1 => {
                let more = (1 + rng.below(60_000)) as u64;
                let length = list.len() as u64;
                list.extend((length..length + more).map(|at| at * seed));
            }
            2 => {
                list.truncate(rng.below(30_000));
                list.shrink_to_fit();
            }
            3 => *list = list.clone(),
            _ => assert!(vec![0u64; 20_000].iter().all(|word| *word == 0)),
        }
        if list.len() > 300_000 {
            *list = Vec::new();
        }
        let is_whole = list
            .iter()
            .enumerate()
            .all(|(at, word)| *word == at as u64 * seed);
        assert!(is_whole);
    }
}

/// A store and a second memory, made later, read a dictionary in the heap. They wait for its pager, which waits for none of them.
#[test]
fn the_engine_itself_may_use_it() {
    with_own_thread("global::the_engine_itself_may_use_it", || {
        if !started(12_000, 64) {
            return;
        }
        let before = used_bytes();
        let dictionary = (0..50).flat_map(marked).collect::<Vec<u8>>();
        let parameters = Parameters::default().dictionary(dictionary);
        let builder = || {
            Store::builder()
                .algorithm("zstd")
                .parameters(parameters.clone())
        };
        let store = builder().size(64 << 20).build().unwrap();
        let mut second = with_store(4000, 64, builder()).unwrap();
        assert!(
            used_bytes() >= before + 50 * PAGE,
            "the dictionary is in the heap"
        );
        let crowd = vec![1u8; 8 << 20];
        for page in 0..4000 {
            mark(&mut second[page * PAGE..][..PAGE], page as u64);
            store
                .write(PageIndex(page as u64), &marked(page as u64))
                .unwrap();
        }
        let mut bytes = vec![0; PAGE];
        for page in 0..4000 {
            assert!(
                second[page * PAGE..][..PAGE] == marked(page as u64),
                "page {page}"
            );
            store.read(PageIndex(page as u64), &mut bytes).unwrap();
            assert!(bytes == marked(page as u64), "page {page} of the store");
        }
        assert!(crowd.iter().all(|byte| *byte == 1));
    });
}

#[test]
fn small_requests_full_heaps_and_children_are_the_systems() {
    with_own_thread(
        "global::small_requests_full_heaps_and_children_are_the_systems",
        || {
            let early = vec![1u8; 1 << 20];
            if !started(300, 64) {
                return;
            }
            let before = used_bytes();
            let small = vec![1u8; 60 << 10];
            let full = vec![1u8; 2 << 20];
            assert_eq!(used_bytes(), before);
            let mut grown = vec![1u8; 100 << 10];
            assert_eq!(used_bytes(), before + (100 << 10));
            // From the heap to the system and back.
            grown.resize(2 << 20, 2);
            assert_eq!(used_bytes(), before);
            grown.truncate(200 << 10);
            grown.shrink_to_fit();
            assert_eq!(used_bytes(), before + (200 << 10));
            assert!(grown[..100 << 10].iter().all(|byte| *byte == 1));
            assert!(grown[100 << 10..].iter().all(|byte| *byte == 2));
            let status = in_child(|| {
                // Some of what the parent had, some of its own.
                let own = vec![3u8; 1 << 20];
                std::hint::black_box((&own, &early, &small, &full));
                drop(own);
            });
            assert_eq!(status, 0);
            let ended = std::process::Command::new("true")
                .arg("x".repeat(100 << 10))
                .status();
            assert!(ended.unwrap().success());
            drop((early, small, full, grown));
            assert_eq!(used_bytes(), before);
        },
    );
}

/// Stores pages as they are, by way of buffers that are large enough for a heap.
struct Large;

impl Codec for Large {
    fn name(&self) -> &str {
        "large"
    }

    fn compressor(&self, _: Unit) -> uzram::Result<Box<dyn Compressor>> {
        Ok(Box::new(Large))
    }

    fn decompressor(&self, _: Unit) -> uzram::Result<Decompressor> {
        Ok(Decompressor::Shared(Box::new(Large)))
    }
}

impl Compressor for Large {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        let half = source.len() / 2;
        let mut buffer = vec![0; 128 << 10];
        buffer[..half].copy_from_slice(&source[..half]);
        destination[..half].copy_from_slice(&buffer[..half]);
        Some(half)
    }
}

impl DecompressShared for Large {
    fn decompress(&self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        let buffer = [source, source].concat().repeat(32);
        destination.copy_from_slice(&buffer[..destination.len()]);
        Ok(())
    }
}

#[test]
fn the_pager_itself_gets_memory_of_the_system() {
    with_own_thread("global::the_pager_itself_gets_memory_of_the_system", || {
        let codec = Compression::with_codec(Box::new(Large), Unit::DEFAULT).unwrap();
        let Some(memory) = with_store(4000, 64, Store::builder().compression(codec)) else {
            return;
        };
        GLOBAL.start(CompressedHeap::new(memory).unwrap()).unwrap();
        // Both halves of each page are alike.
        let words: Vec<u64> = (0..1_000_000).map(|at| at / 512 * 7 + at % 256).collect();
        let is_whole = |(at, word): (usize, &u64)| *word == (at / 512 * 7 + at % 256) as u64;
        assert!(words.iter().enumerate().all(is_whole));
        let statistics = GLOBAL.heap().unwrap().statistics();
        assert!(statistics.pages_in > 1000, "{statistics:?}");
    });
}
