//! Guests that know the format and do not keep to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use uzram::{Bio, Geometry, Store, Zram};
use uzram_frontends::vhost_user::client::{GUEST_BASE, Setup};
use vhost::VhostBackend;
use vm_memory::{Bytes, GuestAddress};

use super::device::{Action, Bytes as Device};
use super::requests::publish;
use super::*;

const NEXT: u16 = 1;
const WRITABLE: u16 = 2;
const TABLE: u16 = 4;

/// Descriptors that are wrong, from index 0 of the queue's table on; `data` is memory of the guest.
type Chain = fn(queue: &Queue, data: u64);

fn put(queue: &Queue, index: u64, address: u64, length: u32, flags: u16, next: u16) {
    queue.put_descriptor(queue.descriptors + index * 16, address, length, flags, next);
}

#[test]
fn a_chain_that_cannot_be_answered_stops_its_queue_and_nothing_else() {
    const OUTSIDE: u64 = u64::MAX - 20;
    let chains: &[(&str, Chain)] = &[
        ("leads to itself", |q, d| {
            put(q, 0, d, 16, NEXT, 0);
        }),
        ("two that loop", |q, d| {
            put(q, 0, d, 16, NEXT, 1);
            put(q, 1, d, 16, NEXT | WRITABLE, 0);
        }),
        ("a status that leads to itself", |q, d| {
            put(q, 0, d, 16, NEXT, 1);
            put(q, 1, d, 1, NEXT | WRITABLE, 1);
        }),
        ("next outside of the table", |q, d| {
            put(q, 0, d, 16, NEXT, q.size);
        }),
        ("header alone", |q, d| put(q, 0, d, 16, 0, 0)),
        ("short header", |q, d| {
            put(q, 0, d, 15, NEXT, 1);
            put(q, 1, d, 1, WRITABLE, 0);
        }),
        ("to read behind to write", |q, d| {
            put(q, 0, d, 16, NEXT, 1);
            put(q, 1, d, 512, NEXT | WRITABLE, 2);
            put(q, 2, d, 512, 0, 0);
        }),
        ("header outside", |q, d| {
            put(q, 0, OUTSIDE, 16, NEXT, 1);
            put(q, 1, d, 1, WRITABLE, 0);
        }),
        ("status outside", |q, d| {
            put(q, 0, d, 16, NEXT, 1);
            put(q, 1, OUTSIDE, 1, WRITABLE, 0);
        }),
        ("status at the end of all addresses", |q, d| {
            put(q, 0, d, 16, NEXT, 1);
            put(q, 1, u64::MAX, u32::MAX, WRITABLE, 0);
        }),
        ("no bytes to write", |q, d| {
            put(q, 0, d, 16, NEXT, 1);
            put(q, 1, d, 0, WRITABLE, 0);
        }),
        ("more than 4 GiB", |q, d| {
            put(q, 0, d, 16, NEXT, 1);
            put(q, 1, d, u32::MAX, NEXT | WRITABLE, 2);
            put(q, 2, d, u32::MAX, WRITABLE, 0);
        }),
        ("a table within a table", |q, d| {
            put(q, 0, d, 32, TABLE, 0);
            q.put_descriptor(d, d, 32, TABLE, 0);
        }),
        ("a table of half a descriptor", |q, d| {
            put(q, 0, d, 24, TABLE, 0);
        }),
        ("an empty table", |q, d| put(q, 0, d, 0, TABLE, 0)),
        ("a table outside", |q, _| put(q, 0, OUTSIDE, 32, TABLE, 0)),
        ("a table that is too long", |q, d| {
            put(q, 0, d, 16 * 2000, TABLE, 0);
            for nth in 0..2000u16 {
                q.put_descriptor(d + 16 * u64::from(nth), d, 1, NEXT, nth + 1);
            }
        }),
    ];
    let device = Device::new(1 << 20);
    let served = Served::new(device.clone());
    let (mut client, mut queues) = served.guest(Setup {
        queues: 2,
        data_bytes: 64 << 10,
        ..Setup::default()
    });
    let mut good = queues.pop().unwrap();
    let mut bad = queues.pop().unwrap();
    for (name, chain) in chains {
        let data = bad.data_at(0).0;
        bad.memory
            .write_slice(&[0; 4096], GuestAddress(data))
            .unwrap();
        chain(&bad, data);
        publish(&bad, 0);
        expect_broken(&bad, name);
        assert_eq!(write(&mut good, 8, &[7; 512]), OK, "{name}");
        bad = start_again(&mut client);
        assert_eq!(write(&mut bad, 0, &[9; 512]), OK, "{name}");
    }
    publish(&bad, bad.size);
    expect_broken(&bad, "head outside of the table");
    bad = start_again(&mut client);
    bad.memory
        .write_obj(30_000u16, GuestAddress(bad.available + 2))
        .unwrap();
    bad.kick.write(1).unwrap();
    expect_broken(&bad, "an index far ahead");
    assert_eq!(served.notices.lock().unwrap().len(), 1 + chains.len() + 2);
    assert_eq!(write(&mut good, 8, &[7; 512]), OK);
}

fn expect_broken(queue: &Queue, name: &str) {
    let begun = Instant::now();
    while queue.error.read().is_err() {
        assert!(begun.elapsed() < SOON, "{name}: served");
        std::thread::yield_now();
    }
}

/// Queue 0 anew, as after a reset by its driver.
fn start_again(client: &mut Client) -> Queue {
    client.frontend.get_vring_base(0).unwrap();
    let queue = Queue::new(client, 0, 0).unwrap();
    let rings = vec![0; (queue.used - queue.descriptors) as usize + 4096];
    queue
        .memory
        .write_slice(&rings, GuestAddress(queue.descriptors))
        .unwrap();
    client.start_queue(&queue, 0).unwrap();
    queue
}

#[test]
fn data_outside_of_the_memory_is_an_error_and_nothing_is_stored() {
    let device = Device::new(1 << 20);
    let served = Served::new(device.clone());
    let (client, mut queues) = served.guest(Setup {
        features: !(1 << 28),
        ..Setup::default()
    });
    let queue = &mut queues[0];
    let end = GUEST_BASE + client.file.metadata().unwrap().len();
    let before_rings = GUEST_BASE - 512;
    for address in [0, before_rings, end - 511, end, u64::MAX - 511, u64::MAX] {
        for (kind, flags) in [(OUT, 0), (IN, WRITABLE)] {
            let status = status_of(queue, kind, address, flags);
            assert_eq!(status, IOERR, "{address:#x} {kind}");
        }
    }
    let stored = device.take_seen();
    let is_write = |seen: &_| matches!(seen, super::device::Seen::Write(..));
    assert!(!stored.iter().any(is_write), "{stored:?}");
}

/// Requests under way when a guest takes its memory back reach neither its next memory nor the disk, and an
/// address means the memory that is lent now.
#[test]
fn who_comes_back_with_other_memory_is_served_from_that_alone() {
    let device = Device::new(1 << 20);
    let served = Served::new(device.clone());
    let setup = Setup {
        features: !(1 << 28),
        ..Setup::default()
    };
    let (client, mut queues) = served.guest(setup);
    assert_eq!(write(&mut queues[0], 0, &pattern(1, 4096)), OK);
    let gone = queues[0].data_at(setup.queue_size - 1).0;
    let entered = device.entered();
    device.set_rule(|_| Action::Block);
    queues[0].submit(0, IN, 0, Data::Taken(4096));
    queues[0].kick();
    until(|| device.entered() > entered);
    drop((client, queues));
    device.set_rule(|_| Action::Pass);
    until(|| served.is_free());
    let (mut client, queues) = served.guest(Setup {
        queue_size: 16,
        data_bytes: 4096,
        ..setup
    });
    let queue = &queues[0];
    let end = GUEST_BASE + client.file.metadata().unwrap().len();
    assert!(gone >= end, "the next one's memory is shorter");
    for (kind, flags) in [(OUT, 0), (IN, WRITABLE)] {
        for address in [gone, end, end - 511] {
            assert_eq!(status_of(queue, kind, address, flags), IOERR);
        }
        assert_eq!(status_of(queue, kind, end - 512, flags), OK);
    }
    let zero = vec![0; 4096];
    for slot in 0..16 {
        let mut data = zero.clone();
        queue
            .memory
            .read_slice(&mut data, queue.data_at(slot))
            .unwrap();
        assert!(data[512..] == zero[512..], "slot {slot}");
    }
    let queue = &mut start_again(&mut client);
    assert_eq!(write(queue, 8, &pattern(2, 4096)), OK);
    assert_eq!(read(queue, 8, 4096), (OK, pattern(2, 4096)));
    assert!(read(queue, 0, 4096).1[512..] == pattern(1, 4096)[512..]);
}

/// How a request for 512 bytes at `address` ends.
fn status_of(queue: &Queue, kind: u32, address: u64, flags: u16) -> u8 {
    let data = queue.data_at(2).0;
    let used = || -> u16 { queue.memory.read_obj(GuestAddress(queue.used + 2)).unwrap() };
    queue
        .memory
        .write_slice(&[0; 64], GuestAddress(data))
        .unwrap();
    queue.memory.write_obj(kind, GuestAddress(data)).unwrap();
    put(queue, 0, data, 16, NEXT, 1);
    put(queue, 1, address, 512, NEXT | flags, 2);
    put(queue, 2, data + 32, 1, WRITABLE, 0);
    let before = used();
    publish(queue, 0);
    until(|| used() == before.wrapping_add(1));
    queue.memory.read_obj(GuestAddress(data + 32)).unwrap()
}

/// Descriptors over each other, over the rings, over the header: the guest harms itself alone.
#[test]
fn what_overlaps_is_served_or_stopped() {
    let served = Served::new(Device::new(1 << 20));
    let (mut client, mut queues) = served.guest(Setup {
        queues: 2,
        ..Setup::default()
    });
    let mut good = queues.pop().unwrap();
    let mut bad = queues.pop().unwrap();
    assert_eq!(write(&mut good, 0, &pattern(3, 8192)), OK);
    for target in [bad.descriptors, bad.available, bad.used] {
        let data = bad.data_at(0).0;
        bad.memory
            .write_slice(&[0; 64], GuestAddress(data))
            .unwrap();
        put(&bad, 0, data, 16, NEXT, 1);
        put(&bad, 1, target, 8192, NEXT | WRITABLE, 2);
        put(&bad, 2, data, 16, WRITABLE, 0);
        for _ in 0..4 {
            publish(&bad, 0);
        }
        assert_eq!(read(&mut good, 0, 8192), (OK, pattern(3, 8192)));
        bad = start_again(&mut client);
    }
    assert_eq!(write(&mut bad, 0, &[9; 512]), OK);
}

/// A device that looks twice at what it is given.
struct LooksTwice {
    disk: Zram,
    writes: AtomicU64,
    has_changed: AtomicBool,
}

impl BlockDevice for LooksTwice {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(&self, bio: Bio<'_>) -> uzram::Result<()> {
        if let Bio::Write { data, .. } = &bio {
            let look = || {
                data.iter()
                    .fold(0u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte))
            };
            let first = std::hint::black_box(look());
            std::thread::sleep(Duration::from_micros(200));
            if std::hint::black_box(look()) != first {
                self.has_changed.store(true, Ordering::Relaxed);
            }
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
        self.disk.submit(bio)
    }
}

#[test]
fn data_that_the_guest_changes_meanwhile_does_not_change_for_the_device() {
    let device = Arc::new(LooksTwice {
        disk: Zram::new(
            Store::builder()
                .size(1 << 20)
                .checksum(true)
                .build()
                .unwrap(),
        ),
        writes: AtomicU64::new(0),
        has_changed: AtomicBool::new(false),
    });
    let served = Served::new(device.clone());
    let (_client, mut queues) = served.guest(Setup::default());
    let queue = &mut queues[0];
    let (memory, data) = (Arc::clone(&queue.memory), queue.data_at(0));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0u64;
            while !ended.load(Ordering::Relaxed) {
                round += 1;
                memory.write_obj(round, data).unwrap();
                memory
                    .write_obj(round, GuestAddress(data.0 + 4088))
                    .unwrap();
            }
        });
        for _ in 0..100 {
            assert_eq!(ask(queue, OUT, 0, Data::Given(4096)).status, OK);
            assert_eq!(ask(queue, IN, 0, Data::Taken(4096)).status, OK);
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(device.writes.load(Ordering::Relaxed), 100);
    assert!(
        !device.has_changed.load(Ordering::Relaxed),
        "handed over in place"
    );
}
