//! No codec allocates while it compresses or decompresses, in Rust or in C: the write path must not
//! wait for memory that its own pages would free. What is allocated at first use may fail, and is an
//! error then, neither a panic nor the end of the process.
//!
//! The tests take the place of glibc's allocator to see both, so they run where there is a glibc.

#![cfg(target_env = "gnu")]
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use std::sync::Arc;

use uzram::{Compression, Compressor, Decompressor, ErrorKind, PageIndex, Parameters, Store, Unit};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Allocations of this thread before the system has no more memory.
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

/// Counts an allocation; false if it is to fail.
fn count() -> bool {
    let counted = ALLOCATIONS.try_with(|allocations| {
        allocations.set(allocations.get() + 1);
        let left = LEFT.get();
        if left == 0 {
            REFUSED.set(REFUSED.get() + 1);
        } else if left != u64::MAX {
            LEFT.set(left - 1);
        }
        left != 0
    });
    // A thread that ends has no counter any more, and none of the calls under test.
    counted.unwrap_or(true)
}

/// The result of `act` when all allocations after the first `allowed` fail, and whether any did.
fn starved<T>(allowed: u64, act: impl FnOnce() -> T) -> (T, bool) {
    REFUSED.set(0);
    LEFT.set(allowed);
    let done = act();
    LEFT.set(u64::MAX);
    (done, REFUSED.get() > 0)
}

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(memory: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    if !count() {
        return std::ptr::null_mut();
    }
    // SAFETY: the allocator's own entry takes any size.
    unsafe { __libc_malloc(size) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(items: usize, size: usize) -> *mut c_void {
    if !count() {
        return std::ptr::null_mut();
    }
    // SAFETY: the allocator's own entry takes any sizes.
    unsafe { __libc_calloc(items, size) }
}

/// # Safety
/// As realloc.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    if !count() {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller vouches for `memory` as it does to realloc.
    unsafe { __libc_realloc(memory, size) }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    if !count() {
        return std::ptr::null_mut();
    }
    // SAFETY: the allocator's own entry rounds alignments up.
    unsafe { __libc_memalign(alignment, size) }
}

/// # Safety
/// As posix_memalign.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(
    memory: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    let made = aligned_alloc(alignment, size);
    // SAFETY: the caller vouches for `memory` as it does to posix_memalign.
    unsafe { memory.write(made) };
    if made.is_null() { 12 } else { 0 }
}

/// Text, noise, zeroes, and noise with matches in it.
fn pages(unit: usize) -> [Vec<u8>; 4] {
    let noisy = uzram_testkit::noise(1, unit);
    let mixed = (0..unit).map(|at| noisy[if at / 64 % 2 == 0 { at } else { at / 100 }]);
    let text = b"one page of a text that goes on and on; ";
    [
        text.iter().copied().cycle().take(unit).collect(),
        mixed.collect(),
        vec![0; unit],
        noisy,
    ]
}

fn decompress(decompressor: &mut Decompressor, source: &[u8], page: &mut [u8]) -> bool {
    match decompressor {
        Decompressor::Shared(shared) => shared.decompress(source, page).is_ok(),
        Decompressor::Stateful(state) => state.decompress(source, page).is_ok(),
    }
}

/// One of everything that a store does with a codec.
fn go_round(
    pages: &[Vec<u8>],
    compressor: &mut dyn Compressor,
    decompressor: &mut Decompressor,
    packed: &mut [u8],
    out: &mut [u8],
) {
    for page in pages {
        let length = compressor.compress(page, packed).unwrap();
        assert!(decompress(decompressor, &packed[..length], out));
        assert!(out == page);
        // A damaged page, and a buffer that does not suffice.
        decompress(decompressor, &packed[..length - 1], out);
        assert!(compressor.compress(page, &mut packed[..4]).is_none());
    }
}

#[test]
fn codecs_allocate_nothing_once_their_contexts_are_warm() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![0u8; 100]));
    assert_eq!(
        ALLOCATIONS.get(),
        before + 1,
        "the counter sees allocations"
    );
    each_compression(|name, make| check(name, &make()));
}

/// Every codec, with and without a dictionary, for small units and large ones.
fn each_compression(mut test: impl FnMut(&str, &dyn Fn() -> Arc<Compression>)) {
    for name in uzram::algorithms() {
        for unit in [4096, 65536].map(|bytes| Unit::new(bytes).unwrap()) {
            test(name, &|| Compression::new(name, unit).unwrap());
            let parameters = Parameters::default().dictionary(pages(100_000)[1].as_slice());
            let make = || Compression::with_parameters(name, &parameters, unit);
            // Some codecs take none.
            if make().is_ok() {
                test(name, &|| make().unwrap());
            }
        }
    }
}

#[test]
fn a_context_without_memory_is_an_error() {
    each_compression(|name, make| {
        let compression = make();
        let (codec, unit) = (compression.codec(), compression.unit());
        let compressors = fail_each(name, || codec.compressor(unit).map(drop));
        assert!(compressors > 0, "{name} has contexts to compress");
        fail_each(name, || codec.decompressor(unit).map(drop));
    });
}

/// Runs `act` without any memory, with one allocation, two and so on until they suffice; how many
/// that were.
fn fail_each(name: &str, act: impl Fn() -> uzram::Result<()>) -> u64 {
    for allowed in 0.. {
        let (done, is_refused) = starved(allowed, &act);
        if !is_refused {
            done.unwrap();
            return allowed;
        }
        let error = done.expect_err("a context that lacks memory");
        assert_eq!(error.kind(), ErrorKind::NoMemory, "{name}: {allowed}");
        assert!(error.to_string().contains("memory"), "{error}");
    }
    unreachable!("some number of allocations suffices");
}

#[test]
fn a_first_write_and_a_first_read_without_memory_fail_and_leave_the_page() {
    each_compression(|name, make| {
        let mut allowed = 0;
        while first_use_lacks_memory(name, make, allowed) {
            allowed += 1;
        }
        assert!(allowed > 2, "{name}: only {allowed} allocations");
    });
}

/// Whether a fresh store lacked memory in its first write or its first read when `allowed` allocations
/// had been made.
fn first_use_lacks_memory(name: &str, make: &dyn Fn() -> Arc<Compression>, allowed: u64) -> bool {
    let compression = make();
    let bytes = compression.unit().bytes();
    // The default pool's debug assertions allocate for themselves.
    let builder = Store::builder().size(16 * bytes as u64).pool("zsmalloc");
    let store = builder.compression(compression).build().unwrap();
    // A page of one byte needs no context.
    let (old, [new, ..]) = (vec![7; bytes], pages(bytes));
    store.write(PageIndex(0), &old).unwrap();
    let read = || {
        let mut page = vec![0; bytes];
        store.read(PageIndex(0), &mut page).unwrap();
        page
    };

    let (done, lacked_in_write) = starved(allowed, || store.write(PageIndex(0), &new));
    match done {
        // A codec that cannot compress for want of memory keeps the page raw.
        Ok(()) => assert!(read() == new, "{name}: {allowed}"),
        Err(error) => {
            assert!(lacked_in_write, "{name}: {allowed}: {error}");
            assert_eq!(error.kind(), ErrorKind::NoMemory, "{name}: {allowed}");
            assert!(read() == old, "{name}: {allowed}: the old page");
        }
    }
    store.write(PageIndex(0), &new).unwrap();
    assert!(read() == new, "{name}: {allowed}: a later write");

    let mut part = [0; 10];
    let (done, lacked_in_read) = starved(allowed, || store.read_at(PageIndex(0), 20, &mut part));
    match done {
        Ok(()) => assert!(part == new[20..30]),
        Err(error) => assert!(lacked_in_read && error.kind() == ErrorKind::NoMemory),
    }
    store.read_at(PageIndex(0), 20, &mut part).unwrap();
    assert!(part == new[20..30], "{name}: {allowed}: a later read");
    lacked_in_write || lacked_in_read
}

fn check(name: &str, compression: &Compression) {
    let unit = compression.unit();
    let mut compressor = compression.codec().compressor(unit).unwrap();
    let mut decompressor = compression.codec().decompressor(unit).unwrap();
    let pages = pages(unit.bytes());
    let mut packed = vec![0; 2 * unit.bytes()];
    let mut out = vec![0; unit.bytes()];
    let mut round = || {
        go_round(
            &pages,
            &mut *compressor,
            &mut decompressor,
            &mut packed,
            &mut out,
        );
    };
    round();
    let before = ALLOCATIONS.get();
    (0..8).for_each(|_| round());
    assert_eq!(ALLOCATIONS.get(), before, "{name} at {unit} allocates");
}
