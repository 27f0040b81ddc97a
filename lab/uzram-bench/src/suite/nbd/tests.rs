//! The client and the load against a server made for the test, that can misbehave.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::client::{Connection, Direction, Line};
use super::lines::IOPS;
use super::load::{Job, Worker, run_together};
use super::*;
use crate::corpus::PAGE_BYTES;
use crate::figures::Cell;
use crate::sample::Series;

pub(crate) const DEVICE_BYTES: usize = 128 * PAGE_BYTES;

/// The fault of the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Flips a bit in the data of every read from the tenth on.
    WrongData,
    /// Drops every other write.
    LosesWrites,
    FailsReads,
    RepliesTwice,
    BadMagic,
    RefusesGo,
}

/// For tests elsewhere: a server that does nothing wrong.
pub(crate) fn serve_well(path: &Path) {
    serve(path, Fault::None);
}

/// Serves each connection with a device of its own; answers in reverse order where it can.
fn serve(path: &Path, fault: Fault) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || session(stream, fault));
        }
    });
}

fn session(mut stream: UnixStream, fault: Fault) -> Option<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").ok()?;
    let mut go = [0; 4 + 16 + 4];
    stream.read_exact(&mut go).ok()?;
    let name_length = u32::from_be_bytes(go[20..].try_into().unwrap()) as usize;
    let mut rest = vec![0; name_length + 2];
    stream.read_exact(&mut rest).ok()?;
    let reply = |kind: u32, data: &[u8]| {
        let mut bytes = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
        bytes.extend(7u32.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    };
    if fault == Fault::RefusesGo {
        stream
            .write_all(&reply(0x8000_0006, b"no such export"))
            .ok()?;
        return None;
    }
    let mut info = vec![0, 0];
    info.extend((DEVICE_BYTES as u64).to_be_bytes());
    info.extend([0, 1]);
    stream.write_all(&reply(3, &info)).ok()?;
    stream.write_all(&reply(1, &[])).ok()?;
    transmission(stream, fault)
}

fn transmission(mut stream: UnixStream, fault: Fault) -> Option<()> {
    let mut device = vec![0u8; DEVICE_BYTES];
    let mut count = 0;
    let mut pending: Vec<Vec<u8>> = Vec::new();
    loop {
        let header = next_header(&mut stream, &mut pending)?;
        let command = header[7];
        let offset = u64::from_be_bytes(header[16..24].try_into().unwrap()) as usize;
        let length = u32::from_be_bytes(header[24..28].try_into().unwrap()) as usize;
        count += 1;
        let mut reply = 0x6744_6698u32.to_be_bytes().to_vec();
        reply.extend(0u32.to_be_bytes());
        reply.extend(&header[8..16]);
        match command {
            0 => {
                reply.extend(&device[offset..offset + length]);
                match fault {
                    Fault::WrongData if count >= 10 => *reply.last_mut().unwrap() ^= 1,
                    Fault::FailsReads => reply[7] = 5,
                    Fault::BadMagic => reply[0] = 0,
                    _ => {}
                }
            }
            1 => {
                let mut data = vec![0; length];
                stream.read_exact(&mut data).ok()?;
                if fault != Fault::LosesWrites || count % 2 == 0 {
                    device[offset..offset + length].copy_from_slice(&data);
                }
            }
            _ => return None,
        }
        let doubled = fault == Fault::RepliesTwice && length <= 2 * PAGE_BYTES;
        pending.extend(std::iter::repeat_n(reply, if doubled { 2 } else { 1 }));
        if pending.len() >= 2 {
            answer(&mut stream, &mut pending)?;
        }
    }
}

/// The next request's header; what is pending is answered when none comes for a while.
fn next_header(stream: &mut UnixStream, pending: &mut Vec<Vec<u8>>) -> Option<[u8; 28]> {
    let mut header = [0; 28];
    stream
        .set_read_timeout(Some(Duration::from_millis(5)))
        .unwrap();
    loop {
        match stream.read(&mut header[..1]) {
            Ok(1) => break,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                answer(stream, pending)?;
            }
            _ => return None,
        }
    }
    stream.set_read_timeout(None).unwrap();
    stream.read_exact(&mut header[1..]).ok()?;
    Some(header)
}

/// Answers in reverse order, in one piece.
fn answer(stream: &mut UnixStream, pending: &mut Vec<Vec<u8>>) -> Option<()> {
    let replies: Vec<u8> = pending.drain(..).rev().flatten().collect();
    stream.write_all(&replies).ok()
}

fn pages() -> Vec<u8> {
    crate::synthetic::fio(50, 40).pages().to_vec()
}

/// Fills, then reads (or writes and reads) at a depth of which the server answers two at a time.
fn load(fault: Fault, connections: usize) -> Result<f64> {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd");
    serve(&socket, fault);
    let pages = pages();
    let mut workers = Vec::new();
    for part in 0..connections {
        let connection = Connection::open(&socket, "some-export")?;
        assert_eq!(connection.size_bytes(), DEVICE_BYTES as u64);
        let mut worker = Worker::new(Box::new(connection), part, connections)?;
        worker.fill(&pages)?;
        workers.push(worker);
    }
    let mut rate = 0.0;
    for direction in [Direction::Write, Direction::Read] {
        let duration = Duration::from_millis(30);
        let job = Job {
            pages: &pages,
            direction,
            read_bytes: 2 * PAGE_BYTES,
            depth: 2,
            duration,
        };
        rate = run_together(&mut workers, job)?;
    }
    Ok(rate)
}

#[test]
fn a_correct_server_passes_in_any_order_of_replies_and_on_several_connections() {
    for connections in [1, 3] {
        assert!(load(Fault::None, connections).unwrap() > 0.0);
    }
}

#[test]
fn every_fault_of_a_server_is_found_and_named() {
    let faults = [
        (Fault::WrongData, "NBD server: wrong data at offset"),
        (Fault::LosesWrites, "NBD server: wrong data at offset"),
        (Fault::FailsReads, "NBD server: a request failed, error 5"),
        (
            Fault::RepliesTwice,
            "NBD server: two replies to one request",
        ),
        (Fault::BadMagic, "NBD server: bad reply magic 0x00446698"),
        (Fault::RefusesGo, "NBD server at "),
    ];
    for (fault, expected) in faults {
        let text = load(fault, 1).unwrap_err().to_string();
        assert!(text.starts_with(expected), "{text}");
    }
}

#[test]
fn a_server_that_is_gone_is_named() {
    let error = Connection::open(Path::new("/nonexistent/nbd"), "")
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .starts_with("NBD server at /nonexistent/nbd: "),
        "{error}"
    );
}

#[test]
fn ratios_pair_each_codec_with_each_peer() {
    let names = ["uzram-lz4", "uzram-zstd", "nbdkit-memory", "nbdkit-zstd"];
    let series = [70.0, 50.0, 100.0, 10.0].map(|value| Series::from(vec![value]));
    let mut block = Block::default();
    let cell = Cell::new(LOADS[0].case("c", 1), IOPS, 1);
    cell.add_all(&names, &series, ours_over_theirs, &mut block);
    assert_eq!(block.results[0].case, "c/random-write-1x32");
    assert_eq!(block.results.len(), 4);
    assert_eq!(block.ratios.len(), 4);
}
