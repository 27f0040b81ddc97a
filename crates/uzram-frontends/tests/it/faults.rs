//! Clients that vanish, dawdle, never read, or come in crowds.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uzram_frontends::nbd::Limits;

use crate::client::{
    self, Client, FLUSH, READ, WRITE, exactly, info_data, option, option_reply, until_closed,
};
use crate::device::{Action, Bytes, Seen};
use crate::{Served, eventually};

const SIZE: usize = 8 << 20;

#[test]
fn a_client_that_vanishes_at_any_byte_of_a_request_loses_only_its_connection() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut witness = served.connect();
    let mut whole = client::request(0, WRITE, 1, 0, 64);
    whole.extend_from_slice(&[1; 64]);
    whole.extend_from_slice(&client::request(0, READ, 2, 0, 4096));
    for end in 0..whole.len() {
        for politely in [false, true] {
            let mut stream = client::unix(&served.path());
            stream
                .write_all(&[&[0, 0, 0, 3][..], &option(1, b"disk"), &whole[..end]].concat())
                .unwrap();
            if politely {
                stream.shutdown(Shutdown::Write).unwrap();
                let answers = if end >= 28 + 64 { 16 } else { 0 };
                assert_eq!(
                    until_closed(&mut stream).len(),
                    18 + 10 + answers,
                    "cut at {end}"
                );
            }
        }
        assert_eq!(witness.call(0, FLUSH, 0, 0), 0);
    }
    // An incomplete write never reaches the device.
    let writes = device
        .take_seen()
        .into_iter()
        .filter(|seen| matches!(seen, Seen::Write(..)));
    assert!(writes.into_iter().all(|seen| seen == Seen::Write(0, 64)));
    eventually("only the witness is left", || {
        served.handle().connections() == 1
    });
}

#[test]
fn a_client_that_vanishes_with_requests_in_the_device_is_forgotten() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut client = served.connect();
    device.set_rule(|_| Action::Block);
    for _ in 0..3 {
        client.send(0, WRITE, 0, 100_000, &[1; 100_000]);
    }
    eventually("three writes are inside", || device.entered() == 3);
    drop(client);
    device.set_rule(|_| Action::Pass);
    eventually("the client is gone", || served.handle().connections() == 0);
    assert_eq!(served.exports.connections("disk"), 0);
    assert_eq!(served.connect().read(0, 1).unwrap(), [1]);
}

#[test]
fn a_connection_that_idled_ends_with_all_its_workers() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut client = served.connect();
    // While the first worker is stuck the receiver moves to a helper and stays there.
    device.set_rule(|seen| match seen {
        Seen::Write(..) => Action::Block,
        _ => Action::Pass,
    });
    let cookie = client.send(0, WRITE, 0, 100_000, &[1; 100_000]);
    assert_eq!(client.read(200_000, 1).unwrap(), [0]);
    device.set_rule(|_| Action::Pass);
    assert_eq!(client.reply(), (cookie, 0));
    // Long enough for both to have settled down.
    std::thread::sleep(Duration::from_millis(2500));
    drop(client);
    eventually("the client is gone", || served.handle().connections() == 0);
}

#[test]
fn a_device_that_panics_costs_the_connection_and_not_the_server() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    for length in [512, 100_000] {
        let mut client = served.connect();
        let payload = vec![0; length];
        device.set_rule(|_| Action::Panic);
        client.send(0, WRITE, 0, length as u32, &payload);
        assert_eq!(until_closed(&mut client.stream), b"");
        device.set_rule(|_| Action::Pass);
        assert_eq!(served.connect().write(0, 0, &payload), 0);
    }
    eventually("all are gone", || served.handle().connections() == 0);
}

#[test]
fn a_client_that_never_reads_is_held_back_and_holds_nobody_back() {
    let device = Bytes::new(SIZE);
    let limits = Limits {
        in_flight_bytes_max: 2 << 20,
        workers_per_connection_max: 8,
        ..Limits::default()
    };
    let served = Served::with(device.clone(), limits);
    let mut silent = client::unix(&served.path());
    silent
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    silent
        .write_all(&[&[0, 0, 0, 3][..], &option(1, b"disk")].concat())
        .unwrap();
    // Up to 4,000 reads of 1 MiB, 4 GB of answers.
    let read = |cookie| client::request(0, READ, cookie, 0, 1 << 20);
    let sent = (0..4000)
        .take_while(|&cookie| silent.write_all(&read(cookie)).is_ok())
        .count();
    assert!(sent > 10);
    let entered = || device.entered();
    eventually("reads have begun", || entered() > 0);
    std::thread::sleep(Duration::from_millis(200));
    // Eight workers could hold eight; the limit lets two be in flight.
    assert!(
        entered() <= 2,
        "{} reads were carried out for {sent} requests",
        entered()
    );
    let mut other = served.connect();
    for _ in 0..50 {
        assert_eq!(other.write(0, 0, &[1; 4096]), 0);
    }
    drop(silent);
    eventually("the silent client is gone", || {
        served.handle().connections() == 1
    });
}

#[test]
fn small_reads_that_are_never_fetched_are_bounded_too() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut silent = client::unix(&served.path());
    silent
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    silent
        .write_all(&[&[0, 0, 0, 3][..], &option(1, b"disk")].concat())
        .unwrap();
    let requests: Vec<u8> = (0..1000)
        .flat_map(|cookie| client::request(0, READ, cookie, 0, 4096))
        .collect();
    // The server stops receiving, so the client cannot even send them all.
    let stopped = (0..1000).any(|_| silent.write_all(&requests).is_err());
    assert!(
        stopped,
        "a million requests were taken without one answer being read"
    );
    assert!(
        device.entered() < 1000,
        "{} reads were carried out",
        device.entered()
    );
}

#[test]
fn a_handshake_that_stalls_is_cut_off() {
    let limits = Limits {
        handshake_timeout: Duration::from_millis(300),
        ..Limits::default()
    };
    let served = Served::with(Bytes::new(SIZE), limits);
    let mut established = served.connect();
    let go = option(7, &info_data("disk", &[]));
    for begun in [
        &b""[..],
        &[0, 0],
        &[0, 0, 0, 3],
        &[&[0, 0, 0, 3][..], &go[..20]].concat(),
    ] {
        let started = Instant::now();
        let mut stream = client::unix(&served.path());
        stream.write_all(begun).unwrap();
        assert_eq!(until_closed(&mut stream).len(), 18);
        let waited = started.elapsed();
        assert!(waited >= Duration::from_millis(290), "{waited:?}");
    }
    // Byte by byte does not help either.
    let started = Instant::now();
    let mut stream = client::unix(&served.path());
    let trickle = [&[0, 0, 0, 3][..], &option(9, &[0; 8000])].concat();
    let cut = trickle.iter().any(|byte| {
        std::thread::sleep(Duration::from_millis(5));
        stream.write_all(&[*byte]).is_err()
    });
    assert!(cut && started.elapsed() < Duration::from_secs(5));
    // The limit is the handshake's: whoever is through may be idle.
    assert_eq!(established.call(0, FLUSH, 0, 0), 0);
}

#[test]
fn beyond_the_limit_clients_are_told_why_and_the_others_go_on() {
    let limits = Limits {
        connections_max: 3,
        ..Limits::default()
    };
    let served = Served::with(Bytes::new(SIZE), limits);
    let mut clients: Vec<Client> = (0..3).map(|_| served.connect()).collect();
    assert_eq!(served.handle().connections(), 3);
    for number in [7, 6, 3] {
        let mut refused = client::unix(&served.path());
        assert_eq!(&exactly::<18>(&mut refused), b"NBDMAGICIHAVEOPT\0\x03");
        refused.write_all(&[0, 0, 0, 3]).unwrap();
        refused
            .write_all(&option(number, &info_data("disk", &[])))
            .unwrap();
        let (kind, reason) = option_reply(&mut refused, number);
        assert_eq!(kind, (1 << 31) + 2);
        assert_eq!(
            reason,
            b"server is full: 3 connections, its limit; try later"
        );
        refused.write_all(&option(2, &[])).unwrap();
        assert_eq!(option_reply(&mut refused, 2), (1, vec![]));
        assert_eq!(until_closed(&mut refused), b"");
    }
    let mut refused = client::unix(&served.path());
    refused
        .write_all(&[&[0, 0, 0, 3][..], &option(1, b"disk")].concat())
        .unwrap();
    assert_eq!(until_closed(&mut refused).len(), 18);
    for client in &mut clients {
        assert_eq!(client.call(0, FLUSH, 0, 0), 0);
    }
    clients.pop();
    eventually("a place is free", || served.handle().connections() == 2);
    assert_eq!(served.connect().call(0, FLUSH, 0, 0), 0);
}

#[test]
fn a_thousand_idle_connections_do_not_disturb_one_that_works() {
    let limits = Limits {
        handshake_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let served = Served::with(Bytes::new(SIZE), limits);
    let mut client = served.connect();
    let mut crowd = Vec::new();
    for _ in 0..1000 {
        let Ok(stream) = std::os::unix::net::UnixStream::connect(served.path()) else {
            break;
        };
        crowd.push(stream);
        assert_eq!(client.write(0, 0, &[1; 512]), 0);
    }
    assert!(served.handle().connections() <= 128);
    // Those that found no place were hung up on or are being told; none is left waiting.
    let mut hung_up = 0;
    for stream in &mut crowd {
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        hung_up += usize::from(stream.read_to_end(&mut Vec::new()).is_ok());
    }
    assert_eq!(hung_up, crowd.len());
    eventually("one is left", || served.handle().connections() == 1);
    assert_eq!(client.call(0, FLUSH, 0, 0), 0);
    assert_eq!(served.connect().call(0, FLUSH, 0, 0), 0);
}

#[test]
fn a_crowd_that_never_finishes_the_handshake_locks_nobody_out() {
    let limits = Limits {
        connections_max: 8,
        handshake_timeout: Duration::from_secs(60),
        ..Limits::default()
    };
    let served = Served::with(Bytes::new(SIZE), limits);
    let mut established: Vec<Client> = (0..3).map(|_| served.connect()).collect();
    let mut crowd = Vec::new();
    for round in 0..12 {
        crowd.extend((0..25).map(|_| client::unix(&served.path())));
        let mut owner = served.connect();
        assert_eq!(owner.call(0, FLUSH, 0, 0), 0, "round {round}");
    }
    for client in &mut established {
        assert_eq!(
            client.call(0, FLUSH, 0, 0),
            0,
            "past the handshake nobody goes"
        );
    }
    // What is left of the crowd: the newest, as many as are the share of one user.
    assert!(served.handle().connections() <= 3 + 1 + 4);
    for stream in &mut crowd[..290] {
        assert!(until_closed(stream).len() <= 18, "the oldest go first");
    }
    // A server that is full of users is full.
    drop(crowd);
    eventually("the crowd is gone", || served.handle().connections() == 3);
    established.extend((3..8).map(|_| served.connect()));
    let mut refused = client::unix(&served.path());
    refused
        .write_all(&[&[0, 0, 0, 3][..], &option(7, &info_data("disk", &[]))].concat())
        .unwrap();
    assert_eq!(exactly::<18>(&mut refused)[..8], *b"NBDMAGIC");
    assert_eq!(option_reply(&mut refused, 7).0, (1 << 31) + 2);
    for client in &mut established {
        assert_eq!(client.call(0, FLUSH, 0, 0), 0);
    }
}

/// A server in whose memory one read of the whole device fits at a time.
fn one_read_at_a_time() -> (Arc<Bytes>, Served) {
    let device = Bytes::new(SIZE);
    let limits = Limits {
        buffered_bytes_max: 12 << 20,
        workers_per_connection_max: 4,
        ..Limits::default()
    };
    let served = Served::with(device.clone(), limits);
    (device, served)
}

#[test]
fn reads_of_clients_that_have_left_are_not_carried_out() {
    let (device, served) = one_read_at_a_time();
    device.set_rule(|_| Action::Block);
    let mut clients: Vec<Client> = (0..4).map(|_| served.connect()).collect();
    for client in &mut clients {
        for _ in 0..8 {
            client.send(0, READ, 0, SIZE as u32, &[]);
        }
    }
    eventually("one is in the device", || device.entered() == 1);
    drop(clients);
    device.set_rule(|_| Action::Pass);
    eventually("all have left", || served.handle().connections() == 0);
    assert_eq!(device.entered(), 1, "work for nobody");
    let mut client = served.connect();
    assert!(client.read(0, SIZE).is_ok(), "all memory is given back");
}

#[test]
fn requests_under_way_are_answered_after_the_client_has_said_all() {
    let (device, served) = one_read_at_a_time();
    let stream = client::unix(&served.path());
    let own = stream.try_clone().unwrap();
    let mut client = Client::go(stream, "disk");
    device.set_rule(|_| Action::Block);
    for _ in 0..3 {
        client.send(0, READ, 0, SIZE as u32, &[]);
    }
    own.shutdown(Shutdown::Write).unwrap();
    eventually("one is in the device", || device.entered() == 1);
    device.set_rule(|_| Action::Pass);
    for _ in 0..3 {
        assert_eq!(client.reply().1, 0);
        client.data(SIZE);
    }
    assert_eq!(until_closed(&mut client.stream), b"");
}
