//! The handshake, byte by byte.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use uzram_frontends::nbd::{Export, OPTION_DATA_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX};

use crate::client::{self, exactly, info_data, option, option_reply, until_closed};
use crate::device::Bytes;
use crate::{Served, export};

const SIZE: u64 = 1 << 20;
/// HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, CAN_MULTI_CONN, CACHE, FAST_ZERO.
const FLAGS: u16 = 0b1101_0110_1101;

fn served() -> Served {
    Served::new(Bytes::new(SIZE as usize))
}

/// Connected, greeted, flags sent.
fn greeted(served: &Served, client_flags: u32) -> UnixStream {
    let mut stream = client::unix(&served.path());
    assert_eq!(&exactly::<18>(&mut stream), b"NBDMAGICIHAVEOPT\0\x03");
    stream.write_all(&client_flags.to_be_bytes()).unwrap();
    stream
}

fn assert_transmission(stream: &mut UnixStream) {
    stream
        .write_all(&client::request(0, client::FLUSH, 7, 0, 0))
        .unwrap();
    let mut reply = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0];
    reply.extend_from_slice(&7u64.to_be_bytes());
    assert_eq!(exactly::<16>(stream).to_vec(), reply);
}

#[test]
fn export_name_answers_size_flags_and_zeroes() {
    let served = served();
    for (client_flags, zeroes) in [(0, 124), (1, 124), (2, 0), (3, 0)] {
        for name in ["disk", ""] {
            let mut stream = greeted(&served, client_flags);
            stream.write_all(&option(1, name.as_bytes())).unwrap();
            assert_eq!(exactly(&mut stream), SIZE.to_be_bytes());
            assert_eq!(exactly(&mut stream), FLAGS.to_be_bytes());
            let mut padding = vec![1; zeroes];
            std::io::Read::read_exact(&mut stream, &mut padding).unwrap();
            assert_eq!(padding, vec![0; zeroes]);
            assert_transmission(&mut stream);
        }
    }
}

#[test]
fn export_name_of_nothing_hangs_up() {
    let served = served();
    for name in [&b"other"[..], b"disk ", b"\xff\xfe"] {
        let mut stream = greeted(&served, 3);
        stream.write_all(&option(1, name)).unwrap();
        assert_eq!(until_closed(&mut stream), b"");
    }
}

#[test]
fn info_and_go_answer_what_was_asked() {
    let served = served();
    let mut stream = greeted(&served, 3);
    let info = |kind: u16, data: &[u8]| (3, [&kind.to_be_bytes()[..], data].concat());
    let size_and_flags = [&SIZE.to_be_bytes()[..], &FLAGS.to_be_bytes()].concat();
    let blocks = [1u32, 4096, 32 << 20].map(u32::to_be_bytes).concat();
    let go = [
        (6, vec![]),
        (6, vec![3]),
        (6, vec![2, 1, 1, 0, 999, 3]),
        (7, vec![3]),
    ];
    for (number, asked) in go {
        stream
            .write_all(&option(number, &info_data("disk", &asked)))
            .unwrap();
        assert_eq!(option_reply(&mut stream, number), info(0, &size_and_flags));
        if asked.contains(&1) {
            assert_eq!(option_reply(&mut stream, number), info(1, b"disk"));
        }
        if asked.contains(&2) {
            assert_eq!(option_reply(&mut stream, number), info(2, b"about disk"));
        }
        if asked.contains(&3) {
            assert_eq!(option_reply(&mut stream, number), info(3, &blocks));
        }
        assert_eq!(option_reply(&mut stream, number), (1, vec![]));
    }
    assert_transmission(&mut stream);
}

#[test]
fn the_empty_name_means_the_only_export() {
    let served = served();
    let mut stream = greeted(&served, 3);
    stream.write_all(&option(6, &info_data("", &[1]))).unwrap();
    assert_eq!(option_reply(&mut stream, 6).0, 3);
    assert_eq!(option_reply(&mut stream, 6), (3, b"\0\x01disk".to_vec()));
    assert_eq!(option_reply(&mut stream, 6).0, 1);
    served
        .exports
        .add(export("second", Bytes::new(4096)))
        .unwrap();
    stream.write_all(&option(6, &info_data("", &[]))).unwrap();
    assert_eq!(option_reply(&mut stream, 6).0, (1 << 31) + 6);
}

#[test]
fn list_names_every_export_and_takes_no_data() {
    let served = served();
    served
        .exports
        .add(export("another", Bytes::new(4096)))
        .unwrap();
    let mut stream = greeted(&served, 3);
    stream.write_all(&option(3, &[])).unwrap();
    let entry = |name: &str| {
        let length = (name.len() as u32).to_be_bytes();
        let about = format!("about {name}");
        (2, [&length, name.as_bytes(), about.as_bytes()].concat())
    };
    assert_eq!(option_reply(&mut stream, 3), entry("another"));
    assert_eq!(option_reply(&mut stream, 3), entry("disk"));
    assert_eq!(option_reply(&mut stream, 3), (1, vec![]));
    stream.write_all(&option(3, &[0])).unwrap();
    assert_eq!(option_reply(&mut stream, 3).0, (1 << 31) + 3);
}

#[test]
fn a_read_only_export_says_so() {
    let served = served();
    let device = Bytes::new(4096);
    let export = Export {
        read_only: true,
        ..export("fixed", device)
    };
    served.exports.add(export).unwrap();
    let client = client::Client::go(client::unix(&served.path()), "fixed");
    // HAS_FLAGS, READ_ONLY, FLUSH, FUA, CAN_MULTI_CONN, CACHE.
    assert_eq!(client.flags, 0b101_0000_1111);
}

#[test]
fn abort_is_acknowledged_and_closes() {
    let served = served();
    for data in [&b""[..], b"ignored"] {
        let mut stream = greeted(&served, 3);
        stream.write_all(&option(2, data)).unwrap();
        assert_eq!(option_reply(&mut stream, 2), (1, vec![]));
        assert_eq!(until_closed(&mut stream), b"");
    }
}

#[test]
fn unknown_options_are_answered_and_the_handshake_goes_on() {
    let served = served();
    let mut stream = greeted(&served, 3);
    // PEEK_EXPORT, STARTTLS where there is no TLS, more.
    for number in [0, 4, 5, 12, 1 << 31, u32::MAX] {
        for data in [&b""[..], b"xyz"] {
            stream.write_all(&option(number, data)).unwrap();
            assert_eq!(option_reply(&mut stream, number).0, (1 << 31) + 1);
        }
    }
    stream
        .write_all(&option(7, &info_data("disk", &[])))
        .unwrap();
    assert_eq!(option_reply(&mut stream, 7).0, 3);
}

#[test]
fn malformed_information_requests_are_answered() {
    let served = served();
    let whole = info_data("disk", &[1, 2, 3]);
    let mut malformed: Vec<Vec<u8>> = (0..whole.len()).map(|end| whole[..end].to_vec()).collect();
    malformed.push([&whole[..], b"x"].concat());
    malformed.push([&u32::MAX.to_be_bytes()[..], b"disk\0\0"].concat());
    malformed.push([&4u32.to_be_bytes()[..], b"\xff\xff\xff\xff\0\0"].concat());
    malformed.push([&4u32.to_be_bytes()[..], b"disk\xff\xff"].concat());
    for number in [6, 7] {
        let mut stream = greeted(&served, 3);
        for data in &malformed {
            stream.write_all(&option(number, data)).unwrap();
            assert_eq!(
                option_reply(&mut stream, number).0,
                (1 << 31) + 3,
                "{data:x?}"
            );
        }
        stream
            .write_all(&option(number, &info_data("none", &[])))
            .unwrap();
        let (kind, reason) = option_reply(&mut stream, number);
        assert_eq!(kind, (1 << 31) + 6);
        assert_eq!(reason, b"export 'none' does not exist");
    }
}

#[test]
fn long_option_data_is_skipped_and_longer_data_hangs_up() {
    let served = served();
    let mut stream = greeted(&served, 3);
    for bytes in [OPTION_DATA_BYTES_MAX + 1, OPTION_SKIP_BYTES_MAX] {
        stream.write_all(&option(7, &vec![0; bytes])).unwrap();
        assert_eq!(option_reply(&mut stream, 7).0, (1 << 31) + 9);
    }
    stream
        .write_all(&option(12, &vec![0; OPTION_DATA_BYTES_MAX]))
        .unwrap();
    assert_eq!(option_reply(&mut stream, 12).0, (1 << 31) + 1);
    let header = option(7, &vec![0; OPTION_SKIP_BYTES_MAX + 1])[..16].to_vec();
    stream.write_all(&header).unwrap();
    assert_eq!(until_closed(&mut stream), b"");
    let mut stream = greeted(&served, 3);
    stream
        .write_all(&option(1, &vec![b'x'; OPTION_DATA_BYTES_MAX + 1]))
        .unwrap();
    assert_eq!(until_closed(&mut stream), b"");
}

#[test]
fn endless_options_hang_up() {
    let served = served();
    let mut stream = greeted(&served, 3);
    for _ in 0..OPTIONS_MAX {
        stream.write_all(&option(99, &[])).unwrap();
        assert_eq!(option_reply(&mut stream, 99).0, (1 << 31) + 1);
    }
    stream.write_all(&option(99, &[])).unwrap();
    assert_eq!(until_closed(&mut stream), b"");
}

#[test]
fn a_wrong_bit_anywhere_is_answered_or_hangs_up() {
    let served = served();
    let good = [
        &[0, 0, 0, 3][..],
        &option(7, &info_data("disk", &[3])),
        &option(2, &[]),
    ]
    .concat();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        let mut stream = client::unix(&served.path());
        // The server may hang up before all is sent.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let said = until_closed(&mut stream);
        assert_eq!(&said[..18], b"NBDMAGICIHAVEOPT\0\x03", "bit {bit}");
        let known_flags = bit / 8 != 3 || bit % 8 >= 6;
        if bit < 30 || !known_flags {
            assert_eq!(
                said.len(),
                18,
                "bit {bit}: unknown client flags must hang up"
            );
        } else if (32..96).contains(&bit) {
            assert_eq!(said.len(), 18, "bit {bit}: a wrong magic must hang up");
        }
    }
    // And the server is as good as new.
    assert_transmission_on(&served);
}

#[test]
fn a_handshake_cut_short_anywhere_only_ends_itself() {
    let served = served();
    let good = [
        &[0, 0, 0, 3][..],
        &option(3, &[]),
        &option(7, &info_data("disk", &[3])),
    ]
    .concat();
    for end in 0..good.len() {
        let mut stream = client::unix(&served.path());
        stream.write_all(&good[..end]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let said = until_closed(&mut stream);
        // Nothing is answered before the option is whole: greeting, then the answer to LIST.
        let list = 18 + 20 + 4 + "diskabout disk".len() + 20;
        assert_eq!(said.len(), if end < 20 { 18 } else { list }, "cut at {end}");
    }
    assert_transmission_on(&served);
}

#[test]
fn a_handshake_in_single_bytes_works() {
    let served = served();
    let mut stream = client::unix(&served.path());
    let bytes = [&[0, 0, 0, 3][..], &option(7, &info_data("disk", &[]))].concat();
    for byte in bytes {
        stream.write_all(&[byte]).unwrap();
    }
    exactly::<18>(&mut stream);
    option_reply(&mut stream, 7);
    option_reply(&mut stream, 7);
    assert_transmission(&mut stream);
}

#[test]
fn requests_may_follow_the_handshake_in_one_piece() {
    let served = served();
    let mut stream = client::unix(&served.path());
    let mut bytes = [&[0, 0, 0, 3][..], &option(1, b"disk")].concat();
    bytes.extend_from_slice(&client::request(0, client::WRITE, 1, 10, 3));
    bytes.extend_from_slice(b"abc");
    bytes.extend_from_slice(&client::request(0, client::READ, 2, 10, 3));
    stream.write_all(&bytes).unwrap();
    exactly::<{ 18 + 10 }>(&mut stream);
    exactly::<16>(&mut stream);
    assert_eq!(&exactly::<19>(&mut stream)[16..], b"abc");
}

#[test]
fn an_export_in_use_cannot_be_removed() {
    let served = served();
    assert_eq!(served.exports.connections("disk"), 0);
    let client = served.connect();
    assert_eq!(served.exports.connections("disk"), 1);
    let error = served.exports.remove("disk").unwrap_err();
    assert_eq!(error.kind(), uzram::ErrorKind::Busy);
    assert_eq!(
        error.to_string(),
        "export 'disk' is used by 1 connections; disconnect them"
    );
    drop(client);
    crate::eventually("the client is gone", || {
        served.exports.connections("disk") == 0
    });
    served.exports.remove("disk").unwrap();
    assert!(served.exports.list().is_empty());
    let error = served.exports.remove("disk").unwrap_err();
    assert_eq!(error.kind(), uzram::ErrorKind::UnknownName);
}

#[test]
fn exports_outside_the_bounds_are_refused() {
    let served = served();
    let kind = |export| served.exports.add(export).unwrap_err().kind();
    let device = Bytes::new(4096);
    let device = || Arc::clone(&device) as Arc<dyn uzram::BlockDevice>;
    assert_eq!(kind(export("disk", device())), uzram::ErrorKind::Busy);
    assert_eq!(
        kind(export("a\0b", device())),
        uzram::ErrorKind::InvalidInput
    );
    assert_eq!(
        kind(export(&"n".repeat(257), device())),
        uzram::ErrorKind::InvalidInput
    );
    let long = Export {
        description: "d".repeat(4097),
        ..export("long", device())
    };
    assert_eq!(kind(long), uzram::ErrorKind::InvalidInput);
    served
        .exports
        .add(export(&"n".repeat(256), device()))
        .unwrap();
}

fn assert_transmission_on(served: &Served) {
    assert_eq!(served.connect().call(0, client::FLUSH, 0, 0), 0);
}
