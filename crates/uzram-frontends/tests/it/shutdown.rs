//! Stopping a server: what is under way is answered, nothing is left behind.

use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{self, FLUSH, READ, WRITE, until_closed};
use crate::device::{Action, Bytes};
use crate::{Served, eventually};

const SIZE: usize = 8 << 20;

#[test]
fn requests_under_way_are_answered_before_the_connection_closes() {
    let device = Bytes::new(SIZE);
    let mut served = Served::new(device.clone());
    let mut client = served.connect();
    let mut idle = served.connect();
    device.set_rule(|_| Action::Block);
    let large = client.send(0, WRITE, 0, 100_000, &vec![1; 100_000]);
    let small = client.send(0, READ, 200_000, 512, &[]);
    eventually("both are inside", || device.entered() == 2);
    let handle = served.handle.take().unwrap();
    let stopping = thread::spawn(move || handle.shutdown(Duration::from_secs(10)));
    // An idle client is closed at once, those under way are waited for.
    assert_eq!(until_closed(&mut idle.stream), b"");
    thread::sleep(Duration::from_millis(100));
    assert!(!stopping.is_finished());
    device.set_rule(|_| Action::Pass);
    let mut replies = Vec::new();
    for _ in 0..2 {
        let (cookie, error) = client.reply();
        assert_eq!(error, 0);
        if cookie == small {
            client.data(512);
        }
        replies.push(cookie);
    }
    replies.sort_unstable();
    assert_eq!(replies, [large, small]);
    assert_eq!(until_closed(&mut client.stream), b"");
    stopping.join().unwrap();
    assert!(!served.path().exists());
}

#[test]
fn requests_that_had_arrived_are_answered() {
    let device = Bytes::new(SIZE);
    let mut served = Served::new(device.clone());
    let mut client = served.connect();
    device.set_rule(|_| Action::Block);
    client.send(0, WRITE, 0, 512, &[1; 512]);
    eventually("the first is inside", || device.entered() == 1);
    // Behind a stuck small request these wait in the socket.
    for _ in 0..20 {
        client.send(0, FLUSH, 0, 0, &[]);
    }
    let handle = served.handle.take().unwrap();
    let stopping = thread::spawn(move || handle.shutdown(Duration::from_secs(10)));
    thread::sleep(Duration::from_millis(100));
    device.set_rule(|_| Action::Pass);
    assert_eq!(until_closed(&mut client.stream).len(), 21 * 16);
    stopping.join().unwrap();
}

#[test]
fn clients_that_do_not_let_go_are_cut_off_in_time() {
    let device = Bytes::new(SIZE);
    let mut served = Served::new(device);
    // One sends for ever, one never reads, one sits in the handshake, one in half a request.
    let path = served.path();
    let flood = thread::spawn(move || {
        let mut stream = client::unix(&path);
        let _ = stream.write_all(&[&[0, 0, 0, 3][..], &client::option(1, b"disk")].concat());
        let mut reader = stream.try_clone().unwrap();
        let read = thread::spawn(move || until_closed(&mut reader));
        while stream
            .write_all(&client::request(0, FLUSH, 0, 0, 0))
            .is_ok()
        {}
        read.join().unwrap();
    });
    let mut silent = served.connect();
    for _ in 0..20 {
        silent.send(0, READ, 0, 1 << 20, &[]);
    }
    let _greeted = client::unix(&served.path());
    let mut half = served.connect();
    half.stream
        .write_all(&client::request(0, WRITE, 1, 0, 4096))
        .unwrap();
    eventually("all are here", || served.handle().connections() == 4);
    let started = Instant::now();
    served
        .handle
        .take()
        .unwrap()
        .shutdown(Duration::from_millis(500));
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    flood.join().unwrap();
}

#[test]
fn dropping_a_server_stops_it_and_leaves_no_thread_or_file() {
    let device = Bytes::new(SIZE);
    let mut served = Served::new(device.clone());
    let mut clients: Vec<_> = (0..5).map(|_| served.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.write(0, 0, &[3; 100_000]), 0);
    }
    drop(served.handle.take());
    // Every thread held the device through its export.
    served.exports.remove("disk").unwrap();
    assert_eq!(Arc::strong_count(&device), 1);
    assert!(!served.path().exists());
    for client in &mut clients {
        assert_eq!(until_closed(&mut client.stream), b"");
    }
}
