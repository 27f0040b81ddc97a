//! Nothing small waits for something big.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use uzram_frontends::nbd::Limits;

use crate::client::{READ, TRIM, WRITE, WRITE_ZEROES};
use crate::device::{Action, Bytes, Seen};
use crate::{Served, eventually};

const SIZE: usize = 64 << 20;
const MIB: u32 = 1 << 20;

/// Blocks what `is_blocked` names until [`release`].
fn block(device: &Bytes, is_blocked: impl Fn(Seen) -> bool + Send + 'static) {
    device.set_rule(move |seen| {
        if is_blocked(seen) {
            Action::Block
        } else {
            Action::Pass
        }
    });
}

/// Lets go of what [`block`] holds.
fn release(device: &Bytes) {
    device.set_rule(|_| Action::Pass);
}

#[test]
fn a_small_read_overtakes_a_slow_large_request() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut client = served.connect();
    for (command, length) in [
        (WRITE, MIB),
        (READ, MIB),
        (TRIM, 32 << 20),
        (WRITE_ZEROES, 32 << 20),
    ] {
        block(&device, |seen| match seen {
            Seen::Read(_, length) | Seen::Write(_, length) => length >= u64::from(MIB),
            Seen::Trim(..) | Seen::Zero(..) => true,
            Seen::Flush => false,
        });
        let payload = if command == WRITE {
            vec![7; length as usize]
        } else {
            Vec::new()
        };
        let slow = client.send(0, command, 0, length, &payload);
        for at in 0..20 {
            assert_eq!(
                client.read(at * 4096 + 33 * u64::from(MIB), 4096).unwrap(),
                [0; 4096]
            );
        }
        release(&device);
        assert_eq!(client.reply(), (slow, 0));
        if command == READ {
            assert!(client.data(length as usize) == vec![7; length as usize]);
        }
    }
}

#[test]
fn small_requests_around_a_large_read_in_one_packet_overtake_it() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut client = served.connect();
    block(
        &device,
        |seen| matches!(seen, Seen::Read(_, length) if length >= u64::from(MIB)),
    );
    let mut bytes = Vec::new();
    for cookie in 0..10 {
        if cookie == 1 {
            bytes.extend_from_slice(&crate::client::request(0, READ, 1, 0, MIB));
            continue;
        }
        bytes.extend_from_slice(&crate::client::request(0, WRITE, cookie, 0, 4));
        bytes.extend_from_slice(b"data");
    }
    client.stream.write_all(&bytes).unwrap();
    // Among themselves they may be shared between workers.
    let mut replies: Vec<_> = (1..10).map(|_| client.reply()).collect();
    replies.sort_unstable();
    let small = (0..10).filter(|&cookie| cookie != 1);
    assert_eq!(replies, small.map(|cookie| (cookie, 0)).collect::<Vec<_>>());
    release(&device);
    assert_eq!(client.reply(), (1, 0));
    client.data(MIB as usize);
}

#[test]
fn as_many_large_requests_as_workers_but_one_may_be_stuck() {
    let device = Bytes::new(SIZE);
    let limits = Limits {
        workers_per_connection_max: 4,
        ..Limits::default()
    };
    let served = Served::with(device.clone(), limits);
    let mut client = served.connect();
    block(
        &device,
        |seen| matches!(seen, Seen::Write(_, length) if length >= 100_000),
    );
    let mut slow: Vec<u64> = (0..3)
        .map(|at| client.send(0, WRITE, at * 100_000, 100_000, &[at as u8; 100_000]))
        .collect();
    for _ in 0..5 {
        assert_eq!(client.read(0, 1).unwrap(), [0]);
    }
    release(&device);
    while !slow.is_empty() {
        let (cookie, error) = client.reply();
        assert_eq!(error, 0);
        let at = slow
            .iter()
            .position(|&sent| sent == cookie)
            .expect("in flight");
        slow.remove(at);
    }
}

#[test]
fn a_stuck_connection_does_not_hold_up_another() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut stuck = served.connect();
    let mut free = served.connect();
    block(&device, |seen| matches!(seen, Seen::Write(0, _)));
    // Small: this connection has nobody left to receive, which is its own affair.
    let cookie = stuck.send(0, WRITE, 0, 512, &[1; 512]);
    eventually("the write is stuck", || device.entered() == 1);
    for _ in 0..100 {
        assert_eq!(free.write(0, 4096, &[2; 4096]), 0);
        assert_eq!(free.read(4096, 4096).unwrap(), [2; 4096]);
    }
    release(&device);
    assert_eq!(stuck.reply(), (cookie, 0));
}

#[test]
fn a_slow_batch_is_shared_between_workers() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut client = served.connect();
    let by_helpers = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&by_helpers);
    device.set_rule(move |_| {
        std::thread::sleep(Duration::from_micros(300));
        // Helpers are named after their connection, with a number behind a dot.
        let is_helper = std::thread::current()
            .name()
            .is_some_and(|name| name.contains('.'));
        counter.fetch_add(usize::from(is_helper), Ordering::SeqCst);
        Action::Pass
    });
    let mut bytes = Vec::new();
    for cookie in 0..24 {
        bytes.extend_from_slice(&crate::client::request(
            0,
            WRITE,
            cookie,
            cookie * 4096,
            4096,
        ));
        bytes.extend_from_slice(&[cookie as u8; 4096]);
    }
    let started = Instant::now();
    while by_helpers.load(Ordering::SeqCst) == 0 {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "no helper ever took part"
        );
        client.stream.write_all(&bytes).unwrap();
        let mut cookies: Vec<u64> = (0..24).map(|_| client.reply().0).collect();
        cookies.sort_unstable();
        assert_eq!(cookies, (0..24).collect::<Vec<u64>>());
    }
}

#[test]
fn mixed_sizes_with_slow_zeroes_keep_the_stream_in_step() {
    // A shared batch must never take a large request along: two workers would both receive.
    let device = Bytes::new(SIZE);
    device.set_rule(|seen| {
        if matches!(seen, Seen::Zero(..)) {
            std::thread::sleep(Duration::from_micros(80));
        }
        Action::Pass
    });
    let served = Served::new(device);
    let mut client = served.connect();
    for round in 0..40u64 {
        let mut bytes = Vec::new();
        let mut cookies = Vec::new();
        for at in 0..10 {
            for (command, length) in [
                (WRITE_ZEROES, 4096),
                (WRITE, 4096),
                (READ, 0),
                (WRITE, 70_000),
            ] {
                let cookie = (round << 16) + cookies.len() as u64;
                let offset = at * 100_000;
                bytes.extend(crate::client::request(0, command, cookie, offset, length));
                if command == WRITE {
                    bytes.resize(bytes.len() + length as usize, round as u8);
                }
                cookies.push(cookie);
            }
        }
        client.stream.write_all(&bytes).unwrap();
        let mut replied: Vec<u64> = cookies.iter().map(|_| client.reply().0).collect();
        replied.sort_unstable();
        assert_eq!(replied, cookies);
    }
}

#[test]
fn replies_of_all_sizes_never_mix() {
    // Several workers answer at once; replies larger than a socket's buffer go out in pieces.
    let device = Bytes::new(SIZE);
    let served = Served::new(device);
    let mut client = served.connect();
    let pattern: Vec<u8> = (0..8 * MIB).map(|at| (at / 512 % 253) as u8).collect();
    assert_eq!(client.write(0, 0, &pattern), 0);
    for _ in 0..10 {
        let mut asked = Vec::new();
        for at in 0..12u64 {
            for (offset, length) in [(at * 512, MIB), (at * 4096, 8), (at * 70_000, 70_000)] {
                asked.push((client.send(0, READ, offset, length, &[]), offset, length));
            }
        }
        while !asked.is_empty() {
            let (cookie, error) = client.reply();
            assert_eq!(error, 0);
            let at = asked
                .iter()
                .position(|asked| asked.0 == cookie)
                .expect("in flight");
            let (_, offset, length) = asked.swap_remove(at);
            let expected = &pattern[offset as usize..][..length as usize];
            assert!(
                client.data(length as usize) == expected,
                "{length} bytes at {offset}"
            );
        }
    }
}
