//! A queue of virtio-blk in memory of arbitrary content: whatever a guest has in its rings and says of
//! them, nothing outside the disk is touched and serving ends.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use uzram_frontends::vhost_user::Disk;
use uzram_frontends::vhost_user::bare::{Place, serve};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

uzram_fuzz::sanitizer_options!();

/// Two regions with a hole between them.
const REGIONS: [(GuestAddress, usize); 2] = [
    (GuestAddress(0x1000), 0x3000),
    (GuestAddress(0x6000), 0x2000),
];
const REQUESTS_MAX: usize = 64;

fuzz_target!(|data: &[u8]| {
    let [size, base, flags, shift, memory @ ..] = data else {
        return;
    };
    let guest = GuestMemoryMmap::<()>::from_ranges(&REGIONS).unwrap();
    let (first, second) = memory.split_at(memory.len().min(REGIONS[0].1));
    guest.write_slice(first, REGIONS[0].0).unwrap();
    let second = &second[..second.len().min(REGIONS[1].1)];
    guest.write_slice(second, REGIONS[1].0).unwrap();
    // Mostly where rings can be, so that what lies in them is met.
    let step = u64::from(shift & 7) * 16;
    let place = Place {
        size: 1 << (size % 12),
        descriptors: 0x1000 + step,
        available: 0x1000 + step + (16 << (size % 12)),
        used: [0x2800, 0x6000, 0x3ff8, 0x7ff0][usize::from(flags >> 1 & 3)],
        base: u16::from(*base),
        has_event_index: flags & 1 == 1,
    };
    let disk = Disk {
        name: "fuzzed".into(),
        device: Arc::new(uzram_fuzz::Bytes::new()),
        is_read_only: flags & 8 != 0,
    };
    assert!(serve(guest, place, &disk, REQUESTS_MAX) <= REQUESTS_MAX);
});
