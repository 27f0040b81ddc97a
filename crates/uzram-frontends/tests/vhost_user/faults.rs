//! Memory that goes away, kicks that do not end, guests that stand still.

use std::sync::atomic::{AtomicBool, Ordering};

use uzram_frontends::vhost_user::client::Setup;
use vm_memory::{Bytes, GuestAddress};

use super::device::{Action, Bytes as Device, Seen};
use super::*;

/// Its owner cuts the file off: that guest's queue ends, another's does not, and zeroes that the guest
/// never wrote are not stored.
#[test]
fn memory_that_is_cut_off_costs_its_guest_alone() {
    let (device, other) = (Device::new(1 << 20), Device::new(1 << 20));
    let served = Served::new(device.clone());
    let elsewhere = Served::new(other);
    let (_good_client, mut good) = elsewhere.guest(Setup::default());
    // Data first, then the rings as well; the header and the rings lie before the data.
    for keeps_rings in [true, false] {
        let (client, mut queues) = served.guest(Setup::default());
        let queue = &mut queues[0];
        assert_eq!(write(queue, 0, &pattern(5, 4096)), OK);
        device.take_seen();
        let data_at = queue.data_at(0).0 - queue.descriptors;
        queue.submit(0, OUT, 0, Data::Given(4096));
        client
            .file
            .set_len(if keeps_rings { data_at } else { 0 })
            .unwrap();
        // The client's own rings are gone in the second round, so the kick is given by hand.
        if keeps_rings {
            queue.kick();
        } else {
            queue.kick.write(1).unwrap();
        }
        served.notice("cut off");
        assert_eq!(device.take_seen(), []);
        assert_eq!(write(&mut good[0], 0, &[1; 512]), OK);
        served.notices.lock().unwrap().clear();
        drop((client, queues));
        let (_client, mut queues) = served.guest(Setup::default());
        assert_eq!(read(&mut queues[0], 0, 4096), (OK, pattern(5, 4096)));
    }
}

#[test]
fn kicks_without_end_hold_up_nobody_else() {
    let (served, elsewhere) = (
        Served::new(Device::new(1 << 20)),
        Served::new(Device::new(1 << 20)),
    );
    let (_storm, stormy) = served.guest(Setup::default());
    let (_client, mut queues) = elsewhere.guest(Setup::default());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let _ = stormy[0].kick.write(1);
            }
        });
        for _ in 0..200 {
            assert_eq!(write(&mut queues[0], 0, &[1; 512]), OK);
        }
        ended.store(true, Ordering::Relaxed);
    });
    let mut stormy = stormy;
    assert_eq!(write(&mut stormy[0], 0, &[1; 512]), OK);
}

/// A guest that hands in and never takes out, more than its queue holds; then one that says nothing.
#[test]
fn a_guest_that_stands_still_holds_up_nobody_else() {
    let served = Served::new(Device::new(1 << 20));
    let elsewhere = Served::new(Device::new(1 << 20));
    let setup = Setup {
        queue_size: 16,
        data_bytes: 4096,
        ..Setup::default()
    };
    let (client, mut frozen) = served.guest(setup);
    let (_client, mut queues) = elsewhere.guest(Setup::default());
    for round in 0..100 {
        for slot in 0..16 {
            frozen[0].submit(slot, OUT, 0, Data::Given(4096));
        }
        frozen[0].kick();
        let expected = (round + 1) * 16;
        until(|| {
            let at = GuestAddress(frozen[0].used + 2);
            frozen[0].memory.read_obj::<u16>(at).unwrap() == expected
        });
    }
    assert_eq!(write(&mut queues[0], 0, &[1; 512]), OK);
    let seat = served.handle.as_ref().unwrap().seat();
    assert!(seat.withdraw().is_err());
    seat.disconnect();
    until(|| served.is_free());
    drop(client);
}

/// A server that is told to end does not wait for a guest.
#[test]
fn a_server_ends_while_guests_are_connected() {
    let device = Device::new(1 << 20);
    let mut served = Served::new(device.clone());
    let (_client, mut queues) = served.guest(Setup {
        queues: 8,
        ..Setup::default()
    });
    for queue in &mut queues {
        assert_eq!(write(queue, 0, &[1; 512]), OK);
    }
    let begun = Instant::now();
    served.handle = None;
    assert!(begun.elapsed() < Duration::from_secs(4));
    assert!(!served.path().exists());
}

#[test]
fn a_slow_queue_does_not_hold_up_another() {
    let device = Device::new(1 << 20);
    let served = Served::new(device.clone());
    let (_client, mut queues) = served.guest(Setup {
        queues: 2,
        ..Setup::default()
    });
    device.set_rule(|seen| match seen {
        Seen::Read(..) => Action::Block,
        _ => Action::Pass,
    });
    queues[0].submit(0, IN, 0, Data::Taken(512));
    queues[0].kick();
    until(|| device.entered() == 1);
    assert_eq!(write(&mut queues[1], 0, &[1; 512]), OK);
    device.set_rule(|_| Action::Pass);
    until(|| queues[0].completed().is_some());
}
