//! The entries for the fuzz targets: a queue in memory of this process, without sockets and
//! threads, and the parsers by themselves.
#![doc(hidden)]

use std::sync::Arc;

use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::Disk;
use super::memory::Memory;
use super::request::{Executor, Range, Request, Shape};
use super::ring::{Layout, Ring};

/// The claimed place of a queue, and its set-up.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub size: u16,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    pub base: u16,
    pub has_event_index: bool,
}

/// Serves a queue in `guest` until nothing is left, it breaks, or `requests_max` are done. Returns
/// the number of requests.
#[must_use]
pub fn serve(guest: GuestMemoryMmap, place: Place, disk: &Disk, requests_max: usize) -> usize {
    let layout = Layout {
        size: place.size,
        descriptors: GuestAddress(place.descriptors),
        available: GuestAddress(place.available),
        used: GuestAddress(place.used),
        base: place.base,
        has_event_index: place.has_event_index,
    };
    let memory = Arc::new(Memory::own(&guest));
    let Ok(mut ring) = Ring::new(memory, layout, Executor::new(disk, true)) else {
        return 0;
    };
    let mut done = 0;
    while done < requests_max && matches!(ring.serve_next(), Ok(Some(_))) {
        done += 1;
        let _ = ring.wants_interrupt();
    }
    let _ = (ring.listen(), ring.ignore(), ring.has_more());
    done
}

/// Judges a header and the entry of a list. Whatever is accepted must lie on the disk.
///
/// # Panics
/// If it does not lie on the disk.
pub fn parse(bytes: &[u8; 16], given_bytes: u64, taken_bytes: u64, shape: (u64, bool)) {
    let (size_bytes, is_read_only) = shape;
    let shape = Shape {
        size_bytes,
        is_read_only,
    };
    let check = |offset: u64, length: u64| {
        let end = offset
            .checked_add(length)
            .expect("a range that wraps around");
        assert!(end <= size_bytes, "{offset} {length} of {size_bytes}");
    };
    match Request::parse(bytes, given_bytes, taken_bytes, shape) {
        Ok(Request::Read { offset, length }) => {
            assert_eq!(length, taken_bytes);
            check(offset, length);
        }
        Ok(Request::Write { offset, length }) => {
            assert!(length == given_bytes && !is_read_only);
            check(offset, length);
        }
        Ok(Request::Discard { ranges } | Request::Zero { ranges }) => {
            assert!(ranges as u64 * 16 == given_bytes && !is_read_only);
        }
        Ok(Request::Flush | Request::Name) | Err(_) => {}
    }
    for is_discard in [true, false] {
        if let Ok(range) = Range::parse(bytes, is_discard, shape) {
            check(range.offset, range.length);
        }
    }
}
