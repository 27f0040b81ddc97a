//! Requests of every kind, in every layout of descriptors.

use std::sync::Arc;

use uzram::{PageState, Store, Unit, Zeroing, Zram};
use uzram_frontends::vhost_user::client::{Data, Setup};
use vm_memory::{Bytes, GuestAddress};

use super::device::{Action, Bytes as Device, Seen};
use super::*;

const INDIRECT: u64 = 1 << 28;
const EVENT_INDEX: u64 = 1 << 29;
const FLUSHES: u64 = 1 << 9;
const CACHE_MODE: u64 = 1 << 11;

/// With and without each way of the rings.
fn setups() -> impl Iterator<Item = Setup> {
    [0, INDIRECT, EVENT_INDEX, INDIRECT | EVENT_INDEX]
        .map(|left_out| Setup {
            features: !left_out,
            ..Setup::default()
        })
        .into_iter()
}

fn entry(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let parts = [
        &sector.to_le_bytes()[..],
        &sectors.to_le_bytes(),
        &flags.to_le_bytes(),
    ];
    parts.concat()
}

fn change(queue: &mut Queue, kind: u32, entries: &[u8]) -> u8 {
    queue.memory.write_slice(entries, queue.data_at(0)).unwrap();
    ask(queue, kind, 0, Data::Given(entries.len() as u32)).status
}

#[test]
fn requests_do_what_they_say() {
    for setup in setups() {
        let device = Device::new(4 << 20);
        let served = Served::new(device.clone());
        let (_client, mut queues) = served.guest(setup);
        let queue = &mut queues[0];
        for (sector, length) in [(0, 4096), (8, 512), (9, 1536), (16, 1 << 20), (8191, 512)] {
            let data = pattern(sector as u8, length);
            assert_eq!(write(queue, sector, &data), OK);
            assert_eq!(read(queue, sector, length), (OK, data), "{sector} {length}");
        }
        device.take_seen();
        assert_eq!(ask(queue, FLUSH, 0, Data::Given(0)).status, OK);
        let two = [entry(16, 8, 0), entry(1000, 5, 0)].concat();
        assert_eq!(change(queue, DISCARD, &two), OK);
        assert_eq!(change(queue, WRITE_ZEROES, &entry(32, 8, 0)), OK);
        assert_eq!(change(queue, WRITE_ZEROES, &entry(40, 8, 1)), OK);
        let seen = [
            Seen::Flush,
            Seen::Trim(8192, 4096),
            Seen::Trim(512_000, 2560),
            Seen::Zero(16384, 4096, Zeroing::NoHole),
            Seen::Zero(20480, 4096, Zeroing::MayPunch),
        ];
        assert_eq!(device.take_seen(), seen);
        let (status, name) = {
            let done = ask(queue, GET_ID, 0, Data::Taken(20));
            assert_eq!(done.written, 21);
            let mut name = [0; 20];
            queue
                .memory
                .read_slice(&mut name, queue.data_at(0))
                .unwrap();
            (done.status, name)
        };
        assert_eq!((status, &name[..5]), (OK, &b"disk\0"[..]));
    }
}

#[test]
fn a_request_may_be_cut_anywhere() {
    let served = Served::new(Device::new(1 << 20));
    let (_client, mut queues) = served.guest(Setup {
        features: !(INDIRECT | EVENT_INDEX),
        ..Setup::default()
    });
    let queue = &mut queues[0];
    let body = queue.data_at(2).0;
    let data = pattern(7, 1024);
    // Header in two parts, of which one has data behind it; a descriptor of no length; status alone or
    // behind data.
    for cut in [1u32, 7, 15] {
        let (head, store) = (body, body + 8192);
        let mut header = OUT.to_le_bytes().to_vec();
        header.extend([0; 4]);
        header.extend(4u64.to_le_bytes());
        queue
            .memory
            .write_slice(&header, GuestAddress(head))
            .unwrap();
        queue
            .memory
            .write_slice(&data, GuestAddress(head + 16))
            .unwrap();
        let table = queue.descriptors;
        let (next, writable) = (1, 2);
        let rest = 16 - cut + 500;
        queue.put_descriptor(table, head, cut, next, 1);
        queue.put_descriptor(table + 16, store, 0, next, 2);
        queue.put_descriptor(table + 32, head + u64::from(cut), rest, next, 3);
        queue.put_descriptor(table + 48, head + 16 + 500, 524, next, 4);
        queue.put_descriptor(table + 64, store, 1, writable, 0);
        publish(queue, 0);
        assert_eq!(finished(queue), (0, 1));
        header[0] = IN as u8;
        queue
            .memory
            .write_slice(&header, GuestAddress(head))
            .unwrap();
        queue.put_descriptor(table, head, 16, next, 1);
        queue.put_descriptor(table + 16, store, 1000, next | writable, 2);
        queue.put_descriptor(table + 32, store + 1000, 25, writable, 0);
        publish(queue, 0);
        assert_eq!(finished(queue), (0, 1025));
        let mut back = vec![0; 1025];
        queue
            .memory
            .read_slice(&mut back, GuestAddress(store))
            .unwrap();
        assert_eq!(back[..1024], data);
        assert_eq!(back[1024], OK);
    }
}

/// Makes the chain at `head` available, by hand.
pub(super) fn publish(queue: &Queue, head: u16) {
    let index_at = GuestAddress(queue.available + 2);
    let index: u16 = queue.memory.read_obj(index_at).unwrap();
    let slot = queue.available + 4 + 2 * u64::from(index % queue.size);
    queue.memory.write_obj(head, GuestAddress(slot)).unwrap();
    let order = std::sync::atomic::Ordering::SeqCst;
    queue
        .memory
        .store(index.wrapping_add(1), index_at, order)
        .unwrap();
    queue.kick.write(1).unwrap();
}

/// The head and length of the last request, once all that was published is done.
fn finished(queue: &Queue) -> (u32, u32) {
    let load = |at: u64| -> u16 { queue.memory.read_obj(GuestAddress(at)).unwrap() };
    let published = load(queue.available + 2);
    until(|| load(queue.used + 2) == published);
    let at = queue.used + 4 + 8 * u64::from((published - 1) % queue.size);
    let [head, length]: [u32; 2] = queue.memory.read_obj(GuestAddress(at)).unwrap();
    (head, length)
}

#[test]
fn the_configuration_says_what_is_true() {
    let unit = Unit::new(16384).unwrap();
    let store = Store::builder().size(1 << 30).unit(unit).build().unwrap();
    let served = Served::new(Arc::new(Zram::new(store)));
    let mut client = served.connect(Setup::default());
    let config = client.config(60).unwrap();
    let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
    let half = |at: usize| u16::from_le_bytes(config[at..at + 2].try_into().unwrap());
    assert_eq!((word(0), word(4)), (2 << 20, 0), "sectors");
    assert_eq!((word(8), word(12)), (256 << 10, 126), "segments");
    assert_eq!(word(20), 512);
    // Blocks of 2^5 sectors, which are also the best to write.
    assert_eq!((config[24], config[25], half(26), word(28)), (5, 0, 32, 32));
    assert_eq!((config[32], half(34)), (1, 64), "write-back, queues");
    assert_eq!((word(36), word(40), word(44)), (2 << 20, 32, 32), "discard");
    assert_eq!((word(48), word(52), config[56]), (2 << 20, 32, 1), "zeroes");
    // Some ask for more than there is, and get zeroes.
    assert_eq!(client.config(96).unwrap()[57..], [0; 39]);
    assert_eq!(client.features & 1 << 26, 0, "records of written pages");
}

#[test]
fn what_a_disk_is_asked_to_forget_is_forgotten() {
    let store = Store::builder().size(1 << 20).build().unwrap();
    let disk = Arc::new(Zram::new(store));
    let served = Served::new(disk.clone());
    let (_client, mut queues) = served.guest(Setup::default());
    let queue = &mut queues[0];
    assert_eq!(write(queue, 0, &pattern(1, 16384)), OK);
    let states = || [0, 1, 2, 3].map(|page| disk.store().state(uzram::PageIndex(page)).unwrap());
    assert_eq!(change(queue, DISCARD, &entry(0, 8, 0)), OK);
    assert_eq!(change(queue, WRITE_ZEROES, &entry(8, 8, 1)), OK);
    assert_eq!(change(queue, WRITE_ZEROES, &entry(16, 8, 0)), OK);
    let [discarded, punched, zeroed, left] = states();
    assert_eq!(
        (discarded, punched, zeroed),
        (PageState::Hole, PageState::Hole, PageState::Same(0))
    );
    assert!(!left.is_zero());
    assert_eq!(read(queue, 0, 12288).1, vec![0; 12288]);
}

#[test]
fn a_guest_that_cannot_flush_has_every_write_flushed() {
    let writes_through = |features: u64, mode: Option<u8>| {
        let device = Device::new(1 << 20);
        let served = Served::new(device.clone());
        let (mut client, mut queues) = served.guest(Setup {
            features,
            ..Setup::default()
        });
        if let Some(mode) = mode {
            use vhost::vhost_user::VhostUserFrontend;
            let flags = vhost::vhost_user::message::VhostUserConfigFlags::WRITABLE;
            client.frontend.set_config(32, flags, &[mode]).unwrap();
        }
        assert_eq!(write(&mut queues[0], 0, &[1; 512]), OK);
        device.take_seen().contains(&Seen::Flush)
    };
    assert!(!writes_through(u64::MAX, None));
    assert!(!writes_through(u64::MAX, Some(1)));
    assert!(writes_through(u64::MAX, Some(0)));
    assert!(writes_through(!FLUSHES, None));
    assert!(!writes_through(!CACHE_MODE, None));
}

#[test]
fn a_read_only_disk_is_only_read() {
    let device = Device::new(1 << 20);
    let served = Served::with(device.clone(), true);
    let (client, mut queues) = served.guest(Setup::default());
    assert_eq!(client.features & (1 << 5 | 1 << 13 | 1 << 14), 1 << 5);
    let queue = &mut queues[0];
    assert_eq!(write(queue, 0, &[1; 512]), IOERR);
    assert_eq!(change(queue, DISCARD, &entry(0, 8, 0)), IOERR);
    assert_eq!(change(queue, WRITE_ZEROES, &entry(0, 8, 0)), IOERR);
    assert_eq!(device.take_seen(), []);
    assert_eq!(read(queue, 0, 512), (OK, vec![0; 512]));
    assert_eq!(ask(queue, FLUSH, 0, Data::Given(0)).status, OK);
}

#[test]
fn what_cannot_be_is_answered_with_an_error_and_changes_nothing() {
    let device = Device::new(1 << 20);
    let served = Served::new(device.clone());
    let (_client, mut queues) = served.guest(Setup::default());
    let queue = &mut queues[0];
    let data = [
        (IN, 2048, Data::Taken(512)),
        (OUT, 2047, Data::Given(1024)),
        (OUT, u64::MAX, Data::Given(512)),
        (OUT, 1 << 55, Data::Given(512)),
        (IN, 0, Data::Taken(513)),
        (OUT, 0, Data::Given(100)),
        (GET_ID, 0, Data::Taken(19)),
        (DISCARD, 0, Data::Given(0)),
        (DISCARD, 0, Data::Given(15)),
        (DISCARD, 0, Data::Given(33 * 16)),
    ];
    for (kind, sector, data) in data {
        let done = ask(queue, kind, sector, data);
        assert_eq!(
            (done.status, done.written),
            (IOERR, 1),
            "{kind} {sector} {data:?}"
        );
    }
    for kind in [2, 3, 14, 0x8000_0000, u32::MAX] {
        assert_eq!(
            ask(queue, kind, 0, Data::Taken(512)).status,
            UNSUPPORTED,
            "{kind}"
        );
    }
    let good = entry(0, 8, 0);
    let bad = [
        (DISCARD, entry(0, 8, 1), UNSUPPORTED),
        (WRITE_ZEROES, entry(0, 8, 2), UNSUPPORTED),
        (DISCARD, entry(2041, 8, 0), IOERR),
        (WRITE_ZEROES, entry(u64::MAX / 2, 8, 0), IOERR),
        (WRITE_ZEROES, entry(0, u32::MAX, 0), IOERR),
    ];
    for (kind, bad, status) in bad {
        let both = [good.clone(), bad].concat();
        assert_eq!(change(queue, kind, &both), status, "{both:?}");
    }
    assert_eq!(device.take_seen(), []);
}

#[test]
fn a_device_that_fails_or_panics_is_an_error() {
    let device = Device::new(1 << 20);
    let served = Served::new(device.clone());
    let (_client, mut queues) = served.guest(Setup::default());
    let queue = &mut queues[0];
    device.set_rule(|seen| match seen {
        Seen::Write(0, _) => Action::Fail(uzram::ErrorKind::NoSpace),
        Seen::Read(0, _) => Action::Panic,
        _ => Action::Pass,
    });
    assert_eq!(write(queue, 0, &[1; 512]), IOERR);
    assert_eq!(read(queue, 0, 512).0, IOERR);
    assert_eq!(write(queue, 8, &[1; 512]), OK);
}

#[test]
fn nothing_is_acknowledged_before_it_is_done() {
    let device = Device::new(1 << 20);
    let served = Served::new(device.clone());
    let (_client, mut queues) = served.guest(Setup::default());
    let queue = &mut queues[0];
    device.set_rule(|_| Action::Block);
    queue.submit(0, OUT, 0, Data::Given(4096));
    queue.kick();
    until(|| device.entered() == 1);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(queue.completed(), None);
    device.set_rule(|_| Action::Pass);
    let mut done = None;
    until(|| {
        done = queue.completed();
        done.is_some()
    });
    assert_eq!(done.unwrap().status, OK);
    assert_eq!(device.take_seen(), [Seen::Write(0, 4096)]);
}

/// Many requests on several queues at once, each with its own pages.
#[test]
fn queues_are_served_beside_each_other() {
    let store = Store::builder().size(64 << 20).build().unwrap();
    let served = Served::new(Arc::new(Zram::new(store)));
    let (_client, queues) = served.guest(Setup {
        queues: 4,
        queue_size: 64,
        data_bytes: 8192,
        ..Setup::default()
    });
    std::thread::scope(|scope| {
        for mut queue in queues {
            scope.spawn(move || rounds(&mut queue, 40));
        }
    });
}

/// Fills its part of the disk at full depth and reads it back, round by round.
fn rounds(queue: &mut Queue, count: u8) {
    let depth = queue.slots();
    let sector = |slot: u16| (u64::from(queue.index) * 64 + u64::from(slot)) * 16;
    let sectors: Vec<u64> = (0..depth).map(sector).collect();
    for round in 0..count {
        for kind in [OUT, IN] {
            for slot in 0..depth {
                let expected = pattern(round ^ slot as u8, 8192);
                let data = match kind {
                    OUT => {
                        queue
                            .memory
                            .write_slice(&expected, queue.data_at(slot))
                            .unwrap();
                        Data::Given(8192)
                    }
                    _ => Data::Taken(8192),
                };
                queue.submit(slot, kind, sectors[usize::from(slot)], data);
            }
            queue.kick();
            let mut left = depth;
            while left > 0 {
                match queue.completed() {
                    Some(done) => {
                        assert_eq!(done.status, OK);
                        left -= 1;
                    }
                    None => queue.wait(SOON),
                }
            }
        }
        for slot in 0..depth {
            let mut back = vec![0; 8192];
            queue
                .memory
                .read_slice(&mut back, queue.data_at(slot))
                .unwrap();
            assert_eq!(back, pattern(round ^ slot as u8, 8192));
        }
    }
}

/// One request at a time, each at another moment of the server's falling asleep: a kick that is not
/// heard, or an interrupt that is not sent, ends this.
#[test]
fn no_kick_and_no_interrupt_is_lost() {
    for setup in setups() {
        let served = Served::new(Device::new(1 << 20));
        let (_client, mut queues) = served.guest(setup);
        let queue = &mut queues[0];
        for round in 0..5000u32 {
            // Mostly just when the server has found nothing more, now and then when it sleeps.
            let span = if round % 8 == 0 { 60_000 } else { 3_000 };
            spin(Duration::from_nanos(u64::from(round * 7919 % span)), || {
                false
            });
            queue.submit(0, IN, 0, Data::Taken(512));
            queue.kick();
            let mut done = None;
            spin(Duration::from_micros(300), || {
                done = queue.completed();
                done.is_some()
            });
            let begun = Instant::now();
            while done.is_none() {
                assert!(
                    begun.elapsed() < SOON,
                    "round {round} of {:#x}",
                    setup.features
                );
                queue.wait(SOON);
                done = queue.completed();
            }
        }
    }
}

/// Looks at `is_over` for as long as `limit`, without sleeping.
fn spin(limit: Duration, mut is_over: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_over() && begun.elapsed() < limit {
        std::hint::spin_loop();
    }
}
