//! Serves a number of requests of 4 KiB to a disk that does nothing, as a queue over vhost-user does. Callgrind
//! counts the instructions; the difference between two numbers of requests is their cost without the set-up.
//!
//! ```text
//! for n in 512 1024; do valgrind --tool=callgrind --callgrind-out-file=/dev/null count_requests read $n; done
//! ```

use std::sync::Arc;

use uzram::{Bio, BlockDevice, Geometry};
use uzram_frontends::vhost_user::Disk;
use uzram_frontends::vhost_user::bare::{Place, serve};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const QUEUE_SIZE: u16 = 1024;
const BASE: u64 = 1 << 20;
const SLOTS_AT: u64 = BASE + (64 << 10);
const SLOT_BYTES: u64 = 8192;

/// Takes everything and does nothing.
struct Idle;

impl BlockDevice for Idle {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: 1 << 30,
            preferred_block_bytes: 4096,
        }
    }

    fn submit(&self, _bio: Bio<'_>) -> uzram::Result<()> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [direction, count] = arguments.as_slice() else {
        return Err("read or write, and a number of requests up to 1024".into());
    };
    let count: u16 = count.parse()?;
    let bytes = (SLOTS_AT - BASE) + u64::from(QUEUE_SIZE) * SLOT_BYTES;
    let guest = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(BASE), bytes as usize)])?;
    let place = Place {
        size: QUEUE_SIZE,
        descriptors: BASE,
        available: BASE + (16 << 10),
        used: BASE + (32 << 10),
        base: 0,
        has_event_index: true,
    };
    // As Linux does it: a table of its own for each request.
    let writes = direction == "write";
    for slot in 0..QUEUE_SIZE {
        let at = SLOTS_AT + u64::from(slot) * SLOT_BYTES;
        let kind = u32::from(writes);
        guest.write_obj(kind, GuestAddress(at))?;
        guest.write_obj(u64::from(slot) * 8, GuestAddress(at + 8))?;
        let data_flags = if writes { 1 } else { 3 };
        let parts = [(at, 16, 1), (at + 4096, 4096, data_flags), (at + 16, 1, 2)];
        for (nth, (address, length, flags)) in (0..).zip(parts) {
            descriptor(
                &guest,
                at + 64 + nth * 16,
                address,
                length,
                flags,
                nth as u16 + 1,
            )?;
        }
        descriptor(&guest, BASE + u64::from(slot) * 16, at + 64, 48, 4, 0)?;
        guest.write_obj(
            slot,
            GuestAddress(place.available + 4 + u64::from(slot) * 2),
        )?;
    }
    guest.write_obj(count, GuestAddress(place.available + 2))?;
    let disk = Disk {
        name: "idle".into(),
        device: Arc::new(Idle),
        is_read_only: false,
    };
    assert_eq!(
        serve(guest, place, &disk, usize::from(count)),
        usize::from(count)
    );
    Ok(())
}

fn descriptor(
    guest: &GuestMemoryMmap,
    at: u64,
    address: u64,
    length: u32,
    flags: u16,
    next: u16,
) -> Result<(), Box<dyn std::error::Error>> {
    guest.write_obj(address, GuestAddress(at))?;
    guest.write_obj(length, GuestAddress(at + 8))?;
    guest.write_obj(flags, GuestAddress(at + 12))?;
    guest.write_obj(next, GuestAddress(at + 14))?;
    Ok(())
}
