//! No codec allocates while it compresses or decompresses, in Rust or in C: the write path must not
//! wait for memory that its own pages would free.
//!
//! The test takes the place of glibc's allocator to see both, so it runs where there is a glibc.

#![cfg(target_env = "gnu")]
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use uzram::{Compression, Compressor, Decompressor, Parameters, Unit};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more, and none of the calls under test.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(memory: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    count();
    // SAFETY: the allocator's own entry takes any size.
    unsafe { __libc_malloc(size) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(items: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: the allocator's own entry takes any sizes.
    unsafe { __libc_calloc(items, size) }
}

/// # Safety
/// As realloc.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    count();
    // SAFETY: the caller vouches for `memory` as it does to realloc.
    unsafe { __libc_realloc(memory, size) }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    count();
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
    let mut state = 1u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    let noisy: Vec<u8> = (0..unit).map(|_| noise()).collect();
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
    for name in uzram::algorithms() {
        for unit in [4096, 65536].map(|bytes| Unit::new(bytes).unwrap()) {
            check(name, &Compression::new(name, unit).unwrap());
            let parameters = Parameters::default().dictionary(pages(100_000)[1].as_slice());
            // Some codecs take none.
            if let Ok(compression) = Compression::with_parameters(name, &parameters, unit) {
                check(name, &compression);
            }
        }
    }
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
