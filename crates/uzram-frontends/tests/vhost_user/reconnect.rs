//! Coming, going, coming back.

use std::sync::Arc;

use uzram::{Store, Zram};
use uzram_frontends::vhost_user::client::Setup;
use uzram_frontends::vhost_user::{Disk, Peer};
use vhost::VhostBackend;
use vm_memory::{Bytes, GuestAddress};

use super::device::{Action, Bytes as Device, Seen};
use super::*;

#[test]
fn who_comes_back_finds_what_was_written() {
    let served = Served::new(Arc::new(Zram::new(
        Store::builder().size(1 << 20).build().unwrap(),
    )));
    for round in 0..20u8 {
        // At once: the end of the last one may not have been seen yet.
        let (_client, mut queues) = served.guest(Setup::default());
        let queue = &mut queues[0];
        if round > 0 {
            assert_eq!(read(queue, 0, 4096), (OK, pattern(round - 1, 4096)));
        }
        assert_eq!(write(queue, 0, &pattern(round, 4096)), OK);
    }
    until(|| served.is_free());
}

#[test]
fn a_second_guest_is_refused_and_told_of_in_a_notice() {
    let served = Served::new(Device::new(1 << 20));
    let (_client, mut queues) = served.guest(Setup::default());
    assert!(Client::connect(&served.path(), Setup::default()).is_err());
    let me = Peer::Process(std::process::id());
    let notice = served.notice("refused");
    assert_eq!(notice, format!("{me} refused: in use by {me}"));
    let seat = served.handle.as_ref().unwrap().seat();
    assert_eq!(seat.user(), Some(me));
    let error = seat.withdraw().unwrap_err();
    assert_eq!(error.kind(), uzram::ErrorKind::Busy);
    assert!(error.to_string().contains(&me.to_string()), "{error}");
    assert_eq!(write(&mut queues[0], 0, &[1; 512]), OK);
    seat.disconnect();
    until(|| served.is_free());
    seat.withdraw().unwrap();
    assert!(Client::connect(&served.path(), Setup::default()).is_err());
    let (name, device) = ("other".to_owned(), Device::new(512));
    let is_read_only = false;
    seat.offer(Disk {
        name,
        device,
        is_read_only,
    })
    .unwrap();
    let config = served.connect(Setup::default()).config(8).unwrap();
    assert_eq!(config, 1u64.to_le_bytes());
}

#[test]
fn a_disk_of_odd_size_is_not_offered() {
    let served = Served::new(Device::new(512));
    let disk = Disk {
        name: "odd".into(),
        device: Device::new(1000),
        is_read_only: false,
    };
    let error = served
        .handle
        .as_ref()
        .unwrap()
        .seat()
        .offer(disk)
        .unwrap_err();
    assert!(error.to_string().contains("odd: 1000 bytes"), "{error}");
}

/// Gone in the middle: what was begun is finished, and only then is the disk free for another.
#[test]
fn a_guest_that_vanishes_leaves_nothing_under_way() {
    let device = Device::new(1 << 20);
    let served = Served::new(device.clone());
    let (client, mut queues) = served.guest(Setup::default());
    device.set_rule(|_| Action::Block);
    for slot in 0..10 {
        queues[0].submit(slot, OUT, u64::from(slot) * 8, Data::Given(4096));
    }
    queues[0].kick();
    until(|| device.entered() == 1);
    drop((client, queues));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!served.is_free(), "free with a request under way");
    device.set_rule(|_| Action::Pass);
    until(|| served.is_free());
    assert_eq!(device.take_seen(), [Seen::Write(0, 4096)]);
    let (_client, mut queues) = served.guest(Setup::default());
    assert_eq!(read(&mut queues[0], 0, 512).0, OK);
}

/// The server ends with requests in the queue; the guest goes on with another, at its used ring.
#[test]
fn another_server_goes_on_where_the_last_one_ended() {
    let device = Device::new(1 << 20);
    let mut served = Served::new(device.clone());
    let setup = Setup::default();
    let (client, mut queues) = served.guest(setup);
    let mut queue = queues.remove(0);
    device.set_rule(|seen| match seen {
        Seen::Write(at, _) if at >= 5 * 4096 => Action::Block,
        _ => Action::Pass,
    });
    for slot in 0..12 {
        let data = pattern(slot as u8, 4096);
        queue
            .memory
            .write_slice(&data, queue.data_at(slot))
            .unwrap();
        queue.submit(slot, OUT, u64::from(slot) * 8, Data::Given(4096));
    }
    queue.kick();
    until(|| device.entered() == 6);
    let ending = std::thread::spawn(move || {
        served.handle = None;
        served
    });
    // Long enough for the order to end to have come, while the sixth is under way.
    std::thread::sleep(Duration::from_millis(50));
    device.set_rule(|_| Action::Pass);
    let mut served = ending.join().unwrap();
    let used: u16 = queue.memory.read_obj(GuestAddress(queue.used + 2)).unwrap();
    assert_eq!(used, 6, "requests begun are finished, others left alone");

    served.start(device.clone(), false);
    let mut again = served.connect(setup);
    again.file = client.file.try_clone().unwrap();
    again.memory = Arc::clone(&client.memory);
    again.lend(setup.memory_bytes()).unwrap();
    again.start_queue(&queue, used).unwrap();
    let mut slots = Vec::new();
    until(|| {
        slots.extend(queue.completed().map(|done| (done.slot, done.status)));
        slots.len() == 12
    });
    assert!(
        slots.iter().copied().eq((0..12).map(|slot| (slot, OK))),
        "{slots:?}"
    );
    let writes = device.take_seen();
    let expected = (0..12).map(|slot| Seen::Write(slot * 4096, 4096));
    assert!(writes.iter().copied().eq(expected), "{writes:?}");
}

/// A server that was killed may have answered without telling, and the guest waits for that.
#[test]
fn a_queue_that_is_taken_up_tells_what_was_answered_before() {
    const LIMIT: Duration = Duration::from_secs(10);
    let served = Served::new(Device::new(1 << 20));
    let (_client, mut queues) = served.guest(Setup::default());
    let begun = std::time::Instant::now();
    queues[0].wait(LIMIT);
    assert!(begun.elapsed() < LIMIT / 2, "nothing was told");
}

#[test]
fn a_queue_that_is_stopped_says_where_and_goes_on_from_there() {
    let served = Served::new(Device::new(1 << 20));
    let (mut client, mut queues) = served.guest(Setup::default());
    let queue = &mut queues[0];
    for round in 0..50u16 {
        assert_eq!(write(queue, 0, &[round as u8; 512]), OK);
        let base = client.frontend.get_vring_base(0).unwrap();
        assert_eq!(base, u32::from(round) + 1);
        client.start_queue(queue, base as u16).unwrap();
    }
    assert_eq!(read(queue, 0, 512).1, [49; 512]);
}

/// Memory is plugged in while requests go on.
#[test]
fn memory_may_be_lent_anew_while_a_queue_is_served() {
    let served = Served::new(Device::new(1 << 20));
    let setup = Setup {
        data_bytes: 4096,
        ..Setup::default()
    };
    let (client, mut queues) = served.guest(setup);
    let queue = &mut queues[0];
    std::thread::scope(|scope| {
        let lending = scope.spawn(|| {
            for _ in 0..30 {
                client.lend(setup.memory_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut round = 0u8;
        while !lending.is_finished() {
            round = round.wrapping_add(1);
            let data = pattern(round, 4096);
            assert_eq!(write(queue, 0, &data), OK);
            assert_eq!(read(queue, 0, 4096), (OK, data));
        }
    });
}

#[test]
fn sockets_are_private_and_only_dead_ones_are_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let served = Served::new(Device::new(512));
    let path = served.path();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let busy = uzram_frontends::vhost_user::Server::bind(&path).unwrap_err();
    assert_eq!(busy.kind(), uzram::ErrorKind::Busy);
    // The look whether somebody listens is a connection, and must not take the guest's place.
    let (_client, mut queues) = served.guest(Setup::default());
    assert_eq!(write(&mut queues[0], 0, &[1; 512]), OK);
    let dead = served.directory.path().join("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    let server = uzram_frontends::vhost_user::Server::bind(&dead).unwrap();
    assert_eq!(server.path(), dead);
    drop(server);
    assert!(!dead.exists());
}
