//! Every command with every flag, and the bounds of offset and length.

use uzram::{ErrorKind, Zeroing};
use uzram_frontends::nbd::{Export, PAYLOAD_BYTES_MAX, REFUSED_PAYLOAD_BYTES_MAX};

use crate::client::{
    self, CACHE, Client, DISC, FAST_ZERO, FLUSH, FUA, NO_HOLE, READ, TRIM, WRITE, WRITE_ZEROES,
    until_closed,
};
use crate::device::{Action, Bytes, Seen};
use crate::{Served, export};

const SIZE: usize = 1 << 20;
const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;

#[test]
fn every_command_with_every_combination_of_flags() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut client = served.connect();
    let zeroing = |flags| {
        if flags & NO_HOLE != 0 {
            Zeroing::NoHole
        } else {
            Zeroing::MayPunch
        }
    };
    for command in (0..=16)
        .chain([255, 0x100, u16::MAX])
        .filter(|&command| command != DISC)
    {
        for flags in (0..64).chain((6..16).map(|bit| 1 << bit)) {
            let allowed = if command == WRITE_ZEROES {
                FUA | NO_HOLE | FAST_ZERO
            } else {
                FUA
            };
            let is_valid = command <= WRITE_ZEROES && flags & !allowed == 0;
            let (offset, length) = if command == FLUSH {
                (0, 0)
            } else {
                (8192, 4096)
            };
            let payload = if command == WRITE {
                &[9; 4096][..]
            } else {
                &[]
            };
            let cookie = client.send(flags, command, offset, length, payload);
            let reply = client.reply();
            let error = if is_valid { 0 } else { EINVAL };
            assert_eq!(reply, (cookie, error), "command {command} flags {flags:#x}");
            let mut expected = match command {
                _ if !is_valid => vec![],
                READ => {
                    client.data(4096);
                    vec![Seen::Read(8192, 4096)]
                }
                WRITE => vec![Seen::Write(8192, 4096)],
                FLUSH => vec![Seen::Flush],
                TRIM => vec![Seen::Trim(8192, 4096)],
                WRITE_ZEROES => vec![Seen::Zero(8192, 4096, zeroing(flags))],
                _ => vec![],
            };
            if is_valid && flags & FUA != 0 && matches!(command, WRITE | TRIM | WRITE_ZEROES) {
                expected.push(Seen::Flush);
            }
            assert_eq!(
                device.take_seen(),
                expected,
                "command {command} flags {flags:#x}"
            );
        }
    }
}

#[test]
fn a_failing_flush_fails_the_forced_write() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut client = served.connect();
    device.set_rule(|seen| match seen {
        Seen::Flush => Action::Fail(ErrorKind::Io),
        _ => Action::Pass,
    });
    assert_eq!(client.write(0, 0, b"x"), 0);
    assert_eq!(client.write(FUA, 0, b"x"), 5);
    assert_eq!(client.call(FUA, TRIM, 0, 4096), 5);
    assert_eq!(client.call(FUA, WRITE_ZEROES, 0, 4096), 5);
    assert_eq!(client.call(0, FLUSH, 0, 0), 5);
}

#[test]
fn ranges_up_to_the_end_and_not_beyond() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut client = served.connect();
    let size = SIZE as u64;
    assert_eq!(client.write(0, size - 3, b"end"), 0);
    assert_eq!(client.read(size - 3, 3).unwrap(), b"end");
    let beyond = [
        (size - 3, 4),
        (size, 1),
        (size + 1, 0),
        (size + 1, 1),
        (u64::MAX, 0),
        (u64::MAX, 1),
        (u64::MAX - 3, 4),
        (1 << 63, 4096),
    ];
    device.take_seen();
    for (offset, length) in beyond {
        for (command, error) in [
            (READ, EINVAL),
            (TRIM, EINVAL),
            (CACHE, EINVAL),
            (WRITE_ZEROES, ENOSPC),
        ] {
            let got = client.call(0, command, offset, length);
            assert_eq!(got, error, "command {command} at {offset}, {length} bytes");
        }
        let payload = vec![0; length as usize];
        assert_eq!(
            client.write(0, offset, &payload),
            ENOSPC,
            "at {offset}, {length} bytes"
        );
    }
    assert_eq!(client.call(0, TRIM, 0, u32::MAX), EINVAL);
    assert_eq!(client.call(0, WRITE_ZEROES, 0, u32::MAX), ENOSPC);
    for (offset, length) in [(1, 0), (0, 1), (u64::MAX, u32::MAX)] {
        assert_eq!(client.call(0, FLUSH, offset, length), EINVAL);
    }
    assert_eq!(device.take_seen(), []);
}

#[test]
fn requests_of_length_zero_do_nothing_and_succeed() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut client = served.connect();
    for offset in [0, 5, SIZE as u64] {
        for command in [READ, WRITE, TRIM, CACHE, WRITE_ZEROES] {
            assert_eq!(client.call(0, command, offset, 0), 0);
        }
    }
    assert_eq!(device.take_seen(), []);
    assert_eq!(client.call(FUA, WRITE, 0, 0), 0);
    assert_eq!(device.take_seen(), [Seen::Flush]);
}

#[test]
fn lengths_over_the_maximum_are_refused_and_the_payload_skipped() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut client = served.connect();
    let over = PAYLOAD_BYTES_MAX + 1;
    assert_eq!(client.call(0, READ, 0, over), EOVERFLOW);
    assert_eq!(client.call(0, READ, 0, u32::MAX), EOVERFLOW);
    assert_eq!(client.write(0, 0, &vec![1; over as usize]), EINVAL);
    // Refused for other reasons, the payload goes the same way.
    assert_eq!(client.write(1 << 9, 0, &vec![1; 300_000]), EINVAL);
    assert_eq!(client.write(0, SIZE as u64 - 1, &vec![1; 300_000]), ENOSPC);
    assert_eq!(client.call(0, FLUSH, 0, 0), 0);
    assert_eq!(device.take_seen(), [Seen::Flush]);
    client.send(0, WRITE, 0, REFUSED_PAYLOAD_BYTES_MAX + 1, &[]);
    assert_eq!(until_closed(&mut client.stream), b"");
}

#[test]
fn the_largest_requests_pass() {
    let size = PAYLOAD_BYTES_MAX as usize + 4096;
    let device = Bytes::new(size);
    let served = Served::new(device);
    let mut client = served.connect();
    let data: Vec<u8> = (0..PAYLOAD_BYTES_MAX).map(|at| (at % 251) as u8).collect();
    assert_eq!(client.write(0, 100, &data), 0);
    assert!(client.read(100, data.len()).unwrap() == data);
    assert_eq!(client.call(0, WRITE_ZEROES, 0, size as u32), 0);
    assert_eq!(client.read(100, 4).unwrap(), [0; 4]);
}

#[test]
fn a_read_only_export_takes_no_changes() {
    let device = Bytes::new(SIZE);
    let served = Served::new(Bytes::new(4096));
    let export = Export {
        read_only: true,
        ..export("fixed", device.clone())
    };
    served.exports.add(export).unwrap();
    let mut client = Client::go(client::unix(&served.path()), "fixed");
    assert_eq!(client.write(0, 0, &[1; 100_000]), EPERM);
    assert_eq!(client.write(0, u64::MAX, b"x"), EPERM);
    assert_eq!(client.call(0, TRIM, 0, 4096), EPERM);
    assert_eq!(client.call(0, WRITE_ZEROES, 0, 4096), EPERM);
    assert_eq!(device.take_seen(), []);
    assert_eq!(client.read(0, 2).unwrap(), [0; 2]);
    assert_eq!(client.call(0, FLUSH, 0, 0), 0);
    assert_eq!(client.call(0, CACHE, 0, 4096), 0);
}

#[test]
fn every_error_of_the_device_reaches_the_client() {
    let device = Bytes::new(SIZE);
    let served = Served::new(device.clone());
    let mut client = served.connect();
    for (kind, error) in [
        (ErrorKind::NoSpace, ENOSPC),
        (ErrorKind::NoMemory, 12),
        (ErrorKind::Corrupt, 5),
        (ErrorKind::Io, 5),
        (ErrorKind::ReadOnly, EPERM),
        (ErrorKind::Unsupported, 95),
        (ErrorKind::InvalidInput, EINVAL),
        (ErrorKind::OutOfRange, EINVAL),
    ] {
        device.set_rule(move |_| Action::Fail(kind));
        assert_eq!(client.write(0, 0, b"x"), error);
        assert_eq!(client.write(0, 0, &[0; 200_000]), error);
        // A failed read has no data behind its reply.
        assert_eq!(client.read(0, 4096), Err(error));
        assert_eq!(client.read(0, 500_000), Err(error));
        assert_eq!(client.call(0, TRIM, 0, 4096), error);
        assert_eq!(client.call(0, WRITE_ZEROES, 0, 4096), error);
    }
    device.set_rule(|_| Action::Pass);
    assert_eq!(client.read(0, 4).unwrap(), [0; 4]);
}

#[test]
fn a_wrong_magic_hangs_up() {
    let served = Served::new(Bytes::new(SIZE));
    for bit in 0..32 {
        let mut client = served.connect();
        let mut bytes = client::request(0, FLUSH, 1, 0, 0);
        bytes[bit / 8] ^= 1 << (bit % 8);
        client.stream.write_all(&bytes).unwrap();
        assert_eq!(until_closed(&mut client.stream), b"");
    }
    assert_eq!(served.connect().call(0, FLUSH, 0, 0), 0);
}

#[test]
fn disconnecting_answers_what_was_asked_before() {
    let served = Served::new(Bytes::new(SIZE));
    let mut client = served.connect();
    let asked = [
        client::request(0, READ, 1, 0, 300_000),
        client::request(0, READ, 2, 0, 10),
        client::request(0, DISC, 3, 0, 0),
    ];
    client.stream.write_all(&asked.concat()).unwrap();
    assert_eq!(
        until_closed(&mut client.stream).len(),
        16 + 300_000 + 16 + 10
    );
}
