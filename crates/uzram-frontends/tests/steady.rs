//! In the steady state a request allocates nothing: this whole process counts what it allocates.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use uzram::{Store, Zram};
use uzram_frontends::nbd::{Endpoint, Export, Exports, Limits, Server};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is done by the system's allocator, which keeps its own promises.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Requests in one packet.
const DEPTH: usize = 16;
/// Bytes of a request.
const BLOCK: usize = 4096;

#[test]
fn requests_allocate_nothing_in_the_steady_state() {
    let store = Store::builder().size(64 << 20).build().unwrap();
    let exports = Arc::new(Exports::new());
    let export = Export {
        name: "disk".into(),
        description: String::new(),
        device: Arc::new(Zram::new(store)),
        read_only: false,
    };
    exports.add(export).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let endpoint = Endpoint::Unix(path.clone());
    let server = Server::bind(&endpoint, exports, Limits::default()).unwrap();
    let _server = server.spawn().unwrap();
    for framing in [None, Some(8u32), Some(11)] {
        let mut stream = connect(&path, framing);
        let rounds = [
            round(framing, 1, BLOCK),
            round(framing, 0, BLOCK),
            round(framing, 4, BLOCK),
            round(framing, 6, BLOCK),
            round(framing, 1, 256 << 10),
            round(framing, 0, 256 << 10),
        ];
        for (what, (packet, answer_bytes)) in rounds.iter().enumerate() {
            let mut answer = vec![0; *answer_bytes];
            let mut turn = || {
                stream.write_all(packet).unwrap();
                stream.read_exact(&mut answer).unwrap();
            };
            (0..300).for_each(|_| turn());
            // A thread may be woken, a buffer grown once more; but nothing for each request.
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            (0..500).for_each(|_| turn());
            let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
            assert!(
                allocations < 50,
                "{allocations} allocations in 500 rounds of {what}, framing {framing:?}"
            );
        }
    }
}

fn connect(path: &std::path::Path, framing: Option<u32>) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    let mut hello = vec![0, 0, 0, 3];
    let mut option = |number: u32, data: &[u8]| {
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&number.to_be_bytes());
        hello.extend_from_slice(&(data.len() as u32).to_be_bytes());
        hello.extend_from_slice(data);
    };
    if let Some(number) = framing {
        option(number, &[]);
    }
    option(7, &[0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 0]);
    stream.write_all(&hello).unwrap();
    let answer_bytes = 18 + framing.map_or(0, |_| 20) + 20 + 12 + 20;
    stream.read_exact(&mut vec![0; answer_bytes]).unwrap();
    stream
}

/// A packet of requests with data that does not compress to nothing, and how long its answer is.
fn round(framing: Option<u32>, command: u16, length: usize) -> (Vec<u8>, usize) {
    let is_extended = framing == Some(11);
    let depth = if length > BLOCK { 2 } else { DEPTH };
    let mut packet = Vec::new();
    for index in 0..depth {
        let magic: u32 = if is_extended {
            0x21e4_1c71
        } else {
            0x2560_9513
        };
        packet.extend_from_slice(&magic.to_be_bytes());
        let flags: u16 = if is_extended && command == 1 { 32 } else { 0 };
        packet.extend_from_slice(&flags.to_be_bytes());
        packet.extend_from_slice(&command.to_be_bytes());
        packet.extend_from_slice(&(index as u64).to_be_bytes());
        packet.extend_from_slice(&((index * length) as u64).to_be_bytes());
        match is_extended {
            true => packet.extend_from_slice(&(length as u64).to_be_bytes()),
            false => packet.extend_from_slice(&(length as u32).to_be_bytes()),
        }
        if command == 1 {
            packet.extend((0..length).map(|at| (at / 3 * (index + 7) % 251) as u8));
        }
    }
    let head = match (framing, command) {
        (None, 0) => 16 + length,
        (Some(8), 0) => 20 + 8 + length,
        (Some(11), 0) => 32 + 8 + length,
        (Some(11), _) => 32,
        _ => 16,
    };
    (packet, depth * head)
}
