//! How long a server waits for whom, what slow clients may hold, and that nothing is left of those
//! that have gone.

use std::fs;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use uzram_frontends::nbd::Limits;

use crate::chunks::Chunked;
use crate::client::{self, Client, FLUSH, READ, WRITE, until_closed};
use crate::device::Bytes;
use crate::{Served, eventually};

const SIZE: usize = 64 << 20;
const SHORT: Duration = Duration::from_millis(300);

fn impatient() -> Limits {
    Limits {
        request_timeout: SHORT,
        ..Limits::default()
    }
}

#[test]
fn a_request_that_does_not_arrive_is_given_up_and_silence_between_requests_is_not() {
    let served = Served::with(Bytes::new(SIZE), impatient());
    let mut silent = served.connect();
    // Within a header, behind it, within a payload that is refused.
    let header = client::request(0, WRITE, 1, 0, 1 << 20);
    let refused = client::request(0x100, WRITE, 1, 0, 1 << 20);
    for begun in [
        &header[..5],
        &header,
        &[&header[..], &[1; 70_000]].concat(),
        &refused,
    ] {
        let started = Instant::now();
        let mut client = served.connect();
        client.stream.write_all(begun).unwrap();
        assert_eq!(until_closed(&mut client.stream), b"");
        assert!(started.elapsed() >= SHORT - Duration::from_millis(10));
    }
    // A trickle is too little.
    let started = Instant::now();
    let mut client = served.connect();
    client.stream.write_all(&header).unwrap();
    while client.stream.write_all(&[1; 100]).is_ok() {
        std::thread::sleep(Duration::from_millis(10));
        assert!(started.elapsed() < Duration::from_secs(10), "it goes on");
    }
    assert_eq!(silent.call(0, FLUSH, 0, 0), 0);
}

#[test]
fn a_client_that_takes_no_replies_is_given_up() {
    let served = Served::with(Bytes::new(SIZE), impatient());
    let mut client = served.connect();
    for _ in 0..4 {
        client.send(0, READ, 0, 16 << 20, &[]);
    }
    eventually("it is hung up on", || served.handle().connections() == 0);
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert!(rest.len() < 16 << 20);
}

#[test]
fn where_silence_is_limited_it_ends_the_connection() {
    let limits = Limits {
        idle_timeout: Some(SHORT),
        ..Limits::default()
    };
    let served = Served::with(Bytes::new(SIZE), limits);
    let mut client = served.connect();
    for _ in 0..4 {
        std::thread::sleep(SHORT / 2);
        assert_eq!(client.call(0, FLUSH, 0, 0), 0);
    }
    let started = Instant::now();
    assert_eq!(until_closed(&mut client.stream), b"");
    assert!(started.elapsed() >= SHORT - Duration::from_millis(10));
}

#[test]
fn what_all_clients_may_have_in_memory_is_bounded_and_small_requests_go_on() {
    let limits = Limits {
        buffered_bytes_max: 40 << 20,
        request_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let served = Served::with(Bytes::new(SIZE), limits);
    // One has begun 32 MiB and holds them; the next has to wait for its 32.
    let mut slow = served.connect();
    let header = client::request(0, WRITE, 1, 0, 32 << 20);
    slow.stream.write_all(&header).unwrap();
    slow.stream.write_all(&[1; 1000]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let started = Instant::now();
    let mut large = served.connect();
    let cookie = large.send(0, READ, 0, 32 << 20, &[]);
    let mut small = served.connect();
    for at in 0..200 {
        assert_eq!(small.write(0, at * 4096, &[2; 4096]), 0);
    }
    // The slow one is given up, and what it held is the next one's.
    assert_eq!(large.reply(), (cookie, 0));
    assert!(started.elapsed() >= Duration::from_millis(1500));
    assert!(large.data(32 << 20)[..4096] == [2; 4096]);
    assert_eq!(until_closed(&mut slow.stream), b"");
}

#[test]
fn slow_clients_at_every_stage_do_not_hold_up_a_fast_one() {
    let limits = Limits {
        request_timeout: Duration::from_secs(60),
        ..Limits::default()
    };
    let served = Served::with(Bytes::new(SIZE), limits);
    let mut crowd = Vec::new();
    for stage in 0..40 {
        let mut stream = client::unix(&served.path());
        let mut said = [&[0, 0, 0, 3][..], &client::option(1, b"disk")].concat();
        said.extend_from_slice(&client::request(0, WRITE, 1, 0, 100_000));
        said.extend_from_slice(&[1; 500]);
        said.truncate(1 + stage * said.len() / 40);
        stream.write_all(&said).unwrap();
        crowd.push(stream);
    }
    let mut fast = served.connect();
    for at in 0..500 {
        assert_eq!(fast.write(0, at * 4096, &[3; 4096]), 0);
        assert_eq!(fast.read(at * 4096, 4096).unwrap(), [3; 4096]);
    }
}

#[test]
fn extended_frames_cut_at_every_byte_cost_only_their_connection() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut witness = served.connect();
    let whole = {
        let mut bytes = Vec::new();
        for (flags, command, length, payload) in [
            (32u16, WRITE, 64u64, &[1; 64][..]),
            (32, 7, 12, &[0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 1]),
            (0, READ, 4096, &[]),
        ] {
            bytes.extend_from_slice(&0x21e4_1c71_u32.to_be_bytes());
            bytes.extend_from_slice(&flags.to_be_bytes());
            bytes.extend_from_slice(&command.to_be_bytes());
            bytes.extend_from_slice(&[0; 16]);
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(payload);
        }
        bytes
    };
    let mut handshake = vec![0, 0, 0, 3];
    handshake.extend(client::option(11, &[]));
    let contexts = crate::chunks::meta_data("disk", &["base:allocation"]);
    handshake.extend(client::option(10, &contexts));
    handshake.extend(client::option(7, &client::info_data("disk", &[])));
    for end in 0..handshake.len() + whole.len() {
        let bytes = [&handshake[..], &whole].concat();
        let mut stream = client::unix(&served.path());
        stream.write_all(&bytes[..end]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let said = until_closed(&mut stream).len();
        let (write, status) = (32 + 64, 32 + 12);
        let greeting = 18 + 20 + 24 + 15 + 20 + 32 + 20;
        let replies = match end.checked_sub(handshake.len()) {
            None => continue,
            Some(sent) if sent < write => 0,
            Some(sent) if sent < write + status => 32,
            Some(_) => 32 + 32 + 8 + 16,
        };
        assert_eq!(said, greeting + replies, "cut at {end}");
    }
    assert_eq!(witness.call(0, FLUSH, 0, 0), 0);
    eventually("only the witness is left", || {
        served.handle().connections() == 1
    });
}

/// Open files and threads of this process, and its memory in KiB.
fn footprint() -> (usize, usize, usize) {
    let count = |directory: &str| fs::read_dir(directory).unwrap().count();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.unwrap().trim().trim_end_matches(" kB");
    (
        count("/proc/self/fd"),
        count("/proc/self/task"),
        resident.parse().unwrap(),
    )
}

/// In a process of its own: other tests open and close, too.
#[test]
fn ten_thousand_clients_come_and_go_and_leave_nothing() {
    const NAME: &str = "patience::ten_thousand_clients_come_and_go_and_leave_nothing";
    if std::env::var_os("UZRAM_TEST_ALONE").is_none() {
        let program = std::env::current_exe().unwrap();
        let output = std::process::Command::new(program)
            .args(["--exact", NAME, "--nocapture"])
            .env("UZRAM_TEST_ALONE", "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        return;
    }
    let served = Served::new(Bytes::new(1 << 20));
    let come_and_go = |rounds: usize| {
        for round in 0..rounds {
            match round % 5 {
                0 => drop(client::unix(&served.path())),
                1 => {
                    let mut stream = client::unix(&served.path());
                    stream.write_all(&[0, 0, 0]).unwrap();
                }
                2 => {
                    let mut client = Client::go(client::unix(&served.path()), "disk");
                    assert_eq!(client.write(0, 0, &[1; 4096]), 0);
                }
                3 => {
                    let stream = client::unix(&served.path());
                    let mut client = Chunked::go(stream, "disk", true, &["base:allocation"]);
                    assert_eq!(client.call(0, READ, 0, 4096).error(), 0);
                    client.send(0, client::DISC, 0, 0, &[]);
                }
                _ => {
                    let mut client = Client::go(client::unix(&served.path()), "disk");
                    // It goes with its request half sent.
                    client
                        .stream
                        .write_all(&client::request(0, WRITE, 1, 0, 1 << 18)[..20])
                        .unwrap();
                }
            }
        }
        eventually("all have gone", || served.handle().connections() == 0);
    };
    come_and_go(500);
    // Threads that have ended are joined when the next client comes.
    drop(served.connect());
    let before = footprint();
    come_and_go(10_000);
    drop(served.connect());
    eventually("as many descriptors and threads as before", || {
        let now = footprint();
        now.0 <= before.0 + 2 && now.1 <= before.1 + 2
    });
    let after = footprint();
    assert!(after.2 < before.2 + 8192, "{before:?} became {after:?}");
}
